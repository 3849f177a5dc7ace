"""Steps whose layers are conds and switches: kinds of layers, each in a program of its own."""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec

LAYERS, WIDTH = 3, 4
W = jax.random.normal(jax.random.key(0), (LAYERS, WIDTH, WIDTH))
X = jax.random.normal(jax.random.key(1), (8, WIDTH))
KINDS = jnp.array([0, 1, 2])
MESH = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))


def wide(w, x):
    return jnp.sin(x @ w) @ w


def narrow(w, x):
    return x * jnp.tanh(x @ w)


def skipped(w, x):
    return x


def checkpointed(w, x):
    return jax.checkpoint(wide)(w, x)


def looped(w, x):
    return jax.lax.scan(lambda c, _: (wide(w, c), None), x, None, length=2)[0]


def nested(w, x):
    return jax.lax.cond(x.sum() > 0, wide, narrow, w, x)


def dropped(w, x):
    key = jax.random.fold_in(jax.random.key(3), 1)
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), jnp.tanh(x @ w), 0.0)


def keyed(w, x):
    key = jax.random.wrap_key_data((x[0, :2] * 1e3).astype(jnp.uint32))
    return jnp.tanh(x @ w) + jax.random.normal(jax.random.split(key)[0], x.shape)


@jax.custom_vjp
def shifted(x):
    return jnp.exp(x)


shifted.defvjp(lambda x: (jnp.exp(x), (jnp.exp(x), jnp.cos(x))), lambda held, g: (g * held[0] + 1e-3 * held[1],))


def custom(w, x):
    return shifted(x @ w * 0.1)


def by_device(w, x):
    part = PartitionSpec("data")
    local = jax.shard_map(lambda w, x: jnp.tanh(x @ w) @ w, mesh=MESH, in_specs=(PartitionSpec(), part), out_specs=part)
    return local(w, x)


def layers(*kinds, around=lambda layer: layer):
    """Layers one after the other."""

    def loss(weights, x, which):
        for i in range(LAYERS):
            x = around(lambda w, x, i=i: jax.lax.switch(which[i], kinds, w, x) + jnp.cos(x))(weights[i], x)
        return (x**2).sum()

    return jax.value_and_grad(loss)


def scanned(*kinds, around=lambda layer: layer):
    """Layers in a scan, the kind of each in an array."""

    def loss(weights, x, which):
        def body(x, layer):
            w, kind = layer
            return around(lambda x: jax.lax.switch(kind, kinds, w, x) + jnp.cos(x))(x), None

        return (jax.lax.scan(body, x, (weights, which))[0] ** 2).sum()

    return jax.value_and_grad(loss)


def flagged(*kinds):
    """Layers that all ask the same."""

    def loss(weights, x, which):
        for w in weights:
            x = jax.lax.switch(which[1], kinds, w, x)
        return (x**2).sum()

    return jax.value_and_grad(loss)


def with_figures(*kinds):
    """Branches that give what has no gradient too."""

    def loss(weights, x, which):
        count = jnp.int32(0)
        for i in range(LAYERS):
            made = [lambda w, x, kind=kind: (kind(w, x), (x > 0).sum(), jax.lax.stop_gradient(x)) for kind in kinds]
            x, more, _ = jax.lax.switch(which[i], made, weights[i], x)
            count += more
        return (x**2).sum(), count

    return jax.value_and_grad(loss, has_aux=True)


def accumulated(*kinds):
    """A gradient in the body of a scan, with conds in it."""
    one = layers(*kinds)

    def step(weights, x, which):
        def body(total, rows):
            value, gradient = one(weights, rows, which)
            return (total[0] + value, total[1] + gradient), None

        return jax.lax.scan(body, (0.0, jnp.zeros_like(weights)), x.reshape(2, -1, WIDTH))[0]

    return step


def gradient_within(*kinds):
    """A gradient in a branch."""
    one = layers(*kinds)

    def step(weights, x, which):
        def nothing(weights, x, which):
            return 0.0, jnp.zeros_like(weights)

        return jax.lax.cond(which[0] < 9, one, nothing, weights, x, which)

    return step


def gradient_and_more_within(*kinds):
    """Gradients in branches; one gives what its backward reads where the other one gives what its backward makes."""
    one = layers(*kinds)

    def step(weights, x, which):
        def early(weights, x, which):
            read = jnp.tanh(x)
            return *one(weights, read, which), read

        def late(weights, x, which):
            value, gradient = one(weights, x, which)
            return value, gradient, x * gradient.sum()

        return jax.lax.switch(which[1], (late, early), weights, x, which)

    return step


def mapped(*kinds):
    """All of a layer in the body of a `shard_map`."""

    def loss(weights, x, which):
        def local(w, x, kind):
            return jax.lax.switch(kind, kinds, w, x) + jnp.cos(x)

        specs = (PartitionSpec(), PartitionSpec("data"), PartitionSpec())
        for i in range(LAYERS):
            x = jax.shard_map(local, mesh=MESH, in_specs=specs, out_specs=specs[1])(weights[i], x, which[i])
        return (x**2).sum()

    return jax.value_and_grad(loss)


STEPS = {
    "layers": layers(wide, narrow, skipped),
    "scanned": scanned(wide, narrow, skipped),
    "around": layers(wide, narrow, skipped, around=jax.checkpoint),
    "around in a scan": scanned(wide, narrow, around=jax.checkpoint),
    "checkpointed": scanned(checkpointed, narrow),
    "looped": layers(looped, narrow),
    "looped in a scan": scanned(looped, narrow),
    "nested": layers(nested, narrow),
    "nested in a scan": scanned(nested, narrow, wide),
    "dropped": scanned(dropped, narrow),
    "keyed": layers(keyed, narrow),
    "custom": layers(custom, narrow),
    "flagged": flagged(wide, narrow),
    "figures": with_figures(wide, narrow),
    "accumulated": accumulated(wide, narrow),
    "gradient within": gradient_within(wide, narrow),
    "gradient and more within": gradient_and_more_within(wide, narrow),
    "by device": layers(by_device, narrow),
    "mapped": mapped(wide, narrow),
}
