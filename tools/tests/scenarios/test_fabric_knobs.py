# SPDX-License-Identifier: GPL-2.0-only
"""What can be made wrong with the fabric short of a cut, and that its counters tell the truth about it."""

import re

import pytest

from harness import Apm, Fabric, Fio, Ipoib, Srp
from scenarios.common import ENDS, storage, wait_armed, wait_ios

only_fabric = pytest.mark.vm(modules=("vfabric",))


def sysfs(vm, dev, port, counter):
    return int(vm.read(f"/sys/class/infiniband/{dev}/ports/{port}/counters/{counter}"))


def perfquery(vm, lid, port):
    """PortCounters of a port, asked for over the fabric."""
    text = vm.out(f"perfquery -C vhca2 {lid} {port}")
    return {name: int(value) for name, value in re.findall(r"^(\w+):\.+(\d+)$", text, re.M)}


def errors(vm):
    """What ibqueryerrors has to complain about, where nothing is tolerated: {(node, port): {counter: value}}."""
    found = {}
    node = None
    command = "ibqueryerrors -C vhca2 --threshold-file /dev/null"
    for line in vm.run(command, check=False).out.splitlines():
        if match := re.match(r'Errors for (?:0x[0-9a-f]+ )?"(\w+)"', line):
            node = match[1]
        elif match := re.match(r" +GUID 0x[0-9a-f]+ port (\d+): (.*)", line):
            pairs = re.findall(r"\[(\w+) == (\d+)", match[2])
            found[node, int(match[1])] = {name: int(value) for name, value in pairs}
    return found


def dropped(fabric, port):
    return int(fabric.ports()[port]["dropped"])


@only_fabric
def test_counters_tell_of_loss_blackhole_and_cut(vm):
    """PortRcvErrors for what a bad cable spoils, nothing for a blackhole, LinkDowned and PortXmitDiscards for a cut:
    the same in sysfs, by perfquery and by ibqueryerrors."""
    fabric = Fabric(vm).up()
    ipoib = Ipoib(fabric).up()
    sw0 = int(fabric.ports()["sw0/0"]["lid"])
    ping = "ping -c 100 -i 0.01 -W 1 10.0.1.2"
    assert ("vhca1", 1) not in errors(vm) and ("sw0", 2) not in errors(vm)

    fabric.control("loss vhca1/1 10 in")
    vm.run(ping)
    fabric.clear("vhca1", 1)
    lost = dropped(fabric, "vhca1/1")
    assert lost > 0
    assert sysfs(vm, "vhca1", 1, "port_rcv_errors") == lost
    assert perfquery(vm, fabric.lid("vhca1", 1), 1)["PortRcvErrors"] == lost
    assert errors(vm)["vhca1", 1] == {"PortRcvErrors": lost}
    assert ("sw0", 2) not in errors(vm)

    # Lost on its way out it is the other end that sees it.
    fabric.control("loss vhca1/1 10 out")
    vm.run(ping)
    fabric.clear("vhca1", 1)
    lost_out = dropped(fabric, "vhca1/1") - lost
    assert lost_out > 0
    assert perfquery(vm, sw0, 2)["PortRcvErrors"] == lost_out
    assert errors(vm)["sw0", 2] == {"PortRcvErrors": lost_out}
    assert sysfs(vm, "vhca1", 1, "port_rcv_errors") == lost

    before = perfquery(vm, sw0, 2)
    vanished = dropped(fabric, "vhca1/1")
    fabric.blackhole("vhca1", 1, "in")
    assert vm.run("ping -c 20 -i 0.01 -W 1 10.0.1.2", check=False).rc != 0
    fabric.clear("vhca1", 1)
    after = perfquery(vm, sw0, 2)
    assert dropped(fabric, "vhca1/1") - vanished >= 20
    assert after["PortXmitPkts"] - before["PortXmitPkts"] >= 20, "the switch has sent them"
    assert after["PortXmitDiscards"] == before["PortXmitDiscards"]
    assert sysfs(vm, "vhca1", 1, "port_rcv_errors") == lost

    # Without a subnet manager the switch goes on to send what is for vhca1 to a port that is down. Nobody but this
    # scenario sends anything any more.
    ipoib.down()
    fabric.stop_opensm()
    fabric.cut("vhca1", 1)
    fabric.wait_state("vhca1", 1, "DOWN")
    before, gone = perfquery(vm, sw0, 2), dropped(fabric, "sw0/2")
    lid = fabric.lid("vhca1", 1)
    assert vm.run(f"perfquery -C vhca2 -t 200 {lid} 1", check=False).rc != 0
    counters = perfquery(vm, sw0, 2)
    assert counters["PortXmitDiscards"] - before["PortXmitDiscards"] == dropped(fabric, "sw0/2") - gone > 0
    assert counters["LinkDownedCounter"] == 1
    assert sysfs(vm, "vhca1", 1, "link_downed") == 1

    fabric.join("vhca1", 1)
    fabric.start_opensm()
    fabric.wait_active()
    assert perfquery(vm, fabric.lid("vhca1", 1), 1)["LinkDownedCounter"] == 1
    # ibqueryerrors looks at ports that are up.
    assert errors(vm)["sw0", 2]["LinkDownedCounter"] == 1


