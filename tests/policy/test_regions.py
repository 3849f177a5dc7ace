"""Regions, as OneFlow collects its subgraphs and MindSpore recomputes its cells: what is in them, what splits them."""

import dataclasses

import pytest

from jaxckpt._errors import PolicyError
from jaxckpt.ir import Phase, Recompute, Save, Trait
from jaxckpt.policy import Match, Policy, Regions, Rule, find_regions, resolve
from jaxckpt.policy.regions import _components
from jaxckpt.solve import Problem, plan_from_policy
from tests.graphs import RATES, Builder


def chain(*, scopes, facts=None, names=()):
    """A chain of sines, one a scope, then a backward that reads each of them in the other order."""
    build, facts = Builder(), facts or {}
    value = build.input(1 << 20)
    made = []
    for number, scope in enumerate(scopes):
        value = build.op(
            names[number] if names else "sin", value, size_bytes=1 << 20, scope=scope, **facts.get(number, {})
        )
        made.append(value)
    cotangent = build.op("neg", value, size_bytes=1 << 20, phase=Phase.BACKWARD)
    for value in reversed(made):
        cotangent = build.op("mul", cotangent, value, size_bytes=1 << 20, phase=Phase.BACKWARD)
    return build.graph(cotangent)


def ops(found):
    return [sorted(region.ops) for region in found]


def test_neighbouring_scopes_stay_apart():
    graph = chain(scopes=["net/a", "net/a", "net/b", "net/b"])
    assert ops(find_regions(Regions(scope="net/?"), graph)) == [[0, 1], [2, 3]]


def test_regions_do_not_depend_on_the_order_in_which_layers_name_their_ops():
    # Keras numbers all layers of one class: with one norm and two dense layers in a block, all norms come first.
    graph = chain(scopes=["norm", "dense", "dense", "norm"])
    home = {0: ("", 0), 3: ("", 1), 1: ("", 2), 2: ("", 2)}
    assert set(_components(graph, home)) == {frozenset({0}), frozenset({1, 2}), frozenset({3})}


def test_merged_outputs_make_one_region_of_neighbours():
    graph = chain(scopes=["net/a", "net/a", "net/b", "net/b"])
    assert ops(find_regions(Regions(scope="net/?", output_recompute=True), graph)) == [[0, 1, 2, 3]]


def test_an_excluded_op_splits_its_region():
    graph = chain(scopes=["net/a"] * 5, names=["sin", "sin", "normalise", "sin", "sin"])
    assert ops(find_regions(Regions(scope="net/?", exclude=("normalise",)), graph)) == [[0, 1], [3, 4]]


@pytest.mark.parametrize(
    ("regions", "fact"),
    [
        (Regions(recompute_random=False), {"traits": frozenset({Trait.RANDOM})}),
        (Regions(recompute_collectives=False), {"traits": frozenset({Trait.COLLECTIVE})}),
        (Regions(), {"effects": ("OrderedIO",)}),
        (Regions(exclude=("*/statistics",)), {"scope": "net/a/statistics"}),
    ],
)
def test_random_ops_collectives_and_effects_can_be_excluded(regions, fact):
    scopes = ["net/a", "net/a", fact.get("scope", "net/a"), "net/a"]
    graph = chain(scopes=scopes, facts={2: {k: v for k, v in fact.items() if k != "scope"}})
    assert ops(find_regions(regions, graph)) == [[0, 1], [3]]


def test_random_ops_and_collectives_are_recomputed_by_default():
    traits = {"traits": frozenset({Trait.RANDOM, Trait.COLLECTIVE})}
    assert ops(find_regions(Regions(), chain(scopes=["net/a"] * 3, facts={1: traits}))) == [[0, 1, 2]]


def test_ops_of_two_meshes_are_two_regions():
    facts = {n: {"placement": "data=8" if n < 2 else "model=4"} for n in range(4)}
    assert ops(find_regions(Regions(), chain(scopes=["net/a"] * 4, facts=facts))) == [[0, 1], [2, 3]]


def test_an_op_that_names_no_mesh_goes_with_its_operands():
    facts = {0: {"placement": "data=8"}, 2: {"placement": "data=8"}}
    assert ops(find_regions(Regions(), chain(scopes=["net/a"] * 4, facts=facts))) == [[0, 1, 2, 3]]


def test_disconnected_parts_of_a_scope_are_two_regions():
    build = Builder()
    x, y = build.input(64), build.input(64)
    one = build.op("sin", x, size_bytes=64, scope="net/a")
    two = build.op("sin", y, size_bytes=64, scope="net/a")
    late = build.op("mul", one, two, size_bytes=64, phase=Phase.BACKWARD)
    assert ops(find_regions(Regions(), build.graph(late))) == [[0], [1]]


