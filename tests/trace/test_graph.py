"""Sizes, names, lines and fingerprints of a traced graph."""

import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jaxckpt.ir import Kind, Trait
from jaxckpt.trace import trace_step
from jaxckpt.trace.op_facts import Details
from jaxckpt.trace.sharding import aval_bytes, dtype_bits

W, X = jnp.full((4, 4), 0.3), jnp.linspace(0.1, 1.0, 12).reshape(3, 4)


def gradient(function):
    return jax.grad(lambda w, x: jnp.sum(function(w, x)))


@pytest.mark.parametrize(
    ("shape", "dtype", "size_bytes"),
    [
        ((2, 3), "float32", 24),
        ((2, 3), "bfloat16", 12),
        ((2, 3), "bool", 6),
        ((2, 3), "complex64", 48),
        ((3,), "int4", 2),
        ((3,), "float8_e4m3fn", 3),
        ((), "float64", 8),
        ((0, 5), "float32", 0),
        ((2, 3), jax.dtypes.float0, 0),
        ((5,), jax.random.key(0).dtype, 40),
        ((5,), jax.random.key(0, impl="rbg").dtype, 80),
    ],
)
def test_sizes_are_those_of_the_compiler(shape, dtype, size_bytes):
    aval = SimpleNamespace(shape=shape, dtype=jnp.dtype(dtype) if isinstance(dtype, str) else dtype)
    assert aval_bytes(aval) == size_bytes


def test_the_size_of_a_type_is_known_without_a_device():
    assert dtype_bits(jax.random.key(0).dtype) == 64


def test_arguments_and_constraints_are_counted_by_their_shards():
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def function(w, x):
        y = jax.lax.with_sharding_constraint(x @ w, NamedSharding(mesh, PartitionSpec(None, "a")))
        return jnp.sin(y)

    spec = jax.ShapeDtypeStruct((3, 4), "float32", sharding=NamedSharding(mesh, PartitionSpec("a", ("b",))))
    graph = trace_step(gradient(function), W, spec).graph
    # Three rows over two devices are two each, padded.
    assert graph.values[graph.inputs[1]].size_bytes == 2 * 1 * 4
    constrained = [graph.values[op.writes[0]] for op in graph.ops if op.primitive == "sharding_constraint"]
    assert {value.size_bytes for value in constrained} == {3 * 2 * 4}


def test_types_that_carry_shardings_are_counted_by_them():
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones((4, 8)), NamedSharding(mesh, PartitionSpec("a")))
        w = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, PartitionSpec()))
        graph = trace_step(gradient(lambda w, x: jnp.sin(x @ w)), w, x).graph
    product = next(op for op in graph.ops if op.primitive == "dot_general")
    assert graph.values[product.writes[0]].size_bytes == 4 * 8 * 4 // 2


def test_arrays_closed_over_count_as_arguments():
    table = jnp.ones((3, 4))
    graph = trace_step(gradient(lambda w, x: jnp.sin(x @ w) * table), W, X).graph
    assert [graph.values[v].size_bytes for v in graph.constants] == [48]
    assert graph.argument_bytes == 64 + 48 + 48


def test_key_arrays_are_values_like_others():
    def function(w, x, keys):
        return jnp.sum(jnp.sin(x @ w) * jax.random.normal(keys[0], (3, 4)))

    graph = trace_step(jax.grad(function), W, X, jax.random.split(jax.random.key(0), 3)).graph
    key = graph.values[graph.inputs[2]]
    assert (key.dtype, key.shape, key.size_bytes) == ("key<fry>", (3,), 24)
    graph.validate()


def test_checkpoint_name_names_its_operand_and_its_result():
    graph = trace_step(gradient(lambda w, x: jnp.sin(checkpoint_name(x @ w, "logits"))), W, X).graph
    named = next(op for op in graph.ops if op.primitive == "name")
    assert {graph.values[v].name for v in (*named.reads, *named.writes)} == {"logits"}
    assert graph.ops[graph.producer[named.reads[0]]].primitive == "dot_general"
    assert sum(value.name is not None for value in graph.values) == 2


