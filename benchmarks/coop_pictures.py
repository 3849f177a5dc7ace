"""What `benchmarks.coop`, `benchmarks.dynamic` and `benchmarks.eager` kept, as docs/dynamic.md shows it.

    python -m benchmarks.coop_pictures

Pictures of the seed's three figures for all eight networks, of a search against the pool's size, and the page's tables.
The notebook draws its pictures with the functions of this file.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf, nan
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.record import read
from benchmarks.tables import ROOT, write
from jaxckpt._units import format_bytes
from jaxckpt.dynamic.compare.evictor_comparison import OPTIMUM

PAGE = ROOT / "docs" / "dynamic.md"
PICTURES = ROOT / "docs" / "dynamic"
RULES = ("dtr", "dte", "coop")
_STYLE = {
    "dtr": ("#2f6fb3", "-", "o"),
    "dte": ("#3a8f5c", "-", "s"),
    "coop": ("#c2610c", "-", "^"),
    "coop_by_byte": ("#c2610c", ":", "v"),
    OPTIMUM: ("#5a5f66", "--", "D"),
}
_NAMES = {"coop_by_byte": "coop, by byte (ours)", "bilstm-unrolled": "bilstm"}
_PLAIN = {"svg.fonttype": "none", "svg.hashsalt": "jaxckpt", "font.size": 8}
"""Text stays text, and the same data makes the same file."""

Row = Mapping[str, Any]


def figure_of(data: Mapping[str, Any], y_label: str, value: Callable[[Row], float], *, log: bool = False) -> Figure:
    """A small picture for each network: a line a rule over the share of memory; where a run did not end, a gap.

    Args:
      data: What `benchmarks.coop` kept.
      y_label: What goes up.
      value: Of a row.
      log: Whether what goes up is drawn by its logarithm.
    """
    with mpl.rc_context(_PLAIN):
        figure = Figure(figsize=(9.6, 4.8), layout="constrained")
        axes = figure.subplots(2, 4)
        for place, (name, network) in zip(axes.flat, data["networks"].items(), strict=True):
            _draw(place, network["rows"], value)
            place.set_title(_NAMES.get(name, name))
            place.set_xlim(0.27, 0.93)
            if log:
                place.set_yscale("log")
        figure.supylabel(y_label, fontsize=9)
        figure.supxlabel("share of the memory without a budget", fontsize=9)
        handles, labels = axes.flat[1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return figure


def overheads(data: Mapping[str, Any]) -> Figure:
    """Time against memory."""
    figure = figure_of(data, "multiple of the time without a budget", lambda row: row["overhead"])
    for axes in figure.axes:
        axes.set_ylim(0.98, min(2.0, axes.get_ylim()[1]))
    return figure


def fragmentations(data: Mapping[str, Any]) -> Figure:
    """Free memory at refused requests against memory."""
    return figure_of(simulated(data), "% free when a request was refused", lambda row: 100 * row["free_share"])


def searches(data: Mapping[str, Any]) -> Figure:
    """Time in searches against memory."""
    return figure_of(simulated(data), "seconds in searches", lambda row: row["search_s"], log=True)


def simulated(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same without plans, and without rows in which no request was refused."""
    networks = {
        name: {**each, "rows": [row for row in each["rows"] if row["evictor"] != OPTIMUM and row["searches"]]}
        for name, each in data["networks"].items()
    }
    return {**data, "networks": networks}


def _draw(axes: Axes, rows: Sequence[Row], value: Callable[[Row], float]) -> None:
    for name in dict.fromkeys(row["evictor"] for row in rows):
        color, line, marker = _STYLE[name]
        points = [(row["ratio"], value(row) if row["ok"] else nan) for row in rows if row["evictor"] == name]
        xs, ys = zip(*sorted(points), strict=True) if points else ((), ())
        axes.plot(xs, ys, line, color=color, marker=marker, markersize=3, linewidth=1.1, label=_NAMES.get(name, name))
    axes.spines[["top", "right"]].set_visible(False)


