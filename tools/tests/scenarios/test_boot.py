# SPDX-License-Identifier: GPL-2.0-only
"""The guest itself."""

import os
import shutil
import time

import pytest

from harness import Vm, snapshot


@pytest.mark.stock
@pytest.mark.vm(modules=())
def test_boot(vm):
    """It runs the kernel that the environment was made for, as root, with what the scenarios need."""
    assert vm.kernel == os.environ["KVER"]
    assert vm.out("id -u") == "0"
    vm.run("command -v opensm ibnetdiscover rdma nvme iscsiadm fio")
    assert int(vm.read("/sys/module/kfence/parameters/sample_interval")) == 1


@pytest.mark.vm(modules=())
def test_refusals_are_reported(vm):
    """What fails in the guest fails the scenario, with the reason."""
    with pytest.raises(Exception, match="ended with 3"):
        vm.run("exit 3")
    with pytest.raises(Exception, match="timed out"):
        vm.run("sleep 100", timeout=0.5)
    with pytest.raises(Exception, match="did not match"):
        vm.wait_file("/proc/version", "no such version", timeout=0.2)
    assert vm.run("true").rc == 0


@pytest.fixture
def saved():
    """The snapshot that this tier's guests go on from."""
    found = snapshot.find(2048, 2, "")
    if not found:
        pytest.skip("guests are booted here")
    return found


def test_guests_of_a_snapshot_are_their_own(saved, tmp_path):
    """Each has random numbers, the time of day and a payload of its own, and nothing of the other's."""
    random = []
    for name in ("one", "two"):
        with Vm(tmp_path / name, modules=(), files={name: name.encode()}) as vm:
            random += [vm.read("/proc/sys/kernel/random/boot_id"), vm.out("head -c 16 /dev/urandom | od -t x8")]
            assert vm.out("ls /mnt").split() == sorted([*snapshot.BASE, name])
            assert vm.read(f"/mnt/{name}") == name
            assert vm.out("ls /root") == ""
            vm.write("/root/left", "behind")
            assert abs(vm.clock()[1] - time.time()) < 60
            assert any("Linux version" in line for line in vm.dmesg())
    assert len(set(random)) == len(random)


@pytest.mark.stock
def test_damaged_snapshot(saved, tmp_path, monkeypatch):
    """The guest is booted, and one line says so."""
    damaged = snapshot.Snapshot(tmp_path / "damaged")
    shutil.copytree(saved.folder, damaged.folder)
    os.truncate(damaged.memory, damaged.memory.stat().st_size // 2)
    monkeypatch.setattr(snapshot, "find", lambda *_: damaged)
    with pytest.warns(UserWarning, match="a guest is booted"), Vm(tmp_path, modules=()) as vm:
        assert vm.out("ls /mnt").split() == sorted(snapshot.BASE)
        assert not vm.findings()
    assert not damaged.folder.exists()
    assert damaged.failed_lately()


@pytest.mark.stock
def test_no_room_for_a_snapshot(saved, tmp_path, monkeypatch):
    """Nothing is left of one that cannot be made, and it is not tried for every guest."""
    monkeypatch.setattr(snapshot, "FOLDER", tmp_path)
    monkeypatch.setattr(snapshot, "SPARE_BYTES", 1 << 60)
    with pytest.warns(UserWarning, match="MiB of disk are free"):
        assert snapshot.find(2048, 2, "") is None
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    monkeypatch.setattr(snapshot, "make", None)
    with pytest.warns(UserWarning, match="MiB of disk are free"):
        assert snapshot.find(2048, 2, "") is None
