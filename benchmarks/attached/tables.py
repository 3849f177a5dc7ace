"""Tables of docs/measured.md, made from a result: `python -m benchmarks.attached.tables [RESULT]`.

Without a result every table says that nothing was measured on a device yet; with one of a smoke test, that.
"""

import argparse
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.attached import findings
from benchmarks.attached.findings import Parts
from benchmarks.record import RESULTS
from benchmarks.tables import ROOT, filled
from jaxckpt._units import format_bytes
from jaxckpt.report.machines import figure

PAGE = ROOT / "docs" / "measured.md"
README = ROOT / "README.md"
RESULT = RESULTS / "attached" / "attached.json"
PRODUCTS = RESULTS / "attached" / "products.json"
NOT_YET = "Not measured on a device yet; `python -m benchmarks.attached` on a machine with a GPU makes this table.\n"
SMOKE = "**A smoke test on a processor, with tiny sizes: it shows that the harness runs, and nothing else.**\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attached.tables")
    parser.add_argument("result", nargs="?", type=Path, default=RESULT)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    data = json.loads(options.result.read_text()) if options.result.exists() else None
    options.page.write_text(filled(options.page.read_text(), tables(data)))
    print(f"wrote the tables of {options.page}")
    if options.page == PAGE:
        README.write_text(filled(README.read_text(), {"measured": readme_sentences(data)}))
        print(f"wrote the sentence of {README}")


def readme_sentences(data: Mapping[str, Any] | None) -> str:
    """Sentences of the README: what was timed on a device, and how far off the estimates were."""
    if data is None or data["made_for"]["small"]:
        return "No step was timed on a device yet.\n"
    found = findings.estimates(data["parts"])
    away = list(map(abs, findings.errors(found.shipped, found.steps)))
    right, pairs = findings.ranking(found.shipped, found.steps)
    models = len({step.group for step in found.steps})
    text = (
        f"{len(away)} versions of {models} steps were timed on one {data['parts']['device']['device_kind']}"
        f" ({data['made_with']['date']}). Estimated seconds differ from measured ones by {median(away):.0%} in the"
        f" median, and by {found.held_out.median:.0%} for a model to which the rates were not fitted."
        f" Of two versions of a step the faster one was estimated to be faster in {right} of {pairs} pairs."
    )
    return "\n".join([*textwrap.wrap(text, 120), ""])


def tables(data: Mapping[str, Any] | None) -> dict[str, str]:
    """All tables of the page by name."""
    makers = {
        "verdicts": verdicts_table,
        "memory": memory_table,
        "untuned": untuned_table,
        "seconds": seconds_table,
        "fit": fit_table,
        "equal": equal_table,
        "offload": offload_table,
        "values": values_table,
        "headline": headline_table,
        "calibration": calibration_table,
    }
    if data is None:
        return {"made": NOT_YET, **dict.fromkeys((*makers, "products"), NOT_YET)}
    parts = data["parts"]
    products = json.loads(PRODUCTS.read_text())["products"] if PRODUCTS.exists() else []
    first = SMOKE + "\n" if data["made_for"]["small"] else ""
    made = {name: "\n".join([*maker(parts), ""]) for name, maker in makers.items()}
    made["products"] = "\n".join([*products_table(products), ""])
    return {"made": first + made_line(data), **{name: text if text.strip() else NOT_YET for name, text in made.items()}}


def made_line(data: Mapping[str, Any]) -> str:
    """With what the result was made; and what failed."""
    device = data["parts"].get("device", {})
    versions = data["made_with"]["versions"]
    text = (
        f"{device.get('device_kind', 'no device')}, driver {device.get('driver', 'unknown')}, jax"
        f" {versions.get('jax', '')}, {data['made_with']['date']}.\n"
    )
    failed = [f"- {path}: {said}" for path, said in findings.failures(data["parts"])]
    return text + ("\n".join(["", "Without an answer:", "", *failed, ""]) if failed else "")


