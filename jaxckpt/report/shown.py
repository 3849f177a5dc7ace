"""The report of data that has one, for notebooks and for everything that is given data of any kind."""

from typing import Any

from jaxckpt._shown import Shown, report_builder
from jaxckpt.report.html import render_html
from jaxckpt.report.tree import Section


def report_of(data: Any) -> Section:
    """The report of data: a plan, a footprint, a comparison, a frontier, findings, and all else that has one.

    Args:
      data: One of these.

    Raises:
      TypeError: It is something else.

    Example:
      >>> from jaxckpt import Footprint
      >>> report_of(Footprint(argument_bytes=1, output_bytes=0, alias_bytes=0, temp_bytes=7, target="h200")).title
      '8 B on h200'
    """
    if isinstance(data, Shown):
        section: Section = report_builder(data)(data)
        return section
    raise TypeError(
        f"report_of takes data that has a report (a plan, a footprint, a frontier, ...), not a {type(data).__name__}"
    )


def html_of(data: Any) -> str:
    """The same as a piece of HTML; what notebooks show.

    Args:
      data: As `report_of`.

    Raises:
      TypeError: As `report_of`.
    """
    return render_html(report_of(data))
