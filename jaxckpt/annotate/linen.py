"""Scopes on Flax Linen modules: parameters, mutable collections and random sequences are lifted through the checkpoint.

What `flax.linen.remat` is made of, with our checkpoint inside, and with the class's own name outside: auto-named
parameters keep their paths. Flax is imported when one of its modules is met.

Read after `checkpoint`.
"""

import sys
from collections.abc import Callable
from typing import Any

from jaxckpt.annotate.checkpoint import Checkpoint


def is_linen_class(target: Any) -> bool:
    """Whether something is a class of Linen modules."""
    linen = sys.modules.get("flax.linen")
    return linen is not None and isinstance(target, type) and issubclass(target, linen.Module)


def is_linen(value: Any) -> bool:
    """Whether something is a Linen module."""
    return is_linen_class(type(value))


def is_made(module: Any) -> bool:
    """Whether a module's parameters are there already; while a model is being initialised they are not."""
    return not module.is_initializing()


def opened(module: Any) -> tuple[Any, Callable[[Any], Any]]:
    """A module's variables, and what makes the module again of such variables; what it then changes is not kept."""
    alone, variables = module.unbind()
    return variables, alone.bind


def unhandled(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that Flax will take for a user's own, and put the module's name around."""
    vars(method).pop("method_handler_wrapped", None)
    return method


def call_method(method: Callable[..., Any], checkpoint: Checkpoint, repeats: str, *args: Any, **kwargs: Any) -> Any:
    """Calls a method that is being checkpointed, as Flax calls it: with the module as its first argument."""
    from flax.linen.transforms import decorator_lift_transform

    return decorator_lift_transform(_lifted(checkpoint, repeats), method)(*args, **kwargs)


def _lifted(checkpoint: Checkpoint, repeats: str = "") -> Callable[..., Any]:
    """A transformation as Flax lifts them: of a function of variables, into one of the same."""
    from flax.core import lift

    def checkpointed(function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(scope_of: Any, variables_of: Any, variables: Any, rngs: Any, *args: Any, **kwargs: Any) -> Any:
            def call(variables: Any, rngs: Any, args: Any, kwargs: Any) -> Any:
                scope = scope_of(variables, rngs)
                returned = function(scope, *args, **kwargs)
                return returned, variables_of(scope)

            return checkpoint(call, variables, rngs, args, kwargs, repeats=repeats)

        return lift.pack(inner, (True,), (True,), (True,), name="jaxckpt", enable_kwargs=True)

    return checkpointed