def table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table in Markdown, headings that begin with ">" to the right; nothing where there are no lines."""
    if lines:
        yield f"| {' | '.join(head.removeprefix('>') for head in heads)} |"
        yield f"|{'|'.join('---:' if head.startswith('>') else '---' for head in heads)}|"
        yield from (f"| {' | '.join(line)} |" for line in lines)


def verdicts_table(parts: Parts) -> Iterator[str]:
    signs = {True: "yes", False: "**no**", None: ""}
    lines = [(claim, found or "not measured", signs[holds]) for claim, found, holds in findings.verdicts(parts)]
    return table(("what must hold", "what was found", "holds"), lines)


def memory_table(parts: Parts) -> Iterator[str]:
    lines = []
    for row in findings.rows(parts):
        error = row.memory_error
        causes = [f"{name} {'-' if size < 0 else '+'}{format_bytes(abs(size))}" for name, size in row.causes.items()]
        predicted = row.predicted.get("predicted_bytes")
        lines.append(
            (
                row.model,
                row.version,
                format_bytes(predicted) if predicted else "",
                format_bytes(row.predicted["total_bytes"]) if row.predicted else "",
                format_bytes(row.measured["total_bytes"]),
                "" if error is None else f"{error:+.1%}",
                "" if row.peak_bytes is None else format_bytes(row.peak_bytes),
                ", ".join(causes[:2]),
            )
        )
    heads = ("model", "version", ">predicted", ">compiled without the device", ">with it", ">off", ">allocator's peak")
    return table((*heads, "where they differ"), lines)


def products_table(products: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Kinds of matrix products, how many the autotuner and the rule choose alike, and the seconds of their choices."""
    kinds: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for product in products:
        fused = "a bias" if product["fused"] == ["add"] else "more" if product["fused"] else "nothing"
        kinds.setdefault((product["waits_for"], fused), []).append(product)
    lines = []
    for (waits_for, fused), group in sorted(kinds.items()):
        by_rule = [product["seconds"].get(product["rule"]) for product in group]
        best = [min(product["seconds"].values()) for product in group]
        tried = [(ours, least) for ours, least in zip(by_rule, best, strict=True) if ours is not None]
        alike = sum(ours == least for ours, least in tried)
        ratio = sum(ours for ours, _ in tried) / sum(least for _, least in tried)
        lines.append((waits_for, fused, group[0]["rule"], f"{alike} of {len(tried)}", f"{ratio:.2f}x"))
    heads = (
        "the product waits for",
        "fused with it",
        "the rule takes",
        ">as the autotuner",
        ">time of the best choices",
    )
    return table(heads, lines)


def untuned_table(parts: Parts) -> Iterator[str]:
    lines = []
    for row, untuned in findings.untuned(parts):
        totals = (each.get("total_bytes") for each in (row.predicted, untuned, row.measured))
        sizes = ["" if total is None else format_bytes(total) for total in totals]
        seconds = (f"{1e3 * each['measured_s']:.2f}" for each in (untuned, row.measured))
        lines.append((row.model, row.version, *sizes, *seconds))
    heads = (">compiled without the device", ">with it, untuned", ">tuned", ">untuned, ms", ">tuned, ms")
    return table(("model", "version", *heads), lines)


def seconds_table(parts: Parts) -> Iterator[str]:
    found = findings.estimates(parts)
    timed = [row for row in findings.rows(parts) if row.step is not None]
    lines = []
    for i, (row, step) in enumerate(zip(timed, found.steps, strict=True)):
        without = (row.predicted.get("predicted_s"), row.predicted.get("step_s"))
        by_rates = (each[i] if each else None for each in (found.former, found.shipped, found.calibrated, found.fitted))
        estimated = [
            "" if each is None else f"{1e3 * each:.2f} ({each / step.measured_s - 1:+.0%})"
            for each in (*without, *by_rates)
        ]
        lines.append((step.name, f"{1e3 * step.measured_s:.2f}", *estimated))
    heads = (">planner's model", ">compiled without the device", ">former", ">shipped", ">calibrated", ">fitted")
    return table(("step", ">measured, ms", *heads), lines)


