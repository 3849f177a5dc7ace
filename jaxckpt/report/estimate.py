"""Rates by which the kernels of a footprint can be timed again.

Read before `memory` and `trace_events`.
"""

import math

from jaxckpt._errors import TargetError
from jaxckpt.compiler import Footprint
from jaxckpt.cost import Rates
from jaxckpt.hlo import step_s
from jaxckpt.machine import Target


def rates_of(footprint: Footprint) -> Rates | None:
    """The rates that give the footprint's own estimate of its seconds; None if they are not known here.

    The name of a target may mean another machine here than where the footprint was made.
    """
    memory = footprint.memory
    if memory is None or not footprint.step_s or footprint.target.startswith("attached"):
        return None
    try:
        rates = Target(footprint.target).rates
    except TargetError:  # the footprint comes from elsewhere
        return None
    return rates if math.isclose(step_s(memory, rates), footprint.step_s, rel_tol=1e-6) else None
