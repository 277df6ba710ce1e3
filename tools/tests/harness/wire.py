# SPDX-License-Identifier: GPL-2.0-only
"""Messages of the connection manager as the fabric has seen them, and forged ones."""

import struct
import time
from dataclasses import dataclass, replace
from pathlib import Path

from .fabric import DEBUGFS, fields
from .tier import room

REQ, MRA, REJ, REP, RTU, DREQ, DREP, LAP, APR = 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1A
HEADER = 24
MAGIC = b"ib_cmapm"
NOTICE, OWN, DEAD_STANDBY, PORT_BACK = 1, 2, 3, 4


@dataclass(frozen=True)
class Message:
    """One MAD of the CM. `port`: the one it left by, as ("vhca0", 1); `lost`: a rule of the fabric has taken it."""

    number: int
    port: tuple
    dlid: int
    lost: bool
    mad: bytes

    @property
    def attribute(self):
        return int.from_bytes(self.mad[16:18])

    @property
    def tid(self):
        return int.from_bytes(self.mad[8:16])

    @property
    def body(self):
        return self.mad[HEADER:]

    @property
    def ids(self):
        """The communication ids: the sender's, the receiver's (0 in a REQ)."""
        local, remote = struct.unpack(">II", self.body[:8])
        return local, 0 if self.attribute == REQ else remote

    @property
    def status(self):
        """Of an APR."""
        return self.body[9]

    @property
    def is_plain_lap(self):
        """A LAP without a mark of ours."""
        return self.attribute == LAP and self.body[64:72] != MAGIC


@dataclass(frozen=True)
class End:
    """One end of a connection: communication id and QP number."""

    comm_id: int
    qpn: int


@dataclass(frozen=True)
class Connection:
    """As REQ and REP tell."""

    active: End
    passive: End


@dataclass(frozen=True)
class Lap:
    """What a LAP says; `ids` are (the sender's, the receiver's). Ports are the sender's and the receiver's."""

    ids: tuple
    qpn: int
    lids: tuple
    gids: tuple
    sl: int = 0
    rate: int = 3
    hop_limit: int = 0
    ack_timeout: int = 16
    mark: bytes = b""

    def pack(self, tid):
        """The MAD."""
        path = struct.pack(">HH", *self.lids) + b"".join(bytes.fromhex(gid.replace(":", "")) for gid in self.gids)
        # Flow label 0; traffic class, hop limit, rate; SL and "subnet local"; the ACK timeout.
        path += bytes(3) + bytes([0, self.hop_limit, self.rate, self.sl << 4 | 8, self.ack_timeout << 3])
        body = struct.pack(">III", *self.ids, 0) + struct.pack(">I", self.qpn << 8 | 20 << 3) + bytes(4) + path
        mad = struct.pack(">BBBBIQHHI", 1, 7, 2, 3, 0, tid, LAP, 0, 0) + body + self.mark
        return mad.ljust(256, b"\0")


def marked(kind, version=1):
    """Private data of a LAP of the module under test."""
    return MAGIC + bytes([version, kind])


class Wire:
    """Has the fabric keep the latest 128 messages of the CM. Make one before the connections it is to know."""

    def __init__(self, fabric):
        self.fabric, self.vm = fabric, fabric.vm
        self.tid = 0x1000
        fabric.control("mad log class=7")
        self.vm.write("/run/inject.py", (Path(__file__).parent / "inject.py").read_text())

    def messages(self, *attributes):
        """Those there are, the earliest first."""
        found = []
        for line in self.vm.read(f"{DEBUGFS}/mads").splitlines():
            got = fields(line)
            dev, _, port = got["from"].partition("/")
            mad = bytes.fromhex(got["mad"])
            message = Message(int(got["n"]), (dev, int(port)), int(got["dlid"]), got["lost"] == "1", mad)
            if not attributes or message.attribute in attributes:
                found.append(message)
        return found

    def wait(self, wanted, timeout=60):
        """Wait until `wanted`, called with the messages there are, gives something. Returns that."""
        end = time.monotonic() + room(timeout)
        while not (got := wanted(messages := self.messages())):
            seen = [(m.number, m.port, hex(m.attribute), m.lost) for m in messages[-20:]]
            assert time.monotonic() < end, f"not seen on the wire; the last: {seen}"
            time.sleep(0.2)
        return got

    def connections(self):
        """The connections whose REQ and REP are still there."""
        requests = {m.ids[0]: m for m in self.messages(REQ)}
        found = {}
        for rep in self.messages(REP):
            local, remote = rep.ids
            if request := requests.get(remote):
                active = End(remote, int.from_bytes(request.body[32:35]))
                found[remote] = Connection(active, End(local, int.from_bytes(rep.body[12:15])))
        return list(found.values())

    # --- forgery ----------------------------------------------------------------------------------------------

    def path(self, sender, receiver, **other):
        """LIDs and GIDs of a path between two ports, as a LAP wants them."""
        ends = (sender, receiver)
        return {
            "lids": tuple(self.fabric.lid(*end) for end in ends),
            "gids": tuple(self.fabric.gid(*end) for end in ends),
        } | other

    def lap(self, sender, receiver, **other):
        """A LAP from one End of a connection to the other; `other` are fields of Lap."""
        return Lap(ids=(sender.comm_id, receiver.comm_id), qpn=receiver.qpn, **other)

    def send(self, *laps):
        """Send LAPs, given as (LAP, port, port to send it to), one close upon the other. Returns the low half of their
        transaction id, which is the same for all.
        """
        self.tid += 1
        jobs = [f"{by[0]} {by[1]} {self.fabric.lid(*to)} {lap.pack(self.tid).hex()}" for lap, by, to in laps]
        self.vm.run("python3 /run/inject.py " + " ".join(jobs))
        return self.tid

    def answers(self, tid):
        """APRs to what send() has sent."""
        return [m for m in self.messages(APR) if m.tid & 0xFFFFFFFF == tid]

    def ask(self, lap, by, to):
        """Send a LAP; the status of its APR, whose other fields are as they should be."""
        tid = self.send((lap, by, to))
        apr = self.wait(lambda ms: next((m for m in ms if m.attribute == APR and m.tid & 0xFFFFFFFF == tid), None))
        assert apr.ids == lap.ids[::-1], apr
        assert (apr.port, apr.dlid) == (to, self.fabric.lid(*by)), "an APR goes back to where its LAP came from"
        return apr.status


__all__ = ["APR", "DREQ", "LAP", "NOTICE", "REP", "REQ", "RTU", "Connection", "End", "Wire", "marked", "replace"]
