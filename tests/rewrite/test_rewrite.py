"""A plan's decisions are found in the rewritten equations; then the values are compared."""

from collections import Counter
from importlib import import_module

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest

import jaxckpt
from jaxckpt._errors import GraphError, PlanMismatchError, UnsupportedDecisionError
from jaxckpt.ir import GraphPlan, Offload, Partition, Phase
from jaxckpt.rewrite import rewrite
from jaxckpt.schedule import Barrier, Run
from jaxckpt.trace import trace_step
from tests.residuals import residuals
from tests.rewrite.plans import drop_all, droppable, plan_of

W, X = jnp.full((4, 4), 0.3), jnp.linspace(0.1, 1.0, 12).reshape(3, 4)
BLOCKS = ("block_0", "block_1", "block_2")


def block(x, w):
    return x + jnp.tanh(jnp.sin(x @ w) @ w)


def loss(w, x):
    for name in BLOCKS:
        with jax.named_scope(name):
            x = block(x, w)
    return jnp.sum(x**2)


def step(w, x):
    value, g = jax.value_and_grad(loss)(w, x)
    return w - 0.1 * g, value


def eqns(rewritten):
    return rewritten.jaxpr.jaxpr.eqns


def names(rewritten):
    return [eqn.primitive.name for eqn in eqns(rewritten)]


def stack(eqn):
    return str(eqn.source_info.name_stack)


def copies(rewritten):
    return [eqn for eqn in eqns(rewritten) if "rematted_computation" in stack(eqn)]


def barriers(rewritten):
    return [eqn for eqn in eqns(rewritten) if eqn.primitive.name == "optimization_barrier"]


def one_by_one(closed, *flat):
    """Runs a jaxpr an equation at a time, each compiled by itself: the same equations give the same bits."""
    return jax.core.eval_jaxpr(closed.jaxpr, closed.consts, *flat)


def assert_same_bits(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.dtype, getattr(mine, "weak_type", None)) == (other.dtype, getattr(other, "weak_type", None))
        np.testing.assert_array_equal(_plain(mine), _plain(other))


def _plain(array):
    return jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array


@pytest.fixture(scope="module")
def traced():
    return trace_step(step, W, X)


@pytest.fixture(scope="module")
def by_block(traced):
    return rewrite(traced, drop_all(traced.graph, scopes=BLOCKS))


def test_saving_everything_leaves_the_step_as_it_is(traced):
    for plan in (plan_of(traced.graph), plan_of(traced.graph, save=droppable(traced.graph))):
        rewritten = rewrite(traced, plan)
        assert str(rewritten.jaxpr) == str(traced.jaxpr)
        assert len(eqns(rewritten)) == len(traced.graph.ops)


def test_each_block_recomputes_the_values_that_it_dropped(traced, by_block):
    made = Counter(eqn.primitive.name for eqn in copies(by_block))
    # The second product's result feeds only the tanh that the backward reads; what is left out is the sum.
    assert made["dot_general"] == 2 * len(BLOCKS)
    assert made["tanh"] == len(BLOCKS)
    originals = [op.primitive for op in traced.graph.ops]
    assert names(by_block).count("dot_general") == originals.count("dot_general") + made["dot_general"]


def test_each_block_and_each_saved_value_has_one_barrier(traced, by_block):
    scopes = [stack(eqn) for eqn in barriers(by_block)]
    assert sum(scope.endswith("jaxckpt/recompute") for scope in scopes) == len(BLOCKS)
    pins = [scope for scope in scopes if scope.endswith("jaxckpt/pin")]
    assert len(pins) == len([d for d in by_block.plan.decisions.values() if type(d).__name__ == "Save"])
    assert all("jvp(" in scope and "transpose" not in scope for scope in pins)


def test_clones_are_between_their_barrier_and_the_first_reader(by_block):
    order = eqns(by_block)
    made_at = {v: i for i, eqn in enumerate(order) for v in eqn.outvars}
    read_at = {}
    for i, eqn in enumerate(order):
        for v in eqn.invars:
            if isinstance(v, jex.Var):
                read_at.setdefault(v, i)
    for i, eqn in enumerate(order):
        if "rematted_computation" not in stack(eqn):
            continue
        roots = {v for v in eqn.invars if isinstance(v, jex.Var)}
        sources = {order[made_at[v]].primitive.name for v in roots if v in made_at}
        assert sources <= {"optimization_barrier"} or all(
            "rematted_computation" in stack(order[made_at[v]])
            or order[made_at[v]].primitive.name == "optimization_barrier"
            for v in roots
        )
        assert all(read_at.get(v, i + 1) > i for v in eqn.outvars)


