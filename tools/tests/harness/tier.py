# SPDX-License-Identifier: GPL-2.0-only
"""On which kernel the scenarios run: the stock one, or the debug kernel (TIER=debug, set by scripts/run-tests).

GUEST is the folder with kernel and root, PATIENCE a factor for every wait: the debug kernel is slow.
"""

import os
from pathlib import Path

TOP = Path(__file__).resolve().parents[3]
DEBUG = os.environ.get("TIER") == "debug"
GUEST = Path(os.environ.get("GUEST", "/guest"))
MODULES = TOP / "build" / ("modules-debug" if DEBUG else "modules")
RESULTS = TOP / "build" / ("tests-debug" if DEBUG else "tests")
PATIENCE = float(os.environ.get("PATIENCE", "1"))


def room(seconds):
    """How long something that takes at most `seconds` on the stock kernel may take here."""
    return seconds * PATIENCE


def lifetime(exponent):
    """A subnet_timeout for scenarios that load the machine: as given on the stock kernel, eight times as long here.

    Wherever a peer is late only because it has no CPU, an HCA must not conclude that the path is dead.
    """
    return exponent + 3 if DEBUG else exponent
