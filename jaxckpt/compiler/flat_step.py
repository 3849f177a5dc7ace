"""Flattens a user's step into a function of flat arrays, with donation, shardings and options of its jit.

Tracing runs the step once on descriptions of its arguments; errors that the step itself raises then pass through
untouched. Donation, static arguments and shardings of a step that is already jitted are taken over.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxckpt import _compat
from jaxckpt._errors import ArgumentError
from jaxckpt.trace.arguments import argument_paths

_NO_ARRAY = ("Error interpreting argument", "is not a valid JAX type")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatStep:
    """A traced step over flat arrays, in the order of the step's pytrees.

    Attributes:
      specs: Shape, dtype and sharding of each argument, on the caller's devices.
      donated: Indices of arguments whose memory the step may reuse.
      out_shardings: What the jit wants of each result, or None.
      paths: Where each argument stands among the step's ("[0]['params']").
    """

    function: Callable[..., Sequence[Any]]
    specs: tuple[jax.ShapeDtypeStruct, ...]
    donated: frozenset[int]
    out_shardings: tuple[jax.sharding.Sharding | None, ...]
    compiler_options: tuple[tuple[str, Any], ...]
    name: str
    paths: tuple[str, ...] = ()


def flatten_step(
    step: Callable[..., Any],
    args: Sequence[Any],
    *,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
) -> FlatStep:
    """Traces a step, plain or jitted already, into a function of flat arrays.

    Raises an `ArgumentError` if a leaf is no array, or if a jitted step is given donation or static positions again.
    """
    step = _jitted(step, donate_argnums, static_argnums)
    leaves = _compat.traced_leaves(_trace(step, args))
    positions, names = _compat.jit_static_arguments(step)
    pairs = argument_paths(args, {}, static=frozenset((*(p % len(args) for p in positions), *names)))
    return FlatStep(
        function=leaves.call,
        specs=tuple(map(_spec, leaves.avals, leaves.arg_shardings)),
        donated=frozenset(index for index, donated in enumerate(leaves.donated) if donated),
        out_shardings=leaves.out_shardings,
        compiler_options=leaves.compiler_options,
        name=leaves.name,
        paths=tuple(path for path, _ in pairs) if len(pairs) == len(leaves.avals) else (),
    )


def _jitted(
    step: Callable[..., Any], donate_argnums: int | Sequence[int], static_argnums: int | Sequence[int]
) -> jax.stages.Wrapped:
    if not isinstance(step, jax.stages.Wrapped):
        return jax.jit(step, donate_argnums=donate_argnums, static_argnums=static_argnums)
    if donate_argnums != () or static_argnums != ():
        raise ArgumentError(
            "the step is jitted already, and its jit says what is donated and static.",
            got=f"donate_argnums={donate_argnums!r}, static_argnums={static_argnums!r}",
            needed="these in the jit, or a plain step",
            advice="footprint(step, ...) without them, or footprint(step.__wrapped__, ...) with them",
        )
    return step


def _trace(step: jax.stages.Wrapped, args: Sequence[Any]) -> jax.stages.Traced:
    try:
        return step.trace(*args)
    except TypeError as error:
        if not any(sign in str(error) for sign in _NO_ARRAY):
            raise
        raise ArgumentError(
            "an argument of the step is no array.",
            got=str(error).strip().partition("\n")[0],
            needed="arrays, jax.ShapeDtypeStructs, numbers, or pytrees of them",
            advice="name its position in static_argnums, or bind it with functools.partial",
        ) from error


def _spec(aval: jax.core.ShapedArray, sharding: jax.sharding.Sharding | None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=getattr(aval, "weak_type", False))
