"""Policies as TOML that people write, review and share.

A file holds `name`, `for`, `about`, `default`, a table `[regions]` with the keys of `Regions`, and any number of
`[[rule]]` tables. A rule's keys are those of `Match`, then `decision` with its own keys (`space` and `prefetch` of an
offload, `axis` and `dim` of a partition), `strength`, `optional` and `note`. An unknown key is an error that names the
closest known one. `edit` changes an existing file without losing its comments.

Read after `policy`.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, get_type_hints

from jaxckpt._errors import BudgetError, PolicyError
from jaxckpt._records import RecordError, RecordReader, numbered, parse_toml
from jaxckpt._units import format_bytes, parse_bytes
from jaxckpt.ir import DECISIONS
from jaxckpt.policy.policy import Default, Policy, Regions
from jaxckpt.policy.rule import Match, Rule, Strength

BYTES = ("min_bytes", "max_bytes")
"""Keys that take a number of bytes or an amount with its unit."""
NUMBERS = (*BYTES, "every", "min_flops")
TEXT_KEYS = {"name": "name", "for": "models", "about": "about"}
"""A policy's texts: the key in files, and the attribute."""

POLICY_KEYS: Mapping[str, Any] = {
    **dict.fromkeys(TEXT_KEYS, str),
    "default": Default,
    "regions": Regions,
    "rule": tuple[dict[str, Any], ...],
}
MATCH_KEYS = get_type_hints(Match)
RULE_KEYS: Mapping[str, Any] = {"strength": Strength, "optional": bool, "note": str}
_DECISION_KEYS = {
    word: {key.name: get_type_hints(kind)[key.name] for key in fields(kind)} for word, kind in DECISIONS.items()
}


def policy_from_toml(text: str) -> Policy:
    """Reads a policy from the text of a TOML file.

    Raises:
      PolicyError: The text is no TOML, or has keys or values that a policy cannot have; all problems are numbered.
    """
    reader = RecordReader()
    try:
        values = reader.values(POLICY_KEYS, parse_toml(text))
        tables = values.pop("rule", None) or ()
        rules = [
            _rule(reader, table, f"rule {number}: ") for number, table in enumerate(tables, 1) if table is not None
        ]
        reader.done()
    except RecordError as error:
        raise PolicyError(
            "this policy cannot be read.",
            got=numbered(error.problems),
            needed=f"the keys {', '.join(POLICY_KEYS)}; in a [[rule]] decision ({', '.join(DECISIONS)}),"
            f" {', '.join(RULE_KEYS)}, and any of {', '.join(MATCH_KEYS)}; in [regions] any of"
            f" {', '.join(each.name for each in fields(Regions))}",
            advice="see policies/ for policies that are ready to use",
            problems=error.problems,
        ) from error
    return Policy(
        rules=tuple(rule for rule in rules if rule is not None),
        **{TEXT_KEYS.get(key, key): value for key, value in values.items()},
    )


def _rule(reader: RecordReader, table: Mapping[str, Any], where: str) -> Rule | None:
    """A rule; None where its table has a problem."""
    before = len(reader.problems)
    word = str(table.get("decision"))
    own = _DECISION_KEYS.get(word, {})
    hints = {**MATCH_KEYS, "decision": Literal["save", "recompute", "offload", "partition"], **RULE_KEYS, **own}
    normalised = {key: _normalised(reader, key, value, where) for key, value in table.items()}
    values = reader.values(hints, normalised, where, required=("decision",))
    if len(reader.problems) > before:
        return None
    try:
        return Rule(
            match=Match(**_only(values, MATCH_KEYS)),
            decision=DECISIONS[word](**_only(values, own)),
            **_only(values, RULE_KEYS),
        )
    except ValueError as error:
        reader.problems.append(f"{where}{error}")
        return None


def _only(values: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key in keys}


def _normalised(reader: RecordReader, key: str, value: Any, where: str) -> Any:
    """The value of a key in its one type: bytes of an amount with a unit, ranges of layers for the number of one."""
    if key in BYTES and isinstance(value, str):
        try:
            return parse_bytes(value, called=key)
        except BudgetError as error:
            reader.problems.append(f"{where}{key} = {value!r} is no amount of memory: {error.needed}")
            return 0
    if key == "layers" and type(value) is int:
        return str(value)
    return int(value) if key in NUMBERS and isinstance(value, float) and value.is_integer() else value


### Writing


def toml_from_policy(policy: Policy) -> str:
    """A policy as TOML, without keys that have their default."""
    import tomlkit  # only to write: planning needs none

    tables = policy_tables(policy)
    document: dict[str, Any] = dict(*tables[""])
    if tables["regions"]:
        (document["regions"],) = tables["regions"]
    if tables["rule"]:
        document["rule"] = tables["rule"]
    return tomlkit.dumps(document)


def policy_tables(policy: Policy) -> dict[str, list[dict[str, Any]]]:
    """The tables of a policy's file by their name; "" is the name of the keys above the tables."""
    import tomlkit  # only to write: planning needs none

    texts = {key: text for key, attribute in TEXT_KEYS.items() if (text := getattr(policy, attribute))}
    top = {key: tomlkit.string(text, multiline="\n" in text and "\r" not in text) for key, text in texts.items()}
    return {
        "": [{**top, "default": policy.default}],
        "regions": [] if policy.regions is None else [_entries(policy.regions, always="scope")],
        "rule": [_rule_entries(rule) for rule in policy.rules],
    }


def _rule_entries(rule: Rule) -> dict[str, Any]:
    match = {key: _exact_bytes(value) if key in BYTES else value for key, value in _entries(rule.match).items()}
    return (
        match
        | {"decision": rule.decision.word}
        | _entries(rule.decision, always="space")
        | _only(_entries(rule), RULE_KEYS)
    )


def _entries(record: Any, *, always: str = "") -> dict[str, Any]:
    """The fields that differ from their default, and one that is always written."""
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    written = [each.name for each in fields(record) if each.name == always or values[each.name] != each.default]
    return {name: list(values[name]) if isinstance(values[name], tuple) else values[name] for name in written}


def _exact_bytes(size_bytes: int) -> int | str:
    """An amount with its unit where the unit is exact, else the number of bytes."""
    text = format_bytes(size_bytes).replace(" ", "")
    return text if size_bytes >= 1024 and parse_bytes(text) == size_bytes else size_bytes
