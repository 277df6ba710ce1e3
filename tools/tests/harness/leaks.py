#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs in the guest: prints what kmemleak finds unreferenced, one report after another, an empty line between them.

A stale pointer (in a register, on the stack of a sleeping kernel thread, in a freed page) hides a leak from one scan,
and a pointer on its way somewhere makes one up: so the stacks of fork's children are stirred, kmemleak's age limit of
5 s is let pass, and only what the last scan still reports counts. The slab allocator's arrays keep stale pointers, too,
to some dozens of objects of each size: of a few lost objects possibly none is found, of many most are.
"""

import os
import sys
import time

KMEMLEAK = "/sys/kernel/debug/kmemleak"
SCANS = 3
CHILDREN = 60
# kmemleak reports nothing younger than 5 s.
AGE_S = 6


def stir():
    children = []
    for _ in range(CHILDREN):
        pid = os.fork()
        if pid == 0:
            os.getpid()
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)


def main():
    for _ in range(SCANS):
        stir()
        time.sleep(AGE_S)
        with open(KMEMLEAK, "w") as file:
            file.write("scan")
    with open(KMEMLEAK) as file:
        reports = file.read()
    sys.stdout.write(reports.replace("\nunreferenced object", "\n\nunreferenced object"))


if __name__ == "__main__":
    main()
