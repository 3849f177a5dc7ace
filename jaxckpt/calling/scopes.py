"""Paths of NNX modules as scopes: while a step is traced, calls of its modules stand under their paths.

A module carries its path ("model.blocks.2") as a static attribute during the trace, so that copies of it, which
`nnx.value_and_grad` and other transformations make, carry it too. The classes' `__call__` reads it; a call within
another module's call adds the rest of its path: `model/blocks.2/attention`.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import jax
from jax.extend import source_info_util

from jaxckpt.calling.objects import modules_in

_PATH = "_jaxckpt_path"
_AROUND: ContextVar[str] = ContextVar("jaxckpt_module_path", default="")
"""The path of the module whose call is being traced; each thread has its own."""
source_info_util.register_exclusion(__file__)  # source locations are those of the model, not of the wrapper below
_PATCHING = threading.RLock()
"""Held while classes are patched: two traces at once would undo each other's patches in the wrong order."""


@contextmanager
def module_scopes(objects: Sequence[tuple[str, Any]]) -> Iterator[None]:
    """Names the calls of all modules in some objects, each after its path."""
    modules = [(path, module) for root, each in objects for path, module in modules_in(root, each)]
    if not modules:
        yield
        return
    with _PATCHING, ExitStack() as stack:
        for cls in {type(module) for _, module in modules}:
            stack.enter_context(_named_calls(cls))
        for path, module in reversed(modules):  # of two paths to one module the first counts
            vars(module)[_PATH] = path
        try:
            yield
        finally:
            for _, module in modules:
                vars(module).pop(_PATH, None)


def without_path(tree: object) -> None:
    """Removes the paths from modules that a step returns."""
    for _, module in modules_in("", tree):
        vars(module).pop(_PATH, None)


@contextmanager
def _named_calls(cls: Any) -> Iterator[None]:
    own = vars(cls).get("__call__")
    cls.__call__ = _named(cls.__call__)
    try:
        yield
    finally:
        if own is None:
            del cls.__call__
        else:
            cls.__call__ = own


def _named(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def named(self: Any, *args: Any, **kwargs: Any) -> Any:
        path = vars(self).get(_PATH, "")
        around = _AROUND.get()
        if not path or path == around:  # a module made within the step, or `super().__call__`
            return call(self, *args, **kwargs)
        token = _AROUND.set(path)
        try:
            with jax.named_scope(path.removeprefix(f"{around}.")):
                return call(self, *args, **kwargs)
        finally:
            _AROUND.reset(token)

    return named
