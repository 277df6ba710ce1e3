# SPDX-License-Identifier: GPL-2.0-only
"""What dies is a cable between two switches, so that no port of an HCA notices anything."""

import pytest

from harness import Apm, Fabric, Fio
from scenarios.common import ULPS, qps_by_end, storage, use_every_queue, wait_armed, wait_ios, wait_no_qps

# Ports 1 on switches a0 and a1, ports 2 on b0 and b1, one cable between the switches of a pair.
PAIRS = """
hca vhca0 ports=2
hca vhca1 ports=2
hca vhca2 ports=1
switch a0 ports=4
switch a1 ports=4
switch b0 ports=4
switch b1 ports=4
link vhca0/1 a0/1
link vhca1/1 a1/1
link vhca0/2 b0/1
link vhca1/2 b1/1
link a0/2 a1/2
link b0/2 b1/2
link a0/3 b0/3
link vhca2/1 a0/4
"""
BETWEEN = ("a0", 2)


def survive(vm, name, fault):
    """Verified I/O while `fault(fabric)` happens: no error, no reconnect, the other pair of switches carries on."""
    fabric = Fabric(vm, topology=PAIRS).up()
    apm = Apm(vm, rearm=0).up()
    fabric, disk = storage(vm, name, fabric)
    connections = wait_armed(vm)
    apm.wait_connections(2 * connections)
    io = Fio(vm, disk.device, seconds=8).start()
    wait_ios(vm, disk.device)
    assert fabric.migrations()["total"] == 0
    fault(fabric)
    fabric.wait_migrations(2)
    wait_ios(vm, disk.device)
    assert all(fabric.port_states()[dev, port] == "ACTIVE" for dev in ("vhca0", "vhca1") for port in (1, 2))
    report = io.finish().check()
    assert report.bytes_written > 0
    assert disk.drops() == 0
    moved = fabric.migrations()
    assert moved["by_exhaustion"] >= 1 and moved["by_command"] == 0
    assert len(apm.connections(state="Migrated")) == moved["total"]
    assert all(len(end) == connections for end in qps_by_end(vm))
    # Whoever disconnects finds its peer by the other pair.
    use_every_queue(vm, disk.device)
    disk.disconnect()
    wait_no_qps(vm, "vhca0")
    wait_no_qps(vm, "vhca1")


@pytest.mark.parametrize("name", ULPS)
def test_cut_between_switches(vm, name):
    survive(vm, name, lambda fabric: fabric.cut(*BETWEEN))


@pytest.mark.parametrize("name", ULPS)
def test_blackhole_between_switches(vm, name):
    """The link stays up; not even the subnet manager is told."""
    survive(vm, name, lambda fabric: fabric.blackhole(*BETWEEN))


@pytest.mark.parametrize("way", ["in", "out"])
def test_one_way_between_switches(vm, way):
    """Only what goes to the target is lost, or only what comes back."""
    survive(vm, "srp", lambda fabric: fabric.blackhole(*BETWEEN, way))
