# SPDX-License-Identifier: GPL-2.0-only
"""The demo's picture: I/O completions over time around the cut, one panel a run."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BIN_S = 0.25
TITLES = ("without ib_cm_apm", "with ib_cm_apm")
COLOURS = ("#b5482a", "#1f6f8b")


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


def draw(path, runs):
    """Write the picture of the two runs (without, with)."""
    end = max(run.completions[-1] for run in runs)
    figure, axes = plt.subplots(2, 1, sharex=True, figsize=(10, 6), dpi=110)
    for axis, run, title, colour in zip(axes, runs, TITLES, COLOURS, strict=True):
        times, rates = histogram(run, end)
        axis.fill_between(times, rates, step="post", color=colour, alpha=0.85, linewidth=0)
        top = max(rates) * 1.35
        axis.set_ylim(0, top)
        for moment, what in ((run.cut, "cable out"), (run.join, "cable back")):
            axis.axvline(moment, color="#333333", linestyle="--", linewidth=1)
            axis.text(moment + end * 0.005, top * 0.94, what, fontsize=9, va="top")
        begin, stop = longest_pause(run)
        errors, drops = run.figures["io_errors"], run.figures["session_drops"]
        pause = f"{(stop - begin) * 1000:.0f} ms" if stop - begin < 1 else f"{stop - begin:.1f} s"
        axis.set_title(
            f"{title}: longest pause {pause}, {drops} session{'' if drops == 1 else 's'} lost, "
            f"{errors} I/O error{'' if errors == 1 else 's'}",
            loc="left",
            fontsize=11,
        )
        if stop - begin > 2:
            axis.annotate(
                "", (begin, top * 0.3), (stop, top * 0.3), arrowprops={"arrowstyle": "<->", "color": "#333333"}
            )
            axis.text((begin + stop) / 2, top * 0.34, f"no I/O for {pause}", ha="center", fontsize=10)
        axis.set_ylabel("I/Os completed per second")
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("seconds of verified I/O on an iSER disk")
    axes[-1].set_xlim(0, end)
    figure.suptitle("The initiator's cable is pulled and put back 20 s later", x=0.02, ha="left", fontsize=13)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
