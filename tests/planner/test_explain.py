"""Explanations: who decided what, what was overruled, and why something else happens."""

import contextlib

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt import Policy, PolicyError
from jaxckpt.ir import Offload, Partition, Recompute, Save
from jaxckpt.ir.scope import POLICY_MARK
from jaxckpt.policy import Match, Regions, Rule, find_regions, new_mark
from jaxckpt.report import render_text, report_of
from jaxckpt.trace import trace_step


def block(x, weights, number):
    with jax.named_scope(f"block_{number}"):
        hidden = checkpoint_name(jnp.sin(x @ weights["in"]), "hidden")
        return x + (hidden * hidden) @ weights["out"]


def step(layers, x):
    def loss(layers):
        y = x
        for number, weights in enumerate(layers):
            y = block(y, weights, number)
        return jnp.mean(y**2)

    return jax.grad(loss)(layers)


ARGS = (
    [{"in": jax.ShapeDtypeStruct((32, 128), "float32"), "out": jax.ShapeDtypeStruct((128, 32), "float32")}] * 3,
    jax.ShapeDtypeStruct((64, 32), "float32"),
)
KEEP_HIDDEN = Policy(
    name="mine",
    rules=(
        Rule(match=Match(name="hidden", layers="1"), decision=Recompute()),
        Rule(match=Match(name="hidden"), decision=Save()),
        Rule(match=Match(scope="*block_*"), decision=Recompute()),
    ),
)


def test_each_value_says_which_rule_decided_and_which_would_have():
    values = [each for each in jaxckpt.explain(step, *ARGS, policy=KEEP_HIDDEN).values if each.value.name == "hidden"]
    by_layer = {each.value.scope[-1]: each for each in values if each.value.primitive == "name"}
    assert by_layer["0"].by == 'rule 2 of "mine"'
    assert by_layer["0"].wanted == "save"
    assert by_layer["0"].overruled[0] == 'rule 3 of "mine": recompute'
    assert by_layer["1"].by == 'rule 1 of "mine"'
    assert by_layer["1"].wanted == "recompute"
    assert by_layer["1"].overruled[0] == 'rule 2 of "mine": save'


def test_what_crosses_to_a_later_block_is_saved_and_says_why():
    explanation = jaxckpt.explain(step, *ARGS, policy="nothing")
    crossing = [each for each in explanation.values if each.carried_out == Save()]
    assert crossing
    assert {each.by for each in crossing} <= {"the step's structure", 'default of "nothing"'}
    assert all(each.why == "it crosses to a later stage" for each in crossing if each.wanted == "recompute")
    assert explanation.predicted_bytes < explanation.unplanned_bytes


def test_the_method_of_a_policy_says_the_same():
    assert KEEP_HIDDEN.explain(step, *ARGS) == jaxckpt.explain(step, *ARGS, policy=KEEP_HIDDEN)


### Regions and shardings


def sharded(axes):
    mesh = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    replicated, cut = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(*axes))
    layers = jax.tree.map(lambda spec: spec.update(sharding=replicated), ARGS[0])
    return layers, ARGS[1].update(sharding=cut)


REGIONS = Policy(regions=Regions(scope="*block_*"))


def test_regions_are_listed_with_what_is_saved_at_their_boundaries():
    regions = jaxckpt.explain(step, *ARGS, policy=REGIONS).regions
    assert [region.scope for region in regions] == ["block_0", "block_1", "block_2"]
    assert [region.mesh for region in regions] == ["", "", ""]
    graph = trace_step(step, *ARGS).graph
    assert [region.ops for region in regions] == [len(found.ops) for found in find_regions(REGIONS.regions, graph)]
    for region in regions:
        assert region.saved
        assert all(each.carried_out == Save() and each.value.shape == (64, 32) for each in region.saved)
        assert {each.value.scope for each in region.saved} <= {"block_0", "block_1", "block_2"}
    shared = {each.value.value for each in regions[0].saved} & {each.value.value for each in regions[1].saved}
    assert len(shared) == 1  # what block_0 hands to block_1
    assert not jaxckpt.explain(step, *ARGS, policy="dots").regions


def test_the_ops_under_a_mark_are_a_region():
    (region,) = jaxckpt.explain(marked_step(None, DROPS), *WX).regions
    assert region.scope == "outer/inner"
    assert region.ops > 1


def test_each_value_has_its_sharding_and_each_region_its_mesh():
    explanation = jaxckpt.explain(step, *sharded(("data",)), policy=REGIONS)
    assert {region.mesh for region in explanation.regions} == {"data=2 model=4"}
    assert {each.sharding for each in explanation.values if each.carried_out == Save()} == {"P('data', None)"}
    assert {each.sharding for each in jaxckpt.explain(step, *ARGS, policy=REGIONS).values} == {""}
    replicated = jaxckpt.explain(step, *sharded(()), policy=REGIONS)
    assert {each.sharding for each in replicated.values if each.carried_out == Save()} == {"replicated"}


