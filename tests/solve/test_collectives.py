"""What devices have exchanged data for may be kept from being computed again; gathered parameters never are kept."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt.ir import Phase, Recompute, Save, Trait
from jaxckpt.machine import Target
from jaxckpt.schedule import Run, schedule
from jaxckpt.solve import Problem, saved_collectives, solve
from jaxckpt.trace import trace_step

MESH = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
WIDTH, TOKENS, LAYERS = 512, 4096, 4


def spec(shape, *axes):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(MESH, PartitionSpec(*axes)))


def step(weights, x):
    def loss(weights):
        y = x
        for number, (up, down) in enumerate(weights):
            with jax.named_scope(f"block_{number}"):
                y = jnp.sin(jnp.tanh(y @ up) @ down)
        return (y**2).mean()

    return jax.grad(loss)(weights)


def megatron():
    weights = [(spec((WIDTH, 4 * WIDTH), None, "model"), spec((4 * WIDTH, WIDTH), "model", None))] * LAYERS
    return weights, spec((TOKENS, WIDTH), "data")


def problem_of(*args, function=step):
    return Problem(graph=trace_step(function, *args).graph, rates=Target("h200:8").rates)


def again(problem, strategy):
    """Forward ops with an exchange that a plan runs a second time."""
    plan = solve(problem, strategy)
    ops = problem.graph.ops
    runs = [s.op for s in schedule(problem.graph, plan).steps if isinstance(s, Run) and s.is_clone]
    assert runs
    return [op for op in runs if Trait.COLLECTIVE in ops[op].traits]


@pytest.mark.parametrize("strategy", ["full", "every:2"])
def test_no_exchange_is_repeated_where_collectives_are_kept(strategy):
    free = problem_of(*megatron())
    kept = saved_collectives(free)
    products = [op for op in free.graph.ops if op.phase is Phase.FORWARD and Trait.COLLECTIVE in op.traits]
    assert len(kept) == sum(op.primitive == "dot_general" for op in products) == LAYERS
    assert set(kept.values()) == {Save()}
    bound = Problem(graph=free.graph, rates=free.rates, required=kept)
    assert again(free, strategy)
    assert not again(bound, strategy)


def gathering(weights, x):
    """Each layer's parameters made whole by a constraint before they are used."""

    def loss(weights):
        y = x
        for number, w in enumerate(weights):
            with jax.named_scope(f"block_{number}"):
                w = jax.lax.with_sharding_constraint(w, NamedSharding(MESH, PartitionSpec()))
                y = jnp.sin(jnp.tanh(y @ w) @ w)
        return (y**2).mean()

    return jax.grad(loss)(weights)


def test_gathered_parameters_are_never_kept():
    problem = problem_of([spec((WIDTH, WIDTH), "data")] * LAYERS, spec((TOKENS, WIDTH), "data"), function=gathering)
    graph = problem.graph
    gathered = {op.writes[0] for op in graph.ops if op.primitive == "sharding_constraint" and op.phase is Phase.FORWARD}
    assert len(gathered) == LAYERS
    assert all(graph.ops[graph.producer[v]].exchange_bytes == WIDTH * WIDTH * 4 // 2 for v in gathered)
    assert gathered.isdisjoint(problem.worth_saving)
    assert gathered.isdisjoint(saved_collectives(problem))
    plan = solve(problem, "full")
    assert not [v for v in gathered if isinstance(plan.decisions.get(v, Recompute()), Save)]


def test_the_planner_takes_shardings_and_donation_from_the_jit():
    weights, x = megatron()
    whole = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype), (weights, x))
    shardings = jax.tree.map(lambda s: s.sharding, (weights, x))
    jitted = jax.jit(step, in_shardings=shardings, out_shardings=shardings[0], donate_argnums=0)
    planner = jaxckpt.Planner(jitted, *whole, target="h200:8")
    assert planner.graph.argument_bytes == LAYERS * 2 * 4 * WIDTH**2 * 4 // 4 + TOKENS * WIDTH * 4 // 2
    assert len(planner.traced.donated) == 2 * LAYERS
    assert planner.fixed_bytes == planner.graph.argument_bytes  # gradients take over the weights' memory
    told = jaxckpt.Planner(jitted, *whole, target="h200:8", recompute_collectives=False)
    assert len(told.problem.required) == LAYERS
