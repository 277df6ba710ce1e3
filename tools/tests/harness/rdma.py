# SPDX-License-Identifier: GPL-2.0-only
"""What the RDMA core itself shows about QPs (rdma(8)), independent of fabric and module under test."""

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Qp:
    """A line of `rdma resource show qp`. `mig` is MIGRATED, REARM or ARMED; empty where the device has no RC APM."""

    dev: str
    port: int
    qpn: int
    type: str
    state: str
    mig: str
    rqpn: int
    comm: str


def rdma_qps(vm, dev=None, type="RC"):
    """The kernel's QPs as the RDMA core reports them, RC ones unless said otherwise (None: all)."""
    qps = []
    for entry in json.loads(vm.out("rdma -j resource show qp") or "[]"):
        qp = Qp(
            dev=entry["ifname"],
            port=entry.get("port", 0),
            qpn=entry["lqpn"],
            type=entry["type"],
            state=entry["state"],
            mig=entry.get("path-mig-state", ""),
            rqpn=entry.get("rqpn", 0),
            comm=entry.get("comm", ""),
        )
        if (dev is None or qp.dev == dev) and (type is None or qp.type == type):
            qps.append(qp)
    return qps


def connected_qps(vm, comm=None):
    """RC QPs in RTS, those of CM test helpers and the like sorted out by `comm` (the name rdma(8) shows)."""
    return [qp for qp in rdma_qps(vm) if qp.state == "RTS" and (comm is None or comm in qp.comm)]
