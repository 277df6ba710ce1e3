# SPDX-License-Identifier: GPL-2.0-only
"""One-port HCAs: the alternate is other LIDs of the same ports (LMC), by another spine switch."""

import re

import pytest

from harness import Apm, Fabric, Fio, Ipoib, Nvme, Srp
from harness.rdma import connected_qps
from scenarios.common import wait_ios

# To follow a path through the switches takes some ten questions to the SA more than to find another port.
HOLD_MS = 5000
INITIATOR, TARGET = ("vhca3", 1), ("vhca4", 1)


def spine(vm, **options):
    """Two leaves, two spines, OpenSM with further options."""
    fabric = Fabric(vm, topology="spine")
    fabric.load()
    fabric.start_opensm(**options)
    fabric.wait_active()
    return fabric


def storage(vm, fabric, name):
    """A disk between the one-port HCAs, which are on different leaves."""
    if name == "srp":
        return Srp(vm, initiator=INITIATOR, target=TARGET).up()
    Ipoib(fabric, {INITIATOR: "10.0.1.1", TARGET: "10.0.1.2"}).up()
    return Nvme(vm).up()


def wait_armed(vm, apm, device):
    """Some I/O, until both ends of all connections are ARMED; the lines of the active ends."""
    Fio(vm, device, seconds=1).run().check()
    lines = apm.wait_connections(len(connected_qps(vm)))
    return [line for line in lines if line["side"] == "active"]


def lids(path):
    """SLID and DLID of a path as the module shows it, port:slid->dlid."""
    match = re.fullmatch(r"1:(\d+)->(\d+)", path)
    return int(match[1]), int(match[2])


def spines(vm, path):
    """The spine switches that requests and acknowledgements pass, by the forwarding tables as they are."""
    found = set()
    slid, dlid = lids(path)
    for way in (f"{slid} {dlid}", f"{dlid} {slid}"):
        found |= set(re.findall(r'"(spine\d)"', vm.out(f"ibtracert -C vhca2 {way}")))
    return found


@pytest.mark.parametrize("how", ["cut", "blackhole"])
@pytest.mark.parametrize("name", ["srp", "nvme"])
def test_dead_spine(vm, name, how):
    """The spine in use dies: no error, no reconnect. The HCAs have one port each."""
    fabric = spine(vm, lmc=1)
    apm = Apm(vm, req_hold_ms=HOLD_MS).up()
    disk = storage(vm, fabric, name)
    protected = wait_armed(vm, apm, disk.device)
    dead = set()
    for line in protected:
        used, other = spines(vm, line["path"]), spines(vm, line["alt"])
        assert len(used) == 1 and len(other) == 1 and used != other, line
        assert line["disjoint"] == "switches"
        near, far = zip(lids(line["path"]), lids(line["alt"]), strict=True)
        base = fabric.lid(*INITIATOR), fabric.lid(*TARGET)
        assert {lid - base[0] for lid in near} == {lid - base[1] for lid in far} == {0, 1}
        dead |= used
    # All connections between two ports go the same way.
    assert len(dead) == 1
    io = Fio(vm, disk.device, seconds=8).start()
    wait_ios(vm, disk.device)
    for port in (1, 2):
        getattr(fabric, how)(max(dead), port)
    if how == "blackhole":
        fabric.wait_migrations(2)
    else:
        # The subnet manager hears of it and may lead all LIDs by the other spine before the retries are exhausted.
        vm.wait_run(f"! ibtracert -C vhca2 {' '.join(map(str, lids(protected[0]['path'])))} | grep -q {max(dead)}")
    wait_ios(vm, disk.device)
    report = io.finish().check()
    assert report.bytes_written > 0
    assert disk.drops() == 0
    assert fabric.migrations()["by_command"] == 0


def test_own_cable_and_no_lmc(vm):
    """What LMC cannot do: the HCA's own cable. And without it there is nothing: single-port-hca."""
    fabric = spine(vm)
    apm = Apm(vm, req_hold_ms=HOLD_MS, rearm=0).up()
    disk = storage(vm, fabric, "srp")
    Fio(vm, disk.device, seconds=1).run().check()
    assert {line["reason"] for line in apm.connections(side="active")} == {"single-port-hca"}
    assert {qp.mig for qp in connected_qps(vm)} == {"MIGRATED"}
    disk.disconnect()

    fabric.stop_opensm()
    fabric.start_opensm(lmc=1, reassign_lids="TRUE")
    vm.wait_file("/sys/class/infiniband/vhca3/ports/1/lid_mask_count", "1")
    vm.wait_file("/sys/class/infiniband/vhca4/ports/1/lid_mask_count", "1")
    fabric.wait_active()
    disk.connect()
    wait_armed(vm, apm, disk.device)
    disk.hurry()
    io = Fio(vm, disk.device, seconds=3).start()
    wait_ios(vm, disk.device)
    fabric.cut(*INITIATOR)
    vm.wait_dmesg("failed RECV status|failed SEND|reconnect attempt")
    fabric.join(*INITIATOR)
    io.finish()
    assert disk.drops() > 0


def test_two_ports_come_first(vm):
    """With LMC in the subnet two-port HCAs still get their other ports."""
    fabric = spine(vm, lmc=1)
    apm = Apm(vm, req_hold_ms=HOLD_MS).up()
    disk = Srp(vm).up()
    for line in wait_armed(vm, apm, disk.device):
        assert line["disjoint"] == "ports"
        assert line["alt"].startswith("2:")
    assert fabric.migrations()["total"] == 0
