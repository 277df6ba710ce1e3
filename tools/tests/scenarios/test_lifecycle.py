# SPDX-License-Identifier: GPL-2.0-only
"""Modules and devices come and go; connections stay, or end as they would without us."""

import pytest

from harness import Apm, Fabric, Fio, GuestError, Ipoib, Nvme, Srp
from scenarios.common import ENDS, qps_by_end, storage, wait_armed, wait_ios, wait_no_qps


def test_unload_and_reload_under_io(vm):
    """Unloading leaves connections alive and even armed; a module loaded later leaves them alone and says so."""
    fabric = Fabric(vm).up()
    apm = Apm(vm).up()
    fabric, ulp = storage(vm, "nvme", fabric)
    connections = wait_armed(vm)
    io = Fio(vm, ulp.device, seconds=1).start()
    wait_ios(vm, ulp.device)
    for _ in range(3):
        apm.down()
        wait_ios(vm, ulp.device)
        apm.up()
        wait_ios(vm, ulp.device)
    assert {c["reason"] for c in apm.connections()} == {"predates-load"}
    # What the CM set up with the REQ lies in the HCAs and works without us.
    assert wait_armed(vm) == connections
    fabric.cut(*ENDS["initiator"])
    fabric.wait_migrations(2)
    wait_ios(vm, ulp.device)
    io.finish().check()
    assert ulp.drops() == 0
    fabric.join(*ENDS["initiator"])
    fabric.wait_active()
    ulp.disconnect()
    wait_no_qps(vm, "vhca1")
    vm.wait_file("/sys/kernel/debug/ib_cm_apm/statistics", r"^predates_load [1-9]")
    # New connections are served.
    ulp.connect()
    wait_armed(vm)


def test_unload_while_a_req_is_held(vm):
    """A REQ that waits for the SA does not keep the module from leaving, and goes out all the same."""
    fabric = Fabric(vm).up()
    srp = Srp(vm).serve()
    apm = Apm(vm, req_hold_ms=10000).up()
    # The SA answers the ULP's question for its path, and not ours for the peer's node.
    fabric.control("mad drop class=3 attr=0x11")
    login = vm.spawn(srp.login_command())
    vm.wait_file("/sys/kernel/debug/ib_cm_apm/connections", "state=Resolving")
    apm.down()
    assert login.wait().rc == 0
    srp.found()
    assert {qp.mig for end in qps_by_end(vm) for qp in end} == {"MIGRATED"}
    Fio(vm, srp.device, seconds=1).run().check()


def test_dead_sa_costs_the_hold_and_no_more(vm):
    """Where the SA does not answer us the connection is made without an alternate, with the reason."""
    fabric = Fabric(vm).up()
    srp = Srp(vm).serve()
    apm = Apm(vm, req_hold_ms=200, rearm=0).up()
    fabric.control("mad drop class=3 attr=0x11")
    srp.connect()
    Fio(vm, srp.device, seconds=1).run().check()
    assert {c["reason"] for c in apm.connections(side="active")} == {"sa-timeout"}
    assert {qp.mig for end in qps_by_end(vm) for qp in end} == {"MIGRATED"}


def test_ulp_module_leaves_first(vm):
    """A ULP's module can be unloaded at any time, and loaded again, and is served again."""
    fabric = Fabric(vm).up()
    Apm(vm).up()
    Ipoib(fabric).up()
    nvme, srp = Nvme(vm).serve(), Srp(vm).serve()
    for _ in range(2):
        nvme.connect()
        srp.connect()
        wait_armed(vm)
        vm.run("modprobe -r nvme-rdma")
        vm.run("modprobe -r ib_srp")
        wait_no_qps(vm, "vhca0")
        wait_no_qps(vm, "vhca1")


@pytest.mark.parametrize("dev", ["vhca0", "vhca1"])
def test_device_removed(vm, dev):
    """A HCA that goes takes its connections along; nothing hangs and nothing is left."""
    fabric = Fabric(vm).up()
    apm = Apm(vm).up()
    fabric, ulp = storage(vm, "srp", fabric)
    wait_armed(vm)
    io = Fio(vm, ulp.device, seconds=1).start()
    wait_ios(vm, ulp.device)
    fabric.control(f"remove {dev}")
    vm.wait_run(f"[ ! -e /sys/class/infiniband/{dev} ]")
    io.finish()
    assert apm.connections(dev=dev) == []
    apm.down()
    apm.up()
    with pytest.raises(GuestError):
        fabric.control(f"cut {dev}/9")


