#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs in the guest (debug kernel): usage: failnth.py STEP MODULE.ko [PARAMETERS]

Loads a module over and over; each time another allocation that the load makes fails (slab or page): the first, then the
one STEP further, and so on. Ends with the first round that had no allocation left to fail, and prints how many there
were and how the rounds ended. The module is not loaded afterwards.
"""

import collections
import ctypes
import errno
import json
import os
import subprocess
import sys

SYS_INIT_MODULE = 175  # x86_64
FAULTS = "/sys/kernel/debug"
MOST = 3000


def prepare():
    """Allocations that may wait fail, too, and no stack trace is logged for each."""
    for attr, values in (
        ("failslab", {"ignore-gfp-wait": "N", "verbose": "0"}),
        ("fail_page_alloc", {"ignore-gfp-wait": "N", "verbose": "0"}),
    ):
        for name, value in values.items():
            with open(f"{FAULTS}/{attr}/{name}", "w") as file:
                file.write(value)


def main():
    step, path, parameters = int(sys.argv[1]), sys.argv[2], " ".join(sys.argv[3:]).encode()
    with open(path, "rb") as file:
        image = file.read()
    name = os.path.basename(path).removesuffix(".ko").replace("-", "_")
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    prepare()
    ends = collections.Counter()
    fail_nth = os.open("/proc/thread-self/fail-nth", os.O_RDWR)
    for nth in range(1, MOST, step):
        os.write(fail_nth, b"%d" % nth)
        failed = syscall(SYS_INIT_MODULE, image, len(image), parameters)
        left = int(os.pread(fail_nth, 16, 0))
        os.write(fail_nth, b"0")
        if failed:
            ends[errno.errorcode[ctypes.get_errno()]] += 1
        else:
            ends["loaded"] += 1
            subprocess.run(["rmmod", name], check=True)
        if left:
            break
    else:
        raise SystemExit(f"more than {MOST} allocations")
    print(json.dumps({"allocations": nth, "ends": ends}))


if __name__ == "__main__":
    main()
