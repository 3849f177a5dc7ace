"""Checkmate on the networks of its paper: overhead over budget, by relaxation and by integer programme, and ours.

    python -m benchmarks.checkmate [NETWORK ...] [--draw]

For each network some budgets between the least that any kernel needs and what the step takes without recomputation.
Each budget is kept when it is solved, and not solved again. The table and the picture of docs/strategies.md are made of
what is kept; `--draw` makes them without solving.

Published figures: table 2 (cost of the rounded relaxation over that of the integer programme, geometric mean over
budgets) of Jain et al. 2020 (arXiv:1910.02653). Figure 5 of the paper has overheads by measured costs of a V100, which
are not published as numbers.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.keras_networks import NETWORKS, RATES, constant_bytes, training_graph, training_kernels
from benchmarks.record import RESULTS, keep, read
from benchmarks.tables import ROOT, write
from jaxckpt.solve import OptimalSolver, Problem
from jaxckpt.solve.baselines.checkmate import Kernels, Relaxed, Solved, approximate, relax, schedule, two_phase

PAGE = ROOT / "docs" / "strategies.md"
PICTURE = ROOT / "docs" / "strategies" / "checkmate.svg"
SOLVED = ("VGG16", "VGG19", "U-Net", "MobileNet, fused")
TABLE_2 = {"MobileNet": 1.06, "VGG16": 1.01, "VGG19": 1.00, "U-Net": 1.03, "ResNet50": 1.05}
"""Published: cost of the rounded relaxation over that of the integer programme."""
V100_BYTES = 16 * 10**9
_BUDGETS = 4
_EPSILON, _THRESHOLD, _DRAWS = 0.1, 0.5, 100
"""Of the paper's rounding."""
_INTEGER_KERNELS, _NODES = 60, 1_000
"""Larger networks, and more nodes of branch and bound, take longer than minutes on one core."""
_LINES = {
    "bound": ("#9aa1a9", ":", "", "bound of the relaxation"),
    "integer": ("#2f6fb3", "-", "s", "integer programme"),
    "rounded": ("#3a8f5c", "--", "^", "rounded relaxation"),
    "optimal": ("#c2610c", "-", "o", "jaxckpt, optimal"),
}
_PLAIN = {"svg.fonttype": "none", "svg.hashsalt": "jaxckpt", "font.size": 8}
"""Text stays text, and the same data makes the same file."""

Row = Mapping[str, Any]


def solve_network(name: str) -> Iterator[dict[str, Any]]:
    """One network after each budget that is not kept yet: overheads, with seconds of processor time."""
    network = NETWORKS[name]
    layers = network.layers()
    kernels, constant = training_kernels(layers, network.batch), constant_bytes(layers)
    solver = OptimalSolver(Problem(graph=training_graph(kernels), rates=RATES))
    most_bytes = solver.empty_plan.predicted.temp_bytes
    budgets = [round(each) for each in np.linspace(least_bytes(kernels), most_bytes, _BUDGETS + 1)[:-1]]
    if budgets[0] < V100_BYTES - constant < most_bytes:
        budgets.append(V100_BYTES - constant)
    made = {
        "kernels": len(kernels.cost_s),
        "batch": network.batch,
        "constant_bytes": constant,
        "most_bytes": most_bytes + constant,
    }
    rows = {row["budget_bytes"]: row for row in kept_networks().get(name, {}).get("rows", ())}
    for budget_bytes in budgets:
        total_bytes = budget_bytes + constant
        if total_bytes not in rows:
            rows[total_bytes] = {"budget_bytes": total_bytes, **_solve_budget(kernels, solver, budget_bytes)}
            print(line(name, rows[total_bytes]), flush=True)
            yield {**made, "rows": [rows[each] for each in sorted(rows)]}


def kept_networks() -> dict[str, Any]:
    """What earlier runs have kept, by network."""
    return read("checkmate")["networks"] if (RESULTS / "checkmate-py312.json").exists() else {}


