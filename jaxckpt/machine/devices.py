"""The devices that a compiler compiles for are made from a topology, once in a process.

Two calls to the compiler for the same topology give devices that are not equal, and a program whose arguments and
constraints name both does not lower ("incompatible devices ... [0] on platform GPU and ... [0] on platform GPU").
`devices_for` is therefore the only way to them, and it remembers. Read after `topology`.
"""

import functools
import json
import threading

import jax
from jax.experimental import topologies

from jaxckpt import _compat
from jaxckpt._compilers import require_compiler
from jaxckpt._errors import TargetError
from jaxckpt.machine.device_facts import Facts, GpuFacts, TpuFacts
from jaxckpt.machine.topology import GpuTopology, LocalTopology, Topology, TpuTopology

_LOCK = threading.Lock()
_DEVICE_INFO = (
    "threads_per_block_limit", "threads_per_warp", "shared_memory_per_block", "shared_memory_per_core",
    "shared_memory_per_block_optin", "threads_per_core_limit", "core_count", "fpus_per_core", "memory_bandwidth",
    "l2_cache_size", "clock_rate_ghz", "device_memory_size", "registers_per_core_limit", "registers_per_block_limit",
)  # fmt: skip
"""Fields of XLA's `GpuDeviceInfoProto` that a GPU's facts fill, most under the same name."""
_RENAMED = {
    "l2_cache_size": "l2_cache_bytes",
    "clock_rate_ghz": "clock_ghz",
    "device_memory_size": "device_memory_bytes",
}


def devices_for(topology: Topology, facts: Facts, *, called: str) -> tuple[_compat.Device, ...]:
    """The devices of a topology, the very same ones at every call in this process.

    Raises:
      MissingPackageError: The compiler for this platform is not installed.
      VersionMismatchError: It does not fit the installed jax.
      TargetError: The compiler refuses the topology, or this process has fewer devices.
    """
    with _LOCK:
        match topology, facts:
            case LocalTopology(), _:
                return _local_devices(topology, called)
            case GpuTopology(), GpuFacts():
                require_compiler("cuda", target=called)
                make = functools.partial(_gpu_devices, target_config(facts), topology)
            case TpuTopology(), TpuFacts():
                require_compiler("tpu", target=called)
                chip, config = facts.chip_name, facts.chip_config_name
                make = functools.partial(_tpu_devices, chip + topology.suffix, config)
                if topology.device_count == 1:
                    make = functools.partial(_lone_chip, chip, topology, config)
            case _:
                raise AssertionError("a topology is of the platform of its facts")
        try:
            return make()
        except RuntimeError as error:  # which JaxRuntimeError is
            raise _refused(topology, facts, called, error) from error


@functools.cache
def _gpu_devices(config: str, topology: GpuTopology) -> tuple[_compat.Device, ...]:
    layout = f"1x{topology.host_count}x{topology.devices_per_host}"
    return _compat.cuda_topology_devices(config, layout)


@functools.cache
def _tpu_devices(name: str, chip_config_name: str) -> tuple[_compat.Device, ...]:
    topology = topologies.get_topology_desc(name, "tpu", chip_config_name=chip_config_name)
    return tuple(topology.devices)


@functools.cache
def _lone_chip(chip: str, topology: TpuTopology, chip_config_name: str) -> tuple[_compat.Device, ...]:
    """A single chip; the libtpu of jax 0.10.2 knows whole hosts alone, so there it is the first one of a host."""
    try:
        return _tpu_devices(chip + topology.suffix, chip_config_name)
    except RuntimeError:
        return _tpu_devices(chip + topology.of_a_host.suffix, chip_config_name)[:1]


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
        'compile_time_toolkit_version: "12.8.0" dnn_version: "9.10.0" } '
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
