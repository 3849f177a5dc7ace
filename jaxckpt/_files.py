"""Atomic writes: a file is written completely or not at all."""

import os
import secrets
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a new file next to the old one and renames it, so that no reader sees half of it; a link is followed."""
    path = Path(os.path.realpath(path))
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb") as file:  # with the rights that a new file has, which those of `tempfile` lack
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
