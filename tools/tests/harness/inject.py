# SPDX-License-Identifier: GPL-2.0-only
"""Runs in the guest: sends MADs to QP 1 of a LID, from any HCA port, by way of ib_umad.

usage: inject.py DEVICE PORT DLID HEX [DEVICE PORT DLID HEX ...]

The kernel puts its own number into the upper half of the transaction id (include/uapi/rdma/ib_user_mad.h).
"""

import fcntl
import os
import struct
import sys
import time
from pathlib import Path

ENABLE_PKEY = 0x1B03  # _IO(0x1b, 3)
REGISTER_AGENT = 0xC01C1B01  # _IOWR(0x1b, 1, struct ib_user_mad_reg_req): 28 bytes
QP1_QKEY = 0x80010000


def open_port(device, port):
    """File descriptor of the ib_umad device of an HCA port."""
    for umad in Path("/sys/class/infiniband_mad").glob("umad*"):
        if (umad / "ibdev").read_text().strip() == device and (umad / "port").read_text().strip() == port:
            break
    else:
        sys.exit(f"no ib_umad device for {device}/{port}")
    node = Path("/dev/infiniband") / umad.name
    if not node.exists():
        major, minor = map(int, (umad / "dev").read_text().split(":"))
        node.parent.mkdir(exist_ok=True)
        os.mknod(node, 0o20600, os.makedev(major, minor))
    return os.open(node, os.O_RDWR)


def register(fd):
    """An agent that sends only. Returns its id."""
    request = bytearray(struct.pack("=I16sBBB3sB1x", 0, bytes(16), 1, 0, 0, bytes(3), 0))
    fcntl.ioctl(fd, REGISTER_AGENT, request)
    return struct.unpack_from("=I", request)[0]


def send(fd, agent, dlid, mad):
    # struct ib_user_mad_hdr: id, status, timeout_ms, retries, length; QP, Q_Key and LID in network order; SL, path
    # bits, no GRH; P_Key index 0.
    header = struct.pack("=5I", agent, 0, 0, 0, 0) + struct.pack(">IIH", 1, QP1_QKEY, dlid) + bytes(34)
    os.write(fd, header + mad)
    # One of the same transaction id must not follow before this one is on its way.
    time.sleep(0.02)


def main():
    words = sys.argv[1:]
    jobs = list(zip(words[::4], words[1::4], words[2::4], words[3::4], strict=True))
    ports = {}
    for device, port, _, _ in jobs:
        if (device, port) not in ports:
            fd = open_port(device, port)
            fcntl.ioctl(fd, ENABLE_PKEY)
            ports[device, port] = fd, register(fd)
    for device, port, dlid, mad in jobs:
        send(*ports[device, port], int(dlid), bytes.fromhex(mad))
    # Closing ends what has not been sent yet.
    time.sleep(0.1)


if __name__ == "__main__":
    main()