def test_a_region_that_the_backward_never_reads_is_left_alone():
    build = Builder()
    x = build.input(64)
    read = build.op("sin", x, size_bytes=64, scope="net/a")
    unread = build.op("cos", x, size_bytes=64, scope="net/b")
    late = build.op("neg", read, size_bytes=64, phase=Phase.BACKWARD)
    assert ops(find_regions(Regions(scope="net/?"), build.graph(late, unread))) == [[0]]


def test_gathered_parameters_are_kept_unless_told_otherwise():
    build = Builder()
    weight, x = build.input(64), build.input(64)
    whole = build.op("all_gather", weight, size_bytes=512, scope="net/a", traits=frozenset({Trait.COLLECTIVE}))
    y = build.op("dot_general", x, whole, size_bytes=64, scope="net/a")
    late = build.op("dot_general", y, whole, size_bytes=64, phase=Phase.BACKWARD)
    graph = build.graph(late)
    assert ops(find_regions(Regions(), graph)) == [[1]]
    assert ops(find_regions(Regions(recompute_gathered_parameters=True), graph)) == [[0, 1]]


def test_regions_are_recomputed_and_excluded_results_saved():
    graph = chain(scopes=["net/a"] * 3, names=["sin", "normalise", "sin"])
    policy = Policy(default="save", regions=Regions(exclude=("normalise",)))
    decided = {each.forward_value.id: (each.decision, each.by.part) for each in resolve(policy, graph)}
    assert decided == {1: (Recompute(), "regions"), 2: (Save(), "regions"), 3: (Recompute(), "regions")}


### Plans: what crosses is saved, and only that


def blocks(count=3, depth=3):
    names = ["dot_general"] * (count * depth)
    return chain(scopes=[f"net/block_{n}" for n in range(count) for _ in range(depth)], names=names)


def test_one_boundary_stays_between_neighbouring_regions():
    graph = blocks()
    policy = Policy(default="save", regions=Regions(scope="net/block_*"))
    plan = plan_from_policy(Problem(graph=graph, rates=RATES), policy).plan
    saved = [value for value, decision in plan.decisions.items() if decision == Save()]
    assert saved == [3, 6]  # the outputs of blocks 0 and 1; that of block 2 is read by nothing in the forward pass
    assert plan.stages[:3] == (0, 3, 6)


def test_merged_outputs_are_recomputed_too():
    policy = Policy(default="save", regions=Regions(scope="net/block_*", output_recompute=True))
    plan = plan_from_policy(Problem(graph=blocks(), rates=RATES), policy).plan
    assert set(plan.decisions.values()) == {Recompute()}


def test_inputs_of_an_excluded_op_are_not_recomputed():
    graph = chain(scopes=["net/a"] * 5, names=["dot_general", "dot_general", "normalise", "dot_general", "dot_general"])
    problem = Problem(graph=graph, rates=RATES)
    policy = Policy(default="save", regions=Regions(exclude=("normalise",)))
    prediction = plan_from_policy(problem, policy).plan.prediction
    assert prediction.recomputed_ops == 3


def test_a_rule_comes_before_a_region():
    graph = chain(scopes=["net/a"] * 3, names=["sin", "tanh", "sin"])
    keep = Rule(match=Match(primitive="tanh"), decision=Save())
    policy = Policy(default="save", rules=(keep,), regions=Regions())
    decided = [(each.decision, each.by.part) for each in resolve(policy, graph)]
    assert decided == [(Recompute(), "regions"), (Save(), "rule 1"), (Recompute(), "regions")]
    veto = dataclasses.replace(policy, rules=(dataclasses.replace(keep, decision=Recompute()),), regions=None)
    assert [each.decision for each in resolve(veto, graph)] == [Save(), Recompute(), Save()]


def test_regions_without_a_scope_are_the_structural_blocks():
    graph = chain(scopes=[""] * 6, names=["dot_general"] * 6)
    assert ops(find_regions(Regions(scope=""), graph, stages=(0, 2, 4))) == [[0, 1], [2, 3], [4, 5]]


def test_regions_that_hold_nothing_are_an_error():
    policy = Policy(default="save", regions=Regions(scope="*blok*"))
    with pytest.raises(PolicyError, match=r"hold nothing .*; scopes here: net/a"):
        resolve(policy, chain(scopes=["net/a"] * 2))
