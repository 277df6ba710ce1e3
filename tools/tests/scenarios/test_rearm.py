# SPDX-License-Identifier: GPL-2.0-only
"""One failure after the other: a connection is protected again each time, by itself."""

import os

import pytest

from harness import Apm, Fabric, Fio
from scenarios.common import ULPS, qps_by_end, storage, wait_armed, wait_ios

ROUNDS = int(os.environ.get("ROUNDS", "3"))
# One after the other: both ports of the initiator, then both of the target.
CUTS = [("vhca0", 1), ("vhca0", 2), ("vhca1", 1), ("vhca1", 2)]


@pytest.mark.parametrize("name", ULPS)
def test_any_number_of_cuts(vm, name):
    """Ports of both ends in turn, OpenSM's and the ULP's own timers: no error, no reconnect, ARMED before each cut."""
    fabric = Fabric(vm, subnet_timeout=18).up()
    apm = Apm(vm).up()
    fabric, ulp = storage(vm, name, fabric)
    connections = wait_armed(vm)
    io = Fio(vm, ulp.device, seconds=1).start()
    wait_ios(vm, ulp.device)
    for _ in range(ROUNDS):
        for port in CUTS:
            fabric.cut(*port)
            wait_ios(vm, ulp.device)
            fabric.join(*port)
            fabric.wait_active()
            # By the ports that are free again, at both ends; the idle admin queue as well.
            apm.wait_disjoint(connections, "ports")
            assert wait_armed(vm) == connections
            wait_ios(vm, ulp.device)
    io.finish().check()
    assert ulp.drops() == 0
    assert fabric.migrations()["by_exhaustion"] == 0
    assert len(qps_by_end(vm)[0]) == connections
    stats = apm.statistics()
    assert stats["cm_followed"] == stats["migrations"] == fabric.migrations()["total"]
    assert stats["cm_follow_failed"] == 0
