"""Where a traced step runs: the devices that its arguments lie on, or those that JAX uses by itself."""

from collections.abc import Iterable
from typing import Any

import jax

from jaxckpt.trace import Traced


def devices_of(traced: Traced) -> Iterable[Any]:
    """The devices that a step's arguments or its jit name; none where nothing is said."""
    for sharding in (*(spec.sharding for spec in traced.specs), *traced.in_shardings):
        if sharding is not None and not isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh):
            yield from sharding.device_set


def platforms(traced: Traced) -> tuple[str, ...]:
    """The compilers' families ("cuda", "tpu", "cpu") of the devices that a step runs on."""
    found = {device.platform for device in devices_of(traced)} or {jax.default_backend()}
    return tuple(sorted({"cuda" if platform == "gpu" else platform for platform in found}))
