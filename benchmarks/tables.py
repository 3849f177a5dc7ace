"""README.md's tables, made from the results: what stands between a table's two marks is replaced."""

import re
from pathlib import Path

from benchmarks.record import read
from jaxckpt._units import format_bytes

README = Path(__file__).parents[1] / "README.md"


def main() -> None:
    text = README.read_text()
    for name, table in {"demo": demo_table(), "infeasible": infeasible()}.items():
        marks = rf"(<!-- table: {name} -->\n).*?(<!-- end of table -->)"
        text, count = re.subn(marks, lambda found, table=table: found[1] + table + found[2], text, flags=re.DOTALL)
        assert count == 1, f"README.md has {count} places for the table {name!r}"
    README.write_text(text)
    print(f"wrote the tables of {README}")


def demo_table() -> str:
    """Totals of the demo's versions."""
    result = read("demo")
    demo, made = result["demo"], result["made_with"]
    lines = [
        "| GPT-2 small, compiled for an H200 | budget | compiled total | predicted | recomputation, estimated |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {name} | | {format_bytes(version['total_bytes'])} | | |" for name, version in demo["baselines"].items()
    ]
    for budget, plan in demo["plans"].items():
        off = 100 * (plan["predicted_bytes"] / plan["total_bytes"] - 1)
        lines.append(
            f"| **jaxckpt**, the model unmarked | {budget} | **{format_bytes(plan['total_bytes'])}** |"
            f" {format_bytes(plan['predicted_bytes'])} ({off:+.1f}%) | {1e3 * plan['recompute_s']:.2f} ms |"
        )
    for budget, error in demo["refused"].items():
        lines.append(
            f"| **jaxckpt**, the model unmarked | {budget} | refused: at least"
            f" {format_bytes(error['minimum_bytes'])} | | |"
        )
    versions = made["versions"]
    lines += [
        "",
        f"{demo['layers']} Linen blocks, batch {demo['batch']} x 1024, bfloat16, AdamW, donated state. Totals are"
        " XLA's: arguments + outputs - donated + temporaries. Made on"
        f" {made['cores']} cores without a GPU in {demo['wall_s']:.0f} s, {len(demo['plans'])} plans with"
        f" {sum(len(plan['attempts']) for plan in demo['plans'].values())} compiles; jax {versions['jax']},"
        f" Python {made['python']}, {made['date']}.",
        "",
    ]
    return "\n".join(lines)


def infeasible() -> str:
    """The error of the budget that cannot be met."""
    (error, *_) = read("demo")["demo"]["refused"].values()
    return f"```text\nInfeasibleBudgetError: {error['message']}\n```\n"


if __name__ == "__main__":
    main()
