"""Bytes and seconds as people write and read them; the only place that knows 1024 from 1000.

Inside the package a budget is always an integer of bytes per device and a time is a float of seconds;
this module stands at the door.
"""

import math
import re
from numbers import Integral, Real

from jaxckpt._errors import BudgetError

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:e\+?[0-9]+)?|\.[0-9]+)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(text: str, *, called: str = "parse_bytes") -> int:
    """Reads an amount of memory such as "6GiB", "6 GB", "512mib" or "1000" (bytes), rounded down to bytes.

    Units are B, kB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024). `called` says in the error how
    the caller's call reads.

    Example:
      >>> parse_bytes("6GiB"), parse_bytes("1.5 kB")
      (6442450944, 1500)
    """
    match = _AMOUNT.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS or math.isinf(float(match[1])):
        raise BudgetError(
            f"{called}: {text!r} is no amount of memory.",
            got=repr(text),
            needed="a number with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB",
            advice='"6GiB" (1024**3 bytes each) or "6GB" (1000**3 bytes each)',
            text=text,
        )
    return int(float(match[1]) * _UNITS[match[2].lower()])


def budget_bytes(budget: str | int | float, *, baseline_bytes: int | None = None, called: str = "budget") -> int:
    """Turns a budget as users give it into bytes per device, at least 1.

    A budget is a text (see `parse_bytes`), a number of bytes >= 1, or a fraction: a float in (0, 1], or a text like
    "50%", of `baseline_bytes`, the step's footprint without rematerialisation. `called` is its name in an error.

    Example:
      >>> budget_bytes("2GiB"), budget_bytes(0.5, baseline_bytes=1000)
      (2147483648, 500)
    """
    called = f"{called}={budget!r}"
    fraction = budget_fraction(budget)
    if fraction is not None:
        if baseline_bytes is None:
            raise _bad_budget(called, budget, "a fraction needs the footprint that it is a part of")
        return max(1, int(fraction * baseline_bytes))
    amount = parse_bytes(budget, called=called) if isinstance(budget, str) else budget
    if isinstance(amount, bool) or not isinstance(amount, Real):
        raise _bad_budget(called, budget, "neither a text nor a number")
    if not math.isfinite(amount) or amount < 1:
        raise _bad_budget(called, budget, "not a positive, finite number of bytes")
    return int(amount)


def budget_fraction(budget: str | int | float) -> float | None:
    """The share of the unplanned footprint that a budget asks for, or None where it is an amount.

    Example:
      >>> budget_fraction(0.5), budget_fraction("25%"), budget_fraction("6GiB")
      (0.5, 0.25, None)
    """
    if isinstance(budget, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*%\s*", budget)
        if match is None:
            return None
        fraction = float(match[1]) / 100
    elif isinstance(budget, Real) and not isinstance(budget, Integral) and 0 < budget <= 1:
        fraction = float(budget)
    else:
        return None
    if not 0 < fraction <= 1:
        raise _bad_budget(f"budget={budget!r}", budget, "a share outside 0% to 100%")
    return fraction


def _bad_budget(called: str, budget: object, reason: str) -> BudgetError:
    return BudgetError(
        f"{called} is no budget: {reason}.",
        got=repr(budget),
        needed='"6GiB", "6GB", a number of bytes, or a share of the unplanned footprint (0.5, "50%")',
        advice='budget="6GiB"',
        budget=budget,
    )


def format_bytes(size_bytes: int | float) -> str:
    """Writes bytes for people, in binary units with up to two decimals; beyond all memory with an exponent.

    Example:
      >>> format_bytes(4 * 2**30 + 2**29), format_bytes(192 * 2**20), format_bytes(12), format_bytes(10**99)
      ('4.50 GiB', '192 MiB', '12 B', '9.095e+86 TiB')
    """
    magnitude = abs(size_bytes)
    if magnitude >= 2**50:
        return f"{size_bytes / 2**40:.4g} TiB"
    if magnitude >= 2**30:
        return f"{size_bytes / 2**30:.2f} GiB"
    if magnitude >= 2**20:
        return f"{size_bytes / 2**20:.4g} MiB"
    if magnitude >= 2**10:
        return f"{size_bytes / 2**10:.4g} KiB"
    return f"{int(size_bytes)} B"


def format_seconds(seconds: float) -> str:
    """Writes a duration for people.

    Example:
      >>> format_seconds(0.02154), format_seconds(3.2e-5), format_seconds(12.34)
      ('21.54 ms', '32.00 us', '12.3 s')
    """
    if seconds >= 1:
        return f"{seconds:.1f} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e6:.2f} us"
