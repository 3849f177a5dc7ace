"""Files of a target, the text of a file and the error of a wrong file. No jax."""

import pathlib

from jaxckpt._errors import TargetError, UnknownTargetError
from jaxckpt._records import RecordError


def text_of(path: str | pathlib.Path, *, called: str, needed: str, advice: str) -> str:
    """The text of a user's file; an `UnknownTargetError` if there is none."""
    try:
        return pathlib.Path(path).read_text("utf-8")
    except OSError as error:
        raise UnknownTargetError(
            f"{called} {path} cannot be read.",
            got=f'"{path}" ({error.strerror})',
            needed=needed,
            advice=advice,
            name=str(path),
        ) from error


def wrong_file(sentence: str, error: RecordError, *, needed: str, advice: str, source: str) -> TargetError:
    """The error of a file with all its problems; they are in `problems` too."""
    return TargetError(sentence, got=str(error), needed=needed, advice=advice, source=source, problems=error.problems)
