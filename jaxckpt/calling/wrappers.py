"""The function under the wrappers around a step, with the arguments that they bind and the options that they have.

`jax.jit` stays where it is: JAX traces it. `flax.nnx.jit` and `equinox.filter_jit` are taken off, since they do the
same work as `jaxckpt.calling.split`. Positions and names count the arguments of the function that is left.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from jaxckpt import _compat
from jaxckpt._errors import ArgumentError
from jaxckpt.calling.objects import has_objects
from jaxckpt.calling.split import is_array, is_module


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwrapped:
    """A function and its wrappers.

    Attributes:
      function: A plain function, or one under `jax.jit`.
      jit: "jax", "nnx" or "equinox" for the jit around the function; "" for none.
      bound: Arguments before those of the caller, from methods and partials.
      keywords: Keyword arguments that a partial binds.
      static: Positions and names that the jit does not trace.
      donated: Positions and names that the jit donates.
      donates_after: The position after which the jit donates all positions and names; None for none.
    """

    function: Callable[..., Any]
    jit: str = ""
    bound: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    static: frozenset[int | str] = frozenset()
    donated: frozenset[int | str] = frozenset()
    donates_after: int | None = None

    def donates(self, key: int | str) -> bool:
        """True if the jit donates the argument of a position or name."""
        if self.donates_after is not None and (isinstance(key, str) or key > self.donates_after):
            return True
        return key in self.donated


def unwrap(step: Callable[..., Any]) -> Unwrapped:
    """Takes off what binds arguments, and the jits of NNX and Equinox.

    Example:
      >>> import jax.numpy as jnp
      >>> found = unwrap(functools.partial(jnp.add, jnp.ones(2)))
      >>> found.function is jnp.add, len(found.bound)
      (True, 1)
    """
    if (options := _compat.jit_options(step)) is not None and not _is_method(step):
        return Unwrapped(function=step, jit="jax", static=options.static, donated=options.donated)
    if (nnx_jit := _compat.nnx_jit(step)) is not None:
        return _of_nnx_jit(nnx_jit)
    if (filter_jit := _compat.equinox_jit(step)) is not None:
        return _of_filter_jit(filter_jit)
    return _bound(_compat.nnx_cached_partial(step) or step)


def _of_nnx_jit(found: _compat.NnxJit) -> Unwrapped:
    if found.has_shardings:
        raise ArgumentError(
            "a step under flax.nnx.jit with in_shardings or out_shardings is not read.",
            got="nnx.jit(..., in_shardings=..., out_shardings=...)",
            needed="shardings on the arrays themselves, which nnx.jit follows as well",
            advice="leave them out of nnx.jit; jax.device_put, jax.lax.with_sharding_constraint, or"
            " out_sharding metadata where the model is made",
        )
    inner = unwrap(found.function)
    count = len(inner.bound)
    return replace(
        inner,
        jit="nnx",
        bound=(*inner.bound, *found.bound),
        static=_shifted(found.options.static, count),
        donated=_shifted(found.options.donated, count),
    )


def _of_filter_jit(found: _compat.EquinoxJit) -> Unwrapped:
    inner = unwrap(found.function)
    first = len(inner.bound)
    donated = frozenset([first] if found.donates_first else [])
    if found.donates_rest:
        donated |= frozenset(range(first))
    return replace(inner, jit="equinox", donated=donated, donates_after=first if found.donates_rest else None)


def _shifted(keys: frozenset[int | str], count: int) -> frozenset[int | str]:
    return frozenset(key + count if isinstance(key, int) and key >= 0 else key for key in keys)


def _bound(step: Any) -> Unwrapped:
    if _is_partial(step):
        inner = unwrap(step.func)
        found = replace(inner, bound=(*inner.bound, *step.args), keywords={**inner.keywords, **step.keywords})
    elif _is_method(step):
        inner = unwrap(step.__func__)
        found = replace(inner, bound=(*inner.bound, step.__self__))
    elif is_module(step) or has_objects(step):
        return replace(unwrap(type(step).__call__), bound=(step,))
    else:
        return Unwrapped(function=step)
    brings_arrays = any(map(_brings_arrays, (*found.bound, *found.keywords.values())))
    return found if found.jit or brings_arrays else Unwrapped(function=step)


def _brings_arrays(value: Any) -> bool:
    is_number = isinstance(value, bool | int | float | complex)
    return not is_number and (has_objects(value) or any(map(is_array, jax.tree.leaves(value))))


def _is_partial(step: Any) -> bool:
    is_equinox = is_module(step) and all(hasattr(step, name) for name in ("func", "args", "keywords"))
    return isinstance(step, functools.partial) or is_equinox


def _is_method(step: Any) -> bool:
    """True for a method with its object, Equinox's too."""
    return hasattr(step, "__func__") and hasattr(step, "__self__") and not isinstance(step.__self__, type)
