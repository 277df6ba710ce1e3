# SPDX-License-Identifier: GPL-2.0-only
"""The dmesg gate must object to what it is there for: a module plants it."""

import pytest


@pytest.mark.vm(modules=("splat",))
@pytest.mark.gate_must_find("WARNING")
def test_gate_sees_warning(vm):
    """A WARN."""
    vm.insmod("splat", plant="warn")


@pytest.mark.stock
@pytest.mark.vm(modules=("splat",))
@pytest.mark.gate_must_find("KFENCE")
def test_gate_sees_kfence(vm):
    """A read after free, caught by KFENCE's sampling."""
    vm.insmod("splat", plant="use-after-free")


@pytest.mark.vm(modules=("splat",))
@pytest.mark.gate_must_find("panic")
def test_gate_sees_panic(vm):
    """A panic, which ends the machine before it could be asked anything."""
    vm.spawn("insmod /mnt/splat.ko plant=panic")
    vm.await_end()
