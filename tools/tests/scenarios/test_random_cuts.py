# SPDX-License-Identifier: GPL-2.0-only
"""The fabric without our module, in the manner of the upstream tests of the storage ULPs: verified I/O while cables go
and come at random. The ULP's own recovery has to bring the disk through."""

import os
import random

import pytest

from harness import Fabric, Fio, Ipoib, Nvme
from scenarios.common import ENDS, storage, wait_ios

pytestmark = pytest.mark.vm(modules=("vfabric",))

LONG = bool(os.environ.get("LONG"))
SECONDS = 60 if LONG else 20
# SRP's recovery does not always bring a disk through cuts this close together (an initiator and a target that each lost
# the other's DREQ wait for the SCSI layer): that belongs into a run that somebody looks at.
NAMES = ("srp", "nvme") if LONG else ("nvme",)
SEED = int(os.environ.get("SEED", "1"))
# How many queue pairs have given up so far, as the fabric logged it.
GIVEN_UP = "dmesg | grep -c 'retries exhausted'"


@pytest.mark.parametrize("name", NAMES)
def test_random_cuts(vm, name):
    """Every cut ends in I/O going on again, no I/O fails, and all that is read back is what was written."""
    rng = random.Random(SEED)
    if name == "srp":
        fabric, ulp = storage(vm, name)
        ulp.hurry()
    else:
        fabric = Fabric(vm).up()
        Ipoib(fabric).up()
        # One second between attempts to reconnect.
        ulp = Nvme(vm).serve().connect("-c 1")
    io = Fio(vm, ulp.device, seconds=SECONDS, rate="4m").start()
    end = vm.clock()[0] + SECONDS
    cuts = noticed = 0

    def going_on(more):
        """I/O goes on, or its time was up first."""
        wait_ios(vm, ulp.device, more, unless="! pidof fio >/dev/null", timeout=120)

    going_on(50)
    while vm.clock()[0] < end - 3:
        dev, port = ENDS[rng.choice(tuple(ENDS))]
        before = ulp.drops()
        vm.run(f"{GIVEN_UP} >/run/before", check=False)
        fabric.cut(dev, port)
        cuts += 1
        # Some cables come back before anybody can have noticed, others when a queue pair has given up.
        if rng.random() < 0.7:
            vm.wait_run(f"[ $({GIVEN_UP}) -gt $(cat /run/before) ] || ! pidof fio", timeout=120)
        fabric.join(dev, port)
        fabric.wait_state(dev, port, "ACTIVE")
        going_on(rng.randrange(20, 200))
        noticed += ulp.drops() > before
    io.finish(timeout=SECONDS + 180).check()
    assert cuts >= 2 and noticed >= 1, f"{cuts} cuts, {noticed} noticed"
    assert fabric.migrations()["total"] == 0
    Fio(vm, ulp.device, seconds=1).run().check()
    ulp.disconnect()
