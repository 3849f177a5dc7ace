"""Steps run op by op under a budget: the same numbers, less memory, nothing twice that may happen once."""

import logging
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback

import jaxckpt
from benchmarks.models import MODELS
from jaxckpt import ArgumentError, InfeasibleBudgetError
from jaxckpt.dynamic import EVICTORS, MEMORIES, Memory, Mode, Runner, program_from_graph, run, simulate, unlimited_bytes
from jaxckpt.dynamic.eager.operation import VIEWS
from jaxckpt.trace import trace_step

SIZES = {
    "gpt2-small": {"batch": 16, "sequence": 32, "layers": 2, "width": 32, "heads": 2, "vocabulary": 128},
    "resnet50": {"batch": 64, "size": 32, "blocks": (2, 2), "width": 16, "classes": 10},
}


def chain(depth=12):
    """A product and an activation, again and again; the gradient of what is summed at the end."""

    def loss(w, x):
        for _ in range(depth):
            x = jnp.tanh(x @ w)
        return x.sum()

    return jax.value_and_grad(loss)


W, X = jnp.eye(16) * 0.9, jnp.linspace(-1, 1, 256 * 16).reshape(256, 16)


def equal(a, b):
    same = jax.tree.map(lambda x, y: x.dtype == y.dtype and np.array_equal(x, y, equal_nan=True), a, b)
    return all(jax.tree.leaves(same))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "evictor"), [("gpt2-small", "dtr_eq"), ("resnet50", "coop")])
def test_twenty_losses_at_half_memory_are_those_without_a_budget(name, evictor):
    made = MODELS[name].step(**SIZES[name])
    plain = Runner(made.step, budget=None, donate_argnums=made.donate_argnums)
    half = Runner(made.step, budget=0.5, evictor=evictor, donate_argnums=made.donate_argnums)
    compiled = jax.jit(made.step)
    states = [made.real()[:2] for _ in range(3)]
    recomputations = 0
    for seed in range(20):
        batch = made.batch(jax.random.key(seed))
        expected, ran = plain(*states[0], batch), half(*states[1], batch)
        assert equal(ran.outputs, expected.outputs)
        assert ran.peak_bytes <= 0.5 * expected.peak_bytes == 0.5 * ran.unlimited_bytes
        assert ran.counters.base_operations == expected.counters.operations - 1
        recomputations += ran.recomputations
        states[2] = compiled(*states[2], batch)
        np.testing.assert_allclose(ran.outputs[2], states[2][2], rtol=1e-2)
        states = [expected.outputs[:2], ran.outputs[:2], states[2][:2]]
    assert recomputations > 20


def test_updates_at_half_the_memory_are_those_without_a_budget():
    def step(w, x):
        loss, gradient = chain()(w, x)
        return w - 1e-4 * gradient, loss

    plain = Runner(step, budget=None, donate_argnums=0)
    half = Runner(step, budget=0.5, evictor="coop", donate_argnums=0)
    compiled = jax.jit(step)
    w = [W + 0, W + 0, W + 0]
    for _ in range(20):
        expected, ran, jitted = plain(w[0], X), half(w[1], X), compiled(w[2], X)
        assert equal(ran.outputs, expected.outputs)
        np.testing.assert_allclose(ran.outputs[1], jitted[1], rtol=1e-4, atol=1e-2)
        assert ran.peak_bytes <= 0.5 * expected.peak_bytes and ran.recomputations
        w = [expected.outputs[0], ran.outputs[0], jitted[0]]


@pytest.mark.parametrize("evictor", EVICTORS)
def test_every_rule_computes_the_same(evictor):
    expected = run(chain(), W, X, budget=None).outputs
    ran = run(chain(), W, X, budget=0.6, evictor=evictor)
    assert equal(ran.outputs, expected)
    assert ran.recomputations and ran.evictions
    assert ran.peak_bytes <= ran.counters.budget_bytes == int(0.6 * ran.unlimited_bytes)


def test_arrays_alive_during_a_run_are_within_the_budget():
    seen = []

    def looked_at(x):
        jax.debug.callback(lambda: seen.append(sum(a.nbytes for a in jax.live_arrays()) - outside))
        return x

    def loss(w, x):
        for i in range(12):
            x = jnp.tanh(x @ w)
            x = looked_at(x) if i % 4 == 3 else x
        return x.sum()

    outside = sum(a.nbytes for a in jax.live_arrays()) - W.nbytes - X.nbytes
    runner = Runner(jax.grad(loss), budget=0.5, evictor="dtr_eq")
    runner(W, X)
    seen.clear()
    outside = sum(a.nbytes for a in jax.live_arrays()) - W.nbytes - X.nbytes
    ran = runner(W, X)
    assert len(seen) == 3
    assert W.nbytes + X.nbytes < max(seen) <= ran.counters.budget_bytes < 0.6 * ran.unlimited_bytes


