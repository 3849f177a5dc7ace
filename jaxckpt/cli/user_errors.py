"""Exceptions of the user's code: the message first, then the user's lines without those that called them.

Frames of jaxckpt, of the command line's parser and of the import machinery are left out, where frames of the user
remain and the error is not raised in a line of ours: then it may be our mistake, and all frames are shown.
"""

import sys
import traceback
from pathlib import Path

_OURS = str(Path(__file__).parents[1])
_CALLERS = ("/typer/", "/click/", "/runpy.py", "/importlib/", "<frozen ")
"""Parts of the paths of frames that only call: the parser of the command line, and imports."""


def print_user_error(error: BaseException) -> None:
    """Prints an exception to standard error: its message, then the frames of the user, then those below them."""
    trace = traceback.TracebackException.from_exception(error)
    headline = next(trace.format_exception_only())
    for each in _chain(trace):
        each.stack = _shortened(each.stack)
    print(headline, *trace.format(), sep="", end="", file=sys.stderr)


def _chain(trace: traceback.TracebackException) -> list[traceback.TracebackException]:
    """An exception and those that led to it."""
    found, todo = [], [trace]
    while todo:
        each = todo.pop()
        found.append(each)
        todo += [cause for cause in (each.__cause__, each.__context__) if cause is not None]
    return found


def _shortened(stack: traceback.StackSummary) -> traceback.StackSummary:
    if not stack or stack[-1].filename.startswith(_OURS):
        return stack
    rest = [frame for frame in stack if not any(part in frame.filename for part in (_OURS, *_CALLERS))]
    return traceback.StackSummary.from_list(rest) if any(map(_is_users, rest)) else stack


def _is_users(frame: traceback.FrameSummary) -> bool:
    """True if the frame is neither of an installed package nor of Python itself."""
    return "site-packages" not in frame.filename and not frame.filename.startswith(sys.base_prefix)
