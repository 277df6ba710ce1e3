# SPDX-License-Identifier: GPL-2.0-only
"""The guest itself."""

import os

import pytest


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
