"""The user's line behind an equation: the innermost one that is in no installed package.

Tracebacks are shared by the equations of one call, so the lines are looked up once for each traceback.
"""

import re
from typing import Any

from jax.extend import source_info_util

_FRAMES = 40
"""Frames looked at, from the innermost; JAX's own do not count."""
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_LINE = re.compile(r"(.*?:\d+)(?::\d+)? \(")


class SourceLines:
    """Looks up the user's lines; not for longer than the equations live, for it goes by identity."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}

    def of(self, eqn: Any) -> str:
        """The user's line as "file.py:123", or "" where JAX keeps no traceback."""
        traceback = eqn.source_info.traceback
        if traceback is None:
            return ""
        if id(traceback) not in self._seen:
            self._seen[id(traceback)] = _line(eqn.source_info)
        return self._seen[id(traceback)]


def _line(source_info: Any) -> str:
    """Of the frames, outermost first, the last that is the user's own; else the last."""
    frames = source_info_util.summarize(source_info, num_frames=_FRAMES).splitlines()
    lines = [match[1] for frame in frames if (match := _LINE.match(frame)) is not None]
    own = [line for line in lines if not _INSTALLED.search(line)]
    return (own or lines or [""])[-1]
