"""`module:function` and `file.py:function` become a step with its arguments.

The function takes nothing and returns `(step, args)`, or a dict with "step", "args" and, if need be,
"kwargs", "donate_argnums" and "static_argnums".
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxckpt._errors import StepReferenceError, closest_names
from jaxckpt._step import Step
from jaxckpt.planner.step_spec import step_from_spec


def load_step(reference: str) -> Step:
    """Imports a reference and calls it; what the user's own code raises passes through."""
    function = _function(reference)
    if not _takes(function):
        name = reference.rpartition(":")[2]
        raise _wrong(
            reference,
            f"{name} takes {_required_parameters(function)}: perhaps it is the step itself",
            "a function that takes nothing and returns (step, args)",
            f"def make_step(): return {name}, (...)",
        )
    return step_from_spec(function(), called=repr(reference), reference=reference)


def load_maker(reference: str) -> Callable[[int], Any]:
    """Imports a function that makes a step of a batch size; it is not called."""
    function = _function(reference)
    if not _takes(function, 1):
        raise _wrong(
            reference,
            f"it takes {_required_parameters(function)}",
            "a function of the batch size alone that returns (step, args)",
            "def make_step(batch): return step, (..., jax.ShapeDtypeStruct((batch, ...), ...))",
        )
    return function


def _takes(function: Callable[..., Any], *args: int) -> bool:
    """True if the function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*args)
    except TypeError:
        return False
    except ValueError:  # some callables have no signature; calling them will tell
        return True
    return True


def _required_parameters(function: Callable[..., Any]) -> str:
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    required = (p.name for p in parameters if p.default is p.empty and p.kind not in optional)
    return ", ".join(required) or "nothing"


def _function(reference: str) -> Callable[..., Any]:
    place, _, name = reference.rpartition(":")
    if not name or not place:
        raise _wrong(reference, f"{reference!r} has no function", "module:function or path/to/file.py:function")
    module = (_file if place.endswith(".py") else _module)(reference, place, name)
    function = getattr(module, name, None)
    if not callable(function):
        known = _public_functions(module)
        near = _closest(name, known)
        needed = f"one of {', '.join(known) or 'none'}"
        raise _wrong(reference, f"no function {name!r} in {place}", needed, near and f"{place}:{near}")
    return function


def _public_functions(module: ModuleType) -> list[str]:
    public = ((key, each) for key, each in vars(module).items() if inspect.isfunction(each) and key[0] != "_")
    return [key for key, each in public if each.__module__ == module.__name__]


def _module(reference: str, place: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        near = _closest(place, [path.stem for path in Path().glob("*.py")])
        needed = "a module that can be imported from here"
        raise _wrong(reference, f"no module {place!r}", needed, near and f"{near}:{name}") from error


def _file(reference: str, place: str, function: str) -> ModuleType:
    path = Path(place)
    if not path.is_file():
        near = _closest(path.name, [each.name for each in path.parent.glob("*.py")])
        advice = near and f"{path.parent / near}:{function}"
        raise _wrong(reference, f"no file {place!r}", "a file that is there", advice)
    sys.path.insert(0, str(path.resolve().parent))  # where `python file.py` would find its neighbours
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_of_jaxckpt"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _closest(word: str, known: list[str]) -> str | None:
    return next(iter(closest_names(word, known)), None)


def _wrong(reference: str, got: str, needed: str, advice: str | None = None) -> StepReferenceError:
    return StepReferenceError(
        f"{reference!r} is no step.",
        got=got,
        needed=needed,
        advice=advice or "jaxckpt plan train.py:make_step ...",
        reference=reference,
    )
