# SPDX-License-Identifier: GPL-2.0-only
"""The dmesg gate: what must not stand in a guest kernel's log."""

import re
from dataclasses import dataclass, field

# Name of the finding and what gives it away. Each is a line that the kernel prints only when something is wrong.
PATTERNS = [
    ("KFENCE", r"BUG: KFENCE: "),
    ("KASAN", r"BUG: KASAN: "),
    ("UBSAN", r"UBSAN: "),
    ("panic", r"Kernel panic - not syncing|rust_kernel: panicked at"),
    ("oops", r"\bOops: |general protection fault|unable to handle (kernel|page fault)"),
    ("refcount", r"refcount_t: "),
    ("GID leak", r"GID entry ref leak"),
    ("hung task", r"blocked for more than \d+ seconds|blocked in I/O wait"),
    ("lockup", r"(soft|hard) lockup|detected stalls|self-detected stall"),
    (
        "lockdep",
        r"possible (circular|recursive) locking|inconsistent lock state|suspicious RCU usage|held lock freed"
        r"|possible irq lock inversion|lock held when returning to user space",
    ),
    ("BUG", r"\bBUG: |kernel BUG at|scheduling while atomic|sleeping function called from invalid"),
    ("corruption", r"list_(add|del) corruption|Slab corruption|Object already free|Poison overwritten"),
    ("WARNING", r"\bWARNING: "),
    ("leak", r"suspected memory leaks|unreferenced object|still has \d+ objects|Objects remaining"),
    ("trace", r"Call Trace:"),
]

PREFIX = re.compile(r"^\[ *\d+\.\d+\] ")


@dataclass
class Finding:
    """One complaint of the kernel: its kind, and the lines around it."""

    kind: str
    lines: list = field(default_factory=list)

    def __str__(self):
        return f"{self.kind}: " + "\n    ".join(self.lines[:40])


def search(regex, line):
    return re.search(regex, line)


def parse_kmsg(text):
    """Turn records of /dev/kmsg into lines as dmesg prints them. Continuation lines (KEY=value) are dropped."""
    lines = []
    for record in text.splitlines():
        head, separator, message = record.partition(";")
        fields = head.split(",")
        if not separator or record.startswith(" ") or len(fields) < 3 or not fields[2].isdigit():
            continue
        lines.append(f"[{int(fields[2]) / 1e6:12.6f}] {message}")
    return lines


def read_log(kmsg, console):
    """The kernel's log out of the stream file; what only the console has (the end of a panic) comes last."""
    lines = parse_kmsg(kmsg.read_text(errors="replace"))
    known = {PREFIX.sub("", line) for line in lines}
    for line in console.read_bytes().decode(errors="replace").replace("\r", "").splitlines():
        if PREFIX.match(line) and PREFIX.sub("", line) not in known:
            lines.append(line)
    return lines


def scan(lines):
    """Findings in lines of a kernel log. A `Call Trace` belongs to the finding right before it."""
    findings = []
    last_line = -1000
    for number, line in enumerate(lines):
        kind = next((kind for kind, regex in PATTERNS if re.search(regex, line)), None)
        if kind is None:
            continue
        near = number - last_line < 60
        last_line = number
        if findings and near and (kind in ("trace", findings[-1].kind) or "Modules linked in" in line):
            continue
        findings.append(Finding(kind, lines[number : number + 40]))
    return findings
