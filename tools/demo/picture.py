# SPDX-License-Identifier: GPL-2.0-only
"""The demos' picture: I/O completions over time around the cut, one panel a run."""

from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BIN_S = 0.25
# Without and with the module.
COLOURS = ("#b5482a", "#1f6f8b")


class Panel(NamedTuple):
    """One run in the picture."""

    title: str
    run: object
    with_module: bool


def histogram(run, end):
    """Completions per second in bins of BIN_S."""
    counts = [0] * (int(end / BIN_S) + 1)
    for moment in run.completions:
        if 0 <= moment < end:
            counts[int(moment / BIN_S)] += 1
    return [n * BIN_S for n in range(len(counts))], [count / BIN_S for count in counts]


def longest_pause(run):
    """Begin and end of the longest time without a completion."""
    pairs = zip(run.completions, run.completions[1:], strict=False)
    return max(pairs, key=lambda pair: pair[1] - pair[0])


def duration(seconds):
    """A pause in words."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def draw(path, panels, heading, what):
    """Write the picture: a panel for each run, `what` under the common time axis."""
    end = max(panel.run.completions[-1] for panel in panels)
    figure, axes = plt.subplots(len(panels), 1, sharex=True, figsize=(10, 1 + 2.5 * len(panels)), dpi=110)
    for axis, (title, run, with_module) in zip(axes, panels, strict=True):
        times, rates = histogram(run, end)
        axis.fill_between(times, rates, step="post", color=COLOURS[with_module], alpha=0.85, linewidth=0)
        top = max(rates) * 1.35
        axis.set_ylim(0, top)
        for moment, text in ((run.cut, "cable out"), (run.join, "cable back")):
            axis.axvline(moment, color="#333333", linestyle="--", linewidth=1)
            axis.text(moment + end * 0.005, top * 0.94, text, fontsize=9, va="top")
        axis.set_title(title, loc="left", fontsize=11)
        begin, stop = longest_pause(run)
        if stop - begin > 2:
            axis.annotate(
                "", (begin, top * 0.3), (stop, top * 0.3), arrowprops={"arrowstyle": "<->", "color": "#333333"}
            )
            axis.text((begin + stop) / 2, top * 0.34, f"no I/O for {duration(stop - begin)}", ha="center", fontsize=10)
        axis.set_ylabel("I/Os per second")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel(what)
    axes[-1].set_xlim(0, end)
    figure.suptitle(heading, x=0.02, ha="left", fontsize=13)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