def test_runs_without_measuring_decide_as_the_simulation_does():
    program = program_from_graph(trace_step(chain(), W, X, eager=True).graph, views=VIEWS)
    for evictor in ("dtr", "dtr_eq", "coop", "dte"):
        memory = Memory(mode=Mode.HARD) if evictor == "dte" else MEMORIES.get(evictor)
        found = simulate(program, budget=0.6, evictor=evictor, memory=memory)
        ran = run(chain(), W, X, budget=0.6, evictor=evictor, measure=False)
        assert replace(ran.counters, run_s=0, search_s=0) == replace(found, run_s=0, search_s=0)
        assert ran.unlimited_bytes == unlimited_bytes(program)
        assert ran.peak_bytes <= found.peak_bytes


def test_donated_arguments_are_used_up_and_others_are_not():
    def step(state, x, unread):
        return jax.tree.map(lambda s: s - 0.1 * x.sum(), state), (x * 2).sum()

    state, x, unread = {"a": jnp.ones(64), "b": jnp.ones((8, 8))}, jnp.ones(64), jnp.ones(3)
    ran = run(step, state, x, unread, budget="1MiB", donate_argnums=(0, 2))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((state, unread)))
    assert not x.is_deleted()
    np.testing.assert_allclose(ran.outputs[0]["b"], 1 - 6.4, rtol=1e-6)


def test_a_new_state_takes_the_memory_of_the_donated_one():
    state = jnp.ones(2**16)
    address = state.unsafe_buffer_pointer()
    ran = run(lambda s: s - 1.0, state, budget="1MiB", evictor="coop", donate_argnums=0)
    assert ran.counters.taken_over == 1 and state.is_deleted()
    assert ran.outputs.unsafe_buffer_pointer() == address and float(ran.outputs.sum()) == 0
    assert ran.peak_bytes < 2 * ran.outputs.nbytes


def test_a_donated_argument_that_is_returned_is_not_deleted():
    state = jnp.arange(4.0)
    ran = run(lambda s: (s, checkpoint_name(s, "again"), s + 1), state, budget="1MiB", donate_argnums=0)
    assert [leaf.tolist()[0] for leaf in ran.outputs] == [0.0, 0.0, 1.0]


def test_random_bits_are_drawn_the_same_again():
    def loss(w, x, key):
        for i in range(8):
            keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.8, x.shape)
            x = jnp.where(keep, jnp.tanh(x @ w), 0.0)
        return (x**2).sum()

    step, key = jax.value_and_grad(loss), jax.random.key(7)
    ran = run(step, W, X, key, budget=0.5, evictor="dtr_eq")
    assert ran.recomputations
    assert equal(ran.outputs, run(step, W, X, key, budget=None).outputs)
    np.testing.assert_allclose(ran.outputs[1], jax.jit(step)(W, X, key)[1], rtol=1e-4, atol=1e-5)


def test_effects_happen_once():
    said, fetched = [], []

    def fetch(x):
        fetched.append(1)
        return np.asarray(x) + len(fetched)

    def loss(w, x):
        for i in range(8):
            x = jnp.tanh(x @ w)
            jax.debug.callback(lambda i=i: said.append(i))
            extra = io_callback(fetch, jax.ShapeDtypeStruct((), jnp.float32), jnp.float32(0.0), ordered=True)
            x = x + jax.lax.stop_gradient(extra)
        return x.sum()

    ran = run(jax.grad(loss), W, X, budget=0.75, evictor="dtr_eq")
    jax.effects_barrier()
    assert ran.recomputations
    assert sorted(said) == list(range(8)) and len(fetched) == 8


def test_loops_and_branches_are_one_op_each_and_may_run_again():
    def loss(w, x):
        def body(c, _):
            c = jnp.tanh(c @ w)
            return c, checkpoint_name(c.mean(0), "means")

        for _ in range(4):
            x, means = jax.lax.scan(body, x, None, length=3)
            x = jax.lax.cond(means.sum() > 1e9, lambda x: x * 2, lambda x: x + 1, x)
            x = jnp.tanh(x) + checkpoint_name(means, "all").sum()
        return x.sum()

    step = jax.grad(loss)
    expected = run(step, W, X, budget=None, evictor="dtr_eq")
    ran = run(step, W, X, budget=0.7, evictor="dtr_eq")
    assert ran.recomputations
    assert equal(ran.outputs, expected.outputs)
    assert ran.peak_bytes <= ran.counters.budget_bytes
    names = {op.primitive for op in trace_step(step, W, X, eager=True).graph.ops}
    assert {"scan", "cond"} <= names and not names & {"jit", "custom_jvp_call", "custom_vjp_call"}


