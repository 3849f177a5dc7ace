"""What is asked of a device, the most valuable first.

Versions of a model stand in order of the memory that they probably take: a process's peak can only rise, so that each
version's peak can be read where those before it took less.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.attached.store import HEADLINE
from benchmarks.attached.strangers import RULES, small_sizes, stranger_step
from benchmarks.frontier import NAMED, UNNAMED, WITHOUT, by_hand
from benchmarks.models import MODELS, TrainingStep
from benchmarks.strangers.rules import POLICIES

NONE = "none"
LEAST = "plan-least"
OFFLOAD = "offload"
OFFLOAD_POLICY = "inputs_offloaded"
SAME_BUT_SAVED = "nothing_saveable"
"""The version that recomputes what the offload policy recomputes, and saves the inputs of blocks on the device."""
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
AT_RULE = "plan-at-"
"""Stands before the name of a rule: the plan whose budget is the rule's compiled total."""
UNTUNED: Mapping[str, tuple[str, ...]] = {"gpt2-small": (NONE, "plan-60"), "resnet50": (NONE,)}
"""Versions by model that are compiled on the device also without its autotuner, as without the device."""
HEADLINE_MODEL = "gpt2-medium"
_FURTHER = ("bert-large", "vit-b16", "t5-base", "unet", "experts", "bilstm", "gcn")
ORDER = ("gpt2-small", *RULES, "llama", "resnet50", HEADLINE, *_FURTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A model's versions, all run by one process.

    Attributes:
      model: Its name in `MODELS` or `RULES`.
      sizes: Arguments of its `step` that are not the real ones.
      versions: In the order in which they are run.
    """

    model: str
    sizes: Mapping[str, Any]
    versions: tuple[str, ...]

    def step(self, version: str = NONE) -> TrainingStep:
        """The training step, with the marks of a version that has marks."""
        if self.model in RULES:
            return stranger_step(self.model, self.sizes, version)
        marks = {"remat": by_hand(self.model)[BY_HAND[version]]} if version in BY_HAND and version != NONE else {}
        return MODELS[self.model].step(**self.sizes, **marks)


def is_marked(version: str) -> bool:
    """True if a version is a step with or without marks, so that no plan has to be there before it is run."""
    return version in BY_HAND or version in POLICIES


def is_ours(version: str) -> bool:
    """True if a version is a plan of this package's optimiser."""
    return version.startswith("plan-")


def group(model: str, *, small: bool, whole: bool) -> Group:
    """What is asked about one model.

    Args:
      model: Its name in `MODELS` or `RULES`.
      small: Whether to take sizes for a CPU.
      whole: Whether to ask about all versions, or few.
    """
    if model in RULES:
        pairs = [(f"{AT_RULE}{rule}", rule) for rule in RULES[model]]
        asked = (*(version for pair in pairs for version in pair), NONE)
        return Group(model=model, sizes=small_sizes(model) if small else {}, versions=asked)
    versions = ASCENDING if whole else FEW
    without = {"names"} if model in UNNAMED else set()
    sizes = MODELS[model].small() if small else {}
    return Group(model=model, sizes=sizes, versions=tuple(v for v in versions if v not in without))


def groups(models: Sequence[str] = ORDER, *, small: bool) -> Iterator[Group]:
    """All groups, the most valuable first.

    Args:
      models: Names in `MODELS` or `RULES`; that of the headline is no group.
      small: Whether to take sizes for a CPU.
    """
    for number, model in enumerate(model for model in models if model != HEADLINE):
        yield group(model, small=small, whole=number == 0)
