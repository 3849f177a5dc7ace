"""Gradients and weights that pass barriers though no clone reads them.

Gradients pass the barriers of stages, so that compilers do not postpone their ops to the end of the backward. A bias
that all layers read, or an encoder's output that every decoder layer reads, has a gradient to which each of these
layers adds. A compiler may postpone all of these additions to the end, and then all addends live until the end. So it
may those of a second chain of cotangents, that of the tangents in a Hessian-vector product: six residual layers took
101 MiB by a plan that takes 69. The product that gives a weight's gradient may be postponed in the same way: two
activations live longer for a small result.

Gradients in bodies of loops pass barriers of their own. In the body of a loop no stage begins, and XLA's latency-hiding
scheduler orders the body once a slice of a stacked residual is copied asynchronously (`openxla/xla#44359`; in jax 0.12,
not in 0.10). It runs the products that give gradients of weights at the end of the iteration. There such a product and
the cotangent that it reads pass a barrier of their own, so that the rest of the backward comes after it: a plan for a
neural differential equation that is integrated by 8 steps of Runge-Kutta took 301 MiB, and takes 205 (189 predicted for
both).

Weights pass the barriers of stages if both passes read them and the update replaces them: donated arguments of which
XLA makes copies. The backward's product with a weight and the weight's update in place wait for the same cotangent and
not for each other, so XLA copies the weight. It makes the copy where the step begins, and the copy lives until that
product. Where the product reads the weight behind a barrier, the copy begins at the barrier: 20 residual MLPs took 768
MiB at the least, and take 712 (708 predicted).

Read after `jaxckpt.ir`.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain

from jaxckpt.ir import Graph, Kind, Op, Phase, stage_at
from jaxckpt.ir.regions import CARRY, LOOP_BOUNDARIES

_SMALL, _SMALL_ON_MESH = 1 / 64, 1.0
"""A gradient of at most this share of the arrays that it is computed from passes barriers.

1/64: it is written and read again by its update for next to nothing, about 3% of the traffic of its product, which may
hand it on in registers without a barrier. On one device larger shares only take time: 0.6% of a step of residual MLPs
at 1/16.

On several devices XLA's latency-hiding scheduler postpones products of gradients to the end of the backward, to run
them beside collectives, and what they read is in memory until then: a tensor-parallel transformer took 926 MiB with
`jax.checkpoint` on each block, and takes 548 with all of these gradients behind barriers (`benchmarks.meshes`)."""
_SMALL_IN_BODY = 1 / 8
"""A gradient in the body of a loop of at most this share of the arrays of its product passes a barrier.

With 1/4, a scanned decoder takes 2% more time and as many bytes."""
_WORTH_IN_BODY = 1 / 8
"""The products of a body are worth a barrier if they read this share of what the step takes in any case.

