"""Data shows itself in notebooks and terminals without importing presentation: its report is found by name when needed.

So `_repr_html_` and `__str__` are methods of the data, where notebooks and `print` look for them, and a package of
data never loads the reports.
"""

from importlib import import_module
from typing import Any, ClassVar

_REPORTS = "jaxckpt.report"


class Shown:
    """Gives a class of data its report: as HTML in notebooks, as the text that the shell prints for `print`.

    `_report` is "module:function", which makes a `jaxckpt.report.Section` of an instance. A dataclass of this kind is
    declared with `repr=False`: the generated text of all fields fills pages.
    """

    __slots__ = ()
    _report: ClassVar[str]

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.summary()})"

    def __str__(self) -> str:
        text: str = import_module(_REPORTS).text_of(self)
        return text

    def _repr_html_(self) -> str:
        html: str = import_module(_REPORTS).html_of(self)
        return html


def report_builder(data: Shown) -> Any:
    """The function that makes the report of an instance; its module is loaded here."""
    module, _, function = data._report.partition(":")
    return getattr(import_module(module), function)
