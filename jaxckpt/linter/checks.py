"""`lint`: checks one step for all known mistakes with checkpoints and policies.

Every lint is a function from the context of a step to diagnostics; `LINTS` lists them all, in the order of the
findings. Nothing is compiled or run. Read after the other files of this folder.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from jaxckpt._errors import PolicyError
from jaxckpt._step import Step
from jaxckpt.linter import loops, policies, scopes, steps
from jaxckpt.linter.context import Diagnostic, LintContext
from jaxckpt.linter.finding import Finding, Findings
from jaxckpt.machine import Target
from jaxckpt.policy import Policy, as_policy
from jaxckpt.trace import Traced, trace_step

_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Lint:
    """One check, with a stable code and a title.

    An error means that a request has no effect or a result is wrong; else findings are advice.
    """

    code: str
    title: str
    check: Callable[[LintContext], Iterator[Diagnostic]]
    is_error: bool = False

    def findings(self, context: LintContext) -> Iterator[Finding]:
        """The findings in a step, one for each location."""
        for diagnostic in self.check(context):
            yield Finding(
                code=self.code,
                title=self.title,
                where=diagnostic.where,
                text=diagnostic.text,
                fix=diagnostic.fix,
                is_error=self.is_error,
            )


_advice, _error = Lint, partial(Lint, is_error=True)

POLICY_LINTS = (
    _error("unmatched-rule", "a rule matches nothing", policies.unmatched_rules),
    _error("rule-on-primal", "a rule's name is only in the primal of a custom_vjp", policies.rules_on_primals),
    _advice("small-offload", "a small value is offloaded", policies.small_offloads),
    _advice("scores-saved", "a rule on products saves attention scores", policies.saved_scores),
    _advice("kernel-recomputed", "an opaque kernel is recomputed", policies.kernels_recomputed_by_policy),
    _advice("argument-derived-saved", "a rule saves a mask or a broadcast", policies.saved_argument_derived),
    _advice("no-memory-saved", "the policy recomputes and saves no memory", policies.no_memory_saved),
    _advice("random-redrawn-by-policy", "random bits are drawn twice on several devices", steps.planned_redraws),
)
"""Lints of a policy, and of the policies of marks, against the step."""

POLICY_ERROR_LINTS = tuple(each for each in POLICY_LINTS if each.is_error)
"""The errors among them, for which a policy is not carried out."""

CHECKPOINT_LINTS = (
    _error("save-all-stub", "a policy of JAX that saves everything", scopes.save_all_stubs),
    _error("unknown-names", "a policy of names that are not in the step", scopes.unknown_names),
    _error("name-on-primal", "a name is only in the primal of a custom_vjp", scopes.names_on_primals),
    _error("remat3-policy", "jax_remat3 ignores this policy", scopes.remat3_policies),
    _error("dots-all-batched", "a policy of products that saves none", scopes.dots_all_batched),
    _error("carry-offloaded", "an offloaded name is on a carry's output", partial(loops.named_carries, offloaded=True)),
    _error("nested-offload", "an offload in nested loops", loops.nested_offloads),
    _error("offload-miscompiled", "an offload in a scan that this compiler gets wrong", loops.miscompiled_offloads),
    _advice("whole-function", "a checkpoint around everything", scopes.unsplit_function),
    _advice("last-stage", "a checkpoint around the last stage", scopes.last_stage),
    _advice("scope-twice", "the same scope is checkpointed twice", scopes.same_scope_twice),
    _advice("missing-names", "some names of a policy are not in the step", scopes.missing_names),
    _advice("dots-saving-scores", "a policy of products saves attention scores", scopes.dots_saving_scores),
    _advice(
        "kernel-recomputed-by-checkpoint", "an opaque kernel is not covered", scopes.kernels_recomputed_by_checkpoint
    ),
    _advice("callback-repeated", "a host call inside a checkpoint", scopes.repeated_callbacks),
    _advice("random-redrawn", "random bits inside a checkpoint on several devices", scopes.redrawn_random),
    _advice("carry-saved", "a saved name is on a carry's output", partial(loops.named_carries, offloaded=False)),
    _advice("small-copy", "a small value is offloaded in a loop", loops.small_loop_offloads),
)
"""Lints of the user's own `jax.checkpoint`s."""

