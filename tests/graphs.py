"""Graphs made by hand and at random, for tests of the rooms that know nothing of jax."""

import dataclasses
from math import prod

from hypothesis import strategies as st

from jaxckpt.cost import Rates
from jaxckpt.ir import Graph, Kind, Op, Phase, Value, kind_of

RATES = Rates(
    name="toy",
    matmul_flops_per_s=(("float32", 1e12),),
    vector_flops_per_s=1e11,
    memory_bandwidth_bytes_per_s=1e11,
    host_bandwidth_bytes_per_s=1e9,
    launch_s=1e-6,
    memory_bytes=2**34,
)


class Builder:
    """Builds a graph op by op; a value is named by what `op` returns."""

    def __init__(self):
        self.values: list[Value] = []
        self.ops: list[Op] = []
        self.inputs: list[int] = []

    def value(self, size_bytes: int) -> int:
        self.values.append(Value(id=len(self.values), shape=(size_bytes // 4,), dtype="float32", size_bytes=size_bytes))
        return len(self.values) - 1

    def input(self, size_bytes: int) -> int:
        self.inputs.append(self.value(size_bytes))
        return self.inputs[-1]

    def op(self, primitive: str, *reads: int, size_bytes: int, phase=Phase.FORWARD, **facts) -> int:
        written = self.value(size_bytes)
        self.ops.append(
            Op(
                id=len(self.ops),
                primitive=primitive,
                kind=facts.pop("kind", kind_of(primitive)),
                reads=reads,
                writes=(written,),
                scope=facts.pop("scope", ""),
                phase=phase,
                **facts,
            )
        )
        return written

    def shaped(self, primitive: str, *reads: int, shape: tuple[int, ...], **facts) -> int:
        """An op whose result has a shape of float32."""
        written = self.op(primitive, *reads, size_bytes=4 * prod(shape), **facts)
        self.values[written] = dataclasses.replace(self.values[written], shape=shape)
        return written

    def graph(self, *outputs: int, donated=()) -> Graph:
        built = Graph(
            values=tuple(self.values),
            ops=tuple(self.ops),
            inputs=tuple(self.inputs),
            outputs=outputs,
            donated=frozenset(donated),
        )
        built.validate()
        return built


def chain(length: int, *, size_bytes: int = 4000, flops: float = 1e6) -> Graph:
    """`length` products, each reading the one before; then their gradients, each reading product and cotangent."""
    build = Builder()
    x = build.input(size_bytes)
    forward = [x]
    for _ in range(length):
        forward.append(build.op("dot_general", forward[-1], size_bytes=size_bytes, flops=flops))
    cotangent = build.op("dot_general", forward[-1], size_bytes=size_bytes, phase=Phase.BACKWARD, flops=flops)
    for made in reversed(forward[1:-1]):
        cotangent = build.op("dot_general", made, cotangent, size_bytes=size_bytes, phase=Phase.BACKWARD, flops=flops)
    return build.graph(cotangent)


@st.composite
def graphs(draw: st.DrawFn, *, most_ops: int = 12) -> Graph:
    """A random forward pass and a backward that walks it in reverse, each op reading what it likes."""
    build = Builder()
    forward = [build.input(draw(_sizes)) for _ in range(draw(st.integers(1, 2)))]
    inputs = len(forward)
    for _ in range(draw(st.integers(2, most_ops))):
        primitive = draw(st.sampled_from(["dot_general", "add", "exp", "reduce_sum", "sort", "broadcast_in_dim"]))
        reads = draw(st.lists(st.sampled_from(forward), min_size=1, max_size=2))
        effects = ("io",) if draw(st.integers(0, 19)) == 0 else ()
        forward.append(
            build.op(
                primitive,
                *reads,
                size_bytes=draw(_sizes),
                flops=draw(st.sampled_from([0.0, 1e6, 1e8])),
                effects=effects,
            )
        )
    cotangent = build.op("dot_general", forward[-1], size_bytes=draw(_sizes), phase=Phase.BACKWARD)
    for made in reversed(forward[inputs:]):
        if draw(st.booleans()):
            primitive = draw(st.sampled_from(["dot_general", "mul", "reduce_sum"]))
            cotangent = build.op(primitive, made, cotangent, size_bytes=draw(_sizes), phase=Phase.BACKWARD)
    update = build.op("add", forward[0], cotangent, size_bytes=4000, phase=Phase.UPDATE)
    return build.graph(update, *draw(st.lists(st.sampled_from(forward[inputs:]), max_size=1)))


_sizes = st.sampled_from([4, 400, 4000, 8000, 20000])


def without_fusion(graph: Graph) -> Graph:
    """The same graph with every op opaque, so that every value is in memory."""
    ops = tuple(dataclasses.replace(op, kind=Kind.OPAQUE) for op in graph.ops)
    return dataclasses.replace(graph, ops=ops)
