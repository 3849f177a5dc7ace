"""Snapshot of a footprint between two runs of a test suite: totals, versions, and bytes by scope.

Every temporary belongs to exactly one scope here, that of the instruction that makes it, cut to a depth; so the bytes
of all scopes add up to what is alive at the peak, and no byte is compared twice.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Annotated

from jaxckpt._records import NOT_NEGATIVE, shared_fields
from jaxckpt.compiler import Footprint
from jaxckpt.hlo import Buffer
from jaxckpt.ir.scope import scope_at_depth

Bytes = Annotated[int, NOT_NEGATIVE]
DEPTH = 3
"""Names of a scope that are told apart: "GPT/block_3/attention", and all below it added up."""

_NUMBER = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeBytes:
    """Temporaries that one scope makes, without those of scopes that are listed themselves.

    `held_bytes` are made by the forward pass and alive where the backward begins, `peak_bytes` alive at the peak.
    """

    scope: str
    held_bytes: Bytes
    peak_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A footprint, reduced to the figures that comparisons and explanations need.

    Attributes:
      argument_bytes: As in `Footprint`, like all figures and versions of a snapshot.
      depth: The depth to which scopes are separate.
      is_mapped: True if XLA's buffers were read; otherwise there are no scopes.
      scopes: In natural order; those without bytes are left out.

    Example:
      >>> import jaxckpt
      >>> from jaxckpt.testing import snapshot_from_footprint
      >>> made = jaxckpt.Footprint(argument_bytes=8, output_bytes=8, alias_bytes=8, temp_bytes=64, target="h200")
      >>> snapshot = snapshot_from_footprint(made)
      >>> snapshot.total_bytes, snapshot.target, snapshot.is_mapped
      (72, 'h200', False)
    """

    target: str
    jax_version: str = ""
    compiler_version: str = ""
    compiler_options: tuple[tuple[str, str], ...] = ()
    argument_bytes: Bytes
    output_bytes: Bytes
    alias_bytes: Bytes
    temp_bytes: Bytes
    program_bytes: Bytes = 0
    host_bytes: Bytes = 0
    depth: Annotated[int, NOT_NEGATIVE] = DEPTH
    is_mapped: bool = False
    scopes: tuple[ScopeBytes, ...] = ()

    @property
    def total_bytes(self) -> int:
        """As `Footprint.total_bytes`."""
        arrays = self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes
        return arrays + self.program_bytes

    @property
    def peak_bytes(self) -> int:
        """Temporaries alive at the peak: the sum over scopes; at most `temp_bytes`, which has gaps."""
        return sum(each.peak_bytes for each in self.scopes)


def snapshot_from_footprint(footprint: Footprint, *, depth: int = DEPTH) -> Snapshot:
    """Snapshot of a footprint; without a memory map it has no scopes.

    Args:
      footprint: The data.
      depth: Scopes that are equal in this many outer names are added up.

    Example:
      >>> made = Footprint(argument_bytes=300, output_bytes=200, alias_bytes=200, temp_bytes=700)
      >>> snapshot_from_footprint(made).total_bytes
      1000
    """
    own = {
        "program_bytes": footprint.program_bytes,
        "host_bytes": footprint.host_bytes,
        "compiler_version": footprint.plugin_version,
        "compiler_options": tuple((str(name), str(value)) for name, value in footprint.compiler_options),
        "depth": depth,
        "is_mapped": footprint.memory is not None,
        "scopes": bytes_by_scope(footprint, depth=depth),
    }
    return Snapshot(**shared_fields(footprint, Snapshot) | own)


def bytes_by_scope(footprint: Footprint, *, depth: int) -> tuple[ScopeBytes, ...]:
    """Temporaries by the scope that makes them, cut to a depth; none where no memory map was read."""
    memory = footprint.memory
    if memory is None:
        return ()
    held, alive = _added_up(memory.held(), depth), _added_up(memory.alive_at(memory.peak), depth)
    scopes = sorted({*held, *alive}, key=natural_order)
    rows = (ScopeBytes(scope=scope, held_bytes=held[scope], peak_bytes=alive[scope]) for scope in scopes)
    return tuple(row for row in rows if row.held_bytes or row.peak_bytes)


def natural_order(scope: str) -> tuple[object, ...]:
    """A key that puts block_2 before block_10.

    Example:
      >>> sorted(["block_10", "block_2"], key=natural_order)
      ['block_2', 'block_10']
    """
    pieces = _NUMBER.split(scope)
    numbers = (piece.lstrip("0") for piece in pieces[1::2])
    return tuple(pieces[::2]), tuple((len(number), number) for number in numbers), scope


def _added_up(buffers: tuple[Buffer, ...], depth: int) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for buffer in buffers:
        sizes[scope_at_depth(buffer.scope, depth)] += buffer.size_bytes
    return sizes
