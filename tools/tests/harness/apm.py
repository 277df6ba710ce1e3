# SPDX-License-Identifier: GPL-2.0-only
"""The module under test, as an operator sees it."""

from .fabric import fields, numbers

DEBUGFS = "/sys/kernel/debug/ib_cm_apm"


class Apm:
    """Loads ib-cm-apm with parameters (enable, devices, rearm, failback …) and reads its debugfs.

    A REQ may be held for longer than by default: subnet administration on a busy, emulated CPU takes its time, and a
    scenario that is not about this must not depend on it.
    """

    debugfs = DEBUGFS

    def __init__(self, vm, **params):
        self.vm = vm
        self.params = {"req_hold_ms": 5000} | params

    def up(self):
        self.vm.modprobe("ib_cm", "rdma_cm")
        self.vm.insmod("ib-cm-apm", **self.params)
        return self

    def down(self, timeout=60):
        self.vm.rmmod("ib_cm_apm", timeout=timeout)

    def connections(self, **match):
        """debugfs `connections` as dicts, those whose fields equal what is given: connections(dev="vhca0")."""
        lines = self.vm.read(f"{DEBUGFS}/connections").splitlines()
        found = [numbers(fields(line)) for line in lines if "=" in line]
        return [c for c in found if all(c.get(key) == value for key, value in match.items())]

    def statistics(self):
        """debugfs `statistics` as {name: value}."""
        result = {}
        for line in self.vm.read(f"{DEBUGFS}/statistics").splitlines():
            name, _, value = line.strip().rpartition(" ")
            if name and value.lstrip("-").isdigit():
                result[name.strip()] = int(value)
        return result

    def wait_disjoint(self, count, word, timeout=120):
        """Wait until exactly `count` connections are armed with an alternate that is disjoint by `word`.

        Only the end that chooses the alternate, the active side, knows this.
        """
        self.vm.wait_run(f"[ $(grep -c ' state=Armed .* disjoint={word} ' {DEBUGFS}/connections) = {count} ]", timeout)

    def wait_connections(self, count, state="Armed", timeout=60):
        """Wait until exactly `count` connections are in a state. Returns them."""
        self.vm.wait_run(f"[ $(grep -c ' state={state} ' {DEBUGFS}/connections) = {count} ]", timeout)
        return self.connections(state=state)
