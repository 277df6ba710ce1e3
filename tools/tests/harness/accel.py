# SPDX-License-Identifier: GPL-2.0
"""Hardware virtualization where it works, QEMU's own translation where it does not.

/dev/kvm may be there and not work; only a guest that boots proves it.
"""

import functools
import os
import subprocess
from pathlib import Path

# An emulated CPU that announces quick byte moves makes the kernel's memcpy() move single bytes: I/O at a third of the speed.
TCG = ("-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm")
KVM = ("-accel", "kvm", "-cpu", "host")
GUEST = Path(os.environ.get("GUEST", "/guest"))


@functools.cache
def kvm_works():
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
        done = subprocess.run(probe, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"guest: " in done.stdout


def qemu_args():
    return KVM if kvm_works() else TCG
