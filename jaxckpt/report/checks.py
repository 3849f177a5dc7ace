"""Checks of a step as reports: findings of the linter, and a verification of the planned step.

Read after `rows`.
"""

import math
from collections.abc import Iterator

from jaxckpt.linter import Finding, Findings
from jaxckpt.report.rows import array_text
from jaxckpt.report.tree import Section, Table, Text, columns
from jaxckpt.verifier import LeafDifference, Verification

_NO_PROOF = "Nothing was compiled or run; that nothing is said of something is no proof that it is right."
_MOST_ROWS = 24


def findings_report(findings: Findings) -> Section:
    """Report of the findings of `jaxckpt.lint`."""
    return Section(title=_findings_title(findings), parts=(*_tables(findings), Text(text=_NO_PROOF)))


def _findings_title(findings: Findings) -> str:
    of = f'{findings.step} under "{findings.policy}"' if findings.policy else findings.step
    if not findings.findings:
        return f"{of}: nothing found"
    errors, advice = len(findings.errors), len(findings) - len(findings.errors)
    counts = (f"{errors} without effect or wrong" if errors else "", f"{advice} to look at" if advice else "")
    return f"{of}: {', '.join(filter(None, counts))}"


def _tables(findings: Findings) -> Iterator[Table]:
    for title, is_error in (("Without effect, or wrong", True), ("Advice", False)):
        rows = tuple(_finding_row(finding) for finding in findings if finding.is_error is is_error)
        if rows:
            yield Table(title=title, columns=columns("code", "where", "what", "fix"), rows=rows)


def _finding_row(finding: Finding) -> tuple[str, ...]:
    more = f" and {finding.count - 1} more" if finding.count > 1 else ""
    return finding.code, f"{finding.where}{more}", finding.text, finding.fix


def verification_report(verification: Verification) -> Section:
    """A sentence that says whether the planned step computes the same, and a row for each result."""
    wrong = set(map(id, verification.wrong))
    leaves = sorted(verification.leaves, key=lambda leaf: (id(leaf) not in wrong, leaf.bit_equal, -_share(leaf)))
    table = Table(
        title="Results",
        columns=columns("result", "type", ">differing", ">max difference", ">max relative", ">allowed", ""),
        rows=tuple(_leaf_row(leaf, is_wrong=id(leaf) in wrong, exact=verification.exact) for leaf in leaves),
        compact_rows=_MOST_ROWS,
    )
    return Section(title=_verification_title(verification), parts=(Text(text=" ".join(_notes(verification))), table))


def _verification_title(verification: Verification) -> str:
    if verification.wrong:
        return f"{verification.step}: {len(verification.wrong)} of {len(verification.leaves)} results are wrong"
    same = "bit for bit" if verification.bit_equal else "within rounding"
    return f"{verification.step}: the planned step computes the same, {same}"


def _notes(verification: Verification) -> Iterator[str]:
    how = "one operation at a time" if verification.exact else "compiled, on this machine"
    yield f"Both steps ran {how}."
    if verification.generated:
        yield f"{len(verification.generated)} described arguments were generated."
    draws, planned = verification.random_draws
    if draws or planned:
        yield f"Random bits are drawn {draws} times in the step, {planned} times in the planned step."
    if verification.effects:
        yield f"Besides the results there are effects, which were not compared: {', '.join(verification.effects)}."
    if verification.not_finite:
        yield f"{verification.not_finite} elements are NaN or infinite in the step as written."


def _leaf_row(leaf: LeafDifference, *, is_wrong: bool, exact: bool) -> tuple[str, ...]:
    size = math.prod(leaf.shape)
    return (
        leaf.path or "/",
        array_text(leaf.dtype, leaf.shape),
        f"{leaf.differing} of {size}" if leaf.differing else "0",
        _figure(leaf.max_absolute),
        _figure(leaf.max_relative),
        "0" if exact else _figure(leaf.allowed),
        _word(leaf, is_wrong=is_wrong),
    )


def _word(leaf: LeafDifference, *, is_wrong: bool) -> str:
    if is_wrong:
        return "NaN or infinity differs" if leaf.not_finite_differing else "WRONG"
    return "bit-equal" if leaf.bit_equal else "within rounding"


def _figure(number: float) -> str:
    return f"{number:.2g}"


def _share(leaf: LeafDifference) -> float:
    """How much of what is allowed is taken."""
    return leaf.max_absolute / leaf.allowed if leaf.allowed else float(leaf.differing)
