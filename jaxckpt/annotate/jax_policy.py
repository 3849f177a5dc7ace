"""A policy as a callable for the user's own `jax.checkpoint(f, policy=...)`.

JAX asks such a callable about one equation at a time, by its primitive, the types of its operands and its parameters.
So such a callable can carry out rules on names, primitives, types, sizes and traits, but no rules on places; those need
a scope.

Read after `checkpoint_policy`.
"""

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
from jax.ad_checkpoint import Offloadable, Recompute, Saveable

from jaxckpt import ir
from jaxckpt._errors import PolicyError
from jaxckpt._records import numbered
from jaxckpt.annotate.checkpoint_policy import is_remat3, takes_only_names
from jaxckpt.ir.scope import TAG
from jaxckpt.policy import ForwardValue, Match, Policy, Rule
from jaxckpt.program.inline import inline
from jaxckpt.trace.flops import WorkCounter
from jaxckpt.trace.op_facts import TraitFinder
from jaxckpt.trace.sharding import aval_bytes

_PLACES = ("scope", "layers", "every", "boundary", "between_batched")
"""Keys on the place of a value, which JAX does not pass to a policy."""
_OF_THE_RESULT = ("dtype", "min_bytes", "max_bytes", "min_flops", "batched", "random", "collective")
_ASKED_BY_REMAT3 = ("name", "dot_general", "conv_general_dilated", "contraction")
"""Keys and primitives that `jax_remat3` asks a policy about."""


def as_jax(policy: Policy) -> Callable[..., Any]:
    r"""The policy as a callable for `jax.checkpoint(f, policy=...)`.

    Equal policies give equal callables, so that JAX's caches work. XLA chooses when an offloaded value is loaded. Under
    `jax_remat3` JAX asks about names, matrix products and convolutions alone, and a policy with other rules is refused;
    set that flag before you call this.

    Raises:
      PolicyError: The policy has more than rules on names, primitives, types, sizes and traits that save, recompute or
        offload; the message names each.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> policy = Policy.from_toml('default = "recompute"\n[[rule]]\nname = "qkv"\ndecision = "save"')
      >>> f = jax.checkpoint(lambda x: jnp.sin(x).sum(), policy=as_jax(policy))
      >>> jax.grad(f)(jnp.zeros(3)).shape
      (3,)
    """
    problems = [*_problems(policy), *(_problems_of_remat3(policy) if is_remat3() else ())]
    if problems:
        raise PolicyError(
            f'policy "{policy.name}" cannot be a callable for jax.checkpoint.',
            got=numbered(problems),
            needed="rules on name, primitive, dtype, bytes, flops, batched, random and collective",
            advice="jaxckpt.scope(f, policy=...) on the part, or jaxckpt.apply(step, policy) on the step",
            problems=tuple(problems),
        )
    if takes_only_names():
        return jax.checkpoint_policies.save_only_these_names(*(rule.match.name for rule in policy.rules))
    return JaxPolicy(policy)


@dataclass(frozen=True, slots=True, weakref_slot=True)  # JAX holds policies weakly
class JaxPolicy:
    """A policy that JAX asks about the results of equations."""

    policy: Policy

    def __call__(self, primitive: jex.Primitive, *avals: jax.core.AbstractValue, **params: Any) -> Any:
        """JAX's word for the results of an equation."""
        name = params["name"] if primitive.name == "name" else None
        if str(name).startswith(TAG):
            return Recompute  # the tag of a scope, which the scope's own policy saves
        value = ForwardValue(name=name, primitive=primitive.name)
        if any(getattr(rule.match, key) is not None for rule in self.policy.rules for key in _OF_THE_RESULT):
            value = _with_result(value, primitive, avals, params)
        default = ir.Save() if self.policy.default == "save" else ir.Recompute()
        return _in_jax(next((rule.decision for rule in self.policy.rules if rule.match.holds(value)), default))


def _in_jax(decision: ir.Decision) -> Any:
    if isinstance(decision, ir.Offload):
        return Offloadable(src="device", dst=decision.space)
    return Saveable if isinstance(decision, ir.Save) else Recompute


def _with_result(
    value: ForwardValue, primitive: jex.Primitive, avals: tuple[jax.core.AbstractValue, ...], params: dict[str, Any]
) -> ForwardValue:
    """The value with type, size, FLOPs and traits of the equation's result; JAX passes the operands alone."""
    if not all(hasattr(aval, "dtype") for aval in avals):
        return value
    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    (*_, equation) = inline(jax.make_jaxpr(lambda *x: primitive.bind(*x, **params))(*specs)).equations
    return dataclasses.replace(
        value,
        dtype=str(equation.eqn.outvars[0].aval.dtype),
        size_bytes=sum(aval_bytes(v.aval) for v in equation.eqn.outvars),
        flops=int(WorkCounter().of(equation.eqn).flops or 0),
        traits=TraitFinder().of(equation.eqn),
    )


def _problems(policy: Policy) -> Iterator[str]:
    for number, rule in enumerate(policy.rules, 1):
        for key in _PLACES:
            if getattr(rule.match, key) is not None:
                yield f"rule {number} ({rule}) asks for {key}, and JAX does not pass the place of an equation"
        if isinstance(rule.decision, ir.Partition) or (isinstance(rule.decision, ir.Offload) and rule.decision.shard):
            yield f"rule {number} ({rule}) partitions, which only jaxckpt.apply does"
    if policy.regions is not None:
        yield "its regions are parts of a whole step, which only jaxckpt.apply sees"


def _problems_of_remat3(policy: Policy) -> Iterator[str]:
    if policy.default == "save":
        yield 'its default is "save", and jax_remat3 saves nothing that is not named'
    for number, rule in enumerate(policy.rules, 1):
        if takes_only_names():
            if not _is_list_of_names(rule):
                yield f"rule {number} ({rule}) is more than a name to save, and jax_remat3 of this jax knows no more"
        elif not (
            isinstance(rule.decision, ir.Recompute)
            or rule.match.name is not None
            or rule.match.primitive in _ASKED_BY_REMAT3
        ):
            yield f"rule {number} ({rule}) is about values that jax_remat3 does not ask about"


def _is_list_of_names(rule: Rule) -> bool:
    name = rule.match.name
    plain = name is not None and not any(letter in name for letter in "*?[{")
    return plain and rule.match == Match(name=name) and isinstance(rule.decision, ir.Save)
