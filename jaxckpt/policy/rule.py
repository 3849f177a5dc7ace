"""Rules: a match on forward values, and the decision for them between the forward and the backward pass.

A match is a conjunction: every key that is given must hold. Keys on scopes, names and primitives are globs, in which
"*" also matches "/" and "{query,key}_proj" means either.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import translate
from functools import lru_cache
from typing import Any, Literal

from jaxckpt.ir import Decision, Trait
from jaxckpt.ir.kind import Kind, kind_of
from jaxckpt.ir.layers import layers_from_ranges

Strength = Literal["must", "prefer"]
Boundary = Literal["input", "output"]
_MOST_LAYERS = 100_000
_MOST_ALTERNATIVES = 256
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardValue:
    """The properties of a forward value of a graph, and of the op that makes it, that rules match.

    The layer is the number in the scope that counts layers, None where no layers are found; the size is that on one
    device. `read_in` has the scopes of the forward ops that read the value. A value that crosses goes from one stage
    of the forward pass, found by structure, to a later one; one between batched products has no other product on the
    way. Where the kind is None, it is that of the primitive.
    """

    id: int = 0
    scope: str = ""
    layer: int | None = None
    name: str | None = None
    primitive: str = ""
    kind: Kind | None = None
    dtype: str = ""
    size_bytes: int = 0
    flops: int = 0
    is_residual: bool = True
    traits: frozenset[Trait] = frozenset()
    read_in: tuple[str, ...] = ()
    between_batched: bool = False
    crosses: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The values that a rule matches; keys that are None match everything.

    Attributes:
      scope: Glob on the path of the scope; it also matches all below the scope.
      name: Glob on the value's `checkpoint_name`; a value without a name never matches.
      primitive: Glob on the primitive ("dot_general"), or a kind of primitives such as "contraction".
      dtype: Glob on the type ("float32", "bfloat16").
      layers: Numbers of layers, "0-3,7".
      every: Layers whose number is a multiple of this.
      min_bytes: The value has at least so many bytes on one device.
      max_bytes: And at most so many.
      min_flops: The op that makes it does at least so many FLOPs.
      batched: Whether the op is a matrix product with batch dimensions, such as attention scores.
      between_batched: Whether it lies between two such products, and no other: attention scores and weights, masks and
        dropout on them; in a mixture of experts the hidden values of the experts.
      random: Whether the op draws random bits.
      collective: Whether devices exchange data in the op.
      boundary: "input": it is made outside the scope and read inside; "output": the other way round. Without a scope
        both mean what crosses from one stage of the forward pass to the next, stages being found by structure.

    Example:
      >>> match = Match(scope="*/block_*/attn", layers="0-3,7")
      >>> match.holds(ForwardValue(scope="GPT/block_7/attn/qkv", layer=7, primitive="dot_general"))
      True
    """

    scope: str | None = None
    name: str | None = None
    primitive: str | None = None
    dtype: str | None = None
    layers: str | None = None
    every: int | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    min_flops: int | None = None
    batched: bool | None = None
    between_batched: bool | None = None
    random: bool | None = None
    collective: bool | None = None
    boundary: Boundary | None = None

    def __post_init__(self) -> None:
        for glob in (self.scope, self.name, self.primitive, self.dtype):
            _alternatives(glob or "")
        if self.layers is not None:
            layers_from_ranges(self.layers, most=_MOST_LAYERS)
        for key in ("every", "min_bytes", "max_bytes", "min_flops"):
            number = getattr(self, key)
            if number is not None and number < (1 if key == "every" else 0):
                raise ValueError(f"{key} = {number} matches nothing")

    @property
    def names_values(self) -> bool:
        """True if a key names values (name, primitive, trait, boundary), and not places alone."""
        traits = (self.batched, self.between_batched, self.random, self.collective)
        return any(key is not None for key in (self.name, self.primitive, self.boundary, *traits))

    @property
    def given(self) -> dict[str, Any]:
        """The keys that are not None, in order."""
        keys = (each.name for each in fields(self))
        return {key: wanted for key in keys if (wanted := getattr(self, key)) is not None}

    def holds(self, forward_value: ForwardValue) -> bool:
        """True if every key that is given holds for a value."""
        return all(self._holds(key, wanted, forward_value) for key, wanted in self.given.items())

    def _holds(self, key: str, wanted: object, forward_value: ForwardValue) -> bool:
        if key == "boundary":
            return _crosses(str(wanted), self.scope, forward_value)
        if key == "scope" and self.boundary == "input":
            return True  # the boundary key checks the scope: the value comes from outside it
        return _HOLDS[key](wanted, forward_value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A decision for the values that match.

    Attributes:
      match: Which values.
      decision: What happens to them.
      strength: Whether a planner with a budget may overrule it ("prefer") or not ("must").
      optional: Whether it may match nothing where another rule matches; a policy for many models says in several ways
        what it means.
      note: Why, for whoever reads the policy.
    """

    match: Match = field(default_factory=Match)
    decision: Decision
    strength: Strength = "must"
    optional: bool = False
    note: str = ""

    def __str__(self) -> str:
        keys = [f"{each.name} = {getattr(self.match, each.name)!r}" for each in fields(self.match)]
        given = [key for key in keys if not key.endswith("= None")]
        return f"{', '.join(given) or 'everything'}: {type(self.decision).__name__.lower()}"


@lru_cache(maxsize=1024)
def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, _alternatives(glob))))


@lru_cache(maxsize=1024)
def _alternatives(glob: str) -> tuple[str, ...]:
    """The globs that one with braces stands for: "{a,b}_proj" is "a_proj" or "b_proj"."""
    found = [glob]
    while any(map(_BRACES.search, found)):  # innermost first
        found = list(dict.fromkeys(split for each in found for split in _split(each)))
        if len(found) > _MOST_ALTERNATIVES:
            raise ValueError(f"{glob!r} stands for more than {_MOST_ALTERNATIVES} names")
    return tuple(found)


def _split(glob: str) -> list[str]:
    match = _BRACES.search(glob)
    if match is None:
        return [glob]
    return [f"{glob[: match.start()]}{choice}{glob[match.end() :]}" for choice in match[1].split(",")]


def globs(glob: str, text: str | None) -> bool:
    """True if a glob matches a text; no glob matches None."""
    return text is not None and _pattern(glob).match(text) is not None


def _crosses(boundary: str, scope: str | None, forward_value: ForwardValue) -> bool:
    if scope is None:
        return forward_value.crosses
    if boundary == "output":
        home = outermost(scope, forward_value.scope)
        return home is not None and any(home not in _around(reader) for reader in forward_value.read_in)
    outside = _around(forward_value.scope)
    homes = (outermost(scope, reader) for reader in forward_value.read_in)
    return any(home is not None and home not in outside for home in homes)


def _around(scope: str) -> list[str]:
    """The scope and all scopes around it, innermost first."""
    names = scope.split("/")
    return ["/".join(names[:end]) for end in range(len(names), 0, -1)]


def outermost(glob: str, scope: str) -> str | None:
    """The outermost scope that a glob matches, of a scope and those around it.

    Example:
      >>> outermost("*/block_*", "GPT/block_3/attn/qkv")
      'GPT/block_3'
    """
    return next((path for path in reversed(_around(scope)) if globs(glob, path)), None)


def _is_primitive(glob: str, value: ForwardValue) -> bool:
    kind = value.kind or kind_of(value.primitive)
    return any(kind == each if each in set(Kind) else globs(each, value.primitive) for each in _alternatives(glob))


@lru_cache(maxsize=1024)
def layers_of_ranges(ranges: str) -> frozenset[int]:
    """The numbers of layers in a text such as "0-3,7"; any other text is a `ValueError`."""
    return frozenset(layers_from_ranges(ranges, most=_MOST_LAYERS))


_HOLDS: Mapping[str, Callable[[Any, ForwardValue], bool]] = {
    "scope": lambda glob, c: outermost(glob, c.scope) is not None,
    "name": lambda glob, c: globs(glob, c.name),
    "primitive": _is_primitive,
    "dtype": lambda glob, c: globs(glob, c.dtype),
    "layers": lambda ranges, c: c.layer is not None and c.layer in layers_of_ranges(ranges),
    "every": lambda k, c: c.layer is not None and c.layer % k == 0,
    "min_bytes": lambda least, c: c.size_bytes >= least,
    "max_bytes": lambda most, c: c.size_bytes <= most,
    "min_flops": lambda least, c: c.flops >= least,
    "batched": lambda wanted, c: wanted == (Trait.BATCHED in c.traits),
    "between_batched": lambda wanted, c: wanted == c.between_batched,
    "random": lambda wanted, c: wanted == (Trait.RANDOM in c.traits),
    "collective": lambda wanted, c: wanted == (Trait.COLLECTIVE in c.traits),
}
