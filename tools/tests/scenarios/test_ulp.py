# SPDX-License-Identifier: GPL-2.0-only
"""The test ULP: what it promises without our module, and many connections with it."""

import pytest

from harness import Apm, Fabric, GuestError, Ipoib, TestUlp

CQS = ("pool", "softirq", "workqueue", "direct", "plain")
CMS = ("rdma", "ib")

alone = pytest.mark.vm(modules=("vfabric", "apm-test-ulp"))
with_apm = pytest.mark.vm(modules=("vfabric", "ib-cm-apm", "apm-test-ulp"))


def listening(vm, **options):
    """Fabric with addresses, and the test ULP listening by both CMs. Returns (fabric, ulp)."""
    # Many connections at once on a slow machine: no retransmissions by mere load.
    fabric = Fabric(vm, subnet_timeout=15).up()
    Ipoib(fabric).up()
    ulp = TestUlp(vm).up()
    for cm in CMS:
        ulp.listen(cm, **options)
    return fabric, ulp


@alone
def test_many_connections(vm):
    """200 connections by each CM: data verified at both ends, a DREQ of either side seen by the other."""
    _, ulp = listening(vm)
    ulp.connect(0, 200, "rdma")
    ulp.connect(200, 200, "ib")
    ulp.busy(0, 400, every=200)
    ulp.wait_progress()
    ulp.wait_progress()
    ulp.idle(0, 400)
    counters = ulp.check()
    assert counters["requests"]["active"] == counters["answers"]["active"] >= 2 * 400
    for name in ("requests", "answers"):
        assert counters[name]["active"] == counters[name]["passive"]

    for first in (0, 200):
        ulp.disconnect(first, 100, side="active")
        ulp.disconnect(first + 100, 100, side="passive")
    ulp.wait_gone()
    counters = ulp.counters()
    assert counters["dreq_received"] == counters["drep_received"] == {"active": 200, "passive": 200}
    assert not any(counters["dreq_timeout"].values())
    ulp.down()


@alone
@pytest.mark.parametrize("cq", CQS)
def test_completion_queues(vm, cq):
    """Each kind of CQ at both ends carries every operation, is drained with requests under way, and goes."""
    _, ulp = listening(vm, cq=cq)
    for first, cm in ((0, "rdma"), (10, "ib")):
        ulp.connect(first, 10, cm, cq=cq, sq_depth=8)
    for op in ("send", "write", "read"):
        ulp.busy(0, 20, every=20, op=op)
        ulp.wait_progress()
        ulp.wait_progress()
        ulp.idle(0, 20)
    ulp.check()
    # To the last slot.
    depth = ulp.connections(side="active", id=3)[0]["sq_depth"]
    ulp.fill(3)
    ulp.busy(3, 1)
    ulp.wait_progress()
    assert ulp.counters()["filled"]["active"] == ulp.counters()["fill_done"]["active"] == depth
    ulp.check()
    ulp.drain(12, side="passive")
    ulp.busy(0, 12, every=0)
    ulp.destroy(0, 20)
    ulp.wait_gone()
    assert not any(ulp.counters()["wc_unknown"].values())


@alone
def test_it_can_fail(vm):
    """What is spoilt is found: a byte, a number left out, a message sent twice; and a lost connection is counted."""
    fabric, ulp = listening(vm)
    ulp.connect(0, 6, "ib")
    ulp.busy(0, 6)
    ulp.wait_progress()
    ulp.check()
    for number, (fault, counter) in enumerate((("corrupt", "corrupt"), ("skip", "lost"), ("repeat", "duplicate"))):
        ulp.inject(number, fault, side="active")
        ulp.wait_progress()
        ulp.idle(number, 1)
        assert ulp.counters()[counter]["passive"] == 1
        with pytest.raises(AssertionError, match=counter):
            ulp.check()
    # An answer left out: its connection stands still.
    ulp.inject(3, "skip", side="passive")
    with pytest.raises(GuestError):
        ulp.wait_progress(timeout=1)
    ulp.inject(4, "corrupt", side="passive")
    ulp.busy(4, 1)
    vm.wait_file("/sys/kernel/debug/apm_test_ulp/counters", r"^corrupt active=1 ")
    # Without an alternate a cut is the end.
    fabric.cut("vhca0", 1)
    vm.wait_file("/sys/kernel/debug/apm_test_ulp/counters", r"^wc_error active=[1-9]")
    for line in ("listen cm=tcp", "connect 0 cm=ib", "busy 77", "fill", "dance", "inject 5", "connect 9 1 to=10.1.1"):
        with pytest.raises(GuestError):
            ulp.control(line)


