"""The largest batch that fits with a plan, and the fastest one; predictions first, few compiles.

1. The step is traced for a batch, and the model predicts the total of its smallest plan, without a compiler. Batches
   are doubled until that total exceeds the budget. Then the gap is closed by interpolation (regula falsi): memory is
   nearly linear in the batch. Every third guess is the middle of the gap (bisection). To solve a batch for its smallest
   plan takes seconds. So the first batch is solved, and its plan is predicted for others whose steps do the same
   operations; the batch above the largest one that is expected to fit is solved for itself.
2. Only the batch that is found is compiled. The compiled total corrects the model, and the search goes on where that
   moves the limit.
3. For throughput the model's fastest plans within the budget are compared over the batches up to the largest one, and
   the best of them are compiled.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Unpack

from jaxckpt._errors import BatchError, InfeasibleBudgetError
from jaxckpt._progress import Progress, silent
from jaxckpt._shown import Shown
from jaxckpt._units import budget_bytes, format_bytes
from jaxckpt.ir import GraphPlan, Prediction
from jaxckpt.machine import Target
from jaxckpt.planner.limits import Limits
from jaxckpt.planner.options import PlanKeywords, PlanOptions, options_with
from jaxckpt.planner.planner import Planner
from jaxckpt.planner.step_spec import step_from_spec
from jaxckpt.planner.user_plan import Plan

_DEFAULT = PlanOptions()
_FLAT = 128
"""A search ends where a batch so many times as large takes no more memory: a step may pad its batch to a multiple of
100, so that the batches from 1 to 64 take as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedBatch:
    """One batch size: items a step, and whether a plan brings it under the budget.

    Attributes:
      compiled: Whether the compiler said so; else the model did, corrected by what the compiler said of others.
      smallest_bytes: The smallest total reached or, where nothing was compiled, expected, bytes per device.
      step_s: Estimated seconds of a step with the fastest plan that fits: the compiled program's where there is a plan,
        else the model's; 0 where nothing fits.
      plan: The fastest plan that fits, compiled; None where it was not looked for.
    """

    batch: int
    fits: bool
    compiled: bool
    smallest_bytes: int
    step_s: float = 0.0
    plan: Plan | None = None

    @property
    def items_per_s(self) -> float:
        """Estimated throughput; 0 where nothing fits."""
        return self.batch / self.step_s if self.step_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BatchSearch(Shown):
    """The batches that were tried for a step under a budget.

    Attributes:
      budget_bytes: Bytes per device.
      multiples_of: Every batch is a multiple of this number.
      tried: All batches that were examined, by batch; the largest and the fastest are among them.
      largest: The largest batch that fits, with its plan.
      fastest: The compiled batch of the highest estimated throughput, with its plan.
      compiles: How many programs were compiled.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> def make_step(batch):
      ...     return jax.grad(lambda w, x: jnp.tanh(x @ w).sum()), (jnp.eye(64), jnp.ones((batch, 64)))
      >>> found = jaxckpt.max_batch(make_step, target="cpu", budget="1MiB", multiples_of=256)
      >>> found.plan == found.largest.plan
      True
      >>> {tried.fits for tried in found.tried if tried.batch > found.batch}
      {False}
    """

    _report: ClassVar[str] = "jaxckpt.report.search:batches_report"

    step: str
    target: str
    budget_bytes: int
    multiples_of: int
    tried: tuple[TriedBatch, ...]
    largest: TriedBatch
    fastest: TriedBatch
    compiles: int

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        return (
            f"{self.step} on {self.target}: batch {self.batch} is the largest within {format_bytes(self.budget_bytes)},"
            f" {self.fastest.batch} the fastest"
        )

    @property
    def batch(self) -> int:
        """The largest batch that fits."""
        return self.largest.batch

    @property
    def plan(self) -> Plan:
        """The plan of the largest batch."""
        assert self.largest.plan is not None, "the largest batch was planned"
        return self.largest.plan


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
      make_step: Given a batch size, returns a `jaxckpt.Step`, `(step, args)`, or a dict with "step", "args" and
        optionally "kwargs", "donate_argnums" and "static_argnums"; args may be `jax.ShapeDtypeStruct`s. The memory of
        the step must grow with the batch.
      target: A `Target` or its name ("h200").
      budget: "6GiB", "6GB", bytes, or a share of the device's memory (0.9, "90%"); None for all memory that one program
        can use.
      multiples_of: Only multiples are tried, such as multiples of the number of devices over which the batch is
        sharded.
      options: All options as one object; `max_compiles` is for the plan of one batch.
      progress: Called with a sentence before each longer piece of work.
      **keywords: Fields of `PlanOptions`, which override those of `options`.

    Returns:
      The largest and the fastest batch, each with a compiled plan that fits, and all batches that were examined. The
      next multiple does not fit, by its compiled total or by its predicted one, corrected by the compiled totals of its
      neighbours. Throughput is estimated from compiled programs, not measured.

    Raises:
      InfeasibleBudgetError: Not even the smallest batch fits.
      BatchError: `multiples_of` is not positive, or memory does not grow with the batch.
      StepReferenceError: `make_step` returns no step.
      MissingPackageError, VersionMismatchError: The target's compiler is not installed, or not the one of this jax.
      BudgetError, NoGradientError, ArgumentError, UnknownTargetError: As for `jaxckpt.plan`.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> def make_step(batch):
      ...     return jax.grad(lambda w, x: jnp.tanh(x @ w).sum()), (jnp.eye(64), jnp.ones((batch, 64)))
      >>> found = jaxckpt.max_batch(make_step, target="cpu", budget="1MiB", multiples_of=256)
      >>> found.batch % 256, found.plan.footprint.total_bytes <= 2**20
      (0, True)
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
    options = options_with(options, keywords, called=max_batch)
    target.require_compiler()  # before a step is made and traced
    return _BatchSearcher(make_step, target, limit_bytes, multiples_of, options, progress or silent).run()


