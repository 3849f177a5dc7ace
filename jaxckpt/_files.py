"""Files are written whole or not at all; the only place that writes them."""

import os
import secrets
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Writes beside the file and puts it in its place, so that nobody ever sees half of it.

    Args:
      path: Of the file. One that is there is replaced; a link is followed.
      data: Its contents.

    Raises:
      OSError: The disk is full, or the folder cannot be written to; what was there before is there still.
    """
    path = Path(os.path.realpath(path))
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(beside, "xb") as file:  # with the rights that a new file has, which those of `tempfile` lack
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
