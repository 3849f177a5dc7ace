"""Tables of README.md and docs/, made from data: the text between the two marks of a table is replaced."""

import json
import re
import tomllib
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import wide_decoder
from benchmarks.gallery.page import readme_table, tables as gallery_tables
from benchmarks.host_state import ALLOWED, planned_cell
from benchmarks.model_error import table as model_errors
from benchmarks.record import RESULTS, read
from benchmarks.strangers import STRANGERS, findings
from jaxckpt import load_policy
from jaxckpt._units import format_bytes

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
COST, FOOTPRINTS, POLICIES, RULES, SEEDS = (
    ROOT / "docs" / f"{name}.md" for name in ("cost", "footprints", "policies", "simple-rules", "seeds")
)
BUDGETS, GALLERY, MODEL, OFFLOAD = (
    ROOT / "docs" / f"{name}.md" for name in ("budgets", "gallery", "cost-model", "offload")
)
FEATURES = ROOT / "tests" / "seeds" / "features.toml"
_MEASURED = "# Measured"


def main() -> None:
    write(README, {"gallery": readme_table(), "demo": demo_table(), "infeasible": infeasible()})
    write(BUDGETS, {"chunks": chunks_table(), "host state": host_state_table(), "batches": wide_decoder.batch_table()})
    write(GALLERY, gallery_tables())
    write(COST, {"cost": cost_table()})
    write(MODEL, {"model error": model_error_table()})
    write(FOOTPRINTS, {"layers": layers_table()})
    write(OFFLOAD, {"wide decoder": wide_decoder.table(), "wide decoder overheads": wide_decoder.overhead_table()})
    write(POLICIES, {"policies": policies_table(), "scopes": scopes_table()})
    write(RULES, rules_tables())
    write(SEEDS, {"features": features_table()})
    for name, line in measured_lines().items():
        write_measured(ROOT / "policies" / f"{name}.toml", line)


def write(page: Path, tables: dict[str, str]) -> None:
    """Replaces the tables of a page."""
    page.write_text(filled(page.read_text(), tables))
    print(f"wrote the tables of {page}")


def filled(text: str, tables: dict[str, str]) -> str:
    """A page with the text between the marks of each table replaced."""
    for name, table in tables.items():
        marks = rf"(<!-- table: {name} -->\n).*?(<!-- end of table -->)"
        text, count = re.subn(marks, lambda found, table=table: found[1] + table + found[2], text, flags=re.DOTALL)
        assert count == 1, f"the page has {count} places for the table {name!r}"
    return text


def write_measured(file: Path, line: str) -> None:
    """Puts the line below a policy's schema, instead of the one that is there."""
    schema, *rest = (each for each in file.read_text().splitlines() if not each.startswith(_MEASURED))
    file.write_text("\n".join([schema, line, *rest, ""]))


def chunks_table() -> str:
    """The planner's plans with rows in pieces, by budget."""
    result = read("chunks")
    made = result["made_with"]
    lines = ["| budget | pieces | compiled total | temporaries | estimated step |", "|---|---:|---:|---:|---:|"]
    for row in result["planned"]:
        pieces = ", ".join(map(str, row["pieces"])) or "1"
        lines.append(
            f"| {row['budget']} | {pieces} | {format_bytes(row['total_bytes'])} | {format_bytes(row['temp_bytes'])} |"
            f" {1e3 * row['estimated_step_s']:.1f} ms |"
        )
    return "\n".join([*lines, "", f"jax {made['versions']['jax']}, {made['date']}.", ""])


def model_error_table() -> str:
    """Errors of the model by plan, without the list of the worst ones."""
    steps = read("model-error")["steps"]
    errors, _, _ = model_errors(steps).partition("\n\n")
    return f"{errors}\n\n{len(steps)} of {len(STRANGERS)} steps, {_versions_and_dates(steps)}\n"


