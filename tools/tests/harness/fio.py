# SPDX-License-Identifier: GPL-2.0-only
"""Verified I/O in the guest, by fio."""

import itertools
import json
import signal
import time
from dataclasses import dataclass

from . import ulp

# Runtime that fio is given; it is stopped long before.
LONG_S = 3600
# fio's exit status after SIGINT.
STOPPED = 128


@dataclass(frozen=True)
class Report:
    """What a run of fio came to.

    `errors` counts failed I/Os and verification errors, `max_pause_s` is the longest time between two completions (the
    start and the end of the run count as completions). `started` and `completions` are times of the guest's
    CLOCK_MONOTONIC in seconds (see Vm.clock), `latencies` how many seconds each of those I/Os took.
    """

    rc: int
    errors: int
    ios: int
    bytes_written: int
    bytes_verified: int
    max_pause_s: float
    completions: tuple
    latencies: tuple
    started: float
    stderr: str

    def check(self):
        assert self.rc == 0 and self.errors == 0, f"fio: rc {self.rc}, {self.errors} errors\n{self.stderr[-2000:]}"
        assert self.bytes_verified > 0, "fio verified nothing"
        return self


class Fio:
    """Writes blocks with a crc32c, reads them back and compares, over and over for `seconds` at the least.

    I/O that was started goes on until finish() is called: a slow machine does not run out of it.

    Offsets are `size` at the start of `device`. `rate` limits it (fio's notation, "4m"), so that logs stay small.
    """

    number = 0

    def __init__(self, vm, device, seconds=20, size="16m", bs="4k", depth=8, rate=None, options=""):
        Fio.number += 1
        self.vm = vm
        self.device = device
        self.base = f"/run/fio{Fio.number}"
        self.seconds = seconds
        self.cmd = (
            # One process, which one signal stops.
            f"fio --thread --name=io --filename={device} --direct=1 --ioengine=libaio --iodepth={depth} --bs={bs}"
            f" --size={size}"
            f" --rw=randwrite --verify=crc32c --verify_backlog=64 --verify_fatal=0 --serialize_overlap=1"
            f" --verify_state_save=0 --continue_on_error=all --time_based --runtime={LONG_S}"
            f" --random_generator=tausworthe64"
            f" --output-format=json --output={self.base}.json --write_lat_log={self.base} --log_avg_msec=0"
            # Times of CLOCK_MONOTONIC, so that they can be set beside what happened in the fabric.
            f" --log_alternate_epoch=1 --log_alternate_epoch_clock_id=1"
        )
        if rate:
            self.cmd += f" --rate={rate},{rate}"
        self.cmd += f" {options}"
        self.job = None
        self.started = None

    def start(self):
        """Start in the background; returns itself once the disk has completed some I/Os."""
        before = ulp.disk_ios(self.vm, self.device)
        self.job = self.vm.spawn("exec " + self.cmd)
        while self.running() and ulp.disk_ios(self.vm, self.device) < before + 16:
            time.sleep(0.05)
        self.started = self.vm.clock()[0]
        return self

    def running(self):
        return self.job.running()

    def finish(self, timeout=120):
        """Let `seconds` go by, stop, and read what it came to."""
        while self.running() and (left := self.started + self.seconds - self.vm.clock()[0]) > 0:
            time.sleep(min(left, 0.2))
        if self.running():
            self.job.kill(signal.SIGINT)
        return self.report(self.job.wait(timeout))

    def run(self, timeout=120):
        return self.start().finish(timeout)

    def report(self, done):
        text = self.vm.read(f"{self.base}.json")
        job = json.loads(text[text.index("{") :])["jobs"][0]
        done_ios = []
        for line in self.vm.read(f"{self.base}_clat.1.log").splitlines():
            milliseconds, nanoseconds = line.split(",")[:2]
            done_ios.append((int(milliseconds) / 1e3, int(nanoseconds) / 1e9))
        done_ios.sort()
        ends = [end for end, _ in done_ios]
        # The job begins some time after the command does; its first I/O is close enough.
        started = ends[0] if ends else self.started
        marks = [started, *ends, max(started + job["job_runtime"] / 1000, ends[-1] if ends else started)]
        return Report(
            rc=0 if done.rc == STOPPED else done.rc,
            errors=job["total_err"] + (1 if job["error"] and not job["total_err"] else 0),
            ios=job["read"]["total_ios"] + job["write"]["total_ios"],
            bytes_written=job["write"]["io_bytes"],
            bytes_verified=job["read"]["io_bytes"],
            max_pause_s=max(b - a for a, b in itertools.pairwise(marks)),
            completions=tuple(ends),
            latencies=tuple(latency for _, latency in done_ios),
            started=started,
            stderr=done.err + done.out,
        )
