# SPDX-License-Identifier: GPL-2.0-only
"""The software fabric, as OpenSM and the stock diagnostics see it."""

import re

import pytest

from harness import Fabric, GuestError, Ipoib

# What the topology `rails` says, as (end, end).
LINKS = {
    ("vhca0/1", "sw0/1"),
    ("vhca1/1", "sw0/2"),
    ("vhca0/2", "sw1/1"),
    ("vhca1/2", "sw1/2"),
    ("sw0/3", "sw1/3"),
    ("vhca2/1", "sw0/4"),
}
BOTH_WAYS = LINKS | {(b, a) for a, b in LINKS}

only_fabric = pytest.mark.vm(modules=("vfabric",))


def discovered(vm):
    """Links that ibnetdiscover finds, each as seen from both of its ends."""
    line = re.compile(
        r"^(?:CA|SW|RT) +\d+ +(\d+) 0x[0-9a-f]{16} \S+ \S+ - (?:CA|SW|RT) +\d+ +(\d+) 0x[0-9a-f]{16}"
        r" \( '(\w+)' - '(\w+)' \)$"
    )
    got = vm.run("ibnetdiscover -C vhca0 -p")
    assert got.err == ""
    found = [line.match(text) for text in got.out.splitlines()]
    return {(f"{m[3]}/{m[1]}", f"{m[4]}/{m[2]}") for m in found if m}


def quiet(vm, command):
    """Output of a diagnostic that must succeed and must not complain."""
    got = vm.run(command)
    assert got.err == "", f"{command}: {got.err}"
    assert not re.search(
        r"(?i)\b(error|warn|fail|bad|timeout)", re.sub(r"(?i)\b0 (bad|ports have errors)", "", got.out)
    ), f"{command}:\n{got.out}"
    return got.out


@only_fabric
def test_diags(vm):
    """OpenSM brings every port up, and ibnetdiscover, iblinkinfo, ibtracert, saquery and the counters agree."""
    fabric = Fabric(vm).up()
    assert discovered(vm) == BOTH_WAYS

    links = quiet(vm, "iblinkinfo -C vhca0 -l")
    assert len(re.findall(r"Active/ +LinkUp", links)) == len(BOTH_WAYS)

    lids = {port: fabric.lid(*port) for port in fabric.port_states()}
    assert len(set(lids.values())) == 5 and all(lids.values())
    trace = quiet(vm, f"ibtracert -C vhca0 {lids['vhca0', 1]} {lids['vhca1', 2]}")
    assert re.findall(r'"(\w+)"', trace) == ["vhca0", "sw0", "sw1", "vhca1", "vhca1"]

    nodes = quiet(vm, "saquery -C vhca0 NR")
    assert sorted(re.findall(r"NodeDescription\.+(\w+)", nodes)) == sorted(
        ["vhca0", "vhca0", "vhca1", "vhca1", "vhca2", "sw0", "sw1"]
    )
    path = quiet(vm, f"saquery -C vhca0 PR --src-to-dst {lids['vhca0', 2]}:{lids['vhca1', 2]}")
    assert int(re.search(r"slid\.+(0x[0-9a-f]+|\d+)", path)[1], 0) == lids["vhca0", 2]
    assert re.search(r"pkt_life\.+0x?8?C", path, re.I), path

    assert "0 ports have errors beyond threshold" in vm.out("ibqueryerrors -C vhca0")


@only_fabric
def test_counters_move(vm):
    """perfquery counts what has passed, and a reset starts again."""
    fabric = Fabric(vm).up()
    Ipoib(fabric).up()

    def counters():
        text = quiet(vm, f"perfquery -C vhca0 -x {fabric.lid('vhca1', 1)} 1")
        return {name: int(value) for name, value in re.findall(r"^(\w+):\.+(\d+)$", text, re.M)}

    before = counters()
    vm.run("ping -c 20 -i 0.01 -s 1000 10.0.1.2")
    after = counters()
    # 20 requests and as many answers of 1000 bytes and headers; counted in units of four bytes.
    for way in ("Xmit", "Rcv"):
        assert after[f"Port{way}Pkts"] - before[f"Port{way}Pkts"] >= 20
        assert after[f"Port{way}Data"] - before[f"Port{way}Data"] >= 20 * 1000 / 4
    vm.run(f"perfquery -C vhca0 -x -R {fabric.lid('vhca1', 1)} 1")
    assert counters()["PortRcvPkts"] < after["PortRcvPkts"]
    traffic = int(vm.read("/sys/class/infiniband/vhca1/ports/1/counters/port_rcv_packets"))
    assert traffic > 0


