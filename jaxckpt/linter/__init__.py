"""Linter: checks of a step for known mistakes with checkpoints and policies, before a run.

Read in this order: `finding` (the data), `jax_policies` (JAX's own policies, read), `context` (the data that lints
read), `policies`, `scopes`, `loops`, `steps` (the lints by theme), `checks` (all lints in order).
"""

from jaxckpt.linter.checks import (
    LINTS as LINTS,
    POLICY_ERROR_LINTS as POLICY_ERROR_LINTS,
    POLICY_LINTS as POLICY_LINTS,
    Lint as Lint,
    lint as lint,
    lint_traced as lint_traced,
    raise_on_errors as raise_on_errors,
)
from jaxckpt.linter.context import LOOPS as LOOPS, LintContext as LintContext
from jaxckpt.linter.finding import Finding as Finding, Findings as Findings, Location as Location
from jaxckpt.linter.jax_policies import primal_of_name as primal_of_name
