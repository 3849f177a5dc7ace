"""The loops of a step that a plan asks to have split or nested, each with those that change with it.

Read before `stretch` and `nest`, which ask. Complexity: linear in loops, times what is asked.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from jaxckpt._errors import PlanMismatchError
from jaxckpt.ir import LoopSplit, LoopTiling
from jaxckpt.trace.step import Traced

Asked = TypeVar("Asked", LoopTiling, LoopSplit)


def requested_loops(
    traced: Traced,
    asked: Sequence[Asked],
    groups: Sequence[tuple[int, ...]],
    *,
    fits: Callable[[Asked, int], bool],
    refused: Callable[[Asked], tuple[str, str, str]],
) -> dict[int, Asked]:
    """Finds the loops that a plan names.

    Args:
      traced: The step.
      asked: At most one for a group, and none for a loop inside of another one's.
      groups: The loops that can be changed like that, by those that change together.
      fits: Whether something asked can be had of a loop of so many turns.
      refused: What is said of something asked that cannot be had: what happened, what was got, what is needed.

    Returns:
      For each loop that is changed what is asked of it.

    Raises:
      PlanMismatchError: There is no such loop, it does not have such turns, or something else is asked of it, or of
        one around or inside of it.
    """
    graph = traced.graph
    found: dict[int, Asked] = {}
    for each in asked:
        group = next((group for group in groups if each.loop in group), ())
        taken = {around for loop in group for around in graph.path(loop)} & found.keys()
        taken |= {loop for loop in found if not set(group).isdisjoint(graph.path(loop))}
        if not group or taken or not fits(each, graph.loops[each.loop].length):
            there = ", ".join(f"loop {group[0]} of {graph.loops[group[0]].length} turns" for group in groups)
            problem, got, needed = refused(each)
            raise PlanMismatchError(
                problem,
                got=got,
                needed=f"{needed} ({there or 'there is none'})",
                advice="plan again for this step, these shapes and this version of jax",
                planned=str(each),
                found=there,
            )
        found.update(dict.fromkeys(group, each))
    return found
