# SPDX-License-Identifier: GPL-2.0-only
"""The emulated machine of a guest: QEMU's command line, its process, the agent's socket and QEMU's own (QMP)."""

import contextlib
import io
import json
import socket
import subprocess
import tarfile
import time
from pathlib import Path

from . import accel
from .tier import DEBUG, GUEST

# What the debug kernel takes more of memory, most of it for KASAN.
DEBUG_MB = 1024

# What is written to the root is thrown away at the end.
ROOT = f"file={GUEST / 'root.img'},format=raw,snapshot=on"
# How large the payload's disk is where a snapshot plays a part: its guest asks once and for all.
PAYLOAD_BYTES = 256 << 20


class MachineError(Exception):
    """QEMU did not start, or does not do as it is told."""


class Machine:
    """QEMU, started, with a guest in it.

    `options` are memory_mb, cpus and args of the Vm. `workdir` receives console.log, kmsg.log and qemu.log. `root`:
    QEMU's options for the root's drive, where it is not the guest's image. `saved`: a Snapshot that load() is told of.
    """

    def __init__(self, workdir, tmp, payload, options, root=None, saved=None):
        self.log = workdir / "qemu.log"
        self.port, self.monitor = tmp / "agent.sock", tmp / "qmp.sock"
        for name in ("console.log", "kmsg.log"):
            (workdir / name).write_bytes((saved.folder / name).read_bytes() if saved else b"")
        command = qemu_command(payload, *options, root) + [
            *("-chardev", f"file,id=console,path={workdir / 'console.log'},append=on", "-serial", "chardev:console"),
            *("-chardev", f"socket,id=agent,path={self.port},server=on,wait=off"),
            *("-device", "virtserialport,chardev=agent,nr=1"),
            *("-chardev", f"file,id=kmsg,path={workdir / 'kmsg.log'},append=on"),
            *("-device", "virtserialport,chardev=kmsg,nr=2"),
            *("-qmp", f"unix:{self.monitor},server=on,wait=off"),
            *(("-incoming", "defer") if saved else ()),
        ]
        for path in (self.port, self.monitor):
            path.unlink(missing_ok=True)
        with open(self.log, "wb") as log:
            # However this process ends, the machine ends with it.
            command = ["setpriv", "--pdeathsig", "KILL", *command]
            self.proc = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def connect(self, path=None):
        """The agent's socket (or the one at `path`), as soon as QEMU has made it."""
        end = time.monotonic() + 20
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(str(path or self.port))
                return sock
            except OSError:
                sock.close()
                if self.proc.poll() is not None or time.monotonic() > end:
                    raise MachineError("QEMU did not start: " + self.said()) from None
            time.sleep(0.02)

    @contextlib.contextmanager
    def qmp(self):
        """A function that has QEMU carry out one of its commands and returns the answer."""
        sock = self.connect(self.monitor)
        sock.settimeout(60)
        with sock, sock.makefile("rw") as stream:

            def execute(command, **arguments):
                try:
                    stream.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
                    stream.flush()
                    while line := stream.readline():
                        answer = json.loads(line)
                        if "error" in answer:
                            raise MachineError(f"{command}: {answer['error']['desc']}")
                        if "return" in answer:
                            return answer["return"]
                except OSError as error:
                    raise MachineError(f"{command}: {error}") from None
                raise MachineError(f"{command}: QEMU ended: {self.said()}")

            execute("qmp_capabilities")
            yield execute

    def said(self):
        return self.log.read_text(errors="replace").strip()

    def end(self):
        if self.proc.poll() is None:
            self.proc.terminate()
            try:
                self.proc.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.proc.kill()
                self.proc.wait()


def write_payload(path, content):
    """Write the tar archive that becomes /mnt in the guest. Values are paths or bytes."""
    with tarfile.open(path, "w") as tar:
        for name, value in content.items():
            data = value if isinstance(value, bytes) else Path(value).read_bytes()
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o755
            tar.addfile(info, io.BytesIO(data))


def qemu_command(payload, memory_mb, cpus, args, root=None):
    """QEMU with the guest's kernel, root and payload; no network."""
    # An oops ends the machine: nothing that it says later can be trusted. A warning does not: the gate finds it.
    # no_timer_check: on a busy host the emulated timer comes too late for the kernel's look at its wiring.
    append = "console=ttyS0 loglevel=5 panic=-1 oops=panic net.ifnames=0 watchdog_thresh=30 no_timer_check"
    if DEBUG:
        memory_mb += DEBUG_MB
        # kmemleak halves the speed. KASAN's reports must not end at the first one. With five page table levels it
        # reports any interrupt that comes while identify_cpu() has forgotten for a moment that there are five.
        append += " kasan_multi_shot no5lvl" + ("" if "kmemleak=" in args else " kmemleak=off")
    else:
        append += " kfence.sample_interval=1"
    drives = []
    if (modules := GUEST / "modules.img").exists():
        drives = ["-drive", f"file={modules},if=virtio,format=raw,readonly=on"]
    return [
        "qemu-system-x86_64",
        *accel.qemu_args(),
        *("-M", "q35", "-m", str(memory_mb), "-smp", str(cpus)),
        *("-nic", "none", "-display", "none", "-no-reboot"),
        *("-kernel", str(GUEST / "vmlinuz"), "-initrd", str(GUEST / "initramfs"), "-append", f"{append} {args}"),
        *("-drive", f"{root or ROOT},if=virtio"),
        *("-drive", f"file={payload},if=virtio,format=raw,readonly=on"),
        *drives,
        *("-device", "virtio-serial-pci"),
    ]
