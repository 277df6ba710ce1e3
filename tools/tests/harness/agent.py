#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs in the guest and carries out what the host asks for over a virtio-serial port.

One JSON object a line in both directions. A request has `id` and `op`; its answer has the same `id` and either `ok`
(the result) or `error` (text). Requests run in threads of their own, so a slow one holds up nobody.
"""

import contextlib
import fcntl
import glob
import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time

POLL_S = 0.05

# ioctls: linux/random.h
RNDADDENTROPY = 0x40085203
RNDRESEEDCRNG = 0x5207


class Agent:
    def __init__(self, port):
        self.fd = os.open(port, os.O_RDWR)
        self.out_lock = threading.Lock()
        self.jobs = {}
        self.job_lock = threading.Lock()
        self.next_job = 1

    def send(self, message):
        data = (json.dumps(message) + "\n").encode()
        with self.out_lock:
            while data:
                data = data[os.write(self.fd, data) :]

    # --- operations ---------------------------------------------------------------------------------------------

    def op_run(self, cmd, timeout, stdin=""):
        """Run a shell command to its end."""
        # A group of its own, so that a timeout ends what the command started as well.
        proc = subprocess.Popen(
            ["/bin/bash", "-c", cmd],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        try:
            out, err = proc.communicate(stdin, timeout=timeout)
            return {"rc": proc.returncode, "out": out, "err": err, "timeout": False}
        except subprocess.TimeoutExpired:
            os.killpg(proc.pid, signal.SIGKILL)
            # Something in state D keeps the pipes open: don't wait for it.
            with contextlib.suppress(subprocess.TimeoutExpired):
                proc.wait(timeout=2)
            return {"rc": -1, "out": "", "err": "", "timeout": True}

    def op_spawn(self, cmd):
        """Start a shell command in the background; its output goes to files."""
        with self.job_lock:
            handle = self.next_job
            self.next_job += 1
        base = f"/run/job{handle}"
        with open(base + ".out", "wb") as out, open(base + ".err", "wb") as err:
            proc = subprocess.Popen(
                ["/bin/bash", "-c", cmd],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.jobs[handle] = proc
        return handle

    def op_wait(self, handle, timeout):
        """Await the end of a background command. `rc` is null if it still runs."""
        proc = self.jobs[handle]
        with contextlib.suppress(subprocess.TimeoutExpired):
            proc.wait(timeout=timeout)
        result = {"rc": proc.poll()}
        for name in ("out", "err"):
            with open(f"/run/job{handle}.{name}", errors="replace") as file:
                result[name] = file.read()
        return result

    def op_kill(self, handle, sig):
        proc = self.jobs[handle]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(proc.pid, sig)

    def op_read(self, path):
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")

    def op_write(self, path, data):
        # One write call, unbuffered: that is how sysfs, configfs and debugfs want it.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            os.write(fd, data.encode())
        finally:
            os.close(fd)

    def op_glob(self, pattern):
        return sorted(glob.glob(pattern))

    def op_until_file(self, path, regex, timeout):
        """Wait until a file's content matches. Returns the content, or what was there last under `missed`."""
        wanted = re.compile(regex, re.M)
        end = time.monotonic() + timeout
        while True:
            try:
                content = self.op_read(path)
            except OSError as error:
                content = f"({error})"
            else:
                if wanted.search(content):
                    return {"content": content}
            if time.monotonic() >= end:
                return {"missed": content}
            time.sleep(POLL_S)

    def op_until_run(self, cmd, timeout):
        """Wait until a command succeeds. Returns its result, or its last one under `missed`."""
        end = time.monotonic() + timeout
        while True:
            result = self.op_run(cmd, max(end - time.monotonic(), 1))
            if result["rc"] == 0:
                return {"result": result}
            if time.monotonic() >= end:
                return {"missed": result}
            time.sleep(POLL_S)

    def op_clock(self):
        """Seconds of CLOCK_MONOTONIC and of CLOCK_REALTIME."""
        return [time.monotonic(), time.time()]

    def op_renew(self, now, entropy):
        """Make a guest that goes on from a snapshot one of its own. Returns the kernel's release, as at the start."""
        # The kernel would ask the CPU for some in a few seconds.
        data = bytes.fromhex(entropy)
        with open("/dev/urandom", "wb") as random:
            fcntl.ioctl(random, RNDADDENTROPY, struct.pack("ii", 8 * len(data), len(data)) + data)
            fcntl.ioctl(random, RNDRESEEDCRNG)
        time.clock_settime(time.CLOCK_REALTIME, now)
        # It is another disk than the kernel has read before, but that was forgotten when its last user closed it.
        subprocess.run(["tar", "-xf", "/dev/vdb", "-C", "/mnt"], check=True)
        return os.uname().release

    # --- service ------------------------------------------------------------------------------------------------

    def serve_one(self, request):
        ident = request.pop("id")
        op = request.pop("op")
        try:
            self.send({"id": ident, "ok": getattr(self, "op_" + op)(**request)})
        except Exception as error:  # whatever it is belongs to the one who asked
            self.send({"id": ident, "error": f"{type(error).__name__}: {error}"})

    def serve(self):
        self.send({"hello": os.uname().release})
        rest = b""
        while True:
            data = os.read(self.fd, 65536)
            if not data:
                # The host is not (or no longer) there.
                time.sleep(POLL_S)
                continue
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if request["op"] == "quit":
                    return
                threading.Thread(target=self.serve_one, args=(request,), daemon=True).start()


def stream_kmsg(port):
    """Copy the kernel's log, as it is written, to a port of its own."""
    with open("/dev/kmsg", "rb", buffering=0) as kmsg, open(port, "wb", buffering=0) as out:
        while True:
            try:
                out.write(kmsg.read(16384))
            except BrokenPipeError:
                # The ring buffer was faster than we are: the next read goes on with what is still there.
                out.write(b"4,0,0,-;(some lines of the kernel log were lost)\n")


if __name__ == "__main__":
    base = glob.glob("/dev/vport*p1")[0][:-1]
    threading.Thread(target=stream_kmsg, args=(base + "2",), daemon=True).start()
    Agent(base + "1").serve()
    sys.exit(0)
