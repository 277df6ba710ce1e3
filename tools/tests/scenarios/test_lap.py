# SPDX-License-Identifier: GPL-2.0-only
"""What a connection makes of a LAP: what is forged changes nothing, and the APR on the wire says why."""

import os
from dataclasses import replace

import pytest

from harness import Apm, Fabric, Fio, TestUlp
from harness.rdma import connected_qps
from harness.wire import APR, DEAD_STANDBY, DREQ, LAP, NOTICE, OWN, PORT_BACK, REP, RTU, Wire, marked
from scenarios.common import storage, wait_armed, wait_ios, wait_no_qps

LONG = bool(os.environ.get("LONG"))
# Ports of the active side, of the passive side, and of a node that has nothing to do with it.
A1, A2, P1, P2, THIRD = ("vhca0", 1), ("vhca0", 2), ("vhca1", 1), ("vhca1", 2), ("vhca2", 1)
NO_GID = "fe80:0000:0000:0000:0002:c9ff:ff00:0001"


def qps_as_loaded(vm, fabric):
    """What a LAP could change about QPs: as the RDMA core shows them, and their paths as the fabric has them."""
    keys = ("dev", "qpn", "port", "slid", "dlid", "mig", "alt_port", "alt_dlid", "migrations")
    return connected_qps(vm), [[qp[key] for key in keys] for qp in fabric.qps() if qp["state"] == "RTS"]


def dreqs(wire):
    """Where DREQs went, as (port that they left by, DLID)."""
    return {(m.port, m.dlid) for m in wire.messages(DREQ)}


def forged_during_a_check(wire, apm, right):
    """Subnet administration is asked about a LAP of the peer's. Meanwhile others come with its transaction id."""
    fabric = wire.fabric
    forged = [
        # For another path, and from elsewhere.
        (replace(right, **wire.path(THIRD, P2)), THIRD, P1),
        (right, THIRD, P1),
        # From the peer's own port, for what seems the same path: the one that was checked is the one that counts.
        (replace(right, sl=1), A1, P1),
    ]
    for _ in range(5):
        limited = apm.statistics()["laps_limited"]
        fabric.control("mad delay class=3 attr=0x11 method=0x81 us=500000")
        fabric.control("mad delay class=3 attr=0x11 method=0x92 us=500000")
        fabric.control(f"mad rewrite class=7 attr=0x19 offset=8 value={wire.tid + 1:016x}")
        tid = wire.send((right, A1, P1), *forged)

        def answered(_, tid=tid):
            return [m.status for m in wire.answers(tid) if m.dlid == fabric.lid(*A1)]

        got = wire.wait(answered)
        fabric.control("mad clear")
        # To a third node nothing but "rejected", where it was late.
        assert {m.status for m in wire.answers(tid) if m.dlid == fabric.lid(*THIRD)} <= {3}
        assert set(got) <= {0, 8}
        if got == [0] and apm.statistics()["laps_limited"] == limited + 2:
            return
        # Subnet administration took too long, or the four messages did. A port event has the module ask again.
        fabric.cut(*P2)
        fabric.wait_state(*P2, "DOWN")
        fabric.join(*P2)
        fabric.wait_active()
        apm.wait_disjoint(2, "ports")
    raise AssertionError("they never came during a check")


