"""The policy of `jax.checkpoint` inside a scope: tagged values are saved or offloaded, all others are recomputed.

One policy object serves all scopes. So in nested scopes the outer `jax.checkpoint` saves the inner tags too, and
neither saves a value that the inner scope left untagged. Tags are names, because every kind of `jax.checkpoint` asks
its policy about names.
"""

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core as jex
from jax.ad_checkpoint import Offloadable, Recompute, Saveable

from jaxckpt import ir
from jaxckpt._errors import UnsupportedDecisionError
from jaxckpt.ir.scope import TAG
from jaxckpt.policy import Rule
from jaxckpt.policy.rule import globs

SAVE = f"{TAG}save"
_OFFLOAD = f"{TAG}offload."


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


def jax_policy(hidden: tuple[Rule, ...], tags: Collection[str]) -> Callable[..., Any]:
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
