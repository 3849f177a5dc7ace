"""A step as rules of eviction train it: what counts as a call, what is in memory, what each rule's memory is like.

Two bases. "kernels" is the step as it compiles: what is fused is one kernel, values are those in memory, seconds those
of the target. "eager" is every op of the step a kernel and every value in memory. Either is trained for a few steps in
one memory that holds the parameters too: how they are updated is half of what the rules differ in. `address_maps` says
where everything lies meanwhile.

Read after `jaxckpt.dynamic` and `jaxckpt.solve`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

from jaxckpt._errors import ComparisonError
from jaxckpt._step import Step
from jaxckpt.dynamic.addresses import AddressMap, address_map
from jaxckpt.dynamic.evictors import Search, rule_as_run
from jaxckpt.dynamic.from_graph import eager_seconds, program_from_graph
from jaxckpt.dynamic.kernel_program import training_of_kernels
from jaxckpt.dynamic.memory import MEMORIES, Memory, Mode
from jaxckpt.dynamic.program import Program
from jaxckpt.dynamic.simulator import RunOptions, unlimited_bytes
from jaxckpt.machine import Target
from jaxckpt.solve import Problem
from jaxckpt.trace import trace_step

_BASES = ("kernels", "eager")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Options of `address_maps` and `compare_evictors`: the rules that a step is trained under, and how it is.

    Both take the fields as keywords too; a keyword goes before the field of `options`.

    Attributes:
      evictors: Names of `jaxckpt.dynamic.EVICTORS`. "dtr" is simulated with classes.
      target: Whose seconds count.
      basis: "kernels" or "eager".
      steps: Training steps, each of which begins with the state that the one before has left in memory.
      limit: A run is given up when recomputations are this many times the step.

    Raises:
      ComparisonError: There is no such basis.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxckpt import dynamic
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> args = jnp.eye(8), jnp.ones((64, 8))
      >>> options = dynamic.TrainingOptions(evictors=["dtr"], basis="eager", steps=1)
      >>> maps = dynamic.address_maps(step, *args, ratio=0.9, options=options)
      >>> {name: found.simulation.ok for name, found in maps.items()}
      {'dtr': True}
    """

    evictors: Sequence[str] = ("dtr", "dte", "coop")
    target: Target | str = "h200"
    basis: str = "kernels"
    steps: int = 3
    limit: float = 10

    def __post_init__(self) -> None:
        if self.basis not in _BASES:
            raise ComparisonError(
                f"basis={self.basis!r} names no basis.",
                got=repr(self.basis),
                needed="one of " + ", ".join(map(repr, _BASES)),
                advice='basis="kernels"',
            )

    @property
    def by_kernels(self) -> bool:
        """True if a call is a kernel, as plans are made of."""
        return self.basis == "kernels"

    def runs(self) -> dict[str, RunOptions]:
        """How each rule is run: in one hard block with addresses, laid out as it was published."""
        found = {}
        for name in self.evictors:
            rule = rule_as_run(name)
            memory = (
                MEMORIES[rule.name] if rule.search is Search.WINDOW else Memory(mode=Mode.HARD, drops_recomputed=True)
            )
            found[name] = RunOptions(evictor=rule, memory=memory, limit=self.limit)
        return found


_DEFAULT = TrainingOptions()


class TrainingKeywords(TypedDict, total=False):
    """The fields of `TrainingOptions` as keywords of a function."""

    evictors: Sequence[str]
    target: Target | str
    basis: str
    steps: int
    limit: float


def trained_step(step: Step, options: TrainingOptions) -> tuple[str, Problem, Program]:
    """Traces a step: its name, one step of it as a problem, and all training steps as a program."""
    traced = trace_step(step.function, *step.args, kwargs=step.kwargs, **step.argnums)
    problem = Problem(graph=traced.graph, rates=Target(options.target).rates)
    if options.by_kernels:
        return traced.name, problem, training_of_kernels(problem, steps=options.steps)
    prices_ns = [1e9 * seconds for seconds in eager_seconds(traced.graph, problem.rates)]
    return traced.name, problem, program_from_graph(traced.graph, prices=prices_ns, steps=options.steps)


def address_maps(
    step: Callable[..., Any] | Step,
    *args: Any,
    ratio: float,
    options: TrainingOptions = _DEFAULT,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    **keywords: Unpack[TrainingKeywords],
) -> dict[str, AddressMap]:
    """Simulates rules of eviction on a step under one budget, and says where everything lay.

    Arguments and errors are those of `compare_evictors`; `ratio` is the budget, as a share of the memory without one.

    Returns:
      A map a rule, by its name.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w).sum())
      >>> maps = address_maps(step, jnp.eye(8), jnp.ones((64, 8)), ratio=0.9)
      >>> {name: found.simulation.ok for name, found in maps.items()}
      {'dtr': True, 'dte': True, 'coop': True}
    """
    options = replace(options, **keywords)
    runs = options.runs()
    called = Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    _, _, program = trained_step(called, options)
    budget = max(1, int(ratio * unlimited_bytes(program)))
    return {name: address_map(program, budget=budget, options=run) for name, run in runs.items()}
