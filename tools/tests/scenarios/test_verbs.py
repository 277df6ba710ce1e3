# SPDX-License-Identifier: GPL-2.0-only
"""What the fabric's HCAs promise to kernel users: keys, protection, queues, completions."""

import re

import pytest

from harness import Fabric


@pytest.mark.vm(modules=("vfabric", "verbs"))
@pytest.mark.parametrize("profile", ["plain", "mlx5"])
def test_verbs(vm, profile):
    """Every named test of tools/tests/verbs passes, whatever kind of HCA the fabric plays."""
    Fabric(vm).up()
    vm.write("/sys/kernel/debug/vfabric/control", f"knob all profile={profile}")
    loaded = vm.run("insmod /mnt/verbs.ko", check=False)
    log = "\n".join(vm.dmesg())
    failed = re.findall(r"verbs: FAIL (\S+)", log)
    why = "\n".join(re.findall(r"verbs: .*", log))
    assert not failed and loaded.rc == 0, f"{failed}\n{why}"
    assert len(set(re.findall(r"verbs: ok (\S+)", log))) >= 30, why


@pytest.mark.stock
@pytest.mark.vm(modules=("vfabric", "verbs"), memory_mb=2048)
def test_thirty_thousand_queue_pairs(vm):
    """30,000 RC queue pairs, connected and used, have room in a guest of 2 GiB."""
    fabric = Fabric(vm).up()
    vm.run("insmod /mnt/verbs.ko pairs=15000", timeout=180)
    made = re.search(r"verbs: (\d+) queue pairs take (\d+) MiB.*", "\n".join(vm.dmesg()))
    print(made[0])
    assert int(made[1]) == 30_000 and int(made[2]) > 0
    assert fabric.qps() == []
