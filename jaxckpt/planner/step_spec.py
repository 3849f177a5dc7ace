"""Reads what a user's function returns as a step: `(step, args)`, or a dict that also says how to jit the step."""

from collections.abc import Mapping
from typing import Any

from jaxckpt._errors import StepReferenceError
from jaxckpt._step import Step

_KEYS = {"step", "args", "kwargs", "donate_argnums", "static_argnums"}


def step_from_spec(returned: Any, *, called: str, reference: str) -> Step:
    """The step in what the call `called` of a function returned.

    Example:
      >>> step_from_spec((abs, (1,)), called="f()", reference="f").args
      (1,)
    """
    if isinstance(returned, Step):
        return returned
    argnums: dict[str, Any] = {}
    step = args = None
    if isinstance(returned, Mapping) and set(returned) <= _KEYS:
        argnums = {key: value for key, value in returned.items() if key not in ("step", "args")}
        step, args = returned.get("step"), returned.get("args")
    elif isinstance(returned, (tuple, list)) and len(returned) == 2:
        step, args = returned
    if callable(step) and isinstance(args, (tuple, list)):
        return Step(step, tuple(args), **argnums)
    raise StepReferenceError(
        f"{called} is no step.",
        got=f"it returns {_kind_of(returned)}",
        needed="(step, args), or a dict with step, args and perhaps kwargs, donate_argnums, static_argnums",
        advice='return {"step": step, "args": args, "donate_argnums": (0,)}',
        reference=reference,
    )


def _kind_of(returned: Any) -> str:
    """One-line description of a returned object, for the error."""
    if isinstance(returned, Mapping):
        return f"a dict of {', '.join(f'{key}: {type(each).__name__}' for key, each in returned.items()) or 'nothing'}"
    if isinstance(returned, (tuple, list)):
        return f"({', '.join(type(each).__name__ for each in returned)})"
    return f"a {type(returned).__name__}"
