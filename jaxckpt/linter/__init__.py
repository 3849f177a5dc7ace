"""Linter: checks of a step for known mistakes with checkpoints and policies, before a run.

Read in this order: `finding` (the data), `jax_policies` (JAX's own policies, read), `context` (the data that lints
read), `policies`, `scopes`, `loops`, `steps` (the lints by theme), `checks` (all lints in order).
"""

from jaxckpt.linter.checks import LINTS, POLICY_ERROR_LINTS, POLICY_LINTS, Lint, lint, lint_traced, raise_on_errors
from jaxckpt.linter.context import LOOPS, LintContext
from jaxckpt.linter.finding import Finding, Findings, Location
from jaxckpt.linter.jax_policies import primal_of_name

__all__ = [
    "LINTS",
    "LOOPS",
    "POLICY_ERROR_LINTS",
    "POLICY_LINTS",
    "Finding",
    "Findings",
    "Lint",
    "LintContext",
    "Location",
    "lint",
    "lint_traced",
    "primal_of_name",
    "raise_on_errors",
]
