"""Attainable rates of a device: the part of the datasheet's rates that programs reach.

Where a fact file carries measured figures they are taken. Elsewhere the datasheet is multiplied by what one H200
reached of its own: kernels of 68 training steps ran at 3.1e12 of 4.8e12 bytes/s, an 8192 x 8192 x 8192 bf16 product
at 7.9e14 of 9.9e14 FLOP/s (docs/measured.md). That the fraction is the same on other devices is an assumption, better
than none: it keeps the balance of computing and memory that decides what to recompute. Links to the host and launches
are taken as given.
"""

from jaxckpt._errors import TargetError
from jaxckpt.cost.rates import Rates
from jaxckpt.machine.device_facts import CpuFacts, Facts, GpuFacts, TpuFacts, UnknownDeviceFacts

MEMORY_EFFICIENCY = 0.65
"""Share of the datasheet's memory bandwidth that kernels of training steps attain, H200. A copy attains 0.9."""

COMPUTE_EFFICIENCY = 0.8
"""Attained share of the datasheet's matrix rate, H200; taken for the vector units too."""

LINK_EFFICIENCY = 0.8
"""Share of the links' datasheet that collectives are taken to attain; not measured."""


def rates_from_facts(name: str, facts: Facts) -> Rates:
    """Attainable rates of a device of these facts; an error for a device that is in no fact file.

    Matrix rates by dtype. GPU: float32 runs in TF32, jax's default precision, at half the bf16 rate; float8 and
    int8 at twice the bf16 rate where the device has them (float8 from compute capability 8.9, int8 from 8.0);
    float64 at the rate of the fact file or of the float32 lanes. TPU: float32 runs in bf16 passes, jax's default
    precision; float8 is converted first; float64 is emulated and gets the vector rate, which flatters it.
    Processor: float64 at half the float32 rate, bfloat16 at the float32 rate.

    Example:
      >>> from jaxckpt.machine.fact_files import known_facts
      >>> rates_from_facts("h200", known_facts()["h200"]).matmul("bfloat16")
      790000000000000.0
    """
    if isinstance(facts, UnknownDeviceFacts):
        raise TargetError(
            f'the speed of target "{name}" is not known: no fact file names its device.',
            got=f'device kind "{facts.description}" on platform "{facts.platform}"',
            needed="a calibration of it, or a fact file whose device_kinds names it",
            advice="jaxckpt calibrate -o mine.toml, and attached@mine.toml as the target; or a fact file like those"
            " of jaxckpt/machine/facts",
            device_kind=facts.description,
        )
    link_bytes_per_s = network_bytes_per_s = 0.0
    match facts:
        case GpuFacts():
            matmul, vector = _gpu_flops_per_s(facts)
            host, link_bytes_per_s = facts.host_bandwidth, facts.link_bandwidth * LINK_EFFICIENCY
            network_bytes_per_s = (facts.network_bandwidth or 0.0) * LINK_EFFICIENCY
        case TpuFacts():
            vector, host = facts.vector_flops * COMPUTE_EFFICIENCY, facts.host_link_bandwidth
            bf16 = facts.measured_bf16_flops or facts.bf16_flops * COMPUTE_EFFICIENCY
            matmul = {"bfloat16": bf16, "float16": bf16, "float32": bf16}
            if facts.int8_flops:
                matmul["int8"] = facts.int8_flops * COMPUTE_EFFICIENCY
        case CpuFacts():
            vector, host = facts.f32_flops * COMPUTE_EFFICIENCY, facts.host_link_bandwidth
            matmul = {"bfloat16": vector, "float16": vector, "float32": vector, "float64": vector / 2}
    bandwidth = facts.measured_memory_bandwidth or facts.memory_bandwidth * MEMORY_EFFICIENCY
    return Rates(
        name=name,
        matmul_flops_per_s=tuple((dtype, float(rate)) for dtype, rate in matmul.items()),
        vector_flops_per_s=vector,
        memory_bandwidth_bytes_per_s=float(bandwidth),
        host_bandwidth_bytes_per_s=float(min(host, bandwidth)),
        launch_s=facts.launch_s,
        has_product_library=isinstance(facts, GpuFacts),
        memory_bytes=facts.device_memory_bytes,
        link_bandwidth_bytes_per_s=link_bytes_per_s,
        network_bandwidth_bytes_per_s=network_bytes_per_s,
    )


def _gpu_flops_per_s(facts: GpuFacts) -> tuple[dict[str, float], float]:
    """Rates of matrix products by dtype, and of the lanes: a fused multiply-add on each in each clock."""
    vector = facts.core_count * facts.fpus_per_core * 2 * facts.clock_ghz * 1e9 * COMPUTE_EFFICIENCY
    bf16 = facts.measured_bf16_flops or facts.tensor_flops * COMPUTE_EFFICIENCY
    f64 = facts.f64_flops * COMPUTE_EFFICIENCY if facts.f64_flops else vector
    capability = tuple(int(part) for part in facts.compute_capability.rstrip("a").split("."))
    rates = {"bfloat16": bf16, "float16": bf16, "float32": bf16 / 2, "float64": f64}
    if capability >= (8, 0):
        rates["int8"] = 2 * bf16
    if capability >= (8, 9):
        rates["float8"] = 2 * bf16
    return rates, vector
