# SPDX-License-Identifier: GPL-2.0-only
"""ib_cm looks the GID of an alternate up on all HCAs of the host; the QP must not get one of another HCA."""

from harness import Apm, Fabric, Fio, Srp
from harness.rdma import connected_qps

# In a REQ (IBA table 106): the GID of the port that the alternate path leads to.
ALTERNATE_REMOTE_GID = 140


def test_alternate_on_another_hca_is_kept_from_the_qp(vm):
    """A REQ for vhca1 whose alternate names a port of vhca2: connected, without it, and said so at both ends."""
    fabric = Fabric(vm).up()
    apm = Apm(vm, rearm=0).up()
    foreign = fabric.gid("vhca2", 1).replace(":", "")
    fabric.control(f"mad rewrite class=7 attr=0x10 offset={ALTERNATE_REMOTE_GID} value={foreign}")
    disk = Srp(vm).up()
    Fio(vm, disk.device, seconds=1).run().check()
    assert {qp.mig for qp in connected_qps(vm)} == {"MIGRATED"}
    assert all(qp["alt_port"] == 0 for qp in fabric.qps())
    assert {c["reason"] for c in apm.connections(side="passive")} == {"alternate-on-other-hca"}
    assert {c["reason"] for c in apm.connections(side="active")} == {"peer-rejected(2)"}
    # No REJ, no second REQ: the connection was accepted as it came.
    assert apm.statistics()["alternate_refused"] == 0

    fabric.control("mad clear")
    disk.disconnect()
    disk.connect()
    Fio(vm, disk.device, seconds=1).run().check()
    assert {qp.mig for qp in connected_qps(vm)} == {"ARMED"}
    assert disk.drops() == 0
