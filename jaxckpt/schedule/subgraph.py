"""Induced subgraphs: some ops of a step as a small step of their own.

A value that the ops read and others write is either `given` or an input. Ops that stand before all others (one for each
loop) write the given values, so that their bytes count; those of inputs do not. A value that others read is returned.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jaxckpt.ir import Graph, Kind, Op, Phase

Structure = tuple[tuple[int, ...], ...]
"""For each value its signature, then for each op its signature, what it reads and what it writes, by position."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subgraph:
    """Some ops of a step.

    Attributes:
      ops: Ids of its ops, ascending. In `graph` they follow those that write the given values.
      values: For each value of `graph` its id in the step: given values, inputs, then what the ops write.
    """

    step: Graph
    ops: tuple[int, ...]
    values: tuple[int, ...]
    given: int
    inputs: int

    @cached_property
    def structure(self) -> Structure:
        """Equal for subgraphs whose ops do the same in the same order, as the layers of a model do."""
        step, position = self.step, self.position
        like, alike = step.value_signatures, step.op_signatures
        loops = (step.loop_of[v] for v in self.values[: self.given] if step.producer[v] is not None)
        numbers = (-1 if loop is None else loop for loop in loops)
        header = (self.given, self.inputs, *numbers, *(like[v] for v in self.values))
        ops = (step.ops[op] for op in self.ops)
        lines = ((alike[op.id], *(position[v] for v in op.reads), -1, *(position[v] for v in op.writes)) for op in ops)
        return (header, *lines)

    @cached_property
    def position(self) -> dict[int, int]:
        """For each value of the step that is in here its id here."""
        return {value: i for i, value in enumerate(self.values)}

    @cached_property
    def op_position(self) -> dict[int, int]:
        """For each op of the step that is in here its id here."""
        return {op: i for i, op in enumerate(self.ops, self.first)}

    @property
    def first(self) -> int:
        """The id in here of the first of its ops."""
        return len(self._givers)

    @cached_property
    def _givers(self) -> dict[int | None, list[int]]:
        """Positions of given values, by the loop that writes them."""
        step = self.step
        givers: dict[int | None, list[int]] = {None: []}
        for i, value in enumerate(self.values[: self.given]):
            givers.setdefault(step.loop_of[value], []).append(i)
        return givers

    @cached_property
    def graph(self) -> Graph:
        """The subgraph as a step."""
        step, position = self.step, self.position
        written = frozenset(self.values[self.given + self.inputs :])
        results = frozenset(step.outputs)
        returned = (v for v in self.values if v in written and (v in results or self._is_read_outside(v)))
        return Graph(
            values=tuple(replace(step.values[v], id=i) for i, v in enumerate(self.values)),
            ops=tuple(self._ops()),
            inputs=tuple(range(self.given, self.given + self.inputs)),
            outputs=tuple(position[v] for v in returned),
            mesh=step.mesh,
            loops=step.loops,
        )

    def _ops(self) -> Iterator[Op]:
        giver = Op(id=0, primitive="given", kind=Kind.OPAQUE, reads=(), writes=(), scope="", phase=Phase.FORWARD)
        for i, (loop, given) in enumerate(self._givers.items()):
            yield replace(giver, id=i, writes=tuple(given), loop=loop)
        position = self.position
        for op in (self.step.ops[op] for op in self.ops):
            reads, writes = (tuple(position[v] for v in some) for some in (op.reads, op.writes))
            yield replace(op, id=self.op_position[op.id], reads=reads, writes=writes)

    def _is_read_outside(self, value: int) -> bool:
        """True if an op of the backward or the update writes a value, and an op outside reads it."""
        producer = self.step.producer[value]
        if producer is None or self.step.ops[producer].phase is Phase.FORWARD:
            return False
        return any(reader not in self.op_position for reader in self.step.readers[value])


def induced_subgraph(graph: Graph, ops: Sequence[int], given: Collection[int]) -> Subgraph:
    """The subgraph of some ops, by ascending id; reads that others write are given, or else inputs."""
    taken = [graph.ops[op] for op in ops]
    written = [v for op in taken for v in op.writes]
    inside = frozenset(written)
    read = dict.fromkeys(v for op in taken for v in op.reads if v not in inside)
    outside = sorted(read, key=lambda v: v not in given)
    kept = sum(v in given for v in outside)
    return Subgraph(step=graph, ops=tuple(ops), values=(*outside, *written), given=kept, inputs=len(outside) - kept)
