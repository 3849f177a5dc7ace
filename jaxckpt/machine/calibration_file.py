"""Calibrations: measured rates of one attached device in a small TOML file, used instead of the datasheet's.

A calibration holds rates, the figures behind them, and the setup: device, driver, versions, date. Memory sizes and
figures that the compiler asks for stay with the device's facts. `jaxckpt.calibration` measures; this module reads and
writes. No jax. Read after `attainable`.
"""

import json
import pathlib
import warnings
from dataclasses import dataclass, replace
from typing import Annotated, Any

from jaxckpt._errors import TargetError
from jaxckpt._files import write_to_place
from jaxckpt._records import (
    NOT_NEGATIVE,
    POSITIVE,
    TABLE,
    RecordError,
    TomlTable,
    parse_toml,
    read_record,
    table_from_record,
)
from jaxckpt.cost.rates import Rates
from jaxckpt.machine.fact_files import text_of_file

FORM = "jaxckpt calibration 1"
"""The first key of every file."""

_SPEEDS = ("vector_flops_per_s", "memory_bandwidth_bytes_per_s", "host_bandwidth_bytes_per_s", "launch_s")
_Rate = Annotated[float, POSITIVE]
_Amount = Annotated[float, NOT_NEGATIVE]
_RateTable = Annotated[tuple[tuple[str, _Rate], ...], TABLE]


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
    """Measured speeds of one device; those that `Rates` has, too, have its names.

    Attributes:
      device_kind: As jax names it.
      driver: The backend's description of itself.
      source: The setup in a sentence, also part of the rates.
      seconds: Duration of the measurement.
      smoke: True for a smoke test with tiny sizes, whose figures mean nothing.
      matmul_flops_per_s: Pairs of dtype and rate; other dtypes have the rates of the datasheet.
      vector_flops_per_s: None if it was not measured (also for the three that follow): then the datasheet's rate is
        used.
      measured: The measurements from which the rates follow.

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
    versions: Annotated[tuple[tuple[str, str], ...], TABLE] = ()
    device_count: int = 1
    seconds: _Amount = 0.0
    smoke: bool = False
    matmul_flops_per_s: _RateTable = ()
    matmul_ramp_flops: _Amount = 0.0
    vector_flops_per_s: _Rate | None = None
    memory_bandwidth_bytes_per_s: _Rate | None = None
    host_bandwidth_bytes_per_s: _Rate | None = None
    launch_s: _Rate | None = None
    measured: tuple[Measured, ...] = ()

    def over(self, rates: Rates) -> Rates:
        """A device's rates with the measured figures in their place.

        float16 takes the rate of bfloat16 where only that was measured, and float8 and int8 are scaled with it.
        """
        speeds = {name: getattr(self, name) for name in _SPEEDS if getattr(self, name) is not None}
        return replace(
            rates,
            matmul_flops_per_s=tuple(_matmul(dict(rates.matmul_flops_per_s), dict(self.matmul_flops_per_s)).items()),
            matmul_ramp_flops=self.matmul_ramp_flops,
            source=self.source,
            **speeds,
        )

    def as_rates(self, *, name: str, memory_bytes: int) -> Rates | None:
        """Rates of a device that is in no fact file; None where too little was measured to do without facts."""
        speeds = {each: getattr(self, each) for each in _SPEEDS}
        if None in speeds.values() or not self.matmul_flops_per_s:
            return None
        empty = Rates(name=name, matmul_flops_per_s=self.matmul_flops_per_s, memory_bytes=memory_bytes, **speeds)
        return self.over(empty)

    def alone(self, *, name: str, memory_bytes: int) -> Rates | None:
        """Deprecated name of `as_rates`."""
        warnings.warn("Calibration.alone is now Calibration.as_rates", DeprecationWarning, stacklevel=2)
        return self.as_rates(name=name, memory_bytes=memory_bytes)

    def save(self, path: str | pathlib.Path) -> None:
        """Writes it as TOML, which `load_calibration` reads; a `TargetError` if the path takes no file."""
        data = toml_from_calibration(self).encode()
        write_to_place(pathlib.Path(path), data, called=f"Calibration.save({str(path)!r})", error=TargetError)


def _matmul(derived: dict[str, float], measured: dict[str, float]) -> dict[str, float]:
    if "bfloat16" in measured:
        measured = {"float16": measured["bfloat16"], **measured}
        scale = measured["bfloat16"] / derived.get("bfloat16", measured["bfloat16"])
        derived |= {dtype: rate * scale for dtype, rate in derived.items() if dtype in ("int8", "float8")}
    return derived | measured


def toml_from_calibration(calibration: Calibration) -> str:
    """The text of a calibration's file."""
    table = {"form": FORM, **table_from_record(calibration)}
    measured = table.pop("measured")
    lines = _entries({key: value for key, value in table.items() if value != {}})
    for each in measured:
        lines += ["", "[[measured]]", *_entries(each)]
    return "\n".join([*lines, ""])


def _entries(table: TomlTable) -> list[str]:
    return [f"{key} = {_written(value)}" for key, value in table.items()]


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_written(key)} = {_written(each)}" for key, each in value.items()) + " }"
    # JSON writes numbers, truth values and texts as TOML does, but for DEL, which TOML forbids in a text.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def load_calibration(path: str | pathlib.Path) -> Calibration:
    """Reads a file of `Calibration.save` or `jaxckpt calibrate`.

    Raises:
      UnknownTargetError: There is no such file.
      TargetError: It is no calibration; all that is wrong with it is said.
    """
    text = text_of_file(
        path,
        called="calibration",
        needed="a file of `jaxckpt calibrate`",
        advice=f"jaxckpt calibrate -o {path}, on the machine that has the device",
    )
    return calibration_from_toml(text, source=str(path))


def calibration_from_toml(text: str, *, source: str) -> Calibration:
    """Reads the text of a calibration's file; the `TargetError` of a wrong one has all `problems`."""
    try:
        table = parse_toml(text)
        form = table.pop("form", None)
        table.pop("factors", None)  # files of jaxckpt 0.2 have factors of classes of kernels, which fitted steps worse
        if form != FORM:
            raise RecordError([f"form = {form!r} should be {FORM!r}"])
        return read_record(Calibration, table)
    except RecordError as error:
        raise TargetError(
            f"{source} is no calibration.",
            got=str(error),
            needed="what `jaxckpt calibrate` writes",
            advice="jaxckpt calibrate -o FILE, on the machine that has the device",
            source=source,
            problems=error.problems,
        ) from error