def test_results_may_repeat_and_literals_are_left_out():
    def step(w, x):
        g = gradient(lambda w, x: jnp.sin(x @ w))(w, x)
        return g, g, 1.0, w

    graph = trace_step(step, W, X).graph
    assert len(graph.outputs) == 3
    assert graph.outputs[0] == graph.outputs[1]
    assert graph.outputs[2] == graph.inputs[0]


def test_calls_of_elementwise_work_are_elementwise():
    graph = trace_step(gradient(lambda w, x: jax.nn.relu(x @ w) ** 2 * jnp.sort(x)), W, X).graph
    kinds = {op.primitive: op.kind for op in graph.ops}
    assert kinds["custom_jvp_call"] is Kind.ELEMENTWISE
    assert kinds["sort"] is Kind.OPAQUE


def test_arrays_that_are_put_nowhere_stay_where_they_are():
    def function(w, x):
        on_host = jax.device_put(x, jax.memory.Space.Host)
        return jnp.sin(jax.device_put(x @ w)) * jax.device_put(on_host, jax.memory.Space.Device)

    kinds = [op.kind for op in trace_step(gradient(function), W, X).graph.ops if op.primitive == "device_put"]
    assert kinds.count(Kind.OPAQUE) == 2
    assert set(kinds) == {Kind.OPAQUE, Kind.VIEW}


def test_effects_are_named_also_inside_bodies():
    def function(w, x):
        jax.debug.print("{}", x[0, 0])
        y = jax.lax.rng_uniform(0.0, 1.0, (3, 4))
        z = jax.lax.cond(x[0, 0] > 0, lambda: jax.lax.rng_uniform(0.0, 1.0, (3, 4)), lambda: x)
        return jnp.sin(x @ w) * y * z

    graph = trace_step(gradient(function), W, X).graph
    effects = {op.primitive: op.effects for op in graph.ops if op.effects}
    assert effects["rng_uniform"] == effects["cond"] == ("rng_uniform",)
    assert any("Debug" in name for names in effects.values() for name in names)


def test_lines_are_the_user_s_own():
    graph = trace_step(gradient(lambda w, x: jax.nn.softmax(x @ w)), W, X).graph
    sources = {op.source.rsplit(":", 1)[0] for op in graph.ops}
    assert sources == {__file__}


def test_lines_leave_installed_packages_out():
    nn = pytest.importorskip("flax.linen")
    model = nn.Dense(4)
    params = model.init(jax.random.key(0), X)
    graph = trace_step(jax.grad(lambda p, x: jnp.sum(model.apply(p, x) ** 2)), params, X).graph
    assert {op.source.rsplit(":", 1)[0] for op in graph.ops if op.source} == {__file__}


STEP = """
import os
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, jax.numpy as jnp
from jaxckpt.trace import trace_step

@jax.custom_vjp
def f(x):
    return jnp.sin(x)

f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.cos(x) * g,))

def loss(w, x, key):
    x = jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), c.sum()), x, None, length=3)[0]
    x = jax.lax.cond(x[0, 0] > 0, lambda x: jnp.tanh(x @ w), jnp.sin, x)
    x = jax.nn.relu(f(x) + w[jnp.array([0, 1, 2])]) * jax.random.normal(key, x.shape)
    x = jax.lax.conv_general_dilated(x[None, None], w[None, None], (1, 1), "SAME")
    return jnp.sum(jax.nn.softmax(x))

traced = trace_step(jax.grad(loss), jnp.ones((4, 4)), jnp.ones((3, 4)), jax.random.key(0))
print(traced.graph.fingerprint, "|".join(f"{op.primitive} {op.detail} {op.effects}" for op in traced.graph.ops))
"""


