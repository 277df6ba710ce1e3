# SPDX-License-Identifier: GPL-2.0-only
#
# For people. Kbuild reads the files called Kbuild. `make help` lists what there is.

# The kernel that `make` alone builds the module for.
KDIR ?= /lib/modules/$(shell uname -r)/build

# Which kernel the environment and the guest are made for; empty: the newest of trixie-backports.
SUITE ?=
KVER ?=
# Scenarios that `make test` and `make test-mutants` select, as a pytest -k expression; empty: all.
T ?=
# Which demo `make demo` shows, one of $(demos); empty: the cut cable.
DEMO ?=
demos := default-timers
export SUITE KVER T

setup := scripts/setup --if-needed
run := scripts/env-run
ifeq ($(SUITE),)
unexport SUITE
endif

.DEFAULT_GOAL := module
.PHONY: module setup modules shell test test-host test-long test-mutants demo lint format doc clean distclean help
.PHONY: debug-kernel test-debug

module: ## Build ib-cm-apm.ko for the running kernel, or for the one in KDIR
	@scripts/check-kdir "$(KDIR)"
	@$(MAKE) --no-print-directory -C "$(KDIR)" M="$(CURDIR)" modules

setup: ## Make the environment and the test guest (SUITE=, KVER= choose another kernel)
	@scripts/setup

modules: ## Build the module and the software fabric for the guest's kernel, in the environment
	@$(setup)
	@$(run) scripts/build-modules

shell: ## A guest with fabric, subnet manager and module; `exit` ends it
	@$(setup)
	@$(run) scripts/build-modules
	@$(run) python3 tools/tests/shell.py

test: ## Lint, host tests and scenarios in guests (T=name: only the scenarios that match)
	@$(setup)
	@$(run) T="$(T)" scripts/run-tests

test-host: ## The host tests of the pure parts (MODEL_STEPS=N: the model N steps deeper)
	@$(setup)
	@$(run) MODEL_STEPS="$(or $(MODEL_STEPS),0)" scripts/run-tests host

test-long: ## Random cuts for a minute, twenty rounds of cuts, a port that flaps for a minute (SEED=N: other cuts)
	@$(setup)
	@$(run) LONG=1 SEED="$(or $(SEED),1)" ROUNDS=20 FLAPS=150 \
		T="random_cuts or any_number_of_cuts or any_hardware or default_timers or flapping or no_apr or without_the_module" scripts/run-tests

test-mutants: ## Does each known sabotage make its scenario fail?
	@$(setup)
	@$(run) T="$(T)" scripts/test-mutants

debug-kernel: ## Build the debug kernel (KASAN, lockdep, kmemleak, fault injection): about 15 minutes, once
	@$(setup)
	@$(run) scripts/debug-kernel

test-debug: ## The scenarios on the debug kernel (T=name: only those that match)
	@$(setup)
	@$(run) scripts/debug-kernel
	@$(run) T="$(T)" TIER=debug scripts/run-tests scenarios

demo: ## An iSER disk and a cut cable, without and with the module (DEMO=default-timers: NVMe-oF, nothing tuned)
	$(if $(filter-out $(demos),$(DEMO)),$(error there is no DEMO=$(DEMO), only $(demos)))
	@$(setup)
	@$(run) scripts/build-modules
	@$(run) python3 tools/demo/$(or $(subst -,_,$(DEMO)),demo).py

lint: ## Formatters, linters, licence check
	@$(setup)
	@$(run) scripts/run-tests lint

format: ## Bring Rust and Python sources into the form that lint wants
	@$(setup)
	@$(run) scripts/format

doc: ## Rust documentation, into build/doc
	@$(setup)
	@$(run) scripts/build-doc

clean: ## Remove what was built here
	@scripts/clean

distclean: ## Remove that, and the environment in the cache folder
	@scripts/clean --all

help: ## This list
	@sed -n 's/^\([a-z-]*\): ## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do \
		printf '%-14s %s\n' "$$name" "$$text"; done