@alone
@pytest.mark.parametrize("moment", ["connecting", "busy", "disconnecting"])
def test_unload_at_any_moment(vm, moment):
    """The module goes whatever its connections are at, and leaves no QP behind."""
    _, ulp = listening(vm, cq="plain")
    for first, cm in ((0, "rdma"), (1000, "ib")):
        ulp.connect(first, 300, cm, parallel=100, wait=moment != "connecting")
    if moment != "connecting":
        ulp.busy(0, 2000, every=100)
        ulp.wait_progress()
    if moment == "disconnecting":
        ulp.disconnect(0, 2000)
        ulp.disconnect(0, 2000, side="passive")
    ulp.down()
    vm.wait_run("! rdma resource show qp | grep -q 'type RC'")


@alone
def test_device_goes(vm):
    """The fabric is unloaded under busy connections: they end, and so does the wait for them."""
    fabric, ulp = listening(vm)
    ipoib = Ipoib(fabric)
    ulp.connect(0, 50, "rdma")
    ulp.connect(50, 50, "ib", cq="direct")
    ulp.busy(0, 100, every=20)
    ulp.wait_progress()
    ipoib.down()
    fabric.unload()
    ulp.wait_gone()
    assert sum(ulp.counters()["ended"].values()) == 200


def with_module(vm, each, subnet_timeout=15, **options):
    """`each` connections by each CM, with our module. Returns (fabric, apm, ulp)."""
    fabric = Fabric(vm, subnet_timeout=subnet_timeout).up()
    apm = Apm(vm).up()
    Ipoib(fabric).up()
    ulp = TestUlp(vm).up()
    for n, cm in enumerate(CMS):
        ulp.listen(cm, **options)
        ulp.connect(n * each, each, cm, **options)
    return fabric, apm, ulp


@with_apm
@pytest.mark.parametrize("cq", ["pool", "direct"])
def test_many_move(vm, cq):
    """With our module all connections are ARMED at both ends, and a cut moves every one of them; nothing is lost."""
    fabric, apm, ulp = with_module(vm, 100, cq=cq)
    ulp.busy(0, 200, every=100)
    ulp.wait_progress()
    ulp.wait_armed(200)
    apm.wait_connections(400)

    before = fabric.migrations()["total"]
    fabric.cut("vhca0", 1)
    fabric.wait_migrations(before + 400)
    ulp.wait_progress()
    ulp.idle(0, 200)
    ulp.check()
    assert ulp.summary()["active"]["established"] == 200
    # With something of ours still under way, an end whose peer is gone already may fail before the DREQ gets to it.
    ulp.wait_armed(200)
    fabric.wait_sent()
    ulp.disconnect(0, 200)
    ulp.wait_gone()
    counters = ulp.counters()
    assert counters["dreq_received"]["passive"] == 200
    assert counters["dreq_timeout"] == {"active": 0, "passive": 0}


@with_apm
def test_each_port_in_turn(vm):
    """Each port of both HCAs dies and comes back: all move each time, and are armed again, apart, by themselves."""
    fabric, _, ulp = with_module(vm, 50, subnet_timeout=18)
    ulp.busy(0, 100, every=500)
    ulp.wait_armed(100, apart=True)
    for victim in (("vhca0", 1), ("vhca0", 2), ("vhca1", 1), ("vhca1", 2)):
        before = fabric.migrations()["total"]
        fabric.cut(*victim)
        fabric.wait_migrations(before + 200)
        ulp.wait_progress()
        fabric.join(*victim)
        ulp.wait_armed(100, apart=True)
    ulp.idle(0, 100)
    ulp.check()
    ulp.disconnect(0, 100, side="passive")
    ulp.wait_gone()
    assert ulp.counters()["dreq_received"]["active"] == 100


@with_apm
def test_idle_connections_are_armed(vm):
    """A connection over which nothing is ever sent is ARMED all the same, and moves when its port dies."""
    fabric, _, ulp = with_module(vm, 50)
    ulp.busy(0, 10)
    ulp.wait_armed(100)
    fabric.cut("vhca0", 1)
    fabric.wait_migrations(200)
    ulp.wait_progress()
    ulp.check()
    assert ulp.summary()["active"]["established"] == 100
