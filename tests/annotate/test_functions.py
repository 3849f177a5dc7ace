"""Scopes on functions: `jaxckpt.scope` with a policy is a `jax.checkpoint` that keeps what the policy says."""

import gc
import threading
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import jaxckpt
from jaxckpt import scope
from tests.annotate.residuals import DOTS, SAVE_ALL, SAVE_NOTHING, assert_same, count, kept, policy

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
W = jnp.linspace(0.1, 0.9, 16).reshape(4, 4)


def block(x, w):
    hidden = jnp.tanh(x @ w)
    return jaxckpt.name(jnp.exp(hidden @ w), "out") @ w


def loss(part):
    return lambda x, w: part(x, w).sum()


POLICIES = {
    "nothing": SAVE_NOTHING,
    "everything": SAVE_ALL,
    "dots": DOTS,
    "names": policy('name = "out"'),
    "all but": policy('primitive = "tanh"\ndecision = "recompute"', default="save"),
    "offload": policy('name = "out"\ndecision = "offload"'),
}


@pytest.mark.parametrize("chosen", POLICIES.values(), ids=POLICIES)
def test_values_and_gradients_are_those_without_a_scope(chosen):
    scoped = jax.jit(jax.value_and_grad(loss(scope(block, policy=chosen)), argnums=(0, 1)))
    assert_same(scoped(X, W), jax.value_and_grad(loss(block), argnums=(0, 1))(X, W))


def test_without_a_gradient_a_scope_only_passes_values_on():
    """Seeds: OneFlow "train-only pass", MindSpore "functional recompute"."""
    assert_same(scope(block, policy=DOTS)(X, W), block(X, W))
    counted = count(scope(block, policy=SAVE_NOTHING), X, W)
    assert (counted["dot_general"], counted["tanh"], counted["optimization_barrier"]) == (3, 1, 0)


def test_nothing_keeps_the_arguments_alone():
    """Seeds: OneFlow "one-line scope enable"."""
    assert not kept(loss(scope(block, policy=SAVE_NOTHING)), X, W)


def test_what_a_policy_saves_is_what_is_kept():
    assert kept(loss(scope(block, policy=DOTS)), X, W) == {"float32[3,4]": 2}
    assert kept(loss(scope(block, policy=policy('name = "out"'))), X, W) == {"float32[3,4]": 1}
    assert kept(loss(scope(block, policy=policy('primitive = "tanh"'))), X, W) == {"float32[3,4]": 1}


def test_the_forward_runs_twice_exactly_without_saved_values():
    """Seeds: OneFlow "forward call count test"; its "clones named" is JAX's `checkpoint` in the name stack."""

    def counts(chosen):
        found = count(jax.grad(loss(scope(block, policy=chosen)), argnums=(0, 1)), X, W)
        return found["tanh"], found["exp"]

    assert counts(SAVE_ALL) == (1, 1)
    assert counts(SAVE_NOTHING) == (2, 2)
    assert counts(policy('primitive = "tanh"')) == (1, 2)
    assert counts(policy('name = "out"')) == (2, 1)
    assert counts(policy('primitive = "{tanh,exp}"')) == (1, 1)


@pytest.mark.parametrize(
    "function",
    [jnp.exp, jnp.tanh, jax.nn.sigmoid, jnp.sqrt, jax.lax.rsqrt, jnp.exp2, jnp.expm1, jnp.cbrt, jnp.tan],
    ids=lambda f: f.__name__,
)
def test_a_derivative_reads_the_saved_result(function):
    part = scope(
        lambda x: function(x * 2) * 3, policy=policy('primitive = "{exp,exp2,expm1,tanh,logistic,sqrt,rsqrt,cbrt,tan}"')
    )
    once = count(jax.grad(lambda x: part(x).sum()), X + 2)
    assert all(once[name] <= 1 for name in ("exp", "tanh", "logistic", "sqrt", "rsqrt", "exp2", "expm1", "cbrt", "tan"))
    assert_same(jax.grad(lambda x: part(x).sum())(X + 2), jax.grad(lambda x: (function(x * 2) * 3).sum())(X + 2))


def test_derivatives_of_derivatives_agree():
    scoped = loss(scope(block, policy=policy('primitive = "{tanh,exp}"')))
    assert_same(jax.hessian(scoped)(X, W), jax.hessian(loss(block))(X, W))
    assert_same(jax.jvp(scoped, (X, W), (X, W)), jax.jvp(loss(block), (X, W), (X, W)))