def test_a_value_that_is_partitioned_has_the_sharding_in_which_it_is_saved():
    policy = Policy(rules=(Rule(match=Match(name="hidden"), decision=Partition()),), default="recompute")
    values = jaxckpt.explain(step, *sharded(("data",)), policy=policy).of("hidden")
    assert {each.sharding for each in values if isinstance(each.carried_out, Partition)} == {"P('data', 'model')"}
    both = jaxckpt.explain(step, *sharded((("data", "model"),)), policy=REGIONS).values
    assert {each.sharding for each in both if each.carried_out == Save()} == {"P(('data', 'model'), None)"}


def test_print_shows_tables_and_repr_one_line():
    explanation = jaxckpt.explain(step, *sharded(("data",)), policy=REGIONS)
    lines = str(explanation).splitlines()
    (heading,) = (line for line in lines if "saved at the boundary" in line)
    assert heading.split() == ["scope", "layers", "ops", "saved", "at", "the", "boundary", "bytes", "mesh"]
    rows = [line for line in lines if "block_" in line and "data=2 model=4" in line]
    assert rows
    assert all("float32[64,32] add P('data', None)" in row for row in rows)
    assert any("sharding" in line and "decided by" in line for line in lines)
    assert "ExplainedRegion(" not in str(explanation)
    assert len(repr(explanation).splitlines()) == 1


def test_a_save_by_default_leaves_the_step_as_written():
    policy = Policy(default="save", rules=(Rule(match=Match(layers="1"), decision=Recompute()),))
    others = [each for each in policy.explain(step, *ARGS).values if each.by == 'default of "unnamed"']
    assert others
    assert {each.why for each in others if each.carried_out is None} == {
        "saving by default leaves the step as it was written"
    }


def test_a_rule_that_matches_nothing_is_an_error_here_too():
    with pytest.raises(PolicyError, match="closest name is 'hidden'"):
        Policy(rules=(Rule(match=Match(name="hiden"), decision=Save()),)).explain(step, *ARGS)


def test_the_report_folds_equal_layers():
    text = render_text(report_of(jaxckpt.explain(step, *ARGS, policy="dots")), width=200)
    assert "block_*" in text
    assert 'rule 1 of "dots"' in text


### Marks: the innermost policy decides


SAVES, DROPS = Policy(name="saves", default="save"), Policy(name="drops", default="recompute")


def marked_step(outer, inner):
    marks = [None if policy is None else POLICY_MARK + new_mark(policy) for policy in (outer, inner)]

    def step(w, x):
        def loss(w):
            with jax.named_scope("outer"), scope_of(marks[0]):
                y = jnp.sin(x @ w)
                with jax.named_scope("inner"), scope_of(marks[1]):
                    z = jnp.exp(jnp.cos(y @ w) * y)
                y = jnp.tanh(z @ w) * y
            return jnp.sum((y @ w) ** 2)

        return jax.grad(loss)(w)

    return step


def scope_of(mark):
    return contextlib.nullcontext() if mark is None else jax.named_scope(mark)


WX = (jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((128, 64), "float32"))


@pytest.mark.parametrize(("outer", "inner"), [(SAVES, DROPS), (DROPS, SAVES)])
def test_the_inner_mark_wins_and_the_outer_one_is_named(outer, inner):
    explanation = jaxckpt.explain(marked_step(outer, inner), *WX)
    inside = [each for each in explanation.values if each.value.scope == "outer/inner" and "structure" not in each.by]
    outside = [each for each in explanation.values if each.value.scope == "outer" and "structure" not in each.by]
    assert inside and outside
    assert all(each.by == f'default of "{inner.name}"' for each in inside)
    assert all(each.overruled[0] == str_of_default(outer) for each in inside)
    assert all(each.by == f'default of "{outer.name}"' for each in outside)


def str_of_default(policy):
    return f'default of "{policy.name}": {policy.default}'


def test_what_no_mark_covers_is_left_to_the_compiler():
    explanation = jaxckpt.explain(marked_step(None, DROPS), *WX)
    assert {each.value.scope for each in explanation.values if "structure" not in each.by} == {"outer/inner"}


def test_marks_are_carried_out_with_the_same_numbers():
    step = marked_step(DROPS, SAVES)
    args = jax.random.normal(jax.random.key(0), (64, 64)) / 8, jax.random.normal(jax.random.key(1), (128, 64))
    with jax.disable_jit():
        assert (jaxckpt.apply(step)(*args) == step(*args)).all()
    plain, again = (str(jax.make_jaxpr(function)(*args)) for function in (step, jaxckpt.apply(step)))
    assert again.count("= sin") == plain.count("= sin") + 1
    assert again.count("= exp") == plain.count("= exp")


def test_a_policy_given_does_not_reach_into_marks():
    explanation = jaxckpt.explain(marked_step(None, SAVES), *WX, policy=DROPS)
    inside = [each for each in explanation.values if each.value.scope == "outer/inner" and "structure" not in each.by]
    assert {each.by for each in inside} == {'default of "saves"'}


def test_values_that_are_offloaded_as_their_rule_says_have_no_reason_why_not():
    """Though the plan fills in when copies start."""
    policy = Policy(name="out", rules=(Rule(match=Match(name="hidden"), decision=Offload()),))
    values = [each for each in jaxckpt.explain(step, *ARGS, policy=policy).values if each.value.name == "hidden"]
    offloaded = [each for each in values if isinstance(each.carried_out, Offload)]
    assert offloaded
    assert {each.why for each in offloaded} == {""}
