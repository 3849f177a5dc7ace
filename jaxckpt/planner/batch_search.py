"""The largest batch that fits with a plan, and the fastest one; predictions first, few compiles.

A step is traced for a batch, and the model says what its smallest plan takes, without a compiler. Batches are doubled
until that exceeds the budget, then the gap is closed: memory is nearly a line over batches, so the next guess is where
the line meets the budget, and every third one the middle. Only the batch that is found so is compiled. What the
compiler says of it corrects the model, and where that moves the limit the search goes on.

For throughput the model's fastest plans within the budget are compared over the batches up to the largest one, and
the best of them compiled.

Read after `planner`, `batches`, `returned`.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, Unpack

from jaxckpt import ir
from jaxckpt._errors import BatchError, InfeasibleBudgetError
from jaxckpt._progress import Progress, silent
from jaxckpt._units import budget_bytes, format_bytes
from jaxckpt.machine import Target
from jaxckpt.planner.batches import BatchSearch, TriedBatch
from jaxckpt.planner.options import PlanKeywords, PlanOptions
from jaxckpt.planner.plan import Plan
from jaxckpt.planner.planner import Planner
from jaxckpt.planner.step_spec import step_from_spec

_ROUNDS = 6
"""So many batches are compiled at most on the way to the largest one."""
_BETWEEN = 3
"""So many batches between the largest without recomputation and the largest at all are compared for throughput."""
_PLANNED = 2
"""So many batches are compiled for the highest throughput, beside the largest."""


_DEFAULT = PlanOptions()


def max_batch(
    make_step: Callable[[int], Any],
    *,
    target: Target | str,
    budget: str | int | float | None = None,
    multiples_of: int = 1,
    options: PlanOptions = _DEFAULT,
    progress: Progress | None = None,
    **keywords: Unpack[PlanKeywords],
) -> BatchSearch:
    """Finds the largest batch that fits with a plan, and the batch and plan of highest estimated throughput.

    Args:
      make_step: Given a batch size, returns a `jaxckpt.Step`, `(step, args)`, or a dict with "step", "args" and, if
        need be, "donate_argnums" and "static_argnums"; args may be `jax.ShapeDtypeStruct`s. The memory of the step must
        grow with the batch.
      target: A `Target` or its name ("h200").
      budget: "6GiB", "6GB", bytes, or a share of the device's memory (0.9, "90%"); None for all that one program can
        have of it.
      multiples_of: Only multiples are tried: devices over which the batch is laid out, or what a kernel likes.
      options: What the planner may do, as one object; `max_compiles` is for the plan of one batch.
      progress: Called with a sentence before each longer piece of work.
      **keywords: Fields of `PlanOptions`, which go before those of `options`.

    Returns:
      The largest batch and the fastest one, each with a plan that fits as compiled, and all batches that were looked
      at. That the next multiple does not fit is the compiler's word where it was compiled, else the model's, corrected
      by the compiled figures of its neighbours. Throughput is estimated from compiled programs, not measured.

    Raises:
      InfeasibleBudgetError: Not even the smallest batch fits.
      BatchError: Multiples are of no positive number, or memory does not grow with the batch.
      StepReferenceError: `make_step` returns no step.
      BudgetError, NoGradientError, ArgumentError, UnknownTargetError: As for `jaxckpt.plan`.
    """
    if not isinstance(multiples_of, int) or isinstance(multiples_of, bool) or multiples_of < 1:
        raise BatchError(
            "max_batch(multiples_of=...) is no number of items.",
            got=f"multiples_of = {multiples_of!r}",
            needed="1 or more",
            advice="multiples_of=8",
        )
    target = Target(target)
    memory_bytes = target.memory_bytes
    limit_bytes = memory_bytes if budget is None else budget_bytes(budget, baseline_bytes=memory_bytes)
    search = _Search(make_step, target, limit_bytes, multiples_of, replace(options, **keywords), progress or silent)
    return search.run()


class _Trial:
    """A batch: its traced step, and what the model says of it."""

    def __init__(self, batch: int, planner: Planner):
        self.batch = batch
        self.planner = planner
        self.is_compiled = False
        self.plan: Plan | None = None

    @cached_property
    def resorts(self) -> tuple[ir.GraphPlan, ...]:
        """Plans of least memory, the smallest by prediction first."""
        resorts = *self.planner.solver.min_memory_plans, *self.planner.min_memory_tilings
        return tuple(sorted(resorts, key=lambda plan: plan.predicted.temp_bytes))

    @property
    def fixed_bytes(self) -> int:
        """What no plan changes."""
        return self.planner.fixed_bytes

    @property
    def smallest_temp_bytes(self) -> int:
        """Temporaries of the smallest plan, by the model."""
        return self.resorts[0].predicted.temp_bytes

    def expected_bytes(self, ratio: float) -> int:
        """The smallest total, as expected."""
        return self.fixed_bytes + int(ratio * self.smallest_temp_bytes)

    def unplanned_bytes(self, ratio: float) -> int:
        """The total of the step as it is, as expected."""
        return self.fixed_bytes + int(ratio * self.planner.solver.empty_plan.predicted.temp_bytes)

    def expected_step_s(self, limit_bytes: int, ratio: float) -> float:
        """Seconds of a step with the model's fastest plan within a budget."""
        temp_bytes = int((limit_bytes - self.fixed_bytes) / ratio)
        fastest = self.planner.solver.solve(temp_bytes)
        if fastest.predicted.temp_bytes > temp_bytes and self.planner.min_memory_tilings:
            assert self.planner.tiling_solver is not None, "it knows of smaller plans"
            fastest = self.planner.tiling_solver.solve(temp_bytes, allow_empty=False)
        return fastest.predicted.step_s

    def compiled_bytes(self, limit_bytes: int) -> int:
        """The smallest compiled total; the fastest plan and then those of least memory are compiled until one fits."""
        totals: list[int] = []
        fastest = self.planner.solver.solve(limit_bytes - self.fixed_bytes)
        for plan in dict.fromkeys((fastest, *self.resorts)):
            totals.append(self.planner.measure(plan).footprint.total_bytes)
            if totals[-1] <= limit_bytes:
                break
        self.is_compiled = True
        return min(totals)


