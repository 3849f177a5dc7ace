"""The floor: what stands at the peak where a plan recomputes all that helps, and what would lower it.

No decision on residuals moves arguments, the logits of a loss head, gradients that wait for their update, the update
itself, or what one op reads and writes. So the least that a step can take is told apart by what each byte is for, and
for each kind that is worth it there is a remedy with a figure: the compiled program's buffers are made smaller as the
remedy would, and the peak is looked for again.

Read after `jaxckpt.hlo.memory`.
"""

import enum
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from jaxckpt._shown import Shown
from jaxckpt._units import format_bytes
from jaxckpt.compiler import Footprint
from jaxckpt.hlo import Buffer, MemoryMap, Part, Role
from jaxckpt.ir import Graph
from jaxckpt.oom.remedies import Remedy

_NAMED = 4
_DOMINATES = 0.5
"""One op is the peak where what stands around it is this share of the temporaries."""
_WIDENS = 4
"""One op is told from its surroundings where its values have so many times as many elements."""
_MOST_RESIDUALS = 3
"""So many residuals may be values around one op; more of one size are the boundaries of layers."""
_WORTH = 0.02
"""Remedies that lower the total by a smaller share are not named."""
_MOST_CHUNKS = 64
_LEAST_SCORES = 512
_FLAT = 0.05
"""More chunks are not proposed where twice as many save less than this share more."""


class Holder(enum.StrEnum):
    """What bytes at the floor are for."""

    ARGUMENTS = enum.auto()
    RESULTS = enum.auto()
    """Results that take over no argument."""
    PROGRAM = enum.auto()
    """The program and its constants."""
    RESIDUALS = enum.auto()
    """Kept from forward to backward even in the smallest plan: what the rest is computed from again."""
    RECOMPUTED = "again"
    """Forward values of the part at work, computed or computed again for it."""
    LOGITS = "head"
    """Logits, their gradient and what else is as wide."""
    SINGLE_OP = "op"
    """What one op makes, far wider than what goes in, and values of the same size around it."""
    COTANGENTS = enum.auto()
    """Gradients of activations, on their way."""
    GRADIENTS = enum.auto()
    """Gradients of parameters that wait for the update."""
    UPDATE = enum.auto()
    """What the optimiser makes on its way."""
    WORKSPACE = enum.auto()
    """Scratch of a library's kernels."""
    TRANSFERS = enum.auto()
    """On the way to or from other devices or the host."""
    OTHER = enum.auto()
    FRAGMENTATION = "holes"
    """Allocated, and not in use at the peak."""


DECIDED = frozenset({Holder.RESIDUALS, Holder.RECOMPUTED})
"""What another decision on residuals changes; in the smallest plan none of them lowers the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One kind of bytes at the floor.

    Attributes:
      holder: What they are for.
      size_bytes: How many, per device.
      largest: The largest buffers among them; none for what the compiler gives as one figure.
    """

    holder: Holder
    size_bytes: int
    largest: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor(Shown):
    """The least that a step takes with a plan, by what it is for.

    Attributes:
      step: The step's name; "" where it is not known.
      footprint: Of the smallest plan, as compiled.
      shares: Largest first; their sum is `footprint.total_bytes`.
      remedies: What would lower it beside a plan, what saves most first. Each figure is for that remedy alone, of the
        compiled program with smaller buffers; no compiler was asked.
    """

    _report: ClassVar[str] = "jaxckpt.report.floor:floor_report"

    step: str
    footprint: Footprint
    shares: tuple[Share, ...]
    remedies: tuple[Remedy, ...] = ()

    @property
    def total_bytes(self) -> int:
        """The smallest compiled total, bytes per device."""
        return self.footprint.total_bytes

    @property
    def undecided_bytes(self) -> int:
        """What no decision on residuals changes."""
        return sum(share.size_bytes for share in self.shares if share.holder not in DECIDED)

    @property
    def undecided_share(self) -> float:
        """The same as a share of the total, 0 to 1."""
        return self.undecided_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def peak_part(self) -> Part:
        """The part of the step in which the peak stands; `Part.UNKNOWN` without a memory map."""
        memory = self.footprint.memory
        return memory.kernels[memory.peak].part if memory is not None and memory.kernels else Part.UNKNOWN

    def of(self, holder: Holder | str) -> int:
        """Bytes of one kind; 0 where there are none.

        Args:
          holder: The kind, or its word ("head").
        """
        return sum(share.size_bytes for share in self.shares if share.holder == Holder(holder))


