"""Memory with addresses: blocks side by side, split where a value is smaller than what it takes, merged when freed.

A free block always has values or the pool's ends beside it, never another free block. Values go to one of `groups`:
with 1, everything to the left end of the block it fits; with 2, dense values to the left end and cheap ones to the
right, so that what is evicted together lies together; with 4 or 6 the same in two or three regions, taken in turn when
one is full. Small values may have a zone of their own behind all regions.

The compiled loops call the functions below; `Pool` wraps them for interactive use and tests, one method each.

Source: Zhang et al., Coop, NeurIPS 2023, section 3.2 (two ends). Complexity: an allocation looks at every free block,
a release is O(1).
"""

from typing import Any, NamedTuple

import numpy as np

from jaxckpt._errors import JaxckptError
from jaxckpt.dynamic.compiled import called, compiled

FREE = -1
"""The owner of a block that nobody has."""

BLOCK = np.dtype(
    [("start", "i8"), ("bytes", "i8"), ("owner", "i4"), ("before", "i4"), ("after", "i4"), ("slot", "i4")], align=True
)
AREA = np.dtype(
    [
        *((name, "i8") for name in ("bytes", "zone", "small", "free_bytes", "free_blocks", "head", "spare", "made")),
        *((name, "i4") for name in ("groups", "first")),
    ],
    align=True,
)

GROUPS = {1: ((0,), (0,)), 2: ((0,), (1,)), 4: ((0, 3), (1, 2)), 6: ((3, 0, 4), (1, 5, 2))}
"""The groups of dense values and those of cheap ones, in the order in which they are tried; even ones fill from the
left. Two of them share a region."""


class PoolError(JaxckptError, ValueError):
    """A pool that cannot be made, or something that its user may not do with it.

    Example:
      >>> from jaxckpt import dynamic
      >>> pool = dynamic.Pool(100)
      >>> pool.allocate(7, 30)
      0
      >>> pool.allocate(7, 30)
      Traceback (most recent call last):
      ...
      jaxckpt.dynamic.pool.PoolError: Pool.allocate(7, 30) cannot be done.
      ...
    """


class Blocks(NamedTuple):
    """A pool."""

    area: Any  # one record: sizes, counts
    blocks: Any  # by id; `before` and `after` are the neighbours in memory
    free: Any  # ids of free blocks, in no order
    groups: Any  # of dense values, and of cheap ones
    next: Any  # the place in these of the group that is tried next


def make_blocks(size: int, *, most: int, groups: int = 1, zone: int = 0, small: int = 0, first: bool = False) -> Blocks:
    """An empty pool; arguments and errors are those of `Pool`."""
    if groups not in GROUPS:
        raise PoolError(
            f"groups={groups} cannot be laid out.",
            got=repr(groups),
            needed="1 (one end), 2 (two ends), 4 or 6 (two ends in two or three regions)",
            advice="groups=2",
            groups=groups,
        )
    parts = [(start, length) for start, length in ((0, size - zone), (size - zone, zone)) if length > 0]
    blocks, free = records(2 * most + 4, BLOCK), np.zeros(2 * most + 4, dtype=np.int32)
    for i, (start, length) in enumerate(parts):
        after = i + 1 if i + 1 < len(parts) else -1
        blocks[i] = (start, length, FREE, i - 1, after, i)
        free[i] = i
    area = records(1, AREA)
    area["bytes"], area["zone"], area["small"], area["groups"], area["first"] = size, size - zone, small, groups, first
    area["free_bytes"], area["free_blocks"], area["made"] = size, len(parts), len(parts)
    area["head"], area["spare"] = 0 if parts else -1, -1
    return Blocks(area, blocks, free, np.array(GROUPS[groups], dtype=np.int32), np.zeros(2, dtype=np.int32))


def records(count: int, dtype: Any) -> Any:
    """An array of records of zeros, whose fields compiled code reads as attributes."""
    return np.zeros(count, dtype=dtype).view(np.recarray)


@compiled
def new_block(pool: Blocks, start: int, size: int) -> int:
    """A block that is linked to nothing yet."""
    area = pool.area[0]
    block = area.spare
    if block >= 0:
        area.spare = pool.blocks[block].after
    else:
        block = area.made
        area.made += 1
    b = pool.blocks[block]
    b.start, b.bytes, b.owner, b.slot = start, size, FREE, -1
    return block


