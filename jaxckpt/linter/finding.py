"""Findings of the linter as plain data: each with its location, its figures and its fix."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxckpt._shown import Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A location in the user's step: the path of names around it, and "file.py:123"; either may be ""."""

    scope: str = ""
    source: str = ""

    def __str__(self) -> str:
        return " at ".join(filter(None, (self.scope, self.source))) or "the step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding.

    Attributes:
      code: The kind of finding, a stable word: "unmatched-rule".
      title: The kind as a sentence without figures.
      where: Its location; the first of several.
      text: The defect, with names and sizes.
      fix: What to do.
      is_error: True if the user's request has no effect or gives a wrong result: an error. Other findings are advice.
      count: The number of such locations.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.grad(jax.checkpoint(lambda w, x: jnp.sin(jnp.sin(x @ w) @ w).sum()))
      >>> (finding,) = jaxckpt.lint(step, jnp.eye(4), jnp.ones((2, 4)))
      >>> finding.code, finding.is_error
      ('whole-function', False)
      >>> print(finding.title)
      a checkpoint around everything
      >>> print(finding.fix)
      Put the checkpoint around each layer, or jaxckpt.apply(step, policy) around the step.
    """

    code: str
    title: str
    where: Location
    text: str
    fix: str
    is_error: bool = False
    count: int = 1

    def __str__(self) -> str:
        more = f" (and {self.count - 1} more)" if self.count > 1 else ""
        return f"{self.code}: {self.title} [{self.where}{more}] {self.text} {self.fix}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Findings(Shown):
    """All findings of one step, errors first.

    Attributes:
      policy: The name of the policy that the step is checked against; "" for none.
      findings: In the order of the lints.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.grad(lambda w, x: jnp.sin(x @ w).sum())
      >>> policy = jaxckpt.Policy.from_toml('rule = [{name = "attention", decision = "save"}]')
      >>> findings = jaxckpt.lint(step, jnp.eye(4), jnp.ones((2, 4)), policy=policy)
      >>> findings.codes, len(findings.errors)
      (('unmatched-rule',), 1)
      >>> print(findings.of("unmatched-rule")[0].where)
      the step
    """

    _report: ClassVar[str] = "jaxckpt.report.checks:findings_report"

    step: str
    policy: str = ""
    findings: tuple[Finding, ...] = ()

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        return f"{self.step}: {', '.join(self.codes) or 'nothing to say'}"

    def __str__(self) -> str:
        return "\n".join(map(str, self.findings)) or f"{self.step}: nothing to say"

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of all findings, each once."""
        return tuple(dict.fromkeys(finding.code for finding in self.findings))

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The errors: findings where a request has no effect or gives a wrong result."""
        return tuple(finding for finding in self.findings if finding.is_error)

    def of(self, code: str) -> tuple[Finding, ...]:
        """The findings of one code."""
        return tuple(finding for finding in self.findings if finding.code == code)
