"""Generates arrays for described arguments, the same on every run, and copies arrays that a step may donate.

The numbers depend only on the type and on the argument's path:

- floats: normal, of a standard deviation that lets signals through: the root of one over the longest axis but the
  last, from 0.02 to 0.5; 0.25 of vectors and numbers;
- integers: 0 to 3, and 1 where there is but one number (tokens and labels of any vocabulary, a counter of steps);
- booleans: even odds;
- keys: real ones, typed or as `uint32[2]`.

A step may refuse such numbers with NaN (the root of a negative second moment, a label of two classes). A second
drawing is tamer: floats positive, integers 0 and 1. Whoever knows better passes arrays in the place of descriptions.
"""

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding

from jaxckpt._errors import UnverifiableError
from jaxckpt._units import format_bytes
from jaxckpt.calling import Calling

_IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")
_ANY_STEP = Calling(lambda *args: args)
_ROOM = 6
"""A step on generated arguments may take so many times their bytes before we think that they were meant for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Arguments that a step can run on, and paths of those that were drawn."""

    args: tuple[Any, ...]
    generated: tuple[str, ...]


def make_inputs(args: Sequence[Any], *, calling: Calling = _ANY_STEP, tame: bool = False) -> Inputs:
    """Draws an array for every `jax.ShapeDtypeStruct` in the arguments of a step; all else stays as it is.

    Equal descriptions at equal places give equal arrays, on every machine. With `tame`, floats are positive and
    integers 0 or 1.

    Raises:
      UnverifiableError: The arrays are too many bytes for this machine, or are described on devices or in memories
        that it does not have.

    Example:
      >>> made = make_inputs([{"w": jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)}, 1.5])
      >>> made.generated, made.args[0]["w"].dtype, made.args[1]
      (("[0]['w']",), dtype(bfloat16), 1.5)
    """
    generated: list[str] = []

    def replaced(paths: Sequence[str], leaves: Sequence[Any]) -> list[Any]:
        named = dict(zip(paths, leaves, strict=True))
        found = {path: leaf for path, leaf in named.items() if isinstance(leaf, jax.ShapeDtypeStruct)}
        _refuse_large(found)
        generated.extend(found)
        made = {path: _placed(path, leaf, _drawn(path, leaf, tame=tame)) for path, leaf in found.items()}
        return [made.get(path, leaf) for path, leaf in named.items()]

    return Inputs(args=calling.rebuilt(args, replaced), generated=tuple(generated))


def copies(args: Sequence[Any], *, calling: Calling = _ANY_STEP) -> tuple[Any, ...]:
    """Copies of a step's arguments, sharded alike, so that a step which writes or donates takes nobody's arrays."""
    return calling.rebuilt(args, lambda _, leaves: list(map(_copy, leaves)))


