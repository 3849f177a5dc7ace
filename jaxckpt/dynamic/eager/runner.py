"""Runs a step op by op under a budget: the engine decides, arrays are dropped and computed again.

Read after `arrays`. Source: Kirisame et al., ICLR 2021, section 5 (the prototype that does so for PyTorch).
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxckpt._errors import ArgumentError, InfeasibleBudgetError
from jaxckpt._progress import Progress, silent
from jaxckpt._step import Step
from jaxckpt._units import budget_bytes, format_bytes
from jaxckpt.calling import Calling, StepCall
from jaxckpt.dynamic import MEMORIES, Evictor, Memory, Mode, Online, Simulation, Status, Task, evictor, live_bytes
from jaxckpt.dynamic.eager.arrays import Arrays
from jaxckpt.dynamic.eager.op_costs import OpCosts
from jaxckpt.dynamic.eager.operation import VIEWS, Literal, Operations
from jaxckpt.dynamic.eager.outcome import EagerRun
from jaxckpt.dynamic.eager.program import Prepared, prepare
from jaxckpt.ir import Graph
from jaxckpt.machine import Target
from jaxckpt.trace import trace_call

_KINDS_KEPT = 16
"""Programs of so many kinds of arguments are kept."""
_SAY_S = 0.5
"""Seconds between two words about progress."""


class Runner:
    """Runs one step eagerly under a budget, any number of times; what ops cost is remembered.

    Args:
      step: A function, plain or jitted. It is traced, once for each kind of arguments, and never compiled.
      budget: Bytes of all the step's arrays, arguments included: an amount, or a share of what they take without a
        budget (a float in (0, 1], "50%"); None for no limit.
      evictor: What is evicted: a name in `jaxckpt.dynamic.EVICTORS`, or a rule.
      memory: What the budget means; by default what the rule was published with, but never a hint. Addresses are the
        engine's own: where an array really lies is the device's affair.
      donate_argnums: Arguments that are the step's to use up: they are released after their last reader, and deleted.
        Taken over from a jitted step.
      static_argnums: Arguments that are not traced; taken over from a jitted step.
      measure: Whether ops are priced by the seconds that they take; else by the bytes that they move, so that every run
        decides the same.
      limit: A run is given up when recomputations are this many times the step's ops.
      seed: Of what is drawn at random.
      progress: Called with a sentence about twice a second.

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
        evictor: str | Evictor = "coop",
        memory: Memory | None = None,
        donate_argnums: int | Sequence[int] = (),
        static_argnums: int | Sequence[int] = (),
        measure: bool = True,
        limit: float = 100,
        seed: int = 0,
        progress: Progress | None = None,
    ):
        self._rule = rule_of(evictor)
        self._memory = memory or _published(self._rule)
        self._calling = Calling(step, donate_argnums=donate_argnums, static_argnums=static_argnums)
        self._budget = budget
        self._measure = measure and not self._rule.by_bytes
        self._limit = limit
        self._seed = seed
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
        unlimited_bytes = live_bytes(prepared.program)
        trace_s = time.perf_counter() - begin
        given = prepared.arrays(call.leaves)
        task = self._task(prepared, unlimited_bytes)
        online = Online(prepared.program, task)
        arrays = Arrays(prepared, given, self._operations)
        del given
        compute_s = self._go_through(prepared, online, arrays)
        counters = online.simulation(time.perf_counter() - begin)
        if not counters.ok:
            raise _infeasible(prepared, counters)
        return EagerRun(
            outputs=call.results(stage, _results(prepared, arrays)),
            counters=counters,
            peak_bytes=arrays.peak_bytes,
            unlimited_bytes=unlimited_bytes,
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
                online.reprice(number, self._prices.measured(key, last_s, otherwise=price) if price else 0.0)
            if time.perf_counter() - said > _SAY_S:
                said = time.perf_counter()
                self._say(f"op {number} of {len(calls)}, {format_bytes(arrays.live_bytes)} in memory")
        return compute_s

    def _prepared(self, call: StepCall, stage: jax.stages.Traced) -> Prepared:
        """The program for these arguments; jit gives back the same jaxpr where nothing has changed."""
        if (prepared := self._known.get(id(stage.jaxpr))) is not None:
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
        prepared = prepare(traced, self._priced)
        self._known[id(traced.stage.jaxpr)] = prepared
        while len(self._known) > _KINDS_KEPT:
            self._known.popitem(last=False)
        return prepared

    def _priced(self, graph: Graph, keys: list[str]) -> list[float] | None:
        return self._prices.guesses(graph, keys, VIEWS) if self._measure else None

    def _task(self, prepared: Prepared, unlimited_bytes: int) -> Task:
        budget = self._budget
        return Task(
            budget=None if budget is None else budget_bytes(budget, baseline_bytes=unlimited_bytes),
            rule=self._rule,
            memory=self._memory,
            most=int(self._limit * (len(prepared.program.calls) + 1)),
            seed=self._seed,
        )


rule_of = evictor
"""The rule of a name, under a name that no argument has."""


def _published(rule: Evictor) -> Memory:
    memory = MEMORIES.get(rule.name, Memory())
    return replace(memory, mode=Mode.HARD) if memory.mode is Mode.HINT else memory


def _results(prepared: Prepared, arrays: Arrays) -> list[Any]:
    flat = []
    for result, sharding in zip(prepared.results, prepared.traced.out_shardings, strict=True):
        array = jnp.asarray(result.value, result.dtype) if isinstance(result, Literal) else arrays[result]
        flat.append(array if sharding is None else jax.device_put(array, sharding))
    return flat


def _infeasible(prepared: Prepared, counters: Simulation) -> InfeasibleBudgetError:
    assert counters.budget_bytes is not None, "without a budget nothing is refused"
    least_bytes = prepared.program.constant_bytes
    thrashes = counters.status is Status.THRASH
    return InfeasibleBudgetError(
        f'dynamic.run(evictor="{counters.evictor}") cannot keep the budget: {counters.status}.',
        got=f"budget {format_bytes(counters.budget_bytes)}; {counters.reason}",
        needed=f"more than that; the arguments are {format_bytes(least_bytes)} of it",
        advice="a larger budget, donate_argnums for the state, or "
        + ("a larger limit" if thrashes else 'evictor="dtr_eq", which needs no neighbouring addresses'),
        budget_bytes=counters.budget_bytes,
        minimum_bytes=least_bytes,
        minimum_measured=False,
        blocking=(),
    )


def run(
    step: Callable[..., Any] | Step,
    *args: Any,
    budget: int | float | str | None,
    evictor: str | Evictor = "coop",
    memory: Memory | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    measure: bool = True,
    limit: float = 100,
    seed: int = 0,
    progress: Progress | None = None,
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
    given = Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    runner = Runner(
        given.function,
        budget=budget,
        evictor=evictor,
        memory=memory,
        **given.argnums,
        measure=measure,
        limit=limit,
        seed=seed,
        progress=progress,
    )
    return runner(*given.args, **given.kwargs)
