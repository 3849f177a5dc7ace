"""A calibration is what was measured of one attached device, kept in a small TOML file, in the place of its datasheet.

It holds rates, the figures that they were made of, and on what they were measured: device, driver, versions, date. It
says nothing of memory sizes or of what the compiler asks of a device; those stay with the device's facts. Who measures
it is `jaxckpt.calibration`; here it is data, read and written. No jax. Read after `attainable`.
"""

import functools
import importlib.resources
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from jaxckpt._errors import TargetError
from jaxckpt._files import write_whole
from jaxckpt.cost.rates import Rates
from jaxckpt.machine.toml_table import refusal, table_of, text_of

FORM = "jaxckpt calibration 1"
"""The first key of every file."""

_SPEEDS = ("vector_flops_per_s", "memory_bandwidth_bytes_per_s", "host_bandwidth_bytes_per_s", "launch_s")
_PAIRS = ("matmul_flops_per_s", "factors", "versions")
_TEXTS = ("device_kind", "platform", "driver", "date", "source")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One figure, as it came out.

    Attributes:
      what: What was timed: "matmul", "copy to host".
      detail: Of which type and size: "bfloat16 8192 x 8192 x 8192".
      value: The median.
      unit: "FLOP/s", "bytes/s", "s", or "share" of what could be.
      spread: Between the quarters, as a share of the median.
      count: How many timings.
    """

    what: str
    detail: str
    value: float
    unit: str
    spread: float = 0.0
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The measured speeds of one device.

    Attributes:
      device_kind: As jax names it.
      platform: "cuda", "tpu", "cpu".
      driver: What the backend says of itself.
      date: When it was measured.
      source: The same in a sentence; rates carry it.
      versions: Pairs of package and version.
      device_count: Devices that took part.
      seconds: What the measurement took.
      smoke: Whether it was made with tiny sizes only to see that it runs: its figures mean nothing.
      matmul_flops_per_s: Pairs of dtype and rate, as in `jaxckpt.cost.Rates`; dtypes that are not here keep theirs.
      matmul_ramp_flops: As in `Rates`.
      vector_flops_per_s: As in `Rates`; None where it was not measured, then the datasheet's stands.
      memory_bandwidth_bytes_per_s: The same.
      host_bandwidth_bytes_per_s: The same.
      launch_s: The same.
      factors: As in `Rates`.
      measured: The figures behind the rates.

    Example:
      >>> made = Calibration(device_kind="NVIDIA H200", platform="cuda", driver="580", date="2026-11-21",
      ...     source="one H200", launch_s=2e-6, matmul_flops_per_s=(("bfloat16", 7e14),))
      >>> calibration_from_toml(toml_from_calibration(made), source="h200.toml") == made
      True
    """

    device_kind: str
    platform: str
    driver: str
    date: str
    source: str
    versions: tuple[tuple[str, str], ...] = ()
    device_count: int = 1
    seconds: float = 0.0
    smoke: bool = False
    matmul_flops_per_s: tuple[tuple[str, float], ...] = ()
    matmul_ramp_flops: float = 0.0
    vector_flops_per_s: float | None = None
    memory_bandwidth_bytes_per_s: float | None = None
    host_bandwidth_bytes_per_s: float | None = None
    launch_s: float | None = None
    factors: tuple[tuple[str, float], ...] = ()
    measured: tuple[Measured, ...] = ()

    def over(self, rates: Rates) -> Rates:
        """Rates with what was measured in their place.

        float16 takes the rate of bfloat16 where only that was measured, and float8 and int8 are scaled with it.

        Args:
          rates: Derived from the device's facts.

        Returns:
          Rates whose `source` is this calibration's.
        """
        speeds = {name: getattr(self, name) for name in _SPEEDS if getattr(self, name) is not None}
        return replace(
            rates,
            matmul_flops_per_s=tuple(_matmul(dict(rates.matmul_flops_per_s), dict(self.matmul_flops_per_s)).items()),
            matmul_ramp_flops=self.matmul_ramp_flops,
            factors=self.factors,
            source=self.source,
            **speeds,
        )

    def alone(self, *, name: str, memory_bytes: int) -> Rates | None:
        """The rates of a device that is in no fact file; None where too little was measured to do without."""
        speeds = {each: getattr(self, each) for each in _SPEEDS}
        if None in speeds.values() or not self.matmul_flops_per_s:
            return None
        empty = Rates(name=name, matmul_flops_per_s=self.matmul_flops_per_s, memory_bytes=memory_bytes, **speeds)
        return self.over(empty)

    def save(self, path: str | pathlib.Path) -> None:
        """Writes it as TOML; see `load_calibration`."""
        write_whole(pathlib.Path(path), toml_from_calibration(self).encode())


