"""Lint: what is known to go wrong with checkpoints and policies, looked for in a step before it costs a run.

Read in this order: `finding` (the data), `jax_policies` (what JAX's own policies say), `seen` (what is looked at),
`policies`, `scopes`, `loops`, `known_bad`, `whole` (the lints by theme), `lint` (all of them in order).
"""

from jaxckpt.linter.context import LOOPS, Seen
from jaxckpt.linter.finding import Finding, Findings, Place
from jaxckpt.linter.jax_policies import primal_of_name
from jaxckpt.linter.lint import LINTS, POLICY_LINTS, VOID_POLICY_LINTS, Lint, lint, lint_traced, refuse_void

__all__ = [
    "LINTS",
    "LOOPS",
    "POLICY_LINTS",
    "VOID_POLICY_LINTS",
    "Finding",
    "Findings",
    "Lint",
    "Place",
    "Seen",
    "lint",
    "lint_traced",
    "primal_of_name",
    "refuse_void",
]
