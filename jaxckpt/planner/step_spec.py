"""What a user's function returns as a step: `(step, args)`, or a dict with these and how it is to be jitted."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxckpt._errors import StepReferenceError

_KEYS = {"step", "args", "donate_argnums", "static_argnums"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeStep:
    """A step with its arguments.

    Attributes:
      step: The step.
      args: Its arguments.
      options: "donate_argnums" and "static_argnums", where they were given.
    """

    step: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]


def made_step(returned: Any, *, called: str, reference: str) -> MadeStep:
    """Reads what a function returned.

    Args:
      returned: `(step, args)`, or a dict of "step", "args" and, if need be, "donate_argnums" and "static_argnums".
      called: What was called, for the message.
      reference: The function.

    Raises:
      StepReferenceError: It is something else.

    Example:
      >>> made_step((abs, (1,)), called="f()", reference="f").args
      (1,)
    """
    options: dict[str, Any] = {}
    step = args = None
    if isinstance(returned, Mapping) and set(returned) <= _KEYS:
        options = {key: value for key, value in returned.items() if key not in ("step", "args")}
        step, args = returned.get("step"), returned.get("args")
    elif isinstance(returned, (tuple, list)) and len(returned) == 2:
        step, args = returned
    if callable(step) and isinstance(args, (tuple, list)):
        return MadeStep(step=step, args=tuple(args), options=options)
    raise StepReferenceError(
        f"{called} is no step.",
        got=f"it returns {_words(returned)}",
        needed="(step, args), or a dict with step, args and perhaps donate_argnums, static_argnums",
        advice='return {"step": step, "args": args, "donate_argnums": (0,)}',
        reference=reference,
    )


def _words(returned: Any) -> str:
    """What came back, as short as it tells."""
    if isinstance(returned, Mapping):
        return f"a dict of {', '.join(f'{key}: {type(each).__name__}' for key, each in returned.items()) or 'nothing'}"
    if isinstance(returned, (tuple, list)):
        return f"({', '.join(type(each).__name__ for each in returned)})"
    return f"a {type(returned).__name__}"
