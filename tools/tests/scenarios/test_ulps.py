# SPDX-License-Identifier: GPL-2.0-only
"""The storage ULPs on the fabric without our module: the ground that everything else stands on."""

import pytest

from harness import Fio
from scenarios.common import ENDS, ULPS, qps_by_end, storage, wait_ios

pytestmark = pytest.mark.vm(modules=("vfabric",))


@pytest.mark.parametrize("name", ULPS)
def test_verified_io_and_own_recovery(vm, name):
    """Verified I/O; then a cut, which ends in RETRY_EXC_ERR and in the recovery that the ULP brings along."""
    fabric, ulp = storage(vm, name)
    for bs, depth in (("4k", 8), ("64k", 16)):
        Fio(vm, ulp.device, seconds=2, bs=bs, depth=depth).run().check()
    assert {qp.mig for end in qps_by_end(vm) for qp in end} == {"MIGRATED"}

    if name == "srp":
        # Its requests are acknowledged; that the answers cannot come back it learns from the SCSI layer's timer.
        ulp.hurry()
    io = Fio(vm, ulp.device, seconds=1).start()
    wait_ios(vm, ulp.device)
    fabric.cut(*ENDS["initiator"])
    vm.wait_dmesg("retries exhausted")
    if name != "srp":
        vm.wait_dmesg("transport retry counter exceeded")
    fabric.join(*ENDS["initiator"])
    # The ULP keeps what was under way and sends it again: nothing is lost, it took a while.
    wait_ios(vm, ulp.device)
    io.finish().check()
    assert ulp.drops() >= 1
    assert fabric.migrations()["total"] == 0
    Fio(vm, ulp.device, seconds=1).run().check()
    ulp.disconnect()
