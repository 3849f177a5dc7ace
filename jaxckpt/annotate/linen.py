"""Scopes on Flax Linen modules: parameters, mutable collections and random sequences are lifted through the checkpoint.

As `flax.linen.remat`, with our checkpoint inside and the class's own name outside: auto-named parameters keep their
paths. Flax is imported when one of its modules is used.

Read after `checkpoint`.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from jaxckpt.annotate.checkpoint import Checkpoint

if TYPE_CHECKING:
    from flax import linen as nn
    from flax.core import Scope

Variables: TypeAlias = Any
"""Collections of variables, as groups of Flax's lifting."""
Rngs: TypeAlias = Any
"""Random sequences, as groups of Flax's lifting."""


def is_linen_class(target: object) -> bool:
    """True for a class of Linen modules."""
    linen = sys.modules.get("flax.linen")
    return linen is not None and isinstance(target, type) and issubclass(target, linen.Module)


def is_linen(value: object) -> bool:
    """True for a Linen module."""
    return is_linen_class(type(value))


def opened(module: "nn.Module") -> tuple[Variables, Callable[[Variables], "nn.Module"]]:
    """A module's variables, and a function that binds the module to variables; changes of a bound module are lost."""
    unbound, variables = module.unbind()
    return variables, unbound.bind


def unhandled(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that Flax wraps again, so that the module's name is around it."""
    vars(method).pop("method_handler_wrapped", None)
    return method


def call_method(method: Callable[..., Any], checkpoint: Checkpoint, repeats: str, *args: Any, **kwargs: Any) -> Any:
    """Calls a checkpointed method as Flax calls methods: with the module as its first argument."""
    from flax.linen.transforms import decorator_lift_transform

    return decorator_lift_transform(_lifted(checkpoint, repeats), method)(*args, **kwargs)


def _lifted(checkpoint: Checkpoint, repeats: str = "") -> Callable[..., Any]:
    """A lifted transformation of Flax: from a function of variables to one of the same variables."""
    from flax.core import lift

    def checkpointed(function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(
            scope_of: Callable[[Variables, Rngs], "Scope"],
            variables_of: Callable[["Scope"], Variables],
            variables: Variables,
            rngs: Rngs,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            def call(variables: Variables, rngs: Rngs, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                scope = scope_of(variables, rngs)
                returned = function(scope, *args, **kwargs)
                return returned, variables_of(scope)

            return checkpoint(call, variables, rngs, args, kwargs, repeats=repeats)

        return lift.pack(inner, (True,), (True,), (True,), name="jaxckpt", enable_kwargs=True)

    return checkpointed
