"""A topology is how many devices of one kind stand where: what comes after the colon in "h200:8" or "v5e:2x2".

Plain data and its reader. Nothing is asked of a compiler here, so a topology that can be written may still be
refused when its devices are made (`devices`, read next).
"""

import math
import re
from dataclasses import dataclass

from jaxckpt._errors import TargetError
from jaxckpt.machine.device_facts import Facts, GpuFacts, TpuFacts

_CHIPS_PER_HOST = (2, 2, 1)  # libtpu's default chips_per_host_bounds for every kind here


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTopology:
    """Hosts with as many GPUs each; the GPUs of a host are linked to one another."""

    host_count: int
    devices_per_host: int

    @property
    def device_count(self) -> int:
        """All devices of all hosts."""
        return self.host_count * self.devices_per_host

    @property
    def suffix(self) -> str:
        """The shortest way to write it after the name of the device: "", ":8" or ":64x8"."""
        if self.host_count > 1:
            return f":{self.host_count}x{self.devices_per_host}"
        return f":{self.devices_per_host}" if self.devices_per_host > 1 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuTopology:
    """Chips in a grid or torus, so many along each axis; a chip is one device."""

    shape: tuple[int, ...]

    @property
    def device_count(self) -> int:
        """All chips."""
        return math.prod(self.shape)

    @property
    def of_a_host(self) -> "TpuTopology":
        """All chips of one host, along as many axes."""
        return TpuTopology(shape=_CHIPS_PER_HOST[: len(self.shape)])

    @property
    def host_count(self) -> int:
        """Hosts of at most 2 x 2 chips, libtpu's default."""
        return math.prod(-(-chips // per_host) for chips, per_host in zip(self.shape, _CHIPS_PER_HOST, strict=False))

    @property
    def suffix(self) -> str:
        """How jax writes it after the name of the device, such as ":2x2"."""
        return ":" + "x".join(map(str, self.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTopology:
    """The first devices that this process really has; the platform is "cpu", or "default" for whatever jax chooses."""

    platform: str
    device_count: int
    host_count: int = 1

    @property
    def suffix(self) -> str:
        """For eight devices of the processor ":8", else nothing."""
        return f":{self.device_count}" if self.platform == "cpu" and self.device_count > 1 else ""


Topology = GpuTopology | TpuTopology | LocalTopology
"""Where the devices of a target stand."""


def topology_of(text: str | None, facts: Facts, *, called: str) -> Topology:
    """Reads the topology behind the colon of a target's name; None means the smallest topology.

    Of a GPU "8" (one host) or "64x8" (hosts x devices of each), of a TPU chips along each axis, such as "2x2" or
    "2x2x1", of a processor a number of devices. Only the form is checked. Which shapes can be built is the compiler's
    to say.

    Example:
      >>> from jaxckpt.machine.fact_files import known_facts
      >>> topology_of("64x8", known_facts()["h200"], called="h200:64x8").device_count
      512
    """
    axes, default, example = 1, "1", "8"
    needed = 'a number of devices such as ":8"'
    if isinstance(facts, GpuFacts):
        needed += ' (one host), or hosts x devices of each such as ":64x8"'
        axes = 2 if text is not None and "x" in text else 1
    elif isinstance(facts, TpuFacts):
        axes, default = facts.default_topology.count("x") + 1, facts.default_topology
        example = (default, *facts.topologies)[:3][-1]
        needed = f"chips along {axes} axes, such as {', '.join(facts.topologies)}"
    match = re.fullmatch("x".join(["[1-9][0-9]*"] * axes), default if text is None else text)
    if match is None:
        raise TargetError(
            f'target "{called}" has no such topology.',
            got=f'"{text}"',
            needed=needed,
            advice=f'"{called.partition(":")[0]}:{example}"',
            target=called,
            topology=text,
        )
    shape = tuple(map(int, match[0].split("x")))
    if isinstance(facts, GpuFacts):
        return GpuTopology(host_count=shape[0] if axes > 1 else 1, devices_per_host=shape[-1])
    if isinstance(facts, TpuFacts):
        return TpuTopology(shape=shape)
    return LocalTopology(platform="cpu", device_count=shape[0])
