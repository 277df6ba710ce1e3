# SPDX-License-Identifier: GPL-2.0-only
"""The fabric without our module, in the manner of the upstream tests of the storage ULPs: verified I/O while cables go
and come at random. The ULP's own recovery has to bring the disk through.

Upstream's SRP tests never look at the SCSI disk itself, but at dm-multipath over it, and so does this one: SRP fails
I/O at once, fast_io_fail_tmo or not, if it has no cable while it reconnects a session that it takes for a running one.
It does: a session that the SCSI error handler has restored (for a target that gave up says nothing, and commands time
out) is reconnected once more a second later. See srp_reconnect_rport(). NVMe-oF keeps its requests while the controller
reconnects, and is used directly.
"""

import os
import random

import pytest

from harness import Fabric, Fio, Ipoib, Multipath, Nvme
from harness.tier import room
from scenarios.common import ENDS, storage, wait_ios

pytestmark = pytest.mark.vm(modules=("vfabric",))

SECONDS = int(room(60 if os.environ.get("LONG") else 20))
SEED = int(os.environ.get("SEED", "1"))
# How often a queue pair has given up so far, or an initiator that is without one has tried in vain.
GIVEN_UP = "dmesg | grep -cE 'retries exhausted|[Rr]econnect attempt'"


@pytest.mark.parametrize("name", ["srp", "nvme"])
def test_random_cuts(vm, name):
    """Every cut ends in I/O going on again, no I/O fails, and all that is read back is what was written."""
    rng = random.Random(SEED)
    if name == "srp":
        fabric, ulp = storage(vm, name)
        ulp.hurry()
        multipath = Multipath(vm, ulp.device).up()
        disk = multipath.device
    else:
        fabric = Fabric(vm).up()
        Ipoib(fabric).up()
        # One second between attempts to reconnect.
        ulp = Nvme(vm).serve().connect("-c 1")
        multipath = None
        disk = ulp.device
    io = Fio(vm, disk, seconds=SECONDS, rate="4m").start()
    end = vm.clock()[0] + SECONDS
    cuts = noticed = 0

    def going_on(more):
        """I/O goes on, or its time was up first."""
        wait_ios(vm, disk, more, unless="! pidof fio >/dev/null", timeout=120)

    going_on(50)
    while vm.clock()[0] < end - 3:
        dev, port = ENDS[rng.choice(tuple(ENDS))]
        before = ulp.drops()
        vm.run(f"{GIVEN_UP} >/run/before", check=False)
        fabric.cut(dev, port)
        cuts += 1
        # Some cables come back before anybody can have noticed, others when somebody has.
        if rng.random() < 0.7:
            vm.wait_run(f"[ $({GIVEN_UP}) -gt $(cat /run/before) ] || ! pidof fio", timeout=120)
        fabric.join(dev, port)
        fabric.wait_state(dev, port, "ACTIVE")
        going_on(rng.randrange(20, 200))
        noticed += ulp.drops() > before
    io.finish(timeout=SECONDS + 180).check()
    assert cuts >= 2 and noticed >= 1, f"{cuts} cuts, {noticed} noticed"
    assert fabric.migrations()["total"] == 0
    Fio(vm, disk, seconds=1).run().check()
    if multipath:
        multipath.down()
    ulp.disconnect()
