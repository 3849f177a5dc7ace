"""The former name of `jaxckpt.comparison` and `jaxckpt.dynamic`, for one release."""

import warnings
from importlib import import_module
from typing import Any

_ROOMS = ("jaxckpt.comparison", "jaxckpt.dynamic")


def __getattr__(name: str) -> Any:
    for room in map(import_module, _ROOMS):
        if not name.startswith("_") and hasattr(room, name):
            message = f"jaxckpt.versus.{name} is {room.__name__}.{name} now; jaxckpt.versus goes with the next release"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(room, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
