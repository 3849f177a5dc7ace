"""Optimiser state in host memory: which arguments are state, and how it passes through the update."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jaxckpt import Target
from jaxckpt._errors import UnsupportedDecisionError
from jaxckpt.calling import Calling
from jaxckpt.ir import GraphPlan
from jaxckpt.rewrite.apply import PlannedFunction, apply
from jaxckpt.schedule import Barrier, Move, Run, schedule
from jaxckpt.schedule.host_state import StateGroups
from jaxckpt.solve import Problem, solve
from jaxckpt.trace import trace_step

LAYERS, WIDTH, BATCH = 4, 512, 32


def loss(layers, x):
    for layer in layers:
        x = x + jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return (x**2).mean()


def made_step(optimiser):
    def step(layers, state, x):
        value, gradients = jax.value_and_grad(loss)(layers, x)
        changes, state = optimiser.update(gradients, state, layers)
        return optax.apply_updates(layers, changes), state, value

    return step


def made_layers():
    keys = jax.random.split(jax.random.key(0), LAYERS)
    return [{"kernel": jax.random.normal(key, (WIDTH, WIDTH)) / 32, "bias": jnp.zeros(WIDTH)} for key in keys]


def arguments(optimiser):
    layers = made_layers()
    return layers, optimiser.init(layers), jax.random.normal(jax.random.key(1), (BATCH, WIDTH))


def traced(optimiser, donate_argnums=(0, 1)):
    return trace_step(made_step(optimiser), *arguments(optimiser), donate_argnums=donate_argnums)


def groups_of(optimiser):
    found = traced(optimiser)
    paths = dict(enumerate(found.paths))
    returned = {v: i for i, v in enumerate(found.graph.outputs)}
    return [
        {paths[argument]: found.paths[returned[result]] for argument, result in group.results.items()}
        for group in found.graph.once(StateGroups).groups
    ]


def plan_with_state(problem, name="none", *, share=1.0):
    arguments = problem.graph.once(StateGroups).donated
    return replace(solve(problem, name), host_arguments=arguments[: int(share * len(arguments))])


@pytest.mark.parametrize(
    ("optimiser", "per_layer"),
    [
        (optax.adamw(1e-3), 2),
        (optax.amsgrad(1e-3), 3),
        (optax.sgd(1e-3, momentum=0.9), 1),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)), 2),
        (optax.lamb(1e-3), 2),
        (optax.sgd(1e-3), 0),
    ],
    ids=["adamw", "amsgrad", "momentum", "clipped", "lamb", "sgd"],
)
def test_state_is_what_only_the_update_reads_each_array_with_its_own_new_one(optimiser, per_layer):
    groups = groups_of(optimiser)
    assert len(groups) == (LAYERS if per_layer else 0)
    for group in groups:
        assert len(group) == per_layer
        assert all(argument == result for argument, result in group.items())
        assert all("kernel" in path for path in group)  # biases are too small to be worth a copy


def test_an_average_of_the_parameters_is_state_too():
    optimiser = optax.chain(optax.adam(1e-3), optax.ema(0.99))
    assert sum(map(len, groups_of(optimiser))) == 3 * LAYERS


def test_last_layers_come_first():
    found = traced(optax.adam(1e-3))
    afters = [group.after for group in found.graph.once(StateGroups).groups]
    paths = [found.paths[argument] for argument in found.graph.once(StateGroups).donated]
    assert afters == sorted(afters)
    assert [int(path.split("['kernel']")[0][-2]) for path in paths[::2]] == [3, 2, 1, 0]


def test_what_is_not_donated_stays_on_the_device():
    graph = traced(optax.adam(1e-3), donate_argnums=(0,)).graph
    assert graph.once(StateGroups).groups
    assert not graph.once(StateGroups).donated


@pytest.mark.parametrize("name", ["none", "full"])
def test_state_is_loaded_behind_gradients_and_stored_after_its_update(name):
    graph = traced(optax.adam(1e-3)).graph
    problem = Problem(graph=graph, rates=Target("h200").rates)
    plan = plan_with_state(problem, name)
    made = schedule(graph, plan)
    steps = made.steps
    loads = [at for at, step in enumerate(steps) if isinstance(step, Move) and step.restores]
    stores = [at for at, step in enumerate(steps) if isinstance(step, Move) and not step.restores]
    assert len(loads) == len(stores) == len(plan.host_arguments) == 2 * LAYERS
    on_host = set(plan.host_arguments)
    for step in steps:
        if isinstance(step, Run):
            assert on_host.isdisjoint(step.reads), "an op reads an array that is on the host"
    first_gradient = min(group.after for group in graph.once(StateGroups).groups)
    assert min(loads) > next(at for at, s in enumerate(steps) if isinstance(s, Run) and s.op == first_gradient)
    for argument in plan.host_arguments:
        (load,) = (at for at in loads if made.origin[steps[at].reads[0]] == argument)
        result = next(g.results[argument] for g in graph.once(StateGroups).groups if argument in g.results)
        (store,) = (at for at in stores if made.origin[steps[at].reads[0]] == result)
        assert load < store
    on_device = most = 0
    waiting: set[int] = set()
    for at, step in enumerate(steps):
        if at in loads:
            on_device += 1
        if at in stores:
            waiting.update(step.writes)
        if isinstance(step, Barrier):
            finished = waiting.intersection(step.reads)
            on_device -= len(finished)
            waiting -= finished
        most = max(most, on_device)
    assert most <= 2 * 2, "at most two groups of two arrays are on the device"


def test_predicted_bytes_are_those_on_the_device():
    graph = traced(optax.adam(1e-3)).graph
    problem = Problem(graph=graph, rates=Target("h200").rates)
    as_it_is, moved = solve(problem, "none").predicted, problem.predict(plan_with_state(problem))
    size_bytes = 4 * WIDTH**2
    assert moved.argument_bytes == as_it_is.argument_bytes - 2 * LAYERS * size_bytes
    assert moved.host_bytes == 2 * LAYERS * size_bytes
    assert as_it_is.temp_bytes <= moved.temp_bytes <= as_it_is.temp_bytes + 5 * size_bytes
    assert moved.step_s >= as_it_is.step_s
    assert moved.stall_s > 0


@pytest.mark.parametrize("name", ["none", "full"])
@pytest.mark.parametrize(
    "optimiser",
    [optax.adamw(1e-3), optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1e-2, momentum=0.9))],
    ids=["adamw", "clipped momentum"],
)
def test_it_trains_the_same_with_its_state_on_the_host(optimiser, name):
    step = made_step(optimiser)
    problem = Problem(graph=traced(optimiser).graph, rates=Target("h200").rates)
    planned = apply(step, plan_with_state(problem, name, share=0.75), donate_argnums=(0, 1))
    reference, (layers, state, x) = jax.jit(step), arguments(optimiser)
    mine, theirs = (layers, state), jax.tree.map(jnp.copy, (layers, state))
    for _ in range(20):
        *theirs, expected = reference(*theirs, x)
        *mine, got = planned(*mine, x)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    kinds = [leaf.sharding.memory_kind for leaf in jax.tree.leaves(mine[1]) if leaf.size == WIDTH**2]
    assert kinds.count("pinned_host") == int(0.75 * len(kinds))
    assert all(leaf.sharding.memory_kind == "device" for leaf in jax.tree.leaves(mine[0]))


def test_a_step_with_nnx_objects_is_planned_once_and_trains_the_same():
    def train(model, optimiser, x):
        value, gradients = nnx.value_and_grad(lambda model: (jnp.tanh(model(x)) ** 2).mean())(model)
        optimiser.update(model, gradients)
        return value

    def made():
        model = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-3, eps=1e-3), wrt=nnx.Param)

    step, x = nnx.jit(train, donate_argnums=(0, 1)), jnp.ones((BATCH, WIDTH))
    found = trace_step(step, *made(), x)
    plan = plan_with_state(Problem(graph=found.graph, rates=Target("h200").rates))
    decided = []

    def decide(traced):
        decided.append(traced)
        return plan

    planned = PlannedFunction(step, Calling(step), decide, state_on_host=True)
    mine, theirs = made(), made()
    for _ in range(3):
        got, expected = planned(*mine, x), step(*theirs, x)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert len(decided) == 1
    kinds = [leaf.sharding.memory_kind for leaf in jax.tree.leaves(nnx.state(mine[1])) if leaf.size == WIDTH**2]
    assert kinds == ["pinned_host"] * 2


def test_arguments_that_are_no_state_cannot_be_on_the_host():
    graph = traced(optax.adam(1e-3)).graph
    with pytest.raises(UnsupportedDecisionError, match="1 of 1 arguments"):
        schedule(graph, GraphPlan(fingerprint=graph.fingerprint, host_arguments=(0,)))


def test_a_stack_of_layers_is_one_group():
    def stacked(kernels, momentum, x):
        def loss(kernels):
            return (jax.lax.scan(lambda x, kernel: (jnp.tanh(x @ kernel), None), x, kernels)[0] ** 2).mean()

        gradients = jax.grad(loss)(kernels)
        momentum = 0.9 * momentum + gradients
        return kernels - 0.1 * momentum, momentum

    kernels = jnp.stack([layer["kernel"] for layer in made_layers()])
    x = jnp.ones((BATCH, WIDTH))
    graph = trace_step(stacked, kernels, jnp.zeros_like(kernels), x, donate_argnums=(0, 1)).graph
    problem = Problem(graph=graph, rates=Target("h200").rates)
    plan = plan_with_state(problem, "full")
    assert plan.host_arguments == (1,)
    got = apply(stacked, plan, donate_argnums=(0, 1))(jnp.copy(kernels), jnp.zeros_like(kernels), x)
    expected = jax.jit(stacked)(kernels, jnp.zeros_like(kernels), x)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6), got, expected)
    assert got[1].sharding.memory_kind == "pinned_host"


def test_a_plan_without_state_on_the_host_is_another_plan():
    plan = GraphPlan(fingerprint="of this step")
    assert replace(plan, host_arguments=(1,)) != plan
    assert hash(replace(plan, host_arguments=(1,))) != hash(plan)