def test_nothing_in_the_backward_reads_a_dropped_value(traced, by_block):
    dropped = {traced.variables[v] for v, d in by_block.plan.decisions.items() if type(d).__name__ == "Recompute"}
    late = [eqn for eqn in eqns(by_block) if "transpose(" in stack(eqn)]
    read = {v for eqn in late for v in eqn.invars if isinstance(v, jex.Var)}
    assert late
    assert not read & dropped


def test_every_stage_is_recomputed_after_a_cotangent(traced, by_block):
    """The last stage after the loss: the backward has no value in memory before it."""
    late = {v for op in traced.graph.ops if op.phase is not Phase.FORWARD for v in op.writes}
    triggers = [s.trigger for s in by_block.schedule.steps if isinstance(s, Barrier) and s.trigger is not None]
    assert len(triggers) == len(BLOCKS)
    assert triggers[0] in traced.graph.outputs
    assert set(triggers[1:]) <= late


def test_equations_are_the_steps_of_the_schedule(traced, by_block):
    expected = [
        traced.graph.ops[s.op].primitive if isinstance(s, Run) else "optimization_barrier"
        for s in by_block.schedule.steps
    ]
    assert names(by_block) == expected


def test_planned_steps_give_the_same_bits(traced, by_block):
    assert_same_bits(one_by_one(by_block.jaxpr, W, X), one_by_one(traced.jaxpr, W, X))


def test_planned_steps_give_the_same_numbers_compiled(by_block):
    for ours, theirs in zip(jax.jit(by_block.call)(W, X), jax.jit(step)(W, X), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_second_derivatives_of_a_planned_gradient_are_equal():
    gradient = jax.grad(loss)
    traced = trace_step(gradient, W, X)
    rewritten = rewrite(traced, drop_all(traced.graph, scopes=BLOCKS))

    def squared(function):
        return jax.jit(jax.grad(lambda w: jnp.sum(jax.tree.leaves(function(w, X))[0] ** 2)))(W)

    np.testing.assert_allclose(squared(rewritten.call), squared(gradient), rtol=1e-5)


def test_planned_steps_can_be_batched(traced, by_block):
    xs = jnp.stack([X, 2 * X])
    ours = jax.vmap(by_block.call, (None, 0))(W, xs)
    theirs = jax.vmap(step, (None, 0))(W, xs)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-6)


def test_recomputed_random_bits_are_the_same():
    def noisy(w, x, key):
        def loss(w):
            for i in range(2):
                keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.5, x.shape)
                y = jnp.where(keep, jnp.tanh(x @ w), 0.0)
            return jnp.sum(y**2)

        return jax.grad(loss)(w)

    traced = trace_step(noisy, W, X, jax.random.key(1))
    rewritten = rewrite(traced, drop_all(traced.graph))
    assert any(eqn.primitive.name == "random_bits" for eqn in copies(rewritten))
    flat = (W, X, jax.random.key(1))
    assert_same_bits(one_by_one(rewritten.jaxpr, *flat), one_by_one(traced.jaxpr, *flat))


@pytest.mark.parametrize("turned", ["not at all", "a product", "a sum"])
def test_the_backward_reads_the_trigger_behind_the_barrier(turned):
    """XLA drops what nobody reads there, and the clones would wait for nothing."""

    @jax.custom_vjp
    def turn(x):
        return x

    def backward(_, g):
        g = {"not at all": lambda: 2 * g, "a product": lambda: (W @ g.T).T, "a sum": lambda: (g + 1).T.T}[turned]()
        return (g,)

    turn.defvjp(lambda x: (x, None), backward)

    def loss(w, x):
        with jax.named_scope("block_0"):
            x = turn(block(x, w))
        return jnp.sum(x**2)

    traced = trace_step(lambda w, x: jax.grad(loss)(w, x), W, X)
    rewritten = rewrite(traced, drop_all(traced.graph, scopes=("block_0",)))
    (barrier,) = [eqn for eqn in barriers(rewritten) if stack(eqn).endswith("jaxckpt/recompute")]
    read = {v for eqn in eqns(rewritten) for v in eqn.invars if isinstance(v, jex.Var)}
    assert barrier.outvars[-1] in read
    flat = (W, X)
    assert_same_bits(one_by_one(rewritten.jaxpr, *flat), one_by_one(traced.jaxpr, *flat))


def test_initialisers_of_scatters_come_after_the_gradient():
    """A compiler would fill them when the step begins; now they are of a number that has passed with the cotangent."""

    def looked_up(table, x):
        with jax.named_scope("block_0"):
            return jnp.sum(jnp.sin(jnp.sin(table[jnp.array([1, 3, 1])]) @ x) ** 2)

    flat = (W, X.T)
    traced = trace_step(jax.grad(looked_up), *flat)
    rewritten = rewrite(traced, drop_all(traced.graph, scopes=BLOCKS[:1]))
    made = {v: eqn for eqn in eqns(rewritten) for v in eqn.outvars}
    (scatter,) = (eqn for eqn in eqns(rewritten) if eqn.primitive.name == "scatter-add")
    zeros = made[scatter.invars[0]]
    held = made[zeros.invars[0]]
    assert held.primitive.name == "optimization_barrier"
    awaited = held.invars[1]
    assert scatter.invars[-1] is held.outvars[1]  # a compiler drops what nobody reads behind a barrier
    after = eqns(rewritten)[eqns(rewritten).index(held) + 1 :]
    assert all(awaited not in eqn.invars for eqn in after)
    assert_same_bits(one_by_one(rewritten.jaxpr, *flat), one_by_one(traced.jaxpr, *flat))