def host_state_table() -> str:
    """Plans with optimiser state on the host beside others, by share of the total as written."""
    result = read("host-state")
    lines = [
        "| step | budget | recompute | recompute, chunk | recompute, state | all three | of it on the host |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, step in result["steps"].items():
        figures = f"{format_bytes(step['total_bytes'])}, {1e3 * step['step_s']:.1f} ms"
        lines.append(f"| {name} | as written | {figures} | | | | |")
        plans = {(tuple(row["allow"]), row["share"]): row for row in step["plans"]}
        for share in sorted({share for _, share in plans}, reverse=True):
            rows = [plans.get((allow, share)) for allow in ALLOWED]
            host = format_bytes(rows[-1]["host_bytes"]) if rows[-1] and "host_bytes" in rows[-1] else ""
            cells = " | ".join(map(planned_cell, rows))
            lines.append(f"| {name} | {format_bytes(int(share * step['total_bytes']))} | {cells} | {host} |")
    return "\n".join([*lines, "", _versions_and_dates(result["steps"]), ""])


def _versions_and_dates(steps: Mapping[str, Any]) -> str:
    """Of steps that were measured one by one: jax, and the days."""
    dates = sorted({step["date"] for step in steps.values()})
    versions = sorted({step["versions"]["jax"] for step in steps.values()})
    return f"jax {', '.join(versions)}, {' and '.join(dates)}."


def demo_table() -> str:
    """Totals of the demo's versions."""
    result = read("demo")
    demo, made = result["demo"], result["made_with"]
    lines = [
        "| GPT-2 small, compiled for an H200 | budget | compiled total | predicted total | estimated step |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {name} | | {format_bytes(version['total_bytes'])} | | {1e3 * version['step_s']:.1f} ms |"
        for name, version in demo["baselines"].items()
    ]
    for budget, plan in demo["plans"].items():
        off = 100 * (plan["predicted_bytes"] / plan["total_bytes"] - 1)
        lines.append(
            f"| **jaxckpt**, model without marks | {budget} | **{format_bytes(plan['total_bytes'])}** |"
            f" {format_bytes(plan['predicted_bytes'])} ({off:+.1f}%) | {1e3 * plan['footprint']['step_s']:.1f} ms |"
        )
    for budget, error in demo["refused"].items():
        lines.append(
            f"| **jaxckpt**, model without marks | {budget} | refused: at least"
            f" {format_bytes(error['minimum_bytes'])} | | |"
        )
    versions = made["versions"]
    lines += [
        "",
        f"{demo['layers']} Linen blocks, batch {demo['batch']} x 1024, bfloat16, AdamW, donated state. Totals are"
        " XLA's: arguments + outputs - donated + temporaries; seconds are a roofline over its kernels, not measured."
        " The table took"
        f" {demo['wall_s']:.0f} s on {made['cores']} cores without a GPU: {len(demo['plans'])} plans with"
        f" {sum(len(plan['attempts']) for plan in demo['plans'].values())} compiles, a refusal, and"
        f" {len(demo['baselines'])} versions written by hand; jax {versions['jax']},"
        f" Python {made['python']}, {made['date']}.",
        "",
    ]
    return "\n".join(lines)


def infeasible() -> str:
    """The error of the budget that cannot be met."""
    (error, *_) = read("demo")["demo"]["refused"].values()
    return f"```text\nInfeasibleBudgetError: {error['message']}\n```\n"


def rules_tables() -> dict[str, str]:
    """Plans beside simple rules: a line for each promise, each step that was reported, and each step."""
    steps = read("strangers")["steps"]
    compared = findings.comparisons(steps)
    return {
        "promises": findings.summary(steps, compared),
        "reported": findings.reported(compared),
        "steps": findings.per_step(steps, compared),
    }


def cost_table() -> str:
    """Seconds and compiles of a plan, for each model."""
    lines = [
        "| step | ops in the graph | tracing | one compile, as written | one plan: median, longest | its compiles |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for file in sorted((RESULTS / "frontier").glob("*.json")):
        found = json.loads(file.read_text())
        plans = [plan for plan in found["plans"]["optimal"].values() if "attempts" in plan]
        seconds, compiles = [plan["wall_s"] for plan in plans], [len(plan["attempts"]) for plan in plans]
        lines.append(
            f"| {file.stem} | {found['graph']['ops']:,} | {found['graph']['trace_s']:.1f} s"
            f" | {found['by_hand']['no remat']['compile_s']:.0f} s | {median(seconds):.0f} s, {max(seconds):.0f} s"
            f" | {median(compiles):.0f}, {max(compiles)} |"
        )
    data = read("huge")
    for name, found in data["models"].items():
        made = list(found["planning"].values())
        seconds, compiles = [plan["total_s"] for plan in made], [plan["compiles"] for plan in made]
        lines.append(
            f"| {name}, `{found['target']}` | | {made[0]['trace_s']:.1f} s | | {median(seconds):.0f} s,"
            f" {max(seconds):.0f} s | {median(compiles):.0f}, {max(compiles)} |"
        )
    return "\n".join([*lines, "", f"jax {data['made_with']['versions']['jax']}.", ""])


def layers_table() -> str:
    """Bytes and FLOPs of the scopes of the step as written."""
    data = read("footprints")
    made = data["versions"]["as written"]
    lines = [
        "| scope | residuals | alive at the peak | GFLOP |",
        "|---|---:|---:|---:|",
    ]
    for row in made["scopes"]:
        bytes_ = " | ".join(format_bytes(row[key]) for key in ("held_bytes", "peak_bytes"))
        lines.append(f"| `{row['scope'] or '/'}`{row['layers']} | {bytes_} | {row['flops'] / 1e9:.0f} |")
    standing = ", ".join(made["logits_at_peak"])
    lines += [
        "",
        f"At the peak {format_bytes(made['peak_bytes'])} of temporaries are alive. XLA allocates"
        f" {format_bytes(made['temp_bytes'])} for them. Among them are the logits: {standing}."
        f" jax {data['made_with']['versions']['jax']}, {data['made_with']['date']}.",
        "",
    ]
    return "\n".join(lines)


def policies_table() -> str:
    """Compiled totals of each ready policy."""
    data = read("policies")
    lines = ["| policy | for | compiled total | on the host | estimated step |", "|---|---|---:|---:|---:|"]
    for name, made in data["policies"].items():
        policy = None if name == "as written" else load_policy(name)
        called = (
            name
            if policy is None
            else f"[`{name}`](../policies/{name}.toml)" + (" (8 devices)" if name in data["on 8 devices"] else "")
        )
        host = format_bytes(made["host_bytes"]) if made["host_bytes"] else ""
        models = "" if policy is None else policy.models
        lines.append(
            f"| {called} | {models} | {format_bytes(made['total_bytes'])} | {host} | {1e3 * made['step_s']:.1f} ms |"
        )
    beside = data["inputs on 8 devices"]
    lines += [
        "",
        "`inputs_partitioned` needs a mesh. Here all of eight devices hold the same batch, and `inputs` takes"
        f" {format_bytes(beside['total_bytes'])}; given the shards, XLA also splits the work between blocks."
        f" {_made(data)}",
        "",
    ]
    return "\n".join(lines)


def scopes_table() -> str:
    """Scopes as `jax.checkpoint`, beside the same policies applied to the traced step."""
    data = read("scopes")
    lines = [
        "| policy of each block | scope, as `jax.checkpoint` | `jaxckpt.apply` on the traced step | difference |",
        "|---|---:|---:|---:|",
    ]
    for name, made in data["policies"].items():
        off = made["joint_bytes"] / made["scope_bytes"] - 1
        times = f"{1e3 * made['scope_s']:.2f} ms", f"{1e3 * made['joint_s']:.2f} ms"
        lines.append(
            f"| `{name}` | {format_bytes(made['scope_bytes'])}, {times[0]} | {format_bytes(made['joint_bytes'])},"
            f" {times[1]} | {off:+.2%} |"
        )
    return "\n".join([*lines, "", _made(data), ""])


def measured_lines() -> dict[str, str]:
    """The line "Measured" of each ready policy's file."""
    data = read("policies")
    plain, beside = data["policies"]["as written"], data["inputs on 8 devices"]
    lines = {}
    for name, made in data["policies"].items():
        if name == "as written":
            continue
        host = f" and {format_bytes(made['host_bytes'])} on the host" if made["host_bytes"] else ""
        split = name in data["on 8 devices"]
        instead = (
            ("each of eight devices that hold all of the batch; inputs", beside) if split else ("as written", plain)
        )
        lines[name] = (
            f"{_MEASURED} on GPT-2 small, 8 x 1024 tokens, H200: {format_bytes(made['total_bytes'])}{host},"
            f" {1e3 * made['step_s']:.1f} ms estimated; {instead[0]} {format_bytes(instead[1]['total_bytes'])},"
            f" {1e3 * instead[1]['step_s']:.1f} ms."
        )
    return lines


def _made(data: dict[str, Any]) -> str:
    made = data["made_with"]
    return (
        f"GPT-2 small, 12 Linen blocks, batch 8 x 1024, bfloat16, AdamW, compiled for an H200; one compile each, times"
        f" estimated from the compiled program. jax {made['versions']['jax']}, Python {made['python']}, {made['date']}."
    )


def features_table() -> str:
    """Features of other systems, each with the tests that prove it here; one table a system."""
    rows = tomllib.loads(FEATURES.read_text())["feature"]
    lines = []
    for system, features in groupby(rows, key=lambda row: row["system"]):
        lines += [
            f"### {system}",
            "",
            "| feature | in jaxckpt | tests | not in jaxckpt, and why |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| {row['feature']} | {row['shows']} | {'<br>'.join(map(link, row['tests']))} | {row['reason']} |"
            for row in ({"reason": "", **feature} for feature in features)
        ]
        lines.append("")
    return "\n".join(lines)


def link(test: str) -> str:
    """A test by its name as a sentence, leading to its file."""
    file, _, name = test.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../{file})"


if __name__ == "__main__":
    main()
