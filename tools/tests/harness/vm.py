# SPDX-License-Identifier: GPL-2.0-only
"""A test guest: boots it, runs things in it, keeps what its kernel said."""

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from . import gate, snapshot, stock
from .machine import PAYLOAD_BYTES, Machine, MachineError, write_payload
from .tier import DEBUG, MODULES, room

HERE = Path(__file__).resolve().parent
LEAKS = HERE / "leaks.py"

# How long the slowest machine that is to be served may take, in seconds. A hang costs this much; nothing is asserted
# about time by means of it. What waits takes these and any other times through room(), which knows slow kernels.
DEFAULT_S = 60


class VmDied(Exception):
    """The guest's machine ended (or never came up); the text holds the console's end."""


class GuestError(Exception):
    """Something that the guest was asked to do failed."""


@dataclass(frozen=True)
class Result:
    """How a command in the guest ended. `rc` is -1 after a timeout."""

    cmd: str
    rc: int
    out: str
    err: str
    timeout: bool = False

    def check(self):
        """Raise GuestError unless the command succeeded; return itself."""
        if self.rc != 0:
            how = "timed out" if self.timeout else f"ended with {self.rc}"
            raise GuestError(f"`{self.cmd}` {how}\n{self.out[-2000:]}{self.err[-2000:]}")
        return self


class Job:
    """A background command in the guest, from Vm.spawn()."""

    def __init__(self, vm, cmd, handle):
        self.vm, self.cmd, self.handle = vm, cmd, handle

    def running(self):
        return self.vm.call("wait", handle=self.handle, timeout=0)["rc"] is None

    def wait(self, timeout=DEFAULT_S):
        """Await its end; GuestError when it has not ended after `timeout` seconds."""
        timeout = room(timeout)
        got = self.vm.call("wait", handle=self.handle, timeout=timeout, _extra=timeout)
        if got["rc"] is None:
            raise GuestError(f"`{self.cmd}` still runs after {timeout} s\n{got['out'][-2000:]}{got['err'][-2000:]}")
        return Result(self.cmd, got["rc"], got["out"], got["err"])

    def output(self):
        """What it has written to stdout so far."""
        return self.vm.call("wait", handle=self.handle, timeout=0)["out"]

    def kill(self, sig=signal.SIGKILL):
        self.vm.call("kill", handle=self.handle, sig=int(sig))