def test_fingerprints_are_the_same_in_every_process():
    details = [
        subprocess.run(
            [sys.executable, "-c", STEP],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert details[0] == details[1]
    assert "0x" not in details[0]


def test_fingerprints_depend_on_shapes_and_parameters_not_names():
    def step(axis, scope="a"):
        def function(w, x):
            with jax.named_scope(scope):
                return jnp.cumsum(jnp.sin(checkpoint_name(x @ w, scope)), axis=axis)

        return gradient(function)

    fingerprint = trace_step(step(0), W, X).graph.fingerprint
    assert trace_step(step(0, "b"), W, X).graph.fingerprint == fingerprint
    assert trace_step(step(1), W, X).graph.fingerprint != fingerprint
    assert trace_step(step(0), W, X[:2]).graph.fingerprint != fingerprint


def test_bodies_are_part_of_the_fingerprint():
    def step(inner):
        return gradient(lambda w, x: jax.lax.scan(lambda c, _: (inner(c @ w), None), x, None, length=2)[0])

    assert trace_step(step(jnp.sin), W, X).graph.fingerprint == trace_step(step(jnp.sin), W, X).graph.fingerprint
    assert trace_step(step(jnp.sin), W, X).graph.fingerprint != trace_step(step(jnp.cos), W, X).graph.fingerprint


def test_sets_among_parameters_are_written_in_order():
    params = {"axes": frozenset(f"axis_{i}" for i in range(9)), "nothing": None, "function": len}
    text = Details().of(SimpleNamespace(params=params, invars=[]))
    listed = ",".join(f"'axis_{i}'" for i in range(9))
    assert text == f"axes={{{listed}}} function=builtin_function_or_method"


### A mesh in sight


def filling(x):
    return jax.grad(lambda x: jnp.sum(x * jnp.ones_like(x)) * 2.0)(x)


def constrained(x, axis=None):
    sharding = NamedSharding(in_sight(AxisType.Auto), PartitionSpec(axis))
    return jax.grad(lambda x: jnp.sum(jnp.sin(jax.lax.with_sharding_constraint(x, sharding))))(x)


def in_sight(kind):
    return AbstractMesh((2,), ("data",), axis_types=(kind,))


def test_a_step_is_the_same_one_with_an_automatic_mesh_in_sight():
    given = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    without_mesh = trace_step(filling, given).graph.fingerprint
    with jax.sharding.use_abstract_mesh(in_sight(AxisType.Auto)):
        assert trace_step(filling, given).graph.fingerprint == without_mesh


def test_constraints_to_replicate_have_their_own_detail():
    given = jax.ShapeDtypeStruct((8, 4), jnp.float32)
    replicated, split = (trace_step(lambda x, axis=axis: constrained(x, axis), given).graph for axis in (None, "data"))
    assert replicated.fingerprint != split.fingerprint
    details = {op.detail for op in replicated.ops if op.primitive == "sharding_constraint"}
    assert any("sharding=P" in detail for detail in details)


def test_relu_is_a_trait_of_a_maximum_with_a_constant_and_of_its_calls():
    def repeated(x):
        return jax.lax.scan(lambda carry, _: (jax.nn.relu(carry), None), x, length=3)[0]

    functions = jax.nn.relu, lambda x: jnp.maximum(x, 0.0), lambda x: jnp.maximum(x, x[::-1]), jax.nn.silu, repeated
    graphs = (trace_step(gradient(lambda w, x, f=f: f(jnp.tanh(x @ w)) ** 2), W, X).graph for f in functions)
    assert [any(Trait.RELU in op.traits for op in graph.ops) for graph in graphs] == [True, True, False, False, True]


def test_reuses_array_is_a_trait_of_calls_whose_body_reads_one_array_in_several_equations():
    functions = jax.nn.softplus, jax.nn.log_sigmoid, jax.nn.relu, lambda x: jnp.log1p(jnp.exp(x))
    graphs = (trace_step(gradient(lambda w, x, f=f: f(jnp.tanh(x @ w)) ** 2), W, X).graph for f in functions)
    assert [any(Trait.REUSES_ARRAY in op.traits for op in graph.ops) for graph in graphs] == [True, True, False, False]
