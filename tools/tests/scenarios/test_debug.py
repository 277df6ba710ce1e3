# SPDX-License-Identifier: GPL-2.0-only
"""What only the debug kernel can show. It must object to what it is there for: a module plants it."""

import json

import pytest

from harness import Apm, Fabric, Fio, Ipoib, Iser, Nvme, Srp, gate, stock
from harness.vm import HERE
from scenarios.common import ENDS, storage, wait_armed, wait_ios, wait_no_qps

pytestmark = pytest.mark.debug
splat = pytest.mark.vm(modules=("splat", "splat_rust"))


@pytest.mark.vm(modules=())
def test_debug_kernel(vm):
    """It is the debug kernel, and none of its checks has been turned off on the way."""
    assert vm.kernel.endswith("-debug")
    config = vm.out("zcat /proc/config.gz").splitlines()
    for option in ("KASAN", "PROVE_LOCKING", "DEBUG_ATOMIC_SLEEP", "DEBUG_KMEMLEAK", "FAILSLAB", "DEBUG_OBJECTS"):
        assert f"CONFIG_{option}=y" in config
    vm.wait_file("/proc/lockdep_stats", r"debug_locks: +1")
    assert vm.glob("/sys/kernel/debug/failslab/probability") and vm.glob("/proc/self/fail-nth")


@splat
@pytest.mark.gate_must_find("KASAN")
def test_gate_sees_kasan(vm):
    """A read after free in C."""
    vm.insmod("splat", plant="kasan")


@splat
@pytest.mark.gate_must_find("KASAN")
def test_gate_sees_kasan_in_rust(vm):
    """The same in Rust."""
    vm.insmod("splat_rust")


@splat
@pytest.mark.gate_must_find("BUG")
def test_gate_sees_sleep_in_atomic_context(vm):
    """A call that may sleep with preemption off."""
    vm.insmod("splat", plant="atomic-sleep")


@splat
@pytest.mark.gate_must_find("lockdep")
def test_gate_sees_lock_inversion(vm):
    """Two locks taken in both orders, though never at the same time."""
    vm.insmod("splat", plant="inversion")


@splat
@pytest.mark.gate_must_find("lockdep off")
def test_gate_sees_lockdep_off(vm):
    """After its first report lockdep is off and sees no more; that alone is a finding."""
    vm.insmod("splat", plant="inversion")


@splat
@pytest.mark.leaks
@pytest.mark.gate_must_find("kmemleak")
def test_gate_sees_leak(vm):
    """Memory that nobody refers to any more."""
    vm.insmod("splat", plant="leak")


REPORT = """\
WARNING: possible circular locking dependency detected
7.3.4-ib-cm-apm-debug Tainted: G           O
rm/318 is trying to acquire lock:
ff11000105b84000 (first){+.+.}-{4:4}, at: one+0x11/0x20 [stock]
CPU: 1 UID: 0 PID: 318 Comm: rm Tainted: G
 ? guessed+0x1/0x2
 taken+0x1a/0x30
"""


def log_of(text):
    return [f"[{number:5}.000001] {line}" for number, line in enumerate(text.splitlines())]


def test_stock_reports_are_allowed_by_full_text_only(tmp_path, monkeypatch):
    """What differs from run to run may differ in a report about stock code, and nothing else may."""
    text = "\n".join(line for line in map(stock.plain, REPORT.splitlines()) if line is not None)
    (tmp_path / "lockdep-example.txt").write_text(f"# Why it is allowed.\n{text}\n")
    monkeypatch.setattr(stock, "SPLATS", tmp_path)
    again = REPORT.replace("318", "77").replace("0x11/", "0x2f/").replace("ff11000105b84000", "ff11000105b84f00")
    before, after = log_of("before"), log_of("after")
    assert stock.without_known(before + log_of(again) + after) == (before + after, {"lockdep-example"})
    for changed in (
        again.replace("(first)", "(second)"),
        again.replace("[stock]", "[ib_cm_apm]"),
        again.replace(" taken", " held"),
        again.replace(" taken+0x1a/0x30\n", ""),
    ):
        log = before + log_of(changed) + after
        assert stock.without_known(log) == (log, set())
        assert gate.scan(log)


@pytest.mark.leaks
def test_nothing_leaks(vm):
    """After connections of all ULPs, a failover, a device removed and all of it taken down no memory is lost."""
    fabric = Fabric(vm).up()
    apm = Apm(vm).up()
    ipoib = Ipoib(fabric).up()
    ulps = [Srp(vm).up(), Nvme(vm).up(), Iser(vm).up()]
    wait_armed(vm)
    io = Fio(vm, ulps[0].device, seconds=8).start()
    wait_ios(vm, ulps[0].device)
    fabric.cut(*ENDS["initiator"])
    fabric.wait_migrations(2)
    io.finish().check()
    fabric.join(*ENDS["initiator"])
    fabric.wait_active()
    for ulp in ulps:
        ulp.disconnect()
    for dev in ("vhca0", "vhca1"):
        wait_no_qps(vm, dev)
    ipoib.down()
    fabric.control("remove vhca1")
    vm.wait_run("[ ! -e /sys/class/infiniband/vhca1 ]")
    apm.down()
    fabric.unload()


@pytest.mark.leaks
@pytest.mark.vm(files={"failnth.py": HERE / "failnth.py"})
def test_failed_allocations_at_load(vm):
    """Whichever allocation of loading the module fails (of every ten one): nothing is lost, it can be loaded later."""
    fabric = Fabric(vm).up()
    got = json.loads(vm.out("python3 /mnt/failnth.py 10 /mnt/ib-cm-apm.ko", timeout=200))
    # More than the module loader itself makes.
    assert got["allocations"] > 50 and got["ends"]["ENOMEM"] > 0
    Apm(vm).up()
    storage(vm, "srp", fabric)
    wait_armed(vm)
