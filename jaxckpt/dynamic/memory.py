"""Meaning of a budget, and layout of the memory under it, as data.

Three systems mean three things by a budget. Coop reserves it and can have no byte more (`HARD`: what is free in small
pieces is of no use). DTE starts to evict when it is reached, and goes on when nothing can be (`HINT`). DTR's prototype
evicts after the op that went over it (`SOFT`); its simulator counts bytes without addresses (`COUNTED`), which is what
the published figures show.
"""

import enum
from dataclasses import dataclass, replace


class Mode(enum.IntEnum):
    """Meaning of a budget.

    Example:
      >>> from jaxckpt import dynamic
      >>> [each.name for each in dynamic.Mode]
      ['COUNTED', 'SOFT', 'HINT', 'HARD']
    """

    COUNTED = 0
    """Bytes alive never exceed it; they have no addresses."""
    SOFT = 1
    """After each op values are evicted until it is kept again, or none can go; no addresses."""
    HINT = 2
    """Before each op values are evicted until it is kept, or none can go; a larger memory has the addresses."""
    HARD = 3
    """It is one block of memory with addresses, and nothing is outside."""


class Dealloc(enum.IntEnum):
    """Treatment of a value whose last name the program releases.

    Example:
      >>> from jaxckpt import dynamic
      >>> [each.name for each in dynamic.Dealloc]
      ['NONE', 'EAGER', 'BANISH']
    """

    NONE = 0
    """Nothing; it waits for eviction."""
    EAGER = 1
    """It is evicted at once, and can still be recomputed."""
    BANISH = 2
    """It is freed for good once nothing evicted was computed from it; what was computed from it stays for good."""


class Fit(enum.IntEnum):
    """Which free block a value takes.

    Example:
      >>> from jaxckpt import dynamic
      >>> [each.name for each in dynamic.Fit]
      ['BEST', 'FIRST']
    """

    BEST = 0
    """The smallest that is large enough, the lower address among equals."""
    FIRST = 1
    """The lowest address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """How memory is managed.

    Attributes:
      mode: What the budget means.
      dealloc: What a release does.
      fit: Which free block is taken.
      groups: 1: everything from the left. 2: dense values from the left end, cheap ones from the right. 4, 6: the
        same in two or three regions.
      alignment: Sizes are rounded up to a multiple.
      small_bytes: Storages up to this size live in a zone of their own, at the end, and are evicted at a release only;
        0 for none. There is none either where it would be more than a sixteenth of the memory.
      small_slots: How many of them the zone holds.
      in_place: A new state of a tensor takes over its memory, where the old one could be recomputed or is not needed.
      drops_recomputed: An operand that was recomputed, and that the program has released, is evicted after it is read,
        if all that was computed from it is in memory or freed; only with `Dealloc.EAGER`. Otherwise it stays until
        memory is needed.
      capacity: In mode `HINT`, the bytes of the larger memory; None for the program's total.

    Example:
      >>> Memory(mode=Mode.HARD, groups=2).in_place
      False
    """

    mode: Mode = Mode.COUNTED
    dealloc: Dealloc = Dealloc.EAGER
    fit: Fit = Fit.BEST
    groups: int = 1
    alignment: int = 1
    small_bytes: int = 0
    small_slots: int = 1024
    in_place: bool = False
    drops_recomputed: bool = False
    capacity: int | None = None


_COOP = Memory(mode=Mode.HARD, groups=2, small_bytes=10 * 1024, in_place=True, drops_recomputed=True)
MEMORIES = {
    "dte": Memory(mode=Mode.HINT),
    "dte_static": Memory(mode=Mode.HINT),
    "coop": _COOP,
    "coop_by_byte": _COOP,
}
"""The memory that each rule was published with; `COUNTED` for the others.

Example:
  >>> from jaxckpt import dynamic
  >>> dynamic.MEMORIES["coop"].mode.name, "dtr" in dynamic.MEMORIES
  ('HARD', False)
"""


def published_memory(rule: str, *, hints: bool = True) -> Memory:
    """The memory that a rule was published with; without `hints` a budget that is one is hard."""
    memory = MEMORIES.get(rule, Memory())
    return replace(memory, mode=Mode.HARD) if memory.mode is Mode.HINT and not hints else memory
