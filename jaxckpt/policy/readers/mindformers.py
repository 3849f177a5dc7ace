r"""mindformers in graph mode: `recompute_config`, `swap_config`, and lists of how many layers of each stage.

Precedence, as in mindformers: excluded operators are saved; full recomputation of a layer overrides a selection of its
operators; recomputing overrides swapping. The rules are in that order, and the first that matches decides.

A list `[3, 4]` of layers by pipeline stage means the first three layers of the first stage and the first four of the
second. With interleaving a stage holds several chunks of layers; a flat list is then distributed over the chunks one
layer at a time, a nested list gives a count for each chunk.

Read after `cells`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxckpt.ir import Decision, Partition, Recompute, Save
from jaxckpt.policy.policy import Policy
from jaxckpt.policy.readers.cells import (
    SLICED,
    LayerNumbers,
    Swap,
    layers_text,
    note_precedence,
    note_selection,
    patterns_of,
    recomputed,
    rules_of_patterns,
    rules_of_swap,
    swap_entries,
)
from jaxckpt.policy.readers.layers import FOUND, regions_of_layers
from jaxckpt.policy.readers.reading import ConfigReader, Reading, integer
from jaxckpt.policy.rule import Rule

_SWAP_KEYS = {"swap": bool, "default_prefetch": integer(1), "layer_swap": Any, "op_swap": Any}
_EXCLUSIONS = ("select_recompute_exclude", "select_comm_recompute_exclude")
_RECOMPUTED = ("select_recompute", "select_comm_recompute")
_SELECTIONS: Mapping[str, tuple[str, ...]] = {
    "select_recompute_exclude": (),
    "select_comm_recompute_exclude": (),
    "select_recompute": (r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu"),
    "select_comm_recompute": (r".*\.norm",),
}
"""Settings for operators in order of precedence, and the patterns of each where the setting gives none."""

_FLAGS = {
    "mp_comm_recompute": True,
    "parallel_optimizer_comm_recompute": False,
    "recompute_slice_activation": False,
}
"""True or false, with what each is where the setting does not say it."""
GRAPH_KEYS: Mapping[str, Any] = {"recompute": Any, **dict.fromkeys(_SELECTIONS, Any), **dict.fromkeys(_FLAGS, bool)}
_ALL = 2**31 - 1
StageTable = Sequence[Sequence[int]]
"""A number for each round of interleaving and pipeline stage."""


def read_graph_mode(
    document: Mapping[str, Any],
    *,
    num_layers: int | None,
    pipeline_stages: int | None,
    offset: Sequence[Any] | int,
    scope: str,
    model_axis: str,
    reader: ConfigReader,
) -> Reading:
    """Reads `recompute_config` and `swap_config`, of a full configuration or the first alone.

    Lists by stage need `num_layers`; `pipeline_stages` None means what `parallel_config` or the list says. The scope is
    that of layers, "*" where layers are found by structure; `model_axis` is the mesh axis over which
    `recompute_slice_activation` cuts.
    """
    is_full = "recompute_config" in document or "swap_config" in document
    settings = reader.values(GRAPH_KEYS, reader.table(document, "recompute_config") if is_full else document)
    swap = reader.values(_SWAP_KEYS, reader.table(document, "swap_config") if is_full else {}, "swap_config.")
    layers = _LayerSettings(
        num_layers=reader.value(integer(1), num_layers or _model(document).get("num_layers"), "num_layers"),
        stages=pipeline_stages or _number(reader.table(document, "parallel_config").get("pipeline_stage")),
        offset=offset or _model(document).get("offset", 0),
        by_number=swap.get("swap", False),
        reader=reader,
    )
    full = layers.meant("recompute", settings.get("recompute", False))
    flags = {key: settings.get(key, usual) for key, usual in _FLAGS.items()}
    selected = {key: _selected(key, settings.get(key, False), layers) for key in _SELECTIONS}
    swaps = list(_swaps(swap, layers)) if layers.by_number else []
    reader.done()
    return reader.reading(_policy(full, flags, selected, swaps, scope, model_axis, reader))


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerSettings:
    """How settings give layers: by number with swap, else by counts for each pipeline stage."""

    num_layers: int | None
    stages: int | None
    offset: Any
    by_number: bool
    reader: ConfigReader

    def meant(self, key: str, value: object) -> LayerNumbers:
        """The layers of a setting: true, false, numbers of layers (with swap), or counts by stage."""
        if isinstance(value, bool):
            return None if value else ()
        try:
            if not isinstance(value, (list, tuple)) or not value:
                raise ValueError(f"{key} = {str(value)[:80]!r} is neither true, false nor a list of layers")
            found, how = self._numbers(key, value) if self.by_number else self._counts(key, value)
        except ValueError as error:
            self.reader.wrong(str(error))
            return ()
        self.reader.understood.append(f"{key} = {value}: {layers_text(found)}, {how}.")
        return found

    def _numbers(self, key: str, value: Sequence[Any]) -> tuple[tuple[int, ...], str]:
        most = self.num_layers or 100_000
        if any(type(each) is not int or not 0 <= each < most for each in value):
            raise ValueError(f"{key} = {str(value)[:80]} with swap on takes numbers of layers below {most}")
        return tuple(sorted(set(value))), "by number because swap is on"

    def _counts(self, key: str, value: Sequence[Any]) -> tuple[tuple[int, ...], str]:
        """The layers of a list of counts by stage, or of such lists by round of interleaving."""
        is_nested = any(isinstance(row, (list, tuple)) for row in value)
        rows = list(value) if is_nested else [value]
        sizes = self._stage_sizes(key, value, rows)
        width = len(sizes[0])
        counts = [_row_of_counts(row, width) for row in rows]
        if [] in counts:
            raise ValueError(f"{key} = {str(value)[:80]} is not one count, true or false for each of {width} stages")
        how = f"of stages of {sizes[0] if len(sizes) == 1 else sizes} layers"
        return first_layers(sizes, counts if is_nested else spread_over_chunks(sizes, counts[0])), how

    def _stage_sizes(self, key: str, value: Sequence[Any], rows: Sequence[Any]) -> list[list[int]]:
        """The layers of each stage: as many stages as the settings say, or as the first list of counts has."""
        if self.num_layers is None:
            raise ValueError(f"{key} = {str(value)[:80]} counts layers by stage: give num_layers")
        first = next(row for row in rows if isinstance(row, (list, tuple)))
        return stage_sizes(self.num_layers, self.stages or len(first) or 1, len(rows), self.offset, self.reader)


def _row_of_counts(row: Any, width: int) -> list[int]:
    """Counts of layers by stage, where true means all of a stage, and alone all of each; empty for anything else."""
    row = [row] * width if isinstance(row, bool) else row
    if not isinstance(row, (list, tuple)) or len(row) != width:
        return []
    counts = [_ALL * each if isinstance(each, bool) else each for each in row]
    return counts if all(type(each) is int and each >= 0 for each in counts) else []


def _number(value: object) -> int | None:
    return value if type(value) is int and 0 < value <= 100_000 else None


def _model(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The model's part of a full configuration."""
    model = document.get("model")
    config = model.get("model_config") if isinstance(model, Mapping) else None
    return config if isinstance(config, Mapping) else {}


