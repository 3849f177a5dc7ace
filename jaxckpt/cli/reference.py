"""`module:function` and `file.py:function` become a step with its arguments.

The function takes nothing and returns `(step, args)`, or a dict with "step", "args" and, if need be,
"donate_argnums" and "static_argnums".
"""

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxckpt._errors import StepReferenceError

_KEYS = {"step", "args", "donate_argnums", "static_argnums"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferredStep:
    """A step as the shell takes it.

    Attributes:
      step: The step.
      args: Its arguments.
      options: "donate_argnums" and "static_argnums", where the function gave them.
    """

    step: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]


def load_step(reference: str) -> ReferredStep:
    """Imports a reference and calls it.

    Raises:
      StepReferenceError: There is no such module or function, or it returns something else. What the user's own code
        raises passes through.
    """
    place, colon, name = reference.rpartition(":")
    if not colon or not name or not place:
        raise _wrong(reference, f"{reference!r} has no function", "module:function or path/to/file.py:function")
    return _checked(reference, _function(reference, _module(reference, place), place, name)())


def _module(reference: str, place: str) -> ModuleType:
    if place.endswith(".py"):
        return _file(reference, Path(place))
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        near = _closest(place, [path.stem for path in Path().glob("*.py")])
        name = reference.rpartition(":")[2]
        raise _wrong(
            reference,
            f"no module {place!r}",
            "a module that can be imported from here",
            near and f"{near}:{name}",
        ) from error


def _file(reference: str, path: Path) -> ModuleType:
    if not path.is_file():
        folder = path.parent
        near = _closest(path.name, [each.name for each in folder.glob("*.py")] if folder.is_dir() else [])
        name = reference.rpartition(":")[2]
        raise _wrong(reference, f"no file {str(path)!r}", "a file that is there", near and f"{folder / near}:{name}")
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


def _function(reference: str, module: ModuleType, place: str, name: str) -> Callable[[], Any]:
    function = getattr(module, name, None)
    if not callable(function):
        own = ((key, each) for key, each in vars(module).items() if inspect.isfunction(each) and key[0] != "_")
        known = [key for key, each in own if each.__module__ == module.__name__]
        near = _closest(name, known)
        needed = f"one of {', '.join(known) or 'none'}"
        raise _wrong(reference, f"no function {name!r} in {place}", needed, near and f"{place}:{near}")
    required = _required_parameters(function)
    if required:
        raise _wrong(
            reference,
            f"{name} takes {', '.join(required)}: perhaps it is the step itself",
            "a function that takes nothing and returns (step, args)",
            f"def make_step(): return {name}, (...)",
        )
    return function


def _required_parameters(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some callables have no signature; calling them will tell
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]


def _closest(word: str, known: list[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, known, n=1)), None)


def _checked(reference: str, returned: Any) -> ReferredStep:
    options: dict[str, Any] = {}
    step = args = None
    if isinstance(returned, Mapping) and set(returned) <= _KEYS:
        options = {key: value for key, value in returned.items() if key not in ("step", "args")}
        step, args = returned.get("step"), returned.get("args")
    elif isinstance(returned, (tuple, list)) and len(returned) == 2:
        step, args = returned
    if callable(step) and isinstance(args, (tuple, list)):
        return ReferredStep(step=step, args=tuple(args), options=options)
    got = _words(returned)
    raise _wrong(
        reference,
        f"it returns {got}",
        "(step, args), or a dict with step, args and perhaps donate_argnums, static_argnums",
        'return {"step": step, "args": args, "donate_argnums": (0,)}',
    )


def _words(returned: Any) -> str:
    """What came back, as short as it tells."""
    if isinstance(returned, Mapping):
        return f"a dict of {', '.join(f'{key}: {type(each).__name__}' for key, each in returned.items()) or 'nothing'}"
    if isinstance(returned, (tuple, list)):
        return f"({', '.join(type(each).__name__ for each in returned)})"
    return f"a {type(returned).__name__}"


def _wrong(reference: str, got: str, needed: str, advice: str | None = None) -> StepReferenceError:
    return StepReferenceError(
        f"{reference!r} is no step.",
        got=got,
        needed=needed,
        advice=advice or "jaxckpt plan train.py:make_step ...",
        reference=reference,
    )
