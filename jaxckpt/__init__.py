"""Fits JAX training steps into the memory of a device, checked by the XLA compiler.

`jaxckpt.plan` takes a training step, its arguments, a target and a budget in bytes. For every residual it decides
whether to save, recompute, offload or shard it, rewrites the step, and compiles the result for the target: a plan is
returned only if the compiled total is within the budget. The device need not be attached.

To read the code, follow the data: `ir` (a step as plain data), `schedule` (the order of work that a plan asks for),
`cost` (bytes and seconds of a schedule), `policy`, `solve`; then `program`, `outline` and `trace` (jaxprs), `rewrite`
(a plan carried out), `compiler` (what XLA says), `planner` (the search over all of these), `report`, `cli`. `dynamic`
is independent of them: evictors that decide at run time. docs/how-it-works.md follows one value through all of them.
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
