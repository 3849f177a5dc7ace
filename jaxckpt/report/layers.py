"""Equal rows of numbered layers, shown once: "GPT/block_*/qkv" for layers 0-11.

Read after `tree`.
"""

import re
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")
_NUMBER = re.compile(r"(?<![0-9])(0|[1-9][0-9]*)(?![0-9])")


def fold_layers(
    items: Iterable[_Item], *, scope: Callable[[_Item], str], alike: Callable[[_Item], Hashable]
) -> list[tuple[str, str, list[_Item]]]:
    """Groups items that are alike but for the first number of their scope.

    Args:
      items: What to group, in order.
      scope: The scope of an item.
      alike: Items are grouped only where this is equal.

    Returns:
      For each group its scope, with "*" for the number where there is more than one layer, the layers ("0-11"), and
      the items; groups in the order of their first item.
    """
    groups: dict[tuple[str, Hashable], list[tuple[int | None, _Item]]] = {}
    for item in items:
        pattern, layer = _pattern(scope(item))
        groups.setdefault((pattern, alike(item)), []).append((layer, item))
    folded = []
    for (pattern, _), members in groups.items():
        layers = sorted({layer for layer, _ in members if layer is not None})
        inner = [item for _, item in members]
        if len(layers) <= 1:
            folded.append((scope(inner[0]), "", inner))
        else:
            folded.append((pattern, layer_ranges(layers), inner))
    return folded


def layer_ranges(layers: Iterable[int]) -> str:
    """Ascending numbers as ranges.

    Example:
      >>> layer_ranges([0, 1, 2, 5])
      '0-2, 5'
    """
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _pattern(scope: str) -> tuple[str, int | None]:
    match = _NUMBER.search(scope)
    if match is None:
        return scope, None
    return f"{scope[: match.start()]}*{scope[match.end() :]}", int(match[0])
