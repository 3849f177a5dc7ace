"""`jaxckpt.scope`: names a part of a model and carries out a policy in that part.

Read after `decorate`, which wraps the targets.
"""

from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack, overload

from jaxckpt._errors import ScopeError
from jaxckpt.annotate.decorate import Scope, with_scope
from jaxckpt.policy import Policy, as_policy

_Target = TypeVar("_Target")


class _Keywords(TypedDict, total=False):
    policy: Policy | str | Path | None
    name: str | None
    methods: str | tuple[str, ...]
    static_argnames: str | tuple[str, ...]
    prevent_cse: bool


@overload
def scope(target: str | None = None, /, **keywords: Unpack[_Keywords]) -> Scope: ...


@overload
def scope(target: _Target, /, **keywords: Unpack[_Keywords]) -> _Target: ...


def scope(
    target: Any = None,
    /,
    *,
    policy: Policy | str | Path | None = None,
    name: str | None = None,
    methods: str | tuple[str, ...] = ("__call__",),
    static_argnames: str | tuple[str, ...] = (),
    prevent_cse: bool = True,
) -> Any:
    r"""Names a part of a model; with a policy, decides which of its values are saved for the backward.

    On a function, a method, a class of modules (Linen, NNX, Equinox, or any) or an object, the part becomes a
    `jax.checkpoint` that saves the values that the policy saves. Rules apply to its values, also in bodies of `scan`
    and `cond`, as with `jaxckpt.apply`, except for values that differentiation adds. An inner scope decides about its
    own values. Values, parameters and their names do not change. Arrays in the arguments are traced, other leaves are
    static; results that are no arrays are returned unchanged.

    `with jaxckpt.scope(...)` only marks: its policy has an effect when the step is passed to `jaxckpt.apply` or
    `jaxckpt.plan`. A `with` statement that is differentiated otherwise warns, once.

    Args:
      target: The function, class or object; or the name, if the scope is a decorator or used in `with`.
      policy: A policy, the path of a policy file, or the name of a ready policy. None only names the part.
      name: Its name in scopes ("block_3"); by default the name of the function or class. Linen modules have names from
        Flax.
      methods: Which methods of a class have the scope.
      static_argnames: Arguments that are not traced although they are arrays.
      prevent_cse: As `jax.checkpoint` takes it: False is right for the body of a loop.

    Returns:
      The target with the scope around its calls: a function for a function, a subclass of the same name for a class,
      an object with the same fields for an object. Without a target, a decorator that `with` also takes.

    Raises:
      ScopeError: The target cannot have a scope; a method or argument does not exist.
      PolicyError: There is no such policy; or, when called: one of its rules matches nothing in the scope.
      UnsupportedDecisionError: When called: the policy partitions a value.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> dots = Policy.from_toml('default = "recompute"\n[[rule]]\nprimitive = "contraction"\ndecision = "save"')
      >>> @scope(policy=dots)
      ... def block(x, w, activation=jnp.tanh):
      ...     return activation(x @ w)
      >>> jax.grad(lambda w: block(jnp.ones(2), w).sum())(jnp.zeros((2, 2))).shape
      (2, 2)
    """
    if isinstance(target, str):
        if name is not None:
            raise ScopeError(
                "jaxckpt.scope is given two names.",
                got=f"{target!r} and name={name!r}",
                needed="one name",
                advice=f"jaxckpt.scope({target!r})",
            )
        target, name = None, target
    options = Scope(
        name=name,
        policy=as_policy(policy),
        methods=(methods,) if isinstance(methods, str) else tuple(methods),
        static_argnames=(static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames),
        prevent_cse=prevent_cse,
    )
    return options if target is None else with_scope(target, options)
