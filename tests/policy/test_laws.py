"""Laws of precedence, on random graphs: which rule decides, and what never changes it."""

import dataclasses

import pytest
from hypothesis import assume, given, strategies as st

from jaxckpt import PolicyError
from jaxckpt.ir import Graph, Offload, Phase, Recompute, Save, Trait
from jaxckpt.policy import Match, Policy, Rule, forward_values, resolve
from tests.graphs import graphs

SCOPES = ("net", "net/block_0", "net/block_0/attn", "net/block_1", "net/block_1/mlp", "net/block_2", "head")


@st.composite
def models(draw: st.DrawFn) -> Graph:
    """A random step whose forward ops stand in scopes of layers, and some of whose values have names."""
    graph = draw(graphs())
    ops = [
        dataclasses.replace(
            op,
            scope=draw(st.sampled_from(SCOPES)),
            traits=frozenset({Trait.BATCHED} if draw(st.booleans()) and op.primitive == "dot_general" else ()),
        )
        if op.phase is Phase.FORWARD
        else op
        for op in graph.ops
    ]
    names = st.sampled_from([None, None, "qkv", "out"])
    values = [dataclasses.replace(value, name=draw(names)) for value in graph.values]
    return dataclasses.replace(graph, ops=tuple(ops), values=tuple(values))


KEYS = {
    "scope": ("net", "*/block_*", "*/block_{0,2}", "head"),
    "name": ("qkv", "*"),
    "primitive": ("dot_general", "elementwise", "{add,exp}"),
    "layers": ("0", "1-2"),
    "every": (1, 2),
    "min_bytes": (400, 8000),
    "batched": (True, False),
    "boundary": ("input", "output"),
}
matches = (
    st.lists(st.sampled_from(list(KEYS)), max_size=2, unique=True)
    .flatmap(lambda keys: st.fixed_dictionaries({key: st.sampled_from(KEYS[key]) for key in keys}))
    .map(lambda keys: Match(**keys))
)
rules = st.builds(
    Rule,
    match=matches,
    decision=st.sampled_from([Save(), Recompute(), Offload()]),
    strength=st.sampled_from(["must", "prefer"]),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Policy, Graph]:
    """A step, and a policy each of whose rules matches something in it."""
    graph = draw(models())
    found = forward_values(graph)
    fitting = [rule for rule in draw(st.lists(rules, max_size=12)) if any(map(rule.match.holds, found))][:5]
    return Policy(rules=tuple(fitting), default=draw(st.sampled_from(["save", "recompute"]))), graph


def holds(rule: Rule, forward_value) -> bool:
    return rule.match.holds(forward_value)


def decided(policy: Policy, graph: Graph) -> dict[int, tuple]:
    return {each.forward_value.id: (each.decision, each.rule) for each in resolve(policy, graph)}


@given(cases())
def test_the_first_match_decides_and_later_ones_are_overruled(case):
    policy, graph = case
    for each in resolve(policy, graph):
        matching = [index for index, rule in enumerate(policy.rules) if holds(rule, each.forward_value)]
        assert matching == ([] if each.rule is None else [each.rule, *each.others])
        default = Save() if policy.default == "save" else Recompute()
        assert each.decision == (default if each.rule is None else policy.rules[each.rule].decision)


@given(cases())
def test_every_residual_and_every_named_value_has_a_decision(case):
    policy, graph = case
    found = {each.forward_value.id: each for each in resolve(policy, graph)}
    for forward_value in forward_values(graph):
        if forward_value.is_residual:
            assert forward_value.id in found
        elif forward_value.id in found:
            each = found[forward_value.id]
            assert each.names_value and each.decision != Recompute()


@given(cases(), rules)
def test_a_rule_at_the_end_never_changes_earlier_decisions(case, last):
    policy, graph = case
    assume(any(holds(last, forward_value) for forward_value in forward_values(graph)))
    before = decided(policy, graph)
    after = decided(dataclasses.replace(policy, rules=(*policy.rules, last)), graph)
    for value, (decision, rule) in before.items():
        if rule is not None:
            assert after[value] == (decision, rule)
        else:
            assert after[value] in ((decision, None), (last.decision, len(policy.rules)))
    assert all(after[value][1] == len(policy.rules) for value in after.keys() - before.keys())


@given(cases())
def test_a_rule_said_twice_changes_nothing(case):
    policy, graph = case
    for place in range(len(policy.rules)):
        twice = (*policy.rules[: place + 1], *policy.rules[place:])
        again = decided(dataclasses.replace(policy, rules=twice), graph)
        assert {v: d for v, (d, _) in again.items()} == {v: d for v, (d, _) in decided(policy, graph).items()}


@given(cases())
def test_what_stands_behind_a_rule_for_everything_never_decides(case):
    policy, graph = case
    assume(forward_values(graph))
    rules = (*policy.rules, Rule(decision=Save()), Rule(decision=Recompute()), *policy.rules)
    assert all(each.rule <= len(policy.rules) for each in resolve(dataclasses.replace(policy, rules=rules), graph))


@given(cases())
def test_strength_and_notes_do_not_change_what_is_decided(case):
    policy, graph = case
    turned = {"must": "prefer", "prefer": "must"}
    rules = tuple(dataclasses.replace(rule, strength=turned[rule.strength], note="why") for rule in policy.rules)
    assert decided(dataclasses.replace(policy, rules=rules), graph) == decided(policy, graph)


@given(cases())
def test_rules_that_share_no_value_may_stand_in_any_order(case):
    policy, graph = case
    found = forward_values(graph)
    for i, (first, second) in enumerate(zip(policy.rules, policy.rules[1:], strict=False)):
        if not any(holds(first, each) and holds(second, each) for each in found):
            swapped = (*policy.rules[:i], second, first, *policy.rules[i + 2 :])
            after = decided(dataclasses.replace(policy, rules=swapped), graph)
            assert {v: d for v, (d, _) in after.items()} == {v: d for v, (d, _) in decided(policy, graph).items()}


@given(cases(), st.integers(0, 5))
def test_a_rule_without_a_match_is_an_error_at_any_place(case, place):
    policy, graph = case
    place = min(place, len(policy.rules))
    nothing = Rule(match=Match(name="no such name"), decision=Save())
    rules = (*policy.rules[:place], nothing, *policy.rules[place:])
    with pytest.raises(PolicyError, match=rf"rule {place + 1} .* matches nothing") as caught:
        resolve(dataclasses.replace(policy, rules=rules), graph)
    assert len(caught.value.problems) == 1


@given(cases())
def test_a_policy_read_back_from_its_file_decides_the_same(case):
    policy, graph = case
    assert decided(Policy.from_toml(policy.to_toml()), graph) == decided(policy, graph)
