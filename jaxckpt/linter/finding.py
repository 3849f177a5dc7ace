"""What lint says of a step: findings, each with its place, its figures and its remedy, as plain data."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxckpt._shown import Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where something stands in the user's step.

    Attributes:
      scope: The path of names around it; "" where nothing is named.
      source: "file.py:123", or "".
    """

    scope: str = ""
    source: str = ""

    def __str__(self) -> str:
        return " at ".join(filter(None, (self.scope, self.source))) or "the step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to look at.

    Attributes:
      code: What it is, a stable word: "unmatched-rule".
      title: The same as a sentence without figures.
      where: Its place, of several the first.
      said: The defect, with names and sizes.
      fix: What to do.
      void: Whether what the user asked for has no effect or gives a wrong result. The rest is advice.
      count: How many such places there are.
    """

    code: str
    title: str
    where: Location
    said: str
    fix: str
    void: bool = False
    count: int = 1

    def __str__(self) -> str:
        more = f" (and {self.count - 1} more)" if self.count > 1 else ""
        return f"{self.code}: {self.title} [{self.where}{more}] {self.said} {self.fix}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings(Shown):
    """All findings of one step, the void ones first.

    Attributes:
      step: The step's name.
      policy: The name of the policy that it was looked at with; "" for none.
      findings: In the order of the lints.
    """

    _report: ClassVar[str] = "jaxckpt.report.lint:findings_report"

    step: str
    policy: str = ""
    findings: tuple[Finding, ...] = ()

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or f"{self.step}: nothing to say"

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of all findings, each once."""
        return tuple(dict.fromkeys(finding.code for finding in self.findings))

    @property
    def void(self) -> tuple[Finding, ...]:
        """Those that make a result wrong, or what was asked for void."""
        return tuple(finding for finding in self.findings if finding.void)

    def of(self, code: str) -> tuple[Finding, ...]:
        """The findings of one code."""
        return tuple(finding for finding in self.findings if finding.code == code)
