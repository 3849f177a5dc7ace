"""Some ops of a step as a small step of their own.

What the ops read and others make is either `given`, made by ops that stand before all others (one for each loop) and
keep their bytes, or an input, which counts for nothing. What others read of them is returned. Two excerpts of one step
have the same `structure` where their ops do the same in the same order, as the layers of a model do.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from jaxckpt.ir.graph import Graph, Op, Phase
from jaxckpt.ir.kind import Kind

Structure = tuple[tuple[int, ...], ...]
"""For each value its signature, then for each op its signature, what it reads and what it writes, by position."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Subgraph:
    """Some ops of a step.

    Attributes:
      whole: The step.
      ops: Ids of its ops, ascending. In `graph` they follow those that make what is given.
      values: For each value of `graph` its id in the step: those given, inputs, then what the ops write.
      given: How many are given.
      inputs: How many are inputs.
      structure: Equal for excerpts of the same structure.
    """

    whole: Graph
    ops: tuple[int, ...]
    values: tuple[int, ...]
    given: int
    inputs: int
    structure: Structure

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
        """What is given, by the loop that it is made in."""
        whole = self.whole
        givers: dict[int | None, list[int]] = {None: []}
        for i, value in enumerate(self.values[: self.given]):
            made = whole.producer[value]
            givers.setdefault(None if made is None else whole.ops[made].loop, []).append(i)
        return givers

    @cached_property
    def graph(self) -> Graph:
        """The excerpt as a step."""
        whole, position = self.whole, self.position
        made = frozenset(self.values[self.given + self.inputs :])
        inside = frozenset(self.ops)
        returned = frozenset(whole.outputs)
        leaves = (v for v in self.values if v in made and (v in returned or self._is_read_late(v, inside)))
        return Graph(
            values=tuple(replace(whole.values[v], id=i) for i, v in enumerate(self.values)),
            ops=tuple(self._ops()),
            inputs=tuple(range(self.given, self.given + self.inputs)),
            outputs=tuple(position[v] for v in leaves),
            mesh=whole.mesh,
            loops=whole.loops,
        )

    def _ops(self) -> Iterator[Op]:
        for i, (loop, given) in enumerate(self._givers.items()):
            yield Op(
                id=i,
                primitive="given",
                kind=Kind.OPAQUE,
                reads=(),
                writes=tuple(given),
                scope="",
                phase=Phase.FORWARD,
                loop=loop,
            )
        position = self.position
        for op in (self.whole.ops[op] for op in self.ops):
            reads, writes = (tuple(position[v] for v in some) for some in (op.reads, op.writes))
            yield replace(op, id=self.op_position[op.id], reads=reads, writes=writes)

    def _is_read_late(self, value: int, inside: Collection[int]) -> bool:
        """Whether an op of the backward makes a value that somebody outside reads."""
        made = self.whole.producer[value]
        if made is None or self.whole.ops[made].phase is Phase.FORWARD:
            return False
        return any(reader not in inside for reader in self.whole.readers[value])


def induced_subgraph(graph: Graph, ops: Sequence[int], given: Collection[int]) -> Subgraph:
    """Takes some ops of a step.

    Args:
      graph: The step.
      ops: Ids, ascending.
      given: Values that others make and keep; those of them that the ops read are given, other reads are inputs.

    Returns:
      The excerpt.
    """
    taken = [graph.ops[op] for op in ops]
    written = [v for op in taken for v in op.writes]
    inside = frozenset(written)
    outside = list(dict.fromkeys(v for op in taken for v in op.reads if v not in inside))
    kept, inputs = [v for v in outside if v in given], [v for v in outside if v not in given]
    values = (*kept, *inputs, *written)
    position = {v: i for i, v in enumerate(values)}
    like, alike = graph.value_signatures, graph.op_signatures
    loops = (graph.ops[made].loop for made in map(graph.producer.__getitem__, kept) if made is not None)
    structure = (
        (len(kept), len(inputs), *(-1 if loop is None else loop for loop in loops), *(like[v] for v in values)),
        *((alike[op.id], *(position[v] for v in op.reads), -1, *(position[v] for v in op.writes)) for op in taken),
    )
    return Subgraph(
        whole=graph, ops=tuple(ops), values=values, given=len(kept), inputs=len(inputs), structure=structure
    )