@pytest.mark.vm(modules=("vfabric", "ib-cm-apm", "apm-test-ulp"))
def test_forged_laps(vm):
    """Each status of an APR that can be meant; nothing but a LAP that is right changes the QP, or where a DREQ goes."""
    fabric = Fabric(vm, subnet_timeout=18).up()
    apm = Apm(vm).up()
    ulp = TestUlp(vm).up().listen("ib")
    wire = Wire(fabric)
    ulp.connect(0, 2, "ib")
    ulp.busy(0, 2, every=50)
    ulp.wait_armed(2)
    one, two = wire.connections()
    right = wire.lap(one.active, one.passive, **wire.path(A2, P2))
    before = qps_as_loaded(vm, fabric)
    heard = apm.statistics()["wishes_heard"]

    forged_during_a_check(wire, apm, right)
    ulp.wait_armed(2)
    assert qps_as_loaded(vm, fabric) == before

    def other(**changes):
        return replace(right, **changes)

    wrong_local_gid = (right.gids[0], fabric.gid(*THIRD))
    lid = {port: fabric.lid(*port) for port in (A1, A2, P1, P2, THIRD)}
    cases = [
        ("another communication id", 1, other(ids=(one.active.comm_id ^ 1, one.passive.comm_id))),
        ("another connection's", 1, other(ids=(two.active.comm_id, one.passive.comm_id))),
        ("a later version", 2, other(mark=marked(NOTICE, version=2))),
        ("a notice of a path not loaded", 3, other(mark=marked(NOTICE), **wire.path(A2, P1))),
        ("a notice of the path in use", 5, other(mark=marked(NOTICE), **wire.path(A1, P1))),
        ("another QP", 6, other(qpn=one.passive.qpn ^ 1)),
        ("our other port's LID", 7, other(lids=(lid[A2], lid[P1]))),
        ("the peer's GID, the LID next to its own", 7, other(lids=(lid[A2] + 1, lid[P2]))),
        ("no LID", 7, other(lids=(lid[A2], 0xFFFF))),
        ("the peer's GID, a third node's LID", 7, other(lids=(lid[THIRD], lid[P2]))),
        ("a third node's GID at our end", 8, other(gids=wrong_local_gid)),
        ("a third node's port", 8, other(**wire.path(THIRD, P2))),
        ("nobody's GID", 8, other(gids=(NO_GID, right.gids[1]), lids=(0xBFFF, lid[P2]))),
        ("through a router", 11, other(hop_limit=2)),
        ("no such rate", 12, other(rate=1)),
        ("another SL", 13, other(sl=1)),
    ]
    for what, status, lap in cases:
        assert wire.ask(lap, by=A1, to=P1) == status, what
        assert qps_as_loaded(vm, fabric) == before, what
    # To the active side, and from a third node: right ones, of the sort that the peer would send.
    to_active = wire.lap(two.passive, two.active, **wire.path(P2, A2))
    assert wire.ask(to_active, by=P1, to=A1) == 3
    assert wire.ask(right, by=THIRD, to=P1) == 3
    # Wishes are the passive side's, and concern the alternate that there is.
    for kind in (DEAD_STANDBY, PORT_BACK):
        assert wire.ask(other(mark=marked(kind)), by=A1, to=P1) == 3
        assert wire.ask(replace(to_active, mark=marked(kind)), by=THIRD, to=A1) == 3
    elsewhere = replace(to_active, mark=marked(DEAD_STANDBY), **wire.path(P2, A1))
    assert wire.ask(elsewhere, by=P1, to=A1) == 3
    assert apm.statistics()["wishes_heard"] == heard
    # For one's own CM to learn an address: that is the module's own, or nobody's.
    forged = apm.statistics()["lap_forged"]
    own = other(mark=marked(OWN) + bytes(6) + b"\1" * 8, **wire.path(THIRD, P1))
    tid = wire.send((own, THIRD, P1))
    vm.wait_file("/sys/kernel/debug/ib_cm_apm/statistics", rf"^lap_forged {forged + 1}$")
    assert qps_as_loaded(vm, fabric) == before
    # One that is right, at last.
    assert wire.ask(right, by=A1, to=P1) == 0
    assert wire.answers(tid) == []
    ulp.wait_armed(2)
    assert qps_as_loaded(vm, fabric) == before
    ulp.wait_progress()

    # A port that is down.
    fabric.cut(*P2)
    assert wire.ask(right, by=A1, to=P1) == 3
    ulp.wait_progress()
    ulp.check()
    # Connection 0 has had them at its passive side, connection 1 at its active one.
    ulp.disconnect(0, 1, side="passive")
    ulp.disconnect(1, 1, side="active")
    ulp.wait_gone()
    assert dreqs(wire) == {(P1, lid[A1]), (A1, lid[P1])}
    assert not any(ulp.counters()["dreq_timeout"].values())


