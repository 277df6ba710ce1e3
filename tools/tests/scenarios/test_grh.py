# SPDX-License-Identifier: GPL-2.0-only
"""Paths with a GRH hold references to GID entries; a migration must neither lose nor double one."""

import pytest

from harness import Apm, Fabric, Fio
from scenarios.common import ENDS, storage, use_every_queue, wait_armed, wait_ios, wait_no_qps


@pytest.mark.parametrize(
    ("which", "end"), [("both", "initiator"), ("both", "target"), ("primary", "initiator"), ("alternate", "target")]
)
def test_migrate_then_remove(vm, which, end):
    """Migrate on paths with a GRH, disconnect or not, remove both HCAs: nothing leaks, nothing underflows (gate)."""
    fabric = Fabric(vm).up()
    apm = Apm(vm).up()
    if which == "both":
        fabric.control("grh on")
    else:
        # HopLimit of the PathRecords that ib_sa asks for (the primary's), or of those that the module asks for.
        method = {"primary": "0x81", "alternate": "0x92"}[which]
        fabric.control(f"mad rewrite class=3 attr=0x35 method={method} offset=103 value=01")
    fabric, disk = storage(vm, "srp", fabric)
    connections = wait_armed(vm)
    apm.wait_connections(2 * connections)
    io = Fio(vm, disk.device, seconds=6).start()
    wait_ios(vm, disk.device)
    fabric.cut(*ENDS[end])
    fabric.wait_migrations(2)
    wait_ios(vm, disk.device)
    io.finish().check()
    assert disk.drops() == 0
    assert apm.statistics()["cm_followed"] == fabric.migrations()["total"]
    assert apm.statistics()["cm_follow_failed"] == 0
    if end == "initiator":
        use_every_queue(vm, disk.device)
        disk.disconnect()
        wait_no_qps(vm, "vhca1")
    for dev in ("vhca0", "vhca1"):
        fabric.control(f"remove {dev}")
        vm.wait_run(f"[ ! -e /sys/class/infiniband/{dev} ]")
    apm.down()
    fabric.unload()
