"""`lint`: everything that is known to go wrong with checkpoints and policies, looked for in one step.

Every lint is a function from what is seen of a step to remarks; `LINTS` is all of them, in the order in which they are
said. Nothing is compiled or run. Read after the other files of this folder.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxckpt._errors import PolicyError
from jaxckpt.linter import known_bad, loops, policies, scopes
from jaxckpt.linter import steps as whole
from jaxckpt.linter.context import Diagnostic, LintContext
from jaxckpt.linter.finding import Finding, Findings
from jaxckpt.machine import Target
from jaxckpt.policy import Policy, load_policy
from jaxckpt.trace import Traced, trace_step

_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lint:
    """One thing that is looked for.

    Attributes:
      code: A stable word.
      title: What is wrong where it is found.
      check: Yields a remark for each place.
      void: Whether what it finds has no effect, or gives a wrong result.
    """

    code: str
    title: str
    check: Callable[[LintContext], Iterator[Diagnostic]]
    void: bool = False

    def findings(self, context: LintContext) -> Iterator[Finding]:
        """What it finds in a step, one a place."""
        for diagnostic in self.check(context):
            yield Finding(
                code=self.code,
                title=self.title,
                where=diagnostic.where,
                said=diagnostic.text,
                fix=diagnostic.fix,
                void=self.void,
            )


def _void(code: str, title: str, check: Callable[[LintContext], Iterator[Diagnostic]]) -> Lint:
    return Lint(code=code, title=title, check=check, void=True)


def _advice(code: str, title: str, check: Callable[[LintContext], Iterator[Diagnostic]]) -> Lint:
    return Lint(code=code, title=title, check=check)


POLICY_LINTS = (
    _void("unmatched-rule", "a rule matches nothing", policies.unmatched_rules),
    _void("rule-on-primal", "a rule's name is only in the primal of a custom_vjp", policies.rules_on_primals),
    _advice("small-offload", "a small value is offloaded", policies.small_offloads),
    _advice("scores-saved", "a rule on products keeps attention scores", policies.saved_scores),
    _advice("kernel-recomputed", "an opaque kernel runs again", policies.recomputed_kernels),
    _advice("light-value-saved", "a rule keeps a mask or a broadcast", policies.saved_light_values),
    _advice("no-memory-saved", "the policy recomputes and saves no memory", policies.no_memory_saved),
    _advice("random-drawn-again", "random bits are drawn again on several devices", whole.random_planned_again),
)
"""Lints of a policy, and of the policies of marks, against the step."""

POLICY_ERROR_LINTS = tuple(each for each in POLICY_LINTS if each.void)
"""Those of them that carrying out a policy must not pass over."""

CHECKPOINT_LINTS = (
    _void("save-all-stub", "a policy of JAX that saves everything", scopes.save_all_stubs),
    _void("unknown-names", "a policy of names that are not in the step", scopes.unknown_names),
    _void("name-on-primal", "a name is only in the primal of a custom_vjp", scopes.names_on_primals),
    _void("remat3-policy", "jax_remat3 does not ask this policy", scopes.remat3_policies),
    _void("dots-all-batched", "a policy of products that saves none", scopes.dots_all_batched),
    _void("carry-offloaded", "an offloaded name is on a carry's output", loops.offloaded_carry_outputs),
    _void("nested-offload", "an offload in nested loops", loops.nested_offloads),
    _void("offload-miscompiled", "an offload in a scan that this compiler gets wrong", known_bad.miscompiled_offloads),
    _advice("whole-function", "a checkpoint around everything", scopes.whole_function),
    _advice("last-stage", "a checkpoint around the last stage", scopes.last_stage),
    _advice("scope-twice", "the same scope is checkpointed twice", scopes.same_scope_twice),
    _advice("missing-names", "some names of a policy are not in the step", scopes.missing_names),
    _advice("dots-saving-scores", "a policy of products keeps attention scores", scopes.dots_saving_scores),
    _advice("kernel-again", "an opaque kernel is not covered", scopes.kernels_again),
    _advice("callback-again", "a host call inside a checkpoint", scopes.callbacks_again),
    _advice("random-again", "random bits inside a checkpoint on several devices", scopes.random_again),
    _advice("carry-saved", "a saved name is on a carry's output", loops.saved_carry_outputs),
    _advice("small-copy", "a small value is offloaded in a loop", loops.small_loop_offloads),
)
"""Lints of the user's own `jax.checkpoint`s."""

