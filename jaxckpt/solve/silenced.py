"""Silences native code that prints to standard output: HiGHS prints some lines whatever its options are.

The output of the CLI's `--json`, and of programs in pipes, must contain nothing else. Output of other Python threads is
lost for the duration of one integer programme too.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_STANDARD_OUTPUT = 1


@contextmanager
def silenced_stdout() -> Iterator[None]:
    """Discards the standard output of native code."""
    sys.stdout.flush()
    original = os.dup(_STANDARD_OUTPUT)
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, _STANDARD_OUTPUT)
        yield
    finally:
        os.dup2(original, _STANDARD_OUTPUT)
        os.close(original)
        os.close(null)