def least_bytes(kernels: Kernels) -> float:
    """The bytes of a kernel's result and all that it reads, of the kernel with most."""
    return float(max(sum(kernels.size_bytes[i] for i in (k, *reads)) for k, reads in enumerate(kernels.reads)))


def _solve_budget(kernels: Kernels, solver: OptimalSolver, budget_bytes: float) -> dict[str, Any]:
    """Each way's overhead above the cost without recomputation, None where it finds nothing within the budget."""
    ideal_s = sum(kernels.cost_s)
    found: dict[str, Any] = {}

    def record(key: str, solve: Callable[[], Solved | Relaxed | None], **facts: Any) -> Solved | Relaxed | None:
        began = time.process_time()
        solved = solve()
        cost_s = None if solved is None else solved.cost_s / ideal_s - 1
        found[key] = {"overhead": cost_s, "seconds": time.process_time() - began, **facts}
        return solved

    record("bound", lambda: relax(kernels, budget_bytes=budget_bytes))
    record("rounded", lambda: approximate(kernels, budget_bytes=budget_bytes))
    relaxed = relax(kernels, budget_bytes=(1 - _EPSILON) * budget_bytes)
    record("half", lambda: _cheapest(kernels, relaxed, budget_bytes, [np.float64(_THRESHOLD)]))
    draws = np.random.default_rng(0).random((_DRAWS, len(kernels.cost_s), len(kernels.cost_s)))
    record("drawn", lambda: _cheapest(kernels, relaxed, budget_bytes, draws))
    if len(kernels.cost_s) <= _INTEGER_KERNELS:
        record("integer", lambda: schedule(kernels, budget_bytes=budget_bytes, node_limit=_NODES))
    began = time.process_time()
    plan = solver.solve(int(budget_bytes)).predicted
    overhead = plan.step_s / ideal_s - 1 if plan.temp_bytes <= budget_bytes else None
    found["optimal"] = {"overhead": overhead, "seconds": time.process_time() - began}
    return found


def _cheapest(
    kernels: Kernels, relaxed: Relaxed | None, budget_bytes: float, thresholds: Sequence[Any] | np.ndarray
) -> Solved | None:
    """The cheapest rounding within a budget, of S above each threshold: a number, or one for each element."""
    if relaxed is None:
        return None
    rounded = (two_phase(kernels, relaxed.kept > threshold) for threshold in thresholds)
    return min(
        (each for each in rounded if each.peak_bytes <= budget_bytes), key=lambda each: each.cost_s, default=None
    )


def ratio(network: Mapping[str, Any], key: str) -> tuple[float, int] | None:
    """Cost of one way over the integer programme's: the geometric mean over budgets with both, and their number."""
    both = [
        (row[key]["overhead"], row["integer"]["overhead"])
        for row in network["rows"]
        if "integer" in row and None not in (row[key]["overhead"], row["integer"]["overhead"])
    ]
    return (geometric_mean((1 + a) / (1 + b) for a, b in both), len(both)) if both else None


def line(name: str, row: Row) -> str:
    """A budget in one line."""
    shown = (f"{key} {_percent(row[key])} ({row[key]['seconds']:.1f} s)" for key in _shown(row))
    return f"{name:18} {row['budget_bytes'] / 1e9:6.2f} GB  {', '.join(shown)}"


def _shown(row: Row) -> list[str]:
    return [key for key in ("bound", "half", "drawn", "rounded", "integer", "optimal") if key in row]


def _percent(found: Row | None) -> str:
    if found is None:
        return ""
    return "none" if found["overhead"] is None else f"{100 * found['overhead']:.2f}%"