@pytest.mark.parametrize(("name", "way"), (("srp", "out"), ("nvme", "in"), ("iser", "out")))
def test_one_in_a_hundred_lost(vm, name, way):
    """One packet in a hundred lost in one direction: the transport repairs it. No error, nothing read back that was not
    written, no reconnect, no migration."""
    fabric = Fabric(vm).up()
    Apm(vm).up()
    fabric, ulp = storage(vm, name, fabric)
    wait_armed(vm)
    dev, port = ENDS["initiator"]
    fabric.control(f"loss {dev}/{port} 1 {way}")
    Fio(vm, ulp.device, seconds=4, bs="4k").run().check()
    Fio(vm, ulp.device, seconds=4, bs="64k").run().check()
    fabric.clear(dev, port)
    assert dropped(fabric, f"{dev}/{port}") >= 10
    assert sum(qp["retries"] for qp in fabric.qps()) >= 10
    assert ulp.drops() == 0
    assert fabric.migrations()["total"] == 0
    # And the alternate is there when it is needed.
    wait_armed(vm)
    io = Fio(vm, ulp.device, seconds=4).start()
    wait_ios(vm, ulp.device)
    fabric.cut(dev, port)
    fabric.wait_migrations(2)
    io.finish().check()
    assert ulp.drops() == 0


@only_fabric
def test_slow_cable(vm):
    """A delay is at least as long as asked for, adds up both ways, harms no I/O, and ends with clear."""
    fabric = Fabric(vm).up()
    Ipoib(fabric).up()

    def fastest():
        text = vm.out("ping -c 5 -i 0.2 10.0.1.2")
        return float(re.search(r"= ([\d.]+)/", text)[1])

    # What was sent before the port was ACTIVE.
    lost = dropped(fabric, "vhca1/1")
    fabric.control("delay vhca1/1 15000 out")
    assert fastest() >= 15
    fabric.control("delay vhca1/1 20000")
    assert fastest() >= 40
    port = fabric.ports()["vhca1/1"]
    assert (port["delay_in"], port["delay_out"]) == ("20000", "20000")
    fabric.control("delay vhca1/1 2000")
    disk = Srp(vm).up()
    Fio(vm, disk.device, seconds=3).run().check()
    fabric.clear("vhca1", 1)
    Fio(vm, disk.device, seconds=1).run().check()
    assert disk.drops() == 0
    assert dropped(fabric, "vhca1/1") == lost
    disk.disconnect()


