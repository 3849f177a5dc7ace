"""The plan that users hold: decisions, what was predicted, and what the compiler said.

A `jaxckpt.ir.GraphPlan` with the context that a person needs to read the plan without the graph: a description of each
decided value, the arguments, the target and the budget.
"""

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar, ParamSpec, TypeVar

from jaxckpt import ir
from jaxckpt._shown import Shown
from jaxckpt._units import format_bytes
from jaxckpt.calling import Calling
from jaxckpt.compiler import Footprint
from jaxckpt.ir.layers import fold_layers, layer_ranges
from jaxckpt.rewrite import Argument, PlannedFunction, apply

_Arguments = ParamSpec("_Arguments")
_Results = TypeVar("_Results")


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One value of a plan, described so that it can be read and checked without the graph.

    Scope, primitive and source are those of the op that makes the value, `name` is its `checkpoint_name`, and
    `size_bytes` are on one device. The source's path is relative to its project, so that a plan file is the same on all
    machines.
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
        source=_in_project(op.source) if op else "",
    )


BY_HAND = "Changed by hand"
"""How notes on decisions that the user has changed begin."""
_PROJECT_FILES = (".git", "pyproject.toml", "setup.py")
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")


@functools.cache
def _in_project(source: str) -> str:
    """A line of code by its path in its package or project; with the whole path where it is in neither."""
    path = Path(source)
    for folder in path.parents:
        if folder.name in _PACKAGE_FOLDERS or any((folder / name).exists() for name in _PROJECT_FILES):
            return str(path.relative_to(folder))
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else source


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


@dataclass(frozen=True, kw_only=True, repr=False)
class Plan(ir.GraphPlan, Shown):
    """Decisions for one step, with the total that the compiler of one target gives.

    Attributes:
      target: The target's name.
      budget_bytes: The budget, bytes per device; None if there was none.
      footprint: Of the compiled planned step; None if it was not compiled.
      estimated_step_s: Seconds of a step, estimated from the compiled program (roofline, and waits for copies to and
        from the host); 0 if it was not compiled. The model's seconds, without a compiler, are `predicted.step_s`.
      described: Description of every decided value, in the order of `decisions`.
      arguments: Shapes and types with which the step was traced.
      static_argnums: Positions of its arguments that were not traced.
      notes: Sentences on particularities of this plan.
      attempts: The compiles of the search.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> planner = jaxckpt.Planner(step, jnp.eye(4), jnp.ones((2, 4)), target="cpu")
      >>> plan = planner.plan(budget="1GiB", strategy="full")
      >>> plan.target, plan.strategy, plan.footprint.total_bytes <= plan.budget_bytes
      ('cpu', 'full', True)
      >>> {plan.decisions[each.value].word for each in plan.described}
      {'recompute'}
    """

    _report: ClassVar[str] = "jaxckpt.report.plan:plan_report"

    target: str
    budget_bytes: int | None = None
    footprint: Footprint | None = None
    estimated_step_s: float = 0.0
    described: tuple[Described, ...] = ()
    arguments: tuple[Argument, ...] = ()
    static_argnums: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()

    __hash__ = ir.GraphPlan.__hash__
    __repr__ = Shown.__repr__  # before that of GraphPlan

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        total = "not compiled" if self.footprint is None else f"{format_bytes(self.footprint.total_bytes)} compiled"
        budget = "" if self.budget_bytes is None else f" of {format_bytes(self.budget_bytes)}"
        counts = Counter(decision.participle for decision in self.decisions.values())
        decided = ", ".join(f"{count} {word}" for word, count in counts.items()) or "no decisions"
        decided += "".join(f", rows in {chunk.pieces} pieces" for chunk in self.row_chunks)
        if self.host_arguments:
            decided += f", {len(self.host_arguments)} arguments on the host"
        return f"{self.strategy} for {self.target}, {total}{budget}; {decided}"

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

    def apply(
        self, step: Callable[_Arguments, _Results], *, donate_argnums: int | Sequence[int] = ()
    ) -> PlannedFunction[_Arguments, _Results]:
        """The planned step: the step rewritten by this plan.

        Args:
          step: The function that the plan was made for, plain or jitted.
          donate_argnums: Arguments whose memory the results may take when the planned step is called without a jit
            around it; those of a jitted step are read from it.

        Returns:
          A function of the same signature and results, with `lower`. Wrap it in `jax.jit`, with the same donation and
          compiler options as the plan; or call it as it is: it compiles itself with the plan's. With optimiser state in
          host memory the latter is simpler: it moves the state there at the first call. The function refuses arguments
          of other shapes, and under `jax.jit` those in another memory (`PlanMismatchError`).
        """
        static_argnums = () if Calling(step).is_jitted else self.static_argnums
        return apply(
            step,
            self,
            donate_argnums=donate_argnums,
            static_argnums=static_argnums,
            arguments=self.arguments,
            compiler_options=() if self.footprint is None else self.footprint.compiler_options,
        )

    def edited(self, decide: Callable[[Described], ir.Decision | None]) -> "Plan":
        """The plan with other decisions, written by hand.

        Args:
          decide: Returns another decision for a decided value, or None to keep its decision.

        Returns:
          A plan that can be applied; its notes name the changes. It has no prediction and no footprint: `jaxckpt plan
          --check` and `jaxckpt.footprint(plan.apply(step), ...)` compile it.

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
        before = {value: decision_text(decision) for value, decision in self.decisions.items()}
        return with_changes(replace(self, decisions=decisions), before)

    def save(self, path: str | Path) -> None:
        """Writes the plan as a TOML file that a person can read and compare; see `jaxckpt.load_plan`."""
        from jaxckpt.planner.plan_file import save_plan

        save_plan(self, path)


def with_changes(plan: Plan, before: Mapping[int, str]) -> Plan:
    """A plan without the figures and notes that were for its earlier decisions, and with notes that name the changes.

    The earlier decisions are given by value, as texts.
    """
    return replace(
        plan,
        strategy=f"{plan.strategy}, edited",
        prediction=None,
        footprint=None,
        estimated_step_s=0.0,
        notes=(*(note for note in plan.notes if note.startswith(BY_HAND)), *_changes(plan, before)),
        attempts=(),
    )


def _changes(plan: Plan, before: Mapping[int, str]) -> Iterator[str]:
    now = {value: decision_text(decision) for value, decision in plan.decisions.items()}
    changed = [each for each in plan.described if now[each.value] != before[each.value]]

    def alike(d: Described) -> tuple[object, ...]:
        return d.primitive, d.name, d.shape, d.dtype, now[d.value], before[d.value]

    for group in fold_layers(changed, scope=lambda d: d.scope, alike=alike):
        first = group.items[0]
        layers = f", layers {layer_ranges(sorted(group.layers))}" if group.layers else ""
        where = f"{first.name or first.primitive} of {group.scope or '/'}{layers}"
        yield f"{BY_HAND}: {where}: {now[first.value]}, was {before[first.value]}."


def decision_text(decision: ir.Decision) -> str:
    """A decision in a few words.

    Example:
      >>> decision_text(ir.Save()), decision_text(ir.Offload(prefetch=2))
      ('save', 'offload prefetch=2')
    """
    chosen = (each for each in fields(decision) if getattr(decision, each.name) != each.default)
    words = (f"{each.name}={getattr(decision, each.name)}" for each in chosen)
    return " ".join((decision.word, *words))
