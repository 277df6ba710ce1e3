# SPDX-License-Identifier: GPL-2.0-only
"""What the demos share: a clock, a line for each step, and where the harness lies: import this before it."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "tools" / "tests"))

RESULTS = TOP / "build" / "demo"
START = time.monotonic()


def say(text):
    print(f"[{time.monotonic() - START:5.1f} s] {text}", flush=True)


@dataclass(frozen=True)
class Run:
    """One guest's run. Times are seconds since the first completion."""

    kernel: str
    completions: tuple
    cut: float
    join: float
    figures: dict


def wait_until(vm, moment):
    """Let the guest's clock reach `moment` (CLOCK_MONOTONIC)."""
    while (left := moment - vm.clock()[0]) > 0:
        time.sleep(min(left, 0.5))
