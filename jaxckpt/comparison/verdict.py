"""The worth of each rule of a policy, or each name of a step, by ablation.

The step is compiled with all rules and with all but one, for each rule; the difference is its worth. The step is traced
once. Rules whose absence changes nothing in the plan cost no compile.
"""

import glob
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from jaxckpt._errors import PolicyError
from jaxckpt._progress import Progress
from jaxckpt._records import shared_fields
from jaxckpt._shown import Shown
from jaxckpt._step import Step
from jaxckpt._units import format_bytes
from jaxckpt.compiler import Footprint
from jaxckpt.cost import strip_views
from jaxckpt.ir import GraphPlan, Recompute, Save
from jaxckpt.ir.scope import TAG
from jaxckpt.linter import LintContext, primal_of_name
from jaxckpt.machine import Target
from jaxckpt.planner import Planner
from jaxckpt.policy import Match, Policy, Resolved, Rule, as_policy, forward_values
from jaxckpt.solve import PolicyPlan, Problem, plan_from_policy

Word = Literal["free", "pays", "costs", "no effect"]

_SAME = 1e-3
"""Totals and times that differ by less than this share count as equal: small changes of a program move its buffers.
No benchmark fixed the exact value."""
_ALL_NAMES = "all names saved"
_IN_LOOP = "inside the body of a {primitive} that is decided about only as one op"
_ON_PRIMAL = "inside the primal of the custom_vjp {primal}, which a differentiated step does not run"
_DEAD = "dead in the backward: nothing of the backward pass reads it"
_OVERRULED = "other rules or marks decide about all that it matches"
_SAME_ANYWAY = "what decides without it decides the same"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The effect of one rule or name. Changes are figures with the rule minus figures without it.

    Attributes:
      subject: The name, or the rule as text.
      decision: What it decides: "save", "recompute", "offload", "partition".
      word: "free": less memory or less work, and more of neither. "pays": more of one for less of the other, and the
        less is what its decision is for (less work for a save, less memory for all others). "costs": more of either,
        without that. "no effect": the compiled programs take the same.
      why: Why it has no effect, or moves nothing to the host; "" otherwise.
      value_count: Arrays of the traced step that it decides about, views of one array being one.
      value_bytes: Their bytes on one device.
      bytes_change: Compiled total, bytes per device.
      host_bytes_change: Bytes in host memory.
      flops_change: Arithmetic of the compiled program.
      step_s_change: Estimated seconds of a step.
    """

    subject: str
    decision: str
    word: Word
    why: str = ""
    value_count: int = 0
    value_bytes: int = 0
    bytes_change: int = 0
    host_bytes_change: int = 0
    flops_change: int = 0
    step_s_change: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Verdicts(Shown):
    """Verdicts on all rules of a policy, or on all names of a step.

    Attributes:
      step: The step's name.
      policy: The policy's name; "all names saved" if there was none.
      target: The machine compiled for.
      total_bytes: Compiled total with all of them, bytes per device.
      host_bytes: Bytes in host memory with all of them.
      flops: Arithmetic of the compiled program with all of them.
      step_s: Estimated seconds of a step with all of them.
      compiles: Programs that were compiled.
      verdicts: In the order of the rules; for names, in the order in which the step computes their values.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> def loss(w, x):
      ...     return jnp.tanh(jaxckpt.name(jnp.tanh(x @ w), "hidden") @ w).sum()
      >>> found = jaxckpt.verdicts(jax.grad(loss), jnp.eye(8), jnp.ones((64, 8)), target="cpu")
      >>> verdict = found.of("hidden")
      >>> verdict.decision, verdict.value_count, verdict.value_bytes
      ('save', 1, 2048)
      >>> verdict.word in ("free", "pays", "costs", "no effect")
      True
    """

    _report: ClassVar[str] = "jaxckpt.report.comparison:verdicts_report"

    step: str
    policy: str
    target: str
    total_bytes: int
    host_bytes: int
    flops: int
    step_s: float
    compiles: int
    verdicts: tuple[Verdict, ...] = ()

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        total = f"{format_bytes(self.total_bytes)} on {self.target}"
        words = ", ".join(f"{each.subject}: {each.word}" for each in self.verdicts)
        return f"{self.policy} on {self.step}, {total}; {words or 'no rules'}"

    def of(self, subject: str) -> Verdict:
        """The verdict on a name, or on a rule by its text.

        Raises:
          KeyError: There is none on it.
        """
        return {each.subject: each for each in self.verdicts}[subject]


def verdicts(
    step: Callable[..., Any] | Step,
    *args: Any,
    target: Target | str,
    policy: Policy | str | Path | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    progress: Progress | None = None,
) -> Verdicts:
    """Finds the worth of each rule of a policy, by compiling the step with and without the rule.

    Args:
      step: Loss, gradient and, if there is one, the update: a function, plain or jitted; or a `jaxckpt.Step`.
      *args: Its arguments: arrays or `jax.ShapeDtypeStruct`s.
      target: The machine to compile for.
      policy: A policy, its path, or the name of a ready one. None: every `checkpoint_name` of the step is saved, the
        rest recomputed, and the verdicts are on the names.
      donate_argnums: Arguments whose memory the results may take.
      static_argnums: Arguments that are not traced.
      progress: Called with a sentence before each longer piece of work.

    Returns:
      One verdict a rule or name. A rule is judged with all others in place: two rules that do the
      same have no effect each.

    Raises:
      PolicyError: There is no such policy, or its regions hold nothing. Rules that match nothing are no error here:
        the verdict on them says so.
      NoGradientError, ArgumentError, TargetError: As `jaxckpt.plan`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jax.ad_checkpoint import checkpoint_name
      >>> def loss(w, x):
      ...     x = checkpoint_name(jnp.tanh(x @ w), "hidden")
      ...     return checkpoint_name(jnp.tanh(x @ w).sum(), "loss")
      >>> found = verdicts(jax.grad(loss), jnp.eye(8), jnp.ones((4, 8)), target="cpu")
      >>> [(verdict.subject, verdict.why.split(":")[0]) for verdict in found.verdicts][-1]
      ('loss', 'dead in the backward')
    """
    chosen = as_policy(policy)
    planner = Planner(
        Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums),
        target=target,
        progress=progress,
    )
    judged = _Judged(planner, chosen)
    found = tuple(map(judged.verdict, range(len(judged.policy.rules))))
    total = judged.measured(judged.followed.plan)
    return Verdicts(
        step=planner.traced.name,
        policy=judged.policy.name,
        target=planner.target.name,
        total_bytes=total.total_bytes,
        host_bytes=total.host_bytes,
        flops=_flops(total),
        step_s=total.step_s,
        compiles=judged.compiles,
        verdicts=found,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """Figures with a rule less those without it; differences too small to mean anything are 0."""

    bytes_change: int = 0
    host_bytes_change: int = 0
    flops_change: int = 0
    step_s_change: float = 0.0

    @property
    def work(self) -> float:
        return self.step_s_change or self.flops_change

    @property
    def is_nothing(self) -> bool:
        return not (self.bytes_change or self.host_bytes_change or self.work)


class _Judged:
    """One policy on one traced step."""

    def __init__(self, planner: Planner, policy: Policy | None):
        self.planner = planner
        self.lint_context = LintContext(traced=planner.traced)
        self.by_name = policy is None
        self.policy = _of_names(self.lint_context) if policy is None else policy
        self.followed = _follow(planner.problem, self.policy)
        self.compiles = 0

    def verdict(self, index: int) -> Verdict:
        """The verdict on one rule."""
        rule = self.policy.rules[index]
        decided = [r for r in self.followed.resolved if r.rule == index and r.by.policy.name == self.policy.name]
        arrays = {strip_views(self.planner.graph, r.forward_value.id) for r in decided}
        change, why = self._change(index, decided)
        return Verdict(
            subject=_name(rule) if self.by_name else f"rule {index + 1} ({rule})",
            decision=type(rule.decision).__name__.lower(),
            word=_word(rule, change),
            why=why,
            value_count=len(arrays),
            value_bytes=self.planner.graph.size_bytes(arrays),
            **shared_fields(change, Verdict),
        )

    def measured(self, plan: GraphPlan) -> Footprint:
        """The compiled footprint of a plan; each plan is compiled once."""
        self.compiles += not self.planner.is_compiled(plan)
        return self.planner.measure(plan).footprint

    def _change(self, index: int, decided: list[Resolved]) -> tuple[_Change, str]:
        rules = self.policy.rules[:index] + self.policy.rules[index + 1 :]
        without = _follow(self.planner.problem, replace(self.policy, rules=rules)).plan
        if without == self.followed.plan:
            return _Change(), self._why(index, decided)
        change = _between(self.measured(self.followed.plan), self.measured(without))
        if change.is_nothing:
            return change, "the compiled programs take the same"
        stays = self.policy.rules[index].decision.on_host and change.host_bytes_change <= 0
        return change, "0 bytes moved to the host" if stays else ""

    def _why(self, index: int, decided: list[Resolved]) -> str:
        """Why a rule changes nothing in the plan."""
        rule = self.policy.rules[index]
        if not decided:
            return self._why_nothing(index, rule)
        problem, plan = self.planner.problem, self.followed.plan
        values = {r.forward_value.id for r in decided}
        if isinstance(rule.decision, Recompute) or values & plan.decisions.keys():
            return _SAME_ANYWAY
        if values <= set(problem.graph.outputs):
            return "the step returns it"
        if not values & problem.read_after_forward:
            return _DEAD
        if values & problem.read_after_forward <= problem.fusion.argument_derived:
            return "it costs nothing to recompute, and is computed where it is read"
        if values & problem.worth_saving:
            return _SAME_ANYWAY
        return "it is no array of its own: compilers compute it where it is read"

    def _why_nothing(self, index: int, rule: Rule) -> str:
        """Why a rule decides about no value."""
        if any(index in r.others for r in self.followed.resolved):
            return _OVERRULED
        matching = [c for c in forward_values(self.planner.graph) if rule.match.holds(c)]
        if matching:
            return _OVERRULED if any(c.is_residual for c in matching) else _DEAD
        return self._why_unmatched(rule)

    def _why_unmatched(self, rule: Rule) -> str:
        """Why a rule matches no forward value."""
        name = _name(rule)
        if not name:
            return "never attached: it matches no value of the step"
        site = self.lint_context.named(rule.match.name or "")
        if site is None:
            primal = primal_of_name(name)
            if primal is None:
                return "never attached: no value of the step has this name"
            return _ON_PRIMAL.format(primal=primal)
        return _IN_LOOP.format(primitive=site.loops[0].primitive.name) if site.loops else _DEAD


def _of_names(context: LintContext) -> Policy:
    """The policy that saves every name of the step, and those that policies of JAX in it mention."""
    mentioned = {name for _, read in context.checkpoints for policy in read for name in policy.names}
    names = dict.fromkeys([*context.names, *sorted(mentioned)])
    rules = (
        Rule(match=Match(name=glob.escape(name)), decision=Save(), optional=True)
        for name in names
        if not name.startswith(TAG)
    )
    return Policy(name=_ALL_NAMES, rules=tuple(rules), default="recompute")


def _name(rule: Rule) -> str:
    """The name that a rule asks for, as it was before it became a glob."""
    name = rule.match.name or ""
    for letter in "*?[":
        name = name.replace(f"[{letter}]", letter)
    return name


def _follow(problem: Problem, policy: Policy) -> PolicyPlan:
    """A policy carried over to a step, rules that match nothing left out."""
    lenient = replace(policy, rules=tuple(replace(rule, optional=True) for rule in policy.rules))
    try:
        return plan_from_policy(problem, lenient)
    except PolicyError:
        return plan_from_policy(problem, replace(policy, rules=()))


def _between(one: Footprint, other: Footprint) -> _Change:
    bytes_change, step_s_change = one.total_bytes - other.total_bytes, one.estimated_step_s - other.estimated_step_s
    return _Change(
        bytes_change=bytes_change if abs(bytes_change) > _SAME * other.total_bytes else 0,
        host_bytes_change=one.host_bytes - other.host_bytes,
        flops_change=_flops(one) - _flops(other),
        step_s_change=step_s_change if abs(step_s_change) > _SAME * other.estimated_step_s else 0.0,
    )


def _word(rule: Rule, change: _Change) -> Word:
    if change.is_nothing:
        return "no effect"
    if change.bytes_change <= 0 and change.work <= 0:
        return "free"
    if change.bytes_change >= 0 and change.work >= 0:
        return "costs"
    gain = change.work if isinstance(rule.decision, Save) else change.bytes_change
    return "pays" if gain < 0 else "costs"


def _flops(footprint: Footprint) -> int:
    kernels = footprint.memory.kernels if footprint.memory is not None else ()
    return round(sum(kernel.flops * kernel.count for kernel in kernels))
