"""`jaxckpt.scope`: names a part of a model and carries out a policy in that part.

Read after `decorate`, which wraps the targets.
"""

from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack, overload

from jaxckpt._errors import ScopeError
from jaxckpt.annotate.decorate import Scope, with_scope
from jaxckpt.policy import Policy, load_policy

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
    r"""Names a part of a model; with a policy, decides what is kept of it between forward and backward.

    On a function, a method, a class of modules (Linen, NNX, Equinox, or any) or an object, the part becomes a
    `jax.checkpoint` that keeps what the policy saves. Rules see the values in it, and in bodies of `scan` and `cond`,
    as `jaxckpt.apply` would, but for what differentiation adds. An inner scope decides for what is in it. Values,
    parameters and their names are the same with and without. Arrays in the arguments are traced, all else is not;
    results that are no arrays are passed through.

    `with jaxckpt.scope(...)` only marks: a policy acts there when the step goes through `jaxckpt.apply`.

    Args:
      target: What to put it on; or the name, and what it is put on follows.
      policy: A policy, the path of one, or the name of one that comes with jaxckpt. None only names the part.
      name: What it is called in scopes ("block_3"); else the function's or class's own name. Linen modules have theirs
        from Flax.
      methods: Which methods of a class have the scope.
      static_argnames: Arguments that are not traced although they are arrays.
      prevent_cse: As `jax.checkpoint` takes it: False is right for the body of a loop.

    Returns:
      The target with the scope around its calls: a function for a function, a subclass of the same name for a class,
      an object with the same fields for an object. Without a target, a decorator that `with` also takes.

    Raises:
      ScopeError: It cannot be put there; a method or argument does not exist.
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
        policy=load_policy(policy) if isinstance(policy, str | Path) else policy,
        methods=(methods,) if isinstance(methods, str) else tuple(methods),
        static_argnames=(static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames),
        prevent_cse=prevent_cse,
    )
    return options if target is None else with_scope(target, options)
