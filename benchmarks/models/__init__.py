"""Training steps of the usual networks at the usual sizes, written for these benchmarks in Flax Linen.

One file a model, each with `step`, whose arguments are sizes and whose defaults are the real ones, and `small`, the
arguments of one that a CPU runs at once. Nothing is marked for jaxckpt; those of `PLANNER` can be rematerialised by
hand (`blocks`). Read in this order: `training`, `tasks`, `blocks`, `mixed`, `convolution`, and any model.

    from benchmarks.models import MODELS
    made = MODELS["resnet50"].step()
    jaxckpt.plan(made.step, *made.args, donate_argnums=made.donate_argnums, budget=0.5, target="h200")
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from benchmarks.models import bert, experts, gnn, gpt2, gpt3, inception, llama, lstm, resnet, spos, swin, t5, unet, vit
from benchmarks.models.training import TrainingStep

__all__ = ["COOP", "MODELS", "PLANNER", "Model", "TrainingStep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of the table.

    Attributes:
      step: Makes its training step; all arguments are sizes and have the real ones as defaults.
      small: Makes the arguments of one that a CPU runs at once.
    """

    step: Callable[..., TrainingStep]
    small: Callable[[], Mapping[str, Any]]


def _model(module: Any, **sizes: Any) -> Model:
    """That of a file, with other defaults where some are given."""
    return Model(step=partial(module.step, **sizes) if sizes else module.step, small=module.small)


MODELS: Mapping[str, Model] = MappingProxyType(
    {
        "resnet50": _model(resnet),
        "resnet18": _model(resnet, blocks=(2, 2, 2, 2), basic=True),
        "bert-large": _model(bert),
        "gpt3": _model(gpt3),
        "inception-v3": _model(inception),
        "spos": _model(spos),
        "spos-switched": _model(spos, switched=True),
        "swin-t": _model(swin),
        "bilstm": _model(lstm),
        "bilstm-unrolled": _model(lstm, unrolled=True),
        "unet": _model(unet),
        "gpt2-small": _model(gpt2),
        "gpt2-medium": _model(gpt2, layers=24, width=1024, heads=16),
        "gpt2-scan": _model(gpt2, scanned=True),
        "gpt2-small-dropout": _model(gpt2, dropout=True),
        "llama": _model(llama),
        "t5-base": _model(t5),
        "vit-b16": _model(vit),
        "vit-b16-dropout": _model(vit, dropout=0.1),
        "experts": _model(experts),
        "gcn": _model(gnn),
    }
)
"""By name."""

COOP = ("resnet50", "bert-large", "gpt3", "inception-v3", "spos", "swin-t", "bilstm-unrolled", "unet")
"""The eight of Coop's figures, at its batches: what an eager framework would run, op by op."""

PLANNER = (
    "gpt2-small",
    "gpt2-medium",
    "gpt2-scan",
    "gpt2-small-dropout",
    "llama",
    "bert-large",
    "t5-base",
    "vit-b16",
    "vit-b16-dropout",
    "resnet50",
    "unet",
    "experts",
    "bilstm",
    "gcn",
)
"""Those that planners are compared on."""
