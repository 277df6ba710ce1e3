# SPDX-License-Identifier: GPL-2.0-only
"""Guests that go on from where another one had just come up, rather than boot: under emulation that saves most of it.

A snapshot is a folder in build/snapshots with the machine's state (`memory`), what the guest had written to its root
(`root.qcow2`), and to its logs. It is made once for each kernel, root and size of guest, from a guest that is booted
for it and in which nothing but the agent has run. What makes a guest one of its own it gets from the agent as it goes
on: payload, entropy and the time of day. Whatever fails, the guest is booted.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import struct
import tempfile
import time
import warnings
from pathlib import Path

from . import accel
from .machine import PAYLOAD_BYTES, Machine, MachineError, qemu_command, write_payload
from .tier import GUEST, TOP, room

FOLDER = Path(os.environ.get("SNAPSHOTS", TOP / "build" / "snapshots"))
HERE = Path(__file__).resolve().parent
# What every payload holds, and the code that a snapshot's form depends on.
BASE = {"start": HERE / "start", "agent.py": HERE / "agent.py"}
CODE = [*BASE.values(), HERE / "machine.py", Path(__file__)]

# How long a guest may take to boot, and its state to be written or read; in seconds, see room().
BOOT_S = 90
TRANSFER_S = 120
# Snapshots that nobody has used for so long are removed when one is made, and after a failure none is tried.
UNUSED_S = 2 * 3600
RETRY_S = 600
# Room on the disk beyond what a snapshot can take at most.
SPARE_BYTES = 1 << 30


class Snapshot:
    def __init__(self, folder):
        self.folder = folder
        self.memory = folder / "memory"
        self.root = folder / "root.qcow2"
        # What a guest writes is thrown away at its end.
        self.drive = f"file={self.root},format=qcow2,snapshot=on"

    def load(self, machine):
        """Have a machine that was started for this snapshot go on from it."""
        with machine.qmp() as qmp:
            qmp("migrate-incoming", uri=f"file:{self.memory}")
            await_transfer(qmp)
            qmp("cont")

    def save(self, machine):
        with machine.qmp() as qmp:
            qmp("stop")
            # As fast as the disk takes it.
            qmp("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
            qmp("migrate", uri=f"file:{self.memory}")
            await_transfer(qmp)

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def discard(self, why):
        """Remove it, and have nobody try again for a while."""
        self.remove()
        with contextlib.suppress(OSError):
            self.folder.with_suffix(".failed").write_text(f"{why}\n")

    def failed_lately(self):
        """Why it was discarded, if that is not long ago."""
        try:
            failed = self.folder.with_suffix(".failed")
            return failed.read_text().strip() if time.time() - failed.stat().st_mtime < RETRY_S else None
        except FileNotFoundError:
            return None


def await_transfer(qmp):
    end = time.monotonic() + room(TRANSFER_S)
    while (state := qmp("query-migrate")).get("status") != "completed":
        if state.get("status") in ("failed", "cancelled"):
            raise MachineError(state.get("error-desc", "QEMU gave up"))
        if time.monotonic() > end:
            raise MachineError(f"it takes more than {room(TRANSFER_S)} s")
        time.sleep(0.02)


def write_overlay(path, base):
    """An empty qcow2 image on top of `base` (docs/interop/qcow2.rst of QEMU), for the environment has no qemu-img.

    Clusters of 64 KiB: the header, the table of reference counts, its only block, and the L1 table.
    """
    cluster = 1 << 16
    size = base.stat().st_size
    name = str(base).encode()
    # Each L1 entry covers one cluster full of L2 entries.
    l1_size = -(-size // (cluster * (cluster // 8)))
    formats = struct.pack(">II8sII", 0xE2792ACA, 3, b"raw", 0, 0)
    header = struct.pack(
        *(">4sIQIIQIIQQIIQ", b"QFI\xfb", 2, 72 + len(formats), len(name), 16, size, 0),
        *(l1_size, 3 * cluster, cluster, 1, 0, 0),
    )
    parts = (header + formats + name, struct.pack(">Q", 2 * cluster), struct.pack(">4H", 1, 1, 1, 1), b"")
    path.write_bytes(b"".join(part.ljust(cluster, b"\0") for part in parts))


def say(why):
    """One line, which pytest repeats at its end."""
    warnings.warn(f"a guest is booted, not taken from a snapshot: {why}", stacklevel=2)


def find(*options):
    """The snapshot for guests with these memory_mb, cpus and args, made if need be; None if such a guest must boot."""
    # With hardware virtualization a boot is short, and what the CPU can do differs between machines.
    if accel.kvm_works():
        return None
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        snapshot = Snapshot(FOLDER / key(options))
        with open(snapshot.folder.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if why := snapshot.failed_lately():
                say(why)
                return None
            if not snapshot.folder.exists():
                try:
                    make(snapshot, options)
                except (OSError, MachineError) as error:
                    snapshot.discard(error)
                    raise
            os.utime(snapshot.folder)
            return snapshot
    except (OSError, MachineError) as error:
        say(error)
        return None


def key(options):
    """Names a snapshot after all that it depends on."""
    files = [GUEST / "vmlinuz", GUEST / "initramfs", GUEST / "root.img", GUEST / "modules.img"]
    files.append(Path(shutil.which("qemu-system-x86_64")))
    parts = qemu_command("payload", *options)
    for path in files:
        if path.exists():
            stat = path.stat()
            parts.append(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}")
    parts += [path.read_text() for path in CODE]
    # The guest has measured this machine's clock, and each start of it may find another CPU.
    parts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def await_log(agent, log):
    """Wait until the kernel's log of the boot is in its file, that not every guest has to write it."""
    mark = "harness: log mark of the snapshot"
    request = {"id": 0, "op": "write", "path": "/dev/kmsg", "data": f"<6>{mark}\n"}
    agent.sendall(json.dumps(request).encode() + b"\n")
    agent.recv(4096)
    end = time.monotonic() + room(BOOT_S)
    while mark.encode() not in log.read_bytes():
        if time.monotonic() > end:
            raise MachineError("the guest does not pass on its log")
        time.sleep(0.02)


def make(snapshot, options):
    """Boot a guest, and keep it as it is when its agent answers."""
    for old in FOLDER.iterdir():
        if old.is_dir() and time.time() - old.stat().st_mtime > UNUSED_S:
            Snapshot(old).remove()
    if (free := shutil.disk_usage(FOLDER).free) < (options[0] << 20) + SPARE_BYTES:
        raise MachineError(f"only {free >> 20} MiB of disk are free in {FOLDER}")
    part = Snapshot(snapshot.folder.with_suffix(".part"))
    part.remove()
    part.folder.mkdir()
    with tempfile.TemporaryDirectory(prefix="snapshot-") as tmp, contextlib.ExitStack() as undo:
        undo.callback(part.remove)
        payload = Path(tmp) / "payload.tar"
        write_payload(payload, BASE)
        os.truncate(payload, PAYLOAD_BYTES)
        write_overlay(part.root, GUEST / "root.img")
        machine = Machine(part.folder, Path(tmp), payload, options, root=f"file={part.root},format=qcow2")
        undo.callback(machine.end)
        with machine.connect() as agent:
            agent.settimeout(room(BOOT_S))
            if b"hello" not in agent.recv(4096):
                raise MachineError(f"the guest did not come up: {machine.said()}")
            await_log(agent, part.folder / "kmsg.log")
            part.save(machine)
        machine.end()
        part.folder.rename(snapshot.folder)
        undo.pop_all()