@pytest.mark.parametrize(("served", "armed"), [("vhca0", True), ("vhca1", False)])
def test_one_side_only(vm, served, armed):
    """With the module's service at one end only (`devices=`): the active side suffices, as for a stock peer."""
    fabric = Fabric(vm).up()
    apm = Apm(vm, devices=served).up()
    fabric, ulp = storage(vm, "nvme", fabric)
    if not armed:
        Fio(vm, ulp.device, seconds=1).run().check()
        assert {qp.mig for end in qps_by_end(vm) for qp in end} == {"MIGRATED"}
        assert {c["reason"] for c in apm.connections(dev="vhca1")} == {"not-offered"}
        assert {c["reason"] for c in apm.connections(dev="vhca0")} == {"policy-off"}
        return
    wait_armed(vm)
    io = Fio(vm, ulp.device, seconds=1).start()
    wait_ios(vm, ulp.device)
    fabric.cut(*ENDS["target"])
    fabric.wait_migrations(2)
    wait_ios(vm, ulp.device)
    io.finish().check()
    assert ulp.drops() == 0


def test_refused_alternate(vm):
    """A peer that refuses the alternate gets the REQ without it; the ULP notices nothing, no QP stays in REARM."""
    fabric = Fabric(vm).up()
    # Later, by LAP, the peer would be asked for another one.
    apm = Apm(vm, rearm=0).up()
    # The alternate remote GID of a REQ (its last byte, IBA table 106) becomes one that nobody has.
    fabric.control("mad rewrite class=7 attr=0x10 offset=155 value=ee")
    fabric, ulp = storage(vm, "nvme", fabric)
    Fio(vm, ulp.device, seconds=1).run().check()
    stats = apm.statistics()
    assert stats["alternate_refused"] == stats["req_resent"] >= 1
    assert {qp.mig for end in qps_by_end(vm) for qp in end} == {"MIGRATED"}
    assert {c["reason"] for c in apm.connections(side="active")} == {"peer-rejected(18)"}
    fabric.control("mad clear")
    ulp.disconnect()
    ulp.connect()
    wait_armed(vm)


@pytest.mark.vm(modules=("ib-cm-apm",))
def test_bad_parameters(vm):
    """A parameter that makes no sense is refused with a line that says why."""
    vm.modprobe("ib_cm", "rdma_cm")
    for param in ("devices=mlx5_0,,mlx5_1", "drivers=a/b", "req_hold_ms=-1", "req_hold_ms=3600001", "enable=2"):
        assert vm.run(f"insmod /mnt/ib-cm-apm.ko {param}", check=False).rc != 0, param
        name, _, value = param.partition("=")
        vm.wait_dmesg(rf"ib_cm_apm: `{value}' invalid for parameter `{name}'")
    Apm(vm).up().down()


@pytest.mark.vm(modules=("ib-cm-apm",))
def test_rxe_runs_as_before(vm):
    """Over RoCE nothing changes: NVMe-oF over rdma_rxe, reason roce."""
    vm.modprobe("ib_core")
    vm.run("ip link add rails0 type veth peer name rails1 && ip addr add 10.0.1.2/24 dev rails0")
    vm.run("ip link set lo up && ip link set rails0 up && ip link set rails1 up")
    vm.run("modprobe rdma_rxe && rdma link add rxe0 type rxe netdev rails0")
    vm.wait_file("/sys/class/infiniband/rxe0/ports/1/state", "ACTIVE")
    apm = Apm(vm).up()
    nvme = Nvme(vm, source="10.0.1.2").up()
    Fio(vm, nvme.device, seconds=2).run().check()
    seen = apm.connections()
    assert seen and {c["reason"] for c in seen} == {"roce"}
    nvme.disconnect()
    wait_no_qps(vm, "rxe0")
    apm.down()
