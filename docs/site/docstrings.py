"""Docstrings as the reference of the site shows them, as an extension of griffe.

Examples are shown as code: griffe knows them under the name "Examples" only.
"""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Reads a section named "Example" as a section of examples."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Changes the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(r"\1Examples:", obj.docstring.value)
