"""Runs a step op by op under a budget: the engine decides, arrays are dropped and computed again.

Read after `arrays`. Source: Kirisame et al., ICLR 2021, section 5 (the prototype that does so for PyTorch).
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, ClassVar, Unpack

import jax
import jax.numpy as jnp

from jaxckpt._errors import ArgumentError, InfeasibleBudgetError
from jaxckpt._progress import Progress, silent
from jaxckpt._shown import Shown
from jaxckpt._step import Step
from jaxckpt._units import budget_bytes, format_bytes, format_seconds
from jaxckpt.calling import Calling, StepCall
from jaxckpt.dynamic.eager.arrays import Arrays
from jaxckpt.dynamic.eager.operation import VIEWS, Literal, OpCosts, Operations
from jaxckpt.dynamic.eager.program import Prepared, prepare
from jaxckpt.dynamic.memory import published_memory
from jaxckpt.dynamic.online import Online
from jaxckpt.dynamic.simulation import Simulation, Status
from jaxckpt.dynamic.simulator import AS_PUBLISHED, RunKeywords, RunOptions, task_of, unlimited_bytes
from jaxckpt.ir import Graph
from jaxckpt.machine import Target
from jaxckpt.trace import trace_call

_KINDS_KEPT = 16
"""Programs of so many kinds of arguments are kept."""
_SAY_S = 0.5
"""Seconds between two words about progress."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class EagerRun(Shown):
    """A run of a step.

    Attributes:
      outputs: What the step returns.
      counters: The engine's; its prices are seconds, its `run_s` is that of the whole run.
      peak_bytes: The most that the step's arrays were at a time, arguments included, as the arrays themselves say.
        What an op needs inside itself is not in it.
      unlimited_bytes: The most that they would be without a budget.
      trace_s: Seconds to make a program of the step; next to nothing where its arguments were of a known kind.
      compute_s: Seconds in ops, those computed again included.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxckpt import dynamic
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> args = jnp.eye(8), jnp.ones((64, 8))
      >>> ran = dynamic.run(step, *args, budget=0.9, evictor="dtr_eq")
      >>> ran.outputs.shape, ran.peak_bytes <= 0.9 * ran.unlimited_bytes
      ((8, 8), True)
    """

    _report: ClassVar[str] = "jaxckpt.dynamic.compare.report:simulation_report"

    outputs: Any = field(repr=False)
    counters: Simulation
    peak_bytes: int
    unlimited_bytes: int
    trace_s: float
    compute_s: float

    @property
    def recomputations(self) -> int:
        """Ops that were run again."""
        return self.counters.recomputations

    @property
    def evictions(self) -> int:
        """Arrays that were evicted to make room."""
        return self.counters.forced_evictions

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        return str(self).splitlines()[0]

    def __str__(self) -> str:
        counters = self.counters
        budget = "no limit" if counters.budget_bytes is None else f"budget {format_bytes(counters.budget_bytes)}"
        return "\n".join(
            (
                f"{counters.evictor} ({counters.mode}), {budget}: {format_bytes(self.peak_bytes)} at the peak, "
                f"{format_bytes(self.unlimited_bytes)} without a budget",
                f"  ops          {counters.base_operations + self.recomputations} = {counters.base_operations} +"
                f" {self.recomputations} recomputed",
                f"  evictions    {self.evictions} forced, {counters.eager_evictions} at a release",
                f"  seconds      {format_seconds(counters.run_s)}, of these {format_seconds(self.compute_s)} in ops, "
                f"{format_seconds(counters.search_s)} in searches; tracing {format_seconds(self.trace_s)}",
            )
        )


