"""Machines that a step must fit on, attached or not.

Read in this order: `device_facts` (facts of a device), `fact_files` (files of facts), `attainable` (speeds that
programs reach), `calibration_file` (measured speeds), `topology` (numbers of devices and hosts), `devices` (those that
the compiler is given, and those that this process has), `target` (all of it under one name), `status` (which of them
can be used here).
"""

from jaxckpt.machine.attainable import rates_from_facts
from jaxckpt.machine.calibration_file import (
    Calibration,
    Measured,
    calibration_from_toml,
    load_calibration,
    toml_from_calibration,
)
from jaxckpt.machine.device_facts import CpuFacts, Facts, UnknownDeviceFacts
from jaxckpt.machine.fact_files import known_facts, load_facts
from jaxckpt.machine.status import TargetStatus, targets
from jaxckpt.machine.target import Target

__all__ = [
    "Calibration",
    "CpuFacts",
    "Facts",
    "Measured",
    "Target",
    "TargetStatus",
    "UnknownDeviceFacts",
    "calibration_from_toml",
    "known_facts",
    "load_calibration",
    "load_facts",
    "rates_from_facts",
    "targets",
    "toml_from_calibration",
]
