"""Rules for the cells and operators of some layers, as mindformers names them.

Read after `layers`, `patterns`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxckpt.ir import Decision, Offload, Recompute, Save
from jaxckpt.ir.layers import layer_ranges
from jaxckpt.policy.readers.layers import inputs
from jaxckpt.policy.readers.patterns import PatternError, PatternTarget, target_of_pattern
from jaxckpt.policy.readers.reading import ConfigReader
from jaxckpt.policy.rule import Match, Rule

LayerNumbers = tuple[int, ...] | None
"""Numbers of layers; None for all of them."""


SLICED = (
    "recompute_slice_activation: where dimension 0 is sharded already (data parallelism), slicing it over another axis "
    "takes more memory than the whole value did, and adds all-to-alls: read the compiled totals with jaxckpt.compare, "
    "or give another dim in the rule. It leaves a value whole, with a warning, where dimension 0 does not divide: here "
    "a partition that does not divide is an error."
)
"""The sentence about a flag that may raise memory."""

Swap = tuple[str | None, LayerNumbers, int]
"""A pattern (None for full layers), the layers, and the prefetch distance of what is offloaded."""


def layers_text(layers: LayerNumbers) -> str:
    """Layers as people read them."""
    if layers is None:
        return "all layers"
    if not layers:
        return "no layers"
    return f"layer{'s' if len(layers) > 1 else ''} {layer_ranges(layers)}"


def recomputed(
    numbers: LayerNumbers, saved: Decision, *, is_overruling_swaps: bool, is_overruling_rules: bool
) -> Iterator[Rule]:
    """Rules before those for operators and swaps, for layers that regions recompute; rules come before regions.

    `saved` is the decision for the inputs of these layers.
    """
    yield from inputs(saved, note="what the cell reads")
    if is_overruling_rules or is_overruling_swaps:
        yield Rule(match=Match(boundary="input"), decision=Save(), optional=True, note="what the cell reads")
    if is_overruling_swaps:
        yield Rule(match=layer_match(numbers), decision=Recompute(), note="full layers are not swapped")


def note_selection(key: str, reader: ConfigReader) -> None:
    """Notes that recomputing single operators may take more memory than nothing."""
    reader.understood.append(
        f"{key}: operators that are recomputed keep what they read, which may be more than their results: "
        "jaxckpt.explain says by figures where the total is above that of the step as written."
    )


def layer_match(numbers: LayerNumbers) -> Match:
    """The match on the values of some layers."""
    return Match(every=1) if numbers is None else Match(layers=layer_ranges(numbers))


def rules_of_patterns(
    patterns: Mapping[str, LayerNumbers], decision: Decision, reader: ConfigReader, *, key: str
) -> Iterator[Rule]:
    """The rules for patterns in some layers; a note in the place of a rule for what no rule can express.

    `key` is the setting that holds the patterns; in a setting about communication they mean collectives alone.
    """
    for pattern, layers in patterns.items():
        if layers == ():
            continue
        try:
            place = target_of_pattern(pattern)
            match = _match(place, layers, collective="comm" in key)
        except ValueError as error:
            why = str(error) if isinstance(error, PatternError) else f"is too much for a glob: {error}"
            reader.not_carried.append(f"{key}: the pattern {pattern!r} {why}; write a [[rule]] with its scopes.")
            continue
        if place.over_matches:
            reader.not_carried.append(
                f"{key}: the pattern {pattern!r} became {place.scope!r}, which also matches {place.over_matches}; "
                "write the scopes out where that is too much."
            )
        if place.primitive is not None:
            reader.understood.append(
                f"{key}: {pattern!r} ends in an operator, which is {place.primitive} in "
                f"{place.scope or 'any scope'}, as JAX has no scopes for operators."
            )
        yield Rule(match=match, decision=decision, note=f"{key}: {pattern}")


def _match(place: PatternTarget, layers: LayerNumbers, *, collective: bool) -> Match:
    return Match(
        scope=place.scope,
        primitive=place.primitive,
        layers=None if layers is None else layer_ranges(layers),
        every=1 if layers is None else None,
        collective=collective or None,
    )


def rules_of_swap(swaps: Iterable[Swap], reader: ConfigReader) -> Iterator[Rule]:
    """The rules that offload: operators first, then full layers."""
    for pattern, layers, prefetch in sorted(swaps, key=lambda swap: swap[0] is None):
        moved = Offload(prefetch=prefetch)
        if pattern is not None:
            yield from rules_of_patterns({pattern: layers}, moved, reader, key="op_swap")
        elif layers != ():
            yield Rule(match=layer_match(layers), decision=moved, note="layer_swap")


def note_precedence(full: LayerNumbers, others: Iterable[tuple[str, LayerNumbers]], reader: ConfigReader) -> None:
    """Notes where full recomputation of a layer overrules another setting, given with the layers that it is for."""
    for key, layers in dict.fromkeys(others):
        both = layers if full is None else full if layers is None else tuple(sorted({*full} & {*layers}))
        if both is None or both:
            verb = "is" if len(both or ()) == 1 else "are"
            reader.understood.append(f"{key} gives way in {layers_text(both)}, which {verb} recomputed as a whole.")


def swap_entries(
    swap: Mapping[str, Any], keys: Mapping[str, Any], reader: ConfigReader
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The entries of `layer_swap`, then of `op_swap`, each after the setting that holds it."""
    for setting, required in (("layer_swap", ()), ("op_swap", ("op_name",))):
        tables = reader.value(tuple[dict[str, Any], ...] | None, swap.get(setting), setting) or ()
        hints = {**keys, **dict.fromkeys(required, str)}
        for number, table in enumerate(tables, 1):
            if table is not None:
                yield setting, reader.values(hints, table, f"{setting} {number}: ", required=required)


def patterns_of(key: str, value: object, reader: ConfigReader) -> dict[str, Any]:
    """A table of patterns, each with its setting; a list of patterns is for all layers."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(each, str) for each in value):
        return dict.fromkeys(value, True)
    if isinstance(value, dict) and all(isinstance(each, str) and each.strip() for each in value):
        return dict(value)
    reader.wrong(f"{key} = {str(value)[:80]!r} is no table of patterns")
    return {}
