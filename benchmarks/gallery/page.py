"""The gallery's tables, made of its answers."""

from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.asking import Answer
from benchmarks.gallery.questions import ADVISED, BUDGET, PIECES, SMALLEST, WRITTEN
from benchmarks.gallery.table import ENTRIES
from benchmarks.record import read
from jaxckpt._units import format_bytes

IN_README = ("jax-27748", "jax-3186", "jax-23869", "axlearn-1236", "xla-27322")
"""Entries of the README's selection; the last one is a problem that a plan does not help."""
_PURPOSES = 3


def tables() -> dict[str, str]:
    """The overview, and a table for each entry, by the name of their place on the page."""
    data = read("gallery")
    overview = {"gallery": overview_table(data, ENTRIES, page="")}
    return overview | {f"gallery {name}": entry_table(name, data["entries"].get(name, {})) for name in ENTRIES}


def readme_table() -> str:
    """The selection of the README."""
    return overview_table(read("gallery"), IN_README, page="docs/gallery.md")


def overview_table(data: Mapping[str, Any], names: Iterable[str], *, page: str) -> str:
    """One row for each entry."""
    lines = [
        "| thread | problem | as written | with the thread's advice | jaxckpt, at that total | smallest plan"
        " | with rows in pieces |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name in names:
        answers = data["entries"].get(name, {}).get("answers", {})
        advised = advised_of(name, answers)
        cells = [
            cell(answers.get(WRITTEN)),
            ENTRIES[name].advice if ENTRIES[name].advised is None else cell(advised),
            cell(plan_of(answers)),
            cell(answers.get(SMALLEST)),
            cell(answers[PIECES]) if PIECES in answers else "",
        ]
        lines.append(f"| [{name}]({page}#{name}) | {ENTRIES[name].problem} | {' | '.join(cells)} |")
    versions = data["made_with"]["versions"]
    lines += [
        "",
        "Compiled totals for one H200 (arguments + outputs - donated + temporaries), and estimated seconds of the"
        " compiled programs, not measured. Without advice that lowers the total, the plan is for half of the total as"
        f" written. jax {versions['jax']}, {data['made_with']['date']}.",
        "",
    ]
    return "\n".join(lines)


def entry_table(name: str, record: Mapping[str, Any]) -> str:
    """One row for each version of an entry."""
    answers, entry = record.get("answers", {}), ENTRIES[name]
    smallest = answers.get(SMALLEST, {})
    rows = {"as written": answers.get(WRITTEN)}
    if entry.advised is not None:
        rows[entry.advice] = advised_of(name, answers)
    budget = next((question.removeprefix(BUDGET) for question in answers if question.startswith(BUDGET)), None)
    if budget is not None:
        rows[f"**jaxckpt**, in {format_bytes(int(budget))}"] = plan_of(answers)
    tiled = ", ".join(f"{outer} x {inner}" for outer, inner in smallest.get("tiled", ()))
    rows["**jaxckpt**, smallest" + (f", loops tiled {tiled}" if tiled else "")] = smallest or None
    if PIECES in answers:
        rows['**jaxckpt**, smallest with `allow=("recompute", "chunk")`'] = answers[PIECES]
    lines = ["| version | compiled total | temporaries | estimated step | planning |", "|---|---:|---:|---:|---:|"]
    lines += [f"| {label} | {' | '.join(cells_of(answer))} |" for label, answer in rows.items()]
    purposes = sorted(smallest.get("purposes", {}).items(), key=lambda item: -item[1])[:_PURPOSES]
    if purposes:
        listed = ", ".join(f"{purpose} {format_bytes(size)}" for purpose, size in purposes)
        lines += ["", f"Purposes of the smallest plan's bytes, the largest: {listed}."]
    return "\n".join([*lines, ""])


def advised_of(name: str, answers: Mapping[str, Answer]) -> Answer | None:
    """The answer about the advice, without seconds where no estimate holds for it."""
    answer = answers.get(ADVISED)
    if answer is None or ENTRIES[name].is_advice_timed:
        return answer
    return {key: value for key, value in answer.items() if key != "step_s"}


def plan_of(answers: Mapping[str, Answer]) -> Answer | None:
    """The answer about the plan at a budget."""
    return next((answer for question, answer in answers.items() if question.startswith(BUDGET)), None)


def cell(answer: Answer | None) -> str:
    """Total and seconds in one cell."""
    total, _, step, _ = cells_of(answer)
    return f"{total}, {step}" if step else total


def cells_of(answer: Answer | None) -> tuple[str, str, str, str]:
    """Total, temporaries, seconds, and the seconds and compiles of planning."""
    if answer is None:
        return "not asked", "", "", ""
    compiles = answer.get("compiles")
    planning = "" if compiles is None else f"{answer['wall_s']:.0f} s, {compiles} compiles"
    if "error" in answer:
        return f"failed: {answer['error'].splitlines()[0][:80]}", "", "", ""
    if "refused" in answer:
        return f"refused: at least {format_bytes(answer['minimum_bytes'])}", "", "", planning
    return (
        format_bytes(answer["total_bytes"]),
        format_bytes(answer["temp_bytes"]),
        f"{1e3 * answer['step_s']:.1f} ms" if "step_s" in answer else "",
        planning,
    )
