# SPDX-License-Identifier: GPL-2.0-only
"""Harness of the scenarios: a guest, the fabric in it, the ULPs on it. See tools/tests/README.md."""

from .apm import Apm
from .fabric import Fabric
from .fio import Fio
from .ipoib import Ipoib
from .iser import Iser
from .multipath import Multipath
from .nvme import Nvme
from .rdma import rdma_qps
from .srp import Srp
from .testulp import TestUlp
from .vm import GuestError, Vm, VmDied

__all__ = [
    "Apm",
    "Fabric",
    "Fio",
    "GuestError",
    "Ipoib",
    "Iser",
    "Multipath",
    "Nvme",
    "Srp",
    "TestUlp",
    "Vm",
    "VmDied",
    "rdma_qps",
]
