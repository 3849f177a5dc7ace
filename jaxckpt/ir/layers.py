"""Folding of equal layers into one name: "GPT/block_*/qkv" for layers 0-11 instead of twelve scopes.

Nothing marks the number in a scope that counts the layers: in "GPT2/block_3/LayerNorm_0" it is neither the first nor
the last, and "block_3/block_3.attention" has it twice. So each number is tried, and the one that folds most layers is
taken; of two equal ones, the outer one. A scope that folds with no other stays as it is.

Plan files and reports both fold here, so that they have the same groups.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Generic, TypeVar

_Item = TypeVar("_Item")
_NUMBER = re.compile(r"(?<![0-9])(0|[1-9][0-9]{0,8})(?![0-9])")
"""A number that is written in one way only, so that "block_03" is not folded and then unfolded as "block_3"."""
_MOST_PLACES = 10
"""So many choices of places that hold the same number are tried. Bounds the work on long scopes; not benchmarked."""
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers(Generic[_Item]):
    """Items of one scope, or of one scope in several layers.

    Attributes:
      scope: With "*" in the place of the layer's number where `layers` is not empty.
      layers: Numbers of the layers, in the order of their first items; empty where nothing was folded.
      members: For each layer its items, in order; all of them in one tuple where nothing was folded.
    """

    scope: str
    layers: tuple[int, ...]
    members: tuple[tuple[_Item, ...], ...]

    @property
    def items(self) -> tuple[_Item, ...]:
        """All items, layer by layer."""
        return tuple(item for layer in self.members for item in layer)


def fold_layers(
    items: Iterable[_Item], *, scope: Callable[[_Item], str], alike: Callable[[_Item], Hashable]
) -> tuple[Layers[_Item], ...]:
    """Groups items that differ in nothing but one number of their scope, in the order of their first items.

    Items are grouped only where `alike` is equal, and a scope with a "*" of its own is never folded. Complexity: linear
    in items times the numbers in a scope.

    Example:
      >>> (group,) = fold_layers(["a/0/b", "a/1/b", "a/2/b"], scope=str, alike=lambda item: None)
      >>> group.scope, layer_ranges(group.layers)
      ('a/*/b', '0-2')
    """
    items = list(items)
    keys = [alike(item) for item in items]
    candidates = [tuple(_patterns(scope(item))) for item in items]
    reached: defaultdict[tuple[str, Hashable], set[int]] = defaultdict(set)
    for key, patterns in zip(keys, candidates, strict=True):
        for pattern, layer in patterns:
            reached[pattern, key].add(layer)
    groups: dict[tuple[str | None, str, Hashable], list[tuple[int, _Item]]] = {}
    for item, key, patterns in zip(items, keys, candidates, strict=True):
        counts = [len(reached[pattern, key]) for pattern, _ in patterns]
        if max(counts, default=0) <= 1:
            groups.setdefault((None, scope(item), key), []).append((0, item))
        else:
            pattern, layer = patterns[counts.index(max(counts))]
            groups.setdefault((pattern, "", key), []).append((layer, item))
    return tuple(_group(pattern, members, scope) for (pattern, _, _), members in groups.items())


def unfolded_scope(scope: str, layer: int) -> str:
    """The scope of one layer of a folded scope.

    Example:
      >>> unfolded_scope("GPT/block_*/qkv", 3)
      'GPT/block_3/qkv'
    """
    return scope.replace("*", str(layer))


def layer_ranges(layers: Iterable[int]) -> str:
    """Numbers as text, in the order given; runs of successors are folded.

    Example:
      >>> layer_ranges([0, 1, 2, 5, 4])
      '0-2,5,4'
    """
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def layers_from_ranges(text: str, *, most: int) -> tuple[int, ...]:
    """Reads what `layer_ranges` writes ("0-11,13"); anything else, and more than `most` numbers, is a ValueError."""
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f'{text!r} is no list of layers such as "0-11,13"')
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first >= most - len(numbers):
            raise ValueError(f"{text!r} does not name {most} layers")
        numbers.extend(range(first, last + 1))
    return tuple(numbers)


def _patterns(scope: str) -> Iterator[tuple[str, int]]:
    """For each number of a scope, the scope with "*" in its place, and the number; outermost first.

    Then the same for places that hold the same number, with "*" in several of them.
    """
    if "*" in scope:
        return
    matches = list(_NUMBER.finditer(scope))
    for match in matches:
        yield _starred(scope, (match,)), int(match[0])
    for number in dict.fromkeys(match[0] for match in matches):
        equal = [match for match in matches if match[0] == number]
        for size in range(2, len(equal) + 1):
            for places in islice(combinations(equal, size), _MOST_PLACES):
                yield _starred(scope, places), int(number)


def _starred(scope: str, places: Sequence[re.Match[str]]) -> str:
    for match in reversed(places):
        scope = f"{scope[: match.start()]}*{scope[match.end() :]}"
    return scope


def _group(pattern: str | None, members: Sequence[tuple[int, _Item]], scope: Callable[[_Item], str]) -> Layers[_Item]:
    """One group; items of a single layer keep their scope."""
    layers: dict[int, list[_Item]] = {}
    for layer, item in members:
        layers.setdefault(layer, []).append(item)
    if pattern is None or len(layers) == 1:
        (items,) = layers.values()
        return Layers(scope=scope(items[0]), layers=(), members=(tuple(items),))
    return Layers(scope=pattern, layers=tuple(layers), members=tuple(map(tuple, layers.values())))
