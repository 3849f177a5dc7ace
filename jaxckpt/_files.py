"""Atomic writes: a file is written completely or not at all; a place that takes no file is an error of ours."""

import errno
import os
import secrets
from pathlib import Path

from jaxckpt._errors import JaxckptError

_NO_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of a path that takes no file; a full disk is not among them."""


def require_place(path: Path, *, called: str, error: type[JaxckptError]) -> None:
    """Refuses a path that takes no file: worth asking before the work is done."""
    folder = path.parent
    if not folder.is_dir():
        raise _no_place(path, "its folder is not there", f"mkdir -p {folder}", called=called, error=error)
    if path.is_dir():
        raise _no_place(path, "it is a folder", "the path of a file in it", called=called, error=error)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _no_place(path, "its folder may not be written to", "another folder", called=called, error=error)


def write_to_place(path: Path, data: bytes, *, called: str, error: type[JaxckptError]) -> None:
    """As `write_atomically`, with `error` for a path that takes no file; a full disk is an `OSError` still."""
    require_place(path, called=called, error=error)
    try:
        write_atomically(path, data)
    except OSError as cause:
        if cause.errno not in _NO_PLACE:
            raise
        reason = f"nothing can be written there ({cause.strerror})"
        raise _no_place(path, reason, "another folder", called=called, error=error) from cause


def _no_place(path: Path, reason: str, advice: str, *, called: str, error: type[JaxckptError]) -> JaxckptError:
    return error(
        f"{called}: {reason}.",
        got=str(path),
        needed="the path of a file, in a folder that exists and may be written to",
        advice=advice,
        path=path,
        problems=(),
    )


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
