"""The floor: the memory of the smallest plan by purpose, and remedies that would lower it.

No decision on residuals changes arguments, the logits of a loss head, gradients that are live until the update, the
update itself, or the operands and results of one op. So the least total of a step is divided by purpose. For each
large purpose there is a remedy with its effect: the compiled program's buffers are made smaller as the remedy would
make them, and the peak is computed anew.
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

# Thresholds of a report: they decide which remedies are named, and change no plan. With about half and twice the value
# the floors of three steps name the same remedies (`python -m benchmarks.constants`); one of them names others if
# `_DOMINATES` is 1/4, if `_MOST_RESIDUALS` is 1, and if `_FLAT` is 0.02 or 0.1.
_NAMED = 4
"""Largest buffers that are named for each purpose."""
_DOMINATES = 0.5
"""One op is the peak if its operands and results are at least this share of the temporaries."""
_WIDENS = 4
"""Values belong to one wide op if they have at least this many times the elements of all other values at the peak."""
_WIDENED = 3
"""Of the values of one wide op in the forward pass at least one in so many is made of none as wide: attention weights
of the scores, and the scores of narrow values. Of the values of layers of one width only the first is."""
_MOST_RESIDUALS = 3
"""The most residuals among the values of one op; more of one size are the boundaries of layers."""
_WORTH = 0.02
"""Remedies that lower the total by a smaller share are not named."""
_MOST_CHUNKS = 64
"""The most chunks that are proposed."""
_LEAST_SCORES = 512
"""Square values of at least this length are taken for attention weights."""
_FLAT = 0.05
"""More chunks are not proposed if twice as many save less than this share more."""


class Holder(enum.StrEnum):
    """Purposes of bytes at the floor."""

    ARGUMENTS = enum.auto()
    RESULTS = enum.auto()
    """Results that take over no argument."""
    PROGRAM = enum.auto()
    """The program and its constants."""
    RESIDUALS = enum.auto()
    """Saved from forward to backward even in the smallest plan: recomputation starts from them."""
    RECOMPUTED = "again"
    """Forward values of the stage at work, computed or recomputed for it."""
    LOGITS = "head"
    """Logits, their gradient and other values as wide."""
    SINGLE_OP = "op"
    """Results of one op that are far wider than its operands, and values of the same size at the peak."""
    COTANGENTS = enum.auto()
    """Gradients of activations."""
    GRADIENTS = enum.auto()
    """Gradients of parameters, live until the update."""
    UPDATE = enum.auto()
    """Temporaries of the optimiser."""
    WORKSPACE = enum.auto()
    """Scratch of a library's kernels."""
    TRANSFERS = enum.auto()
    """Buffers of transfers to or from other devices or the host."""
    OTHER = enum.auto()
    FRAGMENTATION = "holes"
    """Allocated, and not in use at the peak."""


