"""Two snapshots of one test: whether the second costs too much, and where the difference is.

Read after `snapshot`.
"""

import math
from dataclasses import dataclass
from functools import cached_property

from jaxckpt._errors import BudgetError
from jaxckpt._units import budget_bytes, format_bytes
from jaxckpt.ir.layers import Layers
from jaxckpt.report import Section, Table
from jaxckpt.report.rows import layer_table, signed_bytes
from jaxckpt.report.tree import columns
from jaxckpt.testing.snapshot import ScopeBytes, Snapshot, natural_order

_MOST_ROWS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedGrowth:
    """How much more than its snapshot a step may take: a share of its figure, but `least_bytes` in any case."""

    share: float
    least_bytes: int

    def allowed_bytes(self, before_bytes: int) -> int:
        """More bytes than a figure that are still accepted.

        Example:
          >>> AllowedGrowth(share=0.01, least_bytes=2**20).allowed_bytes(2**30)
          10737418
        """
        return max(int(self.share * before_bytes), self.least_bytes)

    def __str__(self) -> str:
        return f"{100 * self.share:g}%, at least {format_bytes(self.least_bytes)}"


def tolerance_from(share: float, least: str | int) -> AllowedGrowth:
    """Reads a tolerance as users give it."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise BudgetError(
            f"jaxckpt_snapshot(tolerance={share!r}): no share of the snapshot's bytes.",
            got=repr(share),
            needed="a number from 0 up to, and without, 1",
            advice='tolerance=0.01, or tolerance_bytes="64MiB" for an amount',
            budget=share,
        )
    is_none = least == 0 and isinstance(least, int)
    return AllowedGrowth(share=share, least_bytes=0 if is_none else budget_bytes(least, called="tolerance_bytes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeChange:
    """One scope in two snapshots; zeros where it is in one of them only."""

    scope: str
    before: ScopeBytes
    after: ScopeBytes

    @property
    def held_bytes(self) -> int:
        """How much more is held from forward to backward; negative where it is less."""
        return self.after.held_bytes - self.before.held_bytes

    @property
    def peak_bytes(self) -> int:
        """How much more is alive at the peak; negative where it is less."""
        return self.after.peak_bytes - self.before.peak_bytes

    @property
    def figures(self) -> tuple[int, int, int, int]:
        """All that is known of it; layers in which these are equal are shown as one."""
        return self.before.held_bytes, self.after.held_bytes, self.before.peak_bytes, self.after.peak_bytes


@dataclass(frozen=True, kw_only=True)
class Change:
    """A snapshot, and one of what the step takes now with its scopes cut to the same depth."""

    before: Snapshot
    after: Snapshot
    tolerance: AllowedGrowth

    @property
    def total_bytes(self) -> int:
        """How much more the step takes of the device; negative where it is less."""
        return self.after.total_bytes - self.before.total_bytes

    @property
    def host_bytes(self) -> int:
        """How much more the step takes of host memory."""
        return self.after.host_bytes - self.before.host_bytes

    @property
    def is_costlier(self) -> bool:
        """True if device or host memory grew by more than is accepted."""
        device = self.total_bytes > self.tolerance.allowed_bytes(self.before.total_bytes)
        return device or self.host_bytes > self.tolerance.allowed_bytes(self.before.host_bytes)

    @cached_property
    def scopes(self) -> tuple[ScopeChange, ...]:
        """Scopes whose bytes changed, in natural order; none where one of the snapshots has no scopes."""
        if not (self.before.is_mapped and self.after.is_mapped):
            return ()
        before = {each.scope: each for each in self.before.scopes}
        after = {each.scope: each for each in self.after.scopes}
        changes = []
        for scope in sorted({*before, *after}, key=natural_order):
            none = ScopeBytes(scope=scope, held_bytes=0, peak_bytes=0)
            changes.append(ScopeChange(scope=scope, before=before.get(scope, none), after=after.get(scope, none)))
        return tuple(change for change in changes if change.before != change.after)

    @property
    def notes(self) -> tuple[str, ...]:
        """Reasons that the difference may have besides the step itself."""
        notes = []
        made = [(each.jax_version, each.compiler_version) for each in (self.before, self.after)]
        if made[0] != made[1]:
            notes.append(
                f"The snapshot was made with jax {made[0][0]} and compiler {made[0][1]}; here are jax {made[1][0]} and"
                f" compiler {made[1][1]}: the difference may be theirs."
            )
        before, after = self.before.compiler_options, self.after.compiler_options
        if before != after:
            options = [", ".join("=".join(pair) for pair in each) or "none" for each in (before, after)]
            notes.append(f"The snapshot was made with compiler options {options[0]}; here are {options[1]}.")
        if not (self.before.is_mapped and self.after.is_mapped):
            notes.append("There is no difference by layer: XLA's buffers were not read on both sides.")
        return tuple(notes)


def signed_share(change: int, before: int) -> str:
    """A change relative to what was, for people.

    Example:
      >>> signed_share(5, 100), signed_share(5, 0)
      ('+5.0%', 'from nothing')
    """
    share = 100 * change / before if before else math.inf
    return f"{share:+.1f}%" if math.isfinite(share) else "from nothing"


### As a report


def change_report(change: Change) -> Section:
    """Two snapshots: figures that changed, then scopes that changed, equal layers folded."""
    tables = (_figures_table(change), *((_scopes_table(change),) if change.scopes else ()))
    return Section(title="Snapshot and now", parts=tables)


def _figures_table(change: Change) -> Table:
    before, after = change.before, change.after
    figures = (
        ("total", before.total_bytes, after.total_bytes),
        ("arguments", before.argument_bytes, after.argument_bytes),
        ("results", before.output_bytes, after.output_bytes),
        ("  of these in donated arguments", before.alias_bytes, after.alias_bytes),
        ("temporaries", before.temp_bytes, after.temp_bytes),
        ("  of these alive at the peak", before.peak_bytes, after.peak_bytes),
        ("program and constants", before.program_bytes, after.program_bytes),
        ("host memory", before.host_bytes, after.host_bytes),
    )
    return Table(
        columns=columns("", ">snapshot", ">now", ">change"),
        rows=tuple(
            (name, format_bytes(was), format_bytes(now), signed_bytes(now - was))
            for name, was, now in figures
            if was != now
        ),
        notes=change.notes,
    )


def _scopes_table(change: Change) -> Table:
    return layer_table(
        change.scopes,
        (">peak: was", ">now", ">all layers", ">held: was", ">now", ">all layers"),
        _change_cells,
        scope=lambda each: each.scope,
        alike=lambda each: each.figures,
        title="By layer: alive at the peak, and held from forward to backward",
        shown=_MOST_ROWS,
        rest=lambda count, _: f"and {count} more that changed less",
    )


def _change_cells(group: Layers[ScopeChange]) -> tuple[int | str, ...]:
    held_was, held_now, peak_was, peak_now = group.items[0].figures
    held, peak = (sum(sizes) for sizes in zip(*((i.held_bytes, i.peak_bytes) for i in group.items), strict=True))
    return (
        max(abs(held), abs(peak)),
        format_bytes(peak_was),
        format_bytes(peak_now),
        signed_bytes(peak),
        format_bytes(held_was),
        format_bytes(held_now),
        signed_bytes(held),
    )