def test_a_step_may_be_anything_that_jax_traces():
    @jax.custom_vjp
    def twice(x):
        return x * 2

    twice.defvjp(lambda x: (x * 2, x), lambda x, g: (g * 3,))

    def step(x, n, *, key, name):
        y = jax.nn.relu(twice(x)) * n
        return {"y": y, "one": 1, "key": key, name: jax.nn.softmax(y), "none": None}

    x = jnp.linspace(-1, 1, 5)
    jitted = jax.jit(step, static_argnames="name")
    runner = Runner(jitted, budget=None)
    ran, expected = runner(x, 3, key=jax.random.key(1), name="soft"), jitted(x, 3, key=jax.random.key(1), name="soft")
    assert jax.tree.structure(ran.outputs) == jax.tree.structure(expected)
    assert equal(jax.random.key_data(ran.outputs["key"]), jax.random.key_data(expected["key"]))
    np.testing.assert_allclose(ran.outputs["soft"], expected["soft"], rtol=1e-6)
    assert ran.outputs["one"].dtype == expected["one"].dtype


def test_a_new_length_at_each_call_compiles_ops_but_not_the_step(caplog):
    runner = None
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for length in (4, 6, 5):
            sizes = {**MODELS["bilstm-unrolled"].small(), "sequence": length, "batch": 32}
            made = MODELS["bilstm-unrolled"].step(**sizes)
            runner = runner or Runner(made.step, budget=0.6, evictor="dtr_eq", donate_argnums=made.donate_argnums)
            ran = runner(*made.real())
            assert ran.recomputations and ran.peak_bytes <= 0.6 * ran.unlimited_bytes
            expected = Runner(made.step, budget=None)(*made.real())
            assert equal(ran.outputs, expected.outputs)
    compiled = [record.getMessage() for record in caplog.records if "XLA compilation" in record.getMessage()]
    assert any("tanh" in message for message in compiled)
    assert not any("jit(step)" in message for message in compiled)


def test_too_little_memory_is_an_error_that_says_what_is_missing():
    with pytest.raises(InfeasibleBudgetError, match="out of memory") as refused:
        run(chain(), W, X, budget="20KiB", evictor="dtr_eq")
    assert refused.value.minimum_bytes == W.nbytes + X.nbytes
    with pytest.raises(InfeasibleBudgetError, match="thrash"):
        run(chain(32), W, X, budget=0.2, evictor="lru", limit=0.5)


def test_descriptions_and_traces_are_refused():
    with pytest.raises(ArgumentError, match=r"\bx\b|\[1\]"):
        run(chain(), W, jax.ShapeDtypeStruct(X.shape, X.dtype), budget=None)

    def around(w):
        return run(lambda x: x @ w, X, budget=None).outputs

    with pytest.raises(ArgumentError, match="inside another trace"):
        jax.jit(around)(W)


def test_what_was_measured_decides_from_the_second_step_on(monkeypatch):
    monkeypatch.setattr("jaxckpt.dynamic.eager.operation._SHORTEST_S", 0.0)  # however quick this machine is
    runner = Runner(chain(), budget=0.6, evictor="dtr_eq")
    counters = [runner(W, X).counters for _ in range(3)]
    assert all(c.base_price > 0 for c in counters)
    assert counters[1].base_price != counters[0].base_price


def test_progress_is_said():
    said = []
    run(chain(), W, X, budget=0.6, evictor="dtr_eq", progress=said.append)
    assert said[0] == "tracing the step"


def test_a_run_shows_itself():
    ran = jaxckpt.dynamic.run(chain(), W, X, budget=0.6, evictor="dtr_eq")
    assert f"{ran.recomputations} recomputed" in str(ran)
    assert "forced" in ran._repr_html_()


def test_a_shard_map_is_one_operation():
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, whole = jax.sharding.PartitionSpec("rows"), jax.sharding.PartitionSpec()
    block = jax.shard_map(lambda x, w: jnp.tanh(x @ w), mesh=mesh, in_specs=(rows, whole), out_specs=rows)

    def step(w, x):
        return jax.grad(lambda w: block(block(x, w), w).sum())(w)

    np.testing.assert_allclose(run(step, W, X, budget=None).outputs, step(W, X), rtol=1e-5)


def test_a_shard_map_is_compiled_once(monkeypatch):
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, whole = jax.sharding.PartitionSpec("rows"), jax.sharding.PartitionSpec()
    block = jax.shard_map(lambda x, w: x @ w, mesh=mesh, in_specs=(rows, whole), out_specs=rows)
    runner = Runner(lambda w, x: jax.grad(lambda w: block(x, w).sum())(w), budget=None)
    runner(W, X)
    jitted, jit = [], jax.jit
    monkeypatch.setattr(jax, "jit", lambda *args, **keywords: jitted.append(args) or jit(*args, **keywords))
    runner(W, X)
    assert not jitted
