"""Data shows itself in a notebook without importing presentation: its report is found by name when it is asked for.

So `_repr_html_` is a method of the data, where notebooks look for it, and a room of data never loads the reports.
"""

from importlib import import_module
from typing import Any, ClassVar

_REPORTS = "jaxckpt.report"


class Shown:
    """Gives a class of data its report in notebooks, a `jaxckpt.report.Section`; `_report` is "module:function"."""

    __slots__ = ()
    _report: ClassVar[str]

    def _repr_html_(self) -> str:
        html: str = import_module(_REPORTS).html_of(self)
        return html


def report_builder(data: Shown) -> Any:
    """The function that makes the report of an instance; its module is loaded here."""
    module, _, function = data._report.partition(":")
    return getattr(import_module(module), function)
