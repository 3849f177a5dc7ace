"""Fact files: TOML files that describe a device each; and the text of any file that a user names.

The classes of `device_facts` are the schema (`jaxckpt._records`), and `platform = "cuda" | "tpu" | "cpu"` chooses the
class. The error of a wrong file has all problems. The files of this package lie in `facts/`; a user's own file works in
the same way. No jax here.
"""

import functools
import importlib.resources
import pathlib
from collections.abc import Mapping

from jaxckpt._errors import TargetError, UnknownTargetError
from jaxckpt._records import RecordError, parse_toml, read_record
from jaxckpt.machine.device_facts import CpuFacts, Facts, GpuFacts, TpuFacts

_CLASSES: Mapping[str, type] = {"cuda": GpuFacts, "tpu": TpuFacts, "cpu": CpuFacts}


@functools.cache
def known_facts() -> Mapping[str, Facts]:
    """The facts that this package ships, by name of the device; not to be changed.

    Example:
      >>> sorted(known_facts())[:3]
      ['a100-40', 'a100-80', 'b200']
    """
    folder = importlib.resources.files("jaxckpt.machine") / "facts"
    files = sorted(folder.iterdir(), key=lambda file: file.name)
    return {
        file.name.removesuffix(".toml"): facts_from_toml(file.read_text("utf-8"), source=file.name)
        for file in files
        if file.name.endswith(".toml")
    }


def load_facts(path: str | pathlib.Path) -> Facts:
    """Reads a user's own fact file; the shipped ones are patterns to copy.

    Raises:
      UnknownTargetError: There is no such file.
      TargetError: The file is no TOML, or its keys are missing, unknown or of the wrong kind.
    """
    text = text_of_file(
        path,
        called="fact file",
        needed=f"a TOML file, or one of the names {', '.join(sorted(known_facts()))}",
        advice='jaxckpt.Target("h200"), or copy a file of jaxckpt/machine/facts and change it',
    )
    return facts_from_toml(text, source=str(path))


def facts_from_toml(text: str, *, source: str) -> Facts:
    """Reads the text of a fact file; the source is its name for messages, and a `TargetError` has all `problems`.

    Example:
      >>> toml = '''platform = "cpu"
      ... description = "my laptop"
      ... device_memory_bytes = 34359738368
      ... memory_bandwidth = 60000000000
      ... f32_flops = 1e12
      ... host_link_bandwidth = 60e9'''
      >>> facts_from_toml(toml, source="laptop.toml").description
      'my laptop'
    """
    try:
        table = parse_toml(text)
        platform = table.pop("platform", None)
        if platform not in _CLASSES:
            raise RecordError([f'platform = {platform!r} is none of "cuda", "tpu", "cpu"'])
        facts: GpuFacts | TpuFacts | CpuFacts = read_record(_CLASSES[platform], table)
        if problems := tuple(facts.problems()):
            raise RecordError(problems)
    except RecordError as error:
        raise TargetError(
            f"fact file {source} does not describe a device.",
            got=str(error),
            needed='every key without default and no other; platform = "cuda", "tpu" or "cpu" chooses the keys',
            advice="start from a file of jaxckpt/machine/facts",
            source=source,
            problems=error.problems,
        ) from error
    return facts


def text_of_file(path: str | pathlib.Path, *, called: str, needed: str, advice: str) -> str:
    """The text of a user's file; an `UnknownTargetError` if there is none."""
    try:
        return pathlib.Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnknownTargetError(
            f"{called} {path} cannot be read.",
            got=f'"{path}" ({error.strerror if isinstance(error, OSError) else error})',
            needed=needed,
            advice=advice,
            name=str(path),
        ) from error
