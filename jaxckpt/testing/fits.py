"""A budget asserted in a test: the step is compiled, and must not take more.

The error has a table of what holds the bytes. Read after `snapshot`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxckpt._errors import ArgumentError, BudgetError, FootprintAssertionError
from jaxckpt._step import Step
from jaxckpt._units import budget_bytes, budget_fraction, format_bytes
from jaxckpt.compiler import Footprint, footprint
from jaxckpt.hlo import Buffer
from jaxckpt.ir.layers import fold_layers, layer_ranges
from jaxckpt.ir.scope import scope_at_depth
from jaxckpt.machine import Target
from jaxckpt.report import Table, render_text
from jaxckpt.report.rows import array_text, short_source
from jaxckpt.report.tree import columns
from jaxckpt.testing.snapshot import DEPTH, bytes_by_scope

_MOST_ROWS = 16
_EXPLAINED = (
    "Temporaries alive at the peak by scope, a layer each and all; then what is no temporary: (results) are those that"
    " take over no argument; (gaps at the peak) are allocated and not alive."
)


def assert_fits(
    step: Callable[..., Any] | Step | Footprint,
    *args: Any,
    budget: str | int | float,
    target: Target | str | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    compiler_options: Sequence[tuple[str, Any]] = (),
) -> Footprint:
    """Asserts that a step, as written, takes at most a budget on one device of a target. Nothing runs.

    Args:
      step: As for `jaxckpt.footprint`; or a footprint, with no other argument than the budget.
      *args: As `jaxckpt.footprint`.
      budget: "40GiB", "40GB" or a number of bytes, compared with `Footprint.total_bytes`. Shares are not possible:
        there is no other step to which they could refer.
      target: The machine, or its name; by default "h200". The device need not be attached.
      donate_argnums: As `jaxckpt.footprint`.
      static_argnums: As `jaxckpt.footprint`.
      compiler_options: As `jaxckpt.footprint`.

    Returns:
      The footprint, for more assertions.

    Raises:
      FootprintAssertionError: The step takes more; an AssertionError whose message says where the bytes are.
      BudgetError: The budget is no amount of memory, or is a share; raised before anything is compiled.
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
    if min(own_output_bytes, made.argument_bytes - made.alias_bytes) >= excess_bytes:  # the most that donation saves
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


### What holds the bytes


def holders_table(footprint: Footprint, *, depth: int = DEPTH) -> Table:
    """Where the bytes of a footprint are at its peak, largest first; all rows together are its total."""
    rows = sorted(_holders(footprint, depth), key=lambda row: -row[0])
    shown, rest = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
    notes: tuple[str, ...] = (f"and {len(rest)} more, {format_bytes(sum(size for size, _ in rest))}",) if rest else ()
    if footprint.memory is None:
        notes += ("XLA's buffers were not read: temporaries cannot be told apart by layer.",)
    return Table(
        title="What holds the bytes",
        columns=columns("scope", "layers", ">each", ">all", ">of total", "largest buffer"),
        rows=tuple((*cells, _share(size, footprint.total_bytes), last) for size, (*cells, last) in shown),
        notes=(_EXPLAINED, *notes, *footprint.caveats),
    )


def _holders(footprint: Footprint, depth: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    for name, size_bytes in _outside_scopes(footprint):
        if size_bytes:
            yield size_bytes, (name, "", "", format_bytes(size_bytes), "")
    memory = footprint.memory
    largest: dict[str, str] = {}
    for buffer in () if memory is None else memory.alive_at(memory.peak):
        largest.setdefault(scope_at_depth(buffer.scope, depth), _described(buffer))
    scopes = bytes_by_scope(footprint, depth=depth)
    for group in fold_layers(scopes, scope=lambda each: each.scope, alike=lambda each: each.peak_bytes):
        first, size_bytes = group.items[0], sum(item.peak_bytes for item in group.items)
        if size_bytes:
            layers = layer_ranges(group.layers)
            each, everything = format_bytes(first.peak_bytes), format_bytes(size_bytes)
            yield size_bytes, (group.scope or "/", layers, each, everything, largest[first.scope])


def _outside_scopes(footprint: Footprint) -> Iterator[tuple[str, int]]:
    """Bytes of the total that no scope holds at the peak."""
    memory = footprint.memory
    yield "(arguments)", footprint.argument_bytes
    yield "(results)", footprint.output_bytes - footprint.alias_bytes
    yield "(program)", footprint.program_bytes
    if memory is None:
        yield "(temporaries)", footprint.temp_bytes
    else:
        yield "(gaps at the peak)", footprint.temp_bytes - memory.peak_bytes


def _described(buffer: Buffer) -> str:
    made_at = f" ({short_source(buffer.source)})" if buffer.source else ""
    return f"{array_text(buffer.dtype, buffer.shape, buffer.op or buffer.name)}{made_at}"


def _share(size_bytes: int, total_bytes: int) -> str:
    return f"{100 * size_bytes / total_bytes:.1f}%" if total_bytes else ""
