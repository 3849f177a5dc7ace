"""MindSpore's recomputation: `Cell.recompute`, and the settings of mindformers for graph mode and for PyNative.

A cell that is recomputed is a region: its inputs and its outputs for the next cell are saved, everything between is
recomputed. mindformers selects layers and operators of layers: `mindformers` reads its graph mode, `pynative` its
PyNative mode. Graph kernel fusion recomputes by itself what exceeds thresholds of bytes: these are no policy, but the
strategy "mindspore" of the planner, whose total on a step is the budget that they mean.

Source: MindSpore `nn/cell.py` (`Cell.recompute`), `frontend/optimizer/recompute.cc`; mindformers
`modules/transformer/transformer.py`, `parallel_core/training_graph/.../layer_setting.py`, `pynative`.
Read after `layers`, `patterns`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxckpt.ir import Partition
from jaxckpt.policy.policy import Policy
from jaxckpt.policy.readers.cells import SLICED
from jaxckpt.policy.readers.flags import settings_of_flags
from jaxckpt.policy.readers.layers import FOUND, inputs, regions_of_layers
from jaxckpt.policy.readers.mindformers import GRAPH_KEYS, read_graph_mode
from jaxckpt.policy.readers.pynative import PYNATIVE_KEYS, read_pynative
from jaxckpt.policy.readers.reading import ConfigReader, Reading, Source, integer
from jaxckpt.policy.rule import Rule

CELL_KEYS = (
    "mp_comm_recompute",
    "parallel_optimizer_comm_recompute",
    "recompute_slice_activation",
    "output_recompute",
    "use_reentrant",
)
"""Keywords of `Cell.recompute`."""
_FLAGS = "graph_kernel_flags"
_LONG, _SHORT = "recompute_increment_threshold", "recompute_peak_threshold"
THRESHOLDS: Mapping[str, Any] = dict.fromkeys((_LONG, _SHORT), integer(0, most=2**50))
"""Thresholds of graph kernel fusion's automatic recomputation, bytes; 0 for none."""


def policy_from_mindspore(
    config: Source | bool,
    *,
    num_layers: int | None = None,
    pipeline_stages: int | None = None,
    offset: Sequence[Any] | int = 0,
    scope: str = "*",
    model_axis: str = "model",
) -> Reading:
    """Reads MindSpore's or mindformers' recompute settings.

    Args:
      config: Keywords of `Cell.recompute`; or mindformers' `recompute_config` and `swap_config` (graph mode), or
        `recompute`, `recompute_comm` and `swap` (PyNative), alone or in a whole configuration: a mapping, a JSON or
        YAML file or its text; or true or false for all layers. `graph_kernel_flags`, at the top or in `context`, or
        the thresholds in them, give the reading its strategy.
      num_layers: Of the model, where layers are given by stage or must be in range.
      pipeline_stages: Over which lists by stage count; else `parallel_config` says it, or the list's length.
      offset: mindformers' `offset`: layers that stages have more than an even share, by stage.
      scope: Glob on the scopes that `Cell.recompute` is called on; "*" for the layers of the model, as
        `Regions.scope` finds them.
      model_axis: The mesh axis over which `recompute_slice_activation` cuts.

    Raises:
      PolicyError: A key is unknown, or a setting is refused as in MindSpore.
      MissingPackageError: The configuration is YAML, and nothing is installed that reads it.

    Example:
      >>> reading = policy_from_mindspore({"recompute": [1, 2]}, num_layers=8)
      >>> print(reading.policy.regions, "-", reading.understood[0])
      of layers 0,4-5 - recompute = [1, 2]: layers 0,4-5, of stages of [4, 4] layers.
    """
    reader = ConfigReader(
        "mindspore",
        needed=f"keywords of Cell.recompute ({', '.join(CELL_KEYS)}), recompute_config ({', '.join(GRAPH_KEYS)}) or "
        f"recompute ({', '.join(PYNATIVE_KEYS)})",
    )
    document = {"recompute": config} if isinstance(config, bool) else reader.mapping(config, yaml=True)
    document = _without_thresholds(document, reader)
    is_pynative = isinstance(document.get("recompute"), Mapping)
    if is_pynative or not document.keys().isdisjoint(("recompute_comm", "swap")):
        _ignore(document, ("recompute", "recompute_comm", "swap", "parallelism"), reader)
        return read_pynative(document, num_layers=num_layers, pipeline_stages=pipeline_stages, reader=reader)
    graph_keys = {"recompute_config", "swap_config", *GRAPH_KEYS} - {*CELL_KEYS}
    if not document.keys().isdisjoint(graph_keys):
        if not document.keys().isdisjoint(("recompute_config", "swap_config")):
            _ignore(document, ("recompute_config", "swap_config", "model", "parallel_config"), reader)
        return read_graph_mode(
            document,
            num_layers=num_layers,
            pipeline_stages=pipeline_stages,
            offset=offset,
            scope=scope,
            model_axis=model_axis,
            reader=reader,
        )
    if reader.strategy and document.keys().isdisjoint(CELL_KEYS):
        _ignore(document, (), reader)
        reader.done()
        return reader.reading(Policy(name="mindspore-automatic", default="save"))
    return _cell(document, scope, model_axis, reader)


