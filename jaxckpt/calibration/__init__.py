"""How fast the attached device really is: measured once, kept in a file, used by every estimate.

Read in this order: `timing` (a median and its spread), `kernels` (what is timed), `copies` (the link to the host),
`collectives`, `device` (on what), `rates` (figures become rates), `session` (all of it within a budget of seconds),
`regression` (rates corrected by whole steps that were timed).
"""

from jaxckpt.calibration.regression import (
    Errors,
    Fit,
    TimedStep,
    calibration_from_fit,
    corrected,
    estimated_s,
    fit_rates,
    seconds_by_class,
)
from jaxckpt.calibration.session import calibrate
from jaxckpt.calibration.timing import Timing, timed

__all__ = [
    "Errors",
    "Fit",
    "TimedStep",
    "Timing",
    "calibrate",
    "calibration_from_fit",
    "corrected",
    "estimated_s",
    "fit_rates",
    "seconds_by_class",
    "timed",
]
