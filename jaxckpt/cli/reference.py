"""`module:function` and `file.py:function` become a step with its arguments.

The function takes nothing and returns `(step, args)`, or a dict with "step", "args" and, if need be,
"donate_argnums" and "static_argnums".
"""

import difflib
import importlib
import importlib.util
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
      StepReferenceError: There is no such module or function, or it returns something else.
    """
    place, colon, name = reference.rpartition(":")
    if not colon or not name or not place:
        raise _wrong(reference, f"{reference!r} has no function", "module:function or path/to/file.py:function")
    module = _module(reference, place)
    if not callable(getattr(module, name, None)):
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        closest = difflib.get_close_matches(name, known, n=1)
        raise _wrong(
            reference,
            f"no function {name!r} in {place}",
            f"one of {', '.join(known) or 'none'}",
            f"{place}:{closest[0]}" if closest else None,
        )
    return _checked(reference, getattr(module, name)())


def _module(reference: str, place: str) -> ModuleType:
    if place.endswith(".py"):
        return _file(reference, Path(place))
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not (place == error.name or place.startswith(f"{error.name}.")):
            raise
        raise _wrong(reference, f"no module {place!r}", "a module that can be imported from here") from error


def _file(reference: str, path: Path) -> ModuleType:
    if not path.is_file():
        raise _wrong(reference, f"no file {str(path)!r}", "a file that is there")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _checked(reference: str, returned: Any) -> ReferredStep:
    if isinstance(returned, Mapping) and {"step", "args"} <= set(returned) <= _KEYS:
        options = {key: value for key, value in returned.items() if key not in ("step", "args")}
        return ReferredStep(step=returned["step"], args=tuple(returned["args"]), options=options)
    if isinstance(returned, tuple) and len(returned) == 2 and callable(returned[0]):
        return ReferredStep(step=returned[0], args=tuple(returned[1]), options={})
    got = f"keys {sorted(returned)}" if isinstance(returned, Mapping) else type(returned).__name__
    raise _wrong(
        reference,
        f"it returns {got}",
        "(step, args), or a dict with step, args and perhaps donate_argnums, static_argnums",
        'return {"step": step, "args": args, "donate_argnums": (0,)}',
    )


def _wrong(reference: str, got: str, needed: str, advice: str | None = None) -> StepReferenceError:
    return StepReferenceError(
        f"{reference!r} is no step.",
        got=got,
        needed=needed,
        advice=advice or "jaxckpt plan train.py:make_step ...",
        reference=reference,
    )
