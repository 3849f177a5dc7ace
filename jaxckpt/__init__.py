"""Fits JAX training steps into memory, and proves it with the XLA compiler.

You hand it the step you already have and the machine it must run on. For every residual it decides whether to save,
recompute, offload or shard it, rewrites the step, and proves the result with the real compiler, on a machine that need
not have the device.

To read the code, follow the data: `ir` (a step as plain data), `schedule` (the order of work that a plan asks for),
`cost` (bytes and seconds of a schedule), `policy`, `solve`; then `program`, `outline` and `trace` (jaxprs), `rewrite`
(a plan carried out), `compiler` (what XLA says), `planner` (the search over all of these), `report`, `cli`. `dynamic`
stands apart: evictors that decide at run time. docs/how-it-works.md follows one value all the way.
"""

import ast
import pkgutil
from importlib import import_module
from typing import Any

_STUB = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
_HOMES = {each.name: node.module for node in _STUB.body if isinstance(node, ast.ImportFrom) for each in node.names}
"""The module of each public name, loaded when the name is first used: read from the stub, as type checkers do."""

__all__ = [name for name, home in _HOMES.items() if home != __name__]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'jaxckpt' has no attribute {name!r}")
    return import_module(f"jaxckpt.{name}") if home == __name__ else getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