class Vm:
    """One guest with a fresh root. Use as a context manager, or call close().

    `workdir` receives console.log, kmsg.log (everything the kernel logged) and qemu.log. `modules` are names of
    modules made by `make modules`, or paths of .ko files; they lie in /mnt in the guest. `files` maps names in /mnt to
    paths or to content (bytes). `find_leaks` (debug kernel only) turns kmemleak on, and findings() asks it.
    """

    def __init__(
        self, workdir, modules=("vfabric", "ib-cm-apm"), files=None, memory_mb=2048, cpus=2, args="", find_leaks=False
    ):
        self.workdir = Path(workdir)
        self.workdir.mkdir(parents=True, exist_ok=True)
        self.tmp = Path(tempfile.mkdtemp(prefix="vm-"))
        self.console = self.workdir / "console.log"
        self.kmsg = self.workdir / "kmsg.log"
        self.pending = {}
        self.pending_lock = threading.Lock()
        self.send_lock = threading.Lock()
        self.next_id = 0
        self.dead = None
        self.closed = False
        self.expected_end = False
        self.kernel = None
        self.find_leaks = find_leaks
        self.hello = queue.Queue()
        self.sock = None
        self.machine = None
        try:
            self._boot(modules, files or {}, memory_mb, cpus, f"{args} kmemleak=on" if find_leaks else args)
        except BaseException:
            self.close()
            raise

    # --- boot and end -----------------------------------------------------------------------------------------

    def _boot(self, modules, files, memory_mb, cpus, args):
        payload = self.tmp / "payload.tar"
        content = dict(snapshot.BASE)
        if self.find_leaks:
            content[LEAKS.name] = LEAKS
        for module in modules:
            path = Path(module)
            if path.suffix != ".ko":
                path = MODULES / f"{module}.ko"
            if not path.exists():
                raise GuestError(f"module {path} is missing: `make modules` builds it")
            content[path.name] = path
        write_payload(payload, content | files)
        options = memory_mb, cpus, args
        fits = payload.stat().st_size <= PAYLOAD_BYTES
        if saved := snapshot.find(*options) if fits else None:
            os.truncate(payload, PAYLOAD_BYTES)
            try:
                return self._start(Machine(self.workdir, self.tmp, payload, options, saved.drive, saved), saved)
            except (GuestError, MachineError, OSError, VmDied) as error:
                why = str(error).splitlines()[0]
                saved.discard(why)
                snapshot.say(why)
                self._end_machine()
                self.dead = None
                self.hello = queue.Queue()
        return self._start(Machine(self.workdir, self.tmp, payload, options))

    def _start(self, machine, saved=None):
        """Have the machine boot, or go on from a snapshot, until the agent answers."""
        self.machine = machine
        try:
            self.sock = self.machine.connect()
        except MachineError as why:
            self._bury(str(why))
            raise VmDied(self.dead) from None
        self.receiver = threading.Thread(target=self._receive, daemon=True)
        self.receiver.start()
        if saved:
            saved.load(self.machine)
            self.kernel = self.call("renew", now=time.time(), entropy=os.urandom(64).hex())
            return
        try:
            self.kernel = self.hello.get(timeout=room(snapshot.BOOT_S))
        except queue.Empty:
            self._bury(f"the guest did not come up within {room(snapshot.BOOT_S)} s")
        if self.kernel is None:
            raise VmDied(self.dead)

    def _bury(self, why):
        """Note that the machine is gone, and tell everybody who waits for an answer."""
        if self.dead is None:
            tail = self.console.read_bytes().decode(errors="replace").replace("\r", "")[-3000:]
            self.dead = f"{why}; end of the console:\n{tail}"
        with self.pending_lock:
            waiting, self.pending = self.pending, {}
        for box in waiting.values():
            box.put({"died": True})
        self.hello.put(None)

    def _receive(self):
        rest = b""
        with contextlib.suppress(OSError):
            while data := self.sock.recv(1 << 16):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    message = json.loads(line)
                    if "hello" in message:
                        self.hello.put(message["hello"])
                        continue
                    with self.pending_lock:
                        box = self.pending.pop(message["id"], None)
                    if box:
                        box.put(message)
        if not self.closed:
            self._bury("the guest's machine ended")

    def close(self):
        """End the machine. The logs stay in `workdir`."""
        if self.closed:
            return
        self.closed = True
        self._end_machine()
        shutil.rmtree(self.tmp, ignore_errors=True)

    def _end_machine(self):
        if self.machine:
            self.machine.end()
        if self.sock:
            self.receiver.join(timeout=DEFAULT_S)
            self.sock.close()
            self.sock = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def await_end(self, timeout=DEFAULT_S):
        """Await the end of the machine by itself (a planted panic)."""
        self.machine.proc.wait(timeout=room(timeout))

    # --- requests ---------------------------------------------------------------------------------------------

    def call(self, op, _extra=0, **args):
        """Send one request to the agent and return its result. `_extra`: seconds the operation itself may take."""
        box = queue.Queue()
        with self.pending_lock:
            if self.dead is not None or self.closed:
                raise VmDied(self.dead or "the machine was closed")
            self.next_id += 1
            ident = self.next_id
            self.pending[ident] = box
        line = json.dumps({"id": ident, "op": op, **args}) + "\n"
        try:
            with self.send_lock:
                self.sock.sendall(line.encode())
        except OSError:
            self._bury("the guest's machine ended")
        try:
            answer = box.get(timeout=room(DEFAULT_S) + _extra)
        except queue.Empty:
            raise GuestError(f"the guest did not answer ({op} {args})") from None
        if "died" in answer:
            raise VmDied(self.dead)
        if "error" in answer:
            raise GuestError(f"{op} {args}: {answer['error']}")
        return answer["ok"]

    def run(self, cmd, timeout=DEFAULT_S, stdin="", check=True):
        """Run a shell command to its end. GuestError when it fails, unless `check` is False."""
        timeout = room(timeout)
        got = self.call("run", cmd=cmd, timeout=timeout, stdin=stdin, _extra=timeout)
        result = Result(cmd, **got)
        return result.check() if check else result

    def out(self, cmd, timeout=DEFAULT_S):
        """Standard output of a command that must succeed, without the last newline."""
        return self.run(cmd, timeout).out.rstrip("\n")

    def spawn(self, cmd):
        """Start a command in the background."""
        return Job(self, cmd, self.call("spawn", cmd=cmd))

    def read(self, path):
        return self.call("read", path=str(path))

    def write(self, path, data):
        """Write to a file with one write call; GuestError with the errno's text when the kernel refuses it."""
        self.call("write", path=str(path), data=str(data))

    def glob(self, pattern):
        return self.call("glob", pattern=pattern)

    def clock(self):
        """CLOCK_MONOTONIC and CLOCK_REALTIME of the guest, in seconds."""
        return tuple(self.call("clock"))

    def wait_file(self, path, regex, timeout=DEFAULT_S):
        """Wait until the content of a file matches (re.M, search). Returns the content."""
        timeout = room(timeout)
        got = self.call("until_file", path=str(path), regex=regex, timeout=timeout, _extra=timeout)
        if "missed" in got:
            raise GuestError(f"{path} did not match {regex!r} within {timeout} s, but is:\n{got['missed'][-3000:]}")
        return got["content"]

    def wait_run(self, cmd, timeout=DEFAULT_S):
        """Wait until a command succeeds (it is repeated every 50 ms). Returns its Result."""
        timeout = room(timeout)
        got = self.call("until_run", cmd=cmd, timeout=timeout, _extra=timeout)
        if "missed" in got:
            last = got["missed"]
            raise GuestError(f"`{cmd}` did not succeed within {timeout} s\n{last['out'][-2000:]}{last['err'][-2000:]}")
        return Result(cmd, **got["result"])

    def modprobe(self, *names, **params):
        """Load modules; parameters go to the last of them."""
        for name in names[:-1]:
            self.run(f"modprobe {name}")
        self.run(f"modprobe {names[-1]} " + " ".join(f"{k}={v}" for k, v in params.items()))

    def insmod(self, name, **params):
        """Load a module that came with the VM (file name without .ko). Values are passed literally."""
        quoted = " ".join("'" + f'{k}="{v}"' + "'" for k, v in params.items())
        self.run(f"insmod /mnt/{name}.ko {quoted}")

    def rmmod(self, name, timeout=DEFAULT_S):
        self.run(f"rmmod {name}", timeout=timeout)

    # --- the kernel's log -------------------------------------------------------------------------------------

    def dmesg(self):
        """Everything the kernel has logged so far, as text lines. Works after the machine has died, too."""
        if self.dead is None and not self.closed:
            self._flush_log()
        return gate.read_log(self.kmsg, self.console)

    def _flush_log(self):
        """Wait until what the kernel had logged before this call has reached our file."""
        mark = f"harness: log mark {self.next_id} {time.monotonic_ns()}"
        with contextlib.suppress(GuestError, VmDied):
            self.write("/dev/kmsg", f"<6>{mark}\n")
            end = time.monotonic() + room(10)
            while mark.encode() not in self.kmsg.read_bytes() and time.monotonic() < end:
                time.sleep(0.02)

    def findings(self):
        """What the dmesg gate objects to, as a list of gate.Finding."""
        leaks = self._leaks() if self.find_leaks else []
        log, allowed = stock.without_known(self.dmesg()) if DEBUG else (self.dmesg(), ())
        found = gate.scan(log) + leaks
        # A report about stock code (lockdep-NAME.txt) ends lockdep, too.
        if DEBUG and not any(name.startswith("lockdep-") for name in allowed):
            found += self._lockdep_off()
        if self.dead is not None and not self.expected_end and not found:
            found.append(gate.Finding("machine ended", [self.dead]))
        return found

    def _lockdep_off(self):
        """Lockdep ends itself after its first report, and when one of its tables is full."""
        with contextlib.suppress(GuestError, VmDied):
            stats = self.read("/proc/lockdep_stats")
            if not re.search(r"debug_locks: +1", stats):
                return [gate.Finding("lockdep off", stats.splitlines()[-5:])]
        return []

    def _leaks(self):
        """What kmemleak calls unreferenced, one Finding an object."""
        with contextlib.suppress(VmDied):
            report = self.run(f"python3 /mnt/{LEAKS.name}", timeout=120).out
            return [gate.Finding("kmemleak", text.splitlines()) for text in report.split("\n\n") if text.strip()]
        return []

    def wait_dmesg(self, regex, timeout=DEFAULT_S):
        """Wait until a line of the kernel's log matches. Returns the match."""
        timeout = room(timeout)
        end = time.monotonic() + timeout
        while True:
            for line in self.dmesg():
                if match := gate.search(regex, line):
                    return match
            if time.monotonic() > end:
                tail = "\n".join(self.dmesg()[-20:])
                raise GuestError(f"no line of the kernel's log matched {regex!r} within {timeout} s; its end:\n{tail}")
            time.sleep(0.05)
