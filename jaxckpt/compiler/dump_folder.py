"""XLA writes what it decided about memory into a folder; this is how it is asked to, and where it is found.

The one structured source that every backend fills is the dump of the optimised module, `*after_optimizations*.hlo.pb`:
it holds the schedule and the buffer assignment. (`memory_analysis()` has an empty assignment for compile-only GPUs.)
"""

from pathlib import Path

from jaxckpt._errors import HloError
from jaxckpt.hlo import parse_hlo

_PATTERN = "*after_optimizations*.hlo.pb"


def dump_options(folder: str | Path) -> tuple[tuple[str, object], ...]:
    """XLA options that make the compiler write its modules to a folder; they change nothing else."""
    return (("xla_dump_to", str(folder)), ("xla_dump_hlo_as_proto", True))


def dumped_program(folder: str | Path) -> bytes | None:
    """The serialised `HloProto` that was dumped to a folder, with its schedule and its buffer assignment.

    None where the compiler wrote none, as when jax took the program from its cache.
    """
    for file in sorted(Path(folder).glob(_PATTERN)):
        data = file.read_bytes()
        try:
            parse_hlo(data)
        except HloError:
            continue  # libtpu writes the same module several times, once with its assignment
        return data
    return None