def _selected(key: str, value: object, layers: _LayerSettings) -> dict[str, LayerNumbers]:
    """The layers of each pattern of a setting."""
    if value is False or value is None:
        return {}
    is_patterns = isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(e, str) for e in value))
    if is_patterns:
        table = patterns_of(key, value, layers.reader)
        return {pattern: layers.meant(f"{key} of {pattern}", each) for pattern, each in table.items()}
    if not _SELECTIONS[key]:
        layers.reader.wrong(f"{key} = {str(value)[:80]!r} names no operators: it is a list or a table of patterns")
        return {}
    meant = layers.meant(key, value)
    return dict.fromkeys(_SELECTIONS[key], meant)


def _swaps(swap: Mapping[str, Any], layers: _LayerSettings) -> Iterator[Swap]:
    """Pattern (None for full layers), layers and prefetch distance of each entry; without entries all layers."""
    usual = swap.get("default_prefetch") or 1
    keys = {"layers": Any, "backward_prefetch": integer(0)}
    entries = list(swap_entries({**swap, "op_swap": _operator_swaps(swap)}, keys, layers.reader))
    for key, entry in entries:
        meant = layers.meant(f"{key} layers", entry.get("layers", True))
        prefetch = entry.get("backward_prefetch")
        yield entry.get("op_name"), meant, usual if prefetch is None else prefetch
    if not entries:
        yield None, None, usual


def _operator_swaps(swap: Mapping[str, Any]) -> object:
    """`op_swap` as a list of tables, each with its pattern; something else as it was given."""
    operators = swap.get("op_swap")
    if not isinstance(operators, Mapping):
        return operators
    listed = ((name, each) for name, each in operators.items() if isinstance(each, list | tuple))
    return [{**table, "op_name": name} for name, each in listed for table in each if isinstance(table, Mapping)]


