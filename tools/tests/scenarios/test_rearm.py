# SPDX-License-Identifier: GPL-2.0-only
"""One failure after the other: a connection is protected again each time, by itself."""

import os

import pytest

from harness import Apm, Fabric, Fio, TestUlp, tier
from scenarios.common import ULPS, qps_by_end, storage, wait_armed, wait_ios
from scenarios.test_fabric_faults import PAIRS

# make test-long has more of them.
ROUNDS = int(os.environ.get("ROUNDS", "3"))
# One after the other: both ports of the initiator, then both of the target.
CUTS = [("vhca0", 1), ("vhca0", 2), ("vhca1", 1), ("vhca1", 2)]
# What hardware may do otherwise, the worst of it together.
KNOBS = {
    "mlx5": "profile=mlx5",
    "silent": "path_mig_events=0 query_swaps=0 retransmit=0 timer_stretch=4 modify_us=100 reorder_events=1"
    " ca_ack_delay=16",
    "talkative": "path_mig_events=2 port_err_on_join=1 round_depth=1 ack_delay_us=500",
}

with_ulp = pytest.mark.vm(modules=("vfabric", "ib-cm-apm", "apm-test-ulp"))


def rounds(vm, name, fabric, apm, count):
    """Cut port after port under verified I/O; each time all connections are armed again before the next cut."""
    fabric, ulp = storage(vm, name, fabric)
    connections = wait_armed(vm)
    io = Fio(vm, ulp.device, seconds=1).start()
    wait_ios(vm, ulp.device)
    for _ in range(count):
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
    assert len(qps_by_end(vm)[0]) == connections
    stats = apm.statistics()
    assert stats["cm_followed"] == stats["migrations"] == fabric.migrations()["total"]
    assert stats["cm_follow_failed"] == 0
    return fabric.migrations()


@pytest.mark.parametrize("name", ULPS)
def test_any_number_of_cuts(vm, name):
    """Ports of both ends in turn, OpenSM's and the ULP's own timers: no error, no reconnect, ARMED before each cut."""
    fabric = Fabric(vm, subnet_timeout=18).up()
    moved = rounds(vm, name, fabric, Apm(vm).up(), ROUNDS)
    # It need not have come to that where the HCAs' retries are over sooner, but not always.
    assert moved["by_command"] > 0


@pytest.mark.parametrize(("name", "knobs"), zip(ULPS, KNOBS, strict=True))
def test_any_hardware(vm, name, knobs):
    """The same on HCAs that keep silent about a migration, tell it twice, or report their paths otherwise."""
    fabric = Fabric(vm, subnet_timeout=18, knobs=f"all {KNOBS[knobs]}").up()
    rounds(vm, name, fabric, Apm(vm).up(), ROUNDS)


@pytest.mark.parametrize("name", ULPS)
def test_blackhole_with_default_timers(vm, name):
    """No port goes down; the HCAs find out by themselves, and before the ULP gives up, for the REQ has said so."""
    fabric = Fabric(vm, topology=PAIRS, subnet_timeout=18).up()
    apm = Apm(vm).up()
    fabric, ulp = storage(vm, name, fabric)
    connections = wait_armed(vm)
    assert apm.statistics()["timers_set"] >= connections
    io = Fio(vm, ulp.device, seconds=1).start()
    wait_ios(vm, ulp.device)
    for switch in ("a0", "b0") * ROUNDS:
        before = fabric.migrations()["total"]
        fabric.blackhole(switch, 2)
        # A queue that sends nothing meanwhile finds nothing out, and loses nothing.
        fabric.wait_migrations(before + 2)
        wait_ios(vm, ulp.device)
        fabric.clear(switch, 2)
        apm.wait_disjoint(connections, "ports")
        assert wait_armed(vm) == connections
    io.finish().check()
    assert ulp.drops() == 0
    assert fabric.migrations()["by_command"] == 0


@with_ulp
def test_hole_after_a_migration(vm):
    """Nothing protects any more, and for a second no packet passes: with our timers, too, HCAs repeat for longer."""
    fabric = Fabric(vm, subnet_timeout=18).up()
    apm = Apm(vm, rearm=0).up()
    ulp = TestUlp(vm).up().listen("ib")
    ulp.connect(0, 20, "ib")
    assert apm.statistics()["timers_set"] == 20
    ulp.busy(0, 20, every=20)
    ulp.wait_armed(20)
    fabric.cut("vhca0", 1)
    fabric.wait_migrations(40)
    ulp.wait_progress()
    # In the guest: so long is the hole, whatever the host is at.
    control = "/sys/kernel/debug/vfabric/control"
    vm.run(f"echo blackhole vhca0/2 >{control}; sleep 1; echo clear vhca0/2 >{control}")
    ulp.wait_progress()
    ulp.check()
    assert ulp.summary()["active"]["established"] == 20
    assert {c["state"] for c in apm.connections()} == {"Migrated"}


