"""mindformers in PyNative mode: `recompute`, `recompute_comm` and `swap`, with layers such as "0-3".

Layers count from 0, a range includes both ends, and a list of ranges must ascend. A pattern on modules matches full
paths below a layer. Full recomputation of a layer overrides a selection of its modules, a module overrides modules
inside it, and recomputing overrides swapping.

Read after `cells`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxckpt.ir import Recompute, Save
from jaxckpt.policy.policy import Policy
from jaxckpt.policy.readers.cells import (
    LayerNumbers,
    Notes,
    note_precedence,
    patterns_of,
    rule_of_pattern,
    rules_of_swap,
)
from jaxckpt.policy.readers.checks import Checks
from jaxckpt.policy.readers.layers import inputs, recomputed
from jaxckpt.policy.readers.reading import Reading
from jaxckpt.policy.rule import Rule

PYNATIVE_KEYS = ("mode", "full_recompute_layer", "select_module", "exclude_op")
_BLOCKS = ("recompute", "recompute_comm", "swap")
_COMM_KEYS = ("enable", "select_module")
_SWAP_KEYS = ("enable", "default_prefetch", "layer_swap", "op_swap")
_LAYER = re.compile(r"\s*([0-9]{1,5})(?:-([0-9]{1,5}))?\s*")
_MOST = 100_000


def read_pynative(
    document: Mapping[str, Any], *, num_layers: int | None, pipeline_stages: int | None, checks: Checks
) -> Reading:
    """Reads `recompute`, `recompute_comm` and `swap`.

    Args:
      document: The three tables, alone or in a whole configuration.
      num_layers: Of the model; layers must be below it.
      pipeline_stages: Must be 1, as mindformers demands.
      checks: Says what is wrong.

    Raises:
      PolicyError: A key is unknown, or a setting is refused as in mindformers.
    """
    blocks = {key: checks.table(document, key) for key in _BLOCKS}
    for (key, block), keys in zip(blocks.items(), (PYNATIVE_KEYS, _COMM_KEYS, _SWAP_KEYS), strict=True):
        checks.known(block, keys, what=f"key of {key}")
    _require_one_stage(document, pipeline_stages, checks)
    checks.number({"num_layers": num_layers}, "num_layers", least=1)
    most = num_layers if type(num_layers) is int else _MOST
    notes = Notes()
    full = _full(blocks["recompute"], most, checks)
    selected = _selected(blocks["recompute"], most, checks)
    comm = _comm(blocks["recompute_comm"], most, checks)
    swaps = _swaps(blocks["swap"], most, checks)
    excluded = checks.texts(blocks["recompute"], "exclude_op")
    checks.done()
    rules = list(_rules(excluded, full, selected, comm, notes))
    rules += rules_of_swap(swaps, notes)
    overruled = [("select_module", layers) for layers in selected.values()]
    overruled += [("recompute_comm", layers) for layers in comm.values()]
    note_precedence(full, dict.fromkeys([*overruled, *(("swap", layers) for _, layers, _ in swaps)]), notes)
    policy = Policy(name="mindformers-pynative", rules=tuple(dict.fromkeys(rules)), default="save")
    return notes.reading(policy)


def _rules(
    excluded: Sequence[str],
    full: tuple[int, ...],
    selected: Mapping[str, tuple[int, ...]],
    comm: Mapping[str, tuple[int, ...]],
    notes: Notes,
) -> Iterator[Rule]:
    """The rules that recompute, in order of precedence."""
    for pattern in excluded:
        yield from rule_of_pattern(pattern, None, Save(), notes, key="exclude_op")
    if full:
        yield from (*inputs(Save()), recomputed(full))
    for pattern, layers in _without_children(selected, notes).items():
        yield from rule_of_pattern(pattern, layers, Recompute(), notes, key="select_module")
    for pattern, layers in comm.items():
        yield from rule_of_pattern(pattern, layers, Recompute(), notes, key="recompute_comm", collective=True)


def _require_one_stage(document: Mapping[str, Any], pipeline_stages: int | None, checks: Checks) -> None:
    parallelism = document.get("parallelism")
    stages = pipeline_stages or (parallelism.get("pipeline_parallel") if isinstance(parallelism, Mapping) else None)
    if stages not in (None, 1):
        checks.wrong(f"recompute needs pipeline_parallel = 1, and it is {stages!r}")


def layers_of_specs(key: str, specs: object, most: int, checks: Checks) -> tuple[int, ...]:
    """The layers that texts such as "0-3" and "5" mean.

    Args:
      key: The setting, for messages.
      specs: A list of them.
      most: Numbers must be below it.
      checks: Says what is wrong.

    Example:
      >>> layers_of_specs("layers", ["0-2", "5"], 8, Checks("here", needed=""))
      (0, 1, 2, 5)
    """
    if not isinstance(specs, (list, tuple)) or not specs:
        checks.wrong(f"{key} = {str(specs)[:80]!r} is no list such as ['0-3']")
        return ()
    found: list[int] = []
    for spec in specs:
        span = _range_of_spec(spec)
        if span is None:
            checks.wrong(f"{key}: {str(spec)[:80]!r} is neither a layer nor a range such as '0-3'")
            return ()
        first, last = span
        if last < first:
            checks.wrong(f"{key}: {spec!r} begins behind its end")
        elif last >= most:
            checks.wrong(f"{key}: layer {last} of {spec!r} is not below {most}")
        elif found and first <= found[-1]:
            checks.wrong(f"{key}: {spec!r} does not stand behind layer {found[-1]}; the list must ascend")
        else:
            found.extend(range(first, last + 1))
    return tuple(found)


def _range_of_spec(spec: object) -> tuple[int, int] | None:
    """First and last layer of a text such as "0-3"; None where it is no such text."""
    match = _LAYER.fullmatch(str(spec)) if isinstance(spec, (str, int)) and not isinstance(spec, bool) else None
    return None if match is None else (int(match[1]), int(match[2] or match[1]))


def _full(settings: Mapping[str, Any], most: int, checks: Checks) -> tuple[int, ...]:
    mode = _mode(settings, checks)
    given = settings.get("full_recompute_layer")
    if mode == "full":
        if not given:
            checks.wrong('mode is "full" and full_recompute_layer is missing')
            return ()
        return layers_of_specs("full_recompute_layer", given, most, checks)
    return ()


def _mode(settings: Mapping[str, Any], checks: Checks) -> str:
    if settings.get("mode") is None:
        return "None"
    return checks.one_of(settings, "mode", ("None", "full", "select"), default="None")


def _selected(settings: Mapping[str, Any], most: int, checks: Checks) -> dict[str, tuple[int, ...]]:
    given = settings.get("select_module")
    if settings.get("mode") == "select" and not given:
        checks.wrong('mode is "select" and select_module is missing')
    if not given or settings.get("mode") not in ("select", "full"):
        return {}
    table = patterns_of("select_module", given, checks)
    return {pattern: layers_of_specs(f"select_module of {pattern}", e, most, checks) for pattern, e in table.items()}


def _comm(settings: Mapping[str, Any], most: int, checks: Checks) -> dict[str, tuple[int, ...]]:
    if not checks.flag(settings, "enable", default=False):
        return {}
    if not settings.get("select_module"):
        checks.wrong("recompute_comm is enabled and its select_module is missing")
        return {}
    table = patterns_of("recompute_comm.select_module", settings["select_module"], checks)
    return {pattern: layers_of_specs(f"recompute_comm of {pattern}", e, most, checks) for pattern, e in table.items()}


def _swaps(settings: Mapping[str, Any], most: int, checks: Checks) -> list[tuple[str | None, LayerNumbers, int]]:
    if not checks.flag(settings, "enable", default=False):
        return []
    prefetch = checks.number(settings, "default_prefetch", least=1, most=max(most - 1, 1)) or 1
    swaps: list[tuple[str | None, LayerNumbers, int]] = []
    for key in ("layer_swap", "op_swap"):
        for each in _tables(settings, key, checks):
            name = each.get("op_name")
            checks.known(each, ("layers", "op_name") if key == "op_swap" else ("layers",), what=f"key of {key}")
            if key == "op_swap" and not isinstance(name, str):
                checks.wrong(f"op_swap: op_name = {name!r} is no pattern")
                continue
            layers = layers_of_specs(f"{key} layers", each.get("layers"), most, checks)
            swaps.append((name if key == "op_swap" else None, layers, prefetch))
    return swaps or [(None, None, prefetch)]


def _tables(settings: Mapping[str, Any], key: str, checks: Checks) -> Sequence[Mapping[str, Any]]:
    value = settings.get(key)
    if value is None:
        return ()
    if isinstance(value, (list, tuple)) and all(isinstance(each, Mapping) for each in value):
        return value
    checks.wrong(f"{key} = {str(value)[:80]!r} is no list of tables")
    return ()


def _without_children(selected: Mapping[str, tuple[int, ...]], notes: Notes) -> dict[str, tuple[int, ...]]:
    """The selected modules, each without layers in which its parent module is recomputed."""
    left: dict[str, tuple[int, ...]] = {}
    for pattern, layers in selected.items():
        covered = {
            layer
            for parent, theirs in selected.items()
            if pattern.startswith((f"{parent}.", f"{parent}\\."))
            for layer in theirs
            if layer in layers
        }
        left[pattern] = tuple(layer for layer in layers if layer not in covered)
        if covered:
            notes.understood.append(f"select_module: {pattern!r} lies in a module that is recomputed as a whole.")
    return left
