"""The table of all steps: those with a name of their own, and those whose sizes are drawn."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from types import MappingProxyType
from typing import Any

from benchmarks.strangers import (
    control,
    generative,
    geometry,
    graphs,
    images,
    implicit,
    mlps,
    physics,
    recurrent,
    tabular,
    transformers,
)
from benchmarks.strangers.training import Recipe, as_written
from jaxckpt import Step

_WITH_NAMED = (mlps, transformers, graphs, physics, recurrent)
_FEW_LAYERS = 4
_FILES = (*_WITH_NAMED, images, generative, control, implicit, tabular, geometry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """A step of the battery.

    Attributes:
      name: Its name in the table.
      recipe: How it is built.
      sizes: Sizes and types that were drawn; others are the recipe's defaults.
    """

    name: str
    recipe: Recipe
    sizes: Mapping[str, Any]

    @property
    def family(self) -> str:
        return self.recipe.family

    def full(self, wrap: Any = as_written) -> Step:
        """The step at full size, `wrap` applied to its blocks."""
        return self.recipe.build(**self.sizes, wrap=wrap)

    def shallow(self, wrap: Any = as_written) -> Step:
        """The step at full width with four layers, `wrap` applied to its blocks: it compiles in seconds."""
        layers = {"layers": _FEW_LAYERS} if "layers" in signature(self.recipe.build).parameters else {}
        return self.recipe.build(**{**self.sizes, **layers}, wrap=wrap)

    def small(self, wrap: Any = as_written) -> Step:
        """The step at a size that a CPU runs in a second, `wrap` applied to its blocks."""
        return self.recipe.build(**{**self.sizes, **self.recipe.small}, wrap=wrap)


def drawn(name: str, recipe: Recipe) -> Iterator[Stranger]:
    """Different steps of a recipe; a generator seeded with its name draws their sizes."""
    generator = random.Random(name)
    seen: list[dict[str, Any]] = []
    while len(seen) < recipe.draws:
        sizes = {key: generator.choice(values) for key, values in recipe.choices.items()}
        if sizes not in seen:
            seen.append(sizes)
            yield Stranger(name=f"{name}-{len(seen)}", recipe=recipe, sizes=sizes)


def _strangers() -> Iterator[Stranger]:
    for file in _WITH_NAMED:
        for name, recipe in file.NAMED.items():
            yield Stranger(name=name, recipe=recipe, sizes={})
    for file in _FILES:
        for name, recipe in file.RECIPES.items():
            yield from drawn(name, recipe)


STRANGERS: Mapping[str, Stranger] = MappingProxyType({each.name: each for each in _strangers()})
"""By name; those with a history first."""

SMALL = (
    "readme-tanh",
    "residual-gelu-12",
    "plain-mlp-1",
    "dropout-mlp-1",
    "batch-norm-mlp-1",
    "soft-experts-1",
    "hamiltonian-1",
    "gru-1",
    "unet-2d-1",
    "coupling-flow-1",
    "q-learning-1",
    "point-sets-1",
)
"""Names of twelve that are planned in a test, with few layers: those that compile in seconds."""
