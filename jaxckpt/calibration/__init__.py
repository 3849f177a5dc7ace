"""Speeds of the attached device: measured once, kept in a file, used by every estimate.

Read in this order: `timing` (a median and its spread), `kernels` (what is timed), `links` (to the host, and between
devices), `rates` (figures become rates), `session` (all of it within a budget of seconds).
"""

from jaxckpt.calibration.session import calibrate as calibrate
from jaxckpt.calibration.timing import Timing as Timing, timed as timed
