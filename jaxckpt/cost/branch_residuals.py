"""Slots of branches' residuals: values of one size share a slot where only one of their branches runs.

Residuals of two branches of one cond are never alive together, so they may have one place, and do in the program that
is built: the first residual of a type that a branch returns is returned where the first one of another branch is. Each
branch fills the slots that it has nothing for with zeros.

Read after `jaxckpt.ir.regions`; `loop_liveness` asks. Complexity: linear in values times the slots of their type.
"""

from dataclasses import dataclass, field

from jaxckpt.ir import Graph


@dataclass(slots=True)
class Span:
    """Bytes that are alive from one step to another."""

    birth: int
    death: int
    size_bytes: int


@dataclass(slots=True)
class ResidualSlot:
    """A place for values of which at most one is alive, with the loops and branches around each of them."""

    span: Span
    homes: list[tuple[int, ...]] = field(default_factory=list)


class ResidualSlots:
    """The slots of a step."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._slots: dict[tuple[int, int], list[ResidualSlot]] = {}

    def place(self, new: Span, home: tuple[int, ...], common: int) -> Span:
        """Puts a value into a slot that exists, whose span then covers that of the value, or into a new one.

        `home` has the loops and branches around the value, outermost first; the first `common` are around its reader,
        too. A value of no branch has a span of its own.
        """
        cond = next((branch.cond for loop in home[common:] if (branch := self._graph.loops[loop].branch)), None)
        if cond is None:
            return new
        slots = self._slots.setdefault((cond, new.size_bytes), [])
        slot = next((slot for slot in slots if all(self._exclude(home, other) for other in slot.homes)), None)
        if slot is None:
            slots.append(slot := ResidualSlot(new))
        slot.homes.append(home)
        slot.span.birth, slot.span.death = min(slot.span.birth, new.birth), max(slot.span.death, new.death)
        return slot.span

    def _exclude(self, one: tuple[int, ...], other: tuple[int, ...]) -> bool:
        """True if at most one of two bodies runs."""
        level = first_difference(one, other)
        return level is not None and other[level] in self._graph.sibling_branches[one[level]]


def first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    """The first level at which two bodies are in different loops; None where one body is in the other."""
    return next((level for level, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
