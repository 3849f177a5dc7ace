"""Groups of buffers that are drawn in one colour: layers, lines of code, roles, parts of the step; and the colours.

A layer is the scope at the depth at which the layers of the model lie. The depth is where numbered scopes
(`GPT/block_0` ... `GPT/block_11`) hold most bytes; a model without numbers is told apart by its top names. What is
numbered forms a family.

Colours are chosen so that people with any kind of colour vision can tell them apart, on a white and on a nearly black
ground. Members of a family are steps of one gradient whose lightness rises with the number (the first family:
viridis), so that a stack of equal layers reads as a gradient even in grey. All else has a hue of its own, after Okabe
and Ito; what belongs nowhere is grey.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxckpt.hlo import Buffer, Part, Role
from jaxckpt.ir.layers import fold_layers
from jaxckpt.ir.scope import scope_at_depth

MOST_GROUPS = 256
"""Layers with fewer bytes than the first so many are put together."""
SMALLEST_FAMILY = 3
"""Two equal layers are told apart better by two colours than by the ends of a gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Buffers that are drawn in one colour."""

    key: str  # the scope of a layer, or the value of a role or part; "" for what belongs to none
    label: str  # the same for a legend, without the names that all layers share
    family: int | None = None
    position: float = 0.0  # its place in its family, from 0.0 to 1.0


def layer_groups(buffers: Sequence[Buffer]) -> tuple[tuple[Group, ...], dict[str, int]]:
    """The layers of some buffers, and for each scope the index of its layer.

    Layers are in the order in which they begin, numbered ones by number, what has no scope last.
    """
    size_bytes: Counter[str] = Counter()
    for buffer in sorted(buffers, key=lambda b: (b.born, b.id)):
        size_bytes[buffer.scope] += max(buffer.size_bytes, 1)
    depth = _layer_depth(size_bytes)
    layer_bytes: Counter[str] = Counter()
    for scope, held_bytes in size_bytes.items():
        layer_bytes[scope_at_depth(scope, depth)] += held_bytes
    shown = set(sorted(filter(None, layer_bytes), key=lambda layer: -layer_bytes[layer])[: MOST_GROUPS - 1])
    groups = _with_labels(tuple(_in_families([layer for layer in layer_bytes if layer in shown])))
    left = len(layer_bytes.keys() - shown - {""})
    if len(shown) < len(layer_bytes):
        groups = (*groups, Group(key="", label=f"no scope and {left} small layers" if left else "no scope"))
    index = {group.key: at for at, group in enumerate(groups)}
    return groups, {scope: index.get(scope_at_depth(scope, depth), len(groups) - 1) for scope in size_bytes}


def line_groups(buffers: Sequence[Buffer]) -> tuple[tuple[Group, ...], dict[str, int]]:
    """The lines of code that write most bytes, and for each source the index of its group.

    Lines are in the order in which their first buffers begin; all others are one group, which is last.
    """
    size_bytes: Counter[str] = Counter()
    for buffer in sorted(buffers, key=lambda b: (b.born, b.id)):
        size_bytes[buffer.source] += buffer.size_bytes
    shown = {source for source, _ in size_bytes.most_common(len(_HUES)) if source}
    groups = [Group(key=source, label="/".join(source.split("/")[-2:])) for source in size_bytes if source in shown]
    if len(shown) < len(size_bytes):
        groups.append(Group(key="", label="other lines"))
    index = {group.key: at for at, group in enumerate(groups)}
    return tuple(groups), {source: index.get(source, len(groups) - 1) for source in size_bytes}


def _layer_depth(size_bytes: dict[str, int]) -> int:
    deepest = max((scope.count("/") + 1 for scope in size_bytes if scope), default=1)
    numbered = {depth: _numbered_bytes(size_bytes, depth) for depth in range(1, deepest + 1)}
    best = max(numbered, key=lambda depth: numbered[depth])  # the outermost of equals
    if numbered[best]:
        return best
    return next((d for d in numbered if len({scope_at_depth(scope, d) for scope in size_bytes if scope}) > 1), 1)


def _numbered_bytes(size_bytes: dict[str, int], depth: int) -> int:
    """Bytes in scopes whose name at a depth differs from others by nothing but the number of the layer."""
    deep = {scope: scope_at_depth(scope, depth) for scope in size_bytes if scope and scope.count("/") + 1 >= depth}
    layers = {
        item
        for folded in _folded(dict.fromkeys(deep.values()))
        if folded.layers and "*" in folded.scope.rsplit("/", 1)[-1]
        for item in folded.items
    }
    return sum(size_bytes[scope] for scope, layer in deep.items() if layer in layers)


def _in_families(layers: list[str]) -> Iterator[Group]:
    families = 0
    for folded in _folded(layers):
        items = [item for _, item in sorted(zip(folded.layers, folded.items, strict=False))] or folded.items
        is_family = len(items) >= SMALLEST_FAMILY and bool(folded.layers)
        for at, layer in enumerate(items):
            group = Group(key=layer, label=layer)
            yield replace(group, family=families, position=at / (len(items) - 1)) if is_family else group
        families += is_family


def _with_labels(groups: tuple[Group, ...]) -> tuple[Group, ...]:
    """Labels without the names that all layers begin with."""
    paths = [group.key.split("/") for group in groups]
    shared = 0
    while len({path[shared] if len(path) > shared + 1 else None for path in paths} - {None}) == 1 and all(
        len(path) > shared + 1 or path == paths[0][: len(path)] for path in paths
    ):
        shared += 1
    return tuple(
        replace(group, label="/".join(path[shared:]) or group.key) for group, path in zip(groups, paths, strict=True)
    )


def _folded(scopes: Iterable[str]) -> tuple[Any, ...]:
    return fold_layers(scopes, scope=str, alike=lambda _: None)


def plain_text(text: str) -> str:
    r"""A name as it may stand in any document: what cannot be printed is replaced.

    Example:
      >>> plain_text("a\x00b\nc")
      'a?b?c'
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u2028\u2029\u202a-\u202e]", "?", text)


