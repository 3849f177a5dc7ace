"""Policies as callables for `jax.checkpoint`: inside a scope, and for the user's own `jax.checkpoint(f, policy=...)`.

Inside a scope tagged values are saved or offloaded, and all others are recomputed. One policy object serves all scopes.
So in nested scopes the outer `jax.checkpoint` saves the inner tags too, and neither saves a value that the inner scope
left untagged. Tags are names, because every kind of `jax.checkpoint` asks its policy about names.

In the user's own `jax.checkpoint` JAX asks about one equation at a time, by its primitive, the types of its operands
and its parameters. So such a callable can carry out rules on names, primitives, types, sizes and traits, but no rules
on places; those need a scope.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
from jax.ad_checkpoint import Offloadable, Recompute, Saveable

from jaxckpt import ir
from jaxckpt._errors import PolicyError, UnsupportedDecisionError
from jaxckpt._records import numbered
from jaxckpt.ir.scope import TAG
from jaxckpt.policy import ForwardValue, Match, Policy, Rule
from jaxckpt.policy.rule import globs
from jaxckpt.program.inline import inline
from jaxckpt.trace.flops import WorkCounter
from jaxckpt.trace.op_facts import TraitFinder
from jaxckpt.trace.sharding import aval_bytes

SAVE = f"{TAG}save"
_OFFLOAD = f"{TAG}offload."
_PLACES = ("scope", "layers", "every", "boundary", "between_batched")
"""Keys on the place of a value, which JAX does not pass to a policy."""
_OF_THE_RESULT = ("dtype", "min_bytes", "max_bytes", "min_flops", "batched", "random", "collective")
_ASKED_BY_REMAT3 = ("name", "dot_general", "conv_general_dilated", "contraction")
"""Keys and primitives that `jax_remat3` asks a policy about."""


### Inside a scope


def tag_of(decision: ir.Decision) -> str | None:
    """The tag for a decision; None for values that are recomputed.

    Example:
      >>> tag_of(ir.Save()), tag_of(ir.Offload()), tag_of(ir.Recompute())
      ('jaxckpt.save', 'jaxckpt.offload.pinned_host', None)
    """
    match decision:
        case ir.Save():
            return SAVE
        case ir.Offload(space=space):
            return f"{_OFFLOAD}{space}"
        case ir.Recompute():
            return None
    raise UnsupportedDecisionError(
        "a scope cannot partition a value over a mesh.",
        got=repr(decision),
        needed='"save", "recompute" or "offload"',
        advice="jaxckpt.apply(step, policy) partitions; take the policy off the scope",
        decision=decision,
    )


@dataclass(frozen=True, slots=True, weakref_slot=True)  # JAX holds policies weakly
class TagPolicy:
    """JAX's policy for scopes.

    Hidden rules are on names in the forward rule of a `jax.custom_vjp`, which no trace shows: JAX asks about such a
    name later.
    """

    hidden: tuple[Rule, ...] = ()

    def __call__(self, primitive: jex.Primitive, *_: object, **params: Any) -> Any:
        """JAX's word for the results of an equation."""
        if primitive.name != "name":
            return Recompute
        tag = self._tag_of_name(params["name"])
        if tag is not None and tag.startswith(_OFFLOAD):
            return Offloadable(src="device", dst=tag.removeprefix(_OFFLOAD))
        return Saveable if tag == SAVE else Recompute

    def _tag_of_name(self, name: str) -> str | None:
        """The name itself where it is a tag; else the tag of the first hidden rule that matches the name."""
        if name.startswith(TAG):
            return name
        matching = (rule.decision for rule in self.hidden if globs(rule.match.name or "", name))
        return next(map(tag_of, matching), None)


def tag_policy(hidden: tuple[Rule, ...], tags: Collection[str]) -> Callable[..., Any]:
    """The policy for `jax.checkpoint`.

    Under `jax_remat3` of jax 0.10 only JAX's own lists of names have an effect, so the result is such a list; a policy
    that a list cannot express is refused.
    """
    if not takes_only_names():
        return _tagged(hidden)
    if any(tag != SAVE for tag in tags) or hidden:
        raise UnsupportedDecisionError(
            "jax_remat3 of this jax can only save values by name.",
            got="a policy that offloads, or names values inside a custom_vjp",
            needed="rules that save or recompute",
            advice='jax.config.update("jax_remat3", False), or a newer jax',
        )
    return _names_only()


def is_ours(policy: object) -> bool:
    """True if the policy of a `jax.checkpoint` is that of a scope."""
    return isinstance(policy, TagPolicy) or (policy is not None and policy is _names_only())


def is_remat3() -> bool:
    """True if `jax.checkpoint` is JAX's new one, which asks its policy about names and products alone."""
    return bool(getattr(jax.config, "jax_remat3", False))


def takes_only_names() -> bool:
    """True if `jax.checkpoint` ignores policies that are not JAX's own lists of names."""
    return is_remat3() and type(_names_only()).__name__ == "SaveOnlyTheseNames"


_tagged = functools.lru_cache(maxsize=256)(TagPolicy)
"""One object for equal policies, or JAX traces derivatives anew."""


@functools.cache
def _names_only() -> Callable[..., Any]:
    return jax.checkpoint_policies.save_only_these_names(SAVE)


### In the user's own `jax.checkpoint`


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

    def bound(*operands: jax.Array) -> Any:
        return primitive.bind(*operands, **primitive.get_bind_params(params))

    equations = inline(jax.make_jaxpr(bound)(*avals)).equations
    if not equations or not equations[-1].eqn.outvars:  # one that hands its operand on, or has an effect alone
        return value
    equation = equations[-1]
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
