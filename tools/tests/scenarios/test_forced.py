# SPDX-License-Identifier: GPL-2.0-only
"""A local port that goes down: connections are moved at once, not when the HCA's retries have come to nothing."""

import pytest

from harness import Apm, Fabric, Fio
from scenarios.common import ENDS, ULPS, qps_by_end, storage, wait_armed, wait_ios, wait_no_qps


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", ULPS)
def test_port_down(vm, name, end):
    """With OpenSM's default lifetime a HCA would take 17 s, longer than keep-alives live. Idle queues move as well."""
    fabric = Fabric(vm, subnet_timeout=18).up()
    apm = Apm(vm, rearm=0, timers=0).up()
    fabric, ulp = storage(vm, name, fabric)
    connections = wait_armed(vm)

    io = Fio(vm, ulp.device, seconds=1).start()
    wait_ios(vm, ulp.device)
    fabric.cut(*ENDS[end])
    moved = fabric.wait_migrations(2 * connections)
    wait_ios(vm, ulp.device)
    io.finish().check()
    assert ulp.drops() == 0
    # The end that has lost its port moves by command; the peer's HCA follows the first packet on the other path.
    assert moved == {"total": 2 * connections, "by_exhaustion": 0, "by_peer": connections, "by_command": connections}
    assert apm.statistics()["forced"] == connections
    assert {qp.mig for side in qps_by_end(vm) for qp in side} == {"MIGRATED"}

    # The first path is still dead, and not every queue has had an I/O since. Both ends find each other all the same.
    before = dreqs_by_second_ports(vm)
    ulp.disconnect()
    wait_no_qps(vm, "vhca0")
    wait_no_qps(vm, "vhca1")
    assert dreqs_by_second_ports(vm) - before >= connections


def dreqs_by_second_ports(vm):
    """DREQs that have arrived at the second ports."""
    return sum(int(vm.read(f"/sys/class/infiniband/{dev}/ports/2/cm_rx_msgs/dreq")) for dev in ("vhca0", "vhca1"))