### Colours

NEUTRAL = "#9a9da3"
_GRADIENTS = (
    ("#4e479a", "#3f5e98", "#2d7590", "#218f8d", "#2fa87f", "#58c265", "#9fd43a", "#dbe12c"),
    ("#7a1f5c", "#9c2f6b", "#bd4373", "#d85f72", "#ea8070", "#f3a57c", "#f6c89a"),
    ("#2b4a3c", "#3a6a4b", "#56885a", "#7da573", "#a8c195", "#cfdcbf"),
)
_HUES = ("#d55e00", "#cc79a7", "#e69f00", "#56b4e9", "#8a5a3c", "#b07aa1", "#f0b27a", "#7f9cc4")
_FIXED = {
    Role.PARAMETER.value: "#4e479a",
    Role.OPTIMIZER_STATE.value: "#b07aa1",
    Role.INPUT.value: "#c9b98a",
    Role.CONSTANT.value: "#c9b98a",
    Role.OUTPUT.value: "#8a5a3c",
    Role.RESIDUAL.value: "#2a78b5",
    Role.ACTIVATION.value: "#7cc4ee",
    Role.LOGITS.value: "#d55e00",
    Role.COTANGENT.value: "#e6a417",
    Role.GRADIENT.value: "#cc79a7",
    Role.COLLECTIVE.value: "#f0e442",
    Role.HOST_COPY.value: "#8a5a3c",
    Role.WORKSPACE.value: "#6b7f86",
    Part.FORWARD.value: "#2a78b5",
    Part.BACKWARD.value: "#e6a417",
    Part.RECOMPUTE.value: "#d55e00",
    Part.UPDATE.value: "#0a9a75",
}


def colours(groups: Sequence[Group]) -> tuple[str, ...]:
    """A colour, "#rrggbb", for each group."""
    single = [group for group in groups if group.family is None and group.key and group.key not in _FIXED]
    hues = {group.key: _HUES[at % len(_HUES)] for at, group in enumerate(single)}
    return tuple(_colour(group, hues) for group in groups)


def part_colour(label: str) -> str:
    """The colour of a part of the step, grey where it is unknown."""
    return _FIXED.get(label, NEUTRAL)


def _colour(group: Group, hues: dict[str, str]) -> str:
    if not group.key:
        return NEUTRAL
    if group.family is not None:
        return _between(_GRADIENTS[group.family % len(_GRADIENTS)], group.position)
    return _FIXED.get(group.key) or hues[group.key]


def _between(gradient: Sequence[str], position: float) -> str:
    place = position * (len(gradient) - 1)
    at = min(int(place), len(gradient) - 2)
    low, high = (bytes.fromhex(colour[1:]) for colour in gradient[at : at + 2])
    mixed = (round(a + (b - a) * (place - at)) for a, b in zip(low, high, strict=True))
    return f"#{bytes(mixed).hex()}"
