"""The plan of a policy: rules decide about the values that they match, the structure of the step about the rest.

1. Values that a rule or a default recomputes are recomputed from the values that cross the stages of the forward pass,
   which are found by structure as for "full". The last stage is not recomputed if that frees nothing.
2. The ops under a mark, or in a region, are a stage of their own: its inputs and its outputs to the rest of the forward
   pass are saved. A rule that names a value may decide otherwise.
3. A rule that names a view decides about the array behind the view.
4. Saves by default, and saves of values that cost nothing to recompute (views, masks, casts of parameters), are left to
   the compiler.

Read after `jaxckpt.policy.resolve` and `stages`.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from jaxckpt._errors import PolicyError
from jaxckpt.cost import strip_views
from jaxckpt.ir import Decision, GraphPlan, Kind, Phase, Recompute, Save, Trait
from jaxckpt.policy import (
    Match,
    Policy,
    Region,
    Regions,
    Resolved,
    Rule,
    excluded_ops,
    find_regions,
    is_read_after_forward,
    layers_of_model,
    load_policy,
    policy_of_mark,
    region_inputs,
    region_outputs,
    resolve,
)
from jaxckpt.solve.full_recompute import find_blocks, solve_full
from jaxckpt.solve.optimal.prefetch_schedule import with_prefetch_distances
from jaxckpt.solve.problem import Problem
from jaxckpt.solve.stages import StageStarts, boundaries


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPlan:
    """Every decision of a policy with its rule, the regions and marked parts in order, and the plan of it all."""

    resolved: tuple[Resolved, ...]
    plan: GraphPlan
    regions: tuple[Region, ...] = ()


def plan_from_policy(problem: Problem, policy: Policy | None) -> PolicyPlan:
    """Applies a policy, and the policies of marks in the step, to a step.

    Ops without a mark are left to the compiler if there is no policy. Raises `PolicyError` if a rule matches nothing.
    """
    stages, crossing = _structure(problem, policy)
    resolved = resolve(policy, problem.graph, crossing=crossing, stages=stages)
    deciding = _Deciding(problem, resolved)
    if deciding.changes:
        deciding.save_crossing(crossing)
        deciding.save_around_parts(policy, stages)
        is_of_layers = policy is not None and policy.regions is not None and policy.regions.of_layers
        blocks = (0,) if is_of_layers else stages  # a segment of layers is one stage, whatever blocks are inside it
        stages = tuple(sorted({*blocks, *deciding.starts}))
    else:
        stages = (0,)
    name = policy.name if policy is not None else "marks"
    candidates = (deciding.without_end(stages), deciding.decisions)
    plans = [plan_with_transfers(problem, decisions, stages, name) for decisions in candidates]
    return PolicyPlan(
        resolved=resolved,
        plan=min(plans, key=lambda plan: plan.predicted.temp_bytes),
        regions=tuple(sorted(deciding.regions, key=lambda region: min(region.ops))),
    )


def solve_shipped(problem: Problem, *, policy: str) -> GraphPlan:
    """Follows a policy that comes with jaxckpt, whose rules need not match anything: a strategy."""
    shipped = load_policy(policy)
    rules = tuple(replace(rule, optional=True) for rule in shipped.rules)
    return follow(problem, replace(shipped, rules=rules))


def solve_names(problem: Problem, names: str = "*") -> GraphPlan:
    """Saves the values that `checkpoint_name` names, by a glob ("{a,b}" means either), and recomputes others.

    Source: `jax.checkpoint_policies.save_only_these_names`.
    """
    rule = Rule(match=Match(name=names), decision=Save())
    return follow(problem, Policy(name="names", default="recompute", rules=(rule,)))


def follow(problem: Problem, policy: Policy) -> GraphPlan:
    """The plan of a policy with the decisions that are required."""
    plan = plan_from_policy(problem, policy).plan
    if not problem.required:
        return plan
    return problem.plan({**plan.decisions, **problem.required}, plan.stages, plan.strategy)


def plan_with_transfers(
    problem: Problem, decisions: Mapping[int, Decision], stages: StageStarts, name: str
) -> GraphPlan:
    """The plan of some decisions, with prefetch distances of offloaded values."""
    if not any(decision.on_host for decision in decisions.values()):
        return problem.plan(decisions, stages, name)
    timed = with_prefetch_distances(problem, decisions, stages, find_blocks(problem))
    return problem.plan(timed.decisions, stages, name, layers=timed.layers)


def required_decisions(problem: Problem, policy: Policy | None) -> dict[int, Decision]:
    """Decisions that a policy, and the marks in a step, require of every plan: those of rules that say "must".

    Decisions are of arrays where views were named. Raises `PolicyError` if a rule matches nothing.
    """
    if policy is None and not any(op.policies for op in problem.graph.ops):
        return {}
    stages, crossing = _structure(problem, policy)
    resolved = resolve(policy, problem.graph, crossing=crossing, stages=stages)
    demanded = tuple(each for each in resolved if each.strength == "must")
    decisions = _Deciding(problem, demanded).decisions
    return {v: d for v, d in decisions.items() if not isinstance(d, Recompute) or v in problem.read_after_forward}


def saved_collectives(problem: Problem) -> dict[int, Decision]:
    """`Save` for results of collectives, so that no collective of the forward pass is repeated.

    Products and reductions that leave partial sums on several devices are among them, and constraints that replicate a
    sharded value. Gathered parameters are not: they are never saved.
    """
    graph = problem.graph
    ops = (op for op in graph.ops if op.phase is Phase.FORWARD and Trait.COLLECTIVE in op.traits and not op.effects)
    return {v: Save() for op in ops for v in op.writes if v in problem.worth_saving}


def _structure(problem: Problem, policy: Policy | None) -> tuple[StageStarts, frozenset[int]]:
    """The stages of the step and the values that cross them; one stage if no rule needs more."""
    # Complexity: which parts of a policy need which cut; a table would repeat the conditions.
    if policy is None:
        return (0,), frozenset()
    regions = policy.regions
    if regions is not None and regions.of_layers:
        return _layer_structure(problem, regions)
    kinds = {type(rule.decision) for rule in policy.rules}
    names_blocks = (rule.match.boundary and rule.match.scope is None for rule in policy.rules)
    of_blocks = any(kind.on_host for kind in kinds) or any(names_blocks)
    if of_blocks or (regions is not None and not regions.scope):
        stages = find_blocks(problem)
    elif regions is None and (policy.default == "recompute" or Recompute in kinds):
        stages = solve_full(problem).stages
    else:
        return (0,), frozenset()
    return stages, boundaries(problem, stages)


def _layer_structure(problem: Problem, regions: Regions) -> tuple[StageStarts, frozenset[int]]:
    """As `_structure` for regions of layers: what crosses is what a region reads of values that are made outside it.

    Only a model without layers has blocks found by structure. Raises `PolicyError` if layers are iterations of a loop,
    and several would have to be one region.
    """
    graph = problem.graph
    layers = None if regions.scope else layers_of_model(graph)
    if layers is not None and layers.are_loop_bodies and (regions.segment or 1) > 1:
        _refuse_iterations(regions)
    stages = (0,) if regions.scope or layers is not None else find_blocks(problem)
    found = find_regions(regions, graph, stages=stages)
    region_ops = _ops_of(found)
    crossing = {
        source
        for region in found
        for value in region_inputs(graph, region.ops)
        for source in _kept_for(problem, value, region_ops)
        if source not in problem.fusion.argument_derived and graph.producer[source] not in region.ops
    }
    return stages, frozenset(crossing) | problem.never_recomputed


def _refuse_iterations(regions: Regions) -> NoReturn:
    raise PolicyError(
        f"segments of {regions.segment} layers are not possible in this step.",
        got="a loop in the forward pass, and no layers outside of loops",
        needed="layers whose scopes differ in a number alone, or a run of ops that repeats: all iterations of a loop "
        "have one body, whose inputs are all saved",
        advice="segment = 1 (activation_checkpoint_interval, --recompute-num-layers), or a budget: jaxckpt.plan groups "
        "iterations by itself where that is worth it",
        problems=("layers are iterations of a loop",),
    )


def _ops_of(regions: Iterable[Region]) -> frozenset[int]:
    return frozenset[int]().union(*(region.ops for region in regions))


def _kept_for(problem: Problem, value: int, region_ops: frozenset[int]) -> Collection[int]:
    """The values to save for an input of a region: the input, or what it is computed of.

    The latter if that takes less, if the input is a view of it, or if the backward reads it outside of the regions
    anyway. `region_ops` are the ops of all regions.
    """
    graph, sources = problem.graph, problem.fusion.sources[value]
    op = graph.producer[value]
    is_view = op is not None and graph.ops[op].kind is Kind.VIEW
    takes_less = sum(sources.values()) < graph.values[value].size_bytes
    others = [v for v in sources if graph.producer[v] is not None and v not in problem.fusion.argument_derived]
    are_kept = all(v in problem.read_after_forward and graph.producer[v] not in region_ops for v in others)
    return sources if is_view or takes_less or are_kept else (value,)


class _Deciding:
    """Decisions on their way from rules to a plan."""

    def __init__(self, problem: Problem, resolved: tuple[Resolved, ...]):
        # Complexity: rules decide in their order, each by its kind.
        self._problem = problem
        self._worth = problem.worth_saving
        self._named = {r.forward_value.id for r in resolved if r.names_value}
        self._by_default = {r.forward_value.id for r in resolved if r.by.part == "default"}
        self.starts: set[int] = set()
        self.regions: list[Region] = []
        self.decisions: dict[int, Decision] = {}
        meant: dict[int, Decision] = {}
        for r in resolved:
            if isinstance(r.decision, Recompute):
                self.decisions[r.forward_value.id] = r.decision
            elif r.names_value:
                self._named.add(shown := strip_views(problem.graph, r.forward_value.id))
                meant.setdefault(shown, r.decision)
            elif r.forward_value.id in self._worth and r.by.part != "default":
                self.decisions[r.forward_value.id] = r.decision
        derived = problem.fusion.argument_derived
        self.decisions.update((value, decision) for value, decision in meant.items() if value not in derived)
        self._views_follow()
        for value in problem.graph.results.intersection(self.decisions):
            del self.decisions[value]

    def _views_follow(self) -> None:
        """Views of what waits elsewhere are made of it when it is back; else they would keep it here."""
        moved = {v for v, decision in self.decisions.items() if decision.moves}
        for value in self._problem.read_after_forward if moved else ():
            shown = strip_views(self._problem.graph, value)
            if shown != value and shown in moved:
                self.decisions[value] = Recompute()
                self._by_default.discard(value)

    @property
    def changes(self) -> bool:
        """True if any decision is not `Save`; otherwise the step stays as written."""
        return any(not isinstance(decision, Save) for decision in self.decisions.values())

    def without_end(self, stages: tuple[int, ...]) -> dict[int, Decision]:
        """The decisions without what a default recomputes in the last stage, whose backward follows at once."""
        producer = self._problem.graph.producer
        last = {v for v in self.decisions if (producer[v] or 0) >= stages[-1]}
        if stages[-1] > 0 and last & self._named:
            return self.decisions  # a rule means something in it
        dropped = {v for v in last & self._by_default if isinstance(self.decisions[v], Recompute)}
        return {v: d for v, d in self.decisions.items() if v not in dropped}

    def save_crossing(self, crossing: frozenset[int]) -> None:
        """Saves what crosses from stage to stage, where no rule names it, if anything is computed again."""
        if not any(isinstance(decision, Recompute) for decision in self.decisions.values()):
            return
        for value in crossing - self._named - self._problem.graph.results:
            if isinstance(self.decisions.get(value, Recompute()), Recompute):
                self.decisions[value] = Save()

    def save_around_parts(self, policy: Policy | None, stages: StageStarts) -> None:
        """Makes stages of the ops under each mark, and of the regions of each policy."""
        graph = self._problem.graph
        if policy is not None:
            self._save_around_regions(policy, frozenset(op.id for op in graph.ops if not op.policies), stages)
        under_mark: defaultdict[str, set[int]] = defaultdict(set)
        for op in (graph.ops[op] for op in graph.forward):
            for mark in op.policies:
                under_mark[mark].add(op.id)
        for mark, ids in under_mark.items():
            marked, ops = policy_of_mark(mark), frozenset(ids)
            if marked.regions is not None:
                self._save_around_regions(marked, ops, stages)
            elif is_read_after_forward(graph, ops):
                self.regions.append(Region(scope="", ops=ops))
                self._save_around(ops, ops)

    def _save_around_regions(self, policy: Policy, among: frozenset[int], stages: StageStarts) -> None:
        regions, graph = policy.regions, self._problem.graph
        if regions is None:
            return
        once = excluded_ops(regions, graph, stages=stages)
        inside = (replace(each, ops=each.ops & among) for each in find_regions(regions, graph, stages=stages))
        found = [region for region in inside if region.ops]
        region_ops = _ops_of(found)
        for region in found:
            self.regions.append(region)
            self._save_around(region.ops, region_ops, merges=regions.output_recompute, once=once)

    def _save_around(
        self,
        ops: frozenset[int],
        region_ops: frozenset[int],
        *,
        merges: bool = False,
        once: frozenset[int] = frozenset(),
    ) -> None:
        """Makes a stage of some ops: saves their inputs, and their outputs unless these are recomputed too.

        Ops of `once` must not run again; `region_ops` are those of all regions.
        """
        graph = self._problem.graph
        self.starts |= {min(ops), max(ops) + 1}
        if not merges:
            for value in region_outputs(graph, ops) - self._named:
                self._keep(value)
        for value in region_inputs(graph, ops):
            maker = graph.producer[value]
            if maker in once and graph.ops[maker].kind is not Kind.VIEW:
                self.decisions.setdefault(value, Save())  # argument-derived or not: its op must not run twice
            for source in _kept_for(self._problem, value, region_ops):
                made = graph.producer[source]
                if made is not None and made not in ops and source not in self.decisions:
                    self._keep(source)

    def _keep(self, value: int) -> None:
        problem = self._problem
        if value in problem.fusion.argument_derived or value in problem.graph.results:
            self.decisions.pop(value, None)
        else:
            self.decisions[value] = Save()
