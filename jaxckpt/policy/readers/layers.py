"""Rules for the layers that a configuration selects.

Trainers count layers from 0 and cut a model into segments of some layers each, or recompute the first few of each
pipeline stage. A segment's input is the input of its first layer, which is the output of the layer before it.

Read after `reading`.
"""

from collections.abc import Iterable

from jaxckpt.ir import Decision, Recompute, Save
from jaxckpt.ir.layers import layer_ranges
from jaxckpt.policy.rule import Match, Rule

FLOATS = "*float*"
"""Types that PyTorch's trainers offload or partition; masks and indices stay."""


def inputs(decision: Decision, *, scope: str | None = None, note: str = "") -> tuple[Rule, ...]:
    """Rules for the inputs of layers: a decision for floating-point inputs; masks and indices are saved.

    Without a scope stages are found by structure.
    """
    rest = Rule(match=Match(scope=scope, boundary="input"), decision=Save(), note=note)
    if isinstance(decision, Save):
        return (rest,)
    moved = Rule(match=Match(scope=scope, boundary="input", dtype=FLOATS), decision=decision, note=note)
    return moved, Rule(match=rest.match, decision=Save(), note="masks and indices stay")


def within_segments(size: int, *, num_layers: int | None, scope: str | None = None) -> tuple[Rule, ...]:
    """The rule that recomputes what crosses between layers of one segment; none for segments of one layer.

    Example:
      >>> print(*within_segments(2, num_layers=6))
      layers = '0,2,4', boundary = 'input': recompute
    """
    inner = [layer for layer in range((num_layers or 1) - 1) if (layer + 1) % size]
    if not inner:
        return ()
    match = Match(scope=scope, layers=layer_ranges(inner), boundary="input")
    return (Rule(match=match, decision=Recompute(), note=f"segments of {size} layers"),)


def recomputed(layers: Iterable[int] | None, *, note: str = "") -> Rule:
    """The rule that recomputes the values of some layers; None for every layer."""
    match = Match(every=1) if layers is None else Match(layers=layer_ranges(layers))
    return Rule(match=match, decision=Recompute(), note=note)
