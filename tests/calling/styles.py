"""Steps as people write and call them: each is planned, applied and trained for 20 steps beside its own jit."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding, PartitionSpec

WIDTH, BATCH, DEPTH = 8, 16, 3
OPTIMIZER = optax.adam(1e-2)
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Style:
    """A way to write a step.

    Attributes:
      row: Its row in docs/call-styles.md.
      step: The step, as it is given to jaxckpt.
      make: Makes its arguments, positional and by keyword.
      again: From the arguments and the results, the arguments of the next step.
      own_jit: The step under its own jit.
      jit: The jit that a user may put around the planned step; None for none, which keeps the test short.
      donate_argnums: As `jaxckpt.plan`.
    """

    row: str
    step: Callable[..., Any]
    make: Callable[[], Arguments]
    again: Callable[[tuple[Any, ...], dict[str, Any], Any], Arguments]
    own_jit: Callable[..., Any]
    jit: Callable[..., Any] | None = jax.jit
    donate_argnums: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.row


X = np.linspace(-1, 1, BATCH * WIDTH, dtype=np.float32).reshape(BATCH, WIDTH)
"""The batch."""


def weights() -> list[jax.Array]:
    return [0.3 * jax.random.normal(jax.random.key(i), (WIDTH, WIDTH)) for i in range(DEPTH)]


def loss_of(params, x):
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - 1.0) ** 2)


def update(params, x, rate=0.1):
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    return jax.tree.map(lambda p, g: p - rate * g, params, grads), loss


### Plain functions


def keyword_only(params, *, x, rate=0.1):
    return update(params, x, rate)


def twice_if(params, x, twice):
    params, loss = update(params, x)
    return update(params, x) if twice else (params, loss)


def with_optional(params, x):
    params, loss = update(params, x)
    return params, None, {"loss": loss}


@functools.wraps(jax.jit(update))
def wrapped(*args, **kwargs):
    params, loss = update(*args, **kwargs)
    return params, 2.0 * loss


class Trainer:
    """Settings that no pytree knows."""

    def __init__(self):
        self.rate = 0.2

    def step(self, params, x):
        return update(params, x, self.rate)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def jitted(self, params, x):
        return update(params, x, self.rate)

    def __call__(self, params, x):
        return update(params, x, self.rate)


TRAINER = Trainer()


def first_again(args, kwargs, out):
    return (out[0], *args[1:]), kwargs


def plain(row: str, step: Callable[..., Any], *, own=None, args=(X,), kwargs=None, **more: Any) -> Style:
    return Style(
        row=row,
        step=step,
        make=lambda: ((weights(), *args), dict(kwargs or {})),
        again=first_again,
        own_jit=own or jax.jit(step),
        **{"jit": None, **more},
    )


def train_state() -> Arguments:
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            for _ in range(DEPTH):
                x = jnp.tanh(linen.Dense(WIDTH)(x))
            return x

    net = Net()
    params = net.init(jax.random.key(0), X)
    return (TrainState.create(apply_fn=net.apply, params=params, tx=OPTIMIZER), {"x": X}), {}


def state_step(state, batch):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((state.apply_fn(p, batch["x"]) - 1.0) ** 2))(state.params)
    return state.apply_gradients(grads=grads), {"loss": loss}


MESH = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
SPLIT, WHOLE = NamedSharding(MESH, PartitionSpec("data")), NamedSharding(MESH, PartitionSpec())
SHARDED = jax.jit(update, in_shardings=(WHOLE, SPLIT), out_shardings=(WHOLE, WHOLE), donate_argnums=0)


def named_step(params, x):
    """A dict with a function and a string among its leaves."""
    activation = params["activation"] if params["name"] == "net" else None

    def loss(params):
        hidden = x
        for w in params:
            hidden = activation(hidden @ w)
        return jnp.mean((hidden - 1.0) ** 2)

    value, grads = jax.value_and_grad(loss)(params["weights"])
    new = jax.tree.map(lambda p, g: p - 0.1 * g, params["weights"], grads)
    return params | {"weights": new}, value


PLAIN = [
    plain("a function", update, donate_argnums=(0,), jit=jax.jit),
    plain("a function under `jax.jit`", jax.jit(update, donate_argnums=0)),
    plain("keyword arguments", update, args=(), kwargs={"x": X}),
    plain("keyword-only arguments, defaults", keyword_only, args=(), kwargs={"x": X}, jit=jax.jit),
    plain("`functools.partial` over arrays", functools.partial(update, x=X, rate=jnp.float32(0.2)), args=()),
    plain(
        "static arguments by name",
        jax.jit(twice_if, static_argnames="twice"),
        own=jax.jit(twice_if, static_argnames="twice"),
        kwargs={"twice": True},
        jit=functools.partial(jax.jit, static_argnames="twice"),
    ),
    plain("a bound method", TRAINER.step),
    plain("a method jitted with `static_argnums=0`", TRAINER.jitted, own=lambda p, x: TRAINER.jitted(p, x)),
    plain("an object that can be called", TRAINER),
    plain("a wrapped function (`functools.wraps`)", wrapped),
    plain("optional results (None)", with_optional),
    Style(
        row="Linen's `TrainState`, numpy batches",
        step=jax.jit(state_step, donate_argnums=0),
        make=train_state,
        again=first_again,
        own_jit=jax.jit(state_step),
    ),
    plain("`jax.jit` with shardings and donation", SHARDED),
    Style(
        row="any pytree with functions or strings in it",
        step=named_step,
        make=lambda: (({"weights": weights(), "activation": jnp.tanh, "name": "net"}, X), {}),
        again=first_again,
        own_jit=eqx.filter_jit(named_step),
        jit=eqx.filter_jit,
    ),
]

### Flax NNX


class Block(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)

    def __call__(self, x):
        return x + self.dropout(jnp.tanh(self.norm(self.linear(x))))


class Net(nnx.Module):
    def __init__(self, rngs, tied=False):
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.again = self.blocks[0] if tied else nnx.Linear(WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.again(x)


def objects(tied: bool = False) -> tuple[Net, nnx.Optimizer]:
    net = Net(nnx.Rngs(0), tied)
    return net, nnx.Optimizer(net, optax.sgd(0.05, momentum=0.9), wrt=nnx.Param)


def nnx_loss(net, x):
    return jnp.mean((net(x) - 1.0) ** 2)


def nnx_step(net, optimizer, x):
    loss, grads = nnx.value_and_grad(nnx_loss)(net, x)
    optimizer.update(net, grads)
    return loss


def nnx_scaled(net, optimizer, x, *, scale: bool):
    return nnx_step(net, optimizer, 0.5 * x if scale else x)


def measured_step(net, optimizer, metrics, rngs, x):
    x = x + 0.01 * jax.random.normal(rngs.noise(), x.shape)
    loss = nnx_step(net, optimizer, x)
    metrics.update(values=loss)
    return {"loss": loss}


def twice_step(pair, net, optimizer, x):
    """The same model twice among the arguments, and a block that it holds twice."""
    return nnx_step(net, optimizer, x) + jnp.sum(pair["net"].again.linear.bias)


def returning_step(net, optimizer, x):
    loss = nnx_step(net, optimizer, x)
    return net, optimizer, loss


def split_step(graphdef, state, x):
    net, optimizer = nnx.merge(graphdef, state)
    loss = nnx_step(net, optimizer, x)
    return nnx.state((net, optimizer)), loss


class NnxTrainer(nnx.Module):
    def __init__(self):
        self.net, self.optimizer = objects()

    def train(self, x):
        return nnx_step(self.net, self.optimizer, x)


NNX_TRAINERS = [NnxTrainer(), NnxTrainer()]
METHOD = nnx.jit(NnxTrainer.train)


def same_again(args, kwargs, out):
    return args, kwargs


def with_rngs() -> Arguments:
    return (*objects(), nnx.metrics.Average(), nnx.Rngs(1), X), {}


def with_twice() -> Arguments:
    net, optimizer = objects(tied=True)
    return ({"net": net}, net, optimizer, X), {}


def in_place(row: str, step: Callable[..., Any], make=lambda: ((*objects(), X), {}), **more: Any) -> Style:
    options: dict[str, Any] = {"own_jit": step, "jit": nnx.jit, **more}
    return Style(row=row, step=step, make=make, again=same_again, **options)


NNX = [
    in_place("NNX, a function", nnx_step, own_jit=nnx.jit(nnx_step), donate_argnums=(0, 1)),
    in_place("NNX under `nnx.jit`, with donation", nnx.jit(nnx_step, donate_argnums=(0, 1)), jit=None),
    in_place(
        "NNX under `nnx.jit` with static arguments",
        nnx.jit(nnx_scaled, static_argnames="scale"),
        make=lambda: ((*objects(), X), {"scale": True}),
        jit=None,
    ),
    in_place("NNX under `nnx.jit(graph=False)`", nnx.jit(nnx_step, graph=False), jit=None),
    in_place("NNX metrics and rngs", nnx.jit(measured_step), make=with_rngs, jit=None),
    in_place("NNX objects that appear twice", twice_step, make=with_twice, own_jit=nnx.jit(twice_step), jit=None),
    Style(
        row="NNX objects as results, under `jax.jit`",
        step=returning_step,
        make=lambda: ((*objects(), X), {}),
        again=lambda args, kwargs, out: ((*out[:2], X), kwargs),
        own_jit=nnx.jit(returning_step),
    ),
    Style(
        row="NNX split outside, merged inside",
        step=jax.jit(split_step, static_argnums=0, donate_argnums=1),
        make=lambda: ((*nnx.split(objects()), X), {}),
        again=lambda args, kwargs, out: ((args[0], out[0], X), kwargs),
        own_jit=jax.jit(split_step, static_argnums=0),
        jit=None,
    ),
    Style(
        row="a method of an NNX module",
        step=NNX_TRAINERS[0].train,
        make=lambda: ((X,), {}),
        again=same_again,
        own_jit=lambda x: METHOD(NNX_TRAINERS[1], x),
        jit=None,
    ),
]

### Equinox


def eqx_net() -> eqx.nn.MLP:
    return eqx.nn.MLP(WIDTH, WIDTH, WIDTH, DEPTH, activation=jnp.tanh, key=jax.random.key(0))


def eqx_step(net, state, x):
    loss, grads = eqx.filter_value_and_grad(lambda n: jnp.mean((jax.vmap(n)(x) - 1.0) ** 2))(net)
    updates, state = OPTIMIZER.update(grads, state, eqx.filter(net, eqx.is_array))
    return eqx.apply_updates(net, updates), state, loss


class EqxTrainer(eqx.Module):
    net: eqx.nn.MLP
    rate: float

    def step(self, x):
        loss, grads = eqx.filter_value_and_grad(lambda n: jnp.mean((jax.vmap(n)(x) - 1.0) ** 2))(self.net)
        new = eqx.apply_updates(self.net, jax.tree.map(lambda g: -self.rate * g, grads))
        return new, loss


def eqx_arguments() -> Arguments:
    net = eqx_net()
    return (net, OPTIMIZER.init(eqx.filter(net, eqx.is_array)), X), {}


def eqx_again(args, kwargs, out):
    return (*out[:2], X), kwargs


EQX_TRAINER = EqxTrainer(eqx_net(), 0.1)


def equinox(row: str, step: Callable[..., Any], **more: Any) -> Style:
    options: dict[str, Any] = {
        "make": eqx_arguments,
        "again": eqx_again,
        "own_jit": step,
        "jit": eqx.filter_jit,
        **more,
    }
    return Style(row=row, step=step, **options)


EQUINOX = [
    equinox("Equinox, a function", eqx_step, own_jit=eqx.filter_jit(eqx_step)),
    equinox("Equinox under `eqx.filter_jit`, with donation", eqx.filter_jit(eqx_step, donate="all"), jit=None),
    equinox(
        "a method of an Equinox module",
        EQX_TRAINER.step,
        make=lambda: ((X,), {}),
        again=same_again,
        own_jit=eqx.filter_jit(EQX_TRAINER.step),
    ),
]

STYLES = [*PLAIN, *NNX, *EQUINOX]