def test_opensm_restart(vm):
    """The subnet manager ends and comes back while connections are protected: I/O does not notice, and they stay so."""
    fabric = Fabric(vm).up()
    apm = Apm(vm).up()
    fabric, ulp = storage(vm, "nvme", fabric)
    connections = wait_armed(vm)
    io = Fio(vm, ulp.device, seconds=12).start()
    wait_ios(vm, ulp.device)
    fabric.stop_opensm()
    wait_ios(vm, ulp.device)
    fabric.start_opensm()
    vm.wait_run("saquery -C vhca0 NR | grep -q sw1")
    fabric.wait_active()
    wait_ios(vm, ulp.device)
    io.finish().check()
    assert fabric.migrations()["total"] == 0
    assert ulp.drops() == 0
    assert wait_armed(vm) == connections
    apm.wait_connections(2 * connections)

    io = Fio(vm, ulp.device, seconds=4).start()
    wait_ios(vm, ulp.device)
    fabric.cut(*ENDS["initiator"])
    fabric.wait_migrations(2)
    io.finish().check()
    assert ulp.drops() == 0


@only_fabric
def test_other_lids(vm):
    """A subnet manager that gives every port another LID breaks connections; the ULP finds its target again."""
    fabric = Fabric(vm).up()
    disk = Srp(vm).up()
    disk.hurry()
    Fio(vm, disk.device, seconds=1).run().check()
    old = {port: fabric.lid(*port) for port in fabric.port_states()}
    fabric.stop_opensm()
    # OpenSM reads at its start which LIDs it gave to whom: all of them 256 higher.
    vm.run(r"sed -Ei 's/ 0x00/ 0x01/g' /var/cache/opensm/guid2lid")
    io = Fio(vm, disk.device, seconds=10).start()
    wait_ios(vm, disk.device)
    fabric.start_opensm()
    dev, port = ENDS["initiator"]
    vm.wait_file(f"/sys/class/infiniband/{dev}/ports/{port}/lid", rf"^{old[dev, port] + 256:#x}$")
    fabric.wait_active()
    assert {port: fabric.lid(*port) for port in old} == {port: lid + 256 for port, lid in old.items()}
    io.finish().check()
    Fio(vm, disk.device, seconds=1).run().check()
    assert disk.drops() >= 1
    disk.disconnect()


@only_fabric
def test_late_lost_and_double_mads(vm):
    """Path queries answered late, one not at all, and CM messages that come twice: connecting takes longer, that is
    all."""
    fabric = Fabric(vm).up()
    fabric.control("mad delay class=3 attr=0x35 method=0x81 us=200000")
    # REQ, REP and RTU twice; the first PathRecord answer never.
    for attribute in (0x10, 0x13, 0x14):
        fabric.control(f"mad duplicate class=7 attr={attribute:#x} us=1000")
    fabric.control("mad drop class=3 attr=0x35 method=0x81 count=1")
    disk = Srp(vm).up()
    assert vm.out("rdma resource show qp link vhca0 | grep -c 'type RC state RTS'") == str(len(fabric.qps()) // 2)
    Fio(vm, disk.device, seconds=2).run().check()
    assert disk.drops() == 0
    fabric.control("mad clear")
    disk.disconnect()


@only_fabric
def test_grh_forced(vm):
    """Paths with a GRH: the SA says so, the ULP uses it, and nothing is left behind."""
    fabric = Fabric(vm).up()
    fabric.control("grh on")
    assert set(re.findall(r"hop_flow_raw\.+(\w+)", vm.out("saquery -C vhca0 PR"))) == {"0x1"}
    disk = Srp(vm).up()
    Fio(vm, disk.device, seconds=2).run().check()
    assert disk.drops() == 0
    disk.disconnect()
    fabric.control("grh off")
    assert set(re.findall(r"hop_flow_raw\.+(\w+)", vm.out("saquery -C vhca0 PR"))) == {"0x0"}
    vm.run("rm -r /sys/kernel/config/target/srpt 2>/dev/null", check=False)
    fabric.stop_opensm()
