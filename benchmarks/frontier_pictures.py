"""The frontier of a model as a picture: compiled totals across, overhead up; ours as steps, policies as points."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.frontier import OPTIMAL, WITHOUT

_OURS, _THEIRS = "#c2610c", "#4a5560"
_PLAIN = {"svg.fonttype": "none", "svg.hashsalt": "jaxckpt", "font.size": 8.5}
"""Text stays text, and the same data makes the same file."""
_GIB = 2**30
_SHORT = {
    "nothing_saveable": "nothing",
    "dots_saveable": "dots",
    "dots_with_no_batch_dims_saveable": "dots, no batch",
    "save_only_these_names": "names",
}
"""What stands beside the points."""


def draw(data: Mapping[str, Any], path: Path) -> None:
    """Writes the picture of one model's file.

    Args:
      data: The file's content.
      path: Of the SVG.
    """
    with mpl.rc_context(_PLAIN):
        figure = Figure(figsize=(5.6, 3.2), layout="constrained")
        axes = figure.subplots()
        by_hand = {name: each for name, each in data["by_hand"].items() if "total_bytes" in each}
        without_s = by_hand[WITHOUT]["step_s"] if WITHOUT in by_hand else None
        if without_s is not None:
            _draw(axes, data, by_hand, without_s)
        axes.set_title(data["made_for"]["model"])
        axes.set_xlabel("compiled total, GiB")
        axes.set_ylabel("estimated time above no remat, %")
        figure.savefig(path, metadata={"Date": None})


def _draw(axes: Axes, data: Mapping[str, Any], by_hand: Mapping[str, Any], without_s: float) -> None:
    plans = [each for each in data.get("plans", {}).get(OPTIMAL, {}).values() if "total_bytes" in each]
    ours = sorted(_place(each, without_s) for each in plans)
    if ours:
        end = by_hand[WITHOUT]["total_bytes"] / _GIB
        steps = [*ours, (end, min(0.0, ours[-1][1]))]
        axes.step(*zip(*steps, strict=True), where="post", color=_OURS, linewidth=1.2)
        axes.plot(*zip(*ours, strict=True), "o", color=_OURS, markersize=4, label="jaxckpt")
    for name, each in by_hand.items():
        x, y = _place(each, without_s)
        axes.plot([x], [y], "s", color=_THEIRS, markersize=4)
        axes.annotate(_SHORT.get(name, name), (x, y), xytext=(5, 4), textcoords="offset points", color=_THEIRS)
    axes.margins(x=0.12, y=0.12)
    axes.spines[["top", "right"]].set_visible(False)


def _place(made: Mapping[str, Any], without_s: float) -> tuple[float, float]:
    return made["total_bytes"] / _GIB, 100 * (made["step_s"] / without_s - 1)
