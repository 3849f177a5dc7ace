"""How fast one device works, in FLOP/s and bytes/s that real programs reach, and seconds of arithmetic; no jax.

A cost model asks four things of a device: how fast it multiplies matrices of a dtype, how fast it does anything
else, how fast it reads and writes its memory, and how fast it reaches the host. `Rates` answers them as plain
numbers. They are attainable rates, not those of the datasheet; who derives them from a device's facts says how
(`jaxckpt.machine.rates_from_facts`).

Roofline model: only the work of the arithmetic units is counted here; the traffic of an op depends on what it is fused
with, and `kernels` adds it. A contraction counts its multiply-adds at the matrix rate of its dtype, elementwise work
its instructions at the vector rate. An op whose work nobody knows is counted as unpriced, never as free of traffic.

Source: Williams et al. 2009 (roofline).
"""

from dataclasses import dataclass

from jaxckpt.cost.padding import padded_at_once, padding_bytes
from jaxckpt.ir import Exchange, Graph, Kind, Op

_WIDER = {
    "float16": "bfloat16",
    "tf32": "float32",
    "uint8": "int8",
    "int4": "int8",
    "uint4": "int8",
    "complex64": "float32",
    "complex128": "float64",
}
"""The dtype whose rate a dtype takes that has none of its own."""
_OPERATIONS = {
    "exp": 8, "exp2": 6, "expm1": 12, "log": 10, "log1p": 12, "tanh": 16, "logistic": 14, "erf": 20, "erf_inv": 30,
    "erfc": 20, "sin": 20, "cos": 20, "pow": 20, "div": 6, "rem": 8, "sqrt": 6, "rsqrt": 4, "cbrt": 12,
    "random_bits": 118,
}  # fmt: skip
"""Instructions an element, where one does not do: the usual length of the polynomial. On an H200 memory hides them: the
mean error of seconds is 6.53% with one each, 6.51% with these (`python -m benchmarks.constants`). Random bits are 20
rounds of Threefry, as XLA counts their instructions."""
_THREEFRY = "key<fry>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The attainable speeds of one device.

    Attributes:
      name: Of the device, for reports.
      matmul_flops_per_s: Pairs of dtype name and dense matrix FLOP/s, a multiply-add being two. "float8" stands
        for every float8 format.
      vector_flops_per_s: float32 FLOP/s outside the matrix units.
      memory_bandwidth_bytes_per_s: Device memory, reads and writes together, as kernels of training steps reach it.
      host_bandwidth_bytes_per_s: Between device and host memory, one direction.
      launch_s: Seconds that a kernel takes besides its arithmetic or traffic: its start, and filling the device.
      memory_bytes: What one program can have of the device's memory.
      matmul_ramp_flops: FLOPs that a device could have done while a matrix product fills and drains it: what makes
        small products slower than their size.
      has_product_library: True if the compiler leaves matrix products that wait for no memory to a library, whose
        kernels compute nothing besides (cuBLAS); see `is_library_product`.
      link_bandwidth_bytes_per_s: What one device gets from others, of one mesh axis; 0 where nobody knows: then an
        exchange costs what it moves in device memory.
      network_bandwidth_bytes_per_s: What each device of a host adds to what the host gets from other hosts; 0 where
        nobody knows: then hosts are linked as devices of a host are.
      devices_per_host: How many devices a host has; 0 if all are in one host.
      source: Where measured rates come from; "" where they are derived from a datasheet.

    Example:
      >>> rates = Rates(name="toy", matmul_flops_per_s=(("bfloat16", 8e14), ("float32", 4e14)),
      ...     vector_flops_per_s=5e13, memory_bandwidth_bytes_per_s=4e12, host_bandwidth_bytes_per_s=3e10,
      ...     launch_s=1e-6, memory_bytes=2**37)
      >>> rates.matmul("float16"), rates.matmul("float8_e4m3fn"), rates.matmul("float64")
      (800000000000000.0, 800000000000000.0, 50000000000000.0)
      >>> rates.matmul_s(1.6e12, "bfloat16")
      0.002
    """

    name: str
    matmul_flops_per_s: tuple[tuple[str, float], ...]
    vector_flops_per_s: float
    memory_bandwidth_bytes_per_s: float
    host_bandwidth_bytes_per_s: float
    launch_s: float
    memory_bytes: int
    matmul_ramp_flops: float = 0.0
    has_product_library: bool = False
    link_bandwidth_bytes_per_s: float = 0.0
    network_bandwidth_bytes_per_s: float = 0.0
    devices_per_host: int = 0
    source: str = ""

    def matmul(self, dtype: str) -> float:
        """The FLOP/s of a matrix product whose operands have this dtype: a numpy name such as "bfloat16", or "tf32".

        A dtype without a rate takes that of the next wider one that the device computes it in: float16 as bfloat16,
        float8 as bfloat16 (it is converted first), complex64 as float32 (count four real products). What no matrix unit
        takes runs at `vector_flops_per_s`.
        """
        known = dict(self.matmul_flops_per_s)
        if dtype in known:
            return known[dtype]
        if dtype.startswith("float8"):
            return known.get("float8", self.matmul("bfloat16"))
        if dtype in _WIDER:
            return self.matmul(_WIDER[dtype])
        return self.vector_flops_per_s

    def matmul_s(self, flops: float, dtype: str) -> float:
        """Seconds of a matrix product of so many FLOPs, the time to fill and to drain the device included."""
        return (flops + self.matmul_ramp_flops) / self.matmul(dtype)

    def is_library_product(self, flops: float, dtype: str, traffic_bytes: float) -> bool:
        """True for a matrix product that is a library's kernel: its arithmetic takes longer than its traffic.

        XLA's autotuner times the library against a kernel of its own, which also computes the elementwise ops around
        the product. That spares traffic, which helps a product that waits for memory (docs/measured.md).
        """
        return traffic_bytes < self.bytes_during_product(flops, dtype)

    def bytes_during_product(self, flops: float, dtype: str) -> float:
        """Bytes that memory moves while a library computes a product; 0 on devices without a library."""
        return self.has_product_library * flops / self.matmul(dtype) * self.memory_bandwidth_bytes_per_s

    def exchange_s(self, size_bytes: float, *, in_host: int = 0) -> float:
        """Seconds in which one device gets so many bytes from others, its own memory's traffic included; no launch.

        `in_host` devices of its group are in one host, and others in other hosts; 0 if all are in one. A ring through
        all of them leaves each host once, over the network of these devices together.
        """
        slower = self.link_bandwidth_bytes_per_s or self.memory_bandwidth_bytes_per_s
        network = in_host * self.network_bandwidth_bytes_per_s or slower
        return size_bytes / min(slower, network, self.memory_bandwidth_bytes_per_s)

    def kernel_s(self, traffic_bytes: float, arithmetic_s: float = 0.0) -> float:
        """Seconds of one kernel: its launch, then its traffic or its arithmetic, whichever takes longer."""
        return self.launch_s + max(arithmetic_s, traffic_bytes / self.memory_bandwidth_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArithmeticCosts:
    """Seconds of each op for arithmetic, and for what the device gets from others.

    Attributes:
      vector_s: What the op adds to the kernel that it is fused into.
      matrix_s: What it needs of the matrix units, or, for an op with a body, of whatever its FLOPs run on.
      padding_bytes: What a contraction takes for operands whose lengths its kernels cannot do: they are copied into
        longer arrays.
      padded_at_once: The positions of its operands that are written into longer arrays at once, unless a product that
        is recomputed reads them too.
      gathered_s: What it needs to get parts of operands from other devices.
      summed_s: The same for results.
      unpriced: Primitives of ops whose work nobody knows, once for each such op.
    """

    vector_s: tuple[float, ...]
    matrix_s: tuple[float, ...]
    padding_bytes: tuple[int, ...]
    padded_at_once: tuple[tuple[int, ...], ...]
    gathered_s: tuple[float, ...]
    summed_s: tuple[float, ...]
    unpriced: tuple[str, ...]


def arithmetic_costs(graph: Graph, rates: Rates) -> ArithmeticCosts:
    """The arithmetic and the exchanges of every op of a graph."""
    return ArithmeticCosts(
        vector_s=tuple(_vector_s(graph, op, rates) for op in graph.ops),
        matrix_s=tuple(_matrix_s(graph, op, rates) for op in graph.ops),
        padding_bytes=tuple(padding_bytes(graph, op) for op in graph.ops),
        padded_at_once=tuple(padded_at_once(graph, op) for op in graph.ops),
        gathered_s=tuple(exchange_s(graph, op.gathered, rates) for op in graph.ops),
        summed_s=tuple(exchange_s(graph, op.summed, rates) for op in graph.ops),
        unpriced=tuple(op.primitive for op in graph.ops if op.flops is None),
    )


def exchange_s(graph: Graph, exchange: Exchange, rates: Rates) -> float:
    """Seconds in which a device gets something from others."""
    if not exchange.size_bytes:
        return 0.0
    in_host = graph.devices_in_host(exchange.axes, rates.devices_per_host)
    return rates.exchange_s(exchange.size_bytes, in_host=in_host)


def is_threefry_draw(graph: Graph, op: Op) -> bool:
    """True for random bits that elementwise ops of the compiler make; of other generators no program was looked at."""
    return op.primitive == "random_bits" and graph.values[op.reads[0]].dtype == _THREEFRY


def _vector_s(graph: Graph, op: Op, rates: Rates) -> float:
    if op.kind not in (Kind.ELEMENTWISE, Kind.REDUCTION) and not is_threefry_draw(graph, op):
        return 0.0
    elements = max(map(graph.elements, (*op.reads, *op.writes)), default=0)
    return elements * _OPERATIONS.get(op.primitive, 1) / rates.vector_flops_per_s


def _matrix_s(graph: Graph, op: Op, rates: Rates) -> float:
    if not op.flops or not op.reads:
        return 0.0
    return rates.matmul_s(op.flops, graph.values[op.reads[0]].dtype)
