"""Values that the optimum keeps as shards: where gathers are cheap, never slower for it, and only what may be cut."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jaxckpt.ir import Offload, Partition, Save
from jaxckpt.machine import Target
from jaxckpt.solve import Offloading, OptimalSolver, Problem
from jaxckpt.solve.optimal.moved_options import partition_of, shard_variants
from jaxckpt.solve.optimal.options import Option
from jaxckpt.trace import trace_step
from tests.graphs import RATES, chain

BYTES = 2**22
LAYERS = 12
WAYS = 4
WORK_S = 1e-3
"""Of each product of the chain: far more than it takes to write its result."""


def problem(*, gather_s=0.05 * WORK_S, ways=WAYS, may_partition=True, **options):
    """A chain of layers, each result of which all devices hold and can be gathered in so many seconds."""
    rates = replace(RATES, link_bandwidth_bytes_per_s=BYTES * (1 - 1 / WAYS) / gather_s)
    graph = chain(LAYERS, size_bytes=BYTES, flops=WORK_S * 1e12)
    return Problem(
        graph=replace(graph, mesh=(("model", ways),) if ways else ()),
        rates=rates,
        may_partition=may_partition,
        **options,
    )


def solved(asked, kept=5):
    return OptimalSolver(asked).solve(kept * BYTES)


def cut(plan):
    return {v: decision for v, decision in plan.decisions.items() if isinstance(decision, Partition)}


### The optimum


def test_the_optimum_is_faster_by_sharding_over_cheap_gathers():
    replicated, sharded = solved(problem(may_partition=False)), solved(problem())
    assert not cut(replicated)
    assert set(cut(sharded).values()) == {Partition(axis="model", dim=0)}
    assert sharded.predicted.temp_bytes <= 5 * BYTES
    assert sharded.predicted.step_s < 0.9 * replicated.predicted.step_s


def test_nothing_is_cut_where_the_links_are_slower_than_the_work():
    assert not cut(solved(problem(gather_s=10 * WORK_S)))


@cache
def without_shards(kept):
    """It does not depend on how long gathers take."""
    return solved(problem(may_partition=False), kept)


@pytest.mark.parametrize("gather_s", [0.01, 0.3, 3.0])
@pytest.mark.parametrize("kept", [4, 7])
def test_a_plan_that_may_keep_shards_is_never_slower(gather_s, kept):
    replicated, sharded = without_shards(kept), solved(problem(gather_s=gather_s * WORK_S), kept)
    assert sharded.predicted.step_s <= replicated.predicted.step_s * 1.0001
    assert sharded.predicted.temp_bytes <= max(kept * BYTES, replicated.predicted.temp_bytes)


def test_one_plan_may_use_the_host_and_shards():
    to_the_host = replace(RATES, host_bandwidth_bytes_per_s=BYTES / (0.5 * WORK_S))
    rates = replace(to_the_host, link_bandwidth_bytes_per_s=BYTES / (0.2 * WORK_S))
    asked = replace(problem(), rates=rates, offloading=Offloading(most_host_bytes=2 * BYTES))
    hosted = solved(replace(asked, may_partition=False, may_offload=True))
    sharded, both = solved(asked), solved(replace(asked, may_offload=True))
    assert both.predicted.step_s < 0.95 * hosted.predicted.step_s
    assert both.predicted.step_s < 1.02 * sharded.predicted.step_s  # copies may queue more than the link says
    assert {type(d) for d in both.decisions.values()} >= {Offload, Partition}


def test_what_a_policy_demands_stays_as_it_is():
    made = min(cut(solved(problem())))
    assert solved(problem(required={made: Save()})).decisions[made] == Save()


### Which values


def test_only_large_values_that_a_mesh_divides_are_sharded():
    asked = problem()
    value = asked.graph.ops[3].writes[0]
    assert partition_of(asked, value) == Partition(axis="model", dim=0)
    assert partition_of(problem(ways=0), value) is None
    assert partition_of(problem(ways=1), value) is None
    assert partition_of(problem(ways=3), value) is None
    assert partition_of(problem(required={value: Save()}), value) is None
    assert partition_of(asked, asked.graph.inputs[0]) is None
    assert partition_of(asked, asked.graph.outputs[0]) is None


@pytest.mark.parametrize("other", [{"dtype": "int32"}, {"size_bytes": 2**19}, {"split": (("model",),)}])
def test_integers_small_values_and_split_values_are_not_sharded(other):
    asked = problem()
    value = asked.graph.ops[3].writes[0]
    values = list(asked.graph.values)
    values[value] = replace(values[value], **other)
    assert partition_of(replace(asked, graph=replace(asked.graph, values=tuple(values))), value) is None


def test_variants_of_an_option_save_the_same_in_fewer_bytes():
    asked = problem()
    option = Option(saved=frozenset({1, 2, 3}), saved_bytes=3 * BYTES, recompute_s=1.0)
    found = list(shard_variants(asked, option, frozenset({4})))
    assert [len(each.sharded) for each in found] == [1, 3, 1, 2, 4]
    assert {each.saved for each in found} == {option.saved}
    spared_bytes = BYTES - BYTES // WAYS
    assert all(each.saved_bytes == option.saved_bytes - len(each.sharded) * spared_bytes for each in found)
    assert [each.gather_s > 0 for each in found] == [False, False, True, True, True]


### Loops


def looped(may_partition, bandwidth=450e9):
    mesh = AbstractMesh((8,), ("model",), axis_types=(AxisType.Auto,))

    def step(weights, x):
        def turn(y, each):
            wide = jnp.sin(y @ each[0])
            return y + (wide * jnp.tanh(wide)) @ each[1], None

        return jax.value_and_grad(lambda weights: (jax.lax.scan(turn, x, weights)[0] ** 2).mean())(weights)

    full = NamedSharding(mesh, PartitionSpec())
    described = [(8, 4096, 16384), (8, 16384, 4096), (8192, 4096)]
    up, down, x = (jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=full) for shape in described)
    rates = replace(Target("h200").rates, link_bandwidth_bytes_per_s=bandwidth)
    return Problem(graph=trace_step(step, (up, down), x).graph, rates=rates, may_partition=may_partition)


BUDGET = 2864 * 2**20
"""For temporaries: too little for a stack of the widest values, enough for one of their shards."""


def test_residual_stacks_are_sharded_where_gathers_are_cheap():
    replicated, sharded = (OptimalSolver(looped(may)).solve(BUDGET) for may in (False, True))
    asked = looped(True)
    inside = [v for v in cut(sharded) if asked.graph.ops[asked.graph.producer[v]].loop is not None]
    assert not cut(replicated)
    assert inside
    assert sharded.predicted.temp_bytes <= BUDGET
    assert sharded.predicted.step_s < 0.95 * replicated.predicted.step_s
    assert not cut(OptimalSolver(looped(True, bandwidth=1e9)).solve(BUDGET))
