"""Threads about gradients of loops."""

import equinox.internal as eqxi
import jax
import jax.numpy as jnp

from benchmarks.gallery.entry import Entry
from jaxckpt import Step


def _array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _sine_step(carry, x_t):  # noqa: ARG001
    x0, params = carry
    a = jnp.sin(params * x0)
    b = jnp.cos(params * a)
    return (x0 + a + b, params), None


def long_scan(*, rows: int = 30_000, width: int = 100, blocks: int = 10, steps: int = 1000) -> Step:
    """jax-27748 without its marks."""

    def loss(params: jax.Array, x: jax.Array) -> jax.Array:
        (x, _), _ = jax.lax.scan(_sine_step, (x, params), jnp.arange(blocks * steps))
        return jnp.sum(x)

    return Step(jax.value_and_grad(loss), (_array(), _array(rows, width)))


def long_scan_with_marks(*, rows: int = 30_000, width: int = 100, blocks: int = 10, steps: int = 1000) -> Step:
    """jax-27748 as posted: each step and each block of steps under `jax.remat`."""

    def loss(params: jax.Array, x: jax.Array) -> jax.Array:
        carry = (x, params)
        for number in range(blocks):
            indices = jnp.arange(number * steps, (number + 1) * steps)
            carry = jax.remat(lambda c, indices=indices: jax.lax.scan(jax.remat(_sine_step), c, indices)[0])(carry)
        return jnp.sum(carry[0])

    return Step(jax.value_and_grad(loss), (_array(), _array(rows, width)))


def _sum_of_products(is_marked: bool, side: int, count: int) -> Step:
    def f(x: jax.Array, ys: jax.Array) -> jax.Array:
        z = jnp.ones((side, side))

        def scanned(carry: jax.Array, y: jax.Array) -> tuple[jax.Array, None]:
            return carry + x * (y + z), None

        summed, _ = jax.lax.scan(jax.remat(scanned) if is_marked else scanned, jnp.zeros_like(z), ys)
        return summed.mean()

    return Step(jax.grad(f), (_array(), _array(count)))


def sum_of_products(*, side: int = 3000, count: int = 10) -> Step:
    """jax-3186 as posted, with the larger of its two lengths."""
    return _sum_of_products(False, side, count)


def sum_of_products_with_marks(*, side: int = 3000, count: int = 10) -> Step:
    """jax-3186 with its body under `jax.remat`."""
    return _sum_of_products(True, side, count)


def _offsets(is_marked: bool, ensemble: int, side: int, layers: int) -> Step:
    def stack_body(carry: jax.Array, offset: jax.Array) -> tuple[jax.Array, None]:
        return carry - jnp.broadcast_to(offset, carry.shape), None

    body = jax.remat(stack_body) if is_marked else stack_body

    def loss(batch: jax.Array, offsets: jax.Array) -> jax.Array:
        def ensemble_body(unused: None, x: jax.Array) -> tuple[None, jax.Array]:
            return unused, jax.lax.scan(body, x, offsets)[0]

        return jnp.sum(jax.lax.scan(ensemble_body, None, batch)[1] ** 2)

    return Step(jax.grad(loss, argnums=1), (_array(ensemble, side, side, side), _array(layers, side)))


def offsets(*, ensemble: int = 8, side: int = 128, layers: int = 48) -> Step:
    """jax-3851 as posted, and the gradient of a sum of squares."""
    return _offsets(False, ensemble, side, layers)


def offsets_with_marks(*, ensemble: int = 8, side: int = 128, layers: int = 48) -> Step:
    """jax-3851 with the inner body under `jax.remat`."""
    return _offsets(True, ensemble, side, layers)


def _stacked(size: int, loops: int, options: dict[str, str] | None) -> Step:
    def loss(x: jax.Array) -> jax.Array:
        for _ in range(loops):
            x, large_temp = jax.lax.scan(lambda acc, y: (acc + y, acc + y), x, jnp.ones(size))
            x += jnp.sum(large_temp, axis=-1)
        return jnp.sum(x**2)

    return Step(jax.jit(jax.grad(loss), compiler_options=options), (_array(size),))


