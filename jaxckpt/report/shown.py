"""Which report shows which data, for notebooks and for everything that is given data of any kind.

Read after the builders.
"""

from collections.abc import Callable
from typing import Any

from jaxckpt.advise import Findings
from jaxckpt.dynamic import Simulation
from jaxckpt.eager import EagerRun
from jaxckpt.fit import Analysis, BatchSearch, Explanation, Floor, Frontier, Plan
from jaxckpt.measure import Footprint
from jaxckpt.numerics import Verification
from jaxckpt.policy import Policy
from jaxckpt.report.analysis import analysis_report
from jaxckpt.report.batches import batches_report
from jaxckpt.report.comparison import comparison_report
from jaxckpt.report.evictions import eager_report, evictions_report, simulation_report
from jaxckpt.report.explanation import explanation_report
from jaxckpt.report.floor import floor_report
from jaxckpt.report.frontier import frontier_report
from jaxckpt.report.html import render_html
from jaxckpt.report.lint import findings_report
from jaxckpt.report.memory import footprint_report
from jaxckpt.report.plan import plan_report
from jaxckpt.report.policy import policy_report
from jaxckpt.report.tree import Section
from jaxckpt.report.verdicts import verdicts_report
from jaxckpt.report.verification import verification_report
from jaxckpt.versus import Comparison, Evictions, Verdicts

_BUILDERS: dict[type, Callable[[Any], Section]] = {
    Analysis: analysis_report,
    BatchSearch: batches_report,
    Comparison: comparison_report,
    EagerRun: eager_report,
    Evictions: evictions_report,
    Explanation: explanation_report,
    Findings: findings_report,
    Floor: floor_report,
    Footprint: footprint_report,
    Frontier: frontier_report,
    Plan: plan_report,
    Policy: policy_report,
    Simulation: simulation_report,
    Verdicts: verdicts_report,
    Verification: verification_report,
}


def report_of(data: Any) -> Section:
    """The report of data: a plan, a footprint, a comparison, a frontier, findings, and all else that has one.

    Args:
      data: One of these.

    Raises:
      TypeError: It is something else.

    Example:
      >>> report_of(Footprint(argument_bytes=1, output_bytes=0, alias_bytes=0, temp_bytes=7, target="h200")).title
      '8 B on h200'
    """
    for kind in type(data).__mro__:
        if kind in _BUILDERS:
            return _BUILDERS[kind](data)
    known = ", ".join(sorted(kind.__name__ for kind in _BUILDERS))
    raise TypeError(f"report_of takes one of {known}, not a {type(data).__name__}")


def html_of(data: Any) -> str:
    """The same as a piece of HTML; what notebooks show.

    Args:
      data: As `report_of`.

    Raises:
      TypeError: As `report_of`.
    """
    return render_html(report_of(data))
