# SPDX-License-Identifier: GPL-2.0-only
"""The module leaves while a connection is at something: it lives on where it is, and a later load changes nothing."""

import pytest

from harness import Apm, Fabric, TestUlp
from harness.apm import DEBUGFS

CONNECTIONS = 20

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
    fabric = Fabric(vm).up()
    apm = Apm(vm).up()
    ulp = TestUlp(vm).up().listen("ib")
    ulp.connect(0, CONNECTIONS, "ib")
    ulp.busy(0, CONNECTIONS // 2, every=50)
    apm.wait_connections(2 * CONNECTIONS)
    rule, sign = MOMENTS[moment]
    if rule:
        fabric.control(rule)
    fabric.cut("vhca0", 1)
    fabric.wait_migrations(2 * CONNECTIONS)
    vm.wait_run(f"[ $(grep -c 'side=active.*{sign}' {DEBUGFS}/connections) = {CONNECTIONS} ]")
    apm.down()
    if rule:
        fabric.control("mad clear")
    ulp.wait_progress()
    apm.up()
    assert {c["reason"] for c in apm.connections()} == {"predates-load"}
    ulp.wait_progress()
    ulp.check()
    ulp.disconnect(0, CONNECTIONS)
    ulp.wait_gone()
    assert ulp.counters()["dreq_received"]["passive"] == CONNECTIONS
    # Later connections are served.
    fabric.join("vhca0", 1)
    fabric.wait_active()
    ulp.connect(0, 1, "ib")
    ulp.busy(0, 1)
    apm.wait_connections(2)
