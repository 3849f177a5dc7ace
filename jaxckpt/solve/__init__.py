"""Solvers: each a file, each from a problem to a plan.

Read in this order: `problem` (what is asked), `none` and `full` (the two ends), `stages` (where to cut), `options`
(what a stage can keep), `windows` (what is alive meanwhile), `compose` (one option each), `optimal` (all together);
`policies` (what a policy says).
"""

from collections.abc import Callable

from jaxckpt._errors import UnknownStrategyError
from jaxckpt.ir import Plan
from jaxckpt.solve.full import solve_full
from jaxckpt.solve.none import solve_none
from jaxckpt.solve.optimal import OptimalSolver, solve_optimal
from jaxckpt.solve.policies import Followed, follow, musts
from jaxckpt.solve.problem import Problem, unaliased_output_bytes
from jaxckpt.solve.stages import boundaries

STRATEGIES: dict[str, Callable[[Problem], Plan]] = {
    "optimal": solve_optimal,
    "none": solve_none,
    "full": solve_full,
}
"""Solvers by the name that `strategy=` takes."""


def solve(problem: Problem, strategy: str = "optimal") -> Plan:
    """Solves a problem with a named strategy.

    Raises:
      UnknownStrategyError: No solver has that name.
    """
    if strategy not in STRATEGIES:
        raise UnknownStrategyError(
            f"solve(strategy={strategy!r}) names no solver.",
            got=repr(strategy),
            needed=f"one of {', '.join(map(repr, STRATEGIES))}",
            advice='strategy="optimal"',
            strategy=strategy,
        )
    return STRATEGIES[strategy](problem)


__all__ = [
    "STRATEGIES",
    "Followed",
    "OptimalSolver",
    "Problem",
    "boundaries",
    "follow",
    "musts",
    "solve",
    "solve_full",
    "solve_none",
    "solve_optimal",
    "unaliased_output_bytes",
]
