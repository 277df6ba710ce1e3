#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""`make demo`: an iSER disk under verified I/O loses its cable, without and with ib_cm_apm.

The same script runs in two fresh guests. Results: a table, build/demo/result.json and build/demo/pause.png.
"""

import json
import sys

import picture
from stage import RESULTS, Run, say, wait_until

from harness import Apm, Fabric, Fio, GuestError, Ipoib, Iser, Vm, VmDied, rdma_qps

# The script, in seconds of I/O. After the join the initiator without the module needs some time to log in again.
CUT_AT, JOIN_AT, RUN = 5, 25, 45
VICTIM = ("vhca0", 1)
SUBNET_TIMEOUT = 12

# open-iscsi's timers. The replacement timeout is its default, and longer than the cable is out: the commands that the
# lost session leaves behind wait for the next one instead of failing, so that the run without the module ends. A login
# into the dead path is given up after five seconds, not fifteen, so that one tried just before the join does not add
# to the pause of the run without the module.
TIMERS = {
    "node.session.timeo.replacement_timeout": 120,
    "node.conn[0].timeo.login_timeout": 5,
    "node.conn[0].timeo.noop_out_interval": 5,
    "node.conn[0].timeo.noop_out_timeout": 5,
}


def play(with_module):
    """The script, in a fresh guest."""
    name = "with" if with_module else "without"
    say(f"--- {name} ib_cm_apm: a fresh guest")
    with Vm(RESULTS / name) as vm:
        say(f"Linux {vm.kernel}; software fabric: two 2-port HCAs, two switches; OpenSM")
        fabric = Fabric(vm, subnet_timeout=SUBNET_TIMEOUT).up()
        if with_module:
            Apm(vm).up()
            say("module ib_cm_apm loaded")
        Ipoib(fabric).up()
        iser = Iser(vm, timers=TIMERS).up()
        path = {qp.mig for qp in rdma_qps(vm) if qp.state == "RTS"}
        say(f"iSER disk {iser.device}; QPs are {' and '.join(sorted(path))}")

        io = Fio(vm, iser.device, seconds=RUN, rate="4m").start()
        begun = io.started
        say("verified I/O is running")
        wait_until(vm, begun + CUT_AT)
        cut = vm.clock()[0]
        fabric.cut(*VICTIM)
        say("the cable of the initiator's port 1 is out")
        if with_module:
            moved = fabric.wait_migrations(2)
            say(f"path migrated at both ends ({moved['by_exhaustion']} by retries, {moved['by_peer']} by the peer)")
        else:
            vm.wait_dmesg("detected conn error")
            say("the session is lost, open-iscsi tries to log in again")
        wait_until(vm, begun + JOIN_AT)
        join = vm.clock()[0]
        fabric.join(*VICTIM)
        say("the cable is back")
        report = io.finish()
        drops = iser.drops()
        figures = {
            "io_errors": report.errors,
            "max_pause_ms": round(report.max_pause_s * 1000),
            "session_drops": drops,
            "path_migrations": fabric.migrations()["total"],
            "bytes_verified": report.bytes_verified,
            "data_verified": report.rc == 0 and report.errors == 0 and report.bytes_verified > 0,
        }
        findings = vm.findings()
        if findings:
            raise GuestError("the guest's kernel complained:\n" + "\n".join(map(str, findings)))
        say(
            f"I/O has ended: {figures['io_errors']} errors, longest pause {figures['max_pause_ms']} ms,"
            f" {drops} session drops"
        )
        zero = report.started
        return Run(vm.kernel, tuple(t - zero for t in report.completions), cut - zero, join - zero, figures)


def table(runs):
    rows = [
        ("I/O errors", "io_errors", "{}"),
        ("longest pause", "max_pause_ms", "{} ms"),
        ("sessions lost", "session_drops", "{}"),
        ("path migrations (counted by the fabric)", "path_migrations", "{}"),
        ("bytes verified", "bytes_verified", "{:,}"),
        ("data verified", "data_verified", "{}"),
    ]
    lines = [f"{'':40} {'without module':>16} {'with module':>16}"]
    for title, key, form in rows:
        cells = [
            form.format({True: "yes", False: "no"}.get(v, v) if isinstance(v, bool) else v)
            for v in (run.figures[key] for run in runs)
        ]
        lines.append(f"{title:40} {cells[0]:>16} {cells[1]:>16}")
    return "\n".join(lines)


def main():
    say("open-iscsi's timers: " + ", ".join(f"{key} = {value} s" for key, value in TIMERS.items()))
    say(
        f"script: I/O for {RUN} s, cable out at {CUT_AT} s, back at {JOIN_AT} s; OpenSM subnet_timeout {SUBNET_TIMEOUT}"
    )
    try:
        runs = [play(False), play(True)]
    except (GuestError, VmDied) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    without, with_module = runs
    result = {
        "kernel": with_module.kernel,
        "ulp": "iser",
        "without_module": without.figures,
        "with_module": with_module.figures,
    }
    (RESULTS / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    titles = ("without ib_cm_apm", "with ib_cm_apm")
    panels = [
        picture.Panel(f"{title}: {told(run)}", run, with_module)
        for title, run, with_module in zip(titles, runs, (False, True), strict=True)
    ]
    picture.draw(
        RESULTS / "pause.png",
        panels,
        "The initiator's cable is pulled and put back 20 s later",
        "seconds of verified I/O on an iSER disk",
    )
    print(f"\n{table(runs)}\n")
    say("build/demo/result.json and build/demo/pause.png are written")
    return verdict(without.figures, with_module.figures)


def told(run):
    """A run's figures for its panel's title."""
    errors, drops = run.figures["io_errors"], run.figures["session_drops"]
    pause = picture.duration(run.figures["max_pause_ms"] / 1000)
    return (
        f"longest pause {pause}, {drops} session{'' if drops == 1 else 's'} lost, "
        f"{errors} I/O error{'' if errors == 1 else 's'}"
    )


def verdict(without, with_module):
    """The demo shows what it is meant to show, or says what it did not."""
    wrong = []
    if with_module["io_errors"] or with_module["session_drops"] or not with_module["data_verified"]:
        wrong.append("the run with the module did not go through undisturbed")
    if not with_module["path_migrations"]:
        wrong.append("no path has migrated")
    if not without["session_drops"]:
        wrong.append("the run without the module lost no session")
    if without["max_pause_ms"] < 20 * with_module["max_pause_ms"]:
        wrong.append("the pause without the module is not 20 times as long")
    for text in wrong:
        print(f"demo: {text}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
