"""Reads a policy of `jax.checkpoint` from the callable: JAX's own policies are known, others are not.

JAX's policies are functions over lists of names, or small classes with such lists, by version of jax. Read before
`context`.
"""

import gc
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal

import jax

PolicyKind = Literal["nothing", "everything", "dots", "dots_without_batch", "names", "stub", "other"]
_KNOWN: dict[str, PolicyKind] = {
    "nothing_saveable": "nothing",
    "everything_saveable": "everything",
    "dots_saveable": "dots",
    "dots_with_no_batch_dims_saveable": "dots_without_batch",
}
_KIND_OF_FACTORY: dict[str, PolicyKind] = {
    "save_anything_except_these_names": "stub",
    "save_only_these_names": "names",
    "SaveOnlyTheseNames": "names",
    "save_any_names_but_these": "names",
    "SaveAnyNamesButThese": "names",
    "save_and_offload_only_these_names": "names",
    "offload_dot_with_no_batch_dims": "dots_without_batch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPolicy:
    """The content of a policy: the property of equations that decides, and names.

    Names are saved, offloaded, or excluded, all other names being saved.
    """

    kind: PolicyKind
    saved: frozenset[str] = frozenset()
    offloaded: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        """All names that it mentions."""
        return self.saved | self.offloaded | self.excluded


def read_policies(policy: Callable[..., Any] | None) -> tuple[ReadPolicy, ...]:
    """Reads a policy of `jax.checkpoint`; None saves nothing. One entry; of two policies joined, one each.

    Example:
      >>> (read,) = read_policies(jax.checkpoint_policies.save_only_these_names("qkv"))
      >>> read.kind, sorted(read.saved)
      ('names', ['qkv'])
    """
    if policy is None:
        return (ReadPolicy(kind="nothing"),)
    for name, kind in _KNOWN.items():
        if policy is getattr(jax.checkpoint_policies, name, None):
            return (ReadPolicy(kind=kind),)
    if not str(getattr(policy, "__module__", None) or type(policy).__module__).startswith("jax."):
        return (ReadPolicy(kind="other"),)
    held = _held(policy)
    factory = str(getattr(policy, "__qualname__", type(policy).__name__)).partition(".")[0]
    if "policy_1" in held and "policy_2" in held:
        return read_policies(held["policy_1"]) + read_policies(held["policy_2"])
    return (
        ReadPolicy(
            kind=_KIND_OF_FACTORY.get(factory, "other"),
            saved=_names(held, "names_which_can_be_saved", "saveable_names"),
            offloaded=_names(held, "names_which_can_be_offloaded"),
            excluded=_names(held, "names_not_to_save", "names"),
        ),
    )


def _held(policy: object) -> dict[str, Any]:
    """The variables that a policy closes over, or its attributes."""
    if inspect.isfunction(policy):
        return dict(inspect.getclosurevars(policy).nonlocals)
    return {name: getattr(policy, name, None) for name in ("saveable_names", "names")}


def _names(held: dict[str, Any], *keys: str) -> frozenset[str]:
    found = (held[key] for key in keys if held.get(key) is not None)
    return frozenset(name for names in found for name in names)


def primal_of_name(name: str) -> str | None:
    """A `jax.custom_vjp`, as text, whose primal function has a name that its forward rule does not have.

    No trace of a differentiated step shows the primal function, because the forward rule replaces it. So its code is
    searched for the name as a constant.
    """
    for each in gc.get_referrers(jax.custom_vjp):  # objects refer to their class; a list of all objects is slower
        if type(each) is jax.custom_vjp:
            code = _code(each.fun)
            if code is not None and name in _texts(code) and name not in _texts(_code(getattr(each, "fwd", None))):
                return f"{code.co_name} ({code.co_filename}:{code.co_firstlineno})"
    return None


def _code(function: Callable[..., Any] | None) -> CodeType | None:
    while hasattr(function, "func") or hasattr(function, "__wrapped__"):
        function = getattr(function, "func", None) or function.__wrapped__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _texts(code: CodeType | None) -> set[str]:
    """The constants of a function and of those in it that are texts."""
    constants = [] if code is None else code.co_consts
    inner = [_texts(each) for each in constants if isinstance(each, CodeType)]
    return {each for each in constants if isinstance(each, str)}.union(*inner)
