"""Facts of a device: figures of its datasheet, figures that its compiler asks for, and measured figures.

One frozen class for each platform. The fields are the keys of the fact files (`fact_files`). Bytes are bytes,
bandwidths are bytes per second, clocks GHz; FLOP/s are dense and count a multiply-add as two. No jax here, and nothing
is computed but what follows from one device's own facts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from jaxckpt._records import NOT_EMPTY, POSITIVE

Count = Annotated[int, POSITIVE]
Rate = Annotated[float, POSITIVE]
NonEmptyText = Annotated[str, NOT_EMPTY]

_TENSOR_UNITS_PER_CORE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """Facts of a device of any platform.

    Attributes:
      description: For people.
      device_memory_bytes: Of a GPU as the driver reports it; of a TPU what the compiler gives one program, a little
        less than the chip's memory; of a processor that of the machine.
      memory_bandwidth: Datasheet, bytes per second; of a processor that of all cores together.
      launch_s: Of one kernel or operation, besides its arithmetic or traffic.
      device_kinds: How jax names such a device when it is attached.
      measured_memory_bandwidth: What kernels of training steps reached, reads and writes together.
      measured_source: Where the measured figures come from; they need one.
    """

    description: NonEmptyText
    device_memory_bytes: Count
    memory_bandwidth: Count
    launch_s: Rate = 1.4e-6  # fitted to 68 training steps on an H200 (docs/measured.md); elsewhere not measured
    device_kinds: tuple[str, ...] = ()
    measured_memory_bandwidth: Rate | None = None
    measured_source: NonEmptyText | None = None

    def problems(self) -> Iterator[str]:
        """Contradictions between the values, a sentence each."""
        figures = (self.measured_memory_bandwidth, getattr(self, "measured_bf16_flops", None))
        if any(figures) and self.measured_source is None:
            yield "measured_source is missing: a measured figure needs its source"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts(DeviceFacts):
    """Facts of a GPU for XLA's CUDA compiler and a cost model; the GPU need not be attached.

    Attributes:
      compute_capability: Such as "9.0a"; the "a" stands for the accelerated features.
      core_count: Streaming multiprocessors.
      fpus_per_core: float32 lanes of one.
      tensor_ops_per_clock: bf16 multiply-adds of one of a core's four tensor units in a clock.
      bf16_flops: Dense matrix rate of the datasheet, where the two tensor keys are not given.
      f64_flops: float64 matrix rate, where it is not that of the float32 lanes.
      host_link_bandwidth: To the host in one direction, where it is not PCIe.
      nvlink_links: Links to other GPUs of the host.
      nvlink_bandwidth: Of one link in one direction.
      network_bandwidth: Of one GPU's share of the network between hosts, in one direction.
      measured_bf16_flops: What a large matrix product reached.

    The other attributes are fields of XLA's `GpuDeviceInfoProto` under their own names.
    """

    platform: ClassVar[str] = "cuda"
    compute_capability: NonEmptyText
    core_count: Count
    fpus_per_core: Count
    clock_ghz: Rate
    l2_cache_bytes: Count
    shared_memory_per_core: Count
    shared_memory_per_block: Count
    shared_memory_per_block_optin: Count
    threads_per_core_limit: Count
    threads_per_block_limit: Count = 1024
    threads_per_warp: Count = 32
    block_dim_limit: tuple[int, ...] = (2147483647, 65535, 65535)
    thread_dim_limit: tuple[int, ...] = (1024, 1024, 64)
    registers_per_core_limit: Count = 65536
    registers_per_block_limit: Count = 65536
    tensor_clock_ghz: Rate | None = None
    tensor_ops_per_clock: Count | None = None
    bf16_flops: Rate | None = None
    f64_flops: Rate | None = None
    pcie_bandwidth: Count | None = None
    host_link_bandwidth: Rate | None = None
    nvlink_links: Count | None = None
    nvlink_bandwidth: Rate | None = None
    network_bandwidth: Rate | None = None
    measured_bf16_flops: Rate | None = None

    @property
    def tensor_flops(self) -> float:
        """The datasheet's dense bf16 FLOP/s, given or made of cores, units and clock."""
        if self.bf16_flops is not None:
            return self.bf16_flops
        units = self.core_count * _TENSOR_UNITS_PER_CORE
        clock_hz = (self.tensor_clock_ghz or 0) * 1e9
        return units * (self.tensor_ops_per_clock or 0) * 2 * clock_hz

    @property
    def host_bandwidth(self) -> float:
        """To the host in one direction, by whatever link there is."""
        return float(self.host_link_bandwidth or self.pcie_bandwidth or 0)

    @property
    def link_bandwidth(self) -> float:
        """From other GPUs of the host in one direction: all links together, or what PCIe has."""
        links = (self.nvlink_links or 0) * (self.nvlink_bandwidth or 0)
        return float(links or self.pcie_bandwidth or 0)

    def problems(self) -> Iterator[str]:
        """Contradictions between the values, a sentence each."""
        yield from DeviceFacts.problems(self)
        major, dot, minor = self.compute_capability.rstrip("a").partition(".")
        if not (dot and major.isdigit() and minor.isdigit()):
            yield f'compute_capability = "{self.compute_capability}" is not like "9.0" or "9.0a"'
        if self.bf16_flops is None and None in (self.tensor_clock_ghz, self.tensor_ops_per_clock):
            yield "the matrix rate is missing: bf16_flops, or tensor_clock_ghz and tensor_ops_per_clock"
        if self.pcie_bandwidth is None and self.host_link_bandwidth is None:
            yield "the way to the host is missing: pcie_bandwidth or host_link_bandwidth"
        for key in ("block_dim_limit", "thread_dim_limit"):
            if len(getattr(self, key)) != 3:
                yield f"{key} needs three numbers: x, y, z"


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuFacts(DeviceFacts):
    """Facts of a TPU chip for a cost model; the compiler knows the chip by name.

    Attributes:
      bf16_flops: Datasheet; float32 products at jax's default precision run at it too.
      int8_flops: Datasheet.
      vector_flops: float32 outside the matrix units.
      host_link_bandwidth: To the host in one direction.
      chip_name: libtpu's name for the chip, such as "v5e".
      default_topology: What the bare name means.
      topologies: Usual ones, for messages; the compiler may take others of the same rank.
      chip_config_name: libtpu's name for the way in which cores make a device.
      measured_bf16_flops: What a large matrix product reached.
    """

    platform: ClassVar[str] = "tpu"
    bf16_flops: Rate
    vector_flops: Rate
    host_link_bandwidth: Rate
    chip_name: NonEmptyText
    default_topology: NonEmptyText
    topologies: tuple[str, ...]
    chip_config_name: NonEmptyText = "default"
    int8_flops: Rate | None = None
    measured_bf16_flops: Rate | None = None

    def problems(self) -> Iterator[str]:
        """Contradictions between the values, a sentence each."""
        yield from DeviceFacts.problems(self)
        for topology in (self.default_topology, *self.topologies):
            if not all(part.isdigit() for part in topology.split("x")):
                yield f'"{topology}" is no topology such as "2x2" or "2x2x1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts(DeviceFacts):
    """Facts of a processor for a cost model.

    Attributes:
      f32_flops: All cores together; float64 runs at half of it, bfloat16 no faster.
      host_link_bandwidth: Of a copy within the memory.
    """

    platform: ClassVar[str] = "cpu"
    f32_flops: Rate
    host_link_bandwidth: Rate


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownDeviceFacts:
    """An attached device that is in no fact file: its memory is known (or 0), its speed is not."""

    description: str
    platform: str
    device_memory_bytes: int
    device_kinds: tuple[str, ...] = ()


Facts = GpuFacts | TpuFacts | CpuFacts | UnknownDeviceFacts
"""Facts of one device."""
