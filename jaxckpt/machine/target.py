"""Targets: machines that a step must fit on, attached or not.

`Target("h200:8")` is a name read once: facts of the device, topology, and from there devices for the compiler,
a mesh of them, rates for a cost model. It is frozen data, equal to any other of the same name and facts; making
one loads no compiler and, but for "attached", looks at no device. Read after `device_facts` and `topology`.
"""

import math
import pathlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import numpy as np

from jaxckpt import _compat
from jaxckpt._compilers import compiler_for, require_compiler
from jaxckpt._errors import TargetError, UnknownTargetError, closest_names
from jaxckpt._units import format_bytes
from jaxckpt.cost.rates import Rates
from jaxckpt.machine.attainable import rates_from_facts
from jaxckpt.machine.calibration_file import Calibration, load_calibration
from jaxckpt.machine.device_facts import Facts, GpuFacts, TpuFacts, UnknownDeviceFacts
from jaxckpt.machine.devices import attached_facts, attached_topology, devices_for
from jaxckpt.machine.fact_files import known_facts, load_facts
from jaxckpt.machine.topology import GpuTopology, Topology, topology_of


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Target:
    """A machine to compile for, attached or not.

    Names: a GPU such as "h200", "h200:8" (one host of 8) or "h200:64x8" (64 hosts of 8); a TPU as jax spells it,
    "v5e:2x2" or "v5p:2x2x1", where the bare "v5e" means one chip; "cpu" or "cpu:8" for this machine's processor;
    "attached" for the devices that this process has by default; or the path of a fact file, "mine.toml" or
    "mine.toml:8". `jaxckpt.targets()` lists them. Every name may be followed by "@" and the file of a calibration:
    "h200@mine.toml".

    Attributes:
      name: In its shortest form: "h200:1" is "h200", "v5e" is "v5e:1x1".
      facts: Of one device.
      topology: The number of hosts and devices, or the shape of a TPU slice.
      calibration: Measured rates that replace those of the datasheet; None for the datasheet.

    Args:
      name: One of the above.
      calibrated: A calibration or its file, as `jaxckpt calibrate` writes it; None for the datasheet.

    Raises:
      UnknownTargetError: No device has this name; the closest names are in the message and in `closest`.
      TargetError: The topology cannot be read, a fact file is wrong, or the calibration is of another device.

    Example:
      >>> Target("h200:64x8").device_count
      512
      >>> Target("h200:1")
      Target('h200')
    """

    name: str
    facts: Facts
    topology: Topology
    calibration: Calibration | None
    _kind: str

    def __init__(self, name: "str | Target", *, calibrated: Calibration | str | pathlib.Path | None = None):
        if isinstance(name, Target):
            self._fill(name._kind, name.facts, name.topology, calibrated or name.calibration)
            return
        if isinstance(name, str) and calibrated is None:
            name, calibrated = _calibration_split(name)
        kind, colon, text = _split(name)
        if kind == "attached" and not colon:
            self._fill(kind, attached_facts(), attached_topology(), calibrated)
            return
        facts = _facts(kind, name)
        self._fill(kind, facts, topology_of(text if colon else None, facts, called=name), calibrated)

    @classmethod
    def from_facts(cls, path: str | pathlib.Path, topology: str | None = None) -> "Target":
        """A target described in a user's fact file; its name is the path of the file.

        Args:
          path: Of the file.
          topology: As after the colon of a name, such as "8" or "2x2".

        Raises:
          UnknownTargetError: There is no such file.
          TargetError: The file or the topology is wrong.
        """
        target = object.__new__(cls)
        facts = load_facts(path)
        called = f"{path}" if topology is None else f"{path}:{topology}"
        target._fill(str(path), facts, topology_of(topology, facts, called=called), None)
        return target

    def _fill(
        self, kind: str, facts: Facts, topology: Topology, calibrated: Calibration | str | pathlib.Path | None
    ) -> None:
        """Sets the fields of a new target, once.

        The constructor takes a name and not the fields, so that it sets the fields of the frozen dataclass itself, in
        the way in which the constructor that `dataclass` generates does.
        """
        name = kind + topology.suffix
        if calibrated is not None and not isinstance(calibrated, Calibration):
            calibrated = load_calibration(calibrated)
        if calibrated is not None:
            _refuse_other_device(name, facts, calibrated)
        for field, value in zip(fields(self), (name, facts, topology, calibrated, kind), strict=True):
            object.__setattr__(self, field.name, value)

    def __repr__(self) -> str:
        return f"Target({self.name!r})"

    def __str__(self) -> str:
        count = f"{self.device_count} x " if self.device_count > 1 else ""
        how = "compile only" if self.compile_only else "in this process"
        memory = format_bytes(self.memory_bytes)
        return f"{self.name}: {count}{self.facts.description}, {memory} each, {how}"

    @property
    def kind(self) -> str:
        """The name of the device without its topology; for "attached", that of the fact file which names it."""
        if not self.attached:
            return self._kind
        for kind, facts in known_facts().items():
            if facts.device_kinds and facts.device_kinds == self.facts.device_kinds:
                return kind
        return self.facts.description

    @property
    def platform(self) -> str:
        """The compiler's family: "cuda", "tpu" or "cpu"; for an attached device of another make, its own."""
        return self.facts.platform

    @property
    def host_count(self) -> int:
        """Number of hosts."""
        return self.topology.host_count

    @property
    def device_count(self) -> int:
        """Number of devices on all hosts together."""
        return self.topology.device_count

    @property
    def memory_bytes(self) -> int:
        """Memory of one device that one program can use, which may be more than is free at present."""
        return self.facts.device_memory_bytes

    @property
    def attached(self) -> bool:
        """True if this is `Target("attached")`, the devices that this process has by default."""
        return self._kind == "attached"

    @property
    def compile_only(self) -> bool:
        """True if the devices exist only for the compiler, so that nothing can run on them."""
        return isinstance(self.facts, GpuFacts | TpuFacts) and not self.attached

    @property
    def rates(self) -> Rates:
        """Attainable rates of one device among its host's: measured if it was calibrated, else from its datasheet.

        Raises:
          TargetError: An attached device is in no fact file, and was not calibrated.
        """
        rates = self._device_rates
        if isinstance(self.topology, GpuTopology) and self.topology.host_count > 1:
            return replace(rates, devices_per_host=self.topology.devices_per_host)
        return rates

    @property
    def _device_rates(self) -> Rates:
        if self.calibration is None:
            return rates_from_facts(self.name, self.facts)
        if isinstance(self.facts, UnknownDeviceFacts):
            measured = self.calibration.as_rates(name=self.name, memory_bytes=self.memory_bytes)
            return measured or rates_from_facts(self.name, self.facts)
        return self.calibration.over(rates_from_facts(self.name, self.facts))

    @property
    def compiler_version(self) -> str:
        """Version of the plugin that compiles for this target, or "" if it is not installed; loads nothing."""
        return compiler_for(self.platform).version or ""

    def require_compiler(self) -> None:
        """Checks that the compiler of this target is installed, without loading it; call this before a step is traced.

        Raises:
          MissingPackageError: The compiler is not installed.
          VersionMismatchError: The compiler does not fit the installed jax.
        """
        if self.compile_only:
            require_compiler(self.platform, target=self.name)

    @property
    def devices(self) -> tuple[_compat.Device, ...]:
        """The devices; every call in this process returns the same objects.

        The first call loads the compiler of the platform, which takes about a second and changes nothing in the running
        jax: no backend is started or registered. (libtpu writes some lines to stderr when it is loaded; only settings
        of the process could prevent that.)

        Raises:
          MissingPackageError: The compiler is not installed.
          VersionMismatchError: The compiler does not fit the installed jax.
          TargetError: The compiler does not support the topology, or this process has fewer devices.
        """
        return devices_for(self.topology, self.facts, called=self.name)

    @property
    def sharding(self) -> jax.sharding.SingleDeviceSharding:
        """All of an array on the first device."""
        return jax.sharding.SingleDeviceSharding(self.devices[0])

    def mesh(
        self,
        shape: Sequence[int],
        axis_names: Sequence[str],
        *,
        axis_types: Sequence[Any] | None = None,
    ) -> jax.sharding.Mesh:
        """Arranges the devices in a mesh, row by row in the order of their numbers.

        Args:
          shape: Devices along each axis; if their product is smaller than the target, the first devices are used.
          axis_names: As many names.
          axis_types: As many `jax.sharding.AxisType`s; all Auto when not given.

        Returns:
          A mesh of devices that compare equal to those of every other mesh of this target.

        Raises:
          TargetError: The target has fewer devices.
        """
        shape = tuple(shape)
        count = math.prod(shape)
        if count > self.device_count or count < 1:
            larger = f', "{self._kind}:{count}"' if isinstance(self.facts, GpuFacts) else ""
            raise TargetError(
                f'target "{self.name}" has too few devices for a mesh of {"x".join(map(str, shape))}.',
                got=f"a mesh of {count} devices",
                needed=f"at most {self.device_count}",
                advice=f"a target of {count} devices{larger}",
                target=self.name,
            )
        types = None if axis_types is None else tuple(axis_types)
        return jax.sharding.Mesh(np.array(self.devices[:count]).reshape(shape), tuple(axis_names), axis_types=types)


