"""Devices: those that a compiler compiles for, made from a topology once in a process, and those of this process.

Two calls to the compiler for the same topology give devices that are not equal, and a program whose arguments and
constraints name both does not lower ("incompatible devices ... [0] on platform GPU and ... [0] on platform GPU").
`devices_for` is therefore the only way to them, and it remembers.

jax's name of an attached device is matched with the fact files. Looking at attached devices starts jax's backends, as
the first array would. The memory that the device itself reports goes before that of the file.

Read after `topology` and `fact_files`.
"""

import dataclasses
import functools
import json
import os
import threading

import jax
from jax.experimental import topologies

from jaxckpt import _compat
from jaxckpt._compilers import require_compiler
from jaxckpt._errors import TargetError
from jaxckpt.machine.device_facts import CpuFacts, Facts, GpuFacts, TpuFacts, UnknownDeviceFacts
from jaxckpt.machine.fact_files import known_facts
from jaxckpt.machine.topology import GpuTopology, LocalTopology, Topology, TpuTopology

_LOCK = threading.Lock()
_DEVICE_INFO = (
    "threads_per_block_limit", "threads_per_warp", "shared_memory_per_block", "shared_memory_per_core",
    "shared_memory_per_block_optin", "threads_per_core_limit", "core_count", "fpus_per_core", "memory_bandwidth",
    "l2_cache_size", "clock_rate_ghz", "device_memory_size", "registers_per_core_limit", "registers_per_block_limit",
)  # fmt: skip
"""Fields of XLA's `GpuDeviceInfoProto` that a GPU's facts fill, most under the same name."""
_CUDNN = "9.10.0"
"""The version that a GPU which is not attached is taken to have."""
_RENAMED = {
    "l2_cache_size": "l2_cache_bytes",
    "clock_rate_ghz": "clock_ghz",
    "device_memory_size": "device_memory_bytes",
}


def devices_for(topology: Topology, facts: Facts, *, called: str) -> tuple[_compat.Device, ...]:
    """The devices of a topology, the very same ones at every call in this process; errors as of `Target.devices`."""
    with _LOCK:
        if isinstance(topology, LocalTopology):
            return _local_devices(topology, called)
        return _compile_only_devices(topology, facts, called)


@functools.cache  # a planner asks for each argument of each plan, and reading the versions of packages takes 2 ms
def _compile_only_devices(topology: Topology, facts: Facts, called: str) -> tuple[_compat.Device, ...]:
    require_compiler(facts.platform, target=called)
    try:
        match topology, facts:
            case GpuTopology(), GpuFacts():
                return _gpu_devices(target_config(facts), topology)
            case TpuTopology(), TpuFacts():
                return _tpu_devices(topology, facts.chip_name, facts.chip_config_name)
    except RuntimeError as error:  # which JaxRuntimeError is
        raise _refused(topology, facts, called, error) from error
    raise AssertionError("a topology is of the platform of its facts")


@functools.cache
def _gpu_devices(config: str, topology: GpuTopology) -> tuple[_compat.Device, ...]:
    layout = f"1x{topology.host_count}x{topology.devices_per_host}"
    return _compat.cuda_topology_devices(config, layout)


@functools.cache
def _tpu_devices(topology: TpuTopology, chip: str, config: str) -> tuple[_compat.Device, ...]:
    try:
        return tuple(topologies.get_topology_desc(chip + topology.suffix, "tpu", chip_config_name=config).devices)
    except RuntimeError:
        if topology.device_count > 1:
            raise
        # The libtpu of jax 0.10.2 knows full hosts alone, so that there a single chip is the first one of a host.
        return _tpu_devices(topology.of_a_host, chip, config)[:1]


def _local_devices(topology: LocalTopology, called: str) -> tuple[_compat.Device, ...]:
    devices = jax.devices(None if topology.platform == "default" else topology.platform)
    if len(devices) < topology.device_count:
        raise TargetError(
            f'target "{called}" asks for more devices than this process has.',
            got=f"{topology.device_count} devices",
            needed=f"at most {len(devices)}",
            advice=f'jax.config.update("jax_num_cpu_devices", {topology.device_count}) before jax starts',
            target=called,
        )
    return tuple(devices[: topology.device_count])