def search_sizes(data: Mapping[str, Any]) -> Figure:
    """A search for a hundredth of the pool, against its blocks: linear and quadratic."""
    with mpl.rc_context(_PLAIN):
        figure = Figure(figsize=(4.8, 3.2), layout="constrained")
        axes = figure.subplots()
        for key, name, rule in (("window_s", "Coop's window", "coop"), ("loop_s", "DTR's loop", "dtr")):
            points = [(row["blocks"], row[key]) for row in data["searches"] if key in row]
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, color=_STYLE[rule][0], label=name)
            (first, first_s), last = points[0], points[-1][0]
            power = 1 if key == "window_s" else 2
            axes.plot((first, last), (first_s, first_s * (last / first) ** power), ":", color=_STYLE[rule][0])
        axes.set(xscale="log", yscale="log", xlabel="blocks", ylabel="seconds of one search")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def smallest(network: Mapping[str, Any], name: str) -> float | None:
    """The smallest share at and above which a line always ends."""
    found = None
    for row in sorted((r for r in network["rows"] if r["evictor"] == name), key=lambda r: -r["ratio"]):
        if not row["ok"]:
            break
        found = row["ratio"]
    return found


def held(network: Mapping[str, Any], other: str, *, slack: float = 1e-9) -> tuple[int, int]:
    """At how many shares Coop costs at most what another rule does, of those where that one ends."""
    coop = {row["ratio"]: row for row in network["rows"] if row["evictor"] == "coop"}
    theirs = [row for row in network["rows"] if row["evictor"] == other and row["ok"]]
    good = [r for r in theirs if coop[r["ratio"]]["ok"] and coop[r["ratio"]]["overhead"] <= r["overhead"] + slack]
    return len(good), len(theirs)