def _split(name: str) -> tuple[str, str, str]:
    """Kind and topology; a path may itself hold colons."""
    if not isinstance(name, str):
        raise _unknown(name, str(name))
    if ".toml" in name:
        path, dot_toml, rest = name.rpartition(".toml")
        if rest == "" or rest.startswith(":"):
            return path + dot_toml, rest[:1], rest[1:]
    return name.partition(":")


_CALIBRATED_FILE = re.compile(r"(.*?\.toml(?::[^@/]*)?)@(.+)")


def _calibration_split(name: str) -> tuple[str, str | None]:
    """The name before an "@" and the calibration behind it; a path may itself hold an "@"."""
    if of_file := _CALIBRATED_FILE.fullmatch(name):
        return of_file[1], of_file[2]
    before, at, after = name.partition("@")
    return (before, after) if at and "/" not in before else (name, None)


def _facts(kind: str, name: str) -> Facts:
    if kind.endswith(".toml"):
        return load_facts(kind)
    if kind not in known_facts():
        raise _unknown(name, kind)
    return known_facts()[kind]


def _refuse_other_device(name: str, facts: Facts, calibration: Calibration) -> None:
    """A calibration is of one kind of device; processors all have the same name, and a user's file may give none."""
    kinds = facts.device_kinds
    if calibration.device_kind in kinds if kinds else calibration.platform == facts.platform:
        return
    raise TargetError(
        f'the calibration is not of target "{name}".',
        got=f'measured on "{calibration.device_kind}" ({calibration.platform})',
        needed=" or ".join(f'"{kind}"' for kind in kinds) or f'a device of platform "{facts.platform}"',
        advice=f"jaxckpt calibrate on a {facts.description}, or the target that was measured",
        target=name,
        device_kind=calibration.device_kind,
    )


def _unknown(name: object, kind: str) -> UnknownTargetError:
    names = sorted((*known_facts(), "attached"))
    kind = kind.lower()
    longer = tuple(known for known in names if kind and known.startswith(kind))  # "a100"
    names_none = kind in ("gpu", "cuda", "tpu")  # whose closest name would be that of another device
    closest = longer or (() if names_none else closest_names(kind, names, most=3))
    offered = " or ".join(f'"{known}"' for known in longer or closest[:1])
    return UnknownTargetError(
        f"target {name!r} is not known.",
        got=repr(name),
        needed=f"one of {', '.join(names)}, with a topology if wanted, or the path of a .toml fact file",
        advice=offered or f'"{"v5e" if kind == "tpu" else "h200"}"; jaxckpt.targets() lists all',
        name=name,
        closest=closest,
    )