@compiled
def add_free(pool: Blocks, block: int) -> None:
    """Puts a block among the free ones."""
    area = pool.area[0]
    pool.blocks[block].owner = FREE
    pool.blocks[block].slot = area.free_blocks
    pool.free[area.free_blocks] = block
    area.free_blocks += 1


@compiled
def drop_free(pool: Blocks, block: int) -> None:
    """Takes a block from among the free ones."""
    area = pool.area[0]
    area.free_blocks -= 1
    last = pool.free[area.free_blocks]
    slot = pool.blocks[block].slot
    pool.free[slot] = last
    pool.blocks[last].slot = slot
    pool.blocks[block].slot = -1


@compiled
def place(pool: Blocks, block: int, size: int, group: int) -> int:
    """Where in a free block a value of a group goes, or -1 where less than half of it would lie in the region.

    A block that reaches over the region's bound is used from the bound, else from its own end.
    """
    area, b = pool.area[0], pool.blocks[block]
    regions, region = max(area.groups // 2, 1), group // 2
    low = region * (area.zone // regions)
    high = area.zone if region == regions - 1 else low + area.zone // regions
    end = b.start + b.bytes
    if max(b.start, low) >= min(end, high):
        return -1
    if group % 2:
        at, is_inside = end - size, end - size // 2 < high
        if high < end and high - size > b.start:
            return high - size
    else:
        at, is_inside = b.start, b.start + size // 2 > low
        if low > b.start and low + size < end:
            return low
    return at if is_inside or regions == 1 else -1


@compiled
def best_in_group(pool: Blocks, size: int, group: int) -> int:
    """The free block that a value of a group takes, or -1."""
    area = pool.area[0]
    best = -1
    for i in range(area.free_blocks):
        block = pool.free[i]
        b = pool.blocks[block]
        if b.bytes < size or b.start >= area.zone:
            continue
        if best >= 0:
            least = pool.blocks[best]
            smaller = b.bytes < least.bytes or (b.bytes == least.bytes and b.start < least.start)
            if not (b.start < least.start if area.first else smaller):
                continue
        if place(pool, block, size, group) >= 0:
            best = block
    return best


@compiled
def smallest_free(pool: Blocks, size: int, in_zone: bool) -> int:
    """The smallest free block of the zone for small values, or before that zone, that is large enough, or -1."""
    best = -1
    for i in range(pool.area[0].free_blocks):
        block = pool.free[i]
        b = pool.blocks[block]
        fits = (b.start >= pool.area[0].zone) == in_zone and b.bytes >= size
        if fits and (best < 0 or b.bytes < pool.blocks[best].bytes):
            best = block
    return best


@called
def allocate(pool: Blocks, owner: int, size: int, dense: bool) -> int:
    """Gives an owner a block of exactly `size` > 0 bytes; -1 where no free block is that large."""
    area = pool.area[0]
    if 0 < size <= area.small:
        block = smallest_free(pool, size, True)
        if block >= 0:
            return split_block(pool, block, pool.blocks[block].start, size, owner)
    kind, count = 0 if dense else 1, pool.groups.shape[1]
    for _ in range(count):
        group = pool.groups[kind, pool.next[kind]]
        block = best_in_group(pool, size, group)
        if block >= 0:
            return split_block(pool, block, place(pool, block, size, group), size, owner)
        pool.next[kind] = (pool.next[kind] + 1) % count
    block = smallest_free(pool, size, False)
    if block < 0:
        return -1
    return split_block(pool, block, pool.blocks[block].start, size, owner)


@compiled
def split_block(pool: Blocks, block: int, start: int, size: int, owner: int) -> int:
    """Splits a free block into what lies before, the value's own, and what lies behind."""
    b = pool.blocks[block]
    drop_free(pool, block)
    if start > b.start:
        rest = new_block(pool, b.start, start - b.start)
        link(pool, rest, b.before, block)
        b.start, b.bytes = start, b.bytes - pool.blocks[rest].bytes
        add_free(pool, rest)
    if b.bytes > size:
        rest = new_block(pool, b.start + size, b.bytes - size)
        link(pool, rest, block, b.after)
        b.bytes = size
        add_free(pool, rest)
    b.owner = owner
    pool.area[0].free_bytes -= size
    return block


@compiled
def link(pool: Blocks, block: int, before: int, after: int) -> None:
    """Puts a block between two, either of which may be an end (-1)."""
    pool.blocks[block].before = before
    pool.blocks[block].after = after
    if before >= 0:
        pool.blocks[before].after = block
    else:
        pool.area[0].head = block
    if after >= 0:
        pool.blocks[after].before = block


@called
def release(pool: Blocks, block: int) -> None:
    """Frees a block and merges it with free neighbours of the same area."""
    area = pool.area[0]
    area.free_bytes += pool.blocks[block].bytes
    after = pool.blocks[block].after
    if after >= 0 and pool.blocks[after].owner == FREE and pool.blocks[after].start != area.zone:
        drop_free(pool, after)
        coalesce(pool, block, after)
    before = pool.blocks[block].before
    if before >= 0 and pool.blocks[before].owner == FREE and pool.blocks[block].start != area.zone:
        coalesce(pool, before, block)
    else:
        add_free(pool, block)


@compiled
def coalesce(pool: Blocks, block: int, after: int) -> None:
    """Makes one block of two neighbours."""
    b, gone = pool.blocks[block], pool.blocks[after]
    b.bytes += gone.bytes
    b.after = gone.after
    if gone.after >= 0:
        pool.blocks[gone.after].before = block
    gone.after = pool.area[0].spare
    gone.slot = -1
    pool.area[0].spare = after


@called
def largest_free(pool: Blocks) -> int:
    """Bytes of the largest free block before the zone."""
    largest = 0
    for i in range(pool.area[0].free_blocks):
        b = pool.blocks[pool.free[i]]
        if b.start < pool.area[0].zone:
            largest = max(largest, b.bytes)
    return largest


@compiled
def free_around(pool: Blocks, block: int) -> int:
    """Free bytes on both sides of a block."""
    free = 0
    before, after = pool.blocks[block].before, pool.blocks[block].after
    if before >= 0 and pool.blocks[before].owner == FREE:
        free += pool.blocks[before].bytes
    if after >= 0 and pool.blocks[after].owner == FREE:
        free += pool.blocks[after].bytes
    return free


class Pool:
    """A pool, one method an operation.

    Args:
      size: Bytes.
      most: How many values it may hold at a time.
      groups: 1, 2, 4 or 6.
      zone: Bytes at the end for small values.
      small: What counts as small, in bytes.
      first: Whether the lowest block that fits is taken, not the smallest.

    Raises:
      PoolError: Another number of groups.

    Example:
      >>> pool = Pool(100, groups=2)
      >>> pool.allocate(7, 30, dense=True), pool.allocate(8, 20)
      (0, 80)
      >>> pool.release(7)
      >>> pool.largest_free, pool.spans
      (80, ((80, 20, 8),))
    """

    def __init__(
        self, size: int, *, most: int = 64, groups: int = 1, zone: int = 0, small: int = 0, first: bool = False
    ):
        self._pool = make_blocks(size, most=most, groups=groups, zone=zone, small=small, first=first)
        self._block: dict[int, int] = {}
        self._most = most

    def allocate(self, owner: int, size: int, *, dense: bool = False) -> int | None:
        """Gives an owner memory.

        Returns:
          The address, or None where no free block is large enough.

        Raises:
          PoolError: The owner has memory already, the size is not positive, or the pool is full of values.
        """
        if owner in self._block or size <= 0 or len(self._block) == self._most:
            raise PoolError(
                f"Pool.allocate({owner}, {size}) cannot be done.",
                got=f"{len(self._block)} values of at most {self._most}, owner {owner} "
                + ("has memory already" if owner in self._block else "has none"),
                needed="a new owner, at least one byte, room for one more value",
                advice="release first, or make the pool with a larger `most`",
            )
        block = int(allocate(self._pool, owner, size, dense))
        if block < 0:
            return None
        self._block[owner] = block
        return int(self._pool.blocks[block].start)

    def release(self, owner: int) -> None:
        """Frees what an owner has."""
        release(self._pool, self._block.pop(owner))

    @property
    def free_bytes(self) -> int:
        """In all free blocks."""
        return int(self._pool.area[0].free_bytes)

    @property
    def largest_free(self) -> int:
        """Of one free block, the zone left out."""
        return int(largest_free(self._pool))

    @property
    def blocks(self) -> tuple[tuple[int, int, int], ...]:
        """All blocks in order of address: where, how large, whose (-1: nobody's)."""
        found, block = [], int(self._pool.area[0].head)
        while block >= 0:
            b = self._pool.blocks[block]
            found.append((int(b.start), int(b.bytes), int(b.owner)))
            block = int(b.after)
        return tuple(found)

    @property
    def spans(self) -> tuple[tuple[int, int, int], ...]:
        """The same without what is free."""
        return tuple(block for block in self.blocks if block[2] != FREE)
