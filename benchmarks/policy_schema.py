"""The JSON schema of policy files, by which editors complete and check them.

The schema is generated from the dataclasses and the words that `toml` reads, and its descriptions from their
docstrings. `python -m benchmarks.policy_schema` writes `policies/policy.schema.json`; editors check a file that begins
with `#:schema ./policy.schema.json` (the directive of Taplo, a TOML language server).

The schema allows every file that `toml` reads, and a few more: `toml` alone checks that a list of layers ascends and
that an amount of memory is one.

Read after `jaxckpt.policy.toml`.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from jaxckpt._files import write_atomically
from jaxckpt.policy.policy import Policy, Regions
from jaxckpt.policy.rule import Match, Rule
from jaxckpt.policy.toml import BYTES, DECISIONS, RULE_KEYS, TEXT_KEYS

FILE = Path(__file__).parents[1] / "policies" / "policy.schema.json"
"""The file of the schema in a checkout."""

_ENTRY = re.compile(r"^ {2,8}(\w+): (.*?)(?=^ {2,8}\w+: |^\s*$|\Z)", re.MULTILINE | re.DOTALL)
_TYPES = {int: "integer", str: "string", bool: "boolean"}
_NATURAL = {"type": "integer", "minimum": 0}
_MATCH_SCHEMAS: dict[str, dict[str, Any]] = {
    **{key: {"anyOf": [_NATURAL, {"type": "string", "pattern": r"^\s*[0-9.]"}]} for key in BYTES},
    "every": {"type": "integer", "minimum": 1},
    "min_flops": _NATURAL,
    "layers": {"anyOf": [_NATURAL, {"type": "string", "pattern": r"^[0-9][0-9,-]*$"}]},
}
"""Schemas of keys whose type does not say all."""


def policy_schema() -> dict[str, Any]:
    """The schema as plain data."""
    docs = _docs(Policy)
    keys = _properties(Policy, (*TEXT_KEYS.values(), "default"))
    regions = _object(_properties(Regions), description=docs["regions"])
    return _object(
        {
            **{key: keys[attribute] for key, attribute in TEXT_KEYS.items()},
            "default": keys["default"],
            "regions": regions,
            "rule": {"type": "array", "description": docs["rules"], "items": {"oneOf": list(_rules())}},
        },
        **{"$schema": "http://json-schema.org/draft-07/schema#"},
        title="A policy of jaxckpt",
        description="Rules that decide about the values of any training step; the first that matches decides.",
    )


def schema_text() -> str:
    """The schema as the text of its file."""
    return json.dumps(policy_schema(), indent=2) + "\n"


def _object(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**more, "type": "object", "additionalProperties": False, "properties": properties}


def _rules() -> Iterator[dict[str, Any]]:
    """One form of rule for each decision, with the keys that belong to it."""
    for word, kind in DECISIONS.items():
        properties = {
            **_properties(Match),
            "decision": {"const": word, "description": _docs(Rule)["decision"]},
            **_properties(kind),
            **_properties(Rule, tuple(RULE_KEYS)),
        }
        yield _object(properties, title=word, description=(kind.__doc__ or "").splitlines()[0], required=["decision"])


def _properties(kind: type, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """The schema of each field of a dataclass, or of some; a default of None is left out."""
    hints, docs = get_type_hints(kind), _docs(kind)
    found: dict[str, Any] = {}
    for each in fields(kind):
        if not names or each.name in names:
            schema = _MATCH_SCHEMAS.get(each.name) or _schema(hints[each.name])
            default = {} if each.default in (MISSING, None) else {"default": each.default}
            found[each.name] = {**schema, **default, "description": docs[each.name]}
    return found


def _schema(hint: Any) -> dict[str, Any]:
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _schema(get_args(hint)[0])}
    return {"type": _TYPES[hint]} if hint in _TYPES else _schema(get_args(hint)[0])  # `X | None`


def _docs(kind: type) -> dict[str, str]:
    """The description of each attribute in the docstring of a dataclass."""
    _, _, attributes = (kind.__doc__ or "").partition("Attributes:\n")
    attributes = attributes.partition("Example:")[0]
    return {match[1]: " ".join(match[2].split()) for match in _ENTRY.finditer(attributes)}


if __name__ == "__main__":
    write_atomically(FILE, schema_text().encode())
    print(f"wrote {FILE}")
