"""A policy as a report: its rules in order, and what happens to the rest.

Read after `tree`.
"""

from dataclasses import fields
from typing import Any

from jaxckpt._units import format_bytes
from jaxckpt.policy import Policy, Rule
from jaxckpt.report.tree import Section, Table, Text, columns


def policy_report(policy: Policy) -> Section:
    """Rules in order, the first that matches decides; then the rest."""
    words = [Text(text=text) for text in (policy.models and f"For {policy.models}.", policy.about.strip()) if text]
    rest = ("", "everything else", policy.default, "", "")
    table = Table(
        columns=columns(">rule", "matches", "decision", "strength", "why"),
        rows=(*(_row(number, rule) for number, rule in enumerate(policy.rules, 1)), rest),
    )
    return Section(title=f"Policy {policy.name}", parts=(*words, table))


def _row(number: int, rule: Rule) -> tuple[str, ...]:
    given = [(each.name, getattr(rule.match, each.name)) for each in fields(rule.match)]
    match = ", ".join(f"{key} = {_value(key, value)}" for key, value in given if value is not None)
    return str(number), match or "everything", type(rule.decision).__name__.lower(), rule.strength, rule.note


def _value(key: str, value: Any) -> str:
    return format_bytes(value) if key.endswith("_bytes") else repr(value)
