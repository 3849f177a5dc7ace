"""A verification as a report: the results that differ first, the worst of them on top.

Read after `rows`.
"""

import math
from collections.abc import Iterator

from jaxckpt.report.rows import array_text
from jaxckpt.report.tree import Section, Table, Text, columns
from jaxckpt.verifier import LeafDifference, Verification

_MOST_ROWS = 24


def verification_report(verification: Verification) -> Section:
    """A sentence that says whether the planned step computes the same, and a row for each result."""
    wrong = set(map(id, verification.wrong))
    leaves = sorted(verification.leaves, key=lambda leaf: (id(leaf) not in wrong, leaf.bit_equal, -_share(leaf)))
    table = Table(
        title="Results",
        columns=columns("result", "type", ">differing", ">max difference", ">max relative", ">allowed", ""),
        rows=tuple(_row(leaf, is_wrong=id(leaf) in wrong, exact=verification.exact) for leaf in leaves),
        compact_rows=_MOST_ROWS,
    )
    return Section(title=_title(verification), parts=(Text(text=" ".join(_notes(verification))), table))


def _title(verification: Verification) -> str:
    if verification.wrong:
        return f"{verification.step}: {len(verification.wrong)} of {len(verification.leaves)} results are wrong"
    same = "bit for bit" if verification.bit_equal else "within rounding"
    return f"{verification.step}: the planned step computes the same, {same}"


def _notes(verification: Verification) -> Iterator[str]:
    how = "one operation at a time" if verification.exact else "compiled, on this machine"
    yield f"Both steps ran {how}."
    if verification.generated:
        yield f"{len(verification.generated)} described arguments were generated."
    draws, planned = verification.random_draws
    if draws or planned:
        yield f"Random bits are drawn {draws} times in the step, {planned} times in the planned step."
    if verification.effects:
        yield f"Besides the results there are effects, which were not compared: {', '.join(verification.effects)}."
    if verification.not_finite:
        yield f"{verification.not_finite} elements are NaN or infinite in the step as written."


def _row(leaf: LeafDifference, *, is_wrong: bool, exact: bool) -> tuple[str, ...]:
    size = math.prod(leaf.shape)
    return (
        leaf.path or "/",
        array_text(leaf.dtype, leaf.shape),
        f"{leaf.differing} of {size}" if leaf.differing else "0",
        _figure(leaf.max_absolute),
        _figure(leaf.max_relative),
        "0" if exact else _figure(leaf.allowed),
        _word(leaf, is_wrong=is_wrong),
    )


def _word(leaf: LeafDifference, *, is_wrong: bool) -> str:
    if is_wrong:
        return "NaN or infinity differs" if leaf.not_finite_differing else "WRONG"
    return "bit-equal" if leaf.bit_equal else "within rounding"


def _figure(number: float) -> str:
    return f"{number:.2g}"


def _share(leaf: LeafDifference) -> float:
    """How much of what is allowed is taken."""
    return leaf.max_absolute / leaf.allowed if leaf.allowed else float(leaf.differing)