@pytest.mark.vm(modules=("vfabric", "ib-cm-apm", "apm-test-ulp"))
def test_lap_to_an_armed_passive_side(vm):
    """The active side has moved and nobody has told: a LAP that names the passive side's path in use moves it first."""
    fabric = Fabric(vm, subnet_timeout=18).up()
    Apm(vm).up()
    ulp = TestUlp(vm).up().listen("ib")
    wire = Wire(fabric)
    # An end without room for a nudge, which has to send a notice.
    ulp.connect(0, 1, "ib", cq="plain")
    ulp.busy(0, 1)
    ulp.wait_armed(1)
    ulp.idle(0, 1)
    (conn,) = wire.connections()
    # Notices become something of a later version.
    fabric.control("mad rewrite class=7 attr=0x19 offset=97 value=09")
    fabric.cut(*A1)
    assert fabric.wait_migrations(1)["by_command"] == 1
    fabric.join(*A1)
    fabric.wait_state(*A1)
    (passive,) = [qp for qp in fabric.qps() if qp["dev"] == "vhca1" and qp["state"] == "RTS"]
    assert (passive["port"], passive["mig"]) == (1, "ARMED")

    lap = wire.lap(conn.active, conn.passive, **wire.path(A1, P1))
    assert wire.ask(lap, by=A2, to=P1) == 0
    assert fabric.migrations() == {"total": 2, "by_exhaustion": 0, "by_peer": 0, "by_command": 2}
    (passive,) = [qp for qp in fabric.qps() if qp["dev"] == "vhca1" and qp["state"] == "RTS"]
    assert (passive["port"], passive["mig"], passive["alt_port"]) == (2, "REARM", 1)
    fabric.control("mad clear")
    ulp.wait_armed(1)
    ulp.busy(0, 1)
    ulp.wait_progress()
    ulp.check()
    assert fabric.migrations()["total"] == 2
    ulp.disconnect(0, 1, side="passive")
    ulp.wait_gone()
    assert dreqs(wire) == {(P2, fabric.lid(*A2))}


def test_no_apr(vm):
    """No APR arrives, for a while (a minute in test-long): it is asked again, not too often, and armed in the end."""
    fabric = Fabric(vm, subnet_timeout=12).up()
    apm = Apm(vm).up()
    wire = Wire(fabric)
    fabric, disk = storage(vm, "srp", fabric)
    connections = wait_armed(vm)
    conn = wire.connections()[0]
    io = Fio(vm, disk.device, seconds=1, rate="1m").start()
    wait_ios(vm, disk.device)

    fabric.control("mad log class=7")
    fabric.control("mad drop class=7 attr=0x1a")
    fabric.cut(*A1)
    fabric.wait_migrations(2 * connections)
    fabric.join(*A1)
    fabric.wait_state(*A1)
    # Answered by the passive side, and not heard of by the active one.
    wire.wait(lambda ms: [m for m in ms if m.attribute == APR and m.status == 0 and m.lost])

    # A LAP that comes to the active side while it waits, and one that names the path in use.
    glare = wire.lap(conn.passive, conn.active, **wire.path(P1, A1))
    assert wire.ask(glare, by=P2, to=A2) == 3
    same = wire.lap(conn.active, conn.passive, **wire.path(A2, P2))
    assert wire.ask(same, by=A2, to=P2) == 5
    if LONG:
        start = vm.clock()[0]
        sent = apm.statistics()["laps_sent"]
        vm.wait_run(f"read -r up _ </proc/uptime; [ ${{up%.*}} -ge {int(start) + 60} ]", timeout=120)
        # Of each connection 16 of each offer, three offers of a search (the other port at both ends or at one of
        # them), and longer and longer waits between searches: in a minute there is no room for more than eight.
        assert apm.statistics()["laps_sent"] - sent <= 16 * 3 * 8 * connections
    # A peer that has never answered is taken for one without LAP, after a while.
    reason = "peer-without-lap" if LONG else "peer-timeout"
    vm.wait_run(f"grep -q ' side=active .* reason={reason} ' /sys/kernel/debug/ib_cm_apm/connections")
    assert {qp.mig for qp in connected_qps(vm) if qp.dev == "vhca0"} == {"MIGRATED"}
    # As often as the REQ says, each offer by another transaction id.
    tids = [m.tid for m in wire.messages(LAP) if m.is_plain_lap and m.tid & 0xFFFFFFFF != wire.tid]
    assert max(tids.count(tid) for tid in tids) <= 16
    assert len(set(tids)) > 1

    fabric.control("mad clear")
    assert wait_armed(vm) == connections
    wait_ios(vm, disk.device)
    io.finish().check()
    assert disk.drops() == 0
    fabric.control("mad log class=7")
    disk.disconnect()
    wait_no_qps(vm, "vhca0")
    wait_no_qps(vm, "vhca1")
    assert dreqs(wire) <= {(A2, fabric.lid(*P2)), (P2, fabric.lid(*A2))}


