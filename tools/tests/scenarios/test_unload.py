# SPDX-License-Identifier: GPL-2.0-only
"""The module leaves while a connection is at something: it lives on where it is, and a later load changes nothing."""

import pytest

from harness import Apm, Fabric, TestUlp
from harness.apm import DEBUGFS
from harness.tier import DEBUG

CONNECTIONS = 100 if DEBUG else 1000
TIMEOUT_S = 60 + CONNECTIONS

# What is lost so that the connections stay in a state after a cut, and a sign that they are there.
MOMENTS = {
    "searching": ("mad drop class=3 attr=0x11", "state=Resolving"),
    "offering": ("mad drop class=7 attr=0x1a", "state=Offered"),
    "following": ("mad drop class=7 attr=0x19", "migrations=1"),
    "armed": (None, "state=Armed .* migrations=1"),
}


@pytest.mark.vm(modules=("vfabric", "ib-cm-apm", "apm-test-ulp"))
@pytest.mark.parametrize("moment", MOMENTS)
def test_unload_in_the_middle(vm, moment):
    fabric = Fabric(vm, subnet_timeout=15).up()
    apm = Apm(vm).up()
    ulp = TestUlp(vm).up().listen("ib")
    ulp.connect(0, CONNECTIONS, "ib", timeout=TIMEOUT_S)
    ulp.busy(0, CONNECTIONS // 2, every=50 + CONNECTIONS)
    apm.wait_connections(2 * CONNECTIONS, timeout=TIMEOUT_S)
    rule, sign = MOMENTS[moment]
    if rule:
        fabric.control(rule)
    fabric.cut("vhca0", 1)
    fabric.wait_migrations(2 * CONNECTIONS, timeout=TIMEOUT_S)
    all_there = f"[ $(grep -c 'side=active.*{sign}' {DEBUGFS}/connections) = {CONNECTIONS} ]"
    vm.wait_run(all_there, timeout=TIMEOUT_S)
    apm.down(timeout=TIMEOUT_S)
    if rule:
        fabric.control("mad clear")
    ulp.wait_progress(timeout=TIMEOUT_S)
    apm.up()
    assert {c["reason"] for c in apm.connections()} == {"predates-load"}
    ulp.wait_progress(timeout=TIMEOUT_S)
    ulp.check()
    ulp.disconnect(0, CONNECTIONS)
    ulp.wait_gone(timeout=TIMEOUT_S)
    assert ulp.counters()["dreq_received"]["passive"] == CONNECTIONS
    # Later connections are served.
    fabric.join("vhca0", 1)
    fabric.wait_active()
    ulp.connect(0, 1, "ib")
    ulp.busy(0, 1)
    apm.wait_connections(2)
