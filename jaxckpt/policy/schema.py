"""The JSON schema of policy files, by which editors complete and check them.

The schema is generated from the dataclasses and the words that `toml` reads, and its descriptions from their
docstrings. `python -m jaxckpt.policy.schema` writes `policies/policy.schema.json`; editors check a file that begins
with `#:schema ./policy.schema.json` (the directive of Taplo, a TOML language server).

The schema allows every file that `toml` reads, and a few more: `toml` alone checks that a list of layers ascends and
that an amount of memory is one.

Read after `toml`.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from jaxckpt._files import write_atomically
from jaxckpt.ir import Decision
from jaxckpt.policy.policy import Policy, Regions
from jaxckpt.policy.rule import Match, Rule
from jaxckpt.policy.toml import (
    BOUNDARIES,
    BYTES,
    DECISIONS,
    DEFAULTS,
    FLAGS,
    NUMBERS,
    STRENGTHS,
    TEXT_KEYS,
    type_of_key,
)

FILE = Path(__file__).parents[2] / "policies" / "policy.schema.json"
"""The file of the schema in a checkout."""

_ENTRY = re.compile(r"^ {2,8}(\w+): (.*?)(?=^ {2,8}\w+: |^\s*$|\Z)", re.MULTILINE | re.DOTALL)


def policy_schema() -> dict[str, Any]:
    """The schema as plain data.

    Example:
      >>> sorted(policy_schema()["properties"])
      ['about', 'default', 'for', 'name', 'regions', 'rule']
    """
    docs = _docs(Policy)
    texts = {key: {"type": "string", "description": docs[attribute]} for key, attribute in TEXT_KEYS.items()}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "A policy of jaxckpt",
        "description": "Rules that decide about the values of any training step; the first that matches decides.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            **texts,
            "default": {"enum": list(DEFAULTS), "default": "recompute", "description": docs["default"]},
            "regions": _regions(),
            "rule": {"type": "array", "description": docs["rules"], "items": {"oneOf": list(_rules())}},
        },
    }


def schema_text() -> str:
    """The schema as the text of its file."""
    return json.dumps(policy_schema(), indent=2) + "\n"


def _regions() -> dict[str, Any]:
    docs = _docs(Regions)
    kinds: dict[type, dict[str, Any]] = {
        bool: {"type": "boolean"},
        str: {"type": "string"},
        tuple: {"type": "array", "items": {"type": "string"}},
    }
    return {
        "type": "object",
        "description": _docs(Policy)["regions"],
        "additionalProperties": False,
        "properties": {
            each.name: {**kinds[type(each.default)], "default": each.default, "description": docs[each.name]}
            for each in fields(Regions)
        },
    }


def _rules() -> Iterator[dict[str, Any]]:
    """One form of rule for each decision, with the keys that belong to it."""
    match, rule = _docs(Match), _docs(Rule)
    keys = {each.name: {**_match_key(each.name), "description": match[each.name]} for each in fields(Match)}
    for word, kind in DECISIONS.items():
        own = {each.name: _own_key(kind, each) for each in fields(kind)}
        yield {
            "title": word,
            "description": (kind.__doc__ or "").splitlines()[0],
            "type": "object",
            "additionalProperties": False,
            "required": ["decision", *(each.name for each in fields(kind) if each.default is MISSING)],
            "properties": {
                **keys,
                "decision": {"const": word, "description": rule["decision"]},
                **own,
                "strength": {"enum": list(STRENGTHS), "default": "must", "description": rule["strength"]},
                "optional": {"type": "boolean", "default": False, "description": rule["optional"]},
                "note": {"type": "string", "description": rule["note"]},
            },
        }


def _match_key(key: str) -> dict[str, Any]:
    if key in BYTES:
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\s*[0-9.]"}]}
    if key in NUMBERS:
        return {"type": "integer", "minimum": 1 if key == "every" else 0}
    if key == "layers":
        return {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^[0-9][0-9,-]*$"}]}
    if key in FLAGS:
        return {"type": "boolean"}
    return {"enum": list(BOUNDARIES)} if key == "boundary" else {"type": "string"}


def _own_key(kind: type[Decision], key: "Field[Any]") -> dict[str, Any]:
    """The schema of a decision's key, such as `prefetch` or `axis`; a default of None is left out."""
    kind_of_key = {int: "integer", str: "string", bool: "boolean"}[type_of_key(key)]
    schema = {"type": kind_of_key, "description": _docs(kind)[key.name]}
    return schema if key.default in (MISSING, None) else {**schema, "default": key.default}


def _docs(kind: type) -> dict[str, str]:
    """The description of each attribute in the docstring of a dataclass."""
    _, _, attributes = (kind.__doc__ or "").partition("Attributes:\n")
    attributes = attributes.partition("Example:")[0]
    return {match[1]: " ".join(match[2].split()) for match in _ENTRY.finditer(attributes)}


if __name__ == "__main__":
    write_atomically(FILE, schema_text().encode())
    print(f"wrote {FILE}")
