"""Microbenchmarks of a device: chains of one kind of kernel, each link a kernel that reads the result of the last.

1. A chain is one jitted program with a loop, so that the host starts the chain once. The start is measured by itself
   and subtracted; the rest divided by the number of links is the time of a kernel.
2. `optimization_barrier` separates links, or XLA would fuse several into one kernel.
3. Every link changes the operand of the next, or XLA would move the link out of the loop.
4. Values stay finite and are not zero, since zeros run faster.

Read after `timing`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_ITERATION_S = 1e-4
"""Least seconds of one iteration of a loop, whose counter is a kernel of some 2 microseconds."""

ChainLink = Callable[[Any], Any]
"""One link of a chain: a function from the loop's carry to the next carry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One kind of kernel at one size.

    Attributes:
      what: Kind of kernel: a key of the results.
      detail: Type and size.
      unit: Of `work`: "FLOP/s" for FLOPs, "bytes/s" for bytes, "s" where links are counted.
      work: Of one link.
      guess_s: About what one link takes, to choose how many there are.
      link: One repetition.
      start: Makes the first carry.
    """

    what: str
    detail: str
    unit: str
    work: float
    guess_s: float
    link: ChainLink
    start: Callable[[], Any]

    @property
    def inner(self) -> int:
        """Links in one iteration of the loop: as many as make the loop's own counter small."""
        return max(2, min(64, ceil(_ITERATION_S / self.guess_s)))

    def links(self, chain_s: float) -> int:
        """How many links make a chain of about so many seconds: full iterations, at most 4096 of them."""
        iterations = round(chain_s / self.guess_s / self.inner)
        return self.inner * min(4096, max(2, iterations))

    def chain(self, links: int) -> Callable[[Any], Any]:
        """The jitted program of so many links, a multiple of `inner`."""

        def iteration(_: Any, carried: Any) -> Any:
            for _ in range(self.inner):
                carried = jax.lax.optimization_barrier(self.link(carried))
            return carried

        return jax.jit(lambda carried: jax.lax.fori_loop(0, links // self.inner, iteration, carried))


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """About how fast a device is, in bfloat16 products and in memory; it chooses lengths of chains.

    Measured figures do not depend on it.
    """

    flops_per_s: float = 1e14
    bytes_per_s: float = 1e12


def random_array(shape: tuple[int, ...], dtype: Any, scale: float = 1.0) -> jax.Array:
    """Array of at most 2**20 random numbers, repeated: fast to make, and kernels take the same time."""
    some = np.random.default_rng(0).standard_normal(min(int(np.prod(shape)), 2**20), np.float32) * scale
    return jnp.asarray(np.resize(some, shape), dtype)


def rotation(rows: int, columns: int) -> np.ndarray:
    """A dense matrix that changes no length: its rows are of length 1 and at right angles, or its columns are.

    The circulant matrix of random phases: exact at any size, and made in no time.

    Example:
      >>> made = rotation(3, 8)
      >>> bool(np.allclose(made @ made.T, np.eye(3)))
      True
    """
    if rows > columns:
        return rotation(columns, rows).T
    phases = np.random.default_rng(2).uniform(0, 2 * np.pi, columns // 2 + 1)
    phases[0] = phases[-1] = 0.0  # what these stand for must be real
    first = np.fft.irfft(np.exp(1j * phases), columns)
    return np.lib.stride_tricks.sliding_window_view(np.concatenate([first, first]), columns)[:rows]


def launch() -> Probe:
    """The smallest kernel there is, one after the other: what every kernel costs before it works."""
    return Probe(
        what="launch",
        detail="1024 float32",
        unit="s",
        work=1.0,
        guess_s=3e-6,
        link=lambda x: x * 0.999 + 0.5,
        start=lambda: random_array((1024,), jnp.float32),
    )


def matmul(speeds: Speeds, dtype: str, rows: int, depth: int, width: int) -> Probe:
    """A product and one back, (rows, depth) by (depth, width) by (width, depth); square where all are the same.

    The second undoes the first, so that numbers stay what they are however long the chain is.
    """

    def link(carried: Any) -> Any:
        x, forth, back = carried
        return jax.lax.optimization_barrier(x @ forth) @ back, forth, back

    def start() -> Any:
        forth = rotation(depth, width).astype(np.float32)
        back = np.ascontiguousarray(forth.T)
        return random_array((rows, depth), dtype), jnp.asarray(forth, dtype), jnp.asarray(back, dtype)

    flops = 4.0 * rows * depth * width
    return Probe(
        what="matmul",
        detail=f"{dtype} {rows} x {depth} x {width}",
        unit="FLOP/s",
        work=flops,
        guess_s=flops / speeds.flops_per_s,
        link=link,
        start=start,
    )


def elementwise(speeds: Speeds, shape: tuple[int, int], dtype: str) -> Probe:
    """Two arrays into one: what most kernels of a training step do."""

    def link(carried: Any) -> Any:
        x, y = carried
        return x * 0.5 + y, y

    size_bytes = 3.0 * shape[0] * shape[1] * jnp.dtype(dtype).itemsize
    return Probe(
        what="elementwise",
        detail=f"{dtype} {shape[0]} x {shape[1]}",
        unit="bytes/s",
        work=size_bytes,
        guess_s=size_bytes / speeds.bytes_per_s,
        link=link,
        start=lambda: (random_array(shape, dtype), random_array(shape, dtype, 0.1)),
    )


def vector(speeds: Speeds, shape: tuple[int, int]) -> Probe:
    """Many multiply-adds on each number in one kernel: the rate of the vector units."""
    times = 128

    def link(x: Any) -> Any:
        for _ in range(times):
            x = x * 0.9 + 0.1
        return x

    flops = 2.0 * times * shape[0] * shape[1]
    return Probe(
        what="vector",
        detail=f"float32 {shape[0]} x {shape[1]}, {times} multiply-adds each",
        unit="FLOP/s",
        work=flops,
        guess_s=flops / (speeds.flops_per_s / 16),
        link=link,
        start=lambda: random_array(shape, jnp.float32),
    )


def probes(speeds: Speeds, *, small: bool) -> Iterator[Probe]:
    """All microbenchmarks, the most valuable first; small ones are a smoke test."""
    shape = (256, 256) if small else (8192, 8192)  # 256 MiB of float32: beyond every cache
    sides = (64, 128) if small else (8192, 4096)
    yield launch()
    yield matmul(speeds, "bfloat16", *[sides[0]] * 3)
    yield elementwise(speeds, shape, "float32")
    yield matmul(speeds, "bfloat16", *[sides[1]] * 3)
    for sizes in () if small else ((8192, 768, 3072), (2048, 2048, 2048), (1024, 1024, 1024)):
        yield matmul(speeds, "bfloat16", *sizes)
    yield matmul(speeds, "float32", *[sides[1]] * 3)
    yield elementwise(speeds, shape, "bfloat16")
    yield vector(speeds, (shape[0] // 4, shape[1]))
    yield matmul(speeds, "float16", *[sides[1]] * 3)
