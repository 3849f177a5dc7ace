"""Facts of the devices of this process: jax's name of a device is matched with the fact files.

Looking at them starts jax's backends, as the first array would. What the device says of itself (how much memory
a program may have) goes before what the file says.
"""

import dataclasses
import os

import jax

from jaxckpt import _compat
from jaxckpt.machine.device_facts import CpuFacts, Facts, UnknownDeviceFacts
from jaxckpt.machine.fact_files import known_facts
from jaxckpt.machine.topology import LocalTopology


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
