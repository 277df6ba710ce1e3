# SPDX-License-Identifier: GPL-2.0-only
"""Nudges take nothing from a ULP, whatever it does with its queues, and hold nothing up when it or the module goes."""

import pytest

from harness import Apm, Fabric, Fio, Srp, TestUlp
from harness.apm import DEBUGFS
from scenarios.common import ENDS, wait_armed, wait_no_qps

pytestmark = pytest.mark.vm(modules=("vfabric", "ib-cm-apm", "apm-test-ulp"))

# Those whose completions name an ib_cqe.
CQS = ("pool", "softirq", "workqueue", "direct")
DEPTH = 8


def connect(ulp, first=0, cqs=CQS):
    """One connection for each kind of CQ, at both ends, numbered from `first`."""
    for number, cq in enumerate(cqs, first):
        options = {"cq": cq, "sq_depth": DEPTH, "service": hex(0x1000 + number)}
        ulp.listen("ib", **options)
        ulp.connect(number, 1, "ib", **options)


def connected(vm, knobs=""):
    """Idle connections, ARMED. Left alone, the HCAs would take 17 s to migrate. Returns (fabric, apm, ulp)."""
    fabric = Fabric(vm, subnet_timeout=18).up()
    if knobs:
        fabric.control(f"knob all {knobs}")
    apm = Apm(vm).up()
    ulp = TestUlp(vm).up()
    connect(ulp)
    ulp.busy(0, len(CQS))
    ulp.wait_armed(len(CQS))
    ulp.idle(0, len(CQS))
    return fabric, apm, ulp


def wait_statistic(vm, name, value):
    vm.wait_file(f"{DEBUGFS}/statistics", rf"^{name} {value}$")


def device_goes(vm, fabric):
    """The CQ pools of a device have to be in balance then, or ib_core warns."""
    for dev in ("vhca0", "vhca1"):
        fabric.control(f"remove {dev}")
        vm.wait_run(f"[ ! -e /sys/class/infiniband/{dev} ]")


@pytest.mark.parametrize(
    "knobs",
    [
        pytest.param("round_depth=0 retransmit=0", id="exact"),
        pytest.param("round_depth=1 retransmit=1", id="rounded"),
    ],
)
def test_send_queue_full(vm, knobs):
    """A ULP that uses its send queue to the last slot still does so, and the nudge goes out all the same."""
    fabric, apm, ulp = connected(vm, knobs)
    before = apm.statistics()
    assert before["slots_reserved"] == 2 * len(CQS)
    depths = [c["sq_depth"] for c in ulp.connections(side="active")]
    assert len(depths) == len(CQS) and min(depths) >= DEPTH
    # Nothing that is posted completes any more.
    fabric.blackhole(*ENDS["initiator"])
    for number in range(len(CQS)):
        ulp.fill(number)
    filled = ulp.counters()
    assert (filled["filled"]["active"], filled["fill_done"]["active"]) == (sum(depths), 0)
    fabric.cut(*ENDS["initiator"])
    fabric.wait_migrations(2 * len(CQS))
    ulp.busy(0, len(CQS))
    ulp.wait_progress()
    ulp.wait_progress()
    ulp.idle(0, len(CQS))
    assert ulp.check()["fill_done"]["active"] == sum(depths)
    stats = apm.statistics()
    assert stats["nudges"] == stats["nudges_acked"] >= before["nudges"] + len(CQS)
    assert stats["nudges_failed"] == 0
    assert "overrun" not in vm.dmesg()
    # And once more, with the slots that were used before.
    for number in range(len(CQS)):
        ulp.fill(number)
    ulp.busy(0, len(CQS))
    ulp.wait_progress()
    assert ulp.check()["fill_done"]["active"] == 2 * sum(depths)


@pytest.mark.parametrize("scrub", [0, 1])
def test_torn_down_meanwhile(vm, scrub):
    """A nudge that comes between drain and destruction: the ULP notices nothing, all of it goes away."""
    fabric, apm, ulp = connected(vm, f"scrub={scrub}")
    before = apm.statistics()["nudges"]
    # The HCA has migrated, and the command that told it to has not returned: the nudge is still to come.
    fabric.control("knob vhca0 modified_us=8000000")
    fabric.cut(*ENDS["initiator"])
    vm.wait_run(f"grep -q 'by_command={len(CQS)}' /sys/kernel/debug/vfabric/migrations")
    fabric.control("knob vhca0 modified_us=0")
    for number in range(len(CQS)):
        ulp.drain(number)
    assert apm.statistics()["nudges"] == before
    wait_statistic(vm, "nudges", before + len(CQS))
    # Flushed at once, but for the CQ that nobody polls any more.
    wait_statistic(vm, "nudges_failed", len(CQS) - 1)
    ulp.destroy(0, len(CQS))
    ulp.wait_gone()
    stats = apm.statistics()
    assert (stats["nudges_orphaned"], stats["nudges_acked"]) == (1, before)
    ulp.check("wc_flush")
    apm.down()
    ulp.down()
    device_goes(vm, fabric)
    assert "left behind" not in vm.dmesg()


