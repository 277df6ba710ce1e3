# SPDX-License-Identifier: GPL-2.0-only
"""Ports that come and go: no ping-pong, and the way back to the path that a connection began with."""

import os

import pytest

from harness import Apm, Fabric, Fio, TestUlp
from scenarios.common import storage, wait_armed, wait_ios

FLAPS = int(os.environ.get("FLAPS", "40"))
PERIOD_S = 0.2
BOTH_DOWN_S = 5

with_ulp = pytest.mark.vm(modules=("vfabric", "ib-cm-apm", "apm-test-ulp"))


def ports(apm):
    """Local ports that the active ends use."""
    return {int(c["path"].split(":")[0]) for c in apm.connections(side="active")}


def test_flapping_port(vm):
    """A port that goes down and comes up all the time: no error, and a connection that has left it stays away."""
    fabric = Fabric(vm, subnet_timeout=18).up()
    apm = Apm(vm, failback="automatic").up()
    fabric, ulp = storage(vm, "srp", fabric)
    connections = wait_armed(vm)
    io = Fio(vm, ulp.device, seconds=1).start()
    wait_ios(vm, ulp.device)
    # In the guest: each step on time, whatever the host is at.
    flap = f"echo cut vhca0/1 >$c; sleep {PERIOD_S}; echo join vhca0/1 >$c; sleep {PERIOD_S}"
    vm.run(f"c=/sys/kernel/debug/vfabric/control; for n in $(seq {FLAPS}); do {flap}; done", timeout=60 + 4 * FLAPS)
    wait_ios(vm, ulp.device)
    assert ports(apm) == {2}
    # Each connection has left it once, at either end.
    assert fabric.migrations()["total"] == 2 * connections
    fabric.wait_active()
    assert wait_armed(vm) == connections
    io.finish().check()
    assert ulp.drops() == 0


def both_down(fabric, back):
    """Both ports of the initiator die, one after the other; five seconds later the port `back` is there again."""
    fabric.cut("vhca0", 1)
    fabric.cut("vhca0", 2)
    fabric.wait_state("vhca0", 2, "DOWN")
    # So long is the fault; nothing is waited for.
    fabric.vm.run(f"sleep {BOTH_DOWN_S}")
    fabric.join("vhca0", back)
    fabric.wait_state("vhca0", back)


def test_both_ports_down(vm):
    """Both ports are down for longer than the HCA's retries take: the ULP reconnects, and is protected again."""
    fabric = Fabric(vm, subnet_timeout=18).up()
    apm = Apm(vm).up()
    fabric, ulp = storage(vm, "srp", fabric)
    connections = wait_armed(vm)
    io = Fio(vm, ulp.device, seconds=1).start()
    wait_ios(vm, ulp.device)
    both_down(fabric, back=1)
    wait_ios(vm, ulp.device)
    fabric.join("vhca0", 2)
    fabric.wait_active()
    apm.wait_disjoint(connections, "ports")
    assert wait_armed(vm) == connections
    io.finish().check()


@with_ulp
def test_both_ports_down_outlived(vm):
    """The HCA's retries take longer than that (no timers of ours), and its port comes back: the connections live on."""
    fabric = Fabric(vm, subnet_timeout=18).up()
    apm = Apm(vm, timers=0).up()
    ulp = TestUlp(vm).up().listen("ib")
    ulp.connect(0, 20, "ib")
    ulp.busy(0, 20, every=50)
    ulp.wait_armed(20)
    both_down(fabric, back=2)
    ulp.wait_progress()
    fabric.join("vhca0", 1)
    fabric.wait_active()
    apm.wait_disjoint(20, "ports")
    ulp.wait_armed(20)
    ulp.check()
    assert ulp.summary()["active"]["established"] == 20


