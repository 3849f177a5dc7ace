"""A training step as plain data: ops in the order in which they were traced, and the values between them.

A `Graph` is the step's joint forward and backward program after tracing (a dataflow graph in static single assignment
form), one level deep: nested calls are inlined; loops (`loop`), branches (`branch`) and bodies of `shard_map`
(`shard_map`) that are not inlined are single ops. A graph has bytes, scopes and phases; nothing in it says how the step
is executed or decided. Ids are positions: `graph.ops[i].id == i`, `graph.values[i].id == i`.

Analyses that solvers need many times (`readers`, `backward_frontier`, ...) are cached properties: a graph is the only
object that lives as long as they are valid, and hashing a graph to cache them elsewhere would cost more than they do.
Analyses of other packages are cached by `Graph.once`.
"""

import enum
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import count
from math import prod
from operator import itemgetter
from typing import NamedTuple, TypeVar, cast

from jaxckpt._errors import GraphError
from jaxckpt.ir.kind import Kind, Trait
from jaxckpt.ir.regions import ALL_ITERATIONS, BODY_OUTPUTS, COND_END, SLICE, Loop

_Derived = TypeVar("_Derived")
_IN_MEMORY = frozenset({Kind.CONTRACTION, Kind.SCATTER, Kind.OPAQUE})
"""Kinds whose operands and results are in memory, but for the updates of a scatter."""
_FUSIBLE = frozenset({Kind.ELEMENTWISE, Kind.VIEW})
"""Kinds that are fused into the kernels of their readers."""


class Phase(enum.StrEnum):
    """The part of the step that an op belongs to."""

    FORWARD = enum.auto()
    BACKWARD = enum.auto()
    UPDATE = enum.auto()
    """Everything computed from gradients that is no gradient: clipping, the optimiser, new parameters."""


_signatures: dict[tuple[object, ...], int] = {}
_next_signature = count()


def _signature(key: tuple[object, ...]) -> int:
    """The number of a key: compared instead of keys, which are long, by all who look for stages that are alike."""
    return _signatures.setdefault(key, next(_next_signature))


def axis_size(axis: str, mesh: Mapping[str, int]) -> int:
    """How many devices an axis of a mesh has, or a part of one ("axis/4"); 1 where there is no such axis."""
    _, slash, part = axis.rpartition("/")
    return int(part) if slash else mesh.get(part, 1)


class Exchange(NamedTuple):
    """Bytes that one device gets from others, in groups of devices along some axes of the mesh.

    Attributes:
      size_bytes: What it gets.
      axes: Names of the axes, or of parts of axes ("axis/4").
    """

    size_bytes: int = 0
    axes: tuple[str, ...] = ()


