"""`calibrate` measures the attached device within a budget of seconds, the most valuable figures first.

What is not reached keeps the datasheet's figure, and a probe that fails (a dtype that the device lacks, memory that is
taken) is noted and passed over. Nothing of the device is set: clocks and power limits are measured as they are. The
device's name, its driver and the versions of its compilers are asked of jax or read from files.

Read after `rates`.
"""

import datetime
import importlib.metadata
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxckpt._errors import TargetError
from jaxckpt._progress import Progress, silent
from jaxckpt.calibration.kernels import Probe, Speeds, probes
from jaxckpt.calibration.links import can_copy, measured_collectives, measured_copies
from jaxckpt.calibration.rates import derived_rates
from jaxckpt.calibration.timing import Clock, Timing, timed
from jaxckpt.machine import Calibration, Measured, Target

_CHAIN_S = 0.01
"""Seconds of one chain: long compared with the start of a program."""
_PACKAGES = (
    "jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "libtpu", "nvidia-cudnn-cu13", "nvidia-cublas", "flax",
    "optax", "numpy", "scipy",
)  # fmt: skip
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def calibrate(
    *,
    seconds: float = 75.0,
    small: bool | None = None,
    progress: Progress | None = None,
    clock: Clock = time.perf_counter,
) -> Calibration:
    """Measures rates of the attached device: matrix products by type and size, memory, launches, the link to the host.

    The first default device is measured, and all devices together for collectives. No other program should use them.

    Args:
      seconds: No measurement starts after this time; the most important ones come first.
      small: True for a smoke test with tiny sizes, whose figures mean nothing; None means True on CPUs only.
      progress: Called with a sentence before each measurement.
      clock: Returns seconds.

    Returns:
      Rates, and the measurements from which they follow. `save` writes a file; `jaxckpt.Target("attached",
      calibrated=FILE)`, or "attached@FILE" as the name of a target, uses its rates for plans and estimates.

    Raises:
      TargetError: The device does not run an empty program.

    Example:
      >>> made = calibrate(seconds=0.5)
      >>> made.smoke, made.measured[0].what
      (True, 'start')
    """
    device = jax.local_devices()[0]
    small = device.platform == "cpu" if small is None else small
    session = _Session(device=device, small=small, say=progress or silent, clock=clock, seconds=seconds)
    measured = tuple(session.run())
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Calibration(
        device_kind=device.device_kind,
        platform=platform_of(device),
        driver=driver_of(device),
        date=date,
        source=_source(device, date, small=small, left_out=session.left_out, failures=session.failures),
        versions=installed_versions(),
        device_count=jax.local_device_count(),
        seconds=round(clock() - session.begun_s, 1),
        smoke=small,
        measured=measured,
        **derived_rates(measured),
    )


def _source(device: Any, date: str, *, small: bool, left_out: int, failures: list[str]) -> str:
    what = "smoke test with tiny sizes, figures mean nothing" if small else "measured"
    text = f"{what}: {device.device_kind}, jax {jax.__version__}, {date}"
    if left_out:
        text += f"; {left_out} figures left out for time"
    return text + "".join(f"; not measured: {failure}" for failure in failures)


@dataclass(slots=True, kw_only=True)
class _Session:
    """The figures one after the other, until time is up."""

    device: Any
    small: bool
    say: Progress
    clock: Clock
    seconds: float
    failures: list[str] = field(default_factory=list)
    left_out: int = 0
    begun_s: float = 0.0

    def run(self) -> Iterator[Measured]:
        self.begun_s = self.clock()
        time_one = partial(timed, clock=self.clock, budget_s=0.02 if self.small else 0.2)
        speeds = self._speeds()
        floor = self._floor(time_one)
        yield floor.figure("start", "an empty program", floor.median_s, "s")
        links: dict[str, Any] = {"floor_s": floor.median_s, "small": self.small, "time_one": time_one}
        first, *others = probes(speeds, small=self.small)
        yield from self._guarded("launch", lambda: self._probed(first, floor.median_s, time_one))
        jobs: list[tuple[str, Callable[[], Iterator[Measured]]]] = [
            (f"{probe.what}, {probe.detail}", partial(self._probed, probe, floor.median_s, time_one))
            for probe in others
        ]
        if can_copy(self.device):
            jobs.insert(3, ("copies", lambda: measured_copies(self.device, speeds, **links)))
        if jax.local_device_count() > 1:
            jobs.append(("collectives", lambda: measured_collectives(jax.local_devices(), speeds, **links)))
        for name, job in jobs:
            if self.clock() - self.begun_s > self.seconds:
                self.left_out += 1
            else:
                yield from self._guarded(name, job)

    def _guarded(self, name: str, job: Callable[[], Iterator[Measured]]) -> Iterator[Measured]:
        """A job's figures; what it cannot do is noted."""
        self.say(f"measuring {name}")
        try:
            yield from job()
        except Exception as error:  # whatever a backend says of a dtype or of memory; the next job may still do
            self.failures.append(f"{name} ({_first_line(error)})")

    def _speeds(self) -> Speeds:
        try:
            rates = Target("attached").rates
        except TargetError:  # in no fact file
            return Speeds()
        return Speeds(flops_per_s=rates.matmul("bfloat16"), bytes_per_s=rates.memory_bandwidth_bytes_per_s)

    def _floor(self, time_one: Callable[..., Timing]) -> Timing:
        """Seconds to start any program and to wait for it."""
        empty = jax.jit(lambda x: x + 1)
        try:
            x = jax.device_put(jnp.float32(0), self.device)
            return time_one(lambda: jax.block_until_ready(empty(x)), least=20, most=200)
        except Exception as error:  # whatever a backend says
            raise TargetError(
                f"calibrate(): {self.device.device_kind} does not run a program of one addition.",
                got=_first_line(error),
                needed="a device that runs programs",
                advice="free the device's memory, and end other programs that use it",
            ) from error

    def _probed(self, probe: Probe, floor_s: float, time_one: Callable[..., Timing]) -> Iterator[Measured]:
        links = probe.links(_CHAIN_S / 50 if self.small else _CHAIN_S)
        chain, carried = probe.chain(links), jax.device_put(probe.start(), self.device)
        timing = time_one(lambda: jax.block_until_ready(chain(carried)))
        link_s = timing.above(floor_s) / links
        yield timing.figure(probe.what, probe.detail, link_s if probe.unit == "s" else probe.work / link_s, probe.unit)


def _first_line(error: Exception) -> str:
    text = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {text[:120]}"


def platform_of(device: Any) -> str:
    """The compiler's family, as in the fact files: jax calls NVIDIA's devices "gpu"."""
    return "cuda" if device.platform == "gpu" else device.platform


def driver_of(device: Any, *, file: Path = _DRIVER_FILE) -> str:
    """The driver of a device in one line: the kernel module's version where there is one, and that of jax's backend."""
    backend = " ".join(str(device.client.platform_version).split())
    if platform_of(device) == "cuda" and file.exists():
        found = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", file.read_text("utf-8", "replace"))
        if found:
            return f"{found[0]}, {backend}"
    return backend


def installed_versions() -> tuple[tuple[str, str], ...]:
    """Pairs of package and version of what has a part in speed; those that are not installed are left out."""
    found = []
    for package in _PACKAGES:
        try:
            found.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(found)
