# SPDX-License-Identifier: GPL-2.0-only
"""The main promise: a cut costs a connection a pause and nothing else."""

import pytest

from harness import Apm, Fabric, Fio
from scenarios.common import ENDS, ULPS, qps_by_end, storage, use_every_queue, wait_armed, wait_ios, wait_no_qps


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", ULPS)
def test_failover(vm, name, end):
    """Cut at one end under verified I/O: no error, no reconnect; both ends move, and the CM moves with them."""
    fabric = Fabric(vm).up()
    apm = Apm(vm, proactive=0, rearm=0).up()
    fabric, ulp = storage(vm, name, fabric)
    connections = wait_armed(vm)
    served = apm.wait_connections(2 * connections)
    assert {c["side"] for c in served} == {"active", "passive"}

    io = Fio(vm, ulp.device, seconds=1).start()
    wait_ios(vm, ulp.device)
    assert fabric.migrations()["total"] == 0
    fabric.cut(*ENDS[end])
    # Whoever has something to send runs into the retries and migrates; the other end follows.
    fabric.wait_migrations(2)
    wait_ios(vm, ulp.device)
    report = io.finish().check()
    assert ulp.drops() == 0
    assert report.bytes_written > 0
    use_every_queue(vm, ulp.device)
    assert ulp.drops() == 0

    moved = fabric.migrations()
    # Where both ends had something under way both may run into the retries.
    assert moved["by_exhaustion"] >= 1 and moved["by_command"] == 0
    for side in qps_by_end(vm):
        assert len(side) == connections
        assert any(qp.mig == "MIGRATED" for qp in side)
    migrated = apm.connections(state="Migrated")
    assert len(migrated) == moved["total"]
    assert all(c["reason"] == "not-rearmed" for c in migrated)

    # The first path is still dead. Whoever disconnects must find its peer over the other one.
    before = second_port_dreqs(vm)
    ulp.disconnect()
    wait_no_qps(vm, "vhca0")
    wait_no_qps(vm, "vhca1")
    assert second_port_dreqs(vm) - before >= len(apm_sides(migrated))


def apm_sides(connections):
    """Connections out of the lines of both their ends."""
    return {min(c["qpn"], c["peer_qpn"]) for c in connections}


def second_port_dreqs(vm):
    """DREQs that have arrived at the second ports."""
    return sum(int(vm.read(f"/sys/class/infiniband/{dev}/ports/2/cm_rx_msgs/dreq")) for dev in ("vhca0", "vhca1"))