def stacked(*, size: int = 40_000, loops: int = 16) -> Step:
    """xla-27322 as posted, and the gradient of a sum of squares."""
    return _stacked(size, loops, None)


_TSIT5 = (
    (0.161,),
    (-0.008480655492356989, 0.335480655492357),
    (2.8971530571054935, -6.359448489975075, 4.3622954328695815),
    (5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525),
    (5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383),
    (0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081, 2.324710524099774),
)
"""Coefficients of the stages and of the result of Tsitouras 2011, as diffrax's Tsit5."""


def _ode(is_checkpointed: bool, side: int, steps: int) -> Step:
    def field(y: jax.Array, params: jax.Array) -> jax.Array:
        laplacian = sum(jnp.roll(y, shift, axis) for axis in (0, 1) for shift in (-1, 1)) - 4 * y
        return params[0] * laplacian + jnp.tanh(params[1] * y) - y**3

    def loss(params: jax.Array, y: jax.Array) -> jax.Array:
        def body(y: jax.Array, _: None) -> tuple[jax.Array, None]:
            slopes = [field(y, params)]
            for row in _TSIT5[:-1]:
                stage = y + 1e-3 * sum(a * k for a, k in zip(row, slopes, strict=True))
                slopes.append(field(stage, params))
            return y + 1e-3 * sum(b * k for b, k in zip(_TSIT5[-1], slopes, strict=True)), None

        if is_checkpointed:
            y, _ = eqxi.scan(body, y, None, length=steps, kind="checkpointed")
        else:
            y, _ = jax.lax.scan(body, y, length=steps)
        return jnp.mean(y**2)

    return Step(jax.grad(loss), (_array(2), _array(side, side)))


def ode(*, side: int = 256, steps: int = 1000) -> Step:
    """diffrax-685: Tsit5 steps in a scan."""
    return _ode(False, side, steps)


def checkpointed_ode(*, side: int = 256, steps: int = 1000) -> Step:
    """diffrax-685: the same in the checkpointed loop that diffrax takes by default."""
    return _ode(True, side, steps)


ENTRIES = (
    Entry(
        name="jax-27748",
        address="https://github.com/jax-ml/jax/issues/27748",
        problem="the gradient of a scan of 10,000 steps runs out of memory",
        written=long_scan,
        advised=long_scan_with_marks,
        advice="two levels of `jax.remat`, 10 blocks of 1,000 steps, as posted",
        added="The thread's program has the marks; the version as written is the same loop without them.",
        small={"rows": 6, "width": 4, "blocks": 2, "steps": 4},
    ),
    Entry(
        name="jax-3186",
        address="https://github.com/jax-ml/jax/issues/3186",
        problem="the gradient of a scan holds a matrix of every iteration",
        written=sum_of_products,
        advised=sum_of_products_with_marks,
        advice="`jax.remat` on the body",
        small={"side": 5, "count": 4},
    ),
    Entry(
        name="jax-3851",
        address="https://github.com/jax-ml/jax/issues/3851",
        problem="a broadcast in nested scans is stored for every iteration",
        written=offsets,
        advised=offsets_with_marks,
        advice="`jax.remat` on the inner body",
        added="The thread evaluates the loops on a TPU; the entry takes the gradient of a sum of squares.",
        small={"ensemble": 2, "side": 4, "layers": 4},
    ),
    Entry(
        name="xla-27322",
        address="https://github.com/openxla/xla/issues/27322",
        problem="16 scans whose stacked results take the memory of 16 at once",
        written=stacked,
        advice="an option of XLA, not compiled here",
        added="The thread evaluates the loops; the entry takes the gradient of a sum of squares.",
        small={"size": 6, "loops": 2},
    ),
    Entry(
        name="diffrax-685",
        address="https://github.com/patrick-kidger/diffrax/issues/685",
        problem="the gradient of an ODE solver with 1,000 steps runs out of memory",
        written=ode,
        advised=checkpointed_ode,
        advice="a loop with recursive checkpoints, as the thread has",
        is_advice_timed=False,
        added="The thread is a description: 256 x 256 equations, Tsit5, at most 1,000 steps. The entry adds the"
        " equations (reaction and diffusion on a grid) and takes steps of one length; as written it is a plain scan.",
        small={"side": 4, "steps": 6},
    ),
)
