"""Options that make XLA compile faster for a GPU that is not attached, and a cache of compiled kernels.

Neither changes the memory that a program takes. Without a device there is nothing to tune kernels on, yet XLA's
autotuner would compile each kernel by itself to see whether the kernel can be compiled: the option turns the autotuner
off. Plans of one step run hardly different kernels: the cache keeps compiled kernels in a file.
"""

import functools
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxckpt.machine import Facts, Target

_MOST_BYTES = 1 << 26
"""XLA reads all of the file for each compile, so that a larger file is deleted. No benchmark fixed the exact size."""
_LENT = threading.Lock()
"""Held while a compile has a file: XLA writes the file without a lock."""
_FILES: dict[Facts, Path] = {}
"""The file of each device: XLA finds a kernel by what the kernel computes, whatever it was compiled for."""


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """The folder of the files; the end of the process deletes it."""
    return tempfile.TemporaryDirectory(prefix=f"jaxckpt-{os.getpid()}-kernels-", ignore_cleanup_errors=True)


@contextmanager
def quick_options(target: Target) -> Iterator[dict[str, object]]:
    """XLA options that spare work for a target; none where the program might run."""
    if not (target.compile_only and target.platform == "cuda"):
        yield {}
        return
    options: dict[str, object] = {"xla_gpu_autotune_level": 0}
    if not _LENT.acquire(blocking=False):  # another compile has a file
        yield options
        return
    try:
        file = _FILES.setdefault(target.facts, Path(_folder().name) / f"{len(_FILES)}.kernels")
        if file.exists() and file.stat().st_size > _MOST_BYTES:
            file.unlink()
        yield options | {"xla_gpu_kernel_cache_file": str(file)}
    finally:
        _LENT.release()
