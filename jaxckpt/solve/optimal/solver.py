"""The optimal solver: integer programmes for each distinct stage, composed exactly over the stages.

For a few cuts of the forward pass into stages, on small graphs those of simple rules too: the options of each distinct
stage, the memory profile of the stages, and the fastest combination of options within the budget. A replay of the full
plan has the last word: bytes that the composition misjudged are subtracted from the budget, and the options are
composed again. On small graphs local searches improve the plans. Read after `compose` and `local_search`. Compare
Rockmate (Zhao et al. 2023), which solves blocks by integer programming and composes them by rotor's dynamic programme.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from operator import attrgetter

from jaxckpt.ir import GraphPlan, Offload, Save
from jaxckpt.solve.full_recompute import CutMinima, finest_layers
from jaxckpt.solve.optimal.compose import StagedOptions, least_seconds
from jaxckpt.solve.optimal.local_search import LocalSearch
from jaxckpt.solve.optimal.moved_options import host_link, partition_of, with_moved_variants
from jaxckpt.solve.optimal.options import SolvedStages, stage_options
from jaxckpt.solve.optimal.prefetch_schedule import with_prefetch_distances
from jaxckpt.solve.optimal.stage_memory import ProfiledStages, profile_stages
from jaxckpt.solve.optimal.stage_problem import split_into_stages
from jaxckpt.solve.problem import Problem, decisions_saving, solve_none
from jaxckpt.solve.stages import StageStarts, boundaries, finer_stages

_TEMP_BYTES, _STEP_S = attrgetter("predicted.temp_bytes"), attrgetter("predicted.step_s")

_NEARLY = 1.1
"""A plan that takes at most so many times the budget is changed so that it fits."""
_MOST_SLOWER = 1.02
"""Finer stages may take so many times the predicted seconds: a cotangent that a kernel would hand on may be written."""


class OptimalSolver:
    """Solves one step for any number of budgets; all work that does not depend on the budget is done once.

    Args:
      problem: The step.
      like: A solver of nearly the same step, with the same rates and effort: its solved stages are taken over where
        this step has stages of the same structure, and those of this step are added to them.
      rules: Plans that are known without solving. Where there is a local search, it may start from them.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        like: "OptimalSolver | None" = None,
        rules: Callable[[], Iterable[GraphPlan]] = tuple,
    ):
        self.problem = problem
        self._rules = rules
        self._effort = problem.effort
        self.empty_plan = solve_none(problem)
        self.cut_minima = CutMinima(problem, before_head=True)
        self._staged: dict[StageStarts, tuple[StagedOptions, ...]] = {}
        self._known: SolvedStages = {} if like is None else like._known
        self._profiled: ProfiledStages = {} if like is None else like._profiled
        self._plan, self._finer = cache(self._plan_of), cache(self._cut_at_layers)
        """Many budgets have one plan: that of least memory, where nothing meets them."""
        self._local_search = LocalSearch(problem)
        self._solved: dict[GraphPlan, None] = {}
        """Plans of all budgets so far: so a larger budget never gives a slower plan."""

    def forget_budgets(self) -> None:
        """Forgets the plans of earlier budgets, so that the next answers do not depend on earlier questions."""
        self._solved.clear()

    def solve(self, temp_budget_bytes: int | None, *, allow_empty: bool = True) -> GraphPlan:
        """The fastest plan whose predicted temporaries fit, else the plan of least memory.

        The empty plan is the fastest, except for loops: to write a residual stack can take longer than to recompute.
        """
        return self._finer(self._fastest(temp_budget_bytes, allow_empty=allow_empty))

    def _fastest(self, temp_budget_bytes: int | None, *, allow_empty: bool) -> GraphPlan:
        # Complexity: the empty plan, the plan of least memory and the fastest plan, each with its own condition.
        allow_empty = allow_empty and self.problem.allows_empty_plan
        fits = temp_budget_bytes is None or self.empty_plan.predicted.temp_bytes <= temp_budget_bytes
        if allow_empty and fits and not self.problem.graph.loops:
            return self.empty_plan
        plans = self._plans(temp_budget_bytes)
        self._solved.update(dict.fromkeys(plans))
        self._search(temp_budget_bytes)
        if not self._fitting(temp_budget_bytes):
            self._solved[self.min_memory_plan] = None
            self._search(temp_budget_bytes)
        fitting = self._fitting(temp_budget_bytes)
        if not fitting:
            return min([self.min_memory_plan, *plans], key=_TEMP_BYTES)
        best = min(fitting, key=_STEP_S)
        if allow_empty and fits and self.empty_plan.predicted.step_s <= best.predicted.step_s:
            return self.empty_plan
        bounds_s = [plan.predicted.bound_s for plan in plans if plan.predicted.bound_s is not None]
        return _bounded(best, min(bounds_s, default=None))

    def _cut_at_layers(self, plan: GraphPlan) -> GraphPlan:
        """The plan with stages cut at layers, if that is predicted to take no more memory and next to no more time."""
        if plan == self.empty_plan or self.problem.moves(plan):
            return plan
        stages = finer_stages(self.problem, plan, self._layers)
        if stages == plan.stages:
            return plan
        finer = self.problem.plan(plan.decisions, stages, plan.strategy)
        is_smaller = _TEMP_BYTES(finer) <= _TEMP_BYTES(plan)
        return (
            _bounded(finer, plan.predicted.bound_s)
            if is_smaller and _STEP_S(finer) <= _MOST_SLOWER * _STEP_S(plan)
            else plan
        )

    def _search(self, temp_budget_bytes: int | None) -> None:
        """Adds the fastest plan that local searches find within a budget; plans that move something are not changed.

        Searches start from the fastest plan that fits, of those so far and of the rules, from faster ones that nearly
        fit, and from the fastest plan of another cut that fits. The composition knows few cuts: of a residual MLP of 12
        layers it found a plan of 74.3 ms, a search from full recomputation one of 70.8. A search changes few cuts: in
        steps of the battery plans were up to 7% slower without the last start, in 0.6 times the time.
        """
        if temp_budget_bytes is None or not self._local_search.applies:
            return
        known = {**self._solved, **dict.fromkeys(self._rules())}
        near = (plan for plan in known if _TEMP_BYTES(plan) <= _NEARLY * temp_budget_bytes)
        ordered = sorted((plan for plan in near if not self.problem.moves(plan)), key=_STEP_S)
        fitting = [plan for plan in ordered if _TEMP_BYTES(plan) <= temp_budget_bytes]
        others = [plan for plan in fitting if plan.stages != fitting[0].stages]
        faster = ordered[: ordered.index(fitting[0])] if fitting else ordered
        found = [self.neighbour(plan, temp_budget_bytes) for plan in (*faster, *fitting[:1], *others[:1])]
        found = [plan for plan in found if _TEMP_BYTES(plan) <= temp_budget_bytes]
        self._solved.update(dict.fromkeys(sorted(found, key=_STEP_S)[:1]))

    def neighbour(self, plan: GraphPlan, temp_budget_bytes: int) -> GraphPlan:
        """The fastest plan within a budget of temporaries that a local search finds from another plan."""
        return self._local_search.improve(plan, temp_budget_bytes)

    def nearest(self, plan: GraphPlan, temp_budget_bytes: int) -> GraphPlan:
        """The fastest plan within a budget of temporaries that differs from another plan in one place."""
        return self._local_search.nearest(plan, temp_budget_bytes)

    def bounded(self, plan: GraphPlan) -> GraphPlan:
        """A plan with a lower bound of its seconds: those of the fastest plan of all, where no better one is known."""
        return plan if plan.predicted.bound_s is not None else _bounded(plan, self._least_s)

    @cached_property
    def _least_s(self) -> float:
        """Seconds of the fastest plan without a budget."""
        return min(plan.predicted.step_s for plan in (self.empty_plan, *self._plans(None)))

    def _plans(self, temp_budget_bytes: int | None) -> list[GraphPlan]:
        """A plan for each of the cuts that are solved for a budget, without and with offload and shard variants."""
        cuts = list(self._cuts_within(temp_budget_bytes))
        if self.problem.may_move:  # many boundaries cost little memory if they can be offloaded or sharded
            cuts.append(self._options_of(self._layers)[1:])
        return [self._composed(staged, temp_budget_bytes) for cut in cuts for staged in cut]

    def alternative_plan(self, plan: GraphPlan, temp_budget_bytes: int) -> GraphPlan | None:
        """The fastest plan so far within a budget that has another cut than `plan`; None if there is none."""
        others = (each for each in self._fitting(temp_budget_bytes) if not set(plan.stages).issuperset(each.stages))
        return min(others, key=_STEP_S, default=None)

    def _fitting(self, temp_budget_bytes: int | None) -> list[GraphPlan]:
        """Plans so far within a budget."""
        return [plan for plan in self._solved if temp_budget_bytes is None or _TEMP_BYTES(plan) <= temp_budget_bytes]

    @cached_property
    def min_memory_plan(self) -> GraphPlan:
        """The plan of least predicted memory.

        The local search begins with all plans near the least one, with that of most stages, rules included, and with
        full recomputation. Recomputing each stage from the one before takes many stages: `plain-mlp-1` of the battery
        comes to 1,188 MiB so, and else to 1,380. A plan that saves values in one long stage may be smaller than full
        recomputation, while no single change makes it smaller still: the Equinox step of the recipes with one block
        comes to 20.4 MiB from full recomputation, and else to 28.4.
        """
        near = _within(self._effort.near_least, min(self._lowest, key=_TEMP_BYTES), self._lowest)
        rules = self._rules() if self._local_search.applies else ()
        finest = max((*self._lowest, *rules), key=lambda plan: len(plan.stages))
        starts = dict.fromkeys((*near, finest, self.cut_minima.near_least[0]))
        return min((self._local_search.improve(plan, None) for plan in starts), key=_TEMP_BYTES)

    @cached_property
    def min_memory_plans(self) -> tuple[GraphPlan, ...]:
        """Plans of about the least predicted memory, to compile if no other plan fits.

        The smallest plan, that of most stages, full recomputation, plans of other cuts within the error of the model,
        and full recomputation of few stages. The model cannot tell which of them is smallest as compiled: a compiler
        may start all clones of a stage at once, which costs less with more stages, and may hold values at each cut that
        the model does not see, which costs less with fewer stages.
        """
        least, minima = self.min_memory_plan, self.cut_minima.near_least
        of_minima = {plan.stages for plan in minima[: self._effort.least_cuts]}
        finest = max((plan for plan in self._lowest if plan.stages in of_minima), key=lambda plan: len(plan.stages))
        equal = _within(self._effort.same_memory, least, self._lowest)
        finer, others = ([plan for plan in some if plan.stages != least.stages] for some in ((finest,), equal))
        near = _within(self._effort.near_least, minima[0], minima)
        coarsest = min(near, key=lambda plan: (len(plan.stages) == 1, len(plan.stages)))
        return tuple(dict.fromkeys(map(self._finer, (least, *finer, minima[0], *others, coarsest))))

    @cached_property
    def _lowest(self) -> tuple[GraphPlan, ...]:
        """For each of the cuts of lowest minima, and then of lowest estimates, the plan of least memory.

        In a stage with many clones, saving some values takes less memory than saving none. So a cut can have a low
        estimate and a high minimum.
        """
        count = self._effort.least_cuts
        minima = [plan.stages for plan in self.cut_minima.near_least[:count]]
        cuts = dict.fromkeys((*minima, *(stages for _, stages in self.cut_minima.estimates[:count])))
        return tuple(self._least(staged) for stages in cuts for staged in self._options_of(stages))

    def _cuts_within(self, budget_bytes: int | None) -> Iterator[tuple[StagedOptions, ...]]:
        """The cuts of lowest estimates among those whose minimum is within the budget, at least one; those of rules."""
        found = dict[StageStarts, None]()
        for estimated_bytes, stages in self.cut_minima.estimates:
            too_large = budget_bytes is not None and estimated_bytes > budget_bytes
            if len(found) == self._effort.cuts or (too_large and found):
                break
            if self._has_minimum_within(budget_bytes, stages):
                found[stages] = None
        if not found:
            found[self.cut_minima.within(1.0)[0].stages] = None
        found.update((stages, None) for stages in self._rule_cuts if self._has_minimum_within(budget_bytes, stages))
        return map(self._options_of, found)

    def _has_minimum_within(self, budget_bytes: int | None, stages: StageStarts) -> bool:
        return budget_bytes is None or _TEMP_BYTES(self.cut_minima.of(stages)) <= budget_bytes

    @cached_property
    def _rule_cuts(self) -> tuple[StageStarts, ...]:
        """The cuts of simple rules, where there is a local search.

        The fastest plan may need another cut than the plan of least memory: in `plain-mlp-1` of the battery it was 12%
        faster with that of `sqrt`. With values that can be moved, boundaries cost little with any cut, and these cuts
        gave no faster plan in 1.7 times the time.
        """
        rules = self._rules() if self._local_search.applies and not self.problem.may_move else ()
        return tuple(dict.fromkeys(plan.stages for plan in rules if len(plan.stages) > 1))

    def _options_of(self, stages: StageStarts) -> tuple[StagedOptions, ...]:
        """The options of a cut's stages, without and, if the problem allows them, with offload and shard variants."""
        if stages not in self._staged:
            cut = split_into_stages(self.problem, stages, self.cut_minima.plan_and_replay(stages)[1])
            options = stage_options(cut, self._known)
            memory = profile_stages(cut, options, self._profiled)
            self._staged[stages] = (StagedOptions(stages=stages, options=options, memory=memory),)
            if self.problem.may_move:
                more = with_moved_variants(cut, options, self._layers)
                if more != options:
                    link = host_link(cut, more) if self.problem.may_offload else None
                    memory = profile_stages(cut, more, self._profiled)
                    moving = StagedOptions(stages=stages, options=more, memory=memory, link=link)
                    self._staged[stages] = (*self._staged[stages], moving)
        return self._staged[stages]

    def _composed(self, staged: StagedOptions, budget_bytes: int | None) -> GraphPlan:
        """The plan of the fastest combination of a cut's options; of the one of least memory if none fits.

        A combination that fills the budget may have no room for loads that start early. Where its plan waits for them,
        a smaller one, with loads as early as they need, may be faster.
        """
        plan = self._combined(staged, budget_bytes, load_limit_bytes=budget_bytes)
        if budget_bytes is None or not plan.predicted.stall_s:
            return plan
        early = self._combined(staged, budget_bytes, load_limit_bytes=None)
        return min(plan, early, key=lambda p: (max(0, p.predicted.temp_bytes - budget_bytes), p.predicted.step_s))

    def _combined(self, staged: StagedOptions, budget_bytes: int | None, *, load_limit_bytes: int | None) -> GraphPlan:
        """As `_composed`; temporaries may take `load_limit_bytes` for loads that start early.

        If the composition counts too few bytes, it is repeated with a smaller budget. If it counts far too many, since
        temporaries reuse output buffers, it is repeated once with a larger budget.
        """
        # Complexity: the four outcomes of a composition, each of which sets the next budget.
        limit_bytes = sys.maxsize if budget_bytes is None else budget_bytes
        fitting: GraphPlan | None = None
        too_large_bytes: int | None = None
        for _ in range(self._effort.compositions):
            chosen = staged.fastest(limit_bytes)
            if chosen is None:  # no combination fits at all, or the correction was too large
                if too_large_bytes is None:
                    break
                limit_bytes = (limit_bytes + too_large_bytes) // 2
                continue
            plan = self._plan(staged, chosen, load_limit_bytes)
            if budget_bytes is None:
                return plan
            misjudged_bytes = plan.predicted.temp_bytes - staged.peak_bytes(chosen)
            if plan.predicted.temp_bytes <= budget_bytes:
                plan = self._with_bound(staged, chosen, plan, max(limit_bytes, budget_bytes))
                first = fitting is None
                fitting = plan if fitting is None else min(fitting, plan, key=_STEP_S)
                if not first or -misjudged_bytes < self._effort.tolerance * budget_bytes:
                    break
                limit_bytes = budget_bytes - misjudged_bytes
            elif fitting is not None:
                break
            else:
                too_large_bytes = limit_bytes
                limit_bytes = min(limit_bytes - 1, budget_bytes - misjudged_bytes)
        return fitting or self._least(staged)

    def _with_bound(
        self, staged: StagedOptions, chosen: Sequence[int], plan: GraphPlan, budget_bytes: int
    ) -> GraphPlan:
        """The plan with a lower bound of the seconds of any combination within the budget."""
        memory, link = staged.memory, staged.link
        least_s = least_seconds(staged.options, memory, budget_bytes=budget_bytes, link=link)
        composed_s = sum(own[k] for own, k in zip(memory.stage_s, chosen, strict=True))
        misjudged_s = plan.predicted.step_s - composed_s - (0.0 if link is None else link.stall_s(chosen))
        return _bounded(plan, None if least_s is None else least_s + misjudged_s)

    def _least(self, staged: StagedOptions) -> GraphPlan:
        return self._plan(staged, staged.least, None)

    def _plan_of(self, staged: StagedOptions, chosen: tuple[int, ...], load_limit_bytes: int | None) -> GraphPlan:
        """The plan of a combination; temporaries may take `load_limit_bytes` for loads that start early."""
        stages, taken = staged.stages, staged.taken(chosen)
        saved = boundaries(self.problem, stages).union(*(option.saved for option in taken))
        untouched = frozenset[int]().union(*(option.untouched for option in taken))
        offloaded = frozenset[int]().union(*(option.offloaded for option in taken))
        cuts = {v: partition_of(self.problem, v) or Save() for option in taken for v in option.sharded}
        decisions = decisions_saving(self.problem, saved, untouched) | cuts | dict.fromkeys(offloaded, Offload())
        if not offloaded:
            return self.problem.plan(decisions, stages, "optimal")
        layers = self._layers
        timed = with_prefetch_distances(
            self.problem, decisions, stages, layers, queued=True, limit_bytes=load_limit_bytes
        )
        return self.problem.plan(timed.decisions, stages, "optimal", layers=timed.layers)

    @cached_property
    def _layers(self) -> StageStarts:
        """The layers that prefetch distances count, and where stages may be cut further."""
        return finest_layers(self.cut_minima)


def _within(factor: float, least: GraphPlan, plans: Iterable[GraphPlan]) -> list[GraphPlan]:
    """Plans that take at most so many times the memory of the least one."""
    return [plan for plan in plans if _TEMP_BYTES(plan) <= factor * _TEMP_BYTES(least)]


def _bounded(plan: GraphPlan, bound_s: float | None) -> GraphPlan:
    if bound_s is None:
        return plan
    return replace(plan, prediction=replace(plan.predicted, bound_s=min(bound_s, plan.predicted.step_s)))


def solve_optimal(problem: Problem, temp_budget_bytes: int | None = None) -> GraphPlan:
    """The fastest plan within a budget of temporaries; see the module's docstring."""
    return OptimalSolver(problem).solve(temp_budget_bytes)