class _Search:
    """Counts in multiples: a `count` of n is a batch of n * multiples_of."""

    def __init__(
        self,
        make_step: Callable[[int], Any],
        target: Target,
        limit_bytes: int,
        multiples_of: int,
        options: PlanOptions,
        say: Progress,
    ):
        self.make_step, self.target, self.limit_bytes = make_step, target, limit_bytes
        self.multiples_of, self.options, self.say = multiples_of, options, say
        self.trials: dict[int, _Trial] = {}
        self.compiled: dict[int, int] = {}
        """Smallest compiled totals, by count."""
        self.ratio = 1.0
        """Compiled temporaries over predicted ones, at the last batch that was compiled."""
        self.time_ratio = 1.0
        """Estimated seconds of the compiled step over those predicted, for the largest batch."""

    def run(self) -> BatchSearch:
        largest = self._largest()
        self._plan(largest)
        self.time_ratio = self._time_ratio(self.trials[largest])
        for count in self._promising(largest):
            self._plan(count)
        tried = tuple(self._tried(count) for count in sorted(self.trials))
        planned = [each for each in tried if each.plan is not None]
        return BatchSearch(
            step=self.trials[largest].planner.traced.name,
            target=self.target.name,
            budget_bytes=self.limit_bytes,
            multiples_of=self.multiples_of,
            tried=tried,
            largest=planned[-1],
            fastest=max(planned, key=lambda each: each.items_per_s),
            compiles=sum(trial.planner.compile_count for trial in self.trials.values()),
        )

    def trial(self, count: int) -> _Trial:
        """The step of a batch, traced once."""
        if count not in self.trials:
            batch = count * self.multiples_of
            self.say(f"batch {batch}")
            called = f"{getattr(self.make_step, '__name__', 'make_step')}({batch})"
            step = step_from_spec(self.make_step(batch), called=called, reference=called)
            planner = Planner(step, target=self.target, options=self.options, progress=self.say)
            self.trials[count] = _Trial(batch, planner)
        return self.trials[count]

    def _largest(self) -> int:
        """The largest count that fits as compiled."""
        fits, fails = 0, None
        for _ in range(_ROUNDS):
            count = max(1, self._largest_expected(fits, fails))
            if count == fits:
                break
            if self._fits_compiled(count):
                fits = count
            elif count == 1:
                self._refuse()
            else:
                fails = count
        return fits or self._first()

    def _first(self) -> int:
        """The smallest batch, where the model found none that the compiler let through."""
        if not self._fits_compiled(1):
            self._refuse()
        return 1

    def _refuse(self) -> None:
        """Raises what a plan for the smallest batch raises."""
        try:
            self._plan(1)
        except InfeasibleBudgetError as error:
            error.add_note(f"with the smallest batch, {self.multiples_of}")
            raise

    def _fits_compiled(self, count: int) -> bool:
        trial = self.trial(count)
        total_bytes = self.compiled[count] = trial.compiled_bytes(self.limit_bytes)
        self.ratio = max(0.1, (total_bytes - trial.fixed_bytes) / max(1, trial.smallest_temp_bytes))
        return total_bytes <= self.limit_bytes

    def _largest_expected(self, fits: int, fails: int | None) -> int:
        """The largest count from `fits` on and below `fails` that the model expects to fit."""
        low, high = self._known(fits, fails)
        rounds = 0
        while high is None or high - low > 1:
            count = self._guess(low, high, rounds)
            if self._expected(count) <= self.limit_bytes:
                low = count
            else:
                high = count
            rounds += 1
        return low

    def _known(self, fits: int, fails: int | None) -> tuple[int, int | None]:
        """The same bounds, narrowed by what is traced already."""
        inside = [count for count in self.trials if count > fits and (fails is None or count < fails)]
        too_large = [count for count in inside if self._expected(count) > self.limit_bytes]
        high = min(too_large, default=fails)
        return max((count for count in inside if high is None or count < high), default=fits), high

    def _guess(self, low: int, high: int | None, rounds: int) -> int:
        """Doubled until something does not fit; then where a line through two batches meets the budget."""
        met = self._met()
        if high is None:
            return max(1, 2 * low) if met is None or rounds % 3 == 2 else max(low + 1, met)
        if met is None or rounds % 3 == 2:
            return (low + high) // 2
        return min(high - 1, max(low + 1, met))

    def _met(self) -> int | None:
        """Where memory as a line over batches meets the budget; None where the batches known tell of no line.

        Batches close to each other may be the wrong way round: kernels pad odd lengths.

        Raises:
          BatchError: It does not grow from one batch to another of at least twice its size.
        """
        known = sorted((abs(self._expected(count) - self.limit_bytes), count) for count in self.trials)
        if len(known) < 2:
            return None
        one, other = sorted(count for _, count in known[:2])
        growth = (self._expected(other) - self._expected(one)) / (other - one)
        if growth <= 0:
            if other >= 2 * one:
                self._refuse_flat(one, other)
            return None
        return one + int((self.limit_bytes - self._expected(one)) // growth)

    def _expected(self, count: int) -> int:
        return self.trial(count).expected_bytes(self.ratio)

    def _refuse_flat(self, one: int, other: int) -> None:
        batches = [count * self.multiples_of for count in (one, other)]
        sizes = [format_bytes(self._expected(count)) for count in (one, other)]
        raise BatchError(
            "max_batch(make_step): its memory does not grow with the batch.",
            got=f"batch {batches[0]} takes {sizes[0]}, batch {batches[1]} takes {sizes[1]}",
            needed="a make_step(batch) that gives the batch to the arguments of its step",
            advice="def make_step(batch): return step, (..., jax.ShapeDtypeStruct((batch, ...), ...))",
        )

    def _plan(self, count: int) -> None:
        """Compiles the fastest plan that fits for a batch."""
        trial = self.trial(count)
        trial.plan = trial.planner.plan(budget=self.limit_bytes)

    def _time_ratio(self, trial: _Trial) -> float:
        assert trial.plan is not None
        return _step_s(trial.plan) / trial.plan.predicted.step_s

    def _promising(self, largest: int) -> list[int]:
        """Counts that should have the highest throughput, beside the largest; the best first."""
        free = self._largest_unplanned(largest)
        between = {free + (largest - free) * i // (_BETWEEN + 1) for i in range(_BETWEEN + 1)}
        counts = {count for count in {*between, *self.trials} if 1 <= count < largest}
        expected = {count: self._items_per_s(count) for count in counts}
        best = sorted(counts, key=lambda count: (-expected[count], count))[:_PLANNED]
        least = 0.9 * self._items_per_s(largest)  # the model is not that far off
        return [count for count in best if expected[count] >= least]

    def _largest_unplanned(self, largest: int) -> int:
        """The largest count whose step fits as it is, by a line through two that are known; at least 1."""
        known = sorted(self.trials)[:2] if len(self.trials) > 1 else [1, largest]
        one, other = known[0], known[-1]
        first, second = (self.trial(count).unplanned_bytes(self.ratio) for count in (one, other))
        growth = (second - first) / max(1, other - one)
        met = one + int((self.limit_bytes - first) // growth) if growth > 0 else largest
        return min(largest, max(1, met))

    def _items_per_s(self, count: int) -> float:
        trial = self.trial(count)
        return trial.batch / trial.expected_step_s(self.limit_bytes, self.ratio)

    def _tried(self, count: int) -> TriedBatch:
        trial = self.trials[count]
        smallest_bytes = self.compiled.get(count, trial.expected_bytes(self.ratio))
        fits = trial.plan is not None or smallest_bytes <= self.limit_bytes
        step_s = 0.0
        if trial.plan is not None:
            step_s = _step_s(trial.plan)
        elif fits:
            step_s = self.time_ratio * trial.expected_step_s(self.limit_bytes, self.ratio)
        return TriedBatch(
            batch=trial.batch,
            fits=fits,
            compiled=count in self.compiled or trial.plan is not None,
            smallest_bytes=smallest_bytes,
            step_s=step_s,
            plan=trial.plan,
        )


def _step_s(plan: Plan) -> float:
    """Of the compiled program; the model's where that was not read."""
    compiled_s = plan.footprint.step_s if plan.footprint is not None else 0.0
    return compiled_s or plan.predicted.step_s
