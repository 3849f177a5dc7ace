"""Data shows itself in a notebook without knowing how: the room of reports is found by its name, and only when asked.

So `_repr_html_` is on the data, where notebooks look for it, while no data imports presentation.
"""

from importlib import import_module

_REPORTS = "jaxckpt.report"


class Shown:
    """Gives a class of data its picture in notebooks; `jaxckpt.report.report_of` must know the class."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        html: str = import_module(_REPORTS).html_of(self)
        return html