def _policy(
    full: LayerNumbers,
    flags: Mapping[str, bool],
    selected: Mapping[str, Mapping[str, LayerNumbers]],
    swaps: list[Swap],
    scope: str,
    axis: str,
    reader: ConfigReader,
) -> Policy:
    """The rules in order of precedence: excluded operators, full layers, selected operators, swaps."""
    is_selecting = any(selected[key] for key in _RECOMPUTED)
    saved = Partition(axis=axis, dim=0) if flags["recompute_slice_activation"] else Save()
    rules = list(_rules_of_selections(_EXCLUSIONS, selected, Save(), reader))
    if full != ():
        rules += recomputed(full, saved, is_overruling_swaps=bool(swaps), is_overruling_rules=is_selecting)
        reader.understood += [FOUND] if scope == "*" else []
        reader.not_carried += [SLICED] if flags["recompute_slice_activation"] else []
    rules += _rules_of_selections(_RECOMPUTED, selected, Recompute(), reader)
    rules += rules_of_swap(swaps, reader)
    overruled = [(key, numbers) for key in _RECOMPUTED for numbers in selected[key].values()]
    note_precedence(full, [*overruled, *(("swap", numbers) for _, numbers, _ in swaps)], reader)
    if is_selecting:
        note_selection("select_recompute", reader)
    regions = regions_of_layers(
        None if scope == "*" else scope,
        numbers=full or None,
        recompute_collectives=flags["mp_comm_recompute"],
        recompute_gathered_parameters=flags["parallel_optimizer_comm_recompute"],
    )
    return Policy(
        name="mindformers", rules=tuple(dict.fromkeys(rules)), regions=None if full == () else regions, default="save"
    )


def _rules_of_selections(
    keys: Sequence[str], selected: Mapping[str, Mapping[str, LayerNumbers]], decision: Decision, reader: ConfigReader
) -> Iterator[Rule]:
    for key in keys:
        yield from rules_of_patterns(selected[key], decision, reader, key=key)


### Layers by pipeline stage


def first_layers(sizes: StageTable, counts: StageTable) -> tuple[int, ...]:
    """The first layers of each chunk, by the chunks' sizes and counts; more than there are means all.

    Example:
      >>> first_layers([[4, 4]], [[1, 9]])
      (0, 4, 5, 6, 7)
    """
    found: list[int] = []
    start = 0
    for chunk_sizes, chunk_counts in zip(sizes, counts, strict=True):
        for size, count in zip(chunk_sizes, chunk_counts, strict=True):
            found.extend(range(start, start + min(size, count)))
            start += size
    return tuple(found)


def spread_over_chunks(sizes: StageTable, counts: Sequence[int]) -> list[list[int]]:
    """Counts by stage, distributed over the chunks of each stage one layer at a time.

    Example:
      >>> spread_over_chunks([[2, 2], [2, 2]], [3, 1])
      [[2, 1], [1, 0]]
    """
    counted = [[0] * len(counts) for _ in sizes]
    for stage, count in enumerate(counts):
        left = min(count, sum(chunk[stage] for chunk in sizes))
        while left:
            for chunk, chunk_sizes in zip(counted, sizes, strict=True):
                if left and chunk[stage] < chunk_sizes[stage]:
                    chunk[stage] += 1
                    left -= 1
    return counted


def stage_sizes(
    num_layers: int, stages: int, rounds: int, offset: Sequence[Any] | int, reader: ConfigReader
) -> list[list[int]]:
    """An even share for each stage, and what `offset` adds by stage, or by round of interleaving and stage.

    Example:
      >>> stage_sizes(9, 2, 1, [0, 1], ConfigReader("here", needed=""))
      [[4, 5]]
    """
    more = _offsets(offset, stages, rounds, reader)
    share, rest = divmod(num_layers, stages * rounds)
    if sum(map(sum, more)) != rest or any(share + each < 0 for row in more for each in row):
        reader.wrong(
            f"offset = {offset!r} must add up to {rest}: {num_layers} layers over {stages} stages"
            + (f" and {rounds} rounds of interleaving" if rounds > 1 else "")
        )
        more = [[0] * stages for _ in range(rounds)]
    return [[share + each for each in row] for row in more]


def _offsets(offset: Sequence[Any] | int, stages: int, rounds: int, reader: ConfigReader) -> list[list[int]]:
    """One offset for each round of interleaving and stage; zeros where the setting is wrong."""
    rows: Sequence[Any] = [offset] * rounds
    if isinstance(offset, (list, tuple)) and any(isinstance(row, (list, tuple)) for row in offset):
        rows = offset
    by_round: list[list[Any]] = [list(row) if isinstance(row, (list, tuple)) else [row] * stages for row in rows]
    if len(by_round) == rounds and all([*map(type, row)] == [int] * stages for row in by_round):
        return by_round
    reader.wrong(f"offset = {offset!r} is not one whole number for each of {stages} stages")
    return [[0] * stages for _ in range(rounds)]
