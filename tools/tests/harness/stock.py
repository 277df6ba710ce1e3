# SPDX-License-Identifier: GPL-2.0-only
"""Reports of the debug kernel about stock code, which are none of our business.

Each lies in stock-splats/NAME.txt: comments (`#`) that say what provokes it and why it is not ours, then its whole text
as `plain` leaves it. A report is allowed only if every line of it is the same; one that differs anywhere is a finding.
"""

import re
from pathlib import Path

SPLATS = Path(__file__).resolve().parents[1] / "stock-splats"

# What differs from run to run: time, addresses, offsets, process and processor numbers, the kernel's name and taints.
VARYING = [
    (re.compile(r"^\[ *\d+\.\d+\] "), ""),
    (re.compile(r"\b[0-9a-f]{16}\b"), "ADDRESS"),
    (re.compile(r"\+0x[0-9a-f]+(/0x[0-9a-f]+)?"), ""),
    (re.compile(r"^CPU: .*"), "CPU"),
    (re.compile(r"^Hardware name: .*"), "HARDWARE"),
    (re.compile(r"^\S+ (#\d+ )?(Not tainted|Tainted: .*)$"), "KERNEL"),
    (re.compile(r"^Tainted: .*"), "TAINTED"),
    (re.compile(r"\b([\w:.-]+)/\d+( is |:|$)"), r"\1/PID\2"),
    # Whom an interrupt came upon.
    (re.compile(r"^\S+/\d+ just changed the state of lock:"), "PROCESS just changed the state of lock:"),
    (re.compile(r"^locks held by \S+: (\d+), last CPU#\d+:"), r"locks held by PROCESS: \1, last CPU:"),
]
# Registers at the end of a trace, the bytes around the instruction, and what the unwinder only guesses.
DROPPED = re.compile(r"^(RIP|RSP|RAX|RDX|RBP|R\d\d|Code|CR\d|FS|ORIG_RAX): | \? \w")


def plain(line):
    """A line without what differs from run to run; None for one that has nothing else."""
    for regex, by in VARYING:
        line = regex.sub(by, line)
    return None if DROPPED.search(line) else line.rstrip()


def known():
    """{name: lines} of all reports that are allowed."""
    result = {}
    for path in sorted(SPLATS.glob("*.txt")):
        lines = [line.rstrip() for line in path.read_text().splitlines() if not line.startswith("#")]
        while lines and not lines[0]:
            lines.pop(0)
        assert lines, f"{path} holds no report"
        result[path.stem] = lines
    return result


def match(lines, start, report):
    """If `report` begins at lines[start]: the index after its end; otherwise None."""
    at = start
    for wanted in report:
        while at < len(lines) and plain(lines[at]) is None:
            at += 1
        if at == len(lines) or plain(lines[at]) != wanted:
            return None
        at += 1
    return at


def without_known(lines):
    """(lines without the reports that are allowed, names of those that were there)."""
    reports = known()
    heads = {report[0] for report in reports.values()}
    rest, seen, at = [], set(), 0
    while at < len(lines):
        if plain(lines[at]) in heads:
            for name, report in reports.items():
                if end := match(lines, at, report):
                    seen.add(name)
                    at = end
                    break
            else:
                rest.append(lines[at])
                at += 1
            continue
        rest.append(lines[at])
        at += 1
    return rest, seen