STEP_LINTS = (
    _error("arguments-too-large", "the arguments alone are too large", steps.arguments_too_large),
    _advice("logits-dominate", "the logits dominate", steps.dominating_logits),
    _advice("donation-missing", "state is not donated", steps.missing_donation),
    _advice("parameters-returned", "a scan returns its parameters", loops.returned_parameters),
    _advice("argument-derived-stacked", "a scan stacks a mask or a broadcast", loops.stacked_argument_derived),
    _advice("gathered-parameter-kept", "a gathered parameter is saved", steps.gathered_parameters),
    _advice("parameters-renamed", "nn.remat changed the paths of parameters", steps.renamed_parameters),
)
"""Lints of the step itself."""

LINTS = (*POLICY_LINTS, *CHECKPOINT_LINTS, *STEP_LINTS)
"""All of them."""


def lint(
    step: Callable[..., Any] | Step,
    *args: Any,
    policy: Policy | str | Path | None = None,
    target: Target | str | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
) -> Findings:
    """Checks a step for known mistakes with checkpoints and policies. Nothing is compiled or run.

    Args:
      step: Loss, gradient and, if there is one, the update: a function, plain or jitted; or a `jaxckpt.Step`.
      *args: Its arguments: arrays or `jax.ShapeDtypeStruct`s.
      policy: A policy, its path, or the name of a ready policy; None to check only the marks in the step.
      target: The machine that the step should run on; None leaves out checks of its memory.
      donate_argnums: Arguments whose memory the results may take.
      static_argnums: Arguments that are not traced.

    Returns:
      Errors first (`Finding.is_error`). An empty result is no proof that nothing is wrong.

    Raises:
      PolicyError: There is no such policy.
      NoGradientError, ArgumentError: The step has no backward pass, or an argument is no array.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = jax.grad(jax.checkpoint(lambda w, x: jnp.sin(jnp.sin(x @ w) @ w).sum()))
      >>> lint(step, jnp.eye(4), jnp.ones((2, 4))).codes
      ('whole-function',)
    """
    chosen = as_policy(policy)
    machine = Target(target) if isinstance(target, str) else target
    call = Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    traced = trace_step(call.function, *call.args, kwargs=call.kwargs, **call.argnums)
    return lint_traced(traced, policy=chosen, target=machine)


def lint_traced(
    traced: Traced, *, policy: Policy | None = None, target: Target | None = None, lints: Sequence[Lint] = LINTS
) -> Findings:
    """`lint` for a step that is traced already: errors first; findings of equal layers are one, with their number."""
    context = LintContext(traced=traced, policy=policy, target=target)
    found = _folded(finding for each in lints for finding in each.findings(context))
    return Findings(
        step=traced.name,
        policy="" if policy is None else policy.name,
        findings=tuple(sorted(found, key=lambda finding: not finding.is_error)),
    )


def raise_on_errors(findings: Findings) -> None:
    """Raises a `PolicyError` that names all errors, each with its fix; advice passes."""
    errors = findings.errors
    if not errors:
        return
    of = f'policy "{findings.policy}"' if findings.policy else "a policy in the step"
    raise PolicyError(
        f"{of} does not fit {findings.step}.",
        got="; ".join(f"({number}) {each.title}: {each.text}" for number, each in enumerate(errors, 1)),
        needed="rules and names that this step has something for",
        advice="; ".join(dict.fromkeys(each.fix for each in errors)),
        problems=tuple(each.text for each in errors),
        findings=errors,
    )


def _folded(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Findings of equal layers as one: of one code, source line and advice, in scopes that differ by numbers alone."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        scope = _DIGITS.sub("*", finding.where.scope)
        place = (scope, finding.where.source)
        message = (_DIGITS.sub("*", finding.fix),) if any(place) else (finding.text,)
        groups.setdefault((finding.code, *place, *message), []).append(finding)
    return (replace(group[0], count=len(group)) for group in groups.values())
