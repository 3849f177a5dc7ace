"""How an equation's work is divided among the devices of a mesh, and what they must tell each other for it.

Read off the splits of what it reads and writes, as the partitioner does: a product whose operands are both split along
what is summed gives partial sums, which are added up over those devices; so does a reduction over a split dimension.
Where the result is split over them too, each device adds up its part alone (the gradients of fully sharded data
parallelism). An operand that is split where the result is not has to be gathered first (the parameters of the same),
and so has what a constraint asks for whole.

In the body of a `shard_map` the exchanges are the step's own, and what they give and take is one device's.

An estimate: rings of devices, one result a run; the partitioner may find a cheaper way, or merge several.

Read after `split`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxckpt.ir import Kind, Trait, trait_of
from jaxckpt.ir.shard_map import TO_SHARDS
from jaxckpt.trace.sharding import ValueSharding

_RESPLITS = frozenset({"sharding_constraint", "reshard", "mesh_cast"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """The part of one device.

    Attributes:
      ways: Over how many devices the work is divided.
      gathered_bytes: What it gets of operands that others have a part of.
      summed_bytes: What it gets to add up partial sums, or to make whole what the equation gives.
    """

    ways: int = 1
    gathered_bytes: int = 0
    summed_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandShardings:
    """What is known of the operands and the result of one equation.

    Attributes:
      reads: Splits of its operands, in order; () for literals.
      read_bytes: Their bytes on one device.
      write: Split of its first result.
      write_bytes: Its bytes on one device.
      size_of: Over how many devices an axis goes.
    """

    reads: Sequence[ValueSharding]
    read_bytes: Sequence[int]
    write: ValueSharding
    write_bytes: int
    size_of: Callable[[str], int]

    def ways(self, axes: Any) -> int:
        """Over how many devices some axes go together."""
        return prod(map(self.size_of, dict.fromkeys(axes)))


def shared(eqn: Any, kind: Kind, operands: OperandShardings) -> Shared:
    """The part of one device in the work of an equation."""
    name = eqn.primitive.name
    if name == "shard_map":
        return Shared(ways=eqn.params["mesh"].size)
    if name == TO_SHARDS:
        return _of_part(eqn, operands)
    if trait_of(name) is Trait.COLLECTIVE and name not in _RESPLITS:
        return Shared(summed_bytes=_of_collective(eqn, operands))
    if name == "dot_general":
        return _of_product(eqn, operands)
    if kind is Kind.REDUCTION and "axes" in eqn.params and any(operands.reads[:1]):
        lost = {axis for dim in eqn.params["axes"] for axis in operands.reads[0][dim]}
        return Shared(ways=operands.ways(_flat(operands.reads[0])), summed_bytes=_all_reduced(operands, lost))
    if name in _RESPLITS and any(operands.reads[:1]):
        lost = _flat(operands.reads[0]) - _flat(operands.write)
        got = operands.write_bytes - operands.write_bytes // operands.ways(lost)
        return Shared(ways=operands.ways(_flat(operands.write)), summed_bytes=got)
    most = max((operands.ways(_flat(split)) for split in (operands.write, *operands.reads)), default=1)
    return Shared(ways=most)


def _of_part(eqn: Any, operands: OperandShardings) -> Shared:
    """What a device must get to see its part, where others have some of it."""
    lost = _flat(operands.reads[0] if operands.reads else ()) - _flat(eqn.params["split"])
    return Shared(summed_bytes=operands.write_bytes - operands.write_bytes // operands.ways(lost))


def _of_collective(eqn: Any, operands: OperandShardings) -> int:
    """What a device gets in an exchange that the step asks for itself."""
    name, params = eqn.primitive.name, eqn.params
    axes = params.get("axes", params.get("axis_name", ()))
    groups = params.get("axis_index_groups")
    named = axes if isinstance(axes, tuple | list) else (axes,)
    ways = len(groups[0]) if groups else operands.ways(axis for axis in named if isinstance(axis, str))
    read_bytes = sum(operands.read_bytes)
    if name.startswith(("psum", "pmax", "pmin")):
        return 2 * read_bytes * (ways - 1) // ways
    if name.startswith("all_gather"):
        return ways * read_bytes - read_bytes
    if "permute" in name:
        return read_bytes
    return read_bytes * (ways - 1) // ways


def _of_product(eqn: Any, operands: OperandShardings) -> Shared:
    (left_sum, right_sum), (left_batch, right_batch) = eqn.params["dimension_numbers"]
    left, right = (_padded(split, atom) for split, atom in zip(operands.reads, eqn.invars, strict=True))
    write = operands.write or ((),) * len(eqn.outvars[0].aval.shape)
    both = {axis for one, other in zip(left_sum, right_sum, strict=True) for axis in set(left[one]) & set(right[other])}
    batch = range(len(left_batch))
    free = [dim for dim in range(len(left)) if dim not in (*left_sum, *left_batch)]
    later = [dim for dim in range(len(right)) if dim not in (*right_sum, *right_batch)]
    place = len(left_batch)
    left_goes = {**dict(zip(left_batch, batch, strict=True)), **{d: place + i for i, d in enumerate(free)}}
    place += len(free)
    right_goes = {**dict(zip(right_batch, batch, strict=True)), **{d: place + i for i, d in enumerate(later)}}
    gathered_bytes = 0
    for split, goes, own_bytes in (
        (left, left_goes, operands.read_bytes[0]),
        (right, right_goes, operands.read_bytes[1]),
    ):
        kept = [set(write[goes[dim]]) if dim in goes else both for dim in range(len(split))]
        lost = {axis for axes, there in zip(split, kept, strict=True) for axis in axes if axis not in there}
        gathered_bytes += own_bytes * (operands.ways(lost) - 1)
    scattered = both & _flat(write)
    summed_bytes = operands.write_bytes * (operands.ways(scattered) - 1) + _all_reduced(operands, both - scattered)
    return Shared(ways=operands.ways(_flat(write) | both), gathered_bytes=gathered_bytes, summed_bytes=summed_bytes)


def _all_reduced(operands: OperandShardings, axes: set[str]) -> int:
    """What each device gets while a result is added up over some axes: scattered once, gathered once."""
    ways = operands.ways(axes)
    return 2 * operands.write_bytes * (ways - 1) // ways


def _padded(split: ValueSharding, atom: Any) -> ValueSharding:
    return split or ((),) * len(atom.aval.shape)


def _flat(split: ValueSharding) -> set[str]:
    return {axis for axes in split for axis in axes}
