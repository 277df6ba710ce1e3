# SPDX-License-Identifier: GPL-2.0-only
"""What the storage ULPs have in common."""

RAM_DISKS = 4
RAM_DISK_KB = 65536
CONFIG = "/sys/kernel/config"
TARGET = f"{CONFIG}/target"


def ram_disks(vm):
    """Make the RAM disks that targets serve (/dev/ram0 ...), once."""
    if not vm.glob("/dev/ram0"):
        vm.modprobe("brd", rd_nr=RAM_DISKS, rd_size=RAM_DISK_KB)


def lio_disk(vm, name, disk, index):
    """A LIO block backstore over a RAM disk; returns its configfs folder."""
    ram_disks(vm)
    vm.modprobe("target_core_mod", "target_core_iblock")
    store = f"{TARGET}/core/iblock_{index}/{name}"
    vm.run(f"mkdir -p {store}")
    vm.write(f"{store}/control", f"udev_path={disk}")
    vm.write(f"{store}/enable", "1")
    return store


def scsi_disks(vm):
    """Names of the SCSI disks there are now ("sda" ...)."""
    return {path.rsplit("/", 1)[1] for path in vm.glob("/sys/block/sd*")}


def count_dmesg(vm, *phrases):
    """Lines of the kernel's log that contain one of the phrases."""
    return sum(any(phrase in line for phrase in phrases) for line in vm.dmesg())


def disk_ios(vm, device):
    """I/Os that a disk has completed since it is there."""
    fields = vm.read(f"/sys/block/{device.removeprefix('/dev/')}/stat").split()
    return int(fields[0]) + int(fields[4])


def wait_ios(vm, device, more=50, unless="false", timeout=60):
    """Wait until the disk has completed some more I/Os, or until the shell command `unless` succeeds."""
    disk = device.removeprefix("/dev/")
    goal = disk_ios(vm, device) + more
    vm.wait_run(f"read -r r _ _ _ w _ </sys/block/{disk}/stat; [ $((r + w)) -ge {goal} ] || {unless}", timeout)