def fit_table(parts: Parts) -> Iterator[str]:
    found = findings.estimates(parts)
    fit = found.fit
    if fit is None:
        return
    by_source = {"shipped": findings.shipped_rates(parts), "calibrated": findings.calibrated_rates(parts)}
    lines = [
        (source, f"{1e-12 * rates.memory_bandwidth_bytes_per_s:.2f}", f"{1e6 * rates.launch_s:.2f}")
        for source, rates in {**by_source, "fitted": fit.rates}.items()
        if rates is not None
    ]
    yield from table(("rates", ">memory, TB/s", ">launch, us"), lines)
    yield ""
    yield (
        f"Calibrated rates: median error {fit.before.median:.1%} before the fit and {fit.after.median:.1%} after, worst"
        f" {fit.before.worst:+.1%} and {fit.after.worst:+.1%}; of models that the fit has not seen"
        f" {fit.held_out.median:.1%}, worst {fit.held_out.worst:+.1%}. Shipped rates, of such models:"
        f" {found.held_out.median:.1%}, worst {found.held_out.worst:+.1%}."
    )


def equal_table(parts: Parts) -> Iterator[str]:
    lines = [
        (
            plan.model,
            plan.version,
            format_bytes(plan.measured["total_bytes"]),
            f"{1e3 * plan.measured['measured_s']:.2f}",
            best.version,
            format_bytes(best.measured["total_bytes"]),
            f"{1e3 * best.measured['measured_s']:.2f}",
            f"{plan.measured['measured_s'] / best.measured['measured_s']:.3f}x",
        )
        for plan, best in findings.at_equal_memory(parts)
    ]
    return table(("model", "plan", ">total", ">ms", "best by hand", ">total", ">ms", ">plan takes"), lines)


def offload_table(parts: Parts) -> Iterator[str]:
    lines = []
    for row, copy_s, share in findings.hidden(parts):
        seconds = f"{1e3 * copy_s:.1f}", f"{1e3 * row.measured['measured_s']:.2f}"
        sizes = (format_bytes(row.predicted["offloaded_bytes"]), format_bytes(row.measured["host_bytes"]))
        lines.append((row.model, *sizes, *seconds, f"{share:.0%}"))
    return table(
        ("model", ">moved there and back", ">at once on the host", ">copies alone, ms", ">step, ms", ">hidden"), lines
    )


def values_table(parts: Parts) -> Iterator[str]:
    lines = []
    for path, part in parts.items():
        if path.startswith("compared/") and "error" not in part:
            _, model, version = path.split("/")
            shown = "the same program again" if version == "again" else version
            lines.append((model, shown, *(f"{part[name]:.1e}" for name in ("loss", "gradients", "worst_gradient"))))
    return table(("model", "version", ">loss", ">all gradients", ">worst gradient"), lines)


def headline_table(parts: Parts) -> Iterator[str]:
    lines = []
    for case in ("unplanned", "unplanned-next", "unplanned-at-planned", "planned"):
        part = parts.get(f"headline/{case}", {})
        if "batch" in part:
            said = "runs" if part["ran"] else "out of memory" if part["out_of_memory"] else "fails"
            total = format_bytes(part["total_bytes"]) if "total_bytes" in part else ""
            speed = f"{part['items_per_s']:.1f}" if part["ran"] else ""
            lines.append((case.replace("-", " "), str(part["batch"]), total, said, speed))
    return table(("step", ">batch", ">compiled total", "on the device", ">sequences a second"), lines)


def calibration_table(parts: Parts) -> Iterator[str]:
    made = findings.calibration(parts)
    lines = [(m.what, m.detail, figure(m), f"{m.spread:.0%}") for m in made.measured] if made else []
    return table(("what", "type and size", ">figure", ">spread"), lines)


if __name__ == "__main__":
    main()