def _copy(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return jnp.copy(leaf)
    return np.copy(leaf) if isinstance(leaf, np.ndarray) else leaf


def _drawn(path: str, spec: jax.ShapeDtypeStruct, *, tame: bool) -> Any:
    seed = zlib.crc32(path.encode())
    draw = np.random.default_rng(seed)
    kind = jnp.issubdtype
    if kind(spec.dtype, jax.dtypes.prng_key):
        return _keys(path, spec, seed)
    if spec.dtype == jnp.uint32 and spec.shape[-1:] == (2,):
        return draw.integers(2**32, size=spec.shape, dtype=np.uint32)
    if kind(spec.dtype, np.bool_):
        return draw.integers(2, size=spec.shape).astype(bool)
    if kind(spec.dtype, np.integer):
        return np.asarray(draw.integers(2 if tame else 4, size=spec.shape) if spec.shape else 1).astype(spec.dtype)
    numbers = draw.normal(scale=_deviation(spec.shape), size=spec.shape)
    if kind(spec.dtype, np.complexfloating):
        numbers = numbers + 1j * draw.normal(scale=_deviation(spec.shape), size=spec.shape)
    return np.asarray(np.abs(numbers) if tame else numbers).astype(spec.dtype)


def _deviation(shape: tuple[int, ...]) -> float:
    return min(max(max(*shape[:-1], 1) ** -0.5, 0.02), 0.5) if len(shape) > 1 else 0.25


def _keys(path: str, spec: jax.ShapeDtypeStruct, seed: int) -> jax.Array:
    for implementation in _IMPLEMENTATIONS:
        key = jax.random.key(seed, impl=implementation)
        if key.dtype == spec.dtype:
            return jax.random.split(key, spec.shape) if spec.shape else key
    raise UnverifiableError(
        f"verify: no key can be made for the argument {path}.",
        got=f"a description of type {spec.dtype}",
        needed=f"keys of {', '.join(_IMPLEMENTATIONS)}, or a real array",
        advice="pass an array of keys in the place of its description",
    )


def _placed(path: str, spec: jax.ShapeDtypeStruct, array: np.ndarray | jax.Array) -> jax.Array:
    """An array where its description lies; a mesh of other devices is rebuilt on the attached ones."""
    try:
        return jax.device_put(array, _here(path, spec.sharding)) if spec.sharding is not None else jnp.asarray(array)
    except ValueError as error:  # a memory kind that the devices lack
        raise UnverifiableError(
            f"verify: the argument {path} cannot be put where it is described.",
            got=f"{spec.sharding}",
            needed=f"a place on {_machine()}",
            advice="describe it without a memory kind, or run verify on the machine that has it",
        ) from error


def _here(path: str, sharding: Sharding) -> Sharding | None:
    if isinstance(sharding, NamedSharding):
        devices = jax.devices()
        if not isinstance(sharding.mesh, jax.sharding.AbstractMesh) and sharding.device_set <= set(devices):
            return sharding
        return NamedSharding(_mesh(path, sharding.mesh, devices), sharding.spec)
    if sharding.device_set <= set(jax.devices()):
        return sharding
    if isinstance(sharding, SingleDeviceSharding):
        return None
    raise _elsewhere(path, str(sharding), "a NamedSharding, or one of attached devices")


def _mesh(
    path: str, mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh, devices: Sequence[jax.Device]
) -> jax.sharding.Mesh:
    count = int(np.prod(mesh.axis_sizes))
    if count > len(devices):
        raise _elsewhere(path, f"a mesh of {count} devices", f"at most the {len(devices)} of this machine")
    chosen = np.asarray(devices[:count]).reshape(mesh.axis_sizes)
    return jax.sharding.Mesh(chosen, mesh.axis_names, axis_types=mesh.axis_types)


def _elsewhere(path: str, got: str, needed: str) -> UnverifiableError:
    return UnverifiableError(
        f"verify: the argument {path} is described on devices that are not here.",
        got=got,
        needed=needed,
        advice="XLA_FLAGS=--xla_force_host_platform_device_count=8 JAX_PLATFORMS=cpu makes eight devices of one"
        " processor; a smaller mesh verifies the same plan",
    )


def _refuse_large(found: dict[str, jax.ShapeDtypeStruct]) -> None:
    def size(spec: jax.ShapeDtypeStruct) -> int:
        width = getattr(spec.dtype, "itemsize", 8)
        return int(np.prod(spec.shape)) * width

    total = sum(map(size, found.values()))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if _ROOM * total > memory:
        largest = max(found, key=lambda path: size(found[path]))
        raise UnverifiableError(
            "verify: the described arguments are too large to be generated here.",
            got=f"{format_bytes(total)}, the largest of them {largest}",
            needed=f"at most {format_bytes(memory // _ROOM)}: the step runs on this machine's {format_bytes(memory)}",
            advice="verify a smaller model of the same kind, with the same policy; or pass arrays",
            total_bytes=total,
        )


def _machine() -> str:
    device = jax.devices()[0]
    kinds = ", ".join(sorted(memory.kind for memory in device.addressable_memories()))
    return f"{jax.device_count()} x {device.device_kind} with the memories {kinds}"
