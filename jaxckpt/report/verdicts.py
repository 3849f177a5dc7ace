"""Verdicts as a report: one row a rule or name, with what it changes.

Read after `tree`.
"""

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.comparison import Verdict, Verdicts
from jaxckpt.report.tree import Section, Table, Text, columns


def verdicts_report(verdicts: Verdicts) -> Section:
    """Report of the bytes and seconds that each rule or name is worth."""
    host = f", host {format_bytes(verdicts.host_bytes)}" if verdicts.host_bytes else ""
    total = (
        f"With all of them {format_bytes(verdicts.total_bytes)}{host}, {verdicts.flops / 1e9:.3g} GFLOP and"
        f" {format_seconds(verdicts.step_s)} a step (estimated) on {verdicts.target}; {verdicts.compiles} programs were"
        " compiled. Changes are with the row less without it, beside all others."
    )
    headings = columns("rule or name", "verdict", ">values", ">memory", ">host", ">GFLOP", ">step", "why")
    table = Table(title="", columns=headings, rows=tuple(map(_row, verdicts.verdicts)))
    return Section(title=f'{verdicts.step} under "{verdicts.policy}"', parts=(Text(text=total), table))


def _row(verdict: Verdict) -> tuple[str, ...]:
    return (
        verdict.subject,
        verdict.word,
        f"{verdict.value_count} ({format_bytes(verdict.value_bytes)})",
        _signed(verdict.bytes_change, format_bytes(abs(verdict.bytes_change))),
        _signed(verdict.host_bytes_change, format_bytes(abs(verdict.host_bytes_change))),
        _signed(verdict.flops_change, f"{abs(verdict.flops_change) / 1e9:.3g}"),
        _signed(verdict.step_s_change, format_seconds(abs(verdict.step_s_change))),
        verdict.why,
    )


def _signed(change: float, text: str) -> str:
    if not change:
        return "="
    return f"{'+' if change > 0 else '-'}{text}"
