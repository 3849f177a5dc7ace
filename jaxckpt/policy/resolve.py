"""Resolution of policies for a graph: the decision for each value, and the rule that decided.

In this order:

1. The policy of the innermost mark around the op that writes the value; without a mark, the policy that is given.
   Policies further out are overruled.
2. The first rule of that policy that matches. A rule that names values (by name, primitive, trait or boundary) decides
   about any forward value: a product that is saved spares the ops that the product is computed of. A rule that names
   places alone decides about residuals alone, as do regions and the default.
3. The policy's regions: values inside are recomputed, results of excluded ops are saved.
4. The policy's default.

The compiler decides about a value to which no policy applies.

Read after `rule`, `policy`, `regions`.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxckpt._errors import PolicyError, closest_names
from jaxckpt.ir import Decision, Graph, Kind, Op, Phase, Recompute, Save, Trait
from jaxckpt.ir.kind import kind_of
from jaxckpt.ir.layers import fold_layers
from jaxckpt.policy.library import policy_of_mark
from jaxckpt.policy.model_layers import missing_layers
from jaxckpt.policy.policy import Policy
from jaxckpt.policy.regions import excluded_ops, find_layers, find_regions
from jaxckpt.policy.rule import ForwardValue, Match, Rule

_DEFAULT: dict[str, Decision] = {"save": Save(), "recompute": Recompute()}
_MOST_NAMED = 12
_TEXTS = ("name", "scope", "primitive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The decision of one part of a policy about a value: "rule 2" with its index, "regions" or "default".

    Regions of layers say which layers were found, and how many: "regions (12 layers: scopes GPT/block_[0-9]*)".
    """

    policy: Policy
    decision: Decision
    part: str
    rule: int | None = None

    def __str__(self) -> str:
        return f'{self.part} of "{self.policy.name}": {type(self.decision).__name__.lower()}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """The decision about one value, and the overruled rulings in order: later rules, then policies further out."""

    forward_value: ForwardValue
    by: Ruling
    overruled: tuple[Ruling, ...] = ()

    @property
    def decision(self) -> Decision:
        """The decision."""
        return self.by.decision

    @property
    def rule(self) -> int | None:
        """Index of the rule that decided; None for regions and the default."""
        return self.by.rule

    @property
    def others(self) -> tuple[int, ...]:
        """Indices of later rules of the same policy that match the value too."""
        return tuple(r.rule for r in self.overruled if r.policy is self.by.policy and r.rule is not None)

    @property
    def names_value(self) -> bool:
        """True if a rule decided that names values, and not places alone."""
        return self.rule is not None and self.by.policy.rules[self.rule].match.names_values

    @property
    def strength(self) -> str:
        """The strength of the decision: "prefer" if a planner may overrule the decision, else "must"."""
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
    """Decides about each residual to which a policy applies, and about each other forward value that a rule names.

    A policy of None leaves marks alone to decide. `crossing` are values that cross from stage to stage, `stages` the
    first ops of stages, `layer` the layer of all of the graph (None: layers are found in it), `excused` the indices of
    rules that may match nothing.

    Raises:
      PolicyError: Rules match nothing; the message names each, with the closest match. Or a mark's policy is unknown.
    """
    found = forward_values(graph, crossing=crossing, layer=layer)
    given = () if policy is None else (_Resolver(policy, graph, stages, excused),)
    of_marks: dict[str, _Resolver] = {}
    resolved = []
    for value in found:
        digests = _digests_of_marks(graph, value)
        for digest in digests:
            if digest not in of_marks:
                of_marks[digest] = _Resolver(policy_of_mark(digest), graph, stages)
        innermost, *outer = [tuple(r.rulings(value)) for r in (*map(of_marks.__getitem__, digests), *given)] or [()]
        if innermost:
            overruled = (*innermost[1:], *itertools.chain.from_iterable(outer))
            resolved.append(Resolved(forward_value=value, by=innermost[0], overruled=overruled))
    for resolver in (*of_marks.values(), *given):
        resolver.refuse_unmatched(found)
    return tuple(resolved)


def _digests_of_marks(graph: Graph, value: ForwardValue) -> tuple[str, ...]:
    """Digests of the policies of the marks around a value's op, innermost first."""
    producer = graph.producer[value.id]
    assert producer is not None, "ops write forward values"
    return tuple(dict.fromkeys(mark.partition(".")[0] for mark in reversed(graph.ops[producer].policies)))


