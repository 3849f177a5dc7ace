"""Machines that a step must fit on, attached or not.

Read in this order: `device_facts` (facts of a device), `fact_files` (files of facts), `attainable` (speeds that
programs reach), `calibration_file` (measured speeds), `topology` (numbers of devices and hosts), `devices` (those that
the compiler is given, and those that this process has), `target` (all of it under one name), `status` (which of them
can be used here).
"""

from jaxckpt.machine.attainable import rates_from_facts as rates_from_facts
from jaxckpt.machine.calibration_file import (
    Calibration as Calibration,
    Measured as Measured,
    calibration_from_toml as calibration_from_toml,
    load_calibration as load_calibration,
    toml_from_calibration as toml_from_calibration,
)
from jaxckpt.machine.device_facts import (
    CpuFacts as CpuFacts,
    Facts as Facts,
    GpuFacts as GpuFacts,
    UnknownDeviceFacts as UnknownDeviceFacts,
)
from jaxckpt.machine.devices import autotuner_device_name as autotuner_device_name
from jaxckpt.machine.fact_files import known_facts as known_facts, load_facts as load_facts
from jaxckpt.machine.status import TargetStatus as TargetStatus, targets as targets
from jaxckpt.machine.target import Target as Target
