#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""`make demo DEMO=default-timers`: what a dead cable costs when nobody has tuned a timer.

NVMe-oF under verified I/O, OpenSM with its default subnet_timeout 18, the ULP with its default timers. The same script
in four fresh guests: without the module (the ULP reconnects); with it, but the HCA alone decides when to migrate, by
the timers that stock connections have (`proactive=0 timers=0`); with it, the cable at the initiator; with it, the cable
at the target. Results: a table, build/demo/default-timers.json and build/demo/default-timers.png.

NVMe-oF and not iSER, because its keep-alive is one option of `nvme connect`: with its default of 5 s the host gives up
long before the HCA's retries have come to nothing, so the second run has it raised, and it alone.

A pause is the longest time without a completion that the cut falls into, or that begins soon after: what the cut stops,
it stops at once. An emulated machine has pauses of its own whenever the host is busy; the JSON has the longest one of
the whole run, too (`longest_ms`).
"""

import itertools
import json
import sys
from typing import NamedTuple

import picture
from stage import RESULTS, Run, say, wait_until

from harness import Apm, Fabric, Fio, GuestError, Ipoib, Nvme, Vm, VmDied
from harness.ulp import wait_ios

# The script, in seconds of I/O. The cable is out for longer than the HCA's retries take: 8 x 2.1 s and a little.
CUT_AT, JOIN_AT, RUN = 5, 30, 45
SUBNET_TIMEOUT = 18
# In seconds: longer than those retries.
RAISED_KEEP_ALIVE = 120
# Two I/O queues and the admin queue, seen at both ends.
ENDS = 2 * (2 + 1)
# Seconds after the cut in which its pause has begun, if there is one.
SOON = 2
# How many times shorter a commanded migration's pause has to be than that of a reconnect.
SHORTER = 50


class Case(NamedTuple):
    """One run: the module's parameters (None: not loaded), whose cable, the ULP's keep-alive (None: its default)."""

    key: str
    title: str
    params: dict | None
    victim: tuple = ("vhca0", 1)
    keep_alive: int | None = None


CASES = (
    Case("reconnect", "without ib_cm_apm, the ULP reconnects", None),
    Case(
        "hca",
        "ib_cm_apm, the HCA decides (proactive=0 timers=0, keep-alive raised)",
        {"proactive": 0, "timers": 0},
        keep_alive=RAISED_KEEP_ALIVE,
    ),
    Case("forced", "ib_cm_apm, the initiator's cable", {}),
    Case("forced_far_end", "ib_cm_apm, the target's cable", {}, victim=("vhca1", 1)),
)


def pause(report, cut):
    """The pause that a cut makes, as (begin, end): see above."""
    moments = itertools.pairwise((report.started, *report.completions))
    return max(((a, b) for a, b in moments if b > cut and a < cut + SOON), key=lambda pair: pair[1] - pair[0])


def worst_io(report, cut):
    """The longest that an I/O took which was under way at the cut, or begun soon after, in seconds."""
    ios = zip(report.completions, report.latencies, strict=True)
    return max(latency for end, latency in ios if end > cut and end - latency < cut + SOON)


def play(case):
    """The script, in a fresh guest."""
    say(f"--- {case.title}: a fresh guest")
    with Vm(RESULTS / "default-timers" / case.key) as vm:
        fabric = Fabric(vm, subnet_timeout=SUBNET_TIMEOUT).up()
        apm = None if case.params is None else Apm(vm, **case.params).up()
        Ipoib(fabric).up()
        nvme = Nvme(vm, keep_alive=case.keep_alive).up()
        if apm:
            apm.wait_connections(ENDS)
        say(f"Linux {vm.kernel}; NVMe-oF disk {nvme.device}" + ("; its QPs are ARMED" if apm else ""))

        io = Fio(vm, nvme.device, seconds=RUN, rate="1m").start()
        begun = io.started
        wait_until(vm, begun + CUT_AT)
        cut = vm.clock()[0]
        fabric.cut(*case.victim)
        say(f"the cable of {case.victim[0]}'s port {case.victim[1]} is out")
        wait_until(vm, begun + JOIN_AT)
        moved = fabric.migrations()
        join = vm.clock()[0]
        fabric.join(*case.victim)
        say("the cable is back")
        wait_ios(vm, nvme.device)
        report = io.finish()
        begin, end = pause(report, cut)
        figures = {
            "pause_ms": round((end - begin) * 1000),
            "worst_io_ms": round(worst_io(report, cut) * 1000),
            "longest_ms": round(report.max_pause_s * 1000),
            "io_errors": report.errors,
            "reconnects": nvme.drops(),
            "by_command": moved["by_command"],
            "by_exhaustion": moved["by_exhaustion"],
            "verified": report.rc == 0 and report.bytes_verified > 0,
        }
        findings = vm.findings()
        if findings:
            raise GuestError("the guest's kernel complained:\n" + "\n".join(map(str, findings)))
        say(f"pause {figures['pause_ms']} ms, {figures['io_errors']} I/O errors")
        zero = report.started
        return Run(vm.kernel, tuple(t - zero for t in report.completions), cut - zero, join - zero, figures)


def table(runs):
    rows = ("pause_ms", "worst_io_ms", "longest_ms", "io_errors", "reconnects", "by_command", "by_exhaustion")
    titles = (
        "pause, ms",
        "slowest I/O at the cut, ms",
        "longest of the run, ms",
        "I/O errors",
        "controllers lost",
        "migrations by command",
        "migrations by retries",
    )
    lines = [f"{'':28}" + "".join(f"{case.key:>16}" for case in CASES)]
    for key, title in zip(rows, titles, strict=True):
        lines.append(f"{title:28}" + "".join(f"{runs[case.key].figures[key]:>16}" for case in CASES))
    return "\n".join(lines)


def verdict(figures):
    """What the figures do not show that they should."""
    wrong = []
    for key, values in figures.items():
        if values["io_errors"] or not values["verified"]:
            wrong.append(f"{key}: I/O errors, or nothing verified")
        if (key == "reconnect") != (values["reconnects"] > 0):
            wrong.append(f"{key}: {values['reconnects']} controllers lost")
    if figures["hca"]["by_command"] or not figures["hca"]["by_exhaustion"]:
        wrong.append("hca: it was not the HCA's retries that moved it")
    for key in ("forced", "forced_far_end"):
        if not figures[key]["by_command"]:
            wrong.append(f"{key}: nothing was moved by command")
        if figures[key]["pause_ms"] * SHORTER >= figures["reconnect"]["pause_ms"]:
            wrong.append(f"{key}: its pause is not under 1/{SHORTER} of that of a reconnect")
    return wrong


def main():
    say(
        f"script: I/O for {RUN} s, cable out at {CUT_AT} s, back at {JOIN_AT} s; OpenSM subnet_timeout {SUBNET_TIMEOUT}"
        f" (its default), NVMe-oF at its own timers, but for keep-alive {RAISED_KEEP_ALIVE} s in the second run"
    )
    try:
        runs = {case.key: play(case) for case in CASES}
    except (GuestError, VmDied) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    figures = {key: run.figures for key, run in runs.items()}
    result = {
        "kernel": runs["forced"].kernel,
        "ulp": "nvme",
        "subnet_timeout": SUBNET_TIMEOUT,
        "cable_out_s": JOIN_AT - CUT_AT,
    }
    result |= {name: {key: figures[key][name] for key in figures} for name in figures["forced"]}
    (RESULTS / "default-timers.json").write_text(json.dumps(result, indent=2) + "\n")
    panels = [
        picture.Panel(
            f"{case.title}: pause {picture.duration(figures[case.key]['pause_ms'] / 1000)}, "
            f"{figures[case.key]['io_errors']} I/O errors",
            runs[case.key],
            case.params is not None,
        )
        for case in CASES
    ]
    picture.draw(
        RESULTS / "default-timers.png",
        panels,
        f"A cable is out for {JOIN_AT - CUT_AT} s, all timers at their defaults",
        "seconds of verified I/O on an NVMe-oF disk",
    )
    print(f"\n{table(runs)}\n")
    say("build/demo/default-timers.json and build/demo/default-timers.png are written")
    wrong = verdict(figures)
    for text in wrong:
        print(f"demo: {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