NO_EXCHANGE = Exchange()


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One array of the step.

    Attributes:
      id: Its position in `Graph.values`.
      shape: Global shape, where it is not `local`; a key array has the shape of its keys.
      dtype: As JAX prints it ("bfloat16", "key<fry>").
      size_bytes: Bytes on one device.
      name: Its name from `jax.ad_checkpoint.checkpoint_name`, if any.
      split: For each dimension the mesh axes that it is sharded over, "axis/4" for part of an axis; () where the value
        is replicated, or nothing is known.
      local: True if it is one device's own, in the open body of a `shard_map`; its shape is then that of the shard.
    """

    id: int
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    name: str | None = None
    split: tuple[tuple[str, ...], ...] = ()
    local: bool = False

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation of the step: a record without behaviour, so its fields are flat, as an equation's parameters are.

    Attributes:
      id: Its position in `Graph.ops`.
      primitive: The JAX primitive.
      kind: The part that it takes in a fused kernel.
      reads: Its operands, in order, literals left out.
      writes: Its results.
      scope: The path of names around it ("GPT/block_3/qkv"), without the marks of transformations.
      phase: Forward, backward or update.
      flops: Floating-point operations on one device of a contraction or of an op with a body; 0 where only traffic
        matters; None where they are unknown (the op is then counted as unpriced).
      traffic_bytes: Bytes that one device moves inside an op with a body, all iterations together; 0 for others.
      gathered: Parts of operands that one device gets from others, as the compiler will split the work.
      summed: The same of results: partial sums, or parts.
      workspace_bytes: Device bytes that an op with a body needs while it runs, besides reads and writes.
      carries: How many of its first results are the carries of a loop, written over their initial values.
      effects: Names of its side effects; an op that has any is never run twice.
      source: "file.py:123" of the user's line, or "".
      detail: A short text of those parameters that decide what it computes.
      traits: Further properties.
      placement: The mesh that it is constrained to, as text; "" where there is none.
      policies: Digests of the policies that marks in the user's code put around it, outermost first.
      loop: The innermost open loop in whose body it stands, or None.
    """

    id: int
    primitive: str
    kind: Kind
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    scope: str
    phase: Phase
    flops: float | None = 0
    traffic_bytes: int = 0
    gathered: Exchange = NO_EXCHANGE
    summed: Exchange = NO_EXCHANGE
    workspace_bytes: int = 0
    carries: int = 0
    effects: tuple[str, ...] = ()
    source: str = ""
    detail: str = ""
    traits: frozenset[Trait] = frozenset()
    placement: str = ""
    policies: tuple[str, ...] = ()
    loop: int | None = None

    @property
    def exchange_bytes(self) -> int:
        """All that one device gets from others."""
        return self.gathered.size_bytes + self.summed.size_bytes


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A step: ops in traced order over values.

    Attributes:
      values: Every array, by id.
      ops: Every operation, by id; an op reads only inputs, constants and what earlier ops wrote.
      inputs: The step's flat arguments.
      constants: Arrays that the step closed over.
      outputs: The step's flat results, literals left out; a value may occur twice.
      donated: Those inputs whose memory the results may take.
      mesh: Axes of the mesh that the arguments are laid out over, with their sizes.
      loops: Loops whose bodies are inlined among the ops, by id; the ops of one body are consecutive.
    """

    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    constants: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    donated: frozenset[int] = frozenset()
    mesh: tuple[tuple[str, int], ...] = ()
    loops: tuple[Loop, ...] = ()

    def once(self, derive: "Callable[[Graph], _Derived]") -> _Derived:
        """The result of a function of the graph, computed at the first call: for analyses of other packages."""
        if derive not in self._derived:
            self._derived[derive] = derive(self)
        return cast(_Derived, self._derived[derive])

    @cached_property
    def _derived(self) -> "dict[Callable[[Graph], object], object]":
        return {}

    @cached_property
    def producer(self) -> tuple[int | None, ...]:
        """For each value the op that writes it; None for inputs and constants."""
        producer: list[int | None] = [None] * len(self.values)
        for op in self.ops:
            for value in op.writes:
                producer[value] = op.id
        return tuple(producer)

    @cached_property
    def loop_of(self) -> tuple[int | None, ...]:
        """For each value the innermost open loop in whose body it is made, or None."""
        return tuple(None if op is None else self.ops[op].loop for op in self.producer)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each value the ops that read it, in order, each once."""
        readers: list[list[int]] = [[] for _ in self.values]
        for op in self.ops:
            for value in dict.fromkeys(op.reads):
                readers[value].append(op.id)
        return tuple(map(tuple, readers))

    @cached_property
    def backward_frontier(self) -> tuple[int | None, ...]:
        """For each op the value that the backward has arrived at before it.

        A barrier with this value holds work until the backward arrives. Not every value of the backward would do: some
        are computed from residuals alone, and some from literals, as the gradient of a mean begins.

        It is the last value in memory (`_cotangents`) on the longest chain of backward ops to the op, or, once the
        backward reads that one no longer, the op's own operand: XLA drops operands of a barrier that nobody reads
        behind it. With dead ones GPT-2 small's least plan took 5,959 MiB, not 4,274. Of two towers each has a chain of
        its own: with values of the first tower's, clones of all layers of the second one started at once, and a plan
        took 3,751 MiB, not 1,270.

        Where no such chain leads to an op, it is the last value in memory on the longest chain to any op so far. Before
        the backward has a value in memory it is the step's deepest forward result (a loss), if there is one. In the
        body of a loop it is a value of that body, in memory if possible, and before there is one in memory the body's
        own loss.
        """
        return self._frontiers[0]

    @cached_property
    def last_in_memory(self) -> tuple[int | None, ...]:
        """For each op outside of loops the last value in memory on the longest chain of backward ops to it.

        No product or scatter is between two ops with the same one; None where no such chain leads to an op.
        """
        return self._frontiers[1]

    @cached_property
    def widenings(self) -> dict[int, tuple[int, ...]]:
        """For backward values that are not in memory the ops that make them of a smaller value, by themselves.

        Gathers, views and elementwise ops of one array, mostly casts. A barrier can pass the smaller value instead, and
        these ops run again behind it: a cast to float32 would be written to memory where the bfloat16 value is already,
        and the cotangents of messages on edges where those of the nodes are. `every:2` of `graph-attention-1` of the
        battery took 4,490 MiB with barriers that pass the messages, and takes 3,280.
        """
        written = {v for op in self.ops if op.phase is Phase.BACKWARD for v in op.writes} - self._cotangents
        return {v: ops for v in sorted(written) if (ops := self._widening(v))}

    def _widening(self, end: int) -> tuple[int, ...]:
        """The chain of ops of one array from the smallest value on the chain to a value; of equal ones the nearest."""
        ops: list[int] = []
        shortest = 0
        value = smallest = end
        while (number := self.producer[value]) is not None:
            op = self.ops[number]
            is_of_one_array = op.kind is Kind.GATHER or (op.kind in _FUSIBLE and len(op.reads) == 1)
            if not is_of_one_array or op.phase is not Phase.BACKWARD or op.loop is not None:
                break
            ops.append(number)
            value = op.reads[0]
            if self.values[value].size_bytes < self.values[smallest].size_bytes:
                smallest, shortest = value, len(ops)
        return tuple(reversed(ops[:shortest]))

    @cached_property
    def _frontiers(self) -> tuple[tuple[int | None, ...], tuple[int | None, ...]]:
        # One pass: for each op the depths and the values in memory of all ops before it have to be known together.
        frontier: list[int | None] = []
        last_in_memory: list[int | None] = []
        depth = dict.fromkeys(self.inputs, 0)
        deepest: dict[int | None, tuple[int | None, int]] = {None: (None, 0)}
        in_memory: dict[int | None, tuple[int, int]] = {}
        last_read = {v: op.id for op in self.ops if op.phase is Phase.BACKWARD for v in op.reads}
        arrived: dict[int, int] = {}
        """For backward values outside of loops the last value in memory on the longest chain to them."""
        for op in self.ops:
            for around in self.path(op.loop):
                deepest.setdefault(around, (deepest[self.loops[around].parent][0], 0))
            leaves_body = op.primitive in BODY_OUTPUTS  # no barrier outside can pass what it reads
            reads = () if leaves_body else op.reads
            operand = max((v for v in reads if v in arrived), key=depth.__getitem__, default=None)
            last_in_memory.append(arrived[operand] if operand is not None and op.loop is None else None)
            if op.loop is not None:
                before = self._last_results.get(op.loop, deepest[op.loop][0])
                frontier.append(in_memory[op.loop][0] if op.loop in in_memory else before)
            elif (end := deepest[None][0] if operand is None else operand) in arrived:
                value = arrived[end]
                frontier.append(value if last_read.get(value, -1) >= op.id else end)
            else:
                frontier.append(self._last_results.get(None, end))
            known = [depth[v] for v in op.reads if v in depth]
            if not op.writes or not known:
                continue
            if op.phase is Phase.BACKWARD:
                reached = op.writes[0], 1 + max(known)
                depth.update(dict.fromkeys(op.writes, reached[1]))
                deepest[op.loop] = max(reached, deepest[op.loop], key=itemgetter(1))
                is_in_memory = op.writes[0] in self._cotangents
                if is_in_memory and op.loop is not None:
                    in_memory[op.loop] = max(reached, in_memory.get(op.loop, reached), key=itemgetter(1))
                if is_in_memory or leaves_body:
                    arrived.update(dict.fromkeys(op.writes, op.writes[0]))
                elif operand is not None:
                    arrived.update(dict.fromkeys(op.writes, arrived[operand]))
            elif op.phase is Phase.FORWARD:
                depth.update(dict.fromkeys(op.writes, 0))
                if self._last_results.get(None) in op.writes:
                    deepest[None] = self._last_results[None], 0
        return tuple(frontier), tuple(last_in_memory)

    @cached_property
    def _last_results(self) -> dict[int | None, int]:
        """For the step, under None, and for each body with a backward pass the deepest result before it: a loss."""
        first: dict[int | None, int] = {}
        depths: dict[int, int] = {}
        """Within each body by itself."""
        for op in self.ops:
            if op.phase is Phase.BACKWARD:
                first.setdefault(None, op.id)
                first.setdefault(op.loop, op.id)
            elif op.phase is Phase.FORWARD:
                known = [depths[v] for v in op.reads if v in depths and self.ops[self.producer[v] or 0].loop == op.loop]
                depths.update(dict.fromkeys(op.writes, 1 + max(known, default=0)))
        of_bodies = (v for op in self.ops if op.primitive in BODY_OUTPUTS for v in op.reads)
        found: dict[int | None, int] = {}
        for value in (*self.outputs, *of_bodies):
            producer = self.producer[value]
            loop = None if producer is None else self.ops[producer].loop
            if value in depths and producer is not None and producer < first.get(loop, 0):
                found[loop] = max(value, found.get(loop, value), key=depths.__getitem__)
        return found

    @cached_property
    def _cotangents(self) -> frozenset[int]:
        """Values in memory, of either pass, that products and scatters of the backward read or write before others do.

        A barrier that hands on a value inside a chain of elementwise ops would split a kernel in two, one that hands on
        the gradient of a weight would keep the update from fusing with it. A product that is added to another value is
        not in memory by itself, but the sum is if several ops read it. Nor is what is scattered: the scatter's kernel
        computes it. A view that has been made of a value in memory takes its place: whoever reads the view does not
        read the value behind the barrier.
        """
        # One pass back, in which what leads to a value in memory and the value itself are found together.
        leads: set[int] = set()
        found: set[int] = set()
        for op in reversed(self.ops):
            if op.phase is not Phase.BACKWARD:
                continue
            if op.kind in _IN_MEMORY or not leads.isdisjoint(op.writes):
                leads.update(op.reads)
            is_added = op.writes and {self.ops[r].primitive for r in self.readers[op.writes[0]]} == {"add_any"}
            if op.kind in _IN_MEMORY and not is_added:
                found.update(op.writes)
            elif op.kind in _IN_MEMORY:
                sums = [v for r in self.readers[op.writes[0]] for v in self.ops[r].writes]
                found.update(v for v in sums if len(self.readers[v]) > 1)
            if op.kind in _IN_MEMORY:
                found.update(op.reads[:1] if op.kind is Kind.SCATTER else op.reads)
        for op in self.ops:
            if op.phase is Phase.BACKWARD and op.kind is Kind.VIEW and not found.isdisjoint(op.reads):
                sizes_bytes = {self.values[v].size_bytes for v in (*op.reads, *op.writes)}
                found.update(op.writes if len(sizes_bytes) == 1 else ())
        return frozenset(found & leads)

    @cached_property
    def forward(self) -> tuple[int, ...]:
        """The ops of the forward pass."""
        return tuple(op.id for op in self.ops if op.phase is Phase.FORWARD)

    @cached_property
    def read_after_forward(self) -> frozenset[int]:
        """Forward values that the backward or the update reads."""
        read = frozenset(v for op in self.ops if op.phase is not Phase.FORWARD for v in op.reads)
        return read.intersection(v for op in self.ops if op.phase is Phase.FORWARD for v in op.writes)

    @cached_property
    def first_read_after_forward(self) -> tuple[int | None, ...]:
        """For each value the first op of the backward or the update that reads it, or None."""
        phases = [op.phase for op in self.ops]
        return tuple(next((op for op in ops if phases[op] is not Phase.FORWARD), None) for ops in self.readers)

    @cached_property
    def available(self) -> frozenset[int]:
        """Values that the backward can read without a decision.

        Arguments, results, values written by ops with effects or after the forward pass, and values read after it.
        """
        made = (v for op in self.ops if op.phase is not Phase.FORWARD or op.effects for v in op.writes)
        return frozenset((*self.inputs, *self.constants, *self.outputs, *made)) | self.read_after_forward

    @cached_property
    def results(self) -> frozenset[int]:
        """Values in memory under any plan: results of the step and of bodies of loops after the forward pass."""
        of_bodies = (
            v for op in self.ops if op.primitive in BODY_OUTPUTS and op.phase is not Phase.FORWARD for v in op.reads
        )
        return frozenset((*self.outputs, *of_bodies))

    @cached_property
    def slices(self) -> frozenset[int]:
        """Slices of the arrays that loops scan."""
        return frozenset(v for op in self.ops if op.primitive == SLICE for v in op.writes)

    @cached_property
    def scatters(self) -> tuple[Op, ...]:
        """The ops that scatter, in order."""
        return tuple(op for op in self.ops if op.kind is Kind.SCATTER)

    @cached_property
    def updates(self) -> frozenset[int]:
        """The ops of the update, without the boundaries of its loops and conds."""
        return frozenset(op.id for op in self.ops if op.phase is Phase.UPDATE and ALL_ITERATIONS not in op.effects)

    @cached_property
    def unaliased_outputs(self) -> tuple[int, ...]:
        """Positions of results without a donated argument of their shape and type whose memory they could take."""
        donated = Counter((self.values[v].shape, self.values[v].dtype) for v in self.donated)
        found = []
        for position, v in enumerate(self.outputs):
            key = (self.values[v].shape, self.values[v].dtype)
            if donated[key]:
                donated[key] -= 1
            else:
                found.append(position)
        return tuple(found)

    @cached_property
    def forward_end(self) -> int | None:
        """The forward value at the end of the longest chain that the backward reads; None where it reads none."""
        read = (v for op in self.ops if op.phase is Phase.BACKWARD for v in op.reads if v in self._depths)
        return max(read, key=lambda v: (self._depths[v], v), default=None)

    @cached_property
    def forward_frontier(self) -> tuple[int | None, ...]:
        """For each op outside of loops a value that the rest of the forward pass depends on.

        A barrier with this value holds the forward pass. Of the values written before the op that are still to be read
        on the way to `forward_end`, it is the one at the end of the longest chain. Values that only the backward reads
        would not do: where they are dropped, nothing waits for them.
        """
        last_read, depths = self._last_read_towards(self.forward_end), self._depths
        frontier: list[int | None] = [None] * len(self.ops)
        written: list[tuple[int, int]] = []
        """A heap by depth, the deepest first; values that are read no longer leave it once they are at its top."""
        for op in self.ops:
            while written and last_read[-written[0][1]] < op.id:
                heappop(written)
            frontier[op.id] = -written[0][1] if written else None
            for value in op.writes if op.phase is Phase.FORWARD else ():
                if value in last_read and value in depths:
                    heappush(written, (-depths[value], -value))
        return tuple(frontier)

    @cached_property
    def _depths(self) -> dict[int, int]:
        """For each forward value outside of loops' bodies the length of the longest chain of ops that makes it."""
        depths: dict[int, int] = {}
        for op in self.ops:
            if op.phase is Phase.FORWARD and op.writes and op.loop is None:
                depths.update(dict.fromkeys(op.writes, 1 + max([depths.get(v, 0) for v in op.reads], default=0)))
        return depths

    def _last_read_towards(self, value: int | None) -> dict[int, int]:
        """For each value that leads to another one, and for that one, the last op that reads it on the way."""
        last_read = {} if value is None else {value: len(self.ops)}
        pending = list(last_read)
        seen: set[int] = set()
        while pending:
            op = self.producer[pending.pop()]
            if op is None or op in seen:
                continue
            seen.add(op)
            for read in self.ops[op].reads:
                last_read[read] = max(op, last_read.get(read, op))
                pending.append(read)
        return last_read

    @cached_property
    def value_signatures(self) -> tuple[int, ...]:
        """For each value a number, the same for values of one shape, type and size in any graph."""
        return tuple(_signature((v.shape, v.dtype, v.size_bytes)) for v in self.values)

    @cached_property
    def op_signatures(self) -> tuple[int, ...]:
        """For each op a number, the same for ops of any graph that compute the same in the same phase and loops."""
        signatures = []
        for op in self.ops:
            cost = (op.flops, op.traffic_bytes, op.gathered, op.summed, op.workspace_bytes)
            signatures.append(_signature((op.primitive, op.detail, op.phase, *cost, op.effects, self._place(op.loop))))
        return tuple(signatures)

    def _place(self, loop: int | None) -> tuple[tuple[int, ...], ...]:
        """The loops around an op; of a branch only its position, since the conds of layers are alike."""
        around = (self.loops[around] for around in self.path(loop))
        return tuple((at.id, at.length) if at.branch is None else (at.branch.position, at.branch.of) for at in around)

    @cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """For each loop the loops around it and itself, outermost first."""
        paths: list[tuple[int, ...]] = []
        for loop in self.loops:
            paths.append((*(() if loop.parent is None else paths[loop.parent]), loop.id))
        return tuple(paths)

    def path(self, loop: int | None) -> tuple[int, ...]:
        """The loops around an op of this loop, outermost first; () where the loop is None."""
        return () if loop is None else self.paths[loop]

    def runs_per_step(self, loop: int | None) -> float:
        """How often an op of this loop runs in a step; on the average, where it is a branch."""
        if loop is None:
            return 1
        iterations = prod(self.loops[around].length for around in self.path(loop))
        branches = (self.loops[around].branch for around in self.path(loop))
        return prod((branch.share for branch in branches if branch is not None), start=iterations)

    def is_branched(self, loop: int | None) -> bool:
        """True if an op of this loop stands in a branch of a cond."""
        return any(self.loops[around].branch is not None for around in self.path(loop))

    def is_in_clone(self, loop: int | None) -> bool:
        """True if an op of this loop stands in a clone of a loop, and recomputes."""
        return loop is not None and any(self.loops[around].is_clone for around in self.path(loop))

    @cached_property
    def branch_indices(self) -> frozenset[int]:
        """The values that select the branch of a cond."""
        return frozenset(op.reads[0] for op in self.ops if op.primitive == COND_END)

    @cached_property
    def sibling_branches(self) -> tuple[tuple[int, ...], ...]:
        """For each loop itself and, of a branch, the other branches of its cond."""
        conds: dict[int, list[int]] = {}
        for loop in self.loops:
            conds.setdefault(~loop.id if loop.branch is None else loop.branch.cond, []).append(loop.id)
        return tuple(tuple(conds[~i if loop.branch is None else loop.branch.cond]) for i, loop in enumerate(self.loops))

    @cached_property
    def loops_after_forward(self) -> frozenset[int]:
        """Loops whose bodies have ops of the backward or the update."""
        return frozenset(around for op in self.ops if op.phase is not Phase.FORWARD for around in self.path(op.loop))

    @cached_property
    def saved_instances(self) -> tuple[int, ...]:
        """For each value the number of its instances that are live between forward and backward, if it is saved.

        A value of a body is saved once for every iteration, unless the backward stands in the same body and so reads
        the value of its own iteration.
        """
        unstacked = self.loops_after_forward
        depths = [
            prod(self.loops[around].length for around in self.path(loop.id) if around not in unstacked)
            for loop in self.loops
        ]
        return tuple(1 if loop is None else depths[loop] for loop in self.loop_of)

    def size_bytes(self, values: Iterable[int]) -> int:
        """Bytes of some values on one device, those of a loop's body for one iteration."""
        return sum(self.values[v].size_bytes for v in values)

    def residual_bytes(self, value: int) -> int:
        """Bytes on one device of a saved value until the backward reads it: those of all iterations of its loop."""
        return self.saved_instances[value] * self.values[value].size_bytes

    @cached_property
    def argument_bytes(self) -> int:
        """Device bytes of the arguments that are read or returned, and of the arrays closed over; jit drops others."""
        results = frozenset(self.outputs)
        read = (v for v in self.inputs if self.readers[v] or v in results)
        return self.size_bytes((*read, *self.constants))

    def axis_size(self, axis: str) -> int:
        """How many devices a mesh axis has, or a part of one ("axis/4"); 1 where there is no such axis."""
        return axis_size(axis, dict(self.mesh))

    def devices_in_host(self, axes: Iterable[str], devices_per_host: int) -> int:
        """How many devices of a group along some axes are in one host; 0 if the whole group is.

        Devices are numbered by the axes of the mesh, the last one fastest, and hosts have as many of them each. Of a
        part of an axis the devices are taken to be neighbours.
        """
        if not devices_per_host:
            return 0
        strides, stride = {}, 1
        for axis, size in reversed(self.mesh):
            strides[axis], stride = stride, stride * size
        devices = in_host = 1
        for axis in dict.fromkeys(axes):
            size = self.axis_size(axis)
            devices *= size
            in_host *= min(size, max(1, devices_per_host // strides.get(axis.partition("/")[0], 1)))
        return 0 if in_host == devices else in_host

    def elements(self, value: int) -> int:
        """Number of elements of a value on one device."""
        array = self.values[value]
        if not array.split:
            return prod(array.shape)
        ways = (prod(map(self.axis_size, axes)) for axes in array.split)
        return prod(-(-size // parts) for size, parts in zip(array.shape, ways, strict=True))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what is computed: ops, shapes, connections; not of names, scopes, lines or donation."""
        return hashlib.sha256("".join(self._lines()).encode()).hexdigest()[:16]

    def _lines(self) -> Iterator[str]:
        yield f"{self.inputs}{self.constants}{self.outputs}\n"
        for value in self.values:
            yield f"{value.id}:{value}\n"
        for op in self.ops:
            inside = "" if op.loop is None else f"in{op.loop}"
            yield f"{op.primitive}{op.reads}{op.writes}{op.detail}{inside}\n"

    def validate(self) -> None:
        """Checks the rules of a graph.

        Ids are positions, every value is written once and before it is read, donated values are arguments, and no size
        is negative.
        """
        problems = [
            *(f"values[{i}].id is {v.id}" for i, v in enumerate(self.values) if v.id != i),
            *(f"ops[{i}].id is {op.id}" for i, op in enumerate(self.ops) if op.id != i),
            *(f"donated value {v} is no input" for v in sorted(self.donated - set(self.inputs))),
            *self._order_problems(),
            *(f"value {v.id} has {v.size_bytes} bytes" for v in self.values if v.size_bytes < 0),
        ]
        if problems:
            raise GraphError(
                f"Graph.validate: {len(problems)} rules are broken.",
                got="; ".join(f"({i}) {text}" for i, text in enumerate(problems[:20], 1)),
                needed="ids that are positions, one writer a value, no reading ahead",
                advice="report this together with the step, if the graph came from tracing",
                problems=tuple(problems),
            )

    def _order_problems(self) -> Iterator[str]:
        """Values that are read before they are written, written twice, or returned but never written."""
        known = set(self.inputs) | set(self.constants)
        for op in self.ops:
            yield from (f"op {op.id} reads {v} before it is written" for v in op.reads if v not in known)
            yield from (f"op {op.id} writes {v} a second time" for v in op.writes if v in known)
            known.update(op.writes)
        yield from (f"output {v} is never written" for v in self.outputs if v not in known)
