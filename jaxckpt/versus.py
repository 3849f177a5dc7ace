"""The former name of `jaxckpt.comparison` and `jaxckpt.dynamic`, for one release."""

import warnings
from importlib import import_module
from typing import Any

_MODULES = ("jaxckpt.comparison", "jaxckpt.dynamic")


def __getattr__(name: str) -> Any:
    for module in map(import_module, _MODULES):
        if not name.startswith("_") and hasattr(module, name):
            now = f"{module.__name__}.{name}"
            message = f"jaxckpt.versus.{name} is {now} now; jaxckpt.versus goes with the next release"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