def networks_table(data: Mapping[str, Any]) -> str:
    """A row a network."""
    lines = [
        "| network | memory without a budget | smallest share: DTR, DTE, Coop, optimum | time at half: DTR, DTE, Coop, "
        "by byte, optimum | worst fragmentation: DTR, DTE, Coop |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, network in data["networks"].items():
        rows = network["rows"]
        least = ", ".join(_share(smallest(network, each)) for each in (*RULES, OPTIMUM))
        half = ", ".join(_at(rows, each, 0.5) for each in (*RULES, "coop_by_byte", OPTIMUM))
        worst = ", ".join(_worst(rows, each) for each in RULES)
        whole = format_bytes(network["whole_bytes"])
        lines.append(f"| {_NAMES.get(name, name)} | {whole} | {least} | {half} | {worst} |")
    made = data["made_with"]
    lines += [
        "",
        "Fragmentation is the worst of all shares, including runs that stopped;"
        f" jax {made['versions']['jax']}, {made['date']}.",
    ]
    return "\n".join([*lines, ""])


def _worst(rows: Sequence[Row], name: str) -> str:
    return f"{100 * max(row['free_share'] for row in rows if row['evictor'] == name):.0f}%"


def _share(found: float | None) -> str:
    return "none" if found is None else f"{found:g}"


def _at(rows: Sequence[Row], name: str, ratio: float) -> str:
    (row,) = (r for r in rows if r["evictor"] == name and r["ratio"] == ratio)
    return f"{row['overhead']:.3f}" if row["ok"] else "stops"


BASES = {
    "coop-kernels": "kernels, H200",
    "coop-kernels-a100-float32": "kernels, A100 in float32",
    "coop-eager": "every op, H200",
}
"""Results of `benchmarks.coop` in which Coop is counted against DTR and DTE."""


def ahead(network: Mapping[str, Any], *, slack: float = 1e-9) -> tuple[int, int]:
    """At how many shares Coop completes and costs at most what DTR and DTE do, of those where one of the three does."""
    costs = {
        rule: {r["ratio"]: r["overhead"] for r in network["rows"] if r["evictor"] == rule and r["ok"]} for rule in RULES
    }
    shares = set().union(*costs.values())
    best = [
        share
        for share in shares
        if all(costs["coop"].get(share, inf) <= costs[r].get(share, inf) + slack for r in RULES)
    ]
    return len([share for share in best if share in costs["coop"]]), len(shares)


def bases_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """A row a network: what `ahead` counts, and the worst fragmentation, on each basis."""
    lines = [
        "| network | " + " | ".join(f"{BASES[name]}: Coop ahead; fragmentation" for name in results) + " |",
        "|---|" + "---:|" * len(results),
    ]
    for network in next(iter(results.values()))["networks"]:
        cells = []
        for data in results.values():
            found = data["networks"][network]
            worst = ", ".join(_worst(found["rows"], rule) for rule in RULES)
            cells.append("{} of {}; ".format(*ahead(found)) + worst)
        lines.append(f"| {_NAMES.get(network, network)} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def logs_table(data: Mapping[str, Any]) -> str:
    """A row a log of DTR."""
    lines = [
        "| log | memory without a budget | smallest share: DTR, DTE, Coop | time at half: DTR, DTE, Coop, by byte |"
        " worst fragmentation: DTR, DTE, Coop |",
        "|---|---:|---:|---:|---:|",
    ]
    half = data["ratios"].index(0.5)
    for name, log in data["logs"].items():
        rules = log["memories"]
        least = ", ".join(f"{rules[rule]['least_ratio']:.3f}" for rule in RULES)
        times = [rules[rule]["overhead"][half] for rule in (*RULES, "coop_by_byte")]
        at_half = ", ".join("stops" if isinstance(time, str) else f"{time:.3f}" for time in times)
        worst = ", ".join(f"{100 * max(rules[rule]['free_share']):.0f}%" for rule in RULES)
        lines.append(f"| {name} | {format_bytes(log['whole_bytes'])} | {least} | {at_half} | {worst} |")
    return "\n".join([*lines, ""])


def ablations_table(data: Mapping[str, Any]) -> str:
    """A row a network: mean time and fragmentation of Coop and without each of its parts, and where that completes."""
    parts = list(next(iter(data["networks"].values())))
    lines = [f"| network | {' | '.join(parts)} |", "|---|" + "---:|" * len(parts)]
    for name, rows in data["networks"].items():
        lines.append(f"| {_NAMES.get(name, name)} | {' | '.join(map(_ablation, rows.values()))} |")
    return "\n".join([*lines, ""])


def _ablation(runs: Sequence[Row]) -> str:
    completed = [run for run in runs if run["ok"]]
    if not completed:
        return "stops"
    overhead, free = (sum(run[field] for run in completed) / len(completed) for field in ("overhead", "free_share"))
    return f"{overhead:.3f}, {100 * free:.0f}%" + f" ({len(completed)} of {len(runs)})" * (len(completed) < len(runs))


def eager_table(data: Mapping[str, Any]) -> str:
    """A row a process."""
    lines = [
        "| network | budget | arrays at the peak | resident | recomputed ops | equal losses | a step, second half |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, runs in data["runs"].items():
        plain = runs[0]
        for run in runs:
            budget = "none" if run["budget"] == "none" else f"{run['budget']}, `{run['evictor']}`"
            if "failed" in run:
                lines.append(f"| {_NAMES.get(name, name)} | {budget} | stops | | | | |")
                continue
            steps = run["steps"]
            same = sum(a == b for a, b in zip(run["losses"], plain["losses"], strict=True))
            late = steps[len(steps) // 2 :]
            lines.append(
                f"| {_NAMES.get(name, name)} | {budget} | {format_bytes(max(s['peak_bytes'] for s in steps))} |"
                f" {format_bytes(run['resident_bytes'])} | {sum(s['recomputations'] for s in steps)} |"
                f" {same} of {len(steps)} | {sum(s['seconds'] for s in late) / len(late):.2f} s |"
            )
    return "\n".join([*lines, "", f"jax {data['made_with']['versions']['jax']}, {data['made_with']['date']}.", ""])


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    data, speed = read("coop-kernels"), read("dynamic")
    drawn = {"overhead": overheads, "fragmentation": fragmentations, "search": searches}
    for name, draw in drawn.items():
        save(draw(data), PICTURES / f"{name}.svg")
    save(search_sizes(speed), PICTURES / "search-sizes.svg")
    tables = {
        "networks": networks_table(data),
        "bases": bases_table({name: read(name) for name in BASES}),
        "ablations": ablations_table(read("coop-ablations")),
        "logs": logs_table(read("dtr-logs")),
        "eager": eager_table(read("eager")),
    }
    write(PAGE, tables)


def save(figure: Figure, path: Path) -> None:
    with mpl.rc_context(_PLAIN):
        figure.savefig(path, metadata={"Date": None})
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
