"""A rule says of some values what happens to them between the forward and the backward pass.

What it matches is a conjunction: every key that is given must hold. What is said of scopes, names and primitives are
globs, in which "*" also passes "/".
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import translate
from functools import lru_cache
from typing import Any, Literal

from jaxckpt.ir import Decision, layers_from_ranges
from jaxckpt.ir.kind import Kind, kind_of

Strength = Literal["must", "prefer"]
_MOST_LAYERS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A forward value, as rules see it.

    Attributes:
      value: Its id in the graph.
      scope: Of the op that makes it.
      layer: The number in its scope that counts layers; None where no layers are found.
      name: Its `checkpoint_name`, if it has one.
      primitive: Of the op that makes it.
      dtype: Its type.
      size_bytes: On one device.
      flops: Arithmetic of the op that makes it.
      is_residual: Whether the backward reads it.
    """

    value: int
    scope: str
    layer: int | None
    name: str | None
    primitive: str
    dtype: str
    size_bytes: int
    flops: int
    is_residual: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What a rule matches; keys that are None match everything.

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

    Example:
      >>> match = Match(scope="*/block_*/attn", layers="0-3,7")
      >>> match.holds(Candidate(value=5, scope="GPT/block_7/attn/qkv", layer=7, name=None, primitive="dot_general",
      ...     dtype="bfloat16", size_bytes=1024, flops=10, is_residual=True))
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

    def __post_init__(self) -> None:
        if self.layers is not None:
            layers_from_ranges(self.layers, most=_MOST_LAYERS)
        for key in ("every", "min_bytes", "max_bytes", "min_flops"):
            number = getattr(self, key)
            if number is not None and number < (1 if key == "every" else 0):
                raise ValueError(f"{key} = {number} matches nothing")

    @property
    def names_values(self) -> bool:
        """Whether it means the very values that it matches, and not all that lies in some place."""
        return self.name is not None or self.primitive is not None

    def holds(self, candidate: Candidate) -> bool:
        """Whether every key that is given holds for a value."""
        return not any(self.failing(candidate))

    def failing(self, candidate: Candidate) -> Iterator[str]:
        """The keys that do not hold for a value."""
        for each in fields(self):
            wanted = getattr(self, each.name)
            if wanted is not None and not _HOLDS[each.name](wanted, candidate):
                yield each.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What happens to the values that something matches.

    Attributes:
      match: Which values.
      decision: What happens to them.
      strength: Whether a planner with a budget may overrule it ("prefer") or not ("must").
      note: Why, for whoever reads the policy.
    """

    match: Match = field(default_factory=Match)
    decision: Decision
    strength: Strength = "must"
    note: str = ""

    def __str__(self) -> str:
        keys = [f"{each.name} = {getattr(self.match, each.name)!r}" for each in fields(self.match)]
        given = [key for key in keys if not key.endswith("= None")]
        return f"{', '.join(given) or 'everything'}: {type(self.decision).__name__.lower()}"


@lru_cache(maxsize=1024)
def _pattern(glob: str) -> re.Pattern[str]:
    return re.compile(translate(glob))


def _globs(glob: str, text: str | None) -> bool:
    return text is not None and _pattern(glob).match(text) is not None


def _in_scope(glob: str, scope: str) -> bool:
    """The scope itself or one around it."""
    names = scope.split("/")
    return any(_globs(glob, "/".join(names[:end])) for end in range(len(names), 0, -1))


def _is_primitive(glob: str, primitive: str) -> bool:
    if glob in set(Kind):
        return kind_of(primitive) == glob
    return _globs(glob, primitive)


@lru_cache(maxsize=1024)
def _layers(ranges: str) -> frozenset[int]:
    return frozenset(layers_from_ranges(ranges, most=_MOST_LAYERS))


_HOLDS: Mapping[str, Callable[[Any, Candidate], bool]] = {
    "scope": lambda glob, c: _in_scope(glob, c.scope),
    "name": lambda glob, c: _globs(glob, c.name),
    "primitive": lambda glob, c: _is_primitive(glob, c.primitive),
    "dtype": lambda glob, c: _globs(glob, c.dtype),
    "layers": lambda ranges, c: c.layer is not None and c.layer in _layers(ranges),
    "every": lambda k, c: c.layer is not None and c.layer % k == 0,
    "min_bytes": lambda least, c: c.size_bytes >= least,
    "max_bytes": lambda most, c: c.size_bytes <= most,
    "min_flops": lambda least, c: c.flops >= least,
}