class _BatchSearcher:
    """Searches in multiples: a `count` of n is a batch of n * multiples_of."""

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
        self.limits = Limits()
        self.planners: dict[int, Planner] = {}
        """Steps that were traced, by count."""
        self.smallest: dict[int, GraphPlan] = {}
        """The smallest plans by prediction, of counts that were solved for them."""
        self.transferred: dict[tuple[int, int], Prediction | None] = {}
        """By a count and another one what is predicted for the first with the smallest plan of the other one.

        None if the two steps do not do the same operations.
        """
        self.plans: dict[int, Plan] = {}
        self.compiled: dict[int, int] = {}
        """Compiled totals of the plans that fit, or the smallest ones of batches that do not, by count."""
        self.ratio = 1.0
        """Compiled temporaries over predicted ones, at the last batch that was compiled."""
        self.time_ratio = 1.0
        """Estimated seconds of the compiled step over those predicted, for the largest batch."""

    def run(self) -> BatchSearch:
        largest = self._largest()
        plan = self._plan(largest)
        self.time_ratio = _step_s(plan) / plan.predicted.step_s
        for count in self._fast_counts(largest):
            self._fits_compiled(count)
        tried = tuple(self._tried(count, largest) for count in sorted(self.planners))
        planned = [each for each in tried if each.plan is not None]
        return BatchSearch(
            step=self.planners[largest].traced.name,
            target=self.target.name,
            budget_bytes=self.limit_bytes,
            multiples_of=self.multiples_of,
            tried=tried,
            largest=planned[-1],
            fastest=max(planned, key=lambda each: each.items_per_s),
            compiles=sum(planner.compile_count for planner in self.planners.values()),
        )

    def planner(self, count: int) -> Planner:
        """The step of a batch, traced once."""
        if count not in self.planners:
            batch = count * self.multiples_of
            self.say(f"batch {batch}: making the step")
            called = f"{getattr(self.make_step, '__name__', 'make_step')}({batch})"
            step = step_from_spec(self.make_step(batch), called=called, reference=called)
            self.planners[count] = Planner(
                step,
                target=self.target,
                options=self.options,
                progress=lambda sentence: self.say(f"batch {batch}: {sentence}"),
            )
        return self.planners[count]

    def _largest(self) -> int:
        """The largest count that fits as compiled."""
        fits, fails = 0, None
        for _ in range(self.limits.batches):
            count = max(1, self._largest_expected(fits, fails))
            if count == fits:
                break
            if self._fits_compiled(count):
                fits = count
            elif count == 1:
                self._refuse()
            else:
                fails = count
        if not fits and not self._fits_compiled(1):
            self._refuse()
        return max(1, fits)

    def _refuse(self) -> None:
        """Raises the error that a plan for the smallest batch raises."""
        try:
            self._plan(1)
        except InfeasibleBudgetError as error:
            error.add_note(f"with the smallest batch, {self.multiples_of}")
            raise

    def _fits_compiled(self, count: int) -> bool:
        """Plans a batch; a refusal says the smallest total that was compiled."""
        try:
            plan = self._plan(count)
        except InfeasibleBudgetError as error:
            total_bytes, (fixed_bytes, predicted_bytes) = error.minimum_bytes, self._smallest(count)
        else:
            assert plan.footprint is not None, "planned budgets are compiled"
            total_bytes, predicted_bytes = plan.footprint.total_bytes, plan.predicted.temp_bytes
            fixed_bytes = plan.predicted.total_bytes - predicted_bytes
        self.compiled[count] = total_bytes
        self.ratio = max(0.1, (total_bytes - fixed_bytes) / max(1, predicted_bytes))
        return total_bytes <= self.limit_bytes

    def _largest_expected(self, fits: int, fails: int | None) -> int:
        """The largest count from `fits` on and below `fails` that the model expects to fit."""
        low, high = self._narrowed(fits, fails)
        rounds = 0
        while True:
            while high is None or high - low > 1:
                count = self._guess(low, high, rounds)
                if self._is_expected_to_fit(count):
                    low, high = self._narrowed(count, fails)
                else:
                    high = count
                rounds += 1
            if not self._fits_once_solved(high):
                return low
            low, high = self._narrowed(high, fails)

    def _fits_once_solved(self, count: int) -> bool:
        """True if a batch that was not solved for its smallest plan is expected to fit with that plan."""
        if count in self.smallest or count in self.compiled:
            return False
        self._solve(count)
        return self._is_expected_to_fit(count)

    def _narrowed(self, fits: int, fails: int | None) -> tuple[int, int | None]:
        """Both bounds, narrowed by the batches that are traced already."""
        inside = [count for count in self.planners if count > fits and (fails is None or count < fails)]
        too_large = [count for count in inside if not self._is_expected_to_fit(count)]
        high = min(too_large, default=fails)
        return max((count for count in inside if high is None or count < high), default=fits), high

    def _guess(self, low: int, high: int | None, rounds: int) -> int:
        """The next count: doubled until one does not fit, then where a line through two batches meets the budget."""
        met = self._intersection()
        if high is None:
            return max(1, 2 * low) if met is None or rounds % 3 == 2 else max(low + 1, met)
        if met is None or rounds % 3 == 2:
            return (low + high) // 2
        return min(high - 1, max(low + 1, met))

    def _intersection(self) -> int | None:
        """Where memory, as a line over batches, meets the budget; None where known batches give no rising line.

        The larger of two batches close to each other may take less memory: kernels pad odd lengths, and so may steps.
        `BatchError` where memory does not grow from one batch to another of `_FLAT` times its size.
        """
        known = sorted((abs(self._expected(count) - self.limit_bytes), -count) for count in self.planners)
        if len(known) < 2:
            return None
        one, other = sorted(-count for _, count in known[:2])
        growth = (self._expected(other) - self._expected(one)) / (other - one)
        if growth <= 0:
            first = min(count for count in self.planners if self._expected(count) >= self._expected(other))
            if other >= _FLAT * first:
                self._refuse_flat(first, other)
            return None
        return one + int((self.limit_bytes - self._expected(one)) // growth)

    def _is_expected_to_fit(self, count: int) -> bool:
        return self._expected(count) <= self.limit_bytes

    def _expected(self, count: int) -> int:
        """The expected total of the smallest plan."""
        fixed_bytes, temp_bytes = self._smallest(count)
        return fixed_bytes + int(self.ratio * temp_bytes)

    def _smallest(self, count: int) -> tuple[int, int]:
        """Predicted bytes of the smallest plan: of arguments and results, and of temporaries.

        Of a batch that was not solved, those of plans of batches that were.
        """
        transferred = [] if count in self.smallest else self._transferred(count)
        predicted = min(transferred or [self._solve(count).predicted], key=lambda predicted: predicted.total_bytes)
        return predicted.total_bytes - predicted.temp_bytes, predicted.temp_bytes

    def _solve(self, count: int) -> GraphPlan:
        """The smallest plan of a batch by prediction."""
        if count not in self.smallest:
            plans = self.planner(count).min_memory_plans
            self.smallest[count] = min(plans, key=lambda plan: plan.predicted.total_bytes)
        return self.smallest[count]

    def _transferred(self, count: int) -> list[Prediction]:
        """Predictions for a batch of the smallest plans of others whose steps do the same operations.

        Plans that tile loops, divide rows or have state on the host depend on the sizes of a step: none of these.
        """
        if any(any(plan.transformations) or plan.host_arguments for plan in self.smallest.values()):
            return []
        planner = self.planner(count)
        for other, plan in self.smallest.items():  # asked for at each guess, of all batches so far
            if (count, other) not in self.transferred:
                same = replace(plan, fingerprint=planner.graph.fingerprint)
                is_for_both = _has_same_ops(self.planner(other), planner)
                self.transferred[count, other] = planner.problem.predict(same) if is_for_both else None
        found = (self.transferred[count, other] for other in self.smallest)
        return [prediction for prediction in found if prediction is not None]

    def _expected_step_s(self, count: int) -> float:
        """Seconds of a step with the model's fastest plan within the budget."""
        planner = self.planner(count)
        planner.forget_budgets()
        temp_bytes = int((self.limit_bytes - planner.fixed_bytes) / self.ratio)
        fastest = planner.solver.solve(temp_bytes)
        if fastest.predicted.temp_bytes > temp_bytes and planner.min_memory_chunks:
            assert planner.chunk_solver is not None, "the plans come from it"
            fastest = planner.chunk_solver.solve(temp_bytes)
        if fastest.predicted.temp_bytes > temp_bytes and planner.min_memory_tilings:
            assert planner.tiling_solver is not None, "the tilings come from it"
            fastest = planner.tiling_solver.solve(temp_bytes, allow_empty=False)
        if fastest.predicted.temp_bytes > temp_bytes and planner.host_state_solver is not None:
            fastest = planner.host_state_solver.solve(planner.fixed_bytes + temp_bytes) or fastest
        return fastest.predicted.step_s

    def _refuse_flat(self, one: int, other: int) -> None:
        batches = [count * self.multiples_of for count in (one, other)]
        sizes = [format_bytes(self._expected(count)) for count in (one, other)]
        raise BatchError(
            "max_batch(make_step): the memory of the step does not grow with the batch.",
            got=f"batch {batches[0]} takes {sizes[0]}, batch {batches[1]} takes {sizes[1]}",
            needed="a make_step(batch) that gives the batch to the arguments of its step",
            advice="def make_step(batch): return step, (..., jax.ShapeDtypeStruct((batch, ...), ...))",
        )

    def _plan(self, count: int) -> Plan:
        """Compiles the fastest plan that fits for a batch."""
        if count not in self.plans:
            self.plans[count] = self.planner(count).plan(budget=self.limit_bytes)
        return self.plans[count]

    def _fast_counts(self, largest: int) -> list[int]:
        """Counts other than the largest that should have the highest throughput; the best first."""
        free = self._largest_unplanned(largest)
        parts = self.limits.batches_between + 1
        between = {free + (largest - free) * i // parts for i in range(parts)}
        smaller = {count for count in {*between, *self.planners} if 1 <= count < largest}
        counts = set(filter(self._is_expected_to_fit, smaller))
        expected = {count: self._items_per_s(count) for count in counts}
        best = sorted(counts, key=lambda count: (-expected[count], count))[: self.limits.fast_batches]
        least = self.limits.slowest_batch * self._items_per_s(largest)
        return [count for count in best if expected[count] >= least]

    def _largest_unplanned(self, largest: int) -> int:
        """The largest count whose step fits as it is, by a line through two known counts; at least 1."""
        known = sorted(self.planners)[:2] if len(self.planners) > 1 else [1, largest]
        one, other = known[0], known[-1]
        planners = map(self.planner, (one, other))
        first, second = (p.fixed_bytes + int(self.ratio * p.solver.empty_plan.predicted.temp_bytes) for p in planners)
        growth = (second - first) / max(1, other - one)
        met = one + int((self.limit_bytes - first) // growth) if growth > 0 else largest
        return min(largest, max(1, met))

    def _items_per_s(self, count: int) -> float:
        return count * self.multiples_of / self._expected_step_s(count)

    def _tried(self, count: int, largest: int) -> TriedBatch:
        plan = self.plans.get(count)
        smallest_bytes = self.compiled.get(count, self._expected(count))
        fits = plan is not None or (count < largest and smallest_bytes <= self.limit_bytes)
        step_s = 0.0
        if plan is not None:
            step_s = _step_s(plan)
        elif fits:
            step_s = self.time_ratio * self._expected_step_s(count)
        return TriedBatch(
            batch=count * self.multiples_of,
            fits=fits,
            compiled=count in self.compiled or plan is not None,
            smallest_bytes=smallest_bytes,
            step_s=step_s,
            plan=plan,
        )


def _has_same_ops(one: Planner, other: Planner) -> bool:
    """True if two steps do the same operations on the same values, of whatever sizes."""
    ops, others = one.graph.ops, other.graph.ops
    return len(ops) == len(others) and all(
        (op.primitive, op.reads, op.writes, op.loop) == (its.primitive, its.reads, its.writes, its.loop)
        for op, its in zip(ops, others, strict=True)
    )


def _step_s(plan: Plan) -> float:
    """Estimated seconds of the compiled program, waits for copies included; predicted ones where it has none."""
    return plan.estimated_step_s or plan.predicted.step_s