DECIDED = frozenset({Holder.RESIDUALS, Holder.RECOMPUTED})
"""Purposes that decisions on residuals change; in the smallest plan no other decision lowers the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Bytes per device of one purpose at the floor, and its largest buffers where the compiler lists them."""

    holder: Holder
    size_bytes: int
    largest: tuple[Buffer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Floor(Shown):
    """The least total of a step with a plan, by purpose.

    Attributes:
      step: The step's name; "" if it is not known.
      footprint: Of the smallest plan, as compiled.
      shares: Largest first; their sum is `footprint.total_bytes`.
      remedies: Changes that would lower the total, the largest saving first. Each figure is for that remedy by itself,
        computed from the compiled program with smaller buffers; nothing was compiled for it. Last, with a predicted
        figure, what the planner could do if it were allowed.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> floor = jaxckpt.Planner(step, jnp.eye(64), jnp.ones((128, 64)), target="cpu").floor()
      >>> floor.of("arguments"), floor.of("results")
      (49152, 16384)
      >>> floor.total_bytes == sum(share.size_bytes for share in floor.shares)
      True
    """

    _report: ClassVar[str] = "jaxckpt.report.oom:floor_report"

    step: str
    footprint: Footprint
    shares: tuple[Share, ...]
    remedies: tuple[Remedy, ...] = ()

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        largest = ", ".join(f"{each.holder} {format_bytes(each.size_bytes)}" for each in self.shares[:3])
        return f"{self.step or 'the step'}: at least {format_bytes(self.total_bytes)}; largest: {largest}"

    @property
    def total_bytes(self) -> int:
        """The smallest compiled total, bytes per device."""
        return self.footprint.total_bytes

    @property
    def undecided_bytes(self) -> int:
        """Bytes that no decision on residuals changes."""
        return sum(share.size_bytes for share in self.shares if share.holder not in DECIDED)

    @property
    def undecided_share(self) -> float:
        """`undecided_bytes` as a share of the total, 0 to 1."""
        return self.undecided_bytes / self.total_bytes if self.total_bytes else 0.0

    def with_remedies(self, remedies: Iterable[Remedy]) -> "Floor":
        """The floor with further remedies after its own, the largest saving first; not those that save little."""
        worth = (remedy for remedy in remedies if (remedy.saves_bytes or 0) >= _WORTH * self.total_bytes)
        ordered = sorted(worth, key=lambda remedy: -(remedy.saves_bytes or 0))
        return replace(self, remedies=(*self.remedies, *ordered))

    def of(self, holder: Holder | str) -> int:
        """Bytes of one purpose; 0 where there are none.

        Args:
          holder: The purpose, or its word ("head").
        """
        return sum(share.size_bytes for share in self.shares if share.holder == Holder(holder))


def floor_of(footprint: Footprint, graph: Graph | None = None, *, step: str = "") -> Floor:
    """Divides the footprint of the smallest plan by purpose; without a graph no donation is proposed.

    Example:
      >>> smallest = Footprint(argument_bytes=300, output_bytes=200, alias_bytes=200, temp_bytes=700)
      >>> [(str(share.holder), share.size_bytes) for share in floor_of(smallest).shares]
      [('other', 700), ('arguments', 300)]
    """
    shares = tuple(sorted(_shares(footprint), key=lambda share: -share.size_bytes))
    found = Floor(step=step, footprint=footprint, shares=shares)
    return found.with_remedies(_remedies(footprint, shares, graph))


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
    for holder, buffers in _by_holder(memory).items():
        if size_bytes := _sum(buffers):  # a library's product may have a workspace of no bytes
            yield Share(holder=holder, size_bytes=size_bytes, largest=tuple(buffers[:_NAMED]))
    unused_bytes = footprint.temp_bytes - memory.peak_bytes
    if unused_bytes:
        yield Share(holder=Holder.FRAGMENTATION, size_bytes=unused_bytes)


def _by_holder(memory: MemoryMap) -> dict[Holder, list[Buffer]]:
    """Temporaries alive at the peak by purpose, largest first."""
    alive = memory.alive_at(memory.peak)
    of_one_op = frozenset(b.id for b in _values_of_wide_op(memory, alive))
    found: dict[Holder, list[Buffer]] = {}
    for buffer in alive:
        holder = Holder.SINGLE_OP if buffer.id in of_one_op else _HOLDERS.get(buffer.role, Holder.OTHER)
        found.setdefault(holder, []).append(buffer)
    return found


_HOLDERS = {
    Role.RESIDUAL: Holder.RESIDUALS,
    Role.ACTIVATION: Holder.RECOMPUTED,
    Role.LOGITS: Holder.LOGITS,
    Role.COTANGENT: Holder.COTANGENTS,
    Role.GRADIENT: Holder.GRADIENTS,
    Role.UPDATE: Holder.UPDATE,
    Role.WORKSPACE: Holder.WORKSPACE,
    Role.COLLECTIVE: Holder.TRANSFERS,
    Role.HOST_COPY: Holder.TRANSFERS,
}


def _values_of_wide_op(memory: MemoryMap, alive: tuple[Buffer, ...]) -> list[Buffer]:
    """The values of one op, if the op is the peak: values of one size, far wider than all others there; else [].

    A buffer that the iterations of a loop write, each its slice, belongs to all layers, not to one op.
    """
    by_width: dict[int, list[Buffer]] = {}
    for buffer in alive:
        if buffer.role in _VALUE_ROLES and not (buffer.op == "dynamic_update_slice" and buffer.count > 1):
            by_width.setdefault(math.prod(buffer.shape), []).append(buffer)
    widest, *narrower = sorted(by_width, reverse=True) or [0]
    of_one_op = by_width.get(widest, [])
    residuals = sum(b.role is Role.RESIDUAL for b in of_one_op)
    is_wide = widest >= _WIDENS * next(iter(narrower), widest)
    dominates = _sum(of_one_op) >= _DOMINATES * memory.peak_bytes
    if not (is_wide and dominates and residuals <= _MOST_RESIDUALS and _is_widened(memory, widest)):
        return []
    return of_one_op


def _is_widened(memory: MemoryMap, elements: int) -> bool:
    """True if values of so many elements are made of smaller ones, not each of the one before, as through layers."""
    alike = [b for b in memory.buffers if math.prod(b.shape) == elements]
    made = [b for b in alike if b.part is Part.FORWARD and b.role in _VALUE_ROLES]
    of_narrower = [b for b in made if not any(other.born < b.born <= other.dies for other in alike)]
    return _WIDENED * len(of_narrower) >= len(made)


_VALUE_ROLES = (Role.RESIDUAL, Role.ACTIVATION, Role.COTANGENT, Role.OTHER)


def _remedies(footprint: Footprint, shares: Iterable[Share], graph: Graph | None) -> Iterator[Remedy]:
    if graph is not None:
        yield donation(graph)
    yield from _sharding(footprint, graph)
    for share in shares:
        if footprint.memory is not None and share.holder in _CHUNKED:
            yield from _CHUNKED[share.holder](footprint.memory, share)


def donation(graph: Graph) -> Remedy:
    """The donation of arguments that results could reuse."""

    def kinds(values: Iterable[int]) -> Counter[tuple[tuple[int, ...], str]]:
        return Counter((graph.values[v].shape, graph.values[v].dtype) for v in values)

    sizes = {(value.shape, value.dtype): value.size_bytes for value in graph.values}
    results = kinds(graph.outputs) - kinds(graph.donated)
    free = kinds(v for v in graph.inputs if v not in graph.donated)
    saves = sum(sizes[kind] * count for kind, count in (results & free).items())
    return Remedy(
        title="donate the state",
        how="Results that could take over the memory of an argument of the same shape and type do not. The jit around"
        " the step donates (Equinox: donate='all'), or for a step without one the call of jaxckpt.",
        saves_bytes=saves,
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
    )


def _head(memory: MemoryMap, share: Share) -> Iterator[Remedy]:
    chunks, saves, then = _chunks(memory, lambda b: b.role is Role.LOGITS)
    yield Remedy(
        title="the loss head in chunks",
        how=f"{_listed(share)} are made for all tokens at once, whatever is kept of the layers. In {chunks} chunks,"
        f" each computed again in the backward, there is one chunk of them at a time. {then} Where the head treats all"
        ' tokens alike, a plan with allow=("recompute", "chunk") does so without a change of the step.',
        saves_bytes=saves,
        command=f'jaxckpt.chunked(head_and_loss, chunks={chunks}, axis=..., join="sum")',
    )


def _op(memory: MemoryMap, share: Share) -> Iterator[Remedy]:
    first = share.largest[0]
    count = math.prod(first.shape)
    chunks, saves, then = _chunks(memory, lambda b: math.prod(b.shape) == count and b.role is not Role.GRADIENT)
    if len(first.shape) >= 3 and first.shape[-1] == first.shape[-2] >= _LEAST_SCORES:
        yield Remedy(
            title="attention that keeps no weights",
            how=f"{_listed(share)} look like attention weights. A fused kernel never has them.",
            saves_bytes=_saved(memory, {b.id: 0 for b in memory.temporaries if math.prod(b.shape) == count}),
            command='jax.nn.dot_product_attention(..., implementation="cudnn")',
        )
    yield Remedy(
        title="one op in chunks",
        how=f"{_listed(share)} are made of far smaller values by one op, and around it. {then}",
        saves_bytes=saves,
        command=f"jaxckpt.chunked(part, chunks={chunks}, axis=...)",
    )


def _gradients(memory: MemoryMap, share: Share) -> Iterator[Remedy]:
    wide = {b.id: b.size_bytes // 2 for b in memory.temporaries if b.role is Role.GRADIENT and b.dtype == "float32"}
    yield Remedy(
        title="gradients in bfloat16",
        how=f"{_listed(share)} wait for the update. It begins when the last one is there: a global norm needs all.",
        saves_bytes=_saved(memory, wide),
        command="jax.grad with respect to bfloat16 parameters, their float32 copies in the optimiser's state",
    )


def _update(memory: MemoryMap, share: Share) -> Iterator[Remedy]:
    chunks, saves, then = _chunks(memory, lambda b: b.role is Role.UPDATE)
    yield Remedy(
        title="a part of the update at a time",
        how=f"{_listed(share)} are made by the optimiser, after all residuals are gone. Where the update treats rows"
        f" alike and apart it can go over them in chunks; else a cheaper update, or state over more devices. {then}",
        saves_bytes=saves,
        command=f"jaxckpt.chunked(update_of_a_parameter, chunks={chunks})",
    )


_CHUNKED: Mapping[Holder, Callable[[MemoryMap, Share], Iterator[Remedy]]] = {
    Holder.LOGITS: _head,
    Holder.SINGLE_OP: _op,
    Holder.GRADIENTS: _gradients,
    Holder.UPDATE: _update,
}


def _chunks(memory: MemoryMap, of: Callable[[Buffer], bool]) -> tuple[int, int, str]:
    """The number of chunks to propose, the bytes that they take off the peak, and a sentence on the new peak."""
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
    """Bytes that the peak falls by where some buffers have other sizes; another kernel may then be the peak."""
    return memory.peak_bytes - _resized(memory, sizes).peak_bytes


def _resized(memory: MemoryMap, sizes: Mapping[int, int]) -> MemoryMap:
    return replace(memory, buffers=tuple(replace(b, size_bytes=sizes.get(b.id, b.size_bytes)) for b in memory.buffers))


def _sum(buffers: Iterable[Buffer]) -> int:
    return sum(buffer.size_bytes for buffer in buffers)


def _listed(share: Share) -> str:
    """The bytes of a share with its largest buffer, in a few words."""
    first = share.largest[0]
    what = f"{first.dtype}[{','.join(map(str, first.shape))}]"
    place = "/".join(filter(None, (first.scope, first.op)))
    return f"{format_bytes(share.size_bytes)} such as {what}{f' of {place}' if place else ''}"
