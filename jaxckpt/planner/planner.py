"""The loop that keeps the promise: predict, compile, compare, correct, solve again.

A `Planner` holds one traced step on one target and answers any number of budgets. For each it solves with the
model's prediction, compiles the rewritten step with the real compiler, and compares. A plan that is too large, or that
leaves much of the budget unused, corrects the model by the difference and is solved again. Only a plan whose
compiled total is within the budget is returned; of all that were measured so far, for other budgets too, the one of
the least estimated time.

Read after `jaxckpt.solve`, `jaxckpt.rewrite`, `jaxckpt.compiler`; `search` is the loop itself.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxckpt import ir
from jaxckpt._errors import InfeasibleBudgetError
from jaxckpt._progress import Progress, silent
from jaxckpt._units import budget_bytes, budget_fraction
from jaxckpt.compiler import Footprint, compile_flat
from jaxckpt.hlo import stall_s
from jaxckpt.machine import Target
from jaxckpt.planner.allowed import checked_allow, require_mesh
from jaxckpt.planner.floor import Floor, floor_of
from jaxckpt.planner.gc_pause import collector_paused
from jaxckpt.planner.loop_split import LoopSplitter
from jaxckpt.planner.loop_tiling import TilingSolver
from jaxckpt.planner.plan import Argument, Attempt, Described, Plan, describe
from jaxckpt.planner.refusals import larger_arguments
from jaxckpt.planner.search import BudgetSearch, CompiledPlan
from jaxckpt.planner.verify_plan import verification_note
from jaxckpt.policy import Policy, load_policy
from jaxckpt.rewrite import Rewritten, rewrite, with_planned_loops
from jaxckpt.rewrite.known_bad import misreads_offloaded_stacks, refuse_miscompiled
from jaxckpt.solve import (
    Offloading,
    OptimalSolver,
    Problem,
    StrategySolver,
    named_strategy,
    plan_from_policy,
    required_decisions,
    saved_collectives,
    solve,
    unaliased_output_bytes,
)
from jaxckpt.trace import Traced, trace_step


class Planner:
    """Plans one step on one target, for any number of budgets.

    Args:
      step: Loss, gradient and, if it is there, update: a function, plain or jitted.
      *args: Its arguments: arrays, `jax.ShapeDtypeStruct`s (with shardings where there is a mesh), or both.
      target: A `Target` or its name ("h200").
      donate_argnums: Arguments whose memory the results may take; taken over from a jitted step.
      static_argnums: Arguments that are not traced; taken over from a jitted step.
      allow: What the planner may do with a residual besides saving it: "recompute", and beside it "offload" (to the
        host) and "partition" (as shards over a mesh axis on which every device holds all of it).
      max_compiles: At most so many compiles for one plan; only before a budget is refused, plans of least memory
        that should fit are compiled beyond them.
      policy: What no plan may change: rules that say "must", of this policy and of marks in the step. The rest of it,
        and rules that say "prefer", are left to the planner.
      offload: What is asked of what goes to the host; None for the target's own bandwidth and nothing more.
      compiler_options: XLA options as pairs of name and value; they go before those of a jitted step.
      recompute_collectives: Whether what devices exchanged data for in the forward pass may be computed again;
        otherwise it is saved. Parameters gathered for use are gathered again all the same.
      progress: Called with a sentence before each longer piece of work.

    Raises:
      NoGradientError: The step has no backward pass.
      UnsupportedDecisionError: Partitions are allowed, and the step is on no mesh.
      ArgumentError: An argument is neither an array nor a description of one.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *args: Any,
        target: Target | str,
        donate_argnums: int | tuple[int, ...] = (),
        static_argnums: int | tuple[int, ...] = (),
        allow: tuple[str, ...] = ("recompute",),
        max_compiles: int = 4,
        policy: Policy | str | Path | None = None,
        offload: Offloading | None = None,
        compiler_options: Sequence[tuple[str, Any]] = (),
        recompute_collectives: bool = True,
        progress: Progress | None = None,
    ):
        self.target = Target(target) if isinstance(target, str) else target
        self.allow = checked_allow(allow)
        self.max_compiles = max_compiles
        self._say = progress or silent
        self._step, self._args = step, args
        self._donate_argnums, self._static_argnums = donate_argnums, static_argnums
        self._say("tracing the step")
        with collector_paused():
            self.traced = trace_step(step, *args, donate_argnums=donate_argnums, static_argnums=static_argnums)
        self.compiler_options = tuple({**dict(self.traced.compiler_options), **dict(compiler_options)}.items())
        self.graph = self.traced.graph
        require_mesh(self.allow, self.graph)
        offloading = offload or Offloading()
        free = Problem(
            graph=self.graph,
            rates=offloading.rates(self.target.rates),
            offloading=offloading,
            may_offload="offload" in allow,
            may_offload_loop_values=not misreads_offloaded_stacks(self.target.platform, self.target.compiler_version),
            may_partition="partition" in allow,
        )
        chosen = load_policy(policy) if isinstance(policy, str | Path) else policy
        kept = {} if recompute_collectives else saved_collectives(free)
        self.problem = replace(free, required={**kept, **required_decisions(free, chosen)})
        self._footprints: dict[ir.GraphPlan, Footprint] = {}
        self._solvers: dict[str, StrategySolver] = {}
        self._decided: dict[tuple[object, ...], Traced] = {}
        self._stretchings: dict[OptimalSolver, LoopSplitter] = {}

    def plan(self, *, budget: str | int | float, strategy: str = "optimal") -> Plan:
        """The fastest plan whose compiled total is within the budget.

        Args:
          budget: "6GiB", "6GB", bytes, or a share of the unplanned step's footprint (0.5, "50%").
          strategy: "optimal", or another of `jaxckpt.solve.STRATEGIES`, with an option behind a colon where it takes
            one ("every:4"). One that reads the budget is asked again until its plan fits as compiled.

        Returns:
          A plan with its footprint.

        Raises:
          BudgetError: The budget is no amount of memory.
          InfeasibleBudgetError: No plan fits; it names the smallest total that was reached.
          UnknownStrategyError: No solver has that name, or it takes no such option.
          PolicyError, TooLargeError: The strategy cannot do anything with this step.
        """
        solver = self._solver_named(strategy)
        baseline_bytes = None
        if budget_fraction(budget) is not None:
            baseline_bytes = self.unplanned.total_bytes
        limit_bytes = budget_bytes(budget, baseline_bytes=baseline_bytes)
        if self.fixed_bytes > limit_bytes:
            raise larger_arguments(budget, limit_bytes, self.graph, target=self.target.name)
        refused: list[InfeasibleBudgetError] = []
        found: Plan | None = None
        for search in self._searches(budget, limit_bytes, solver):
            try:
                found = search.run()
            except InfeasibleBudgetError as error:
                refused.append(error)
        if found is None:
            raise min(refused, key=lambda error: error.minimum_bytes)
        return found

    def _searches(
        self, budget: object, limit_bytes: int, solver: OptimalSolver | StrategySolver
    ) -> Iterator[BudgetSearch]:
        """Searches for a budget, each to be run before the next: with a solver, those beside it, and nested loops."""
        solvers, nesting = (
            ((solver, *self.fallback_solvers), self.tiling_solver) if solver is self.solver else ((solver,), None)
        )
        attempts: tuple[Attempt, ...] = ()
        tried: list[CompiledPlan] = []
        for which in solvers:
            search = BudgetSearch(self, budget, limit_bytes, which, attempts, most=self.max_compiles, nesting=nesting)
            yield search
            attempts, tried = (*attempts, *search.attempts), [*tried, *search.tried]
            if not any(self.problem.moves(candidate.plan) for candidate in search.tried):
                break
        left = self.max_compiles - len(search.attempts)
        if (
            nesting is not None
            and left
            and nesting.min_memory_plans
            and not any(each.fits(limit_bytes) for each in tried)
        ):
            off_bytes = min(each.footprint.total_bytes - each.plan.predicted.total_bytes for each in tried)
            yield BudgetSearch(self, budget, limit_bytes, nesting, attempts, most=left, off_bytes=max(0, off_bytes))

    def follow(self, policy: Policy | None) -> Plan:
        """A policy carried over to the step, compiled and measured; no budget is kept. None: marks in the step alone.

        Raises:
          PolicyError: A rule matches nothing in the step.
        """
        candidate = self.measure(plan_from_policy(replace(self.problem, required={}), policy).plan)
        return self.as_plan(candidate)

    @cached_property
    def unplanned(self) -> Footprint:
        """The footprint of the step as its author wrote it."""
        return self.measure(solve(self.problem, "none")).footprint

    @cached_property
    def solver(self) -> OptimalSolver:
        """The optimal solver, with all that does not depend on the budget done."""
        self._say(f"solving ({len(self.graph.ops)} ops)")
        with collector_paused():
            return OptimalSolver(self.problem)

    @property
    def fallback_solvers(self) -> Iterator[OptimalSolver]:
        """The same for plans that move less: copies and gathers may cost more as compiled than the work they spare."""
        if self.problem.may_offload and self.problem.may_partition:
            yield self.without_offload
        if self.problem.may_move:
            yield self.recompute_only

    @cached_property
    def without_offload(self) -> OptimalSolver:
        """For plans that send nothing to the host, and may keep shards."""
        return OptimalSolver(replace(self.problem, may_offload=False))

    @cached_property
    def tiling_solver(self) -> TilingSolver | None:
        """For plans that nest loops, where nothing else fits.

        For TPUs there are none: a run that compiled them for one did not end within ten minutes.
        """
        return None if self.target.platform == "tpu" else TilingSolver(self.traced, self.solver)

    @property
    def min_memory_tilings(self) -> tuple[ir.GraphPlan, ...]:
        """Plans of nested loops that the model knows to be smaller than all others."""
        return () if self.tiling_solver is None else self.tiling_solver.min_memory_plans

    @cached_property
    def recompute_only(self) -> OptimalSolver:
        """For plans that neither send anything to the host nor keep shards."""
        return OptimalSolver(replace(self.problem, may_offload=False, may_partition=False))

    def _solver_named(self, strategy: str) -> OptimalSolver | StrategySolver:
        """A strategy's solver, with what it has done for earlier budgets."""
        named = named_strategy(strategy)
        if strategy == "optimal":
            return self.solver
        if strategy not in self._solvers:
            self._solvers[strategy] = StrategySolver(self.problem, named)
        return self._solvers[strategy]

    @property
    def fixed_bytes(self) -> int:
        """Arguments and results that find no donated argument: what no plan changes."""
        return self.graph.argument_bytes + unaliased_output_bytes(self.graph)

    def smallest(self) -> CompiledPlan:
        """The plan of the smallest compiled total among those that the model knows for the least."""
        tiled = map(self.measure, self.min_memory_tilings)
        return min([self.smallest_untiled(), *tiled], key=lambda c: c.footprint.total_bytes)

    def smallest_untiled(self) -> CompiledPlan:
        """The same of plans for the step's own loops."""
        return min(map(self.measure, self.solver.min_memory_plans), key=lambda c: c.footprint.total_bytes)

    def floor(self) -> Floor:
        """What the smallest plan takes, by what it is for, and what would lower it beside a plan."""
        return floor_of(self.smallest().footprint, self.graph, step=self.traced.name)

    def measure(self, plan: ir.GraphPlan) -> CompiledPlan:
        """A plan with what the compiler says of it; compiled once."""
        if plan not in self._footprints:
            refuse_miscompiled(
                self.with_planned_loops(plan).graph,
                plan,
                called=f"a plan for {self.target.name}",
                platform=self.target.platform,
                version=self.target.compiler_version,
            )
            self._say(f"compiling for {self.target.name}")
            compilation = compile_flat(
                self.rewritten(plan).call,
                self.traced.specs,
                donated=self.traced.donated,
                target=self.target,
                compiler_options=self.compiler_options,
                out_shardings=self.traced.out_shardings,
                name=self.traced.name,
                argument_paths=self.traced.paths,
            )
            self._footprints[plan] = compilation.footprint
        return CompiledPlan(plan, self._footprints[plan])

    def rewritten(self, plan: ir.GraphPlan) -> Rewritten:
        """The step with a plan carried out, over flat arguments."""
        return rewrite(self.traced, plan, stacked=self.target.platform == "tpu")

    def with_planned_loops(self, plan: ir.GraphPlan) -> Traced:
        """The step whose values a plan decides on: its loops in the plan's stretches, and nested."""
        loops = plan.loop_splits, plan.loop_tilings
        if loops not in self._decided:
            self._decided[loops] = with_planned_loops(self.traced, plan)
        return self._decided[loops]

    def loop_splitter(self, solver: OptimalSolver) -> LoopSplitter:
        """What decides differently for some turns of a loop, from a solver's plans that do not."""
        return self._stretchings.setdefault(solver, LoopSplitter(self.traced, solver))

    def candidates(self) -> tuple[CompiledPlan, ...]:
        """What was measured so far of plans that may answer any budget."""
        may_be = {"optimal", "full", *(("none",) if self.problem.allows_empty_plan else ())}
        return tuple(CompiledPlan(plan, fp) for plan, fp in self._footprints.items() if plan.strategy in may_be)

    def step_s_with_stalls(self, candidate: CompiledPlan) -> float:
        """Estimated seconds of a compiled step, with what its copies between device and host delay."""
        memory = candidate.footprint.memory
        waits_s = 0.0 if memory is None else stall_s(memory, self.problem.rates)
        return candidate.footprint.step_s + waits_s

    @property
    def compile_count(self) -> int:
        """How many programs were compiled so far."""
        return len(self._footprints)

    def is_compiled(self, plan: ir.GraphPlan) -> bool:
        """Whether `measure` would answer from memory."""
        return plan in self._footprints

    def as_plan(self, candidate: CompiledPlan, *, notes: tuple[str, ...] = (), **more: Any) -> Plan:
        """A measured candidate as users hold it; `more` are further fields of `Plan`.

        Raises:
          VerificationError: It moves values to the host, and what it computes there is not what the step computes.
        """
        if candidate.plan.offloads:
            ran = verification_note(
                self._step,
                self._args,
                candidate.plan,
                self.graph,
                donate_argnums=self._donate_argnums,
                static_argnums=self._static_argnums,
                say=self._say,
            )
            notes = (*notes, ran)
        shared = {field.name: getattr(candidate.plan, field.name) for field in fields(ir.GraphPlan)}
        return Plan(
            **shared,
            target=self.target.name,
            footprint=candidate.footprint,
            described=tuple(self.described(candidate.plan)),
            arguments=tuple(self.arguments()),
            notes=notes,
            static_argnums=tuple(sorted(i for i in self.traced.static if isinstance(i, int))),
            **more,
        )

    def described(self, plan: ir.GraphPlan) -> Iterator[Described]:
        """What each decided value of a plan is."""
        graph = self.with_planned_loops(plan).graph
        return (describe(graph, value) for value in plan.decisions)

    def arguments(self) -> Iterator[Argument]:
        """What the step was traced with."""
        for path, spec in zip(self.traced.paths, self.traced.specs, strict=True):
            yield Argument(path=path, shape=tuple(spec.shape), dtype=str(spec.dtype))


