# SPDX-License-Identifier: GPL-2.0-only
# shellcheck shell=bash
#
# Shared by the scripts that run on the user's machine: messages, paths, becoming root, and which kernel is meant.

top=$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")
cache=${IB_CM_APM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ib_cm_apm}

suite=${SUITE:-trixie-backports}
# The suite that holds the compiler and everything else (for those who source this).
# shellcheck disable=SC2034
base_suite=${suite%-backports}

say() {
	printf '[%4ds] %s\n' "$SECONDS" "$*" >&2
}

die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

# Names of variables that tell apt, pip and cargo how to reach the outside; they are handed on into the environment.
reach_vars() {
	compgen -e | grep -E '^(PIP_|CARGO_(HTTP|NET|REGISTR|SOURCE)|[a-zA-Z]+_proxy$|[A-Z]+_PROXY$)' || true
}

# The certificate bundle this machine trusts, or nothing.
host_ca_bundle() {
	local file
	for file in "${SSL_CERT_FILE:-}" "${CURL_CA_BUNDLE:-}" "${PIP_CERT:-}" /etc/ssl/certs/ca-certificates.crt; do
		if [ -n "$file" ] && [ -s "$file" ]; then
			readlink -f "$file"
			return
		fi
	done
}

# as_root "$@": runs the calling script again as root, with the same arguments, unless it is root already.
as_root() {
	[ "$(id -u)" = 0 ] && return
	command -v sudo >/dev/null || die "root is needed (to make and enter a chroot), and there is no sudo"
	if ! sudo -n true 2>/dev/null && ! [ -t 0 ]; then
		die "root is needed (to make and enter a chroot), and sudo asks for a password but there is no terminal"
	fi
	local keep
	keep=$(reach_vars | paste -sd,)
	exec sudo --preserve-env="SUITE,KVER,CI,TERM,SSL_CERT_FILE,CURL_CA_BUNDLE,PIP_CERT${keep:+,$keep}" \
		IB_CM_APM_CACHE="$cache" "$(readlink -f "$0")" "$@"
}

# own_mounts VARIABLE "$@": runs the calling script again in a mount namespace of its own, with the same arguments.
# What it mounts is gone with it. (Where "/" is no mount point, as in a plain chroot, mounts cannot all be made private.)
own_mounts() {
	local mark=$1 how=private
	shift
	[ "${!mark:-}" = "$$" ] && return
	command -v unshare >/dev/null || die "unshare (package util-linux) is missing"
	unshare -m --propagation private true 2>/dev/null || how=unchanged
	unshare -m --propagation $how true || die "this process may not make a mount namespace"
	exec env "$mark=$$" unshare -m --propagation $how "$(readlink -f "$0")" "$@"
}

# Hash of what decides how an environment looks, apart from the packages' versions.
recipe_hash() {
	(cd "$top/scripts" && sha256sum lib.sh setup env-packages python-packages meta guest/* | sha256sum | cut -c1-12)
}

# The kernel of the last resolution, as "KVER PACKAGE-VERSION", kept in the cache.
kernel_file() {
	echo "$cache/kernel-$suite-${KVER:-newest}"
}

# Path of the environment for the kernel chosen; empty when none has been resolved yet.
env_dir() {
	local kver version
	[ -s "$(kernel_file)" ] || return 0
	read -r kver version <"$(kernel_file)"
	echo "$cache/env-$suite-$kver-$(printf '%s' "$version $(recipe_hash)" | sha256sum | cut -c1-12)"
}