@pytest.mark.parametrize("use", ["bare", "called", "keywords", "direct", "direct with keywords", "partial"])
def test_every_way_to_write_it_is_the_same_scope(use):
    scoped = {
        "bare": lambda: scope(block),
        "called": lambda: scope("block")(block),
        "keywords": lambda: scope(policy=DOTS, name="block")(block),
        "direct": lambda: scope(block, policy=DOTS),
        "direct with keywords": lambda: scope(block, policy="dots", name="other"),
        "partial": lambda: scope(partial(block), policy=DOTS),
    }[use]()
    assert_same(jax.grad(loss(scoped), argnums=(0, 1))(X, W), jax.grad(loss(block), argnums=(0, 1))(X, W))


def test_a_scope_keeps_name_and_docstring_of_its_function():
    @scope
    def tail(x):
        """What is left."""
        return x

    assert (tail.__name__, tail.__doc__) == ("tail", "What is left.")


def test_a_policy_may_be_a_path(tmp_path):
    DOTS.save(tmp_path / "mine.toml")
    assert kept(loss(scope(block, policy=tmp_path / "mine.toml")), X, W) == {"float32[3,4]": 2}


@pytest.mark.parametrize(
    "extra",
    [None, True, 3, 2.5, "gelu", (1, 2), {"mask": None, "rate": 0.5}, jnp.float32, jnp.sin],
    ids=lambda extra: getattr(extra, "__name__", repr(extra)),
)
def test_arguments_may_be_other_values_than_arrays(extra):
    """Seeds: DeepSpeed "checkpoint(fn,*args,**kwargs)" with None, bool, int and tuple arguments."""
    seen = []

    @scope(policy=SAVE_NOTHING)
    def part(x, option, *, other=None):
        seen.append((option, other))
        return jnp.tanh(x)

    jax.grad(lambda x: part(x, extra, other=extra).sum())(X)
    assert seen == [(extra, extra)]


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (1, 2), (2, 1), (2, 3), (3, 2)])
def test_any_number_of_arrays_goes_in_and_comes_out(inputs, outputs):
    """Seeds: DeepSpeed "checkpoint(fn,*args,**kwargs)", parity for 1 to 1 up to 2 to 3."""

    def part(*xs):
        return tuple(jnp.tanh(sum(xs)) * (i + 1) for i in range(outputs))

    def total(function):
        return lambda xs: sum(y.sum() for y in function(*xs))

    arrays = [X * (i + 1) for i in range(inputs)]
    assert_same(jax.grad(total(scope(part, policy=SAVE_NOTHING)))(arrays), jax.grad(total(part))(arrays))


def test_arrays_given_by_keyword_have_gradients():
    """Seeds: DeepSpeed "kwargs grads"."""
    part = scope(lambda x, *, weights: jnp.tanh(x @ weights["w"]), policy=SAVE_NOTHING)
    plain = jax.grad(lambda w: jnp.tanh(X @ w).sum())(W)
    assert_same(jax.grad(lambda w: part(X, weights={"w": w, "unused": None}).sum())(W), plain)


def test_results_that_are_no_arrays_stay_in_place():
    """Seeds: DeepSpeed "non-tensor args/outputs order"."""
    part = scope(lambda x: ("a", x, {"n": 3, "y": jnp.tanh(x), "none": None}, [True]), policy=SAVE_NOTHING)
    text, x, named, flags = part(X)
    assert (text, named["n"], named["none"], flags) == ("a", 3, None, [True])
    assert_same((x, named["y"]), (X, jnp.tanh(X)))
    assert_same(jax.grad(lambda x: part(x)[2]["y"].sum())(X), jax.grad(lambda x: jnp.tanh(x).sum())(X))


def test_results_without_a_derivative_pass():
    """Seeds: DeepSpeed "non-differentiable outputs"."""
    part = scope(lambda x: (jnp.tanh(x), x.argmax(), x > 0), policy=policy('primitive = "argmax"'))
    (_, (index, positive)), _ = jax.value_and_grad(lambda x: ((y := part(x))[0].sum(), y[1:]), has_aux=True)(X)
    assert index == X.argmax()
    assert_same(positive, X > 0)


def test_closed_over_parameters_have_gradients():
    """Seeds: DeepSpeed "non-reentrant/no-grad inputs"."""

    def total(w, wrap):
        return wrap(lambda x: jnp.tanh(x @ w) @ w)(X).sum()

    scoped = jax.grad(total)(W, partial(scope, policy=SAVE_NOTHING))
    assert_same(scoped, jax.grad(total)(W, lambda f: f))


