"""What is asked of a device, the most valuable first.

Versions of a model stand in order of the memory that they probably take: a process's peak can only rise, so that each
version's peak can be read where those before it took less.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.frontier import NAMED, UNNAMED, WITHOUT
from benchmarks.models import MODELS

NONE = "none"
LEAST = "plan-least"
OFFLOAD = "offload"
OFFLOAD_POLICY = "inputs_offloaded"
BUDGETS: Mapping[str, float] = {"plan-60": 0.6, "plan-80": 0.8}
"""Plans by name, and the share of the unplanned total that they may take; `LEAST` takes what is least."""
PLANS = (LEAST, *BUDGETS)
BY_HAND: Mapping[str, str] = {
    NONE: WITHOUT,
    "nothing_saveable": "nothing_saveable",
    "names": NAMED,
    "dots_no_batch": "dots_with_no_batch_dims_saveable",
    "dots": "dots_saveable",
}
"""Versions that people write, and what `benchmarks.frontier.by_hand` calls them."""
ASCENDING = (LEAST, "nothing_saveable", OFFLOAD, "plan-60", "names", "dots_no_batch", "plan-80", "dots", NONE)
FEW = (LEAST, "nothing_saveable", "plan-60", "dots_no_batch", NONE)
"""For all models but the first: a compile is what costs time."""
HEADLINE_MODEL = "gpt2-medium"
ORDER = ("gpt2-small", "llama", "resnet50", "bert-large", "vit-b16", "t5-base", "unet", "experts", "bilstm", "gcn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A model's versions, all run by one process.

    Attributes:
      model: Its name in `MODELS`.
      sizes: Arguments of its `step` that are not the real ones.
      versions: In the order in which they are run.
    """

    model: str
    sizes: Mapping[str, Any]
    versions: tuple[str, ...]


def group(model: str, *, small: bool, whole: bool) -> Group:
    """What is asked about one model.

    Args:
      model: Its name in `MODELS`.
      small: Whether to take sizes for a CPU.
      whole: Whether to ask about all versions, or few.
    """
    versions = ASCENDING if whole else FEW
    without = {"names"} if model in UNNAMED else set()
    sizes = MODELS[model].small() if small else {}
    return Group(model=model, sizes=sizes, versions=tuple(v for v in versions if v not in without))


def groups(models: Sequence[str] = ORDER, *, small: bool) -> Iterator[Group]:
    """All groups, the most valuable first.

    Args:
      models: Names in `MODELS`.
      small: Whether to take sizes for a CPU.
    """
    for number, model in enumerate(models):
        yield group(model, small=small, whole=number == 0)
