"""Sibling kernels: those of which none needs what another one writes, so that a compiler can run them as one.

Sibling fusion, or multi-output fusion, of kernels that are far apart: `shared_passes` finds those that are near. Read
after `jaxckpt.schedule`; `fusion_analysis` asks.
"""

from collections.abc import Collection, Iterable, Sequence

from jaxckpt.schedule import Barrier, Run, ScheduleStep


def independent_groups(steps: Sequence[ScheduleStep], groups: Iterable[Collection[int]]) -> list[Collection[int]]:
    """The groups of instances of which no member depends on another.

    Args:
      steps: Of a schedule.
      groups: Instances that steps write.

    Example:
      With the steps `b = f(a)`, `c = g(a)`, `d = h(b)`, of {b, c} and {b, d} only {b, c} is independent.
    """
    groups = list(groups)
    bit = {instance: 1 << index for index, instance in enumerate(sorted({i for group in groups for i in group}))}
    depends_on = _dependencies(steps, bit) if bit else {}
    return [group for group in groups if not any(depends_on[one] & bit[other] for one in group for other in group)]


def _dependencies(steps: Sequence[ScheduleStep], bit: dict[int, int]) -> dict[int, int]:
    """For each of the instances in `bit` the bits of those that it is computed from."""
    above: dict[int, int] = {}
    found: dict[int, int] = {}
    for step in steps:
        reads = step.reads
        if isinstance(step, Barrier) and step.trigger is not None:
            reads = (*reads, step.trigger)
        elif isinstance(step, Run) and step.after is not None:
            reads = (*reads, step.after)
        mask = 0
        for instance in reads:
            mask |= above.get(instance, 0)
        for instance in step.writes:
            if instance in bit:
                found[instance] = mask
                above[instance] = mask | bit[instance]
            elif mask:
                above[instance] = mask
    return found