@pytest.mark.vm(modules=("vfabric", "ib-cm-apm", "apm-test-ulp"))
def test_rtu_lost(vm):
    """An alternate is to come by LAP, and the RTU gets lost: no LAP as long as the peer repeats its REP."""
    fabric = Fabric(vm, subnet_timeout=12).up()
    # The REQ does not wait for subnet administration.
    apm = Apm(vm, req_hold_ms=0).up()
    ulp = TestUlp(vm).up().listen("ib")
    wire = Wire(fabric)
    fabric.control("mad drop class=7 attr=0x14")
    ulp.connect(0, 1, "ib", wait=False)
    wire.wait(lambda ms: sum(m.attribute == REP for m in ms) >= 3)
    fabric.control("mad clear")
    ulp.wait_established(1)
    ulp.wait_armed(1)
    messages = wire.messages()
    laps = [m.number for m in messages if m.is_plain_lap]
    assert laps, "the alternate came by LAP"
    assert all(m.number < laps[0] for m in messages if m.attribute in (REP, RTU))
    assert sum(m.lost for m in messages if m.attribute == RTU) >= 2
    assert [m.status for m in messages if m.attribute == APR] == [0]
    ulp.busy(0, 1)
    ulp.wait_progress()
    ulp.check()
    assert apm.statistics()["alternate_offered"] == 0


def test_peer_without_the_module(vm):
    """First failover as ever; its CM hears of the path in use; LAPs that it ignores do not become a storm."""
    fabric = Fabric(vm, subnet_timeout=12).up()
    apm = Apm(vm, devices="vhca0").up()
    wire = Wire(fabric)
    fabric, disk = storage(vm, "srp", fabric)
    connections = wait_armed(vm)
    io = Fio(vm, disk.device, seconds=1, rate="1m").start()
    wait_ios(vm, disk.device)
    fabric.control("mad log class=7")
    fabric.cut(*A1)
    fabric.wait_migrations(2 * connections)
    wait_ios(vm, disk.device)
    # The first offer has come to nothing.
    reason = "peer-without-lap" if LONG else "peer-timeout"
    vm.wait_run(
        f"[ $(grep -c ' side=active .* reason={reason} ' /sys/kernel/debug/ib_cm_apm/connections) = {connections} ]",
        timeout=120,
    )
    laps = [m for m in wire.messages(LAP) if m.is_plain_lap]
    tids = [m.tid for m in laps]
    assert max(tids.count(tid) for tid in tids) == 16
    assert wire.messages(APR) == []
    assert {m.port for m in laps} == {A2}
    if LONG:
        sent = apm.statistics()["laps_sent"]
        start = vm.clock()[0]
        vm.wait_run(f"read -r up _ </proc/uptime; [ ${{up%.*}} -ge {int(start) + 15} ]")
        assert apm.statistics()["laps_sent"] == sent
    assert {qp.mig for qp in connected_qps(vm)} == {"MIGRATED"}
    wait_ios(vm, disk.device)
    io.finish().check()
    assert disk.drops() == 0

    # The first path is still dead, and the target ends it.
    fabric.control("mad log class=7")
    vm.write(f"{disk.group}/enable", "0")
    wait_no_qps(vm, "vhca1")
    assert dreqs(wire) and {port for port, _ in dreqs(wire)} <= {P1, P2}
    assert {lid for port, lid in dreqs(wire) if port[0] == "vhca1"} == {fabric.lid(*A2)}
