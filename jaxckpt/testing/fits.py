"""A budget asserted in a test: the step is compiled, and must not take more.

Read after `tables`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from jaxckpt._errors import ArgumentError, BudgetError, FootprintAssertionError
from jaxckpt._step import Step
from jaxckpt._units import budget_bytes, budget_fraction, format_bytes
from jaxckpt.compiler import Footprint, footprint
from jaxckpt.machine import Target
from jaxckpt.report import render_text
from jaxckpt.testing.tables import holders_table


def assert_fits(
    step: Callable[..., Any] | Step | Footprint,
    *args: Any,
    budget: str | int | float,
    target: Target | str | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    compiler_options: Sequence[tuple[str, Any]] = (),
) -> Footprint:
    """Asserts that a step, as it stands, takes at most a budget of one device of a target. Nothing runs.

    Args:
      step: As `jaxckpt.footprint`; or a footprint, which takes nothing but the budget.
      *args: As `jaxckpt.footprint`.
      budget: "40GiB", "40GB" or a number of bytes, compared with `Footprint.total_bytes`. No share: there is only
        one step here, and nothing that it could be a share of.
      target: The machine, or its name; "h200" where none is given. It need not be there.
      donate_argnums: As `jaxckpt.footprint`.
      static_argnums: As `jaxckpt.footprint`.
      compiler_options: As `jaxckpt.footprint`.

    Returns:
      The footprint, for more assertions.

    Raises:
      FootprintAssertionError: The step takes more; an AssertionError whose message says where the bytes are.
      BudgetError: The budget is no amount of memory, or is a share; said before anything is compiled.
      ArgumentError: As `jaxckpt.footprint`, or a footprint was given together with what only a step takes.

    Example:
      >>> from jaxckpt.compiler import Footprint
      >>> made = Footprint(argument_bytes=300, output_bytes=0, alias_bytes=0, temp_bytes=700, target="h200")
      >>> assert_fits(made, budget="1kB").total_bytes
      1000
    """
    __tracebackhide__ = True
    function = step.function if isinstance(step, Step) else step
    name = "step" if isinstance(step, Footprint) else getattr(function, "__name__", type(function).__name__)
    most_bytes = _amount(name, budget)
    made = measured(
        f"assert_fits({name})",
        step,
        args,
        target,
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
        compiler_options=compiler_options,
    )
    if made.total_bytes > most_bytes:
        raise _too_large(name, made, budget, most_bytes)
    return made


def measured(
    called: str,
    step: Callable[..., Any] | Step | Footprint,
    args: Sequence[Any],
    target: Target | str | None,
    **options: Any,
) -> Footprint:
    """The footprint given, or that of the step compiled for the target, "h200" where none is given."""
    if not isinstance(step, Footprint):
        return footprint(step, *args, target="h200" if target is None else target, **options)
    given = [name for name, value in {"target": target, **options}.items() if value not in (None, (), [])]
    given = ["arguments", *given] if args else given
    if given:
        raise ArgumentError(
            f"{called}: a footprint was made already, and nothing of it can be changed now.",
            got=f"a footprint and {', '.join(given)}",
            needed="a footprint alone, or a step with its arguments and options",
            advice=f"{called.split('(')[0]}(step, *args, target=...), or give these to jaxckpt.footprint",
        )
    return step


def _amount(name: str, budget: str | int | float) -> int:
    if budget_fraction(budget) is None:
        return budget_bytes(budget)
    raise BudgetError(
        f"assert_fits({name}, budget={budget!r}): a share is of the footprint without rematerialisation, which is not"
        " known here.",
        got=repr(budget),
        needed='an amount: "40GiB", "40GB" or a number of bytes',
        advice='budget="40GiB", or budget=int(0.5 * jaxckpt.footprint(other_step, ...).total_bytes)',
        budget=budget,
    )


def _too_large(name: str, made: Footprint, budget: str | int | float, most_bytes: int) -> FootprintAssertionError:
    excess_bytes = made.total_bytes - most_bytes
    return FootprintAssertionError(
        f"assert_fits({name}, budget={budget!r}, target={made.target!r}): the step does not fit.",
        got=f"{made.summary()}; {_exactly(excess_bytes)} too much",
        needed=f"at most {_exactly(most_bytes)}",
        advice=_advice(name, made, budget, excess_bytes),
        table=render_text(holders_table(made), width=110).rstrip(),
        footprint=made,
        budget_bytes=most_bytes,
    )


def _exactly(size_bytes: int) -> str:
    """Bytes for people, and to the byte where the rounded figure would hide what the comparison saw."""
    return f"{format_bytes(size_bytes)} ({size_bytes} bytes)" if size_bytes >= 1024 else f"{size_bytes} bytes"


def _advice(name: str, made: Footprint, budget: str | int | float, excess_bytes: int) -> str:
    """The cheapest thing that can help: donation costs nothing, planning costs time, the rest is the user's model."""
    own_output_bytes = made.output_bytes - made.alias_bytes
    if own_output_bytes >= excess_bytes and made.argument_bytes > made.alias_bytes:
        return (
            f"donate what the step returns changed (donate_argnums=...): results take {format_bytes(own_output_bytes)}"
            " beside the arguments"
        )
    if made.temp_bytes < excess_bytes:
        return (
            f"a smaller model or batch, or sharding over more devices: arguments, results and program alone take"
            f" {format_bytes(made.total_bytes - made.temp_bytes)}, which no plan changes"
        )
    words = f"'{budget}'" if isinstance(budget, str) and " " in budget else budget
    return (
        f'jaxckpt.plan({name}, ..., budget={budget!r}, target="{made.target}"), or in a shell:'
        f" jaxckpt plan MODULE:FUNCTION --budget {words} --target {made.target}"
    )
