"""Findings as a report: what is void first, then advice, each with its place and its fix.

Read after `tree`.
"""

from collections.abc import Iterator

from jaxckpt.linter import Finding, Findings
from jaxckpt.report.tree import Section, Table, Text, columns

_NO_PROOF = "Nothing was compiled or run; that nothing is said of something is no proof that it is right."


def findings_report(findings: Findings) -> Section:
    """Report of the findings of `jaxckpt.lint`."""
    return Section(title=_title(findings), parts=(*_tables(findings), Text(text=_NO_PROOF)))


def _title(findings: Findings) -> str:
    of = f'{findings.step} under "{findings.policy}"' if findings.policy else findings.step
    if not findings.findings:
        return f"{of}: nothing found"
    void, advice = len(findings.void), len(findings) - len(findings.void)
    counts = (f"{void} without effect or wrong" if void else "", f"{advice} to look at" if advice else "")
    return f"{of}: {', '.join(filter(None, counts))}"


def _tables(findings: Findings) -> Iterator[Table]:
    for title, void in (("Without effect, or wrong", True), ("Advice", False)):
        rows = tuple(_row(finding) for finding in findings if finding.void is void)
        if rows:
            yield Table(title=title, columns=columns("code", "where", "what", "fix"), rows=rows)


def _row(finding: Finding) -> tuple[str, ...]:
    more = f" and {finding.count - 1} more" if finding.count > 1 else ""
    return finding.code, f"{finding.where}{more}", finding.said, finding.fix
