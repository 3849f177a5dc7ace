"""How an equation's work is divided among the devices of a mesh, and which bytes they exchange (SPMD partitioning).

Read off the shardings of operands and results, as the partitioner does:

1. A product whose operands are both sharded along the summed dimension gives partial sums: an all-reduce over those
   devices. So does a reduction over a sharded dimension.
2. Where the result is sharded over them too, each device adds up its own part: a reduce-scatter (the gradients of fully
   sharded data parallelism).
3. An operand that is sharded where the result is not is gathered first: an all-gather (the parameters of the same). So
   is the operand of a constraint that asks for less sharding.
4. In the body of a `shard_map` the step itself calls collectives, and operands and results are one device's.

An estimate: rings of devices, one result at a time; the partitioner may find a cheaper way, or merge several exchanges.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod

import jax.extend.core as jex

from jaxckpt.ir import NO_EXCHANGE, Exchange, Kind, Trait, trait_of
from jaxckpt.ir.regions import TO_SHARDS
from jaxckpt.program.flat_program import Atom
from jaxckpt.program.open_shard_map import ValueSharding

_RESHARDS = frozenset({"sharding_constraint", "reshard", "mesh_cast"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """The share of one device in the work of an equation, which is divided among so many devices (`ways`).

    `gathered` are parts of operands that it receives, `summed` partial sums or parts of the result.
    """

    ways: int = 1
    gathered: Exchange = NO_EXCHANGE
    summed: Exchange = NO_EXCHANGE


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandShardings:
    """Shardings of an equation's operands (() for literals) and of its first result, with bytes on one device."""

    reads: Sequence[ValueSharding]
    read_bytes: Sequence[int]
    write: ValueSharding
    write_bytes: int
    size_of: Callable[[str], int]

    def ways(self, axes: Iterable[str]) -> int:
        """The number of devices along some axes together."""
        return prod(map(self.size_of, dict.fromkeys(axes)))

    @property
    def first_read(self) -> ValueSharding:
        """The sharding of the first operand; () where there is none."""
        return self.reads[0] if self.reads else ()


def device_share(eqn: jex.JaxprEqn, kind: Kind, operands: OperandShardings) -> DeviceShare:
    """The share of one device in the work of an equation."""
    # One branch for each family of primitives.
    name = eqn.primitive.name
    if name == "shard_map":
        return DeviceShare(ways=eqn.params["mesh"].size)
    if name == TO_SHARDS:
        return DeviceShare(summed=_resharded(operands, eqn.params["split"]))
    if trait_of(name) is Trait.COLLECTIVE and name not in _RESHARDS:
        return DeviceShare(summed=_collective(eqn, operands))
    if name == "dot_general":
        return _share_of_product(eqn, operands)
    if operands.first_read and kind is Kind.REDUCTION and "axes" in eqn.params:
        summed = {axis for dim in eqn.params["axes"] for axis in operands.first_read[dim]}
        ways = operands.ways(_axes(operands.first_read))
        return DeviceShare(ways=ways, summed=Exchange(_all_reduce_bytes(operands, summed), _ordered(summed)))
    if operands.first_read and name in _RESHARDS:
        ways = operands.ways(_axes(operands.write))
        return DeviceShare(ways=ways, summed=_resharded(operands, operands.write))
    shardings = (operands.write, *operands.reads)
    return DeviceShare(ways=max(operands.ways(_axes(sharding)) for sharding in shardings))


def _resharded(operands: OperandShardings, sharding: ValueSharding) -> Exchange:
    """Parts of its result that a device receives where the operand is sharded over more axes."""
    gathered = _axes(operands.first_read) - _axes(sharding)
    size_bytes = operands.write_bytes - operands.write_bytes // operands.ways(gathered)
    return Exchange(size_bytes, _ordered(gathered))


def _collective(eqn: jex.JaxprEqn, operands: OperandShardings) -> Exchange:
    """Bytes that a device receives in a collective that the step calls."""
    name, params = eqn.primitive.name, eqn.params
    axes = params.get("axes", params.get("axis_name", ()))
    groups = params.get("axis_index_groups")
    named = axes if isinstance(axes, tuple | list) else (axes,)
    along = tuple(axis for axis in named if isinstance(axis, str))
    ways = len(groups[0]) if groups else operands.ways(along)
    read_bytes = sum(operands.read_bytes)
    size_bytes = read_bytes * (ways - 1) // ways
    if name.startswith(("psum", "pmax", "pmin")):
        size_bytes = 2 * read_bytes * (ways - 1) // ways
    elif name.startswith("all_gather"):
        size_bytes = ways * read_bytes - read_bytes
    elif "permute" in name:
        size_bytes = read_bytes
    return Exchange(size_bytes, along)


def _share_of_product(eqn: jex.JaxprEqn, operands: OperandShardings) -> DeviceShare:
    # Both operands at once: an axis is summed where both have it.
    (left_sum, right_sum), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    left, right = (_padded(sharding, atom) for sharding, atom in zip(operands.reads, eqn.invars, strict=True))
    write = operands.write or ((),) * len(eqn.outvars[0].aval.shape)
    pairs = zip(left_sum, right_sum, strict=True)
    summed = {axis for one, other in pairs for axis in set(left[one]) & set(right[other])}
    left_place = _result_dimensions(len(left), left_batch, left_sum, first_free=len(left_batch))
    right_free = len(left) - len(left_sum)
    right_place = _result_dimensions(len(right), right_batch, right_sum, first_free=right_free)
    gathered_bytes, gathered_axes = 0, set[str]()
    both = zip((left, right), (left_place, right_place), operands.read_bytes, strict=True)
    for sharding, place, own_bytes in both:
        kept = [set(write[place[dim]]) if dim in place else summed for dim in range(len(sharding))]
        gathered = {axis for axes, same in zip(sharding, kept, strict=True) for axis in axes if axis not in same}
        gathered_bytes += own_bytes * (operands.ways(gathered) - 1)
        gathered_axes |= gathered
    scattered = summed & _axes(write)
    scattered_bytes = operands.write_bytes * (operands.ways(scattered) - 1)
    return DeviceShare(
        ways=operands.ways(_axes(write) | summed),
        gathered=Exchange(gathered_bytes, _ordered(gathered_axes)),
        summed=Exchange(scattered_bytes + _all_reduce_bytes(operands, summed - scattered), _ordered(summed)),
    )


def _result_dimensions(rank: int, batch: Sequence[int], summed: Sequence[int], *, first_free: int) -> dict[int, int]:
    """For each batch and free dimension of a product's operand its dimension of the result."""
    free = [dim for dim in range(rank) if dim not in (*summed, *batch)]
    return {dim: i for i, dim in enumerate(batch)} | {dim: first_free + i for i, dim in enumerate(free)}


def _all_reduce_bytes(operands: OperandShardings, axes: set[str]) -> int:
    """Bytes that a device receives in an all-reduce of the result over some axes: scattered once, gathered once."""
    ways = operands.ways(axes)
    return 2 * operands.write_bytes * (ways - 1) // ways


def _padded(sharding: ValueSharding, atom: Atom) -> ValueSharding:
    return sharding or ((),) * len(atom.aval.shape)


def _ordered(axes: set[str]) -> tuple[str, ...]:
    return tuple(sorted(axes))


def _axes(sharding: ValueSharding) -> set[str]:
    return {axis for axes in sharding for axis in axes}