class _Resolver:
    """One policy over one graph, with the rules that have matched so far."""

    def __init__(self, policy: Policy, graph: Graph, stages: Sequence[int], excused: frozenset[int] = frozenset()):
        self._policy = policy
        self._excused = excused
        self._matched: set[int] = set()
        self._of_regions: dict[int, Decision] = {}
        self._has_regions = policy.regions is None
        self._layers = None if policy.regions is None else find_layers(policy.regions, graph, stages=stages)
        self._chosen = None if policy.regions is None else policy.regions.chosen_layers
        self._regions_part = "regions" if self._layers is None else f"regions ({self._layers})"
        if policy.regions is not None:
            regions = find_regions(policy.regions, graph, stages=stages)
            self._has_regions = bool(regions)
            excluded = excluded_ops(policy.regions, graph, stages=stages)
            self._of_regions.update(dict.fromkeys(_written(graph, excluded), Save()))
            for region in regions:
                self._of_regions.update(dict.fromkeys(_written(graph, region.ops), Recompute()))

    def rulings(self, value: ForwardValue) -> Iterator[Ruling]:
        """The rulings on a value in order, the first decides; none where the policy does not apply to the value."""
        policy = self._policy
        matching = [index for index, rule in enumerate(policy.rules) if rule.match.holds(value)]
        self._matched.update(matching)
        if not value.is_residual and not (matching and _decides_without_readers(policy.rules[matching[0]])):
            return
        for index in matching:
            yield Ruling(policy=policy, decision=policy.rules[index].decision, part=f"rule {index + 1}", rule=index)
        if not value.is_residual:
            return
        if value.id in self._of_regions:
            yield Ruling(policy=policy, decision=self._of_regions[value.id], part=self._regions_part)
        yield Ruling(policy=policy, decision=_DEFAULT[policy.default], part="default")

    def refuse_unmatched(self, found: Sequence[ForwardValue]) -> None:
        problems = [
            f"rule {number} ({rule}) matches nothing{_suggestion(rule, found)}"
            for number, rule in enumerate(self._policy.rules, 1)
            if number - 1 not in self._matched | self._excused and (not rule.optional or not self._matched)
        ]
        if not self._has_regions:
            scopes = list(dict.fromkeys(each.scope for each in found if each.scope))[:_MOST_NAMED]
            hint = f"scopes here: {', '.join(scopes)}" if scopes else "nothing here has a scope"
            problems.append(f"its regions ({self._policy.regions!r}) hold nothing that the backward reads; {hint}")
        if self._layers is not None and (missing := missing_layers(self._layers, self._chosen)):
            problems.append(f"layers {missing} of its regions are not there: {self._layers}")
        if problems:
            raise PolicyError(
                f'policy "{self._policy.name}" does not fit this step.',
                got="; ".join(problems),
                needed=f"rules of which each matches one of {len(found)} forward values",
                advice="correct the rule or take it out; jaxckpt.analyze(step, ...) lists scopes and names",
                problems=tuple(problems),
            )


def _decides_without_readers(rule: Rule) -> bool:
    """True if a rule decides about a value that the backward does not read."""
    return rule.match.names_values and not isinstance(rule.decision, Recompute)


def _written(graph: Graph, ops: frozenset[int]) -> Iterator[int]:
    return (v for op in ops for v in graph.ops[op].writes)


def forward_values(
    graph: Graph, *, crossing: frozenset[int] = frozenset(), layer: int | None = None
) -> tuple[ForwardValue, ...]:
    """The forward values of a graph, with the properties that rules match."""
    layer_of = _layers(graph) if layer is None else {}
    between = _between_batched(graph)
    return tuple(
        ForwardValue(
            id=value,
            scope=op.scope,
            layer=layer_of.get(op.scope, layer),
            name=graph.values[value].name,
            primitive=op.primitive,
            kind=_kind(op),
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


def _kind(op: Op) -> Kind:
    """The kind that rules match: the primitive's, but a call whose body is elementwise work is elementwise too."""
    kind = kind_of(op.primitive)
    return op.kind if kind is Kind.OPAQUE else kind


def _between_batched(graph: Graph) -> frozenset[int]:
    """Forward values between two batched products, with no other product on the way."""
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD]
    after: set[int] = set()
    for op in forward:
        if _carries_on(op, after, op.reads):
            after.update(op.writes)
    before: set[int] = set()
    for op in reversed(forward):
        if _carries_on(op, before, op.writes):
            before.update(op.reads)
    return frozenset(after & before)


def _carries_on(op: Op, reached: set[int], values: tuple[int, ...]) -> bool:
    """True for a batched product, and for an op that is no product and touches a reached value."""
    return Trait.BATCHED in op.traits or (op.kind is not Kind.CONTRACTION and not reached.isdisjoint(values))


def _forward_readers(graph: Graph, value: int) -> tuple[str, ...]:
    readers = (graph.ops[reader] for reader in graph.readers[value])
    return tuple(dict.fromkeys(op.scope for op in readers if op.phase is Phase.FORWARD))


def _layers(graph: Graph) -> dict[str, int]:
    """The layer of each scope: the number in its path that groups most scopes."""
    scopes = list(dict.fromkeys(op.scope for op in graph.ops if op.phase is Phase.FORWARD))
    return {
        scope: layer
        for group in fold_layers(scopes, scope=str, alike=lambda _: None)
        for layer, members in zip(group.layers, group.members, strict=False)
        for scope in members
    }


def _suggestion(rule: Rule, found: Sequence[ForwardValue]) -> str:
    """The end of a message about a rule that matches nothing: the key that matches nothing by itself.

    Of a name, scope or primitive the closest one of the step.
    """
    for key, wanted in rule.match.given.items():
        if any(Match(**{key: wanted}).holds(value) for value in found):
            continue
        if key not in _TEXTS:
            return f"; nothing here has {key} = {wanted!r}" if len(rule.match.given) > 1 else ""
        known = sorted({text for value in found if (text := getattr(value, key))})
        if closest := closest_names(wanted, known, cutoff=0.5):
            return f"; the closest {key} is {closest[0]!r}"
        return f"; {key}s here: {', '.join(known[:_MOST_NAMED])}" if known else f"; nothing here has a {key}"
    return ", though each of its keys does"
