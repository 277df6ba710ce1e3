# SPDX-License-Identifier: GPL-2.0-only
"""What several scenarios need: storage over the fabric, and what "protected" means."""

from harness import Fabric, Ipoib, Iser, Nvme, Srp
from harness.rdma import connected_qps
from harness.ulp import wait_ios

__all__ = ["ENDS", "ULPS", "qps_by_end", "storage", "use_every_queue", "wait_armed", "wait_ios", "wait_no_qps"]

ULPS = ("iser", "srp", "nvme")
# Port 1 is the one that all connections are made by; ports by the end of the connection they belong to.
ENDS = {"initiator": ("vhca0", 1), "target": ("vhca1", 1)}


def storage(vm, name, fabric=None, **options):
    """Fabric, subnet manager, and a disk of the named ULP on it. Returns (fabric, ulp)."""
    fabric = fabric or Fabric(vm).up()
    if name == "srp":
        return fabric, Srp(vm, **options).up()
    Ipoib(fabric).up()
    return fabric, {"iser": Iser, "nvme": Nvme}[name](vm, **options).up()


def qps_by_end(vm):
    """Connected RC QPs of initiator and target, as the RDMA core shows them."""
    qps = connected_qps(vm)
    ends = [qp for qp in qps if qp.dev == "vhca0"], [qp for qp in qps if qp.dev == "vhca1"]
    assert ends[0] and len(ends[0]) == len(ends[1]), qps
    return ends


def wait_armed(vm):
    """Wait until every connected QP is ARMED, at both ends. Returns the number of connections."""
    vm.wait_run(
        "rdma -j resource show qp >/run/qps && python3 -c '"
        'import json; q = [e for e in json.load(open("/run/qps")) if e["type"] == "RC" and e["state"] == "RTS"];'
        'raise SystemExit(not q or any(e.get("path-mig-state") != "ARMED" for e in q))\''
    )
    return len(qps_by_end(vm)[0])


def wait_no_qps(vm, dev, timeout=60):
    """Wait until a device has no connected RC QP any more."""
    vm.wait_run(f"! rdma resource show qp link {dev} | grep -q 'type RC state RTS'", timeout)


def use_every_queue(vm, device):
    """Read a little from each CPU, so that every I/O queue of the ULP has something to send.

    A connection that is idle when its path dies finds out when it has to send something. SRP's target hears of the end
    of one that never did no more than it would without us: the DREQ goes down the dead path.
    """
    read = f"dd if={device} of=/dev/null bs=4k count=8 iflag=direct"
    vm.run(f"for cpu in $(seq 0 $(($(nproc) - 1))); do taskset -c $cpu {read}; done")