STEP_LINTS = (
    _void("arguments-too-large", "the arguments alone are too large", whole.arguments_too_large),
    _advice("logits-dominate", "the logits dominate", whole.dominating_logits),
    _advice("donation-missing", "state is not donated", whole.missing_donation),
    _advice("parameters-returned", "a scan returns its parameters", loops.returned_parameters),
    _advice("light-value-stacked", "a scan stacks a mask or a broadcast", loops.stacked_light_values),
    _advice("gathered-parameter-kept", "a gathered parameter is kept", whole.gathered_parameters),
    _advice("parameters-renamed", "nn.remat changed the paths of parameters", whole.renamed_parameters),
)
"""Lints of the step itself."""

LINTS = (*POLICY_LINTS, *CHECKPOINT_LINTS, *STEP_LINTS)
"""All of them."""


def lint(
    step: Callable[..., Any],
    *args: Any,
    policy: Policy | str | Path | None = None,
    target: Target | str | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
) -> Findings:
    """Looks for what is known to go wrong with checkpoints and policies in a step. Nothing is compiled or run.

    Args:
      step: Loss, gradient and, if it is there, update: a function, plain or jitted.
      *args: Its arguments: arrays or `jax.ShapeDtypeStruct`s.
      policy: A policy, its path, or the name of a ready one, to hold against the step; None for what is in the step.
      target: The machine that the step should run on; None leaves out what depends on its memory.
      donate_argnums: Arguments whose memory the results may take.
      static_argnums: Arguments that are not traced.

    Returns:
      Void findings first. An empty result is no proof that nothing is wrong.

    Raises:
      PolicyError: There is no such policy.
      NoGradientError, ArgumentError: The step has no backward pass, or an argument is no array.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = jax.grad(jax.checkpoint(lambda w, x: jnp.sin(jnp.sin(x @ w) @ w).sum()))
      >>> lint(step, jnp.eye(4), jnp.ones((2, 4))).codes
      ('whole-function',)
    """
    chosen = load_policy(policy) if isinstance(policy, str | Path) else policy
    machine = Target(target) if isinstance(target, str) else target
    traced = trace_step(step, *args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    return lint_traced(traced, policy=chosen, target=machine)


def lint_traced(
    traced: Traced, *, policy: Policy | None = None, target: Target | None = None, lints: Sequence[Lint] = LINTS
) -> Findings:
    """The same for a step that is traced already.

    Args:
      traced: The step.
      policy: The policy to hold against it.
      target: The machine that it should run on.
      lints: What to look for: `POLICY_ERROR_LINTS` is what carrying out a policy needs.

    Returns:
      Void findings first; findings of equal layers are one, with their number.
    """
    context = LintContext(traced=traced, policy=policy, target=target)
    found = _folded(finding for each in lints for finding in each.findings(context))
    return Findings(
        step=traced.name,
        policy="" if policy is None else policy.name,
        findings=tuple(sorted(found, key=lambda finding: not finding.void)),
    )


def raise_on_errors(findings: Findings) -> None:
    """Raises where what was asked for has no effect or gives a wrong result; advice passes.

    Args:
      findings: Of a step.

    Raises:
      PolicyError: All void findings at once, each with its fix; also as `problems`.
    """
    void = findings.void
    if not void:
        return
    of = f'policy "{findings.policy}"' if findings.policy else "what is asked for"
    raise PolicyError(
        f"{of} does not fit {findings.step}.",
        got="; ".join(f"({number}) {each.title}: {each.said}" for number, each in enumerate(void, 1)),
        needed="rules and names that this step has something for",
        advice="; ".join(dict.fromkeys(each.fix for each in void)),
        problems=tuple(each.said for each in void),
        findings=void,
    )


def _folded(findings: Iterator[Finding]) -> Iterator[Finding]:
    """Findings of equal layers as one: the same code and line, in scopes that differ by numbers alone."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        scope = _DIGITS.sub("*", finding.where.scope)
        place = (scope, finding.where.source)
        message = () if any(place) else (finding.said,)
        groups.setdefault((finding.code, *place, *message), []).append(finding)
    return (replace(group[0], count=len(group)) for group in groups.values())
