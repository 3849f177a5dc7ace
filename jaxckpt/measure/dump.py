"""XLA writes what it decided about memory into a folder; this is how it is asked to, and where it is found.

The one structured source that every backend fills is the dump of the optimised module, `*after_optimizations*.hlo.pb`:
it holds the schedule and the buffer assignment. (`memory_analysis()` has an empty assignment for compile-only GPUs.)
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jaxckpt._errors import HloError
from jaxckpt.hlo import MemoryMap, memory_from_hlo

_PATTERN = "*after_optimizations*.hlo.pb"


@contextmanager
def dump_folder() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="jaxckpt-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def dump_options(folder: Path) -> tuple[tuple[str, object], ...]:
    """XLA options that make the compiler write its modules to a folder; they change nothing else."""
    return (("xla_dump_to", str(folder)), ("xla_dump_hlo_as_proto", True))


def memory_in(folder: Path, *, platform: str, argument_paths: Sequence[str] = ()) -> MemoryMap | None:
    """The memory map of the program that was dumped to a folder.

    Args:
      folder: Of `dump_options`.
      platform: As `memory_from_hlo`.
      argument_paths: As `memory_from_hlo`.

    Returns:
      None where the compiler wrote none, as when jax took the program from its cache.
    """
    for file in sorted(folder.glob(_PATTERN)):
        try:
            return memory_from_hlo(file.read_bytes(), platform=platform, argument_paths=argument_paths)
        except HloError:
            continue  # libtpu writes the same module several times, once with its assignment
    return None