@pytest.mark.leaks
@pytest.mark.parametrize("scrub", [0, 1])
def test_unload_before_the_completion(vm, scrub):
    """An idle SRP session polls its CQ when it sends something: the module does not wait for that."""
    fabric = Fabric(vm, subnet_timeout=18).up()
    fabric.control(f"knob all scrub={scrub}")
    apm = Apm(vm).up()
    srp = Srp(vm).up()
    Fio(vm, srp.device, seconds=1).run().check()
    count = wait_armed(vm)
    fabric.cut(*ENDS["initiator"])
    fabric.wait_migrations(2 * count)
    stats = apm.statistics()
    assert stats["nudges"] - stats["nudges_acked"] >= count
    apm.down()
    vm.wait_dmesg(f"nudges of {count} QPs were not completed yet")
    # Now they are, or go with their QP.
    if scrub:
        apm.up()
    else:
        Fio(vm, srp.device, seconds=1).run().check()
    assert srp.drops() == 0
    srp.disconnect()
    wait_no_qps(vm, "vhca0")
    device_goes(vm, fabric)


def test_pool_gets_back_what_it_lent(vm):
    """CQs of the pool are used across unload and reload, by ULPs from before and from after."""
    fabric = Fabric(vm).up()
    apm = Apm(vm).up()
    ulp = TestUlp(vm).up()
    connect(ulp, 0, ("pool",) * 3)
    ulp.disconnect(0, 1)
    ulp.wait_established(2)
    apm.down()
    ulp.disconnect(1, 1)
    connect(ulp, 10, ("pool",))
    ulp.wait_established(2)
    apm.up()
    connect(ulp, 20, ("pool",) * 2)
    assert apm.statistics()["slots_reserved"] == 2 * 2
    ulp.busy(0, 30)
    ulp.wait_progress()
    ulp.check()
    # Those from before first, then one from after; with the last one the module goes.
    ulp.disconnect(0, 11)
    ulp.disconnect(20, 1)
    ulp.wait_established(1)
    apm.down()
    ulp.disconnect(0, 30)
    ulp.wait_gone()
    device_goes(vm, fabric)


def test_not_to_be_had(vm):
    """Where the device has no more than the ULP asks for, the ULP gets that, and connections live without nudges."""
    fabric = Fabric(vm).up()
    apm = Apm(vm).up()
    ulp = TestUlp(vm).up()
    own = CQS[1:]
    fabric.control(f"knob all max_send_wr={DEPTH}")
    connect(ulp, 0, own)
    stats = apm.statistics()
    assert (stats["slots_reserved"], stats["slots_refused"]) == (0, 2 * len(own))
    # The test ULP's own CQ: room for twice its send queue and what drains it.
    fabric.control(f"knob all max_send_wr=0 max_cqe={2 * (DEPTH + 1)}")
    connect(ulp, 10, ("direct",))
    stats = apm.statistics()
    assert (stats["slots_reserved"], stats["slots_refused"]) == (0, 2 * len(own) + 2)
    fabric.control("knob all max_cqe=0")
    connect(ulp, 20, ("direct",))
    assert apm.statistics()["slots_reserved"] == 2

    connections = len(own) + 2
    ulp.busy(0, 30)
    ulp.wait_armed(connections)
    fabric.cut(*ENDS["initiator"])
    fabric.wait_migrations(2 * connections)
    ulp.wait_progress()
    ulp.idle(0, 30)
    ulp.check()
    assert apm.statistics()["nudges_failed"] == 0
    # A target whose queue core cuts off at what the device has: nobody could tell whose the last slot is.
    refused = apm.statistics()["slots_refused"]
    fabric.join(*ENDS["initiator"])
    fabric.wait_active()
    srp = Srp(vm).serve()
    vm.write(f"{srp.group}/attrib/srp_sq_size", "16384")
    srp.connect()
    Fio(vm, srp.device, seconds=1).run().check()
    assert apm.statistics()["slots_refused"] > refused
    assert srp.drops() == 0
