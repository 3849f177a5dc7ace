"""Arguments that a step starts from, made on the host in no time, and what is kept of its results to compare.

Variables are random and the optimiser's state is zero, as `TrainingStep.real` has them, but a billion numbers are not
drawn one by one: one stretch of random numbers is repeated, each variable beginning elsewhere in it.
"""

from math import prod
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.models import TrainingStep

_STRETCH = 1_000_003
"""Prime, so that no row of a matrix is another one's."""
_KEPT = 2**16
"""At most so many numbers of each gradient are kept."""


def start_of(made: TrainingStep, *, seed: int = 0) -> tuple[Any, ...]:
    """Arguments in host memory, as numpy's; the optimiser's state, which is zero, as descriptions alone."""
    stretch = np.random.default_rng(seed).standard_normal(_STRETCH, np.float32)
    variables, state, _ = made.args
    number = 0

    def drawn(path: Any, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        nonlocal number
        number += 1
        match getattr(path[-1], "key", None):
            case "scale" | "var":
                return np.ones(leaf.shape, leaf.dtype)
            case "bias" | "mean":
                return np.zeros(leaf.shape, leaf.dtype)
        scale = max(1, prod(leaf.shape[:-1])) ** -0.5
        scaled = (np.roll(stretch, 7919 * number) * np.float32(scale)).astype(leaf.dtype)
        return np.resize(scaled, leaf.shape)

    batch = jax.device_get(made.batch(jax.random.key(seed)))
    return jax.tree_util.tree_map_with_path(drawn, variables), state, batch


def gradient_places(made: TrainingStep) -> dict[int, str]:
    """Where gradients stand among the flat results of a first step, by path: in the optimiser's first moment.

    Starting from zero, that is the gradient times a constant, of Adam as of momentum. Where the optimiser has no state,
    the variables after the step are compared instead.
    """
    variables, state, _ = made.args
    before = len(jax.tree.leaves(variables))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    found = {before + i: path for i, path in enumerate(paths) if ".mu" in path or ".trace" in path}
    named = enumerate(jax.tree_util.tree_flatten_with_path(variables)[0])
    return found or {i: jax.tree_util.keystr(path) for i, (path, _) in named}


def sample_of(results: list[Any], places: dict[int, str]) -> dict[str, np.ndarray]:
    """Of every gradient some numbers from all over it, and its length; and the loss, which is the last result."""
    kept: dict[str, np.ndarray] = {"loss": np.asarray(results[-1], np.float64)}
    for place, path in places.items():
        whole = np.asarray(results[place]).ravel()
        kept[path] = whole[:: -(-whole.size // _KEPT) or 1].astype(np.float32)
        kept[f"length of {path}"] = np.asarray(np.linalg.norm(whole.astype(np.float32)))
    return kept


def keep_sample(file: Path, sample: dict[str, np.ndarray]) -> None:
    """Writes a sample."""
    np.savez(file, **sample)


def differences(file: Path, other: Path) -> dict[str, Any]:
    """How far a sample is from another one, in shares.

    Returns:
      Of the loss; of all gradients together and of the worst alone, the length of the difference over the length; and
      the largest difference of a whole gradient's length.
    """
    one, two = dict(np.load(other)), dict(np.load(file))
    gradients = [name for name in one if name != "loss" and not name.startswith("length of ")]
    away = {name: float(np.linalg.norm(two[name].astype(np.float64) - one[name])) for name in gradients}
    length = {name: float(np.linalg.norm(one[name].astype(np.float64))) for name in gradients}
    shares = {name: away[name] / length[name] if length[name] else float(away[name] > 0) for name in gradients}
    off, whole = (np.linalg.norm([*each.values()]) for each in (away, length))
    worst = max(shares, key=lambda name: shares[name], default="")
    return {
        "loss": share(two["loss"], one["loss"]),
        "gradients": float(off / max(1e-300, whole)),
        "worst_gradient": shares.get(worst, 0.0),
        "worst_gradient_of": worst,
        "lengths": max((share(two[f"length of {name}"], one[f"length of {name}"]) for name in gradients), default=0.0),
        "finite": bool(all(np.isfinite(two[name]).all() for name in (*gradients, "loss"))),
    }


def share(value: Any, of: Any) -> float:
    return float(abs(value - of) / max(1e-300, abs(of)))
