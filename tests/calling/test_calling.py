"""Arguments in, arrays through, results out; and what cannot be kept is refused by name."""

import functools
import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxckpt
import jaxckpt.dynamic.compare
import jaxckpt.planner
from jaxckpt import ArgumentError
from jaxckpt.calling import Calling
from jaxckpt.testing.check import SnapshotCheck
from jaxckpt.trace import trace_step
from tests.calling import styles


def scopes(traced) -> set[str]:
    return {op.scope for op in traced.graph.ops}


def test_modules_are_scopes_by_their_paths_and_so_are_arguments():
    traced = trace_step(styles.nnx_step, *styles.objects(), styles.X)
    assert {"net/blocks.0/linear", "net/blocks.1/norm", "net/again"} <= scopes(traced)
    assert {"net.blocks.0.linear.kernel", "net.blocks.1.norm.mean", "optimizer.step", "x"} <= set(traced.paths)
    assert any(path.startswith("optimizer.opt_state.0.trace.blocks.0") for path in traced.paths)


class Averaged(nnx.Module):
    """A network beside the average of its weights, and a copy of the last one."""

    def __init__(self):
        self.net, self.average, self.last = (nnx.Linear(4, 4, rngs=nnx.Rngs(seed)) for seed in range(3))


def averaging(model, x):
    """An exponential moving average, by a map over two modules of one class."""
    loss, gradient = nnx.value_and_grad(lambda net: jnp.mean(net(x) ** 2))(model.net)
    weights = nnx.state(model.net, nnx.Param)
    nnx.update(model.net, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient))
    nnx.update(model.average, nnx.state(jax.tree.map(lambda a, w: 0.9 * a + 0.1 * w, model.average, model.net)))
    model.last = nnx.clone(model.net)
    return loss


def test_two_modules_of_one_class_can_be_mapped_over():
    ours, theirs = Averaged(), Averaged()
    x = jnp.linspace(0, 1, 12).reshape(3, 4)
    planned = jaxckpt.apply(nnx.jit(averaging), "nothing")
    np.testing.assert_allclose(planned(ours, x), nnx.jit(averaging)(theirs, x), rtol=1e-6)
    for mine, other in zip(jax.tree.leaves(nnx.state(ours)), jax.tree.leaves(nnx.state(theirs)), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-7)
    jax.tree.map(jnp.subtract, ours.net, ours.last)  # no mark is left on the copy


def test_an_error_of_the_step_is_that_of_the_step():
    def wrong(net, x):
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        jaxckpt.apply(nnx.jit(wrong), "nothing")(styles.objects()[0], styles.X)
    assert caught.value.__context__ is None


def test_tracing_leaves_no_mark_on_modules_and_their_classes():
    net, optimizer = styles.objects()
    call, names = styles.Block.__call__, set(vars(net.blocks[0]))
    trace_step(styles.nnx_step, net, optimizer, styles.X)
    assert styles.Block.__call__ is call
    assert set(vars(net.blocks[0])) == names
    net, _, _ = jaxckpt.apply(styles.returning_step, "dots")(net, optimizer, styles.X)
    assert set(vars(net.blocks[0])) == names


def test_source_lines_are_those_of_the_model():
    graph = trace_step(styles.nnx_step, *styles.objects(), styles.X).graph
    assert not [op.source for op in graph.ops if "calling/scopes.py" in op.source or "calling/calling.py" in op.source]


def test_what_a_step_hands_through_is_the_users_own_array():
    net, optimizer = styles.objects()

    @nnx.jit(donate_argnums=(0, 1))
    def head_only(net, optimizer, x):
        loss, grads = nnx.value_and_grad(styles.nnx_loss, argnums=nnx.DiffState(0, styles.nnx.PathContains("again")))(
            net, x
        )
        net.again.kernel[...] -= grads["again"]["kernel"][...]
        return loss

    frozen = net.blocks[0].linear.kernel[...]
    traced = trace_step(head_only, net, optimizer, styles.X)
    donated = {traced.paths[i] for i in traced.donated}
    assert "net.again.kernel" in donated
    assert "net.blocks.0.linear.kernel" not in donated
    jaxckpt.apply(head_only, "dots")(net, optimizer, styles.X)
    assert net.blocks[0].linear.kernel[...] is frozen