def floor_of(footprint: Footprint, graph: Graph | None = None, *, step: str = "") -> Floor:
    """Tells a footprint apart by what it is for, and finds what would lower it.

    Args:
      footprint: Of the smallest plan; of any other, "decided by residuals" means something else.
      graph: The step; without it nothing is said of donation.
      step: Its name.

    Example:
      >>> made = Footprint(argument_bytes=300, output_bytes=200, alias_bytes=200, temp_bytes=700)
      >>> [(str(share.holder), share.size_bytes) for share in floor_of(made).shares]
      [('other', 700), ('arguments', 300)]
    """
    shares = tuple(sorted(_shares(footprint), key=lambda share: -share.size_bytes))
    remedies = _remedies(footprint, shares, graph)
    worth = (remedy for remedy in remedies if (remedy.saves_bytes or 0) >= _WORTH * footprint.total_bytes)
    return Floor(
        step=step,
        footprint=footprint,
        shares=shares,
        remedies=tuple(sorted(worth, key=lambda remedy: -(remedy.saves_bytes or 0))),
    )


def _shares(footprint: Footprint) -> Iterator[Share]:
    sizes = {
        Holder.ARGUMENTS: footprint.argument_bytes,
        Holder.RESULTS: footprint.output_bytes - footprint.alias_bytes,
        Holder.PROGRAM: footprint.program_bytes,
    }
    yield from (Share(holder=holder, size_bytes=size) for holder, size in sizes.items() if size)
    memory = footprint.memory
    if memory is None or not memory.kernels:
        yield from [Share(holder=Holder.OTHER, size_bytes=footprint.temp_bytes)] if footprint.temp_bytes else []
        return
    alive: dict[Holder, list[Buffer]] = {}
    for buffer, holder in _held(memory):
        alive.setdefault(holder, []).append(buffer)
    for holder, buffers in alive.items():
        yield Share(holder=holder, size_bytes=_sum(buffers), largest=tuple(buffers[:_NAMED]))
    holes = footprint.temp_bytes - memory.peak_bytes
    if holes:
        yield Share(holder=Holder.FRAGMENTATION, size_bytes=holes)


def _held(memory: MemoryMap) -> Iterator[tuple[Buffer, Holder]]:
    """Temporaries alive at the peak, largest first, each with what it is for."""
    alive = memory.alive_at(memory.peak)
    around = frozenset(b.id for b in _around_op(memory, alive))
    for buffer in alive:
        yield buffer, Holder.SINGLE_OP if buffer.id in around else _holder(buffer)


def _holder(buffer: Buffer) -> Holder:
    match buffer.role:
        case Role.COLLECTIVE | Role.HOST_COPY:
            return Holder.TRANSFERS
        case Role.ACTIVATION:
            return Holder.RECOMPUTED
        case role:
            return _HOLDERS.get(role, Holder.OTHER)


_HOLDERS = {
    Role.RESIDUAL: Holder.RESIDUALS,
    Role.LOGITS: Holder.LOGITS,
    Role.COTANGENT: Holder.COTANGENTS,
    Role.GRADIENT: Holder.GRADIENTS,
    Role.UPDATE: Holder.UPDATE,
    Role.WORKSPACE: Holder.WORKSPACE,
}