@with_ulp
@pytest.mark.parametrize("side", ["active", "passive"])
def test_disconnect_after_migrations(vm, side):
    """After one migration or six, with the path left dead, a DREQ of either side arrives at the other."""
    fabric = Fabric(vm).up()
    apm = Apm(vm).up()
    ulp = TestUlp(vm).up().listen("ib")
    other = "passive" if side == "active" else "active"
    for number, migrations in enumerate((1, 2, 3, 6)):
        ulp.connect(number, 1, "ib")
        ulp.busy(number, 1)
        for n in range(migrations):
            ulp.wait_armed(1)
            apm.wait_disjoint(1, "ports")
            (line,) = apm.connections(state="Armed", side="active")
            port = int(line["path"].split(":")[0])
            before = fabric.migrations()["total"]
            fabric.cut("vhca0", port)
            fabric.wait_migrations(before + 2)
            ulp.wait_progress()
            if n + 1 < migrations:
                fabric.join("vhca0", port)
                fabric.wait_active()
        received = ulp.counters()["dreq_received"][other]
        ulp.disconnect(number, 1, side=side)
        ulp.wait_gone()
        assert ulp.counters()["dreq_received"][other] == received + 1
        assert not any(ulp.counters()["dreq_timeout"].values())
        fabric.join("vhca0", port)
        fabric.wait_active()
    ulp.check("wc_flush")


@with_ulp
def test_many_migrations_with_grh(vm):
    """Fifty migrations on paths with a GRH, then both HCAs go: no reference is lost or doubled (gate)."""
    fabric = Fabric(vm).up()
    apm = Apm(vm).up()
    fabric.control("grh on")
    ulp = TestUlp(vm).up().listen("ib")
    ulp.connect(0, 1, "ib")
    ulp.busy(0, 1)
    for n in range(25):
        ulp.wait_armed(1)
        apm.wait_disjoint(1, "ports")
        port = "vhca0", 1 + n % 2
        fabric.cut(*port)
        fabric.wait_migrations(2 * (n + 1))
        fabric.join(*port)
        fabric.wait_active()
    ulp.wait_progress()
    ulp.check()
    stats = apm.statistics()
    assert stats["cm_followed"] == stats["migrations"] == 50
    for dev in ("vhca0", "vhca1"):
        fabric.control(f"remove {dev}")
        vm.wait_run(f"[ ! -e /sys/class/infiniband/{dev} ]")
    ulp.down()
    apm.down()
    fabric.unload()


@with_ulp
def test_thousand_connections(vm):
    """A thousand connections, half of them idle: both ports in turn, all ARMED again each time; then we leave."""
    # A stock bug: an RMPP ACK that waits for ten seconds for a place in QP1's send queue is sent by an address handle
    # that is freed by then. So there shall be places.
    vm.modprobe("ib_core", send_queue_size=8192, recv_queue_size=8192)
    fabric = Fabric(vm, subnet_timeout=tier.lifetime(15)).up()
    apm = Apm(vm, timers=0).up()
    ulp = TestUlp(vm).up().listen("ib")
    ulp.connect(0, 1000, "ib", timeout=300)
    ulp.busy(0, 500, every=1000)
    ulp.wait_progress(timeout=300)
    for port in (1, 2):
        # An idle one becomes ARMED by its first message, and by ours after that.
        apm.wait_connections(2000, timeout=300)
        before = fabric.migrations()["total"]
        fabric.cut("vhca0", port)
        fabric.wait_migrations(before + 2000, timeout=300)
        ulp.wait_progress(timeout=300)
        fabric.join("vhca0", port)
        fabric.wait_active()
        apm.wait_disjoint(1000, "ports", timeout=600)
    ulp.wait_armed(1000, timeout=300)
    ulp.check()
    fabric.cut("vhca0", 1)
    apm.down(timeout=300)
    ulp.wait_progress(timeout=300)
    ulp.check()
    assert ulp.summary()["active"]["established"] == 1000