A scanned GPT-2, whose logits take far more (share 0.04), takes as many bytes with the barriers and 0.6% more time. Of
the steps that take fewer bytes with them the least share is 0.29."""


class GradAccumulators:
    """Values that the backward computes, outside of loops, only to add them to others, or to add them last of all.

    The same for all plans of a graph: ask for them with `Graph.once`.

    Attributes:
      passing: These values, and gradients that `finished_at` has.
      summed: Those of these gradients that are summed over devices.
    """

    def __init__(self, graph: Graph):
        self._products = tuple(accumulate(op.kind is Kind.CONTRACTION for op in graph.ops))
        """For each op the number of matrix products up to it."""
        written = [v for op in graph.ops if _computes_addends(op) for v in op.writes]
        readers = ((v, graph.readers[v]) for v in written)
        self._producer = graph.producer
        self._finished: dict[bool, list[list[int]]] = {True: [], False: []}
        """Small gradients with their views, by whether they are summed over devices; ascending by their ops."""
        for views in filter(None, (_small_gradient(graph, v) for v in written)):
            self._finished[bool(graph.ops[self._written_by(views[0])].exchange_bytes)].append(views)
        # What gathers and casts make of a smaller value is made anew behind a barrier that passes that one.
        added = ((v, read) for v, read in readers if read and _adds(graph.ops[read[-1]]))
        self._added = {v: read[-1] for v, read in added if len(read) == 1 or v not in graph.widenings}
        """For each of these values, in the order in which they are written, the op that adds it, its last reader."""
        self._order = tuple(self._added)
        self._last_added = tuple(accumulate((self._products[by] for by in self._added.values()), max))
        """For each value of `_order` the number of matrix products before the latest addition of a value so far."""
        self.summed = frozenset(chain.from_iterable(self._finished[True]))
        self.passing = self.summed.union(chain.from_iterable(self._finished[False]), self._added)

    def live_at(self, op: int) -> list[int]:
        """Values computed before an op that are added only behind the next matrix product after it."""
        products, order, live = self._products, self._order, list[int]()
        at = bisect_left(order, op, key=self._written_by)
        while at and products[op] < self._last_added[at - 1]:
            at -= 1
            if products[op] < products[self._added[order[at]]]:
                live.append(order[at])
        return live[::-1]

    def finished_at(self, reader: int, *, last: int, before_last: int) -> list[int]:
        """Small gradients of weights that pass a barrier: all before the barrier that passed no earlier one.

        Those that are summed over devices pass one barrier later, so that the sum can run beside what is in between.

        A gradient is transposed where it is computed, and only the transposed array is read later: the last view that
        is written before the barrier is given. XLA drops operands of a barrier that nobody reads behind it.

        Args:
          reader: The op whose operands are recomputed behind the barrier.
          last: The reader of the previous barrier, 0 if there was none.
          before_last: The reader of the barrier before the previous one.
        """
        found = [*self._computed(before_last, last, summed=True), *self._computed(last, reader, summed=False)]
        return [[v for v in views if self._written_by(v) < reader][-1] for views in found]

    def _computed(self, first: int, end: int, *, summed: bool) -> list[list[int]]:
        by_op = self._finished[summed]
        begin, stop = (bisect_left(by_op, op, key=lambda views: self._written_by(views[0])) for op in (first, end))
        return by_op[begin:stop]

    def _written_by(self, value: int) -> int:
        return self._producer[value] or 0


class BodyGradients:
    """Small gradients of weights that the backward computes in the bodies of loops, on one device.

    On several devices the product runs beside the sum of the next cotangent over devices.

    The same for all plans of a graph: ask for them with `Graph.once`.

    Attributes:
      by_product: For each matrix product that gives such a gradient, the gradient and the cotangent that it reads.
      values: All of these.
    """

    def __init__(self, graph: Graph):
        self.by_product: dict[int, tuple[int, int]] = {}
        bodies = defaultdict[int, list[Op]](list)
        for op in graph.ops:
            if op.phase is Phase.BACKWARD and op.loop is not None and graph.loops[op.loop].rolled and not graph.mesh:
                bodies[op.loop].append(op)
        most_bytes = _most_bytes(graph) if bodies else 0
        for loop, ops in bodies.items():
            found = _gradients_in_body(graph, ops)
            read = {v for op in found for v in graph.ops[op].reads}
            needed_bytes = max(most_bytes, graph.loops[loop].length * graph.size_bytes(_carries(ops)))
            if graph.size_bytes(read) >= _WORTH_IN_BODY * needed_bytes:
                self.by_product.update(found)
        self.values = frozenset(chain.from_iterable(self.by_product.values()))


def _gradients_in_body(graph: Graph, ops: Sequence[Op]) -> dict[int, tuple[int, int]]:
    """By the products of one body its small gradients and their cotangents."""
    leads_on: set[int] = set()
    """Values that products of the body are computed of."""
    for op in reversed(ops):
        if op.kind is Kind.CONTRACTION or not leads_on.isdisjoint(op.writes):
            leads_on.update(op.reads)
    found: dict[int, tuple[int, int]] = {}
    multiplied: set[int] = set()
    """Values that are computed of products of the body."""
    carries = set(_carries(ops))
    for op in ops:
        if op.kind is Kind.CONTRACTION or not multiplied.isdisjoint(op.reads):
            multiplied.update(op.writes)
        if op.kind is Kind.CONTRACTION and leads_on.isdisjoint(op.writes):
            # What elementwise ops make of carries may be part of the product's kernel.
            cotangents = [v for v in op.reads if v in carries or v in multiplied]
            is_small = graph.size_bytes(op.writes) <= _SMALL_IN_BODY * graph.size_bytes(op.reads)
            if is_small and len(cotangents) == 1 and _is_multiplied_after(graph, cotangents[0], op):
                found[op.id] = op.writes[0], cotangents[0]
    return found


def _carries(ops: Iterable[Op]) -> list[int]:
    return [v for op in ops if op.primitive == CARRY for v in op.writes]


def _most_bytes(graph: Graph) -> int:
    """The most bytes that one op reads and writes, but for those around loops."""
    ops = (op for op in graph.ops if op.primitive not in LOOP_BOUNDARIES)
    return max((graph.size_bytes({*op.reads, *op.writes}) for op in ops), default=0)


def _is_multiplied_after(graph: Graph, value: int, op: Op) -> bool:
    return any(graph.ops[reader].kind is Kind.CONTRACTION for reader in graph.readers[value] if reader > op.id)


def _small_gradient(graph: Graph, value: int) -> list[int]:
    """A value with its views and casts, if it is a small gradient of a weight; else nothing.

    Such a value is a product, or a sum whose last term is one, that is small against the operands of the product, and
    of the ops of the backward only views and casts read it. A gradient of a gradient gives a weight two products, which
    are added.
    """
    product = _last_product(graph, value)
    if product is None:
        return []
    share = _SMALL_ON_MESH if graph.mesh else _SMALL
    if graph.values[value].size_bytes > share * graph.size_bytes(product.reads):
        return []
    views = [value]
    for shown in views:
        for reader in map(graph.ops.__getitem__, graph.readers[shown]):
            if reader.phase is Phase.BACKWARD:
                if not _rearranges(reader):
                    return []
                views.extend(reader.writes)
    return views


def _last_product(graph: Graph, value: int) -> Op | None:
    """The last matrix product of those that a value is the sum of, or is by itself; None if it is neither."""
    number = graph.producer[value]
    if number is not None and _adds(graph.ops[number]):
        number = max((by for v in graph.ops[number].reads if (by := graph.producer[v]) is not None), default=None)
    while number is not None and _rearranges(graph.ops[number]) and graph.ops[number].reads:
        number = graph.producer[graph.ops[number].reads[0]]
    return graph.ops[number] if number is not None and graph.ops[number].kind is Kind.CONTRACTION else None


def _rearranges(op: Op) -> bool:
    return op.kind is Kind.VIEW or op.primitive == "convert_element_type"


def _computes_addends(op: Op) -> bool:
    """True for ops of the backward, outside of loops, but views and casts, which fuse into the addition."""
    return op.phase is Phase.BACKWARD and op.loop is None and not _rearranges(op)


def _adds(op: Op) -> bool:
    return op.phase is Phase.BACKWARD and op.loop is None and op.primitive == "add_any"


def weights_of_stages(graph: Graph, stages: Sequence[int]) -> dict[int, list[int]]:
    """For each stage, by its index, the donated arguments that the forward pass reads in no other stage.

    Only those that backward and update read too, and no op of a loop. `stages` has the first op of each stage.
    """
    found: dict[int, list[int]] = {}
    for weight in sorted(graph.donated):
        readers = [graph.ops[reader] for reader in graph.readers[weight]]
        forward = [op.id for op in readers if op.phase is Phase.FORWARD]
        phases = {op.phase for op in readers}
        if any(op.loop is not None for op in readers) or phases != {Phase.FORWARD, Phase.BACKWARD, Phase.UPDATE}:
            continue
        stage = stage_at(stages, forward[0])
        if stage == stage_at(stages, forward[-1]):
            found.setdefault(stage, []).append(weight)
    return found
