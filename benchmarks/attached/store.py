"""Answers are small JSON files in a scratch folder while a run goes on, and one JSON file afterwards.

A part is written whole or not at all, by whichever process has it; so a part that is there is an answer, and nobody has
to talk to anybody else. The one file holds all parts by their path, with what made them; a later run for the same
device and versions begins with them.
"""

import json
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxckpt._files import write_atomically

FORM = "jaxckpt attached 1"
HEADLINE = "headline"
"""The first word of answers about the largest batch; among the names of models it stands for these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The parts of one run.

    Attributes:
      folder: Where they lie.
    """

    folder: Path

    def path(self, *key: str) -> Path:
        """Where a part is."""
        return self.folder / "parts" / Path(*key[:-1]) / f"{key[-1]}.json"

    def file(self, *key: str) -> Path:
        """Where something goes that is no answer: a pickled plan, samples of gradients, a log."""
        path = self.folder / "files" / Path(*key)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def has(self, *key: str) -> bool:
        return self.path(*key).exists()

    def get(self, *key: str) -> dict[str, Any] | None:
        path = self.path(*key)
        return json.loads(path.read_text()) if path.exists() else None

    def put(self, *key: str, part: Mapping[str, Any]) -> None:
        path = self.path(*key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(part).encode())

    def record(self, *key: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """Makes a part, or one of what went wrong, and writes it: a benchmark goes on, what failed is a result."""
        try:
            part = dict(make())
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            part = {"error": text[:2000], "traceback": traceback.format_exc()[-4000:]}
        self.put(*key, part=part)
        said = f"failed: {part['error'].splitlines()[0][:150]}" if "error" in part else "done"
        print(f"{'/'.join(key):40} {said}", flush=True)
        return part

    def claim(self, *key: str) -> bool:
        """Whether this process is the one that does a job; of all that ask, one is."""
        try:
            self.file("claims", "-".join(key)).open("x").close()
        except FileExistsError:
            return False
        return True

    def is_claimed(self, *key: str) -> bool:
        """True if any process had the job."""
        return self.file("claims", "-".join(key)).exists()

    def keys(self) -> Iterator[tuple[str, ...]]:
        root = self.folder / "parts"
        for path in sorted(root.rglob("*.json")):
            yield tuple(path.relative_to(root).with_suffix("").parts)

    def merged(self) -> dict[str, dict[str, Any]]:
        """All parts by their path."""
        return {"/".join(key): part for key in self.keys() if (part := self.get(*key)) is not None}

    def forget_failures(self) -> None:
        """Deletes notes and what failed when it was run, so that it is asked again; plans that failed are kept."""
        for key in list(self.keys()):
            if key[0] == "notes" or (key[0] != "predicted" and "error" in (self.get(*key) or {})):
                self.path(*key).unlink()

    def unpack(self, parts: Mapping[str, Mapping[str, Any]]) -> None:
        """Puts parts of an earlier run where they were; those that failed are asked again."""
        for path, part in parts.items():
            if "error" not in part:
                self.put(*path.split("/"), part=part)


def read_result(path: Path, *, made_for: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The parts of a result's file; none where it is not there or was made for something else."""
    if not path.exists():
        return {}
    data = json.loads(path.read_text())
    same = data.get("form") == FORM and data.get("made_for") == json.loads(json.dumps(made_for))
    return data["parts"] if same else {}


def write_result(
    path: Path, *, made_for: Mapping[str, Any], made_with: Mapping[str, Any], parts: Mapping[str, Mapping[str, Any]]
) -> None:
    """Writes a result's file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"form": FORM, "made_for": made_for, "made_with": made_with, "parts": parts}
    write_atomically(path, (json.dumps(data, indent=1) + "\n").encode())
