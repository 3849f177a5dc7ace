"""Lint: what is known to go wrong with checkpoints and policies, looked for in a step before it costs a run.

Read in this order: `finding` (the data), `jax_policies` (what JAX's own policies say), `context` (what is looked at),
`policies`, `scopes`, `loops`, `known_bad`, `whole` (the lints by theme), `lint` (all of them in order).
"""

from jaxckpt.linter.context import LOOPS, LintContext
from jaxckpt.linter.finding import Finding, Findings, Location
from jaxckpt.linter.jax_policies import primal_of_name
from jaxckpt.linter.lint import LINTS, POLICY_ERROR_LINTS, POLICY_LINTS, Lint, lint, lint_traced, raise_on_errors

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