def _matmul(derived: dict[str, float], measured: dict[str, float]) -> dict[str, float]:
    if "bfloat16" in measured:
        measured = {"float16": measured["bfloat16"], **measured}
        scale = measured["bfloat16"] / derived.get("bfloat16", measured["bfloat16"])
        derived |= {dtype: rate * scale for dtype, rate in derived.items() if dtype in ("int8", "float8")}
    return derived | measured


def toml_from_calibration(calibration: Calibration) -> str:
    """The text of a calibration's file."""
    lines = [f"form = {_written(FORM)}"]
    for field in fields(Calibration):
        value = getattr(calibration, field.name)
        if value is None or value == () or field.name == "measured":
            continue
        lines.append(f"{field.name} = {_written(dict(value) if field.name in _PAIRS else value)}")
    for each in calibration.measured:
        lines.append("\n[[measured]]")
        lines.extend(f"{field.name} = {_written(getattr(each, field.name))}" for field in fields(Measured))
    return "\n".join([*lines, ""])


def _written(value: Any) -> str:
    match value:
        case dict():
            return "{ " + ", ".join(f"{_written(key)} = {_written(each)}" for key, each in value.items()) + " }"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # JSON leaves DEL, TOML forbids it
        case bool():
            return json.dumps(value)
        case _:
            return repr(value)


def load_calibration(path: str | pathlib.Path) -> Calibration:
    """Reads a calibration's file.

    Args:
      path: What `Calibration.save` wrote, or `jaxckpt calibrate`.

    Raises:
      UnknownTargetError: There is no such file.
      TargetError: It is no calibration; all that is wrong with it is said.
    """
    text = text_of(
        path,
        called="calibration",
        needed="a file of `jaxckpt calibrate`",
        advice=f"jaxckpt calibrate -o {path}, on the machine that has the device",
    )
    return calibration_from_toml(text, source=str(path))


def calibration_from_toml(text: str, *, source: str) -> Calibration:
    """Reads the text of a calibration's file.

    Args:
      text: TOML.
      source: Name of the file, for messages.

    Raises:
      TargetError: All that is wrong with the text, numbered; the sentences are also in `problems`.
    """
    refused = functools.partial(_bad_file, source)
    table = table_of(text, refused=refused)
    problems = list(_problems(table))
    if problems:
        raise refused(problems)
    del table["form"]
    for name in _PAIRS:
        table[name] = tuple(table.get(name, {}).items())
    measured = tuple(Measured(**each) for each in table.pop("measured", ()))
    return Calibration(**table, measured=measured)


def _problems(table: Mapping[str, Any]) -> Iterator[str]:
    known = {field.name for field in fields(Calibration)}
    if table.get("form") != FORM:
        yield f"form = {table.get('form')!r} should be {FORM!r}"
    for name in _TEXTS:
        if not isinstance(table.get(name), str):
            yield f"{name} is missing: a text"
    for name, value in table.items():
        if name in _TEXTS or name == "form":
            continue
        if name not in known:
            yield f"{name} is no key"
        elif name in _PAIRS and not _is_pairs(value, str if name == "versions" else float):
            yield f"{name} should be a table of {'texts' if name == 'versions' else 'numbers above 0'}"
        elif name in _SPEEDS and not _is_rate(value):
            yield f"{name} = {value!r} should be a number above 0"
        elif name in ("seconds", "device_count", "matmul_ramp_flops") and not _is_number(value):
            yield f"{name} = {value!r} should be a number"
    for number, each in enumerate(table.get("measured", ()), 1):
        if not {"what", "detail", "value", "unit"} <= set(each) <= {field.name for field in fields(Measured)}:
            yield f"measured {number} has the keys {', '.join(each)}"


def _is_pairs(value: Any, kind: type) -> bool:
    check = _is_rate if kind is float else lambda each: isinstance(each, str)
    return isinstance(value, dict) and all(map(check, value.values()))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _is_rate(value: Any) -> bool:
    return _is_number(value) and value > 0


def _bad_file(source: str, problems: Sequence[str]) -> TargetError:
    return refusal(
        f"{source} is no calibration.",
        problems,
        needed="what `jaxckpt calibrate` writes",
        advice="jaxckpt calibrate -o FILE, on the machine that has the device",
        source=source,
    )


@functools.cache
def shipped_calibration(kind: str) -> Calibration | None:
    """The calibration that this package ships for a device, by the name of its fact file; None where there is none."""
    file = importlib.resources.files("jaxckpt.machine") / "measured" / f"{kind}.toml"
    return calibration_from_toml(file.read_text("utf-8"), source=f"{kind}.toml") if file.is_file() else None
