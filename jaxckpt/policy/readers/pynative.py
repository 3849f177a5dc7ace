"""mindformers in PyNative mode: `recompute`, `recompute_comm` and `swap`, with layers such as "0-3".

Layers count from 0, a range includes both ends, and a list of ranges must ascend. A pattern on modules matches full
paths below a layer. Full recomputation of a layer overrides a selection of its modules, a module overrides modules
inside it, and recomputing overrides swapping.

Read after `cells`.
"""

import re
from collections.abc import Mapping
from typing import Any

from jaxckpt.ir import Recompute, Save
from jaxckpt.policy.policy import Policy
from jaxckpt.policy.readers.cells import (
    LayerNumbers,
    Swap,
    note_precedence,
    note_selection,
    patterns_of,
    recomputed,
    rules_of_patterns,
    rules_of_swap,
    swap_entries,
)
from jaxckpt.policy.readers.layers import FOUND, regions_of_layers
from jaxckpt.policy.readers.reading import ConfigReader, Reading, integer, one_of

PYNATIVE_KEYS: Mapping[str, Any] = {
    "mode": one_of(("None", "full", "select")) | None,
    "full_recompute_layer": Any,
    "select_module": Any,
    "exclude_op": tuple[str, ...] | None,
}
_LAYER = re.compile(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*")
_MOST = 100_000


def read_pynative(
    document: Mapping[str, Any], *, num_layers: int | None, pipeline_stages: int | None, reader: ConfigReader
) -> Reading:
    """Reads `recompute`, `recompute_comm` and `swap`, alone or in a full configuration.

    `pipeline_stages` must be 1, as in mindformers.
    """
    _require_one_stage(document, pipeline_stages, reader)
    reader.value(integer(1), num_layers, "num_layers")
    most = num_layers if type(num_layers) is int else _MOST
    swap_keys = {"enable": bool, "default_prefetch": integer(1, max(most - 1, 1)), "layer_swap": Any, "op_swap": Any}
    recompute, comm_block, swap = (
        reader.values(keys, reader.table(document, key), f"{key}.")
        for key, keys in (
            ("recompute", PYNATIVE_KEYS),
            ("recompute_comm", {"enable": bool, "select_module": Any}),
            ("swap", swap_keys),
        )
    )
    full = _full(recompute, most, reader)
    selected = _selected("recompute", recompute, most, reader)
    comm = _selected("recompute_comm", comm_block, most, reader)
    swaps = _swaps(swap, most, reader)
    reader.done()
    excluded = dict.fromkeys(recompute.get("exclude_op") or ())
    rules = list(rules_of_patterns(excluded, Save(), reader, key="exclude_op"))
    if full:
        is_selecting = bool(selected or comm)
        rules += recomputed(full, Save(), is_overruling_swaps=bool(swaps), is_overruling_rules=is_selecting)
        reader.understood.append(FOUND)
    if selected:
        note_selection("select_module", reader)
    rules += rules_of_patterns(_without_children(selected, reader), Recompute(), reader, key="select_module")
    rules += rules_of_patterns(comm, Recompute(), reader, key="recompute_comm")
    rules += rules_of_swap(swaps, reader)
    overruled: list[tuple[str, LayerNumbers]] = [("select_module", numbers) for numbers in selected.values()]
    overruled += [("recompute_comm", numbers) for numbers in comm.values()]
    note_precedence(full, [*overruled, *(("swap", numbers) for _, numbers, _ in swaps)], reader)
    return reader.reading(
        Policy(
            name="mindformers-pynative",
            rules=tuple(dict.fromkeys(rules)),
            regions=regions_of_layers(numbers=full) if full else None,
            default="save",
        )
    )


def _require_one_stage(document: Mapping[str, Any], pipeline_stages: int | None, reader: ConfigReader) -> None:
    parallelism = document.get("parallelism")
    stages = pipeline_stages or (parallelism.get("pipeline_parallel") if isinstance(parallelism, Mapping) else None)
    if stages not in (None, 1):
        reader.wrong(f"recompute needs pipeline_parallel = 1, and it is {stages!r}")


def layers_of_specs(key: str, specs: object, most: int, reader: ConfigReader) -> tuple[int, ...]:
    """The layers, below `most`, that texts such as "0-3" and "5" mean.

    Example:
      >>> layers_of_specs("layers", ["0-2", "5"], 8, ConfigReader("here", needed=""))
      (0, 1, 2, 5)
    """
    if not isinstance(specs, (list, tuple)) or not specs:
        reader.wrong(f"{key} = {str(specs)[:80]!r} is no list such as ['0-3']")
        return ()
    found: list[int] = []
    for spec in specs:
        span = _range_of_spec(spec)
        if span is None:
            reader.wrong(f"{key}: {str(spec)[:80]!r} is neither a layer nor a range such as '0-3'")
            return ()
        first, last = span
        if last < first:
            reader.wrong(f"{key}: {spec!r} begins behind its end")
        elif last >= most:
            reader.wrong(f"{key}: layer {last} of {spec!r} is not below {most}")
        elif found and first <= found[-1]:
            reader.wrong(f"{key}: {spec!r} does not stand behind layer {found[-1]}; the list must ascend")
        else:
            found.extend(range(first, last + 1))
    return tuple(found)


def _range_of_spec(spec: object) -> tuple[int, int] | None:
    """First and last layer of a text such as "0-3"; None where it is no such text."""
    match = _LAYER.fullmatch(str(spec)) if isinstance(spec, (str, int)) and not isinstance(spec, bool) else None
    return None if match is None else (int(match[1]), int(match[2] or match[1]))


def _full(settings: Mapping[str, Any], most: int, reader: ConfigReader) -> tuple[int, ...]:
    if settings.get("mode") != "full":
        return ()
    given = settings.get("full_recompute_layer")
    if not given:
        reader.wrong('mode is "full" and full_recompute_layer is missing')
        return ()
    return layers_of_specs("full_recompute_layer", given, most, reader)


def _selected(block: str, settings: Mapping[str, Any], most: int, reader: ConfigReader) -> dict[str, tuple[int, ...]]:
    """The layers of each pattern of a block's `select_module`."""
    given = settings.get("select_module")
    is_required = settings.get("enable") or settings.get("mode") == "select"
    if is_required and not given:
        reader.wrong(f"{block} selects modules and its select_module is missing")
    if not given or not (is_required or settings.get("mode") == "full"):
        return {}
    table = patterns_of(f"{block}.select_module", given, reader)
    return {pattern: layers_of_specs(f"{block} of {pattern}", each, most, reader) for pattern, each in table.items()}


def _swaps(settings: Mapping[str, Any], most: int, reader: ConfigReader) -> list[Swap]:
    if not settings.get("enable"):
        return []
    prefetch = settings.get("default_prefetch") or 1
    return [
        (entry.get("op_name"), layers_of_specs(f"{key} layers", entry.get("layers"), most, reader), prefetch)
        for key, entry in swap_entries(settings, {"layers": Any}, reader)
    ] or [(None, None, prefetch)]


def _without_children(selected: Mapping[str, tuple[int, ...]], reader: ConfigReader) -> dict[str, tuple[int, ...]]:
    """The selected modules, each without layers in which its parent module is recomputed."""
    left: dict[str, tuple[int, ...]] = {}
    for pattern, numbers in selected.items():
        parents = [parent for parent in selected if pattern.startswith((f"{parent}.", f"{parent}\\."))]
        covered = {layer for parent in parents for layer in selected[parent]}.intersection(numbers)
        left[pattern] = tuple(layer for layer in numbers if layer not in covered)
        if covered:
            reader.understood.append(f"select_module: {pattern!r} lies in a module that is recomputed as a whole.")
    return left
