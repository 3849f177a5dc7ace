"""Regions and rules for the layers that a configuration selects.

Trainers count layers from 0 and cut a model into segments of some layers each, or recompute the first few of each
pipeline stage. A segment's input is the input of its first layer, which is the output of the layer before it.

Read after `reading`.
"""

from collections.abc import Iterable
from typing import Any

from jaxckpt.ir import Decision, Save
from jaxckpt.ir.layers import layer_ranges
from jaxckpt.policy.policy import Regions
from jaxckpt.policy.rule import Match, Rule

FLOATS = "*float*"
"""Types that PyTorch's trainers offload or partition; masks and indices stay."""
FOUND = (
    "a layer is a scope whose name differs from others in a number alone (block_0, block_1, ...); without such scopes, "
    "one of the runs of ops that repeat; without these, the body of a loop; without these, a stage found by structure. "
    "jaxckpt.explain(step, *args, policy=...) says which layers it found, and how many."
)
"""The sentence of a reading that names no scope of layers."""


def regions_of_layers(
    scope: str | None = None, *, segment: int = 1, numbers: Iterable[int] | None = None, **switches: Any
) -> Regions:
    """The regions of segments of layers, of all or of those with some numbers.

    Without a scope the layers are those that are found in the model. The inputs of a segment are saved, unless a rule
    for them decides otherwise; everything else in it is recomputed.

    Example:
      >>> print(regions_of_layers("*/block_*", segment=2))
      of layers in segments of 2 in */block_*
    """
    chosen = None if numbers is None else layer_ranges(numbers)
    return Regions(scope=scope or "", segment=segment, layers=chosen, **switches)


def inputs(decision: Decision, *, note: str = "") -> tuple[Rule, ...]:
    """Rules for the inputs of regions: a decision for floating-point inputs; others are saved, as without a rule."""
    if isinstance(decision, Save):
        return ()
    return (Rule(match=Match(boundary="input", dtype=FLOATS), decision=decision, note=note),)
