# SPDX-License-Identifier: GPL-2.0-only
"""dm-multipath over a disk of a ULP: a path that has failed costs time, not I/O.

SRP hands errors up while a session is down: after fast_io_fail_tmo, and sometimes at once (test_random_cuts.py says
when). That is what multipath is for, and upstream's tests of SRP (blktests, srp/*) do all their I/O on it, with
queue_if_no_path.
"""

NAME = "multipath"

# What multipathd would do: look at a failed path twice a second, and use it again once it can be read from. A disk that
# the error handler took offline after the session had come back stays so until somebody says otherwise (srp/014, too).
CHECKER = """\
while sleep 0.5; do
    ! grep -qx offline {sysfs}/device/state || echo running >{sysfs}/device/state
    dmsetup status {name} | grep -q ' {number} F ' || continue
    ! dd if={disk} of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null ||
        dmsetup message {name} 0 reinstate_path {number}
done
"""


class Multipath:
    """`device` is the disk to use instead of the ULP's. It has one path."""

    def __init__(self, vm, disk):
        self.vm, self.disk = vm, disk
        self.device = None
        self.checker = None

    def up(self):
        vm = self.vm
        sysfs = "/sys/block/" + self.disk.removeprefix("/dev/")
        vm.modprobe("dm_multipath", "dm_round_robin")
        number = vm.read(f"{sysfs}/dev").strip()
        size = vm.read(f"{sysfs}/size").strip()
        table = f"0 {size} multipath 1 queue_if_no_path 0 1 1 round-robin 0 1 1 {number} 1000"
        vm.run(f"dmsetup create --noudevsync {NAME} --table '{table}'")
        self.device = "/dev/" + vm.out(f"dmsetup info -c --noheadings -o blkdevname {NAME}")
        self.checker = vm.spawn(CHECKER.format(sysfs=sysfs, name=NAME, number=number, disk=self.disk))
        return self

    def down(self):
        self.checker.kill()
        self.checker.wait()
        self.vm.run(f"dmsetup remove --noudevsync {NAME}")
        self.device = None
