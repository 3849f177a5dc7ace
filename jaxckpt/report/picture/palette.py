"""Colours of groups, chosen so that people with any kind of colour vision can tell them apart.

Members of a family are steps of one gradient whose lightness rises with the number (the first family: viridis), so
that a stack of equal layers reads as a gradient even in grey. All else has a hue of its own, after Okabe and Ito;
what belongs nowhere is grey. The colours hold on a white and on a nearly black ground.
"""

from collections.abc import Sequence

from jaxckpt.hlo import Part, Role
from jaxckpt.report.picture.groups import Group

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