def test_a_jit_that_drops_what_is_written_is_refused_by_variable():
    args = *styles.objects(), styles.X
    with pytest.raises(ArgumentError, match=r"net\.blocks\.0\.dropout\.rngs\.count") as caught:
        trace_step(jax.jit(styles.nnx_step), *args)
    assert "optimizer.step" in caught.value.lost
    with pytest.raises(ArgumentError, match=r"nnx\.jit"):
        jax.jit(jaxckpt.apply(styles.nnx_step, "dots"))(*args)
    assert trace_step(jax.jit(styles.returning_step), *args).paths


def test_variables_that_hold_shardings_are_not_written():
    net, _ = styles.objects()
    graphdef, state = nnx.split(net)
    shardings = jax.tree.map(lambda _: jax.sharding.SingleDeviceSharding(jax.devices()[0]), state)

    def step(shardings, state, x):
        assert isinstance(jax.tree.leaves(shardings)[0], jax.sharding.Sharding)
        net = nnx.merge(graphdef, state)
        loss, grads = nnx.value_and_grad(styles.nnx_loss)(net, x)
        nnx.update(net, jax.tree.map(lambda p, g: p - g, nnx.state(net, nnx.Param), grads))
        return nnx.state(net), loss

    bound = functools.update_wrapper(functools.partial(step, shardings), step)
    assert trace_step(jax.jit(bound), state, styles.X).paths


def test_objects_that_a_step_closes_over_and_writes_are_named():
    net, optimizer = styles.objects()

    def closed(x):
        return styles.nnx_step(net, optimizer, x)

    with pytest.raises(ArgumentError, match="closes over net, optimizer") as caught:
        trace_step(closed, styles.X)
    assert "def closed(net, optimizer, ...)" in str(caught.value)


def test_objects_that_are_attributes_or_closed_over_by_a_wrapper_are_named():
    class Holder:
        def __init__(self):
            self.net, self.optimizer = styles.objects()

        def train(self, x):
            return styles.nnx_step(self.net, self.optimizer, x)

    holder = Holder()

    @functools.wraps(styles.nnx_step)
    def wrapper(x):
        return holder.train(x)

    found = []
    for step in (holder.train, wrapper, jax.jit(wrapper)):
        with pytest.raises(ArgumentError, match="writes to an NNX object") as caught:
            trace_step(step, styles.X)
        found.append((caught.value.objects, caught.value.advice))
    assert found[0] == (("self.net", "self.optimizer"), "def train(self, net, optimizer, ...)")
    assert found[1] == found[2] == (("holder.net", "holder.optimizer"), "def nnx_step(net, optimizer, ...)")


def test_objects_of_a_cached_partial_are_updated():
    net, optimizer = styles.objects()
    other, own = styles.objects()
    bound = nnx.cached_partial(nnx.jit(styles.nnx_step), net, optimizer)
    planned, step = jaxckpt.apply(bound, "dots"), nnx.jit(styles.nnx_step)
    for _ in range(3):
        np.testing.assert_allclose(planned(styles.X), step(other, own, styles.X), rtol=1e-5)
    assert optimizer.step[...] == 3
    assert {"net.again.kernel", "optimizer.step", "x"} <= set(trace_step(bound, styles.X).paths)


def test_a_static_self_without_a_hash_is_refused_and_not_printed():
    class Unhashable(styles.Trainer):
        __hash__ = None

        def __repr__(self):
            return "all of the parameters"

    with pytest.raises(ArgumentError, match="`self` is static") as caught:
        trace_step(Unhashable().jitted, styles.weights(), styles.X)
    assert "parameters" not in str(caught.value)


def test_an_object_that_is_static_is_refused():
    for step, argnums in ((nnx.jit(styles.nnx_step, static_argnums=0), ()), (styles.nnx_step, 0)):
        with pytest.raises(ArgumentError, match="`net` is static, and an NNX object"):
            trace_step(step, *styles.objects(), styles.X, static_argnums=argnums)