class Runner:
    """Runs one step eagerly under a budget, any number of times; what ops cost is remembered.

    Args:
      step: A function, plain or jitted. It is traced, once for each kind of arguments, and never compiled.
      budget: Bytes of all the step's arrays, arguments included: an amount, or a share of what they take without a
        budget (a float in (0, 1], "50%"); None for no limit.
      donate_argnums: Arguments that are the step's to use up: they are released after their last reader, and deleted.
        Taken over from a jitted step.
      static_argnums: Arguments that are not traced; those of a jitted step are read from it.
      measure: Whether ops are priced by the seconds that they take; else by the bytes that they move, so that every run
        decides the same.
      options: The rule, its memory, and when a run is given up: here only by the number of recomputations. By default
        the memory is what the rule was published with, but never a hint. Addresses are the engine's own: where an array
        really lies is the device's affair.
      progress: Called with a sentence about twice a second.
      **keywords: Fields of `options`, before which they go.

    Raises:
      UnknownEvictorError: There is no such rule.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w).sum())
      >>> runner = Runner(step, budget=0.9, evictor="dtr_eq")
      >>> ran = runner(jnp.eye(8), jnp.ones((64, 8)))
      >>> ran.outputs.shape, ran.peak_bytes <= 0.9 * ran.unlimited_bytes
      ((8, 8), True)
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *,
        budget: int | float | str | None,
        donate_argnums: int | Sequence[int] = (),
        static_argnums: int | Sequence[int] = (),
        measure: bool = True,
        options: RunOptions = AS_PUBLISHED,
        progress: Progress | None = None,
        **keywords: Unpack[RunKeywords],
    ):
        options = replace(options, **keywords)
        rule = options.rule
        self._options = replace(options, memory=options.memory or published_memory(rule.name, hints=False))
        self._calling = Calling(step, donate_argnums=donate_argnums, static_argnums=static_argnums)
        self._budget = budget
        self._measure = measure and not rule.by_bytes
        self._say = progress or silent
        self._prices = OpCosts(Target("attached").rates)
        self._operations = Operations()
        self._known: OrderedDict[int, Prepared] = OrderedDict()

    def __call__(self, *args: Any, **kwargs: Any) -> EagerRun:
        """Runs the step on arrays and numbers.

        Raises:
          InfeasibleBudgetError: The budget cannot be kept, whatever is evicted. Donated arguments may be gone.
          BudgetError: The budget is no amount of memory.
          ArgumentError: An argument is no array.
        """
        with self._calling.bind(args, kwargs) as call:
            return self._run(call)

    def _run(self, call: StepCall) -> EagerRun:
        begin = time.perf_counter()
        stage = call.trace()
        prepared = self._prepared(call, stage)
        most_bytes = unlimited_bytes(prepared.program)
        trace_s = time.perf_counter() - begin
        budget = self._budget
        budget = None if budget is None else budget_bytes(budget, baseline_bytes=most_bytes)
        online = Online(
            prepared.program, replace(task_of(prepared.program, budget, self._options), most_recompute_price=inf)
        )
        arrays = Arrays(prepared, prepared.arrays(call.leaves), self._operations)
        compute_s = self._go_through(prepared, online, arrays)
        counters = online.simulation(time.perf_counter() - begin)
        if not counters.ok:
            raise _infeasible(prepared, counters)
        return EagerRun(
            outputs=call.results(stage, _results(prepared, arrays)),
            counters=counters,
            peak_bytes=arrays.peak_bytes,
            unlimited_bytes=most_bytes,
            trace_s=trace_s,
            compute_s=compute_s,
        )

    def _go_through(self, prepared: Prepared, online: Online, arrays: Arrays) -> float:
        """Runs all calls; seconds in them."""
        compute_s, said = 0.0, time.perf_counter()
        calls = prepared.program.calls
        for number, events in enumerate(online):
            seconds, last_s = arrays.carry_out(events)
            compute_s += seconds
            if self._measure and number < len(calls) and online.status is None:
                key = prepared.operations[number].key
                price = calls[number].price
                online.reprice(number, self._prices.record(key, last_s, otherwise=price) if price else 0.0)
            if time.perf_counter() - said > _SAY_S:
                said = time.perf_counter()
                self._say(f"op {number} of {len(calls)}, {format_bytes(arrays.live_bytes)} in memory")
        return compute_s

    def _prepared(self, call: StepCall, stage: jax.stages.Traced) -> Prepared:
        """The program for these arguments; jit gives back the same jaxpr where nothing has changed."""
        if (prepared := self._known.get(id(stage.jaxpr))) is not None:
            self._known.move_to_end(id(stage.jaxpr))
            return prepared
        self._say("tracing the step")
        traced = trace_call(call, stage, eager=True)
        if traced.closes_over_tracers():
            raise ArgumentError(
                f"dynamic.run({traced.name}) stands inside another trace.",
                got="a step that reads values of a `jax.jit` or `jax.grad` around it",
                needed="a call outside of all transformations, with arrays: ops are run one by one",
                advice="jaxckpt.plan, whose plans apply under jax.jit",
            )
        prepared = prepare(traced, self._priced if self._measure else None)
        self._known[id(traced.stage.jaxpr)] = prepared
        while len(self._known) > _KINDS_KEPT:
            self._known.popitem(last=False)
        return prepared

    def _priced(self, graph: Graph, keys: list[str]) -> list[float]:
        return self._prices.guesses(graph, keys, VIEWS)


def _results(prepared: Prepared, arrays: Arrays) -> list[Any]:
    flat = []
    for result, sharding in zip(prepared.results, prepared.traced.out_shardings, strict=True):
        array = jnp.asarray(result.value, result.dtype) if isinstance(result, Literal) else arrays[result]
        flat.append(array if sharding is None else jax.device_put(array, sharding))
    return flat


def _infeasible(prepared: Prepared, counters: Simulation) -> InfeasibleBudgetError:
    assert counters.budget_bytes is not None, "without a budget nothing is refused"
    least_bytes = prepared.program.constant_bytes
    other = 'evictor="dtr_eq", which needs no neighbouring addresses'
    if counters.status is Status.THRASH:
        other = "a larger limit"
    elif counters.evictor == "dtr_eq":
        other = "jaxckpt.plan, which knows the whole step"
    return InfeasibleBudgetError(
        f'dynamic.run(evictor="{counters.evictor}") cannot keep the budget: {counters.status}.',
        got=f"budget {format_bytes(counters.budget_bytes)}; {counters.reason}",
        needed=f"more than that; the arguments are {format_bytes(least_bytes)} of it",
        advice=f"a larger budget, donate_argnums for the state, or {other}",
        budget_bytes=counters.budget_bytes,
        minimum_bytes=least_bytes,
        minimum_measured=False,
        blocking=(),
    )


class RunnerKeywords(RunKeywords, total=False):
    """Keywords of `Runner` besides the budget."""

    donate_argnums: int | Sequence[int]
    static_argnums: int | Sequence[int]
    measure: bool
    options: RunOptions
    progress: Progress | None


def run(
    step: Callable[..., Any] | Step, *args: Any, budget: int | float | str | None, **keywords: Unpack[RunnerKeywords]
) -> EagerRun:
    """Runs a step eagerly under a budget, once. See `Runner` for the arguments, and to run it again and again.

    Returns:
      The step's outputs, and counters.

    Raises:
      InfeasibleBudgetError, BudgetError, UnknownEvictorError, ArgumentError: As `Runner`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jaxckpt
      >>> step = jax.value_and_grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> ran = jaxckpt.dynamic.run(step, jnp.eye(8), jnp.ones((64, 8)), budget="1MiB", evictor="dtr")
      >>> ran.recomputations, ran.outputs[1].shape
      (0, (8, 8))
    """
    argnums = (keywords.get("donate_argnums", ()), keywords.get("static_argnums", ()))
    given = Step.of(step, args, donate_argnums=argnums[0], static_argnums=argnums[1])
    keywords["donate_argnums"], keywords["static_argnums"] = given.donate_argnums, given.static_argnums
    return Runner(given.function, budget=budget, **keywords)(*given.args, **given.kwargs)
