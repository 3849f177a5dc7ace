"""Flattens a user's step into a function of flat arrays, with donation, shardings and options of its jit.

Tracing runs the step once on descriptions of its arguments; errors that the step itself raises then pass through
untouched. Donation, static arguments and shardings of a step that is already jitted are taken over.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax

from jaxckpt import _compat
from jaxckpt.calling import Calling
from jaxckpt.calling.arguments import leaf_sharding

_NO_KEYWORDS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatStep:
    """A traced step over flat arrays, in the order of the step's pytrees.

    Attributes:
      specs: Shape, dtype and sharding of each argument, on the caller's devices.
      donated: Indices of arguments whose memory the step may reuse.
      out_shardings: What the jit wants of each result, or None.
      paths: Where each argument stands among the step's ("state['params']").
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
    kwargs: Mapping[str, Any] = _NO_KEYWORDS,
    *,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
) -> FlatStep:
    """Traces a step, plain or jitted already, into a function of flat arrays.

    Raises an `ArgumentError` if a jitted step has a leaf that is no array, or is given other static positions again.
    """
    calling = Calling(step, donate_argnums=donate_argnums, static_argnums=static_argnums)
    with calling.bind(args, kwargs) as call:
        stage = call.trace()
        leaves = _compat.traced_leaves(stage)
        shardings = [
            asked or leaf_sharding(leaf) for asked, leaf in zip(leaves.arg_shardings, call.leaves, strict=True)
        ]
        return FlatStep(
            function=leaves.call,
            specs=tuple(map(_spec, leaves.avals, shardings)),
            donated=call.donation(stage),
            out_shardings=leaves.out_shardings,
            compiler_options=leaves.compiler_options,
            name=leaves.name,
            paths=call.paths,
        )


def _spec(aval: jax.core.ShapedArray, sharding: jax.sharding.Sharding | None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=getattr(aval, "weak_type", False))
