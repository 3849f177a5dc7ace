"""Compiling for a GPU that is not there: what only a GPU would need is left out, and each kernel is compiled once.

Neither changes what memory a program takes. Without a device there is nothing to tune kernels on, yet XLA's autotuner
would compile each kernel by itself to see whether it can be compiled. And plans of one step differ in what is run,
hardly in the kernels: compiled ones are kept in a file, for as long as the process runs, and taken from there.
"""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from jaxckpt.machine import Facts, Target

_MOST_BYTES = 1 << 26
"""XLA reads all of the file for each compile: a larger one is begun anew."""
_files: dict[Facts, Path] = {}
"""One for each device: XLA finds a kernel by what it computes, whatever it was compiled for."""
_busy = threading.Lock()
"""XLA writes the file without one."""


@contextmanager
def quick_options(target: Target) -> Iterator[dict[str, object]]:
    """XLA options that spare work for a target; none where the program might run.

    Args:
      target: What is compiled for.
    """
    if not (target.compile_only and target.platform == "cuda"):
        yield {}
        return
    options: dict[str, object] = {"xla_gpu_autotune_level": 0}
    alone = _busy.acquire(blocking=False)
    try:
        if alone:
            file = _files.setdefault(target.facts, Path(_folder().name) / f"{len(_files)}.kernels")
            if file.exists() and file.stat().st_size > _MOST_BYTES:
                file.unlink()
            options["xla_gpu_kernel_cache_file"] = str(file)
        yield options
    finally:
        if alone:
            _busy.release()


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """One for the process; it is gone when the process ends."""
    return tempfile.TemporaryDirectory(prefix="jaxckpt-kernels-", ignore_cleanup_errors=True)