def test_zeros_of_a_pooling_gradient_come_after_its_cotangent():
    """XLA makes one constant of all zeros of a shape, and would copy it where the gradient is scattered."""

    def pooled(w, x):
        with jax.named_scope("block_0"):
            x = jax.nn.relu(jnp.sin(x @ w))
        windows = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2), (1, 2), "VALID")
        return jnp.sum(jnp.sin(windows) ** 2)

    flat = (W, X)
    traced = trace_step(jax.grad(pooled), *flat)
    rewritten = rewrite(traced, drop_all(traced.graph, scopes=BLOCKS[:1]))
    made = {v: eqn for eqn in eqns(rewritten) for v in eqn.outvars}
    (scatter,) = (eqn for eqn in eqns(rewritten) if eqn.primitive.name == "select_and_scatter")
    _, cotangent, zero = scatter.invars
    assert made[zero] is made[cotangent]
    assert made[zero].primitive.name == "optimization_barrier"
    assert_same_bits(one_by_one(rewritten.jaxpr, *flat), one_by_one(traced.jaxpr, *flat))
    unchanged = rewrite(traced, GraphPlan(fingerprint=traced.graph.fingerprint, decisions={}, stages=(0,)))
    assert "select_and_scatter_add" in names(unchanged)


def test_key_arrays_pass_barriers_and_are_recomputed():
    def noisy(w, x, key):
        def loss(w):
            with jax.named_scope("block_0"):
                first, second = jax.random.split(key)
                y = jnp.tanh(x @ w) * jax.random.normal(first, x.shape)
            with jax.named_scope("block_1"):
                return jnp.sum(jnp.tanh(y @ w) * jax.random.normal(second, x.shape))

        return jax.grad(loss)(w), key

    traced = trace_step(noisy, W, X, jax.random.key(1))
    plan = drop_all(traced.graph, scopes=BLOCKS[:2])
    rewritten = rewrite(traced, plan)
    passed = {str(v.aval) for eqn in barriers(rewritten) for v in eqn.invars}
    assert any("key<fry>" in aval for aval in passed)
    flat = (W, X, jax.random.key(1))
    assert_same_bits(one_by_one(rewritten.jaxpr, *flat), one_by_one(traced.jaxpr, *flat))


def test_effects_happen_once():
    seen = []

    def loud(w, x):
        def loss(w):
            y = jnp.tanh(x @ w)
            jax.debug.callback(lambda v: seen.append(float(v)), y[0, 0])
            return jnp.sum(jnp.sin(y @ w))

        return jax.grad(loss)(w)

    traced = trace_step(loud, W, X)
    rewritten = rewrite(traced, drop_all(traced.graph))
    assert copies(rewritten)
    jax.block_until_ready(jax.jit(rewritten.call)(W, X))
    jax.effects_barrier()
    assert len(seen) == 1


def test_a_stateful_draw_is_never_repeated():
    def drawn(w, x):
        def loss(w):
            noise = jax.lax.rng_uniform(0.0, 1.0, (3, 4))
            return jnp.sum(jnp.sin((x @ w) * noise))

        return jax.grad(loss)(w)

    traced = trace_step(drawn, W, X)
    rewritten = rewrite(traced, drop_all(traced.graph))
    assert copies(rewritten)
    assert names(rewritten).count("rng_uniform") == 1


def test_references_keep_their_variable():
    def counting(w, x):
        count = jax.new_ref(jnp.zeros(()))

        def loss(w):
            y = jnp.tanh(x @ w)
            count[...] += 1.0
            return jnp.sum(jnp.sin(y @ w))

        return jax.grad(loss)(w), count[...]

    traced = trace_step(counting, W, X)
    graph = traced.graph
    references = [op.writes[0] for op in graph.ops if op.primitive in ("new_ref", "ref")]
    drop = set(droppable(graph)) - set(references)
    rewritten = rewrite(traced, plan_of(graph, drop=drop, save=references))
    assert references
    assert copies(rewritten)
    ours, theirs = jax.jit(rewritten.call)(W, X), jax.jit(counting)(W, X)
    assert ours[1] == theirs[1] == 1.0
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)