def autotuner_device_name(facts: GpuFacts) -> str:
    """How XLA's autotuner names the device of `target_config`, in what it keeps of its choices.

    Source: xla/service/gpu/autotuning/autotune_cache_key.cc.
    """
    return (
        f"CUDA: {facts.compute_capability.rstrip('a')}, Cores: {facts.core_count}, GPU clock: {facts.clock_ghz:g} GHz, "
        f"Memory bandwidth: {round(facts.memory_bandwidth / 1e9)} GB/s, L2 cache: {facts.l2_cache_bytes / 2**20:g} MB, "
        f"DNN version: {_CUDNN}"
    )


def target_config(facts: GpuFacts) -> str:
    """Writes a GPU's facts as the text of XLA's `GpuTargetConfigProto`.

    Driver 13.0, CUDA 12.8 and cuDNN 9.10 are assumed: they say which kernels the compiler may count on.

    Source: xla/stream_executor/device_description.proto.
    """
    capability = facts.compute_capability.rstrip("a")
    major, _, minor = capability.partition(".")
    accelerated = facts.compute_capability.endswith("a")
    numbers: dict[str, float] = {name: getattr(facts, _RENAMED.get(name, name)) for name in _DEVICE_INFO}
    for axis, block, thread in zip("xyz", facts.block_dim_limit, facts.thread_dim_limit, strict=True):
        numbers[f"block_dim_limit_{axis}"] = block
        numbers[f"thread_dim_limit_{axis}"] = thread
    device = " ".join(f"{key}: {number}" for key, number in numbers.items())
    name = json.dumps(facts.device_kinds[0] if facts.device_kinds else facts.description)
    return (
        f"gpu_device_info {{ {device} "
        f"cuda_compute_capability {{ major: {major} minor: {minor} "
        f"feature_extension: {'ACCELERATED_FEATURES' if accelerated else 'NONE'} }} "
        f'name: {name} driver_version: "13.0.0" runtime_version: "12.8.0" '
        'compile_time_toolkit_version: "12.8.0" '
        f'dnn_version: "{_CUDNN}" }} '
        'platform_name: "CUDA" dnn_version_info { major: 9 minor: 10 patch: 0 } '
        f"device_description_str: {name}"
    )


def _refused(topology: Topology, facts: Facts, called: str, error: Exception) -> TargetError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    usual = ", ".join(facts.topologies) if isinstance(facts, TpuFacts) else "1, 8, 64x8"
    return TargetError(
        f'target "{called}" is refused by its compiler.',
        got=f'topology "{topology.suffix.removeprefix(":") or 1}": {reason}',
        needed=f"a topology that can be built, such as {usual}",
        advice="one of these, or report what the compiler says",
        target=called,
    )


def attached_topology() -> LocalTopology:
    """All devices of the default backend; starts the backends."""
    return LocalTopology(platform="default", device_count=jax.device_count(), host_count=jax.process_count())


def attached_facts() -> Facts:
    """Facts of the first default device, with the memory that the device itself reports; starts the backends.

    A device that no fact file names has `UnknownDeviceFacts`, without rates.
    """
    device = jax.local_devices()[0]
    for facts in known_facts().values():
        if device.device_kind in facts.device_kinds:
            return dataclasses.replace(facts, device_memory_bytes=_reported_bytes(device) or facts.device_memory_bytes)
    if device.platform == "cpu":
        return _this_processor()
    return UnknownDeviceFacts(
        description=device.device_kind,
        platform="cuda" if device.platform == "gpu" else device.platform,
        device_memory_bytes=_reported_bytes(device) or 0,
        device_kinds=(device.device_kind,),
    )


def _this_processor() -> CpuFacts:
    facts = known_facts()["cpu"]
    assert isinstance(facts, CpuFacts)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return dataclasses.replace(facts, description="this processor", device_memory_bytes=memory_bytes)


def _reported_bytes(device: _compat.Device) -> int | None:
    """Bytes that the device's allocator may give out: the share XLA_PYTHON_CLIENT_MEM_FRACTION of the memory."""
    try:
        statistics = device.memory_stats()
    except RuntimeError:  # plugins without statistics say UNIMPLEMENTED
        return None
    return (statistics or {}).get("bytes_limit")
