"""A policy meets a graph: each value gets its decision, and who decided is remembered.

A rule that names values, or their primitive, decides about any forward value, not only about those that the backward
reads: to save a product keeps what is computed of it from being computed again. Other rules and the default decide
about residuals alone.

Read after `rule` and `policy`.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxckpt._errors import PolicyError
from jaxckpt.ir import Decision, Graph, Phase, Recompute, Save, fold_layers
from jaxckpt.policy.policy import Policy
from jaxckpt.policy.rule import Candidate, Match, Rule

_DEFAULT: dict[str, Decision] = {"save": Save(), "recompute": Recompute()}
_MOST_NAMED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What was decided about one value.

    Attributes:
      candidate: The value.
      decision: What happens to it.
      rule: Index of the rule that decided; None for the default.
      others: Indices of later rules that match it too, and would have decided.
    """

    candidate: Candidate
    decision: Decision
    rule: int | None
    others: tuple[int, ...] = ()


def resolve(policy: Policy, graph: Graph) -> tuple[Resolved, ...]:
    """Decides about the values of a graph.

    Args:
      policy: The rules.
      graph: The step.

    Returns:
      One entry for each residual, and for each other forward value that a rule names, in order.

    Raises:
      PolicyError: Rules match nothing at all, or would recompute what an op with effects makes; each is named, with
        what is there instead.
    """
    found = candidates(graph)
    resolved = tuple(_resolved(policy, found))
    matched = {index for each in resolved for index in (each.rule, *each.others) if index is not None}
    problems = [
        f"rule {number} ({rule}) matches nothing{_instead(rule, found)}"
        for number, rule in enumerate(policy.rules, 1)
        if number - 1 not in matched
    ]
    if problems:
        raise PolicyError(
            f'policy "{policy.name}" does not fit this step.',
            got="; ".join(problems),
            needed=f"rules of which each matches one of {len(found)} forward values",
            advice="correct the rule or take it out; jaxckpt.analyze(step, ...) lists scopes and names",
            problems=tuple(problems),
        )
    return resolved


def candidates(graph: Graph, *, crossing: frozenset[int] = frozenset()) -> tuple[Candidate, ...]:
    """The forward values of a graph, as rules see them.

    Args:
      graph: The step.
      crossing: Values that cross from stage to stage.
    """
    layer_of = _layers(graph)
    return tuple(
        Candidate(
            value=value,
            scope=op.scope,
            layer=layer_of.get(op.scope),
            name=graph.values[value].name,
            primitive=op.primitive,
            dtype=graph.values[value].dtype,
            size_bytes=graph.values[value].size_bytes,
            flops=int(op.flops or 0),
            is_residual=any(graph.ops[reader].phase is not Phase.FORWARD for reader in graph.readers[value]),
            traits=op.traits,
            read_in=_forward_readers(graph, value),
            crosses=value in crossing,
        )
        for op in graph.ops
        if op.phase is Phase.FORWARD and not op.effects
        for value in op.writes
    )


def _resolved(policy: Policy, found: Sequence[Candidate]) -> Iterator[Resolved]:
    for candidate in found:
        matching = [index for index, rule in enumerate(policy.rules) if rule.match.holds(candidate)]
        if matching:
            first, *others = matching
            rule = policy.rules[first]
            means_it = rule.match.names_values and not isinstance(rule.decision, Recompute)
            if candidate.is_residual or means_it:
                yield Resolved(candidate=candidate, decision=rule.decision, rule=first, others=tuple(others))
        elif candidate.is_residual:
            yield Resolved(candidate=candidate, decision=_DEFAULT[policy.default], rule=None)


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


def _instead(rule: Rule, found: Sequence[Candidate]) -> str:
    """What stands where a rule looked: the closest name, scope or primitive."""
    for key, there in (
        ("name", {each.name for each in found if each.name}),
        ("scope", {each.scope for each in found if each.scope}),
        ("primitive", {each.primitive for each in found}),
    ):
        wanted = getattr(rule.match, key)
        if wanted is None or any(not list(_only(rule, key).failing(each)) for each in found):
            continue
        closest = difflib.get_close_matches(wanted, sorted(there), n=1, cutoff=0.5)
        if closest:
            return f"; the closest {key} is {closest[0]!r}"
        listed = sorted(there)[:_MOST_NAMED]
        return f"; {key}s here: {', '.join(listed)}" if listed else f"; nothing here has a {key}"
    return ", though each of its keys does"


def _only(rule: Rule, key: str) -> Match:
    return Match(**{key: getattr(rule.match, key)})
