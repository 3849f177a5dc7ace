"""Policies meet a graph: each value gets its decision, and who decided is remembered.

Who decides about a value, in this order:

1. The policy of the innermost mark around the op that makes it; without a mark, the policy given. Policies further out
   are overruled, whatever they say.
2. Of that policy the first rule that matches. A rule that names values (by name, primitive, trait or boundary) decides
   about any forward value: to save a product keeps what is computed of it from being computed again. A rule that only
   names places decides about residuals alone; so do the following.
3. Its regions: what lies in one is recomputed, what an excluded op makes is saved.
4. Its default.

A value that no policy is meant for is left to the compiler.

Read after `rule`, `policy`, `regions`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxckpt._errors import PolicyError, closest_names
from jaxckpt.ir import Decision, Graph, Kind, Phase, Recompute, Save, Trait, fold_layers
from jaxckpt.policy.policy import Policy
from jaxckpt.policy.regions import excluded_ops, find_regions
from jaxckpt.policy.registry import policy_of_mark
from jaxckpt.policy.rule import ForwardValue, Match, Rule

_DEFAULT: dict[str, Decision] = {"save": Save(), "recompute": Recompute()}
_MOST_NAMED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What one part of a policy says of a value.

    Attributes:
      policy: The policy.
      decision: What it wants.
      rule: Index of the rule; None for regions and the default.
      part: "rule 2", "regions" or "default".
    """

    policy: Policy
    decision: Decision
    part: str
    rule: int | None = None

    def __str__(self) -> str:
        return f'{self.part} of "{self.policy.name}": {type(self.decision).__name__.lower()}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What was decided about one value.

    Attributes:
      candidate: The value.
      by: What decided.
      overruled: What would have decided, in the order in which it would have: later rules, then policies further out.
    """

    forward_value: ForwardValue
    by: Ruling
    overruled: tuple[Ruling, ...] = ()

    @property
    def decision(self) -> Decision:
        """What happens to it."""
        return self.by.decision

    @property
    def rule(self) -> int | None:
        """Index of the rule that decided; None for regions and the default."""
        return self.by.rule

    @property
    def others(self) -> tuple[int, ...]:
        """Indices of later rules of the same policy that match it too."""
        return tuple(r.rule for r in self.overruled if r.policy is self.by.policy and r.rule is not None)

    @property
    def names_value(self) -> bool:
        """Whether a rule decided that names this very value."""
        return self.rule is not None and self.by.policy.rules[self.rule].match.names_values

    @property
    def strength(self) -> str:
        """Whether a planner may overrule it ("prefer") or not ("must")."""
        return "prefer" if self.rule is None else self.by.policy.rules[self.rule].strength


def resolve(
    policy: Policy | None,
    graph: Graph,
    *,
    crossing: frozenset[int] = frozenset(),
    stages: Sequence[int] = (0,),
    layer: int | None = None,
    excused: frozenset[int] = frozenset(),
) -> tuple[Resolved, ...]:
    """Decides about the values of a graph.

    Args:
      policy: The rules for all that has no mark around it; None for marks alone.
      graph: The step.
      crossing: Values that cross from stage to stage, for rules about boundaries without a scope.
      stages: First ops of the stages, for regions without a scope.
      layer: The layer that all of the graph belongs to; None where layers are to be found in it.
      excused: Indices of the policy's rules that may match nothing.

    Returns:
      One entry for each residual that a policy is meant for, and for each other forward value that a rule names, in
      order.

    Raises:
      PolicyError: Rules match nothing at all; each is named, with what is there instead. Or a mark's policy is gone.
    """
    found = forward_values(graph, crossing=crossing, layer=layer)
    judges: dict[str, _Judge] = {}
    given = () if policy is None else (_Judge(policy, graph, stages, excused),)
    resolved = []
    for forward_value in found:
        made = graph.producer[forward_value.id]
        assert made is not None, "candidates are what ops make"
        marks = dict.fromkeys(mark.partition(".")[0] for mark in reversed(graph.ops[made].policies))
        for mark in marks:
            if mark not in judges:
                judges[mark] = _Judge(policy_of_mark(mark), graph, stages)
        rulings = [list(judge.rulings(forward_value)) for judge in (*map(judges.__getitem__, marks), *given)]
        if rulings and rulings[0]:
            first, *others = [ruling for said in rulings for ruling in said]
            resolved.append(Resolved(forward_value=forward_value, by=first, overruled=tuple(others)))
    for judge in (*judges.values(), *given):
        judge.refuse_unmatched(found)
    return tuple(resolved)


class _Judge:
    """One policy over one graph, and which of its rules have matched."""

    def __init__(self, policy: Policy, graph: Graph, stages: Sequence[int], excused: frozenset[int] = frozenset()):
        self._policy = policy
        self._excused = excused
        self._matched: set[int] = set()
        self._again: frozenset[int] = frozenset()
        self._once: frozenset[int] = frozenset()
        self._has_regions = policy.regions is None
        if policy.regions is not None:
            found = find_regions(policy.regions, graph, stages=stages)
            self._has_regions = bool(found)
            self._again = _made(graph, *(region.ops for region in found))
            self._once = _made(graph, excluded_ops(policy.regions, graph))

    def rulings(self, forward_value: ForwardValue) -> Iterator[Ruling]:
        """What it says of a value, the first first; nothing of a value that it does not mean."""
        policy = self._policy
        matching = [index for index, rule in enumerate(policy.rules) if rule.match.holds(forward_value)]
        self._matched.update(matching)
        if not forward_value.is_residual and not (matching and _means_it(policy.rules[matching[0]])):
            return
        for index in matching:
            yield Ruling(policy=policy, decision=policy.rules[index].decision, part=f"rule {index + 1}", rule=index)
        if not forward_value.is_residual:
            return
        if forward_value.id in self._again or forward_value.id in self._once:
            decision = Recompute() if forward_value.id in self._again else Save()
            yield Ruling(policy=policy, decision=decision, part="regions")
        yield Ruling(policy=policy, decision=_DEFAULT[policy.default], part="default")

    def refuse_unmatched(self, found: Sequence[ForwardValue]) -> None:
        problems = [
            f"rule {number} ({rule}) matches nothing{_instead(rule, found)}"
            for number, rule in enumerate(self._policy.rules, 1)
            if number - 1 not in self._matched | self._excused and (not rule.optional or not self._matched)
        ]
        if not self._has_regions:
            scopes = list(dict.fromkeys(each.scope for each in found if each.scope))[:_MOST_NAMED]
            there = f"scopes here: {', '.join(scopes)}" if scopes else "nothing here has a scope"
            problems.append(f"its regions ({self._policy.regions}) hold nothing that the backward reads; {there}")
        if problems:
            raise PolicyError(
                f'policy "{self._policy.name}" does not fit this step.',
                got="; ".join(problems),
                needed=f"rules of which each matches one of {len(found)} forward values",
                advice="correct the rule or take it out; jaxckpt.analyze(step, ...) lists scopes and names",
                problems=tuple(problems),
            )


def _means_it(rule: Rule) -> bool:
    """Whether a rule decides about a value that the backward does not read."""
    return rule.match.names_values and not isinstance(rule.decision, Recompute)


def _made(graph: Graph, *groups: frozenset[int]) -> frozenset[int]:
    return frozenset(v for ops in groups for op in ops for v in graph.ops[op].writes)


def forward_values(
    graph: Graph, *, crossing: frozenset[int] = frozenset(), layer: int | None = None
) -> tuple[ForwardValue, ...]:
    """The forward values of a graph, as rules see them.

    Args:
      graph: The step.
      crossing: Values that cross from stage to stage.
      layer: The layer that all of the graph belongs to; None where layers are to be found in it.
    """
    layer_of = _layers(graph) if layer is None else {}
    between = _between_batched(graph)
    return tuple(
        ForwardValue(
            id=value,
            scope=op.scope,
            layer=layer_of.get(op.scope, layer),
            name=graph.values[value].name,
            primitive=op.primitive,
            dtype=graph.values[value].dtype,
            size_bytes=graph.values[value].size_bytes,
            flops=int(op.flops or 0),
            is_residual=any(graph.ops[reader].phase is not Phase.FORWARD for reader in graph.readers[value]),
            traits=op.traits,
            read_in=_forward_readers(graph, value),
            between_batched=value in between,
            crosses=value in crossing,
        )
        for op in graph.ops
        if op.phase is Phase.FORWARD and not op.effects
        for value in op.writes
    )


def _between_batched(graph: Graph) -> frozenset[int]:
    """Forward values that come from a batched product and lead to one, with no other product on the way."""
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD]
    behind: set[int] = set()
    for op in forward:
        is_batched = Trait.BATCHED in op.traits
        if is_batched or (op.kind is not Kind.CONTRACTION and not behind.isdisjoint(op.reads)):
            behind.update(op.writes)
    before: set[int] = set()
    for op in reversed(forward):
        is_batched = Trait.BATCHED in op.traits
        if is_batched or (op.kind is not Kind.CONTRACTION and not before.isdisjoint(op.writes)):
            before.update(op.reads)
    return frozenset(behind & before)


def _forward_readers(graph: Graph, value: int) -> tuple[str, ...]:
    readers = (graph.ops[reader] for reader in graph.readers[value])
    return tuple(dict.fromkeys(op.scope for op in readers if op.phase is Phase.FORWARD))


def _layers(graph: Graph) -> dict[str, int]:
    """For each scope the number that counts layers: the one that puts most scopes together."""
    scopes = list(dict.fromkeys(op.scope for op in graph.ops if op.phase is Phase.FORWARD))
    return {
        scope: layer
        for group in fold_layers(scopes, scope=str, alike=lambda _: None)
        for layer, members in zip(group.layers, group.members, strict=False)
        for scope in members
    }


def _instead(rule: Rule, found: Sequence[ForwardValue]) -> str:
    """What stands where a rule looked: the closest name, scope or primitive."""
    for key, there in (
        ("name", {each.name for each in found if each.name}),
        ("scope", {each.scope for each in found if each.scope}),
        ("primitive", {each.primitive for each in found}),
    ):
        wanted = getattr(rule.match, key)
        if wanted is None or any(not list(_only(rule, key).failing(each)) for each in found):
            continue
        if closest := closest_names(wanted, there, cutoff=0.5):
            return f"; the closest {key} is {closest[0]!r}"
        listed = sorted(there)[:_MOST_NAMED]
        return f"; {key}s here: {', '.join(listed)}" if listed else f"; nothing here has a {key}"
    return ", though each of its keys does"


def _only(rule: Rule, key: str) -> Match:
    return Match(**{key: getattr(rule.match, key)})
