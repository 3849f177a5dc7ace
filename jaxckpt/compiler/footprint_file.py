"""Footprints as files: one JSON object with a version and a digest of its contents; ".gz" behind the name packs it.

Read after `footprint_data`.
"""

import gzip
import json
from pathlib import Path
from typing import Any

from jaxckpt._errors import FootprintFileError, HloError, PlanFileError
from jaxckpt._files import write_to_place
from jaxckpt._records import RecordError, digest, parse_json, read_document
from jaxckpt.compiler.footprint_data import Footprint
from jaxckpt.hlo import memory_from_plain, plain_from_memory

FORMAT = "jaxckpt footprint"
VERSION = 1


def save_footprint(footprint: Footprint, path: str | Path) -> None:
    """Writes a footprint with its memory map, completely or not at all.

    Raises:
      FootprintFileError: The path takes no file.
    """
    path = Path(path)
    contents = {
        "footprint": footprint.to_dict(),
        "memory": None if footprint.memory is None else plain_from_memory(footprint.memory),
    }
    document = {"format": FORMAT, "version": VERSION, "digest": digest(contents), **contents}
    data = json.dumps(document, separators=(",", ":")).encode()
    data = gzip.compress(data, mtime=0) if path.suffix == ".gz" else data
    write_to_place(path, data, called=f"save_footprint({str(path)!r})", error=FootprintFileError)


def load_footprint(path: str | Path) -> Footprint:
    """Reads a footprint that `save_footprint` wrote, with its memory map.

    Raises:
      FootprintFileError: The file is not there, is none of ours, or is not as it was written.
    """
    path = Path(path)
    try:
        document = read_document(path, parse_json, format_=FORMAT, version=VERSION)
        contents: dict[str, Any] = {key: document.get(key) for key in ("footprint", "memory")}
        if document.get("digest") != digest(contents):
            raise RecordError(["its digest is not that of its contents: it was changed after it was written"])
        figures = Footprint.from_dict(contents["footprint"])
        memory = None if contents["memory"] is None else memory_from_plain(contents["memory"])
    except (RecordError, HloError, PlanFileError) as error:
        raise FootprintFileError(
            f"load_footprint({str(path)!r}): this is no footprint that we can read.",
            got=str(error),
            needed=f'a file with format "{FORMAT}", version {VERSION}, as footprint.save writes it',
            advice="make the footprint again, take the file from where it was saved, or use the jaxckpt that wrote it",
            path=path,
        ) from error
    return figures.with_memory(memory)
