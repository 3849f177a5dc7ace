"""README.md's tables, made from the results: what stands between a table's two marks is replaced."""

import re
from pathlib import Path

from benchmarks.record import read
from jaxckpt._units import format_bytes

README = Path(__file__).parents[1] / "README.md"


def main() -> None:
    text = README.read_text()
    for name, table in {"demo": demo_table(), "infeasible": infeasible(), "layers": layers_table()}.items():
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


def layers_table() -> str:
    """What the scopes of the step as written take."""
    data = read("footprints")
    made = data["versions"]["as written"]
    lines = [
        "| scope | kept from forward to backward | at the peak | GFLOP |",
        "|---|---:|---:|---:|",
    ]
    for row in made["scopes"]:
        bytes_ = " | ".join(format_bytes(row[key]) for key in ("held_bytes", "peak_bytes"))
        lines.append(f"| `{row['scope'] or '/'}`{row['layers']} | {bytes_} | {row['flops'] / 1e9:.0f} |")
    standing = ", ".join(made["logits_at_peak"])
    lines += [
        "",
        f"At the peak {format_bytes(made['peak_bytes'])} of temporaries are alive in {format_bytes(made['temp_bytes'])}"
        f" that XLA allocates; of these the logits: {standing}. jax {data['made_with']['versions']['jax']},"
        f" {data['made_with']['date']}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
