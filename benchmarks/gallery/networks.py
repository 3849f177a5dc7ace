"""Threads about layers of networks."""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.gallery.entry import Entry
from jaxckpt import Step


def _array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def _random_layers(x: jax.Array, layers: int) -> jax.Array:
    key = jax.random.PRNGKey(0)
    for _ in range(layers):
        key, subkey = jax.random.split(key)
        random_matrix = jax.random.normal(subkey, shape=(x.shape[0], x.shape[0]))
        x = jax.nn.relu(jnp.dot(random_matrix, x) + 1)
    return x.sum()


def random_layers(*, side: int = 8192, layers: int = 10) -> Step:
    """jax-19822 as posted."""
    return Step(jax.value_and_grad(lambda x: _random_layers(x, layers)), (_array(side, side),))


def random_layers_with_mark(*, side: int = 8192, layers: int = 10) -> Step:
    """jax-19822 with all of the function under `jax.checkpoint`, as posted."""
    return Step(jax.value_and_grad(jax.checkpoint(lambda x: _random_layers(x, layers))), (_array(side, side),))


def _residual_layers(is_marked: bool, batch: int, length: int, width: int, layers: int) -> Step:
    def block(x: jax.Array, weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return x + jax.nn.relu(x @ weights[0]) @ weights[1], None

    body = jax.checkpoint(block, policy=jax.checkpoint_policies.nothing_saveable) if is_marked else block

    def loss(weights: tuple[jax.Array, jax.Array], x: jax.Array) -> jax.Array:
        return jax.lax.scan(body, x, weights)[0].mean()

    weight = _array(layers, width, width)
    return Step(jax.grad(loss), ((weight, weight), _array(batch, length, width)))


def residual_layers(*, batch: int = 16, length: int = 8192, width: int = 2048, layers: int = 32) -> Step:
    """jax-23869 without its marks."""
    return _residual_layers(False, batch, length, width, layers)


def residual_layers_with_marks(*, batch: int = 16, length: int = 8192, width: int = 2048, layers: int = 32) -> Step:
    """jax-23869 with each layer under `jax.remat`, nothing saved, as posted."""
    return _residual_layers(True, batch, length, width, layers)


def kernel_matrices(*, points: int = 1000, features: int = 30) -> Step:
    """jax-21377 as posted, and the gradient of the sum of its results."""

    def kernel(x: jax.Array, y: jax.Array, which: jax.Array) -> jax.Array:
        return jnp.prod(1 + which * jnp.exp(-((x - y) ** 2)))

    matrix = jax.vmap(jax.vmap(kernel, in_axes=(0, None, None)), in_axes=(None, 0, None))

    def loss(xs: jax.Array, active: jax.Array, ys: jax.Array) -> jax.Array:
        def activation(which: jax.Array, y: jax.Array) -> jax.Array:
            return jnp.dot(y, matrix(xs, xs, which) @ y)

        return jax.vmap(activation)(active, ys).sum()

    active = _array(features, features, dtype=jnp.int32)
    return Step(jax.grad(loss), (_array(points, features), active, _array(features, points)))


def _low_rank(is_by_trainable: bool, side: int, rank: int) -> Step:
    def loss(model: dict[str, jax.Array], x: jax.Array) -> jax.Array:
        frozen = jax.lax.stop_gradient(model["weight"])
        y = frozen @ x + model["a"] @ (model["b"] @ x) + model["bias"]
        return jnp.square(jnp.mean(y))

    def gradient(model: dict[str, jax.Array], x: jax.Array) -> Any:
        trainable = {name: leaf for name, leaf in model.items() if name != "weight"}
        return jax.value_and_grad(lambda leaves: loss({"weight": model["weight"], **leaves}, x))(trainable)

    sizes = {"weight": (side, side), "a": (side, rank), "b": (rank, side), "bias": (side,)}
    arguments = {name: _array(*size) for name, size in sizes.items()}, _array(side)
    return Step(gradient if is_by_trainable else jax.value_and_grad(loss), arguments)


def low_rank(*, side: int = 4096, rank: int = 64) -> Step:
    """quax-28: the gradient by all leaves of a layer with a low-rank adapter, its weight under `stop_gradient`."""
    return _low_rank(False, side, rank)


def low_rank_by_trainable(*, side: int = 4096, rank: int = 64) -> Step:
    """quax-28: the gradient by the trainable leaves only."""
    return _low_rank(True, side, rank)


ENTRIES = (
    Entry(
        name="jax-19822",
        address="https://github.com/jax-ml/jax/issues/19822",
        problem="`jax.checkpoint` around all of a network lowers nothing",
        written=random_layers,
        advised=random_layers_with_mark,
        advice="`jax.checkpoint` around all of it, as posted; no other was seen",
        added="The text of the thread has no size; the entry takes a matrix of 8,192 x 8,192.",
        small={"side": 6, "layers": 3},
    ),
    Entry(
        name="jax-23869",
        address="https://github.com/jax-ml/jax/issues/23869",
        problem="the inputs of 32 scanned layers fill the memory, and offloading them has no effect",
        written=residual_layers,
        advised=residual_layers_with_marks,
        advice="`jax.remat` on the layer, nothing saved, as posted",
        added="The thread has a mesh of 4 x 2; the entry is one shard of its batch with the full width.",
        small={"batch": 2, "length": 3, "width": 4, "layers": 4},
    ),
    Entry(
        name="jax-21377",
        address="https://github.com/jax-ml/jax/issues/21377",
        problem="`vmap` over kernel matrices makes one large array of all pairs, features and matrices",
        written=kernel_matrices,
        added="The thread evaluates in float64; the entry takes the gradient by the points, in float32.",
        small={"points": 5, "features": 3},
    ),
    Entry(
        name="quax-28",
        address="https://github.com/nstarman/quax/issues/28",
        problem="the gradient of a low-rank adapter has an array of zeros for each frozen weight",
        written=low_rank,
        advised=low_rank_by_trainable,
        advice="the gradient by the trainable leaves only",
        added="The thread's layer is one of Equinox with an adapter of quax; the entry writes both as products of"
        " arrays. The advice is that of the change that closed the thread.",
        small={"side": 8, "rank": 2},
    ),
)
