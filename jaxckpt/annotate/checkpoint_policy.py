"""What JAX is told to keep inside a scope: the values that we tagged, and nothing else.

One policy object serves all scopes. So in nested scopes the inner tags are kept by the outer `jax.checkpoint` too, and
what an inner scope left untagged is kept by neither. Tags are names, the one thing that every `jax.checkpoint` asks its
policy about.
"""

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax
from jax.ad_checkpoint import Offloadable, Recompute, Saveable

from jaxckpt import ir
from jaxckpt._errors import UnsupportedDecisionError
from jaxckpt.ir.scope import TAG
from jaxckpt.policy import Rule
from jaxckpt.policy.rule import globs

SAVE = f"{TAG}save"
_OFFLOAD = f"{TAG}offload."


def tag_of(decision: ir.Decision) -> str | None:
    """The tag of a value that something was decided about; None for one that is computed again.

    Raises:
      UnsupportedDecisionError: It should be partitioned.

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
class Tagged:
    """JAX's policy for scopes.

    Attributes:
      hidden: Rules on names that stand where no trace shows them (in the forward rule of a `jax.custom_vjp`): these are
        matched by name when JAX gets there.
    """

    hidden: tuple[Rule, ...] = ()

    def __call__(self, primitive: Any, *_: Any, **params: Any) -> Any:
        """What JAX does with the results of an equation."""
        if primitive.name != "name":
            return Recompute
        name = params["name"]
        if not name.startswith(TAG):
            decided = next((rule.decision for rule in self.hidden if globs(rule.match.name or "", name)), None)
            name = "" if decided is None else tag_of(decided) or ""
        if name.startswith(_OFFLOAD):
            return Offloadable(src="device", dst=name.removeprefix(_OFFLOAD))
        return Saveable if name == SAVE else Recompute


def jax_policy(hidden: tuple[Rule, ...], tags: Collection[str]) -> Any:
    """The policy for `jax.checkpoint`.

    Under `jax_remat3` of jax 0.10 only JAX's own lists of names mean anything, so that is what it gets.

    Raises:
      UnsupportedDecisionError: The list of names cannot say it.
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


def is_ours(policy: Any) -> bool:
    """Whether a policy of some `jax.checkpoint` is that of a scope."""
    return isinstance(policy, Tagged) or (policy is not None and policy is _names_only())


def is_remat3() -> bool:
    """Whether `jax.checkpoint` is JAX's new one, which asks its policy about names and products alone."""
    return bool(getattr(jax.config, "jax_remat3", False))


def takes_only_names() -> bool:
    """Whether `jax.checkpoint` leaves policies uncalled that are not JAX's own lists of names."""
    return is_remat3() and type(_names_only()).__name__ == "SaveOnlyTheseNames"


@functools.lru_cache(maxsize=256)
def _tagged(hidden: tuple[Rule, ...]) -> Tagged:
    """One object for equal policies, or JAX traces derivatives anew."""
    return Tagged(hidden)


@functools.cache
def _names_only() -> Any:
    return jax.checkpoint_policies.save_only_these_names(SAVE)