def test_a_static_array_is_advised_to_be_traced():
    for value in (jnp.ones(3), {"a": jnp.ones(3)}):
        with pytest.raises(ArgumentError, match="static, and cannot be hashed") as caught:
            trace_step(lambda w, x: w, value, styles.X, static_argnums=0)
        assert "leave it out of static_argnums" in caught.value.advice
        assert "jax.jit" not in str(caught.value)


@pytest.mark.parametrize(
    "argnums", [{"donate_argnums": 2}, {"static_argnums": (0, 2)}, {"donate_argnums": -3}], ids=str
)
def test_positions_that_the_step_does_not_have_are_refused(argnums):
    def step(w, x):
        return w

    with pytest.raises(ArgumentError, match="positions below 2: w, x"):
        trace_step(step, styles.X, styles.X, **argnums)
    with pytest.raises(ArgumentError, match="positions below 1: x"):
        trace_step(functools.partial(step, styles.X), styles.X, donate_argnums=1)


def test_a_position_whose_argument_has_a_default_may_be_named():
    def step(w, x=2.0, flag=True):
        return jax.grad(lambda w: (jnp.tanh(w) * x).sum())(w)

    assert trace_step(step, styles.X, donate_argnums=1, static_argnums=2).paths == ("w",)


@pytest.mark.parametrize(
    "jitted",
    [
        functools.partial(jax.jit, static_argnames="flag"),
        functools.partial(jax.jit, static_argnums=2),
        functools.partial(nnx.jit, static_argnames="flag"),
    ],
    ids=["jax_name", "jax_number", "nnx_name"],
)
def test_a_static_argument_of_a_jit_may_be_left_at_its_default(jitted):
    """Its position, 2 of 2 arguments, was taken for the position 0."""

    def step(rate, w, flag=True):
        return w - rate * jax.grad(lambda w: jnp.tanh(w).sum() if flag else w.sum())(w)

    traced = trace_step(jitted(step), 0.1, styles.X)
    assert traced.paths == ("rate", "w")
    assert traced.graph.read_after_forward


def test_static_leaves_are_compared_by_equality():
    calling = Calling(lambda setting, x: jnp.sin(x) * len(setting["name"]))
    jaxprs = []
    for name in ("".join(["a", "b"]), "ab", "abc"):
        with calling.bind(({"name": name}, styles.X)) as call:
            jaxprs.append(call.trace().jaxpr)
    assert jaxprs[0] is jaxprs[1]
    assert jaxprs[1] is not jaxprs[2]


def test_numbers_are_arrays_but_in_modules_and_partials():
    def step(module, rate):
        return jax.grad(lambda m: jnp.sum(jnp.tanh(m.weight)) * rate)(module)

    paths = [
        trace_step(step, eqx.nn.Linear(2, 2, key=jax.random.key(0)), 0.5).paths,
        trace_step(eqx.filter_jit(step), eqx.nn.Linear(2, 2, key=jax.random.key(0)), 0.5).paths,
        trace_step(functools.partial(styles.update, x=styles.X, rate=0.5), [styles.X.T]).paths,
    ]
    weight, bias = "module.weight", "module.bias"
    assert paths == [(weight, bias, "rate"), (weight, bias), ("params[0]", "x")]


def test_described_objects_are_planned_without_arrays():
    net, optimizer = nnx.eval_shape(styles.objects)
    traced = trace_step(nnx.jit(styles.nnx_step), net, optimizer, jax.ShapeDtypeStruct(styles.X.shape, jnp.float32))
    assert traced.graph.fingerprint == trace_step(styles.nnx_step, *styles.objects(), styles.X).graph.fingerprint


def test_verify_compares_what_is_written():
    args = *styles.objects(), styles.X
    verified = jaxckpt.verify(nnx.jit(styles.nnx_step), jaxckpt.apply(styles.nnx_step, "dots"), *args)
    assert verified.ok
    assert {"optimizer.step", "net.blocks.0.norm.mean", ""} <= {leaf.path for leaf in verified.leaves}
    assert int(args[1].step[...]) == 0

    def never_trains(net, optimizer, x):
        return styles.nnx_loss(net, x)

    with pytest.raises(jaxckpt.VerificationError, match=r"net\.again\.bias is absent"):
        jaxckpt.verify(styles.nnx_step, never_trains, *args)


