"""Footprint of what a test passes: a step, or a footprint."""

from collections.abc import Callable, Sequence
from typing import Any

from jaxckpt._errors import ArgumentError
from jaxckpt.compiler import Footprint, footprint
from jaxckpt.machine import Target

DEFAULT_TARGET = "h200"


def measured(
    called: str,
    step: Callable[..., Any] | Footprint,
    args: Sequence[Any],
    *,
    target: Target | str | None,
    donate_argnums: int | Sequence[int],
    static_argnums: int | Sequence[int],
    compiler_options: Sequence[tuple[str, Any]],
) -> Footprint:
    """The footprint given, or that of the step compiled for the target.

    Args:
      called: How the caller is called, for messages.
      step: A step, or a footprint, which takes nothing else.
      args: As `jaxckpt.footprint`.
      target: As `jaxckpt.footprint`; None is `DEFAULT_TARGET`.
      donate_argnums: As `jaxckpt.footprint`.
      static_argnums: As `jaxckpt.footprint`.
      compiler_options: As `jaxckpt.footprint`.

    Raises:
      ArgumentError: A footprint was given together with what only a step takes.
    """
    if not isinstance(step, Footprint):
        return footprint(
            step,
            *args,
            target=DEFAULT_TARGET if target is None else target,
            donate_argnums=donate_argnums,
            static_argnums=static_argnums,
            compiler_options=compiler_options,
        )
    given = {
        "arguments": len(args) > 0,
        "target": target is not None,
        "donate_argnums": donate_argnums != (),
        "static_argnums": static_argnums != (),
        "compiler_options": tuple(compiler_options) != (),
    }
    if any(given.values()):
        raise ArgumentError(
            f"{called}: a footprint was made already, and nothing of it can be changed now.",
            got=f"a footprint and {', '.join(name for name, is_given in given.items() if is_given)}",
            needed="a footprint alone, or a step with its arguments and options",
            advice=f"{called.split('(')[0]}(step, *args, target=...), or give these to jaxckpt.footprint",
        )
    return step
