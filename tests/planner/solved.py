"""Planners that share what they solved: of one step it is the same for all, and takes most of the time of a test."""

from typing import Any

from jaxckpt.planner import Planner


def not_compiled(planner: Planner, kind: type[Planner] | None = None, **attributes: Any) -> Any:
    """A planner of the same step with the solvers of another one, which has compiled nothing yet.

    Args:
      planner: Its traced step and its solvers are shared, and solvers keep their work for earlier budgets.
      kind: The class of the new planner; by default the class of `planner`.
      **attributes: Attributes of the new planner, in the place of those of `planner`.
    """
    made = object.__new__(kind or type(planner))
    vars(made).update({name: value for name, value in vars(planner).items() if name != "unplanned"})
    vars(made).update({"_footprints": {}, **attributes})
    return made