def _around_op(memory: MemoryMap, alive: tuple[Buffer, ...]) -> list[Buffer]:
    """What stands around one op, if that is the peak: values of one size, far wider than all else that flows there."""
    roles = (Role.RESIDUAL, Role.ACTIVATION, Role.COTANGENT, Role.OTHER)
    flowing = [b for b in alive if b.role in roles and not _is_stack(b)]
    widest = max(map(_elements, flowing), default=0)
    around = [b for b in flowing if _elements(b) == widest]
    others = max((_elements(b) for b in flowing if _elements(b) < widest), default=widest)
    residuals = sum(b.role is Role.RESIDUAL for b in around)
    is_one = widest >= _WIDENS * others and residuals <= _MOST_RESIDUALS
    return around if is_one and _sum(around) >= _DOMINATES * memory.peak_bytes else []


def _is_stack(buffer: Buffer) -> bool:
    """Whether the turns of a loop write it, each its slice: the work of all layers, and of no one op."""
    return buffer.op == "dynamic_update_slice" and buffer.count > 1


def _elements(buffer: Buffer) -> int:
    return math.prod(buffer.shape)


def _remedies(footprint: Footprint, shares: Iterable[Share], graph: Graph | None) -> Iterator[Remedy]:
    memory = footprint.memory
    if graph is not None:
        yield from _donation(graph)
    yield from _sharding(footprint, graph)
    if memory is None:
        return
    for share in shares:
        if share.holder in _CHUNKED:
            yield from _CHUNKED[share.holder](memory, share)


def _donation(graph: Graph) -> Iterator[Remedy]:
    """Results that could take over an argument that is not donated."""

    def kinds(values: Iterable[int]) -> Counter[tuple[tuple[int, ...], str]]:
        return Counter((graph.values[v].shape, graph.values[v].dtype) for v in values)

    sizes = {(value.shape, value.dtype): value.size_bytes for value in graph.values}
    made = kinds(graph.outputs) - kinds(graph.donated)
    free = kinds(v for v in graph.inputs if v not in graph.donated)
    saves = sum(sizes[kind] * count for kind, count in (made & free).items())
    yield Remedy(
        title="donate the state",
        how="Results that could take over the memory of an argument of the same shape and type do not.",
        saves_bytes=saves,
        is_bound_below=False,
        command="donate_argnums=... for the arguments that the step returns changed",
    )


def _sharding(footprint: Footprint, graph: Graph | None) -> Iterator[Remedy]:
    fixed_bytes = footprint.argument_bytes + footprint.output_bytes - footprint.alias_bytes
    if fixed_bytes < _DOMINATES * footprint.total_bytes:
        return
    further = " more" if graph is not None and graph.mesh else ""
    yield Remedy(
        title="shard the arguments",
        how=f"Arguments and results are {fixed_bytes / footprint.total_bytes:.0%} of the total, the same in every"
        f" plan. Parameters and optimiser state laid out over twice as many devices{further} take half.",
        saves_bytes=fixed_bytes // 2,
        is_bound_below=False,
    )


def _head(memory: MemoryMap, share: Share) -> Iterator[Remedy]:
    chunks, saves, then = _chunks(memory, lambda b: b.role is Role.LOGITS)
    yield Remedy(
        title="the loss head in chunks",
        how=f"{_listed(share)} are made for all tokens at once, whatever is kept of the layers. In {chunks} chunks,"
        f" each computed again in the backward, there is one chunk of them at a time. {then}",
        saves_bytes=saves,
        is_bound_below=False,
        command=f'jaxckpt.chunked(head_and_loss, chunks={chunks}, axis=..., join="sum")',
    )