@only_fabric
def test_cut_and_join(vm):
    """A cut takes both ends down at once and OpenSM hears of it by trap; a join brings them back by trap as well."""
    fabric = Fabric(vm).up()
    fabric.cut("vhca1", 2)
    fabric.wait_state("vhca1", 2, "DOWN")
    assert fabric.ports()["sw1/2"]["state"] == "DOWN"
    vm.wait_file("/tmp/opensm.log", r"trap.*128|num:128|Removed port")
    vm.wait_run("saquery -C vhca0 NR | grep -c 'NodeDescription.*vhca1' | grep -qx 1")
    fabric.join("vhca1", 2)
    fabric.wait_state("vhca1", 2, "ACTIVE")
    fabric.wait_active()
    vm.wait_run("saquery -C vhca0 NR | grep -c 'NodeDescription.*vhca1' | grep -qx 2")
    assert discovered(vm) == BOTH_WAYS


@only_fabric
def test_blackhole_keeps_the_link_up(vm):
    """A blackhole loses packets, in one direction if so asked, and no port notices."""
    fabric = Fabric(vm).up()
    Ipoib(fabric).up()
    vm.run("ping -c 1 -W 5 10.0.1.2")
    for way in ("in", "out", "both"):
        before = int(fabric.ports()["vhca1/1"]["dropped"]) + int(fabric.ports()["sw0/2"]["dropped"])
        fabric.blackhole("vhca1", 1, way)
        assert vm.run("ping -c 3 -i 0.1 -W 1 10.0.1.2", check=False).rc == 1
        assert fabric.port_states()["vhca1", 1] == "ACTIVE"
        after = int(fabric.ports()["vhca1/1"]["dropped"]) + int(fabric.ports()["sw0/2"]["dropped"])
        assert after > before
        fabric.clear("vhca1", 1)
        vm.wait_run("ping -c 1 -W 1 10.0.1.2")


@only_fabric
def test_bad_control(vm):
    """A command that makes no sense is refused and changes nothing; the log says why."""
    fabric = Fabric(vm).up()
    before = fabric.port_states()
    for command in (
        "",
        "cut",
        "cut vhca0",
        "cut vhca0/3",
        "cut nobody/1",
        "cut sw1/4",
        "blackhole vhca0/1 up",
        "melt vhca0/1",
        "x" * 4000,
    ):
        with pytest.raises(GuestError, match="Invalid argument"):
            fabric.control(command)
    vm.wait_dmesg("vfabric: .*nobody")
    vm.wait_dmesg("vfabric: .*melt")
    assert fabric.port_states() == before


@only_fabric
def test_bad_topology(vm):
    """A malformed topology or knob is refused with the line that is wrong, and leaves nothing behind."""
    vm.modprobe("ib_core")
    for text, line in (
        ("hca a ports=1;switch s ports=2;link a/1 s/3", 3),
        ("hca a ports=1;hca a ports=1", 2),
        ("hca a ports=1;switch s ports=1;link a/1 s/1;link a/1 s/1", 4),
        ("hca a ports=99999999999999999999", 1),
        ("spoon a", 1),
        ("link a/1 b/1", 1),
    ):
        assert vm.run(f"insmod /mnt/vfabric.ko topology='\"{text}\"'", check=False).rc != 0, text
        vm.wait_dmesg(rf"vfabric: .*line {line}\b")
    for knobs, why in (("all scrub=2", "not a value"), ("all scrub=0; vhca9 scrub=0", "no such HCA")):
        assert vm.run(f"insmod /mnt/vfabric.ko knobs='\"{knobs}\"'", check=False).rc != 0, knobs
        vm.wait_dmesg(rf"vfabric: knob .*{why}")
    assert vm.glob("/sys/class/infiniband/*") == []
    Fabric(vm).up()


@only_fabric
def test_topology_from_text(vm):
    """Any topology can be given as text, also one longer than what a kernel's string parameter holds."""
    hcas = [f"hca node{n:02} ports=1" for n in range(30)]
    links = [f"link node{n:02}/1 big/{n + 1}" for n in range(30)]
    text = "\n".join(["hca sm ports=1", *hcas, "switch big ports=32", *links, "link sm/1 big/32"])
    assert len(text) > 1024
    fabric = Fabric(vm, topology=text, sm="sm").up()
    assert len(fabric.port_states()) == 31
    vm.run(f"ibtracert -C node00 {fabric.lid('node00', 1)} {fabric.lid('node29', 1)}")


@only_fabric
def test_reload(vm):
    """The fabric leaves without a trace, also while OpenSM and IPoIB use it, and comes again."""
    fabric = Fabric(vm).up()
    ipoib = Ipoib(fabric).up()
    ipoib.down()
    fabric.unload()
    assert vm.glob("/sys/class/infiniband/*") == []
    Fabric(vm).up()