def overhead_table(data: Mapping[str, Any]) -> str:
    """A row a budget."""
    lines = [
        "| network, batch, nodes | budget | bound | rounded: paper's, drawn, searched | integer programme"
        " | `optimal` |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, network in data["networks"].items():
        for number, row in enumerate(network["rows"]):
            called = "" if number else f"{name}, {network['batch']}, {network['kernels']}"
            rounded = ", ".join(_percent(row[key]) for key in ("half", "drawn", "rounded"))
            lines.append(
                f"| {called} | {row['budget_bytes'] / 1e9:.1f} GB | {_percent(row['bound'])} | {rounded} |"
                f" {_percent(row.get('integer'))} | {_percent(row['optimal'])} |"
            )
    made = data["made_with"]
    lines += ["", f"scipy {made['versions']['scipy']}, Python {made['python']}, {made['date']}.", ""]
    return "\n".join(lines)


def ratio_table(data: Mapping[str, Any]) -> str:
    """A row a network: our ratios beside the published one."""
    lines = [
        "| network | cost over the integer programme's: paper's rounding here | searched here | `optimal` | published |"
        " longest solve: relaxation, search, integer |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, network in data["networks"].items():
        ratios = " | ".join(_ratio_text(ratio(network, key)) for key in ("half", "rounded", "optimal"))
        longest = (_longest(network, key) for key in ("bound", "rounded", "integer"))
        published = TABLE_2[name.partition(",")[0]]
        lines.append(f"| {name} | {ratios} | {published:.2f} | {', '.join(longest)} |")
    return "\n".join([*lines, ""])


def _ratio_text(found: tuple[float, int] | None) -> str:
    return "" if found is None else f"{found[0]:.3f} ({found[1]} budgets)"


def _longest(network: Mapping[str, Any], key: str) -> str:
    seconds = [row[key]["seconds"] for row in network["rows"] if key in row]
    return f"{max(seconds):.1f} s" if seconds else "-"


def overheads(data: Mapping[str, Any]) -> Figure:
    """A picture for each network: overhead over budget, a line each way; no point where nothing was found."""
    with mpl.rc_context(_PLAIN):
        networks = data["networks"]
        figure = Figure(figsize=(2.5 * len(networks), 2.7), layout="constrained")
        axes = figure.subplots(1, len(networks), squeeze=False)[0]
        for place, (name, network) in zip(axes, networks.items(), strict=True):
            _draw(place, network)
            place.set_title(f"{name}, batch {network['batch']}")
        figure.supylabel("% above no recomputation", fontsize=8)
        figure.supxlabel("budget with parameters and their gradients, GB", fontsize=8)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


def _draw(axes: Axes, network: Mapping[str, Any]) -> None:
    for key, (color, style, marker, label) in _LINES.items():
        rows = [row for row in network["rows"] if key in row and row[key]["overhead"] is not None]
        points = [(row["budget_bytes"] / 1e9, 100 * row[key]["overhead"]) for row in rows]
        points.append((network["most_bytes"] / 1e9, 0.0))
        axes.plot(*zip(*points, strict=True), style, color=color, marker=marker, markersize=3, linewidth=1, label=label)
    axes.spines[["top", "right"]].set_visible(False)


def draw(data: Mapping[str, Any], picture: Path = PICTURE) -> None:
    """Writes the picture and the page's tables."""
    picture.parent.mkdir(exist_ok=True)
    with mpl.rc_context(_PLAIN):
        overheads(data).savefig(picture, metadata={"Date": None})
    write(PAGE, {"checkmate": overhead_table(data), "checkmate ratios": ratio_table(data)})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkmate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(NETWORKS)}; {SOLVED} by default")
    parser.add_argument("--draw", action="store_true", help="only make the table and the picture")
    options = parser.parse_args()
    for name in () if options.draw else options.networks or SOLVED:
        for solved in solve_network(name):
            networks = {**kept_networks(), name: solved}
            keep("checkmate", {"networks": {each: networks[each] for each in NETWORKS if each in networks}})
    draw(read("checkmate"))


if __name__ == "__main__":
    main()