def plan(
    step: Callable[..., Any],
    *args: Any,
    budget: str | int | float,
    target: Target | str,
    donate_argnums: int | tuple[int, ...] = (),
    static_argnums: int | tuple[int, ...] = (),
    strategy: str = "optimal",
    allow: tuple[str, ...] = ("recompute",),
    max_compiles: int = 4,
    policy: Policy | str | Path | None = None,
    offload: Offloading | None = None,
    compiler_options: Sequence[tuple[str, Any]] = (),
    recompute_collectives: bool = True,
    progress: Progress | None = None,
) -> Plan:
    """Fits a training step into a budget of memory, proved by the compiler.

    The step is traced, solved, rewritten and compiled for the target; nothing is run, and the target need not be
    there. See `Planner` for the arguments, and to plan several budgets of one step.

    Returns:
      A plan whose compiled total (arguments + results - donated + temporaries, bytes per device) is within the
      budget. `plan.apply(step)` is the step that does it.

    Raises:
      InfeasibleBudgetError: No plan fits.
      BudgetError, NoGradientError, ArgumentError, UnknownTargetError, MissingPackageError,
      UnknownStrategyError: The call cannot be understood or carried out; the message says what to do.
    """
    planner = Planner(
        step,
        *args,
        target=target,
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
        allow=allow,
        max_compiles=max_compiles,
        policy=policy,
        offload=offload,
        compiler_options=compiler_options,
        recompute_collectives=recompute_collectives,
        progress=progress,
    )
    return planner.plan(budget=budget, strategy=strategy)
