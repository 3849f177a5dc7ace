"""A fact file says in TOML what a device is; this module reads one and refuses what it does not understand.

The classes of `device_facts` are the schema: a key is a field, a field without default is a required key, and a
file must say `platform = "cuda" | "tpu" | "cpu"`, which chooses the class. Everything that is wrong with a file
is said at once. The files of this package lie in `facts/`; a user's own works in the same way. No jax here.
"""

import functools
import importlib.resources
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any

from jaxckpt._errors import TargetError, did_you_mean
from jaxckpt.machine.device_facts import CpuFacts, Facts, GpuFacts, TpuFacts
from jaxckpt.machine.toml_table import refusal, table_of, text_of

_SCHEMAS: Mapping[str, type] = {"cuda": GpuFacts, "tpu": TpuFacts, "cpu": CpuFacts}
_EXPECTED = {
    "str": "a text",
    "int": "a whole number above 0",
    "float": "a number above 0",
    "tuple[int, ...]": "whole numbers",
    "tuple[str, ...]": "texts",
}


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
    """Reads a user's own fact file.

    Args:
      path: Of a TOML file; the shipped ones are patterns to copy.

    Returns:
      The facts; not a `Target`, see `Target.from_facts`.

    Raises:
      UnknownTargetError: There is no such file.
      TargetError: The file is no TOML, or its keys are missing, unknown or of the wrong kind.
    """
    text = text_of(
        path,
        called="fact file",
        needed=f"a TOML file, or one of the names {', '.join(sorted(known_facts()))}",
        advice='jaxckpt.Target("h200"), or copy a file of jaxckpt/machine/facts and change it',
    )
    return facts_from_toml(text, source=str(path))


def facts_from_toml(text: str, *, source: str) -> Facts:
    """Reads the text of a fact file.

    Args:
      text: TOML.
      source: Name of the file, for messages.

    Returns:
      The facts of one device.

    Raises:
      TargetError: All that is wrong with the text, numbered; the sentences are also in `problems`.

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
    refused = functools.partial(_bad_file, source)
    table = table_of(text, refused=refused)
    platform = table.pop("platform", None)
    if platform not in _SCHEMAS:
        raise refused([f'platform = {platform!r} is none of "cuda", "tpu", "cpu"'])
    schema = _SCHEMAS[platform]
    problems = list(_table_problems(table, schema))
    if problems:
        raise refused(problems)
    facts = schema(**{key: _frozen(value) for key, value in table.items()})
    problems = list(facts.problems())
    if problems:
        raise refused(problems)
    return facts


def _table_problems(table: Mapping[str, Any], schema: type) -> Iterator[str]:
    keys = {field.name: field for field in fields(schema)}
    for name, field in keys.items():
        if name not in table and field.default is MISSING:
            yield f"{name} is missing: {_expected(field)}"
    for name, value in table.items():
        if name not in keys:
            yield f"{name} is no key{did_you_mean(name, set(keys) - set(table))}"
        elif not _fits(value, keys[name]):
            yield f"{name} = {value!r} should be {_expected(keys[name])}"
    measured = any(name.startswith("measured_") for name in table if name != "measured_source")
    if measured and "measured_source" not in table:
        yield "measured_source is missing: a measured figure needs its source"


def _kind(field: Field) -> str:
    """The type of a field as text, without the None that stands for "not given"."""
    type_ = field.type
    return str(getattr(type_, "__name__", type_) if isinstance(type_, type) else type_).removesuffix(" | None")


def _expected(field: Field) -> str:
    return _EXPECTED[_kind(field)]


def _fits(value: Any, field: Field) -> bool:
    kind = _kind(field)
    if kind == "str":
        return isinstance(value, str) and bool(value)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool) and value > 0
    if kind == "float":
        return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    member = int if kind == "tuple[int, ...]" else str
    return isinstance(value, list) and all(isinstance(each, member) for each in value)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _bad_file(source: str, problems: Sequence[str]) -> TargetError:
    return refusal(
        f"fact file {source} does not describe a device.",
        problems,
        needed='every key without default and no other; platform = "cuda", "tpu" or "cpu" chooses the keys',
        advice="start from a file of jaxckpt/machine/facts",
        source=source,
    )
