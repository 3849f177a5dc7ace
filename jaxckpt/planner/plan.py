"""The plan that users hold: decisions, what was predicted, and what the compiler said.

A `jaxckpt.ir.GraphPlan` with the context that a person needs to read the plan without the graph: a description of each
decided value, the arguments, the target and the budget.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from jaxckpt import ir
from jaxckpt._shown import Shown
from jaxckpt.calling import Calling
from jaxckpt.compiler import Footprint
from jaxckpt.rewrite import Argument, apply


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One value of a plan, described so that it can be read and checked without the graph.

    Scope, primitive and source are those of the op that makes the value, `name` is its `checkpoint_name`, and
    `size_bytes` are on one device.
    """

    value: int
    scope: str
    primitive: str
    name: str | None
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    source: str = ""


def describe(graph: ir.Graph, value: int) -> Described:
    """Describes a value of a graph."""
    producer = graph.producer[value]
    op = None if producer is None else graph.ops[producer]
    array = graph.values[value]
    return Described(
        value=value,
        scope=op.scope if op else "",
        primitive=op.primitive if op else "argument",
        name=array.name,
        shape=array.shape,
        dtype=array.dtype,
        size_bytes=array.size_bytes,
        source=op.source if op else "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One compile on the way to a plan: totals by the model and by the compiler, and predicted seconds of a step.

    `compile_s` is 0 where the candidate had been compiled before.
    """

    strategy: str
    predicted_bytes: int
    measured_bytes: int
    step_s: float
    compile_s: float


@dataclass(frozen=True, kw_only=True)
class Plan(ir.GraphPlan, Shown):
    """Decisions for one step, proved by the compiler for one target.

    Attributes:
      target: The target's name.
      budget_bytes: What was asked, bytes per device; None where nothing was.
      footprint: What the compiled, planned step takes; None if it was not compiled.
      described: For every decided value what it is, in the order of `decisions`.
      arguments: What the step was traced with.
      static_argnums: Positions of its arguments that were not traced.
      notes: Sentences that a person should read: what is special about this plan.
      attempts: The compiles that led here.
    """

    _report: ClassVar[str] = "jaxckpt.report.plan:plan_report"

    target: str
    budget_bytes: int | None = None
    footprint: Footprint | None = None
    described: tuple[Described, ...] = ()
    arguments: tuple[Argument, ...] = ()
    static_argnums: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()

    __hash__ = ir.GraphPlan.__hash__

    @property
    def stretches(self) -> tuple[ir.LoopSplit, ...]:
        """Deprecated name of `loop_splits`."""
        warnings.warn("Plan.stretches is now Plan.loop_splits", DeprecationWarning, stacklevel=2)
        return self.loop_splits

    @property
    def nests(self) -> tuple[ir.LoopTiling, ...]:
        """Deprecated name of `loop_tilings`."""
        warnings.warn("Plan.nests is now Plan.loop_tilings", DeprecationWarning, stacklevel=2)
        return self.loop_tilings

    def apply(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The step with this plan's decisions carried out.

        Args:
          step: The function that the plan was made for, plain or jitted.

        Returns:
          A function of the same signature and results. Wrap it in `jax.jit`, with the donation that the plan
          was made with. It refuses arguments of other shapes (`PlanMismatchError`).
        """
        static_argnums = () if Calling(step).is_jitted else self.static_argnums
        return apply(step, self, static_argnums=static_argnums, arguments=self.arguments)

    def edited(self, decide: Callable[[Described], ir.Decision | None]) -> "Plan":
        """The plan with other decisions, written by hand.

        Args:
          decide: For each decided value another decision, or None to leave it as it is.

        Returns:
          A plan that can be applied. It has no prediction and no footprint any more: measure it with
          `jaxckpt.footprint(plan.apply(step), ...)`.

        Example:
          >>> import jax, jax.numpy as jnp
          >>> from jaxckpt.ir import Save
          >>> from jaxckpt.planner import Planner
          >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
          >>> args = jnp.eye(4), jnp.ones((2, 4))
          >>> full = Planner(step, *args, target="cpu").plan(budget="1GiB", strategy="full")
          >>> kept = full.edited(lambda value: Save() if value.primitive == "tanh" else None)
          >>> {each.primitive for each in kept.described if kept.decisions[each.value] == Save()}
          {'tanh'}
        """
        decisions = {each.value: decide(each) or self.decisions[each.value] for each in self.described}
        changed = sum(decision != self.decisions[value] for value, decision in decisions.items())
        return replace(
            self,
            decisions=decisions,
            strategy=f"{self.strategy}, edited",
            prediction=None,
            footprint=None,
            notes=(*self.notes, f"{changed} decisions were changed by hand."),
            attempts=(),
        )

    def save(self, path: str | Path) -> None:
        """Writes the plan as a TOML file that a person can read and compare; see `jaxckpt.load_plan`."""
        from jaxckpt.planner.plan_file import save_plan

        save_plan(self, path)
