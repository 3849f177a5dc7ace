"""HiGHS prints lines of its own, past every option, to the process's standard output; here they are kept from it.

The shell's `--json` and whoever pipes a program's output read that stream. What Python itself prints meanwhile, in
other threads, is lost too: the moments are those of one integer programme.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_STANDARD_OUTPUT = 1


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps what native code writes to standard output from getting there."""
    sys.stdout.flush()
    kept = os.dup(_STANDARD_OUTPUT)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, _STANDARD_OUTPUT)
        yield
    finally:
        os.dup2(kept, _STANDARD_OUTPUT)
        os.close(kept)
        os.close(nowhere)
