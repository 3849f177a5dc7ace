"""Scopes on modules of Flax, which is imported when one of its modules is used.

Linen: parameters, mutable collections and random sequences are lifted through the checkpoint, as `flax.linen.remat`
does it, with our checkpoint inside and the class's own name outside: auto-named parameters keep their paths.

NNX: the state of every module among the arguments goes in and comes out again, as `flax.nnx.remat` does it, with our
checkpoint in the place of JAX's.

Read after `checkpoint`.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import jax

from jaxckpt.annotate.checkpoint import Checkpoint, arrays_and_rest, is_array

if TYPE_CHECKING:
    from flax import linen as nn
    from flax.core import Scope as FlaxScope

Variables: TypeAlias = Any
"""Collections of variables, as groups of Flax's lifting."""
Rngs: TypeAlias = Any
"""Random sequences, as groups of Flax's lifting."""
_CONTEXT = "jaxckpt"
"""The tag of our update context, which NNX needs to distinguish nested contexts."""


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
    from flax.core import lift
    from flax.linen.transforms import decorator_lift_transform

    def lifted(function: Callable[..., Any]) -> Callable[..., Any]:
        def inner(
            scope_of: Callable[[Variables, Rngs], "FlaxScope"],
            variables_of: Callable[["FlaxScope"], Variables],
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

    return decorator_lift_transform(lifted, method)(*args, **kwargs)


def is_nnx(value: object) -> bool:
    """True for a module, a variable or another object with state."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, nnx.Pytree | nnx.Variable)


def has_nnx(tree: object) -> bool:
    """True if a leaf of the arguments is an object with state."""
    return any(map(is_nnx, jax.tree.leaves(tree, is_leaf=is_nnx)))


def call_with_state(
    function: Callable[..., Any], checkpoint: Checkpoint, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Calls a checkpointed function; its changes of modules are carried out."""
    from flax import nnx
    from flax.nnx.transforms import general

    crossing, rest = arrays_and_rest(
        (args, kwargs), is_taken=lambda leaf: is_nnx(leaf) or is_array(leaf), is_leaf=is_nnx
    )

    def call(*crossed: Any) -> Any:
        args, kwargs = rest.filled(crossed)
        return function(*args, **kwargs)

    inside = general.merge_inputs(call, ctxtag=_CONTEXT)
    split = general.split_inputs(lambda *pure: checkpoint(inside, *pure), ctxtag=_CONTEXT)
    return nnx.update_context(_CONTEXT)(split)(*crossing)
