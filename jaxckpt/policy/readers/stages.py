"""Layers by pipeline stage: mindformers' lists of how many layers of each stage are meant, as numbers of layers.

A list `[3, 4]` means the first three layers of the first stage and the first four of the second. With interleaving a
stage holds several chunks of layers; a flat list is then distributed over the chunks one layer at a time, a nested list
gives a count for each chunk.

Read after `reading`.
"""

from collections.abc import Sequence
from typing import Any

from jaxckpt.policy.readers.reading import ConfigReader

Table = Sequence[Sequence[int]]
"""A number for each round of interleaving and pipeline stage."""


def first_layers(sizes: Table, counts: Table) -> tuple[int, ...]:
    """The first layers of each chunk, by the chunks' sizes and counts; more than there are means all.

    Example:
      >>> first_layers([[4, 4]], [[1, 9]])
      (0, 4, 5, 6, 7)
    """
    found: list[int] = []
    start = 0
    for chunk_sizes, chunk_counts in zip(sizes, counts, strict=True):
        for size, count in zip(chunk_sizes, chunk_counts, strict=True):
            found.extend(range(start, start + min(size, count)))
            start += size
    return tuple(found)


def spread_over_chunks(sizes: Table, counts: Sequence[int]) -> list[list[int]]:
    """Counts by stage, distributed over the chunks of each stage one layer at a time.

    Example:
      >>> spread_over_chunks([[2, 2], [2, 2]], [3, 1])
      [[2, 1], [1, 0]]
    """
    counted = [[0] * len(counts) for _ in sizes]
    for stage, count in enumerate(counts):
        left = min(count, sum(chunk[stage] for chunk in sizes))
        while left:
            for chunk, chunk_sizes in zip(counted, sizes, strict=True):
                if left and chunk[stage] < chunk_sizes[stage]:
                    chunk[stage] += 1
                    left -= 1
    return counted


def stage_sizes(
    num_layers: int, stages: int, rounds: int, offset: Sequence[Any] | int, reader: ConfigReader
) -> list[list[int]]:
    """An even share for each stage, and what `offset` adds by stage, or by round of interleaving and stage.

    Example:
      >>> stage_sizes(9, 2, 1, [0, 1], ConfigReader("here", needed=""))
      [[4, 5]]
    """
    more = _offsets(offset, stages, rounds, reader)
    share, rest = divmod(num_layers, stages * rounds)
    if sum(map(sum, more)) != rest or any(share + each < 0 for row in more for each in row):
        reader.wrong(
            f"offset = {offset!r} must add up to {rest}: {num_layers} layers over {stages} stages"
            + (f" and {rounds} rounds of interleaving" if rounds > 1 else "")
        )
        more = [[0] * stages for _ in range(rounds)]
    return [[share + each for each in row] for row in more]


def _offsets(offset: Sequence[Any] | int, stages: int, rounds: int, reader: ConfigReader) -> list[list[int]]:
    """One offset for each round of interleaving and stage; zeros where the setting is wrong."""
    rows: Sequence[Any] = [offset] * rounds
    if isinstance(offset, (list, tuple)) and any(isinstance(row, (list, tuple)) for row in offset):
        rows = offset
    by_round: list[list[Any]] = [list(row) if isinstance(row, (list, tuple)) else [row] * stages for row in rows]
    if len(by_round) == rounds and all([*map(type, row)] == [int] * stages for row in by_round):
        return by_round
    reader.wrong(f"offset = {offset!r} is not one whole number for each of {stages} stages")
    return [[0] * stages for _ in range(rounds)]