def test_empty_arrays_and_repeated_and_literal_results_survive():
    def odd(w, x, empty):
        g = jax.grad(lambda w: jnp.sum(jnp.sin(jnp.tanh(x @ w))) + jnp.sum(jnp.sin(jnp.sin(empty)) * w[0, 0]))(w)
        return g, g, 1.0, empty, x

    flat = (W, X, jnp.zeros((0, 4)))
    traced = trace_step(odd, *flat)
    rewritten = rewrite(traced, drop_all(traced.graph))
    assert_same_bits(
        map(jnp.asarray, one_by_one(rewritten.jaxpr, *flat)), map(jnp.asarray, one_by_one(traced.jaxpr, *flat))
    )


def test_closed_loops_and_branches_are_recomputed():
    def looped(w, x):
        def loss(w):
            y = jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), c), x, None, length=3)[0]
            y = jax.lax.cond(y[0, 0] > 0, lambda y: jnp.sin(y @ w), jnp.cos, y)
            return jnp.sum(y**2)

        return jax.grad(loss)(w)

    traced = trace_step(looped, W, X, open_loops=False)
    rewritten = rewrite(traced, drop_all(traced.graph))
    assert {"scan", "cond"} <= {eqn.primitive.name for eqn in copies(rewritten)}
    assert_same_bits(one_by_one(rewritten.jaxpr, W, X), one_by_one(traced.jaxpr, W, X))


def test_clones_read_closed_over_constants_behind_the_barrier():
    table = jnp.linspace(0.0, 1.0, 12).reshape(3, 4)
    traced = trace_step(jax.grad(lambda w, x: jnp.sum(jnp.sin(jnp.sin(x @ w) * table) ** 2)), W, X)
    rewritten = rewrite(traced, drop_all(traced.graph))
    assert len(rewritten.jaxpr.consts) == 1
    assert_same_bits(one_by_one(rewritten.jaxpr, W, X), one_by_one(traced.jaxpr, W, X))


def test_two_gradients_in_one_step_can_both_be_planned():
    def twice(w, x):
        w = w - 0.1 * jax.grad(loss)(w, x)
        return w - 0.1 * jax.grad(loss)(w, x)

    traced = trace_step(twice, W, X)
    rewritten = rewrite(traced, plan_of(traced.graph, drop=droppable(traced.graph)))
    assert len(copies(rewritten)) > 0
    assert_same_bits(one_by_one(rewritten.jaxpr, W, X), one_by_one(traced.jaxpr, W, X))


def test_a_plan_for_another_graph_is_refused(traced):
    with pytest.raises(PlanMismatchError, match="for another step") as caught:
        rewrite(traced, GraphPlan(fingerprint="0123456789abcdef"))
    assert caught.value.planned == "0123456789abcdef"


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (Offload(space="disk"), "an offload to 'disk'"),
        (Partition(axis="data", dim=0), "mesh axes: none"),
    ],
)
def test_what_the_machine_does_not_have_is_refused(traced, decision, said):
    value = residuals(traced.graph)[0].value
    plan = GraphPlan(fingerprint=traced.graph.fingerprint, decisions={value: decision})
    with pytest.raises(UnsupportedDecisionError, match=said) as caught:
        rewrite(traced, plan)
    assert isinstance(caught.value, NotImplementedError)


def test_values_that_cannot_be_recomputed_are_refused(traced):
    with pytest.raises(GraphError, match="cannot be recomputed"):
        rewrite(traced, plan_of(traced.graph, drop=[traced.graph.inputs[0]]))


def test_the_type_check_sees_a_broken_rewrite(traced, monkeypatch):
    room = import_module("jaxckpt.rewrite.rewrite")  # the package has a function of that name

    def broken(traced, schedule, **options):
        made, outvars = equations(traced, schedule, **options)
        at = next(i for i, eqn in enumerate(made) if eqn.eqn.primitive.name == "dot_general")
        return [*made[:at], *made[at + 1 :]], outvars

    equations = room.equations
    monkeypatch.setattr(room, "equations", broken)
    with pytest.raises(jex.JaxprTypeError):
        rewrite(traced, plan_of(traced.graph))


def test_a_slice_without_elements_begins_no_stack():
    def loss(w, x, z):
        def body(carry, each):
            return jnp.tanh(jnp.tanh(carry @ w) @ w) + each.sum(), jnp.sin(each * carry.sum())

        carry, z = jax.lax.scan(body, jnp.tanh(x @ w), z)
        carry, z = jax.lax.scan(body, jnp.tanh(carry @ w), jnp.sin(z * carry.sum()))
        return carry.sum() + z.sum()

    step, args = jax.grad(loss), (0.5 * jnp.eye(4), jnp.ones((4, 4)), jnp.ones((3, 0)))
    np.testing.assert_allclose(jaxckpt.apply(step, "nothing")(*args), step(*args), rtol=1e-5)
