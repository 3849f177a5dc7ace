"""Slots in which values of branches wait: those of one type are shared by branches of which only one runs.

What two branches of one cond leave never waits at once, so it may wait in one place, and does in the program that is
built: the first value of a type that a branch leaves is handed over where the first one of another branch is. Each
branch fills the slots that it has nothing for with zeros.

Read after `jaxckpt.ir.branch`; `turns` asks. Complexity: linear in values times the slots of their type.
"""

from dataclasses import dataclass, field

from jaxckpt.ir import Graph


@dataclass(slots=True)
class Span:
    """Bytes that are there from one step to another."""

    birth: int
    death: int
    size_bytes: int


@dataclass(slots=True)
class ResidualSlot:
    """A place for values of which at most one is there.

    Attributes:
      span: From when to when.
      homes: For each of its values the loops and branches around, outermost first.
    """

    span: Span
    homes: list[tuple[int, ...]] = field(default_factory=list)


class ResidualSlots:
    """The slots of a step.

    Args:
      graph: The step.
    """

    def __init__(self, graph: Graph):
        self._graph = graph
        self._slots: dict[tuple[int, int], list[ResidualSlot]] = {}

    def place(self, new: Span, home: tuple[int, ...], common: int) -> Span:
        """Where a value waits: in a slot that exists, which then is there for it too, or in a new one.

        Args:
          new: From when to when it waits.
          home: The loops and branches around it, outermost first.
          common: How many of them are around what reads it too.

        Returns:
          The slot's span; that of a value that is made in no branch is its own.
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
        """Whether at most one of two bodies runs."""
        parting = next(((a, b) for a, b in zip(one, other, strict=False) if a != b), None)
        return parting is not None and parting[1] in self._graph.sibling_branches[parting[0]]
