# SPDX-License-Identifier: GPL-2.0-only
"""Hardware virtualization where it works, QEMU's own translation where it does not.

/dev/kvm may be there and not work; only a guest that boots proves it.
"""

import functools
import os
import subprocess
from pathlib import Path

from .tier import GUEST

# An emulated CPU that announces quick byte moves makes the kernel's memcpy() move single bytes: I/O at a third of the
# speed.
TCG = ("-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm")
KVM = ("-accel", "kvm", "-cpu", "host")


def boots_with_kvm():
    try:
        os.close(os.open("/dev/kvm", os.O_RDWR))
    except OSError:
        return False
    # Without its disks the guest's init says so and powers off: enough to show that the kernel runs.
    probe = [
        "qemu-system-x86_64",
        *KVM,
        *("-M", "q35", "-m", "512", "-nic", "none", "-display", "none", "-no-reboot", "-serial", "stdio"),
        *("-kernel", str(GUEST / "vmlinuz"), "-initrd", str(GUEST / "initramfs")),
        *("-append", "console=ttyS0 quiet panic=-1"),
    ]
    try:
        done = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, timeout=15, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"guest: " in done.stdout


@functools.cache
def kvm_works():
    """Does it, on this machine? The answer is kept beside the guest until the machine is booted again."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    known = GUEST / "kvm-works"
    try:
        asked, answer = known.read_text().split()
        if asked == boot:
            return answer == "yes"
    except (OSError, ValueError):
        pass
    works = boots_with_kvm()
    new = GUEST / f"kvm-works.{os.getpid()}"
    new.write_text(f"{boot} {'yes' if works else 'no'}\n")
    new.rename(known)
    return works


def qemu_args():
    return KVM if kvm_works() else TCG
