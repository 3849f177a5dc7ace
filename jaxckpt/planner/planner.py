"""Planning: predict, compile, compare, correct, solve anew.

A `Planner` holds one traced step on one target and answers any number of budgets. For each it solves with the
model's prediction, compiles the rewritten step with the real compiler, and compares. A plan that is too large, or that
leaves much of the budget unused, corrects the model by the difference and is solved again. Only a plan whose
compiled total is within the budget is returned; of all that were compiled for the budget, the one of the least
estimated time.

The loop itself is in `search`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack, cast

from jaxckpt import ir
from jaxckpt._errors import InfeasibleBudgetError, PolicyError
from jaxckpt._progress import Progress, silent
from jaxckpt._step import Step
from jaxckpt._units import budget_bytes, budget_fraction, format_bytes
from jaxckpt.compiler import Footprint, LoweredStep, compile_side_by_side, lower_flat, most_compiles
from jaxckpt.hlo import stall_s
from jaxckpt.machine import Target
from jaxckpt.oom.remedies import Remedy
from jaxckpt.planner.floor import Floor, floor_of
from jaxckpt.planner.gc_pause import collector_paused
from jaxckpt.planner.generators import SolverPlans, generators_for, least_bytes
from jaxckpt.planner.limits import Limits
from jaxckpt.planner.loop_split import LoopSplitter
from jaxckpt.planner.loop_tiling import TilingSolver
from jaxckpt.planner.model_error import CompiledPlan
from jaxckpt.planner.options import PlanKeywords, PlanOptions, options_with, require_mesh
from jaxckpt.planner.refusals import larger_arguments, undone_by_cpu
from jaxckpt.planner.search import BudgetSearch
from jaxckpt.planner.user_plan import Argument, Plan, describe
from jaxckpt.planner.verify_plan import verification_note
from jaxckpt.policy import Policy, as_policy
from jaxckpt.rewrite import Rewritten, rewrite
from jaxckpt.rewrite.known_bad import misreads_offloaded_stacks, refuse_miscompiled
from jaxckpt.rewrite.moves import copy_options
from jaxckpt.rewrite.transformed_step import transformed_step
from jaxckpt.solve import (
    BudgetSolver,
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

if TYPE_CHECKING:
    from jaxckpt.planner.chunking import ChunkSolver
    from jaxckpt.planner.host_state import HostStateSolver

_DEFAULT = PlanOptions()
_SIMPLE_RULES = (
    *("full", "every:1", "every", "every:4", "sqrt", "dots", "dots_no_batch", "elementwise_recomputed", "mindspore"),
    *("layers", "layers:dots", "layers:dots_no_batch", "layers:elementwise_recomputed"),
)
"""Strategies that people carry out with `jax.checkpoint` in a line; the planner compiles them where its model fails."""


_CPU_SHARE = 0.5
"""No step was seen to take less than this share of the predicted total on the CPU. It takes less than predicted where
XLA's compiler for CPUs fuses more than that for GPUs: a step of 256 x 256 weights takes 1.19 MiB, 1.38 predicted."""


