"""MindSpore's recomputation: `Cell.recompute`, and the settings of mindformers for graph mode and for PyNative.

A cell that is recomputed is a region: its inputs and its outputs for the next cell are saved, everything between is
recomputed. mindformers selects layers and operators of layers: `mindformers` reads its graph mode, `pynative` its
PyNative mode.

Source: MindSpore `nn/cell.py` (`Cell.recompute`), `frontend/optimizer/recompute.cc`; mindformers
`modules/transformer/transformer.py`, `parallel_core/training_graph/.../layer_setting.py`, `pynative`.
Read after `layers`, `patterns`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxckpt.ir import Partition
from jaxckpt.policy.policy import Policy, Regions
from jaxckpt.policy.readers.layers import inputs
from jaxckpt.policy.readers.mindformers import GRAPH_KEYS, read_graph_mode
from jaxckpt.policy.readers.pynative import PYNATIVE_KEYS, read_pynative
from jaxckpt.policy.readers.reading import ConfigReader, Reading, Source
from jaxckpt.policy.rule import Rule

CELL_KEYS = (
    "mp_comm_recompute",
    "parallel_optimizer_comm_recompute",
    "recompute_slice_activation",
    "output_recompute",
    "use_reentrant",
)
"""Keywords of `Cell.recompute`."""


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
        YAML file or its text; or true or false for all layers.
      num_layers: Of the model, where layers are given by stage or must be in range.
      pipeline_stages: Over which lists by stage count; else `parallel_config` says it, or the list's length.
      offset: mindformers' `offset`: layers that stages have more than an even share, by stage.
      scope: Glob on the scopes that `Cell.recompute` is called on.
      model_axis: The mesh axis over which `recompute_slice_activation` cuts.

    Raises:
      PolicyError: A key is unknown, or a setting is refused as in MindSpore.
      MissingPackageError: The configuration is YAML, and nothing is installed that reads it.

    Example:
      >>> reading = policy_from_mindspore({"recompute": [1, 2]}, num_layers=8)
      >>> print(*reading.policy.rules, sep="; ")
      boundary = 'input': save; layers = '0,4-5': recompute
      >>> print(*reading.understood)
      recompute = [1, 2]: layers 0,4-5, of stages of [4, 4] layers.
    """
    reader = ConfigReader(
        "mindspore",
        needed=f"keywords of Cell.recompute ({', '.join(CELL_KEYS)}), recompute_config ({', '.join(GRAPH_KEYS)}) or "
        f"recompute ({', '.join(PYNATIVE_KEYS)})",
    )
    document = {"recompute": config} if isinstance(config, bool) else reader.mapping(config, yaml=True)
    if isinstance(document.get("recompute"), Mapping) or not document.keys().isdisjoint(("recompute_comm", "swap")):
        return read_pynative(document, num_layers=num_layers, pipeline_stages=pipeline_stages, reader=reader)
    graph_keys = {"recompute_config", "swap_config", *GRAPH_KEYS} - {*CELL_KEYS}
    if not document.keys().isdisjoint(graph_keys):
        return read_graph_mode(
            document,
            num_layers=num_layers,
            pipeline_stages=pipeline_stages,
            offset=offset,
            scope=scope,
            model_axis=model_axis,
            reader=reader,
        )
    return _cell(document, scope, model_axis, reader)


def _cell(settings: Mapping[str, Any], scope: str, axis: str, reader: ConfigReader) -> Reading:
    """One call of `Cell.recompute`."""
    flags = {
        **dict.fromkeys(CELL_KEYS, False),
        "mp_comm_recompute": True,
        **reader.values(dict.fromkeys(CELL_KEYS, bool), settings),
    }
    reader.done()
    regions = Regions(
        scope=scope,
        recompute_collectives=flags["mp_comm_recompute"],
        recompute_gathered_parameters=flags["parallel_optimizer_comm_recompute"],
        output_recompute=flags["output_recompute"],
    )
    rules: tuple[Rule, ...] = ()
    if flags["recompute_slice_activation"]:
        rules = inputs(Partition(axis=axis, dim=0), scope=None if scope == "*" else scope, note="what the cell reads")
        reader.not_carried.append(
            "recompute_slice_activation leaves a value whole, with a warning, where dimension 0 does not divide: here "
            "a partition that does not divide is an error; give another dim in the rule."
        )
    if "use_reentrant" in settings:
        reader.not_carried.append(
            "use_reentrant: it chooses between two implementations of PyNative; there is one here."
        )
    return reader.reading(Policy(name="mindspore-cell", rules=rules, regions=regions, default="save"))