def _ignore(document: Mapping[str, Any], read: Sequence[str], reader: ConfigReader) -> None:
    """Names the keys of a whole configuration that are not read."""
    reader.ignored += (str(key) for key in document if key not in read)


def _without_thresholds(document: Mapping[str, Any], reader: ConfigReader) -> Mapping[str, Any]:
    """The document without the thresholds of automatic recomputation, which become the strategy of the reading."""
    context = document.get("context")
    around = {**(context if isinstance(context, Mapping) else {}), **document}
    flags = reader.value(str | None, around.get(_FLAGS), _FLAGS)
    in_flags = settings_of_flags(flags.split(), THRESHOLDS, switches=(), reader=reader) if flags else {}
    given = reader.values(THRESHOLDS, {**in_flags, **{key: around[key] for key in THRESHOLDS if key in around}})
    if any(given.values()):
        increment_bytes, peak_bytes = (given.get(key) or 0 for key in (_LONG, _SHORT))
        reader.strategy = f"mindspore:{increment_bytes},{peak_bytes}"
        reader.understood.append(
            f"{_LONG} = {increment_bytes}, {_SHORT} = {peak_bytes}: a fused kernel runs again where that frees more "
            "bytes. Give jaxckpt.plan the budget that this leads to, reading.budget_bytes(step, *args)."
        )
    return {key: value for key, value in document.items() if key not in (_FLAGS, *THRESHOLDS)}


def _cell(settings: Mapping[str, Any], scope: str, axis: str, reader: ConfigReader) -> Reading:
    """One call of `Cell.recompute`."""
    flags = {
        **dict.fromkeys(CELL_KEYS, False),
        "mp_comm_recompute": True,
        **reader.values(dict.fromkeys(CELL_KEYS, bool), settings),
    }
    reader.done()
    regions = regions_of_layers(
        None if scope == "*" else scope,
        recompute_collectives=flags["mp_comm_recompute"],
        recompute_gathered_parameters=flags["parallel_optimizer_comm_recompute"],
        output_recompute=flags["output_recompute"],
    )
    reader.understood += [FOUND] if scope == "*" else []
    rules: tuple[Rule, ...] = ()
    if flags["recompute_slice_activation"]:
        rules = inputs(Partition(axis=axis, dim=0), note="what the cell reads")
        reader.not_carried.append(SLICED)
    if flags["output_recompute"]:
        reader.understood.append(
            "output_recompute: neighbouring cells become one, whose values are all recomputed at once: with every cell "
            "in it, as much memory as without recomputation."
        )
    if "use_reentrant" in settings:
        reader.not_carried.append(
            "use_reentrant: it chooses between two implementations of PyNative; there is one here."
        )
    return reader.reading(Policy(name="mindspore-cell", rules=rules, regions=regions, default="save"))
