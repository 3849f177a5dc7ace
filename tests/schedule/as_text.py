"""Schedules as short text, for golden tests."""

from jaxckpt.ir import Offload
from jaxckpt.schedule import Move, Run


def as_text(schedule):
    """One string a step: op numbers, clones with a star; copies with their value; what barriers pass and wait for."""
    return [_step_as_text(step, schedule.origin) for step in schedule.steps]


def _step_as_text(step, origin):
    if isinstance(step, Run):
        return f"{step.op}{'*' if step.is_clone else ''}"
    if isinstance(step, Move):
        verbs = ("store", "load") if isinstance(step.decision, Offload) else ("shard", "gather")
        return f"{verbs[step.restores]} {origin[step.reads[0]]}"
    name = "pin" if step.why == "pin" else "barrier"
    trigger = "" if step.trigger is None else f" after {origin[step.trigger]}"
    return f"{name} {[origin[i] for i in step.reads]}{trigger}"
