"""Named random streams for model parallelism: the RNG tracker of Megatron and DeepSpeed, without global state.

A tracker there holds generator states by name, and `fork` swaps one in. Here the streams are a value: a count for each
name, which a step takes and returns as it does with parameters. A key is made of seed, rank and count alone, so a draw
that runs a second time in the backward pass is equal bit for bit.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jaxckpt._errors import ArgumentError, did_you_mean

_MODEL_PARALLEL_OFFSET = 2718
"""Megatron's distance between the seed of the default stream and that of the model-parallel one."""


@dataclass(frozen=True, slots=True)
class _Stream:
    name: str
    seed: int
    differs_over: tuple[str, ...]


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, slots=True)
class RandomStreams:
    """Random streams by name, each with a seed and a count of the keys that were taken from it.

    An immutable pytree with one uint32 scalar for each stream, in the order of the names' addition: it may be an
    argument and a result of a jitted step, the carry of a scan, and be saved with the parameters. Names, seeds and axes
    are static. Two uses of the same streams give the same key: pass the returned streams on.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> streams = RandomStreams().add("dropout", 0).add("noise", 1)
      >>> @jax.jit
      ... def step(streams, x):
      ...     key, streams = streams.fork("dropout")
      ...     return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0), streams
      >>> first, after = step(streams, jnp.ones(64))
      >>> second, _ = step(after, jnp.ones(64))
      >>> repeated, _ = step(after.reset(), jnp.ones(64))
      >>> bool((first == second).all()), bool((first == repeated).all())
      (False, True)
    """

    _streams: tuple[_Stream, ...] = ()
    _counts: tuple[jax.typing.ArrayLike, ...] = ()

    @classmethod
    def model_parallel(cls, seed: int, axis: str | tuple[str, ...] = "model") -> "RandomStreams":
        """The two streams of Megatron's `model_parallel_cuda_manual_seed`.

        "default" has the seed and is equal on all devices; "model-parallel-rng" has the seed + 2718 and differs over
        `axis`. Megatron adds the rank to the seed; here the rank is folded into the key, so that streams whose seeds
        are near each other never meet.

        Example:
          >>> RandomStreams.model_parallel(1234).seeds
          {'default': 1234, 'model-parallel-rng': 3952}
        """
        return cls().add("default", seed).add("model-parallel-rng", seed + _MODEL_PARALLEL_OFFSET, differs_over=axis)

    @property
    def seeds(self) -> dict[str, int]:
        """The seed of each stream, by name."""
        return {stream.name: stream.seed for stream in self._streams}

    def add(self, name: str, seed: int, *, differs_over: str | tuple[str, ...] = ()) -> "RandomStreams":
        """The streams and one more.

        Args:
          name: A name that no other stream has.
          seed: An integer that no other stream has, modulo 2**32: two streams of one seed would draw the same bits.
          differs_over: Mesh axes over which the stream differs from device to device in the body of a
            `jax.shard_map`; over all others it is equal. Outside of a `shard_map` a draw is of the array of all
            devices, each of which holds its own part, and no axis is needed.

        Raises:
          ArgumentError: A stream has the name or the seed already.
        """
        for stream in self._streams:
            if name == stream.name or (seed - stream.seed) % 2**32 == 0:  # jax.random.key takes 32 bits of a seed
                same = "name" if name == stream.name else "seed"
                raise ArgumentError(
                    f"a random stream of this {same} exists already.",
                    got=f"name {name!r}, seed {seed}",
                    needed=f"another {same} than those of {self.seeds}",
                    advice="reset() starts streams anew; a new RandomStreams() has none",
                )
        axes = (differs_over,) if isinstance(differs_over, str) else tuple(differs_over)
        return RandomStreams((*self._streams, _Stream(name, seed, axes)), (*self._counts, np.zeros((), np.uint32)))

    def fork(self, name: str) -> tuple[jax.Array, "RandomStreams"]:
        """A key of a stream that no other fork gives, and the streams after it.

        Raises:
          ArgumentError: There is no such stream; or the stream differs over an axis, and the call is not in a
            `jax.shard_map` over this axis.
        """
        index = self._index(name)
        counts = (*self._counts[:index], self._counts[index] + 1, *self._counts[index + 1 :])
        return self._key(index), replace(self, _counts=counts)

    def rngs(self, *names: str) -> tuple[dict[str, jax.Array], "RandomStreams"]:
        """A fork of each of some streams by name, all without arguments, and the streams after it: Flax's `rngs`.

        Example:
          >>> rngs, streams = RandomStreams().add("params", 0).add("dropout", 1).rngs("dropout")
          >>> list(rngs)  # model.apply(variables, x, rngs=rngs)
          ['dropout']
        """
        keys, streams = {}, self
        for name in names or self.seeds:
            keys[name], streams = streams.fork(name)
        return keys, streams

    def reset(self, *names: str) -> "RandomStreams":
        """The streams with some of them, all without arguments, as they were when they were added.

        Raises:
          ArgumentError: There is no such stream.
        """
        chosen = set(map(self._index, names or self.seeds))
        counts = (np.zeros((), np.uint32) if i in chosen else count for i, count in enumerate(self._counts))
        return replace(self, _counts=tuple(counts))

    def _index(self, name: str) -> int:
        names = list(self.seeds)
        if name in names:
            return names.index(name)
        raise ArgumentError(
            f"there is no random stream {name!r}.",
            got=f"{name!r}{did_you_mean(name, names)}",
            needed=f"one of {', '.join(names)}" if names else "a stream that was added",
            advice=f"streams.add({name!r}, seed)",
        )

    def _key(self, index: int) -> jax.Array:
        stream = self._streams[index]
        key = jax.random.key(stream.seed)
        for axis in stream.differs_over:
            try:
                rank = jax.lax.axis_index(axis)
            except NameError as error:
                raise ArgumentError(
                    f"the random stream {stream.name!r} differs over {axis!r}, and there is no such axis here.",
                    got=f"a call that is not in a jax.shard_map over {axis!r}",
                    needed="the body of a jax.shard_map whose mesh has the axis",
                    advice="a stream without differs_over: outside of a shard_map a draw is of the array of all"
                    " devices, each of which holds its own part",
                ) from error
            key = jax.random.fold_in(key, rank)
        return jax.random.fold_in(key, self._counts[index])

    def tree_flatten(self) -> tuple[tuple[jax.typing.ArrayLike, ...], tuple[_Stream, ...]]:
        """The counts as children."""
        return self._counts, self._streams

    @classmethod
    def tree_unflatten(cls, streams: tuple[_Stream, ...], counts: tuple[Any, ...]) -> "RandomStreams":
        """Streams with other counts."""
        return cls(streams, tuple(counts))