def test_integers_and_arrays_of_numpy_are_arguments_too():
    part = scope(lambda x, index, mask: jnp.tanh(x)[index] * mask, policy=SAVE_NOTHING)
    mask = np.array([1.0, 0.0, 1.0, 0.0], np.float32)
    assert_same(part(X, jnp.array(1), mask), jnp.tanh(X)[1] * mask)
    assert jax.grad(lambda x: part(x, jnp.array(1), mask).sum())(X).shape == X.shape


def test_static_argnames_keep_arrays_out_of_the_trace():
    @scope(policy=SAVE_NOTHING, static_argnames="sizes")
    def part(x, sizes, *, y=1.0):
        return jnp.tanh(x)[: int(sizes[0])] * y

    sizes = np.array([2])
    assert part(X, sizes).shape == part(X, sizes=sizes, y=X[:2]).shape == (2, 4)
    assert jax.grad(lambda x: part(x, sizes).sum())(X).shape == X.shape


def test_jit_and_vmap_may_stand_inside_and_outside():
    """Seeds: MindSpore "jit inside"."""

    def part(x, w):
        return jax.vmap(jax.jit(lambda row: jnp.tanh(row @ w)))(x)

    scoped = scope(part, policy=policy('primitive = "tanh"'))
    assert kept(loss(scoped), X, W) == {"float32[3,4]": 1}
    assert count(jax.grad(loss(scoped)), X, W)["tanh"] == 1
    assert_same(jax.jit(jax.grad(loss(scoped)))(X, W), jax.grad(loss(part))(X, W))
    batched = jax.vmap(jax.grad(loss(scoped)), in_axes=(0, None))
    assert_same(batched(X[:, None], W), jax.vmap(jax.grad(loss(part)), in_axes=(0, None))(X[:, None], W))


def test_random_bits_are_drawn_the_same():
    def part(x, key):
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), jnp.tanh(x), 0.0)

    def total(function):
        return lambda x: (function(x, jax.random.key(3)) * jnp.arange(4.0)).sum()

    for chosen in (SAVE_NOTHING, policy("random = true"), SAVE_ALL):
        assert_same(jax.value_and_grad(total(scope(part, policy=chosen)))(X), jax.value_and_grad(total(part))(X))


def test_values_in_loops_and_branches_are_found():
    def part(x, w):
        def body(carry, w):
            return jaxckpt.name(jnp.tanh(carry @ w), "state"), None

        x, _ = jax.lax.scan(body, x, jnp.stack([w, w, w]))
        return jax.lax.cond(x.sum() > 0, lambda x: jaxckpt.name(jnp.exp(x), "grown"), lambda x: x, x)

    scoped = scope(part, policy=policy('name = "state"', 'name = "grown"'))
    assert kept(loss(scoped), X, W)["float32[3,3,4]"] == 1
    assert count(jax.grad(loss(scoped)), X, W)["tanh"] == 1
    assert count(jax.grad(loss(scope(part, policy=SAVE_NOTHING))), X, W)["tanh"] == 2
    assert_same(jax.grad(loss(scoped))(X, W), jax.grad(loss(part))(X, W))


def test_a_name_in_the_forward_rule_of_a_custom_vjp_is_kept():
    @jax.custom_vjp
    def kernel(x):
        return jnp.sin(x)

    def forward(x):
        kept = jaxckpt.name(jnp.tanh(x), "kernel_state")
        return jnp.sin(x), kept

    kernel.defvjp(forward, lambda kept, ct: (ct * kept,))
    scoped = scope(lambda x: kernel(x * 2), policy=policy('name = "kernel_state"'))
    assert count(jax.grad(lambda x: scoped(x).sum()), X)["tanh"] == 1
    with pytest.raises(jaxckpt.PolicyError, match="kernel_stat"):
        scope(jnp.sin, policy=policy('name = "kernel_state"'))(X)


def test_the_backward_of_a_custom_vjp_runs_once():
    """Seeds: MindSpore "hook once"."""
    calls = []

    @jax.custom_vjp
    def hooked(x):
        return x * 1

    hooked.defvjp(lambda x: (x * 1, None), lambda _, ct: (calls.append(1) or ct,))
    jax.make_jaxpr(jax.grad(lambda x: scope(lambda x: hooked(jnp.tanh(x)), policy=SAVE_NOTHING)(x).sum()))(X)
    assert calls == [1]


def test_the_function_is_called_once_for_each_trace():
    calls = []
    part = scope(lambda x: calls.append(1) or jnp.tanh(x), policy=SAVE_NOTHING)
    jax.make_jaxpr(jax.grad(lambda x: part(x).sum()))(X)
    assert calls == [1]