def _op(memory: MemoryMap, share: Share) -> Iterator[Remedy]:
    first = share.largest[0]
    count = _elements(first)
    chunks, saves, then = _chunks(memory, lambda b: _elements(b) == count and b.role is not Role.GRADIENT)
    if len(first.shape) >= 3 and first.shape[-1] == first.shape[-2] >= _LEAST_SCORES:
        yield Remedy(
            title="attention that keeps no weights",
            how=f"{_listed(share)} look like attention weights. A fused kernel never has them.",
            saves_bytes=_saved(memory, {b.id: 0 for b in memory.temporaries if _elements(b) == count}),
            is_bound_below=False,
            command='jax.nn.dot_product_attention(..., implementation="cudnn")',
        )
    yield Remedy(
        title="one op in chunks",
        how=f"{_listed(share)} are made of far smaller values by one op, and around it. {then}",
        saves_bytes=saves,
        is_bound_below=False,
        command=f"jaxckpt.chunked(part, chunks={chunks}, axis=...)",
    )


def _gradients(memory: MemoryMap, share: Share) -> Iterator[Remedy]:
    wide = {b.id: b.size_bytes // 2 for b in memory.temporaries if b.role is Role.GRADIENT and b.dtype == "float32"}
    yield Remedy(
        title="gradients in bfloat16",
        how=f"{_listed(share)} wait for the update. It begins when the last one is there: a global norm needs all.",
        saves_bytes=_saved(memory, wide),
        is_bound_below=False,
        command="jax.grad with respect to bfloat16 parameters, their float32 copies in the optimiser's state",
    )


def _update(memory: MemoryMap, share: Share) -> Iterator[Remedy]:
    chunks, saves, then = _chunks(memory, lambda b: b.role is Role.UPDATE)
    yield Remedy(
        title="a part of the update at a time",
        how=f"{_listed(share)} are made by the optimiser, after all residuals are gone. Where the update treats rows"
        f" alike and apart it can go over them in chunks; else a cheaper update, or state over more devices. {then}",
        saves_bytes=saves,
        is_bound_below=False,
        command=f"jaxckpt.chunked(update_of_a_parameter, chunks={chunks})",
    )


_CHUNKED: Mapping[Holder, Callable[[MemoryMap, Share], Iterator[Remedy]]] = {
    Holder.LOGITS: _head,
    Holder.SINGLE_OP: _op,
    Holder.GRADIENTS: _gradients,
    Holder.UPDATE: _update,
}


def _chunks(memory: MemoryMap, of: Callable[[Buffer], bool]) -> tuple[int, int, str]:
    """How many chunks are worth it, what they take off the peak, and a sentence on where the peak is then."""
    cut = [b for b in memory.temporaries if of(b)]
    chunks, saves = 2, _saved(memory, _divided(cut, 2))
    while chunks < _MOST_CHUNKS:
        more = _saved(memory, _divided(cut, 2 * chunks))
        if more - saves < _FLAT * max(1, saves):
            break
        chunks, saves = 2 * chunks, more
    then = _resized(memory, _divided(cut, chunks))
    kernel = then.kernels[then.peak]
    return chunks, saves, f"The peak is then in the {kernel.part} part, {kernel.op or kernel.name}."


def _divided(buffers: Iterable[Buffer], chunks: int) -> dict[int, int]:
    return {b.id: b.size_bytes // chunks for b in buffers}


def _saved(memory: MemoryMap, sizes: Mapping[int, int]) -> int:
    """What is taken off the peak where some buffers have other sizes: the peak may then be elsewhere."""
    return memory.peak_bytes - _resized(memory, sizes).peak_bytes


def _resized(memory: MemoryMap, sizes: Mapping[int, int]) -> MemoryMap:
    return replace(memory, buffers=tuple(replace(b, size_bytes=sizes.get(b.id, b.size_bytes)) for b in memory.buffers))


def _sum(buffers: Iterable[Buffer]) -> int:
    return sum(buffer.size_bytes for buffer in buffers)


def _listed(share: Share) -> str:
    """The largest buffers of a share in a few words, and all of it."""
    first = share.largest[0]
    what = f"{first.dtype}[{','.join(map(str, first.shape))}]"
    place = "/".join(filter(None, (first.scope, first.op)))
    return f"{format_bytes(share.size_bytes)} such as {what}{f' of {place}' if place else ''}"