@with_ulp
@pytest.mark.parametrize(("dies", "then"), [("vhca0", "vhca1"), ("vhca1", "vhca0")])
def test_dead_standby(vm, dies, then):
    """The port that nothing goes over dies, at either end: the connections get an alternate by what is left.

    That one protects when a port of the other end dies. With both back they are as far apart as before.
    """
    fabric = Fabric(vm).up()
    apm = Apm(vm).up()
    ulp = TestUlp(vm).up().listen("ib")
    ulp.connect(0, 20, "ib")
    ulp.busy(0, 20, every=50)
    ulp.wait_armed(20)
    fabric.cut(dies, 2)
    apm.wait_disjoint(20, "port")
    ulp.wait_armed(20)
    assert fabric.migrations()["total"] == 0
    fabric.cut(then, 1)
    fabric.wait_migrations(40)
    ulp.wait_progress()
    for dev, port in ((dies, 2), (then, 1)):
        fabric.join(dev, port)
    fabric.wait_active()
    apm.wait_disjoint(20, "ports")
    ulp.wait_armed(20)
    ulp.check()
    assert ulp.summary()["active"]["established"] == 20
    # What the active side cannot see it was told.
    stats = apm.statistics()
    assert stats["wishes_heard"] >= 20
    assert fabric.migrations()["total"] == 40


@with_ulp
def test_path_mig_err(vm):
    """The HCA reports that an alternate is of no use: another one is sought at once, and I/O goes on where it is."""
    fabric = Fabric(vm).up()
    apm = Apm(vm, failback="manual").up()
    ulp = TestUlp(vm).up().listen("ib")
    ulp.connect(0, 20, "ib")
    ulp.busy(0, 20, every=50)
    ulp.wait_armed(20)
    fabric.cut("vhca0", 1)
    fabric.wait_migrations(40)
    fabric.join("vhca0", 1)
    fabric.wait_active()
    apm.wait_disjoint(20, "ports")

    fabric.control("knob vhca0 mig_err=1")
    sent = apm.statistics()["laps_sent"]
    vm.write("/sys/module/ib_cm_apm/parameters/failback_now", "1")
    vm.wait_file(f"{apm.debugfs}/statistics", r"^path_mig_err 20$")
    fabric.control("knob vhca0 mig_err=0")
    vm.wait_run(f"[ $(awk '/^laps_sent/ {{print $2}}' {apm.debugfs}/statistics) -ge {sent + 20} ]")
    apm.wait_disjoint(20, "ports")
    ulp.wait_armed(20)
    ulp.wait_progress()
    ulp.check()
    assert ulp.counters()["qp_path_mig_err"] == {"active": 20, "passive": 0}
    assert ports(apm) == {2}
    assert fabric.migrations()["total"] == 40

    fabric.cut("vhca0", 2)
    fabric.wait_migrations(80)
    ulp.wait_progress()
    ulp.check()


@with_ulp
def test_failback(vm):
    """Off: never. Manual: when told to. Automatic: when the first path has been armed for the hold-down."""
    fabric = Fabric(vm).up()
    apm = Apm(vm, failback="off", failback_hold_ms=1000).up()
    ulp = TestUlp(vm).up().listen("ib")
    ulp.connect(0, 20, "ib")
    ulp.busy(0, 20, every=50)
    apm.wait_connections(40)
    params = "/sys/module/ib_cm_apm/parameters"

    def leave():
        fabric.cut("vhca0", 1)
        vm.wait_run(f"! grep -q 'side=active .* path=1:' {apm.debugfs}/connections")
        fabric.join("vhca0", 1)
        fabric.wait_active()
        apm.wait_disjoint(20, "ports")

    leave()
    vm.write(f"{params}/failback_now", "1")
    ulp.wait_progress()
    assert ports(apm) == {2} and apm.statistics()["failed_back"] == 0

    vm.write(f"{params}/failback", "manual")
    before = fabric.migrations()
    vm.write(f"{params}/failback_now", "1")
    fabric.wait_migrations(before["total"] + 40)
    ulp.wait_progress()
    assert ports(apm) == {1}
    moved = fabric.migrations()
    # One side decides, the other one follows.
    assert moved["by_command"] - before["by_command"] == moved["by_peer"] - before["by_peer"] == 20
    apm.wait_disjoint(20, "ports")

    leave()
    vm.write(f"{params}/failback", "automatic")
    # Nothing but the time that has passed brings them back.
    vm.wait_run(f"! grep -q 'side=active .* path=2:' {apm.debugfs}/connections")
    ulp.wait_progress()
    apm.wait_disjoint(20, "ports")
    ulp.check()
    assert apm.statistics()["failed_back"] == 40