def test_nothing_stays_alive_after_a_step():
    """Seeds: MindSpore "no leak"."""
    step = jax.grad(loss(scope(block, policy=DOTS)))
    step(X, W).block_until_ready()
    gc.collect()
    before = len(jax.live_arrays())
    for _ in range(3):
        step(X, W).block_until_ready()
    gc.collect()
    assert len(jax.live_arrays()) <= before


def test_threads_do_not_meet():
    results = {}

    def work(number):
        part = scope(block, policy=(DOTS, SAVE_NOTHING)[number % 2], name=f"block_{number}")
        with scope(f"part_{number}", policy=DOTS):
            results[number] = kept(loss(part), X, W)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[number]["float32[3,4]"] for number in range(6)] == [2, 0] * 3


def test_a_flag_on_k_of_l_layers_keeps_k_layers_less():
    """Seeds: OneFlow "module-level switch"."""

    def bytes_kept(k):
        layers = [scope(block, policy=SAVE_NOTHING) if i < k else block for i in range(4)]

        def total(x, w):
            for layer in layers:
                x = layer(x, w)
            return x.sum()

        return kept(total, X, W)["float32[3,4]"]

    plain, one, two, three = map(bytes_kept, range(4))
    assert plain > one
    assert [plain - one, plain - two, plain - three] == [plain - one, 2 * (plain - one), 3 * (plain - one)]


def test_an_argument_may_wait_on_the_host():
    moved = policy('boundary = "input"\ndecision = "offload"')
    function = loss(scope(lambda x, w: jnp.tanh(jnp.sin(x) @ w) @ w, policy=moved))
    held = kept(lambda x, w: function(x * 2, w * 2), X, W)
    assert {shape for shape in held if "host" in shape} == {"float32<host>[3,4]", "float32<host>[4,4]"}
    assert "float32[4,4]" not in held


def test_static_methods_and_class_methods_stay_what_they_are():
    class Block:
        factor = 2.0

        @staticmethod
        def doubled(x):
            return jnp.sin(2.0 * x)

        @classmethod
        def scaled(cls, x):
            return jnp.sin(cls.factor * x)

    marked = jaxckpt.scope(Block, policy="nothing", methods=("doubled", "scaled"))
    for call in (marked.doubled, marked().doubled, marked.scaled, marked().scaled):
        assert jnp.array_equal(call(jnp.ones(3)), jnp.sin(2.0 * jnp.ones(3)))
        assert "remat" in str(jax.make_jaxpr(jax.grad(lambda x, call=call: call(x).sum()))(jnp.ones(3)))


def as_dataclass(cls):
    return jax.tree_util.register_dataclass(dataclass(cls))


def as_slots(cls):
    return jax.tree_util.register_dataclass(dataclass(frozen=True, slots=True)(cls))


def as_node(cls):
    def flatten(self):
        return (self.weight,), None

    def build(self, weight):
        self.weight = weight

    methods = {"__init__": build, "tree_flatten": flatten, "tree_unflatten": classmethod(lambda cls, _, own: cls(*own))}
    for name, method in methods.items():
        setattr(cls, name, method)
    return jax.tree_util.register_pytree_node_class(cls)


@pytest.mark.parametrize("kind", [as_dataclass, as_slots, as_node, struct.dataclass])
@pytest.mark.parametrize("of_object", [False, True])
def test_a_scoped_pytree_stays_one(kind, of_object):
    class Block:
        weight: jax.Array

        def __call__(self, x):
            return jnp.tanh(jnp.tanh(x @ self.weight) @ self.weight)

    cls = kind(Block)
    plain, scoped = cls(W), scope(cls(W), policy=DOTS) if of_object else scope(cls, policy=DOTS)(W)

    def gradient(block):
        return jax.grad(lambda block: block(X).sum())(block)

    found = gradient(scoped)
    assert type(found) is type(scoped)
    assert (found.weight == gradient(plain).weight).all()
    paths = [jax.tree_util.tree_flatten_with_path(block)[0][0][0] for block in (plain, scoped)]
    assert paths[0] == paths[1]
    assert count(gradient, scoped)["dot_general"] == count(gradient, plain)["dot_general"]
    assert count(gradient, scoped)["tanh"] > count(gradient, plain)["tanh"]


def test_an_object_with_slots_keeps_its_fields():
    @dataclass(frozen=True, slots=True)
    class Scaled:
        factor: float

        def __call__(self, x):
            return self.factor * jnp.tanh(x)

    scoped = scope(Scaled(2.0), policy=SAVE_NOTHING)
    assert (scoped.factor, isinstance(scoped, Scaled)) == (2.0, True)
    assert (scoped(X) == Scaled(2.0)(X)).all()
