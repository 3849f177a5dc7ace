"""A training step as plain data: ops in the order in which they were traced, and the values between them.

A `Graph` is the step's joint forward and backward program after tracing, one level deep: nested calls are
inlined, loops and branches are whole ops. It knows bytes, scopes and phases; it does not know how anything is
executed, drawn or decided. Ids are positions: `graph.ops[i].id == i`, `graph.values[i].id == i`.
"""

import enum
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from jaxckpt._errors import GraphError
from jaxckpt.ir.kind import Kind, Trait


class Phase(enum.StrEnum):
    """The part of the step that an op belongs to."""

    FORWARD = enum.auto()
    BACKWARD = enum.auto()
    UPDATE = enum.auto()
    """What follows from gradients without being a gradient: clipping, the optimiser, new parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One array of the step.

    Attributes:
      id: Its position in `Graph.values`.
      shape: Global shape; a key array has the shape of its keys.
      dtype: As JAX prints it ("bfloat16", "key<fry>").
      size_bytes: Bytes on one device.
      name: What `jax.ad_checkpoint.checkpoint_name` called it, if it did.
    """

    id: int
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    name: str | None = None

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation of the step.

    Attributes:
      id: Its position in `Graph.ops`.
      primitive: The JAX primitive.
      kind: What part it takes in a fused kernel.
      reads: Values that it reads, in operand order, literals left out.
      writes: Values that it makes.
      scope: The path of names around it ("GPT/block_3/qkv"), without the marks of transformations.
      phase: Forward, backward or update.
      flops: Floating-point operations of a contraction or of an op with a body; 0 where traffic is all that
        matters; None where nobody knows (it is then counted as unpriced).
      traffic_bytes: Bytes moved inside an op with a body, all trips together; 0 for others.
      workspace_bytes: Device bytes that an op with a body needs while it runs, besides reads and writes.
      effects: Names of its side effects; an op that has any is never run twice.
      source: "file.py:123" of the user's line, or "".
      detail: A short text of those parameters that decide what it computes.
      traits: What else is known of it.
      placement: The mesh that it is told to run over, as text; "" where nothing is said.
      policies: Digests of the policies that marks in the user's code put around it, outermost first.
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
    workspace_bytes: int = 0
    effects: tuple[str, ...] = ()
    source: str = ""
    detail: str = ""
    traits: frozenset[Trait] = frozenset()
    placement: str = ""
    policies: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A step: ops in traced order over values.

    Attributes:
      values: Every array, by id.
      ops: Every operation, by id; an op reads only inputs, constants and what earlier ops wrote.
      inputs: The step's flat arguments.
      constants: Arrays that the step closed over.
      outputs: The step's flat results, literals left out; a value may stand here twice.
      donated: Those inputs whose memory the results may take.
      mesh: Axes of the mesh that the arguments are laid out over, with their sizes.
    """

    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    constants: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    donated: frozenset[int] = frozenset()
    mesh: tuple[tuple[str, int], ...] = ()

    @cached_property
    def producer(self) -> tuple[int | None, ...]:
        """For each value the op that makes it; None for inputs and constants."""
        producer: list[int | None] = [None] * len(self.values)
        for op in self.ops:
            for value in op.writes:
                producer[value] = op.id
        return tuple(producer)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each value the ops that read it, in order, each once."""
        readers: list[list[int]] = [[] for _ in self.values]
        for op in self.ops:
            for value in dict.fromkeys(op.reads):
                readers[value].append(op.id)
        return tuple(map(tuple, readers))

    @cached_property
    def fronts(self) -> tuple[int | None, ...]:
        """For each op the value at the end of the longest chain of backward ops before it; None before the backward.

        Not every value of the backward waits for it: some are computed of residuals alone. The end of the longest
        chain has waited for all that the chain has.
        """
        return self._fronts(Phase.BACKWARD)

    @cached_property
    def forward_fronts(self) -> tuple[int | None, ...]:
        """For each op the value at the end of the longest chain of forward ops before it."""
        return self._fronts(Phase.FORWARD)

    def _fronts(self, phase: Phase) -> tuple[int | None, ...]:
        fronts: list[int | None] = []
        depth: dict[int, int] = {}
        front, deepest = None, 0
        for op in self.ops:
            fronts.append(front)
            if op.phase is phase and op.writes:
                depth_here = 1 + max([depth.get(v, 0) for v in op.reads], default=0)
                depth.update(dict.fromkeys(op.writes, depth_here))
                if depth_here >= deepest:
                    front, deepest = op.writes[0], depth_here
        return tuple(fronts)

    @cached_property
    def value_signatures(self) -> tuple[int, ...]:
        """For each value a number, the same for values of one shape, type and size."""
        known: dict[tuple[object, ...], int] = {}
        return tuple(known.setdefault((v.shape, v.dtype, v.size_bytes), len(known)) for v in self.values)

    @cached_property
    def op_signatures(self) -> tuple[int, ...]:
        """For each op a number, the same for ops that do the same in the same part of the step."""
        known: dict[tuple[object, ...], int] = {}
        return tuple(
            known.setdefault(
                (op.primitive, op.detail, op.phase, op.flops, op.traffic_bytes, op.workspace_bytes, op.effects),
                len(known),
            )
            for op in self.ops
        )

    @cached_property
    def argument_bytes(self) -> int:
        """Device bytes of the arguments and of the arrays closed over."""
        return sum(self.values[v].size_bytes for v in (*self.inputs, *self.constants))

    def axis_size(self, axis: str) -> int:
        """How many devices a mesh axis has; 1 where there is no such axis."""
        return dict(self.mesh).get(axis, 1)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what is computed: ops, shapes, connections; not of names, scopes, lines or donation."""
        digest = hashlib.sha256()
        for line in self._lines():
            digest.update(line.encode())
        return digest.hexdigest()[:16]

    def _lines(self) -> Iterator[str]:
        yield f"{self.inputs}{self.constants}{self.outputs}\n"
        for value in self.values:
            yield f"{value.id}:{value}\n"
        for op in self.ops:
            yield f"{op.primitive}{op.reads}{op.writes}{op.detail}\n"

    def validate(self) -> None:
        """Checks that ids are positions, that every value is written once and before it is read.

        Raises:
          GraphError: All broken rules at once, numbered.
        """
        problems = [
            *(f"values[{i}].id is {v.id}" for i, v in enumerate(self.values) if v.id != i),
            *(f"ops[{i}].id is {op.id}" for i, op in enumerate(self.ops) if op.id != i),
            *(f"donated value {v} is no input" for v in sorted(self.donated - set(self.inputs))),
        ]
        known = set(self.inputs) | set(self.constants)
        for op in self.ops:
            problems += [f"op {op.id} reads {v} before it is written" for v in op.reads if v not in known]
            problems += [f"op {op.id} writes {v} a second time" for v in op.writes if v in known]
            known.update(op.writes)
        problems += [f"output {v} is never written" for v in self.outputs if v not in known]
        problems += [f"value {v.id} has {v.size_bytes} bytes" for v in self.values if v.size_bytes < 0]
        if problems:
            raise GraphError(
                f"Graph.validate: {len(problems)} rules are broken.",
                got="; ".join(f"({i}) {text}" for i, text in enumerate(problems[:20], 1)),
                needed="ids that are positions, one writer a value, no reading ahead",
                advice="report this together with the step, if the graph came from tracing",
                problems=tuple(problems),
            )