def test_an_unknown_keyword_is_an_error_that_tells_where_it_goes():
    with pytest.raises(ArgumentError, match=r"kwargs=\{'x'") as caught:
        jaxckpt.plan(styles.update, styles.weights(), x=styles.X, budget="1GiB", target="h200")
    assert isinstance(caught.value, TypeError)
    with pytest.raises(ArgumentError, match="closest is 'max_compiles'"):
        jaxckpt.plan(styles.update, styles.weights(), styles.X, budget="1GiB", target="h200", max_compile=2)
    with pytest.raises(ArgumentError, match="closest is 'budget'"):
        jaxckpt.jit(styles.update, budgett="1GiB")


def test_what_takes_a_step_and_its_arguments_takes_a_step_object():
    rooms = (jaxckpt, jaxckpt.dynamic, jaxckpt.dynamic.compare, jaxckpt.testing, jaxckpt.planner)
    functions = {value for room in rooms for value in vars(room).values() if inspect.isfunction(value)}
    functions |= {getattr(jaxckpt, name) for name in jaxckpt.__all__ if inspect.isfunction(getattr(jaxckpt, name))}
    functions |= {jaxckpt.Planner.__init__, SnapshotCheck.__call__}
    taking = [each for each in functions if {"step", "args"} <= set(inspect.signature(each).parameters)]
    assert len(taking) > 12
    refusing = [
        each for each in taking if jaxckpt.Step not in get_args(inspect.signature(each).parameters["step"].annotation)
    ]
    assert refusing == []


def test_a_step_object_runs_op_by_op_with_its_keyword_arguments():
    step = jaxckpt.Step(styles.keyword_only, (styles.weights(),), kwargs={"x": styles.X, "rate": 0.2})
    assert sum(row.ops for row in jaxckpt.timed_scopes(step)) > 10
    ran = jaxckpt.dynamic.run(step, budget=None)
    np.testing.assert_allclose(ran.outputs[1], styles.keyword_only(styles.weights(), x=styles.X)[1], rtol=1e-6)


PRINT = """
import jax
from tests.calling import styles
from jaxckpt.trace import trace_step
for style in (styles.NNX[1], styles.EQUINOX[1], styles.PLAIN[-1]):
    args, kwargs = style.make()
    print(trace_step(style.step, *args, kwargs=kwargs).graph.fingerprint)
"""


def test_another_process_finds_the_same_fingerprints(capsys):
    root = Path(__file__).parents[2]
    environment = {"PYTHONHASHSEED": "7", "JAX_PLATFORMS": "cpu", "PATH": "", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", PRINT], capture_output=True, text=True, check=False, env=environment, cwd=root
    )
    assert done.returncode == 0, done.stderr
    exec(PRINT, {})
    assert capsys.readouterr().out == done.stdout


def test_a_step_may_name_a_mesh_of_devices_of_its_own():
    from jaxckpt.machine import Target

    devices = np.array(Target("h200:8").devices[4:])
    own = jax.sharding.NamedSharding(jax.sharding.Mesh(devices, ("data",)), jax.sharding.PartitionSpec("data"))
    step = jax.grad(lambda w, x: jnp.sum(jax.lax.with_sharding_constraint(jnp.tanh(x @ w), own) ** 2))
    found = jaxckpt.footprint(step, styles.weights()[0], styles.X, target="h200:4")
    assert found.temp_bytes < 4 * styles.X.nbytes


def test_arguments_that_are_handed_through_are_arrays_as_from_the_own_jit():
    @nnx.jit
    def step(model, x, scale):
        value, gradients = nnx.value_and_grad(lambda model: (jnp.tanh(model(x)) * scale).sum())(model)
        return value, gradients, x, scale

    args = nnx.Linear(4, 4, rngs=nnx.Rngs(0)), np.ones((2, 4), np.float32), 2.0
    for own, planned in zip(step(*args)[2:], jaxckpt.apply(step, "dots")(*args)[2:], strict=True):
        assert isinstance(planned, jax.Array)
        assert (planned.dtype, planned.weak_type) == (own.dtype, own.weak_type)


@pytest.mark.parametrize("step", [3, [jnp.ones(2)], None])
def test_what_is_no_function_is_no_step(step):
    with pytest.raises(ArgumentError, match="in front of its arguments"):
        Calling(step)