class Planner:
    """Plans one step on one target, for any number of budgets.

    Args:
      step: Loss, gradient and, if there is one, the update: a function, plain or jitted; or a `jaxckpt.Step`.
      *args: Its arguments: arrays, `jax.ShapeDtypeStruct`s (with shardings where there is a mesh), or both.
      target: A `Target` or its name ("h200").
      donate_argnums: Arguments whose memory the results may take; those of a jitted step are read from it.
      static_argnums: Arguments that are not traced; those of a jitted step are read from it.
      options: All options as one object.
      progress: Called with a sentence before each longer piece of work.
      **keywords: Fields of `PlanOptions`, which override those of `options`: allow, policy, offload,
        compiler_options, recompute_collectives, max_compiles.

    Attributes:
      step: The step with its arguments.
      target: The machine.
      options: All options.
      limits: Bounds of the searches.
      traced: The traced step.
      problem: The traced step with the target's rates and the options, as solvers take it.

    Raises:
      NoGradientError: The step has no backward pass.
      UnsupportedDecisionError: Partitions are allowed, and the step is on no mesh.
      UnknownStrategyError: `allow` has an unknown word.
      ArgumentError: An argument is neither an array nor a description of one.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> args = jnp.eye(8), jnp.ones((64, 8))
      >>> planner = jaxckpt.Planner(step, *args, target="cpu")
      >>> plans = [planner.plan(budget=budget) for budget in ("1GiB", "100%")]
      >>> all(plan.footprint.total_bytes <= planner.unplanned.total_bytes for plan in plans)
      True
      >>> planner.graph.argument_bytes
      2304
    """

    def __init__(
        self,
        step: Callable[..., Any] | Step,
        *args: Any,
        target: Target | str,
        donate_argnums: int | Sequence[int] = (),
        static_argnums: int | Sequence[int] = (),
        options: PlanOptions = _DEFAULT,
        progress: Progress | None = None,
        **keywords: Unpack[PlanKeywords],
    ):
        given = Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums)
        say = progress or silent
        say("tracing the step")
        with collector_paused():
            traced = trace_step(given.function, *given.args, kwargs=given.kwargs, **given.argnums)
        self._hold(given, traced, Target(target), options_with(options, keywords, called=Planner), say)

    @classmethod
    def of_traced(
        cls, traced: Traced, *, target: Target, options: PlanOptions = _DEFAULT, progress: Progress = silent
    ) -> "Planner":
        """A planner for a step that is traced already; its `step` takes the flat arguments."""
        planner = cls.__new__(cls)
        flat = Step(traced.flat_function(), traced.specs, donate_argnums=tuple(sorted(traced.donated)))
        planner._hold(flat, traced, target, options, progress)
        return planner

    def _hold(self, step: Step, traced: Traced, target: Target, options: PlanOptions, say: Progress) -> None:
        self.target = target
        self.options = options
        self.limits = Limits()
        self.step = step
        self.traced = traced
        self._say = say
        require_mesh(options.allow, self.graph)
        self.problem = self._problem()
        self._footprints: dict[ir.GraphPlan, Footprint] = {}
        self._solvers: dict[str, StrategySolver] = {}
        self._transformed: dict[tuple[object, ...], Traced] = {}
        self._problems: dict[tuple[object, ...], Problem] = {}
        self._splitters: dict[OptimalSolver, LoopSplitter] = {}

    def _problem(self) -> Problem:
        options = self.options
        offloading = options.offload or Offloading()
        free = Problem(
            graph=self.graph,
            rates=offloading.rates(self.target.rates),
            offloading=offloading,
            may_offload="offload" in options.allow,
            may_offload_loop_values=not misreads_offloaded_stacks(self.target.platform, self.target.compiler_version),
            may_partition="partition" in options.allow,
        )
        policy = as_policy(options.policy)
        saved = {} if options.recompute_collectives else saved_collectives(free)
        return replace(free, required={**saved, **required_decisions(free, policy)})

    @property
    def graph(self) -> ir.Graph:
        """The traced step as plain data."""
        return self.traced.graph

    @property
    def compiler_options(self) -> tuple[tuple[str, Any], ...]:
        """XLA options that every compile takes: those of the step's jit, and before them those of `options`."""
        return tuple({**dict(self.traced.compiler_options), **dict(self.options.compiler_options)}.items())

    def plan(self, *, budget: str | int | float, strategy: str = "optimal") -> Plan:
        """The fastest plan whose compiled total is within the budget.

        Args:
          budget: "6GiB", "6GB", bytes, or a share of the unplanned step's footprint (0.5, "50%").
          strategy: "optimal", or another of `jaxckpt.solve.STRATEGIES`, with an option behind a colon where it takes
            one ("every:4"). A strategy that depends on the budget runs with smaller budgets until its compiled plan
            fits.

        Returns:
          A plan with its footprint.

        Raises:
          BudgetError: The budget is no amount of memory.
          InfeasibleBudgetError: No plan fits; it names the smallest total that was reached.
          UnknownStrategyError: No solver has this name, or the solver has no such option.
          PolicyError, TooLargeError: The strategy does not apply to this step.
        """
        solver = self._solver_named(strategy)
        is_undone = self.target.platform == "cpu"
        if is_undone and solver is self.solver:
            self._refuse_undone(budget)
        baseline_bytes = None
        if budget_fraction(budget) is not None:
            baseline_bytes = self.unplanned.total_bytes
        limit_bytes = budget_bytes(budget, baseline_bytes=baseline_bytes)
        if self.least_fixed_bytes > limit_bytes:
            raise larger_arguments(
                budget,
                limit_bytes,
                self.graph,
                target=self.target.name,
                host_bytes=self.fixed_bytes - self.least_fixed_bytes,
                remedies=self._state_remedies(),
            )
        self.forget_budgets()
        generators = generators_for(self) if solver is self.solver else [SolverPlans(lambda: solver)]
        try:
            found = BudgetSearch(
                self,
                budget,
                limit_bytes,
                generators,
                most=self.options.max_compiles,
                strategy=strategy,
                limits=self.limits,
            ).run()
        except InfeasibleBudgetError:
            if is_undone:
                raise undone_by_cpu(budget, limit_bytes, self.unplanned.total_bytes, target=self.target.name) from None
            raise
        return cast(Plan, self.solver.bounded(found)) if solver is self.solver else found

    def _refuse_undone(self, budget: str | int | float) -> None:
        """Refuses a budget below the step's own total on the CPU; only bytes near that total take a compile."""
        unplanned_bytes = self.solver.empty_plan.predicted.total_bytes
        limit_bytes = budget_bytes(budget, baseline_bytes=unplanned_bytes)
        if budget_fraction(budget) is None and _CPU_SHARE * unplanned_bytes <= limit_bytes < unplanned_bytes:
            unplanned_bytes = self.unplanned.total_bytes
        if self.fixed_bytes <= limit_bytes < unplanned_bytes:
            raise undone_by_cpu(budget, limit_bytes, unplanned_bytes, target=self.target.name)

    def follow(self, policy: Policy | None) -> Plan:
        """Compiles the plan that a policy makes of the step, without a budget; None for the marks in the step only.

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
        """The optimal solver; all that does not depend on the budget is done."""
        self._say(f"solving ({len(self.graph.ops)} ops)")
        with collector_paused():
            return OptimalSolver(self.problem, rules=lambda: self.simple_rules)

    @cached_property
    def without_offload(self) -> OptimalSolver:
        """The optimal solver for plans that send nothing to the host; they may keep shards."""
        return OptimalSolver(replace(self.problem, may_offload=False))

    @cached_property
    def tiling_solver(self) -> TilingSolver | None:
        """The solver for plans that tile loops, which are for budgets that no other plan meets; None without loops.

        None for TPUs: a run that compiled tiled loops for one did not end within ten minutes.
        """
        may_tile = self.graph.loops and self.target.platform != "tpu"
        return TilingSolver(self.traced, self.solver, self.limits) if may_tile else None

    @property
    def min_memory_tilings(self) -> tuple[ir.GraphPlan, ...]:
        """Plans of tiled loops that the model predicts to be smaller than all others."""
        return () if self.tiling_solver is None else self.tiling_solver.min_memory_plans

    @cached_property
    def chunk_solver(self) -> "ChunkSolver | None":
        """The solver for plans with rows in pieces; None unless that is allowed, and the step has such rows."""
        return self._in_pieces(self.solver) if "chunk" in self.options.allow else None

    def _in_pieces(self, solver: OptimalSolver) -> "ChunkSolver | None":
        """A solver for rows in pieces, from that of the step with its rows together; None if it has no such rows."""
        from jaxckpt.planner.chunking import ChunkSolver  # training jobs, and planners without it, do not load it

        self._say("looking for rows that can run in pieces")
        with collector_paused():
            found = ChunkSolver(self.traced, solver)
            return found if found.can_divide else None

    @property
    def min_memory_chunks(self) -> tuple[ir.GraphPlan, ...]:
        """Plans of rows in pieces that the model predicts to be smaller than plans of the same loops without."""
        return () if self.chunk_solver is None else self.chunk_solver.min_memory_plans

    @cached_property
    def host_state_solver(self) -> "HostStateSolver | None":
        """The solver for plans with optimiser state in host memory; None unless that is allowed, and there is some.

        No residual moves beside the state: copies of both would wait for each other on the link to the host, and the
        model does not predict these waits.
        """
        if "state" not in self.options.allow or self.target.platform == "cpu":
            return None
        from jaxckpt.planner.host_state import HostStateSolver  # few planners need it

        solvers: tuple[BudgetSolver | None, ...] = self.solver, self.chunk_solver
        if self.problem.may_move:
            in_pieces = None if self.chunk_solver is None else self._in_pieces(self.recompute_only)
            solvers = self.recompute_only, in_pieces
        found = HostStateSolver(self, [solver for solver in solvers if solver is not None])
        return found if found.choices else None

    @property
    def min_memory_plans(self) -> tuple[ir.GraphPlan, ...]:
        """Plans of about the least predicted memory, of all kinds that are allowed."""
        state = () if self.host_state_solver is None else self.host_state_solver.min_memory_plans
        return *self.solver.min_memory_plans, *self.min_memory_tilings, *self.min_memory_chunks, *state

    @cached_property
    def recompute_only(self) -> OptimalSolver:
        """The optimal solver for plans that neither send anything to the host nor keep shards."""
        return OptimalSolver(replace(self.problem, may_offload=False, may_partition=False))

    @cached_property
    def simple_rules(self) -> tuple[ir.GraphPlan, ...]:
        """Plans of the rules that people write by hand, and of `jax.checkpoint` around each stage of the best cuts."""
        plans = [*self.solver.cut_minima.near_least, *self.solver.cut_minima.near_least_unshared]
        for rule in _SIMPLE_RULES:
            with suppress(PolicyError):  # the step has nothing that the rule is for
                plans.append(solve(self.problem, rule))
        return tuple(dict.fromkeys(plans))

    def forget_budgets(self) -> None:
        """Lets all solvers forget earlier budgets, so that the answer for the next one does not depend on them."""
        solvers = "solver", "without_offload", "recompute_only", "tiling_solver", "chunk_solver", "host_state_solver"
        for solver in map(vars(self).get, solvers):  # those that were asked for so far
            if solver is not None:
                solver.forget_budgets()

    def _solver_named(self, strategy: str) -> BudgetSolver:
        """A strategy's solver, which keeps its work for earlier budgets."""
        named = named_strategy(strategy)
        if strategy == "optimal":
            return self.solver
        if strategy not in self._solvers:
            self._solvers[strategy] = StrategySolver(self.problem, named)
        return self._solvers[strategy]

    @property
    def fixed_bytes(self) -> int:
        """Bytes that no decision about residuals changes: arguments, and results that reuse no donated argument."""
        return self.graph.argument_bytes + unaliased_output_bytes(self.graph)

    @property
    def least_fixed_bytes(self) -> int:
        """These bytes with all state in host memory that may be there."""
        return self.fixed_bytes - (0 if self.host_state_solver is None else self.host_state_solver.state_bytes)

    def smallest(self) -> CompiledPlan:
        """The plan of the smallest compiled total, of those that may be the smallest."""
        return min(self.small_plans(), key=lambda c: c.footprint.total_bytes)

    def small_plans(self) -> list[CompiledPlan]:
        """The plans of least predicted memory, and rules that may be smaller.

        A rule may be smaller if the model predicts too much for it, by more than it was off for the others.
        """
        compiled = self.measure_all(self.min_memory_plans)
        smallest_bytes = min(each.footprint.total_bytes for each in compiled)
        error = max(each.model_error for each in compiled)
        rules = (plan for plan in self.simple_rules if least_bytes(plan, error) < smallest_bytes)
        return [*compiled, *self.measure_all(rules)]

    def floor(self) -> Floor:
        """The memory of the smallest plan by purpose, with remedies other than a plan.

        Where "chunk" is not allowed, rows in pieces are one of them, and where "state" is not, optimiser state in host
        memory, both with predicted bytes; nothing is compiled for them.
        """
        return self.floor_of(self.smallest().footprint)

    def floor_of(self, smallest: Footprint) -> Floor:
        """The floor of the smallest plan, from its compiled footprint."""
        found, allow = floor_of(smallest, self.graph, step=self.traced.name), self.options.allow
        found = found if "chunk" in allow else found.with_remedies(self._chunk_remedies(smallest.temp_bytes))
        return found.with_remedies(self._state_remedies())

    def _chunk_remedies(self, temp_bytes: int) -> Iterator[Remedy]:
        """Rows in pieces as a remedy, if the step has such rows, for a smallest plan of so many compiled temporaries.

        The predicted share of the temporaries is taken: the model may be off for the smallest plan.
        """
        pieces, saved_bytes = self._chunk_estimate
        saved_bytes = saved_bytes * temp_bytes // max(1, self.solver.min_memory_plan.predicted.temp_bytes)
        yield Remedy(
            title="rows in pieces",
            how=f"The step has rows that it treats alike, in {pieces} pieces by the planner: forward and backward of a"
            " piece together, without a change of the step. Sums over rows are taken in another order, so losses and"
            " gradients differ by rounding. The figure is predicted.",
            saves_bytes=saved_bytes,
            command='allow=("recompute", "chunk")',
        )

    def _state_remedies(self) -> Iterator[Remedy]:
        """Optimiser state in host memory as a remedy, unless that is allowed; the CPU's memory is the host's."""
        from jaxckpt.planner.host_state import HostStateSolver  # few planners need it

        if "state" not in self.options.allow and self.target.platform != "cpu":
            yield Remedy(
                title="optimiser state in host memory",
                how="Arguments that are donated, and that only the update reads, are in host memory between steps. A"
                " plan copies them to the device and back for the update, group by group, beside the backward. The"
                " figure is predicted.",
                saves_bytes=HostStateSolver(self, ()).saved_bytes,
                command='allow=("recompute", "state")',
            )

    @cached_property
    def _chunk_estimate(self) -> tuple[int, int]:
        """`ChunkSolver.estimate`: it takes seconds, and refusals of several budgets ask for it."""
        from jaxckpt.planner.chunking import ChunkSolver  # training jobs do not load it

        self._say("looking for rows that can run in pieces")
        with collector_paused():
            return ChunkSolver(self.traced, self.solver).estimate

    @contextmanager
    def saying(self, attempt: str) -> Iterator[None]:
        """Progress begins with these words inside it: which attempt of how many this is."""
        say = self._say
        self._say = lambda sentence: say(f"{attempt}: {sentence}")
        try:
            yield
        finally:
            self._say = say

    def measure(self, plan: ir.GraphPlan) -> CompiledPlan:
        """A plan with its compiled footprint; each plan is compiled once."""
        if plan not in self._footprints:
            self._footprints[plan] = self._lowered(plan).compile().footprint
        return CompiledPlan(plan, self._footprints[plan])

    def measure_all(self, plans: Iterable[ir.GraphPlan]) -> list[CompiledPlan]:
        """Plans with their compiled footprints; where the machine has the cores, they are compiled side by side."""
        plans = list(plans)
        missing = [plan for plan in dict.fromkeys(plans) if not self.is_compiled(plan)]
        if most_compiles() > 1:
            for plan, made in zip(missing, compile_side_by_side(map(self._lowered, missing)), strict=True):
                self._footprints[plan] = made.footprint
        for number, plan in enumerate(missing, 1):
            with self.saying(f"plan {number} of {len(missing)}"):
                self.measure(plan)
        return [self.measure(plan) for plan in plans]

    def _lowered(self, plan: ir.GraphPlan) -> LoweredStep:
        """The step with a plan carried out, ready for the compiler."""
        refuse_miscompiled(
            self.transformed_step(plan).graph,
            plan,
            called=f"a plan for {self.target.name}",
            platform=self.target.platform,
            version=self.target.compiler_version,
        )
        self._say(f"compiling for {self.target.name}")
        rewritten, own = self.rewritten(plan), copy_options(plan, self.target.platform)
        return lower_flat(
            rewritten.call,
            rewritten.traced.specs,
            donated=self.traced.donated,
            target=self.target,
            compiler_options=tuple({**dict(own), **dict(self.compiler_options)}.items()),
            out_shardings=rewritten.out_shardings,
            name=self.traced.name,
            argument_paths=self.traced.paths,
        )

    def rewritten(self, plan: ir.GraphPlan) -> Rewritten:
        """The step with a plan carried out, over flat arguments."""
        transformed = self.transformed_step(plan)
        return rewrite(self.traced, plan, for_tpu=self.target.platform == "tpu", transformed=transformed)

    def transformed_step(self, plan: ir.GraphPlan) -> Traced:
        """The step whose values a plan decides on: rows in pieces, loops split and tiled as the plan says."""
        changes = plan.transformations
        if changes not in self._transformed:
            self._transformed[changes] = transformed_step(self.traced, plan)
        return self._transformed[changes]

    def problem_of(self, plan: ir.GraphPlan) -> Problem:
        """The problem of the step whose values a plan decides on."""
        changes = plan.transformations
        if not any(changes):
            return self.problem
        if changes not in self._problems:
            self._problems[changes] = replace(
                self.problem,
                graph=self.transformed_step(plan).graph,
                required={},
                row_chunks=plan.row_chunks,
                loop_tilings=plan.loop_tilings,
                fingerprint=self.graph.fingerprint,
            )
        return self._problems[changes]

    def loop_splitter(self, solver: OptimalSolver) -> LoopSplitter:
        """Splits loops, so that a mixture of two plans of a solver can be carried out."""
        return self._splitters.setdefault(solver, LoopSplitter(self.traced, solver, self.limits))

    def compiled_plans(self) -> tuple[CompiledPlan, ...]:
        """All plans that were compiled so far, for whatever question."""
        return tuple(CompiledPlan(plan, footprint) for plan, footprint in self._footprints.items())

    def step_s_with_stalls(self, candidate: CompiledPlan) -> float:
        """Estimated seconds of a compiled step, with the time that it waits for copies between device and host.

        On the link of the options, which may be another one than the target's in `Footprint.stall_s`.
        """
        memory = candidate.footprint.memory
        return candidate.footprint.step_s + (0.0 if memory is None else stall_s(memory, self.problem.rates))

    @property
    def compile_count(self) -> int:
        """Number of programs that were compiled so far."""
        return len(self._footprints)

    def is_compiled(self, plan: ir.GraphPlan) -> bool:
        """True if `measure` would compile nothing for this plan."""
        return plan in self._footprints

    def as_plan(self, candidate: CompiledPlan, *, notes: tuple[str, ...] = (), **more: Any) -> Plan:
        """Returns a compiled plan as users hold it.

        Args:
          candidate: The compiled plan.
          notes: Sentences for `Plan.notes`.
          **more: Further fields of `Plan`.

        Raises:
          VerificationError: The plan moves values to the host, and computes something else than the step.
        """
        if candidate.plan.copies:
            notes = (*notes, verification_note(self.step, candidate.plan, self.graph, say=self._say))
        notes = *notes, *map(self._chunk_note, candidate.plan.row_chunks[:1])
        if candidate.plan.host_arguments:
            notes = *notes, self._state_note(candidate.plan)
        graph = self.transformed_step(candidate.plan).graph
        shared = {field.name: getattr(candidate.plan, field.name) for field in fields(ir.GraphPlan)}
        return Plan(
            **shared,
            target=self.target.name,
            footprint=candidate.footprint,
            estimated_step_s=self.step_s_with_stalls(candidate),
            described=tuple(describe(graph, value) for value in candidate.plan.decisions),
            arguments=tuple(
                Argument.of(path, spec) for path, spec in zip(self.traced.paths, self.traced.specs, strict=True)
            ),
            notes=notes,
            static_argnums=tuple(sorted(i for i in self.traced.static if isinstance(i, int))),
            **more,
        )

    def _state_note(self, plan: ir.GraphPlan) -> str:
        """A sentence on optimiser state in host memory."""
        paths = [self.traced.paths[v] for v in plan.host_arguments]
        size_bytes = self.graph.size_bytes(plan.host_arguments)
        listed = ", ".join(paths[:2]) + (", ..." if len(paths) > 2 else "")
        return (
            f"{len(paths)} arguments ({listed}) of {format_bytes(size_bytes)} are in host memory between steps, and so"
            " are the results that take over their memory."
        )

    def _chunk_note(self, chunk: ir.RowChunk) -> str:
        """A sentence on rows that run in pieces."""
        value = describe(self.graph, chunk.value)
        shape, where = ",".join(map(str, value.shape)), f" of {value.scope}" if value.scope else ""
        return (
            f"The rows of {value.dtype}[{shape}]{where} (dimension {chunk.dimension}) run in {chunk.pieces} pieces,"
            " forward and backward together. Sums over rows are taken in another order: losses and gradients differ by"
            " rounding."
        )


