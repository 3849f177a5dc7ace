"""Scopes on Linen: parameters keep their paths, state changes once, and every use of modules goes on working."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt import scope
from jaxckpt.trace import trace_step
from tests.annotate.residuals import DOTS, SAVE_NOTHING, assert_same, count, policy

X = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)


class Dense(nn.Module):
    """Has methods, an attribute, and what `setup` makes."""

    width: int = 4

    def setup(self):
        self.first = nn.Dense(self.width)
        self.second = nn.Dense(self.width)

    def __call__(self, x):
        return self.decode(self.encode(x))

    def encode(self, x):
        return jnp.tanh(self.first(x))

    def decode(self, x):
        return jnp.tanh(self.second(x))


class Normed(nn.Module):
    @nn.compact
    def __call__(self, x, *, train=True):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5)(nn.Dense(4)(x))
        self.sow("intermediates", "normed", x)
        return jnp.tanh(x)


def gradient(model, variables, **options):
    def loss(params):
        returned, changed = model.apply(
            {**variables, "params": params}, X, mutable=["batch_stats", "intermediates"], **options
        )
        return (returned**2).sum(), changed

    return jax.value_and_grad(loss, has_aux=True)(variables["params"])


def test_running_statistics_and_sown_values_change_once():
    plain, scoped = Normed(), scope(Normed, policy=SAVE_NOTHING)()
    variables = plain.init(jax.random.key(0), X)
    assert_same(scoped.init(jax.random.key(0), X), variables)
    variables = {k: v for k, v in variables.items() if k != "intermediates"}
    assert_same(gradient(scoped, variables), gradient(plain, variables))
    assert len(gradient(scoped, variables)[0][1]["intermediates"]["normed"]) == 1


def test_keywords_that_are_no_arrays_need_nothing_said():
    scoped = scope(Normed, policy=SAVE_NOTHING)()
    variables = scoped.init(jax.random.key(0), X)
    assert_same(gradient(scoped, variables, train=False)[0][0], gradient(Normed(), variables, train=False)[0][0])


def test_several_methods_have_the_scope():
    scoped = scope(Dense, policy=SAVE_NOTHING, methods=("encode", "decode"))()
    variables = Dense().init(jax.random.key(0), X)
    assert_same(scoped.init(jax.random.key(0), X), variables)
    assert_same(gradient(scoped, variables), gradient(Dense(), variables))
    encoded = scoped.apply(variables, X, method="encode")
    assert_same(encoded, Dense().apply(variables, X, method="encode"))
    assert count(lambda v: gradient(scoped, v), variables)["tanh"] == 4


def test_a_method_is_decorated_where_it_is_written():
    class Model(nn.Module):
        @nn.compact
        @scope(policy=SAVE_NOTHING)
        def __call__(self, x):
            return jnp.tanh(nn.Dense(4)(jnp.tanh(nn.Dense(4)(x))))

    class Other(nn.Module):
        @scope(policy=SAVE_NOTHING)
        @nn.compact
        def __call__(self, x):
            return jnp.tanh(nn.Dense(4)(jnp.tanh(nn.Dense(4)(x))))

    for model in (Model(), Other()):
        variables = model.init(jax.random.key(0), X)
        assert sorted(variables["params"]) == ["Dense_0", "Dense_1"]
        assert count(lambda v, m=model: gradient(m, v), variables)["tanh"] == 4


def test_names_of_modules_are_not_doubled():
    class Method(nn.Module):
        @scope(policy=DOTS)
        @nn.compact
        def __call__(self, x):
            return jnp.tanh(nn.Dense(4)(x))

    class Whole(nn.Module):
        @nn.compact
        def __call__(self, x):
            return scope(Dense, policy=DOTS)(name="outer")(Method(name="inner")(x))

    model = Whole()
    variables = model.init(jax.random.key(0), X)
    graph = trace_step(jax.grad(lambda v: model.apply(v, X).sum()), variables).graph
    scopes = {op.scope for op in graph.ops if op.primitive == "tanh"}
    assert scopes == {"Whole/inner", "Whole/outer/outer.encode", "Whole/outer/outer.decode"}


def test_rules_see_the_path_of_the_module():
    chosen = policy('scope = "*/block_1/*"\nprimitive = "dot_general"')

    class Model(nn.Module):
        which: int

        @nn.compact
        def __call__(self, x):
            return scope(Normed, policy=chosen)(name=f"block_{self.which}")(x)

    Model(1).init(jax.random.key(0), X)
    with pytest.raises(jaxckpt.PolicyError, match="block_1"):
        Model(2).init(jax.random.key(0), X)


def test_rules_know_the_layer_of_the_module():
    chosen = policy('layers = "0-1"\nprimitive = "tanh"')

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            for layer in range(4):
                x = scope(Normed, policy=chosen)(name=f"block_{layer}")(x)
            return x

    model = Model()
    variables = model.init(jax.random.key(0), X)
    assert count(lambda v: gradient(model, v), variables)["tanh"] == 4 + 2


def test_rules_on_layers_are_refused_where_a_place_has_several_numbers():
    """Flax numbers modules without a name: `block_2/Normed_0` is in layer 2, and `Encoder_0/Block_2` is, too."""
    chosen = policy('layers = "0-1"\nprimitive = "tanh"')

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            return scope(Normed, policy=chosen)()(x)

    with pytest.raises(jaxckpt.PolicyError, match="block_2/Normed_0 has several numbers"):
        Block(name="block_2").init(jax.random.key(0), X)
    Block().init(jax.random.key(0), X)


@pytest.mark.parametrize("chosen", [SAVE_NOTHING, DOTS], ids=["nothing", "dots"])
def test_a_scoped_class_may_be_scanned(chosen):
    def stack(layer):
        class Layer(nn.Module):
            @nn.compact
            def __call__(self, x, _):
                return layer()(x), None

        return nn.scan(Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)()

    plain, scoped = stack(Dense), stack(scope(Dense, policy=chosen, prevent_cse=False))
    variables = plain.init(jax.random.key(0), X, None)
    assert_same(scoped.init(jax.random.key(0), X, None), variables)

    def loss(model):
        return lambda v: (model.apply(v, X, None)[0] ** 2).sum()

    assert_same(jax.grad(loss(scoped))(variables), jax.grad(loss(plain))(variables))
    assert count(jax.grad(loss(scoped)), variables)["tanh"] == 4


def test_modules_and_parameters_may_be_shared():
    def model(wrap):
        class Model(nn.Module):
            def setup(self):
                self.shared = wrap(Dense)()
                self.inside = wrap(Dense)()
                nn.share_scope(self, self.inside)

            def __call__(self, x):
                return self.inside(self.shared(self.shared(x)))

        return Model()

    plain, scoped = model(lambda cls: cls), model(lambda cls: scope(cls, policy=SAVE_NOTHING))
    variables = plain.init(jax.random.key(0), X)
    assert_same(scoped.init(jax.random.key(0), X), variables)
    assert_same(gradient(scoped, variables), gradient(plain, variables))


def test_a_module_may_be_an_attribute_of_another():
    class Holder(nn.Module):
        held: nn.Module

        @nn.compact
        def __call__(self, x):
            return jnp.tanh(self.held(x))

    plain, scoped = Holder(Dense()), scope(Holder, policy=SAVE_NOTHING)(Dense())
    variables = plain.init(jax.random.key(0), X)
    assert_same(scoped.init(jax.random.key(0), X), variables)
    assert_same(gradient(scoped, variables), gradient(plain, variables))


def test_the_class_itself_is_left_alone_and_is_still_the_base():
    before = Dense.__call__
    scoped = scope(Dense, policy=DOTS)
    assert Dense.__call__ is before
    assert (scoped.__name__, scoped.__module__) == ("Dense", Dense.__module__)
    assert isinstance(scoped(), Dense)


def test_a_module_that_was_made_already_is_refused():
    with pytest.raises(jaxckpt.ScopeError, match=r"scope\(Dense, policy=...\)\(...\)"):
        scope(Dense(), policy=DOTS)