def plan(
    step: Callable[..., Any] | Step,
    *args: Any,
    budget: str | int | float,
    target: Target | str,
    strategy: str = "optimal",
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    options: PlanOptions = _DEFAULT,
    progress: Progress | None = None,
    **keywords: Unpack[PlanKeywords],
) -> Plan:
    """Fits a training step into a budget of memory, by the compiler's figure.

    The step is traced, solved, rewritten and compiled for the target. Nothing runs, and the device need not be
    attached. To plan several budgets of one step, use a `Planner`.

    Args:
      step: Loss, gradient and, if there is one, the update: a function, plain or jitted; or a `jaxckpt.Step`.
      *args: Its arguments: arrays, `jax.ShapeDtypeStruct`s (with shardings where there is a mesh), or both.
      budget: "6GiB", "6GB", bytes, or a share of the unplanned step's footprint (0.5, "50%").
      target: A `Target` or its name ("h200").
      strategy: "optimal", or another of `jaxckpt.solve.STRATEGIES`; see `Planner.plan`.
      donate_argnums: Arguments whose memory the results may take; those of a jitted step are read from it.
      static_argnums: Arguments that are not traced; those of a jitted step are read from it.
      options: All options as one object.
      progress: Called with a sentence before each longer piece of work.
      **keywords: Fields of `PlanOptions`, which override those of `options`: allow, policy, offload,
        compiler_options, recompute_collectives, max_compiles.

    Returns:
      A plan whose compiled total (arguments + results - donated + temporaries, bytes per device) is within the
      budget. `plan.apply(step)` is the planned step.

    Raises:
      InfeasibleBudgetError: No plan fits.
      BudgetError: The budget is no amount of bytes and no share of the step as written.
      NoGradientError: The step computes no gradient.
      ArgumentError: An argument is invalid or not supported.
      UnknownTargetError: No target has this name.
      MissingPackageError: The target's compiler is not installed; the message has the command.
      UnknownStrategyError: No strategy has this name.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> args = jnp.eye(8), jnp.ones((64, 8))
      >>> plan = jaxckpt.plan(step, *args, budget="1GiB", target="cpu")
      >>> plan.footprint.total_bytes <= plan.budget_bytes
      True
      >>> planned_step = jax.jit(plan.apply(step))
      >>> bool(jnp.allclose(planned_step(*args), step(*args), rtol=1e-4))
      True
    """
    machine = Target(target)
    machine.require_compiler()  # before the step is traced
    planner = Planner(
        Step.of(step, args, donate_argnums=donate_argnums, static_argnums=static_argnums),
        target=machine,
        options=options_with(options, keywords, called=plan),
        progress=progress,
    )
    return planner.plan(budget=budget, strategy=strategy)
