"""Policies as TOML that people write, review and share.

A file holds `name`, `for`, `about`, `default`, a table `[regions]` with the keys of `Regions`, and any number of
`[[rule]]` tables. A rule's keys are those of `Match`, then `decision` with its own keys (`space` and `prefetch` of an
offload, `axis` and `dim` of a partition), `strength`, `optional` and `note`. An unknown key is an error that names the
closest known one. `edit` changes an existing file without losing its comments.

Read after `policy`.
"""

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, cast, get_args

from jaxckpt._errors import BudgetError, PolicyError, did_you_mean
from jaxckpt._units import format_bytes, parse_bytes
from jaxckpt.ir import Decision, Offload, Partition, Recompute, Save
from jaxckpt.policy.policy import Policy, Regions
from jaxckpt.policy.rule import Match, Rule

DECISIONS: Mapping[str, type[Decision]] = {
    "save": Save,
    "recompute": Recompute,
    "offload": Offload,
    "partition": Partition,
}
"""The words for decisions in files."""

DEFAULTS = ("save", "recompute")
STRENGTHS = ("must", "prefer")
BOUNDARIES = ("input", "output")
BYTES = ("min_bytes", "max_bytes")
"""Keys that take a number of bytes or an amount with its unit."""

NUMBERS = (*BYTES, "every", "min_flops")
FLAGS = ("batched", "between_batched", "random", "collective")
_TYPES: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(NUMBERS, (int, "number")),
    **dict.fromkeys(FLAGS, (bool, "true or false")),
}
"""Type of a match key, with its name in messages; every other key is a text."""
TEXT_KEYS = {"name": "name", "for": "models", "about": "about"}
"""A policy's texts: the key in files, and the attribute."""

_POLICY_KEYS = (*TEXT_KEYS, "default", "regions", "rule")
_MATCH_KEYS = tuple(each.name for each in fields(Match))
_REGION_KEYS = tuple(each.name for each in fields(Regions))


def policy_from_toml(text: str) -> Policy:
    """Reads a policy.

    Args:
      text: Of a TOML file.

    Returns:
      The policy; comments are not in it.

    Raises:
      PolicyError: The text is no TOML, or says what no policy can; all that is wrong is numbered.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong((f"it is no TOML: {error}",)) from error
    reading = _TomlReader()
    policy = reading.policy(document)
    if reading.problems:
        raise _wrong(tuple(reading.problems))
    return policy


def _wrong(problems: tuple[str, ...]) -> PolicyError:
    numbered = [f"({i}) {problem}" for i, problem in enumerate(problems, 1)] if len(problems) > 1 else list(problems)
    return PolicyError(
        "this policy cannot be read.",
        got="; ".join(numbered),
        needed=f"the keys {', '.join(_POLICY_KEYS)}; in a [[rule]] decision ({', '.join(DECISIONS)}), strength,"
        f" optional, note, and any of {', '.join(_MATCH_KEYS)}; in [regions] any of {', '.join(_REGION_KEYS)}",
        advice="see policies/ for policies that are ready to use",
        problems=problems,
    )


@dataclass(slots=True)
class _TomlReader:
    """Builds a policy from a parsed file and collects problems."""

    problems: list[str] = field(default_factory=list)

    def policy(self, document: Mapping[str, Any]) -> Policy:
        self._known(document, _POLICY_KEYS, "")
        rules = document.get("rule", [])
        if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
            self.problems.append("rule is no list of tables: write [[rule]]")
            rules = []
        read = [self._rule(rule, f"rule {number}: ") for number, rule in enumerate(rules, 1)]
        return Policy(
            name=self._text(document, "name", "", default="unnamed"),
            models=self._text(document, "for", ""),
            about=self._text(document, "about", ""),
            default=self._one_of(document, "default", DEFAULTS, "", default="recompute"),
            regions=self._regions(document["regions"]) if "regions" in document else None,
            rules=tuple(rule for rule in read if rule is not None),
        )

    def _regions(self, table: object) -> Regions | None:
        if not isinstance(table, dict):
            self.problems.append("regions is no table: write [regions]")
            return None
        self._known(table, _REGION_KEYS, "regions: ")
        read: dict[str, Any] = {}
        for each in fields(Regions):
            value = table.get(each.name, each.default)
            if each.name == "exclude":
                if not isinstance(value, (list, tuple)) or not all(isinstance(glob, str) for glob in value):
                    self.problems.append(f"regions: exclude = {value!r} is no list of texts")
                read["exclude"] = tuple(value) if isinstance(value, (list, tuple)) else ()
            elif type(value) is not type(each.default):
                kind = "text" if each.name == "scope" else "true or false"
                self.problems.append(f"regions: {each.name} = {value!r} is no {kind}")
            else:
                read[each.name] = value
        return Regions(**read)

    def _rule(self, table: Mapping[str, Any], where: str) -> Rule | None:
        before = len(self.problems)
        word = self._one_of(table, "decision", tuple(DECISIONS), where, default=None)
        kind = DECISIONS.get(word or "", Save)
        own = tuple(each.name for each in fields(kind))
        self._known(table, (*_MATCH_KEYS, "decision", "strength", "optional", "note", *own), where)
        optional = self._flag(table, "optional", where)
        strength = self._one_of(table, "strength", STRENGTHS, where, default="must")
        note = self._text(table, "note", where)
        given = {key: table[key] for key in own if key in table}
        match = {key: self._match_key(table, key, where) for key in _MATCH_KEYS if key in table}
        if len(self.problems) > before:
            return None
        try:
            decision = _decision(kind, given)
            return Rule(match=Match(**match), decision=decision, strength=strength, optional=optional, note=note)
        except (TypeError, ValueError) as error:
            self.problems.append(f"{where}{error}")
            return None

    def _match_key(self, table: Mapping[str, Any], key: str, where: str) -> Any:
        value = table[key]
        if key in BYTES and isinstance(value, str):
            return self._bytes(key, value, where)
        if key == "boundary":
            return self._one_of(table, key, BOUNDARIES, where, default=None)
        if key == "layers" and type(value) is int:
            return str(value)
        if key in NUMBERS and isinstance(value, float) and value.is_integer():
            return int(value)
        wanted, called = _TYPES.get(key, (str, "text"))
        if type(value) is not wanted:
            self.problems.append(f"{where}{key} = {value!r} is no {called}")
        return value

    def _bytes(self, key: str, value: str, where: str) -> int:
        """The bytes of an amount with a unit; 0 where the text is none."""
        try:
            return parse_bytes(value, called=key)
        except BudgetError as error:
            self.problems.append(f"{where}{key} = {value!r} is no amount of memory: {error.needed}")
            return 0

    def _known(self, table: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
        for key in table:
            if key not in keys:
                self.problems.append(f"{where}{key!r} is no key{did_you_mean(key, keys)}")

    def _text(self, table: Mapping[str, Any], key: str, where: str, *, default: str = "") -> str:
        value = table.get(key, default)
        if not isinstance(value, str):
            self.problems.append(f"{where}{key} = {value!r} is no text")
            return default
        return value

    def _flag(self, table: Mapping[str, Any], key: str, where: str) -> bool:
        value = table.get(key, False)
        if not isinstance(value, bool):
            self.problems.append(f"{where}{key} = {value!r} is neither true nor false")
        return value is True

    def _one_of(self, table: Mapping[str, Any], key: str, words: tuple[str, ...], where: str, *, default: Any) -> Any:
        value = table.get(key, default)
        if value not in words:
            problem = f"{key} = {value!r}" if key in table else f"{key} is missing"
            self.problems.append(f"{where}{problem}; it is one of {', '.join(words)}")
            return default
        return value


def _decision(kind: type[Decision], given: Mapping[str, Any]) -> Decision:
    """A decision with the keys that the table gives."""
    wanted = {each.name: type_of_key(each) for each in fields(kind)}
    for key, value in given.items():
        if type(value) is not wanted[key]:
            raise TypeError(f"{key} = {value!r} is no {wanted[key].__name__}")
    missing = [each.name for each in fields(kind) if each.name not in given and not _has_default(each)]
    if missing:
        raise TypeError(f"a {kind.__name__.lower()} needs {' and '.join(missing)}")
    return kind(**given)


def type_of_key(each: "Field[Any]") -> type:
    """The type of a field in files; an optional field is left out of files where it is None."""
    wanted, *_ = (kind for kind in (get_args(each.type) or (each.type,)) if kind is not type(None))
    return cast(type, wanted)


def _has_default(each: "Field[Any]") -> bool:
    return each.default is not MISSING or each.default_factory is not MISSING


### Writing


def toml_from_policy(policy: Policy) -> str:
    """A policy as TOML, without keys that have their default."""
    import tomlkit  # only to write: planning needs none

    document = tomlkit.document()
    for key, value in policy_entries(policy):
        document.add(key, value)
    if policy.regions is not None:
        document.add("regions", _table(region_entries(policy.regions)))
    if policy.rules:
        rules = tomlkit.aot()
        for rule in policy.rules:
            rules.append(_table(rule_entries(rule)))
        document.add("rule", rules)
    return tomlkit.dumps(document)


def policy_entries(policy: Policy) -> Iterator[tuple[str, Any]]:
    """The keys and values above the tables of a policy's file."""
    import tomlkit  # only to write: planning needs none

    for key, attribute in TEXT_KEYS.items():
        if text := getattr(policy, attribute):
            yield key, tomlkit.string(text, multiline="\n" in text and "\r" not in text)
    yield "default", policy.default


def region_entries(regions: Regions) -> Iterator[tuple[str, Any]]:
    """The keys and values of `[regions]`: the scope, and those that differ from their default."""
    for each in fields(regions):
        value = getattr(regions, each.name)
        if each.name == "scope" or value != each.default:
            yield each.name, list(value) if isinstance(value, tuple) else value


def rule_entries(rule: Rule) -> Iterator[tuple[str, Any]]:
    """The keys and values of a `[[rule]]`."""
    yield from _match_entries(rule.match)
    yield from _decision_entries(rule.decision)
    if rule.strength != "must":
        yield "strength", rule.strength
    if rule.optional:
        yield "optional", True
    if rule.note:
        yield "note", rule.note


def _match_entries(match: Match) -> Iterator[tuple[str, Any]]:
    for each in fields(match):
        value = getattr(match, each.name)
        if value is not None:
            yield each.name, _exact_bytes(value) if each.name in BYTES else value


def _decision_entries(decision: Decision) -> Iterator[tuple[str, Any]]:
    words: dict[type, str] = {kind: word for word, kind in DECISIONS.items()}
    yield "decision", words[type(decision)]
    for each in fields(decision):
        if (value := getattr(decision, each.name)) is not None and value is not False:
            yield each.name, value


def _table(entries: Iterator[tuple[str, Any]]) -> Any:
    import tomlkit  # only to write: planning needs none

    table = tomlkit.table()
    for key, value in entries:
        table.add(key, value)
    return table


def _exact_bytes(size_bytes: int) -> int | str:
    """An amount with its unit where the unit is exact, else the number of bytes."""
    text = format_bytes(size_bytes).replace(" ", "")
    unit: Callable[[str], int] = parse_bytes
    return text if size_bytes >= 1024 and unit(text) == size_bytes else size_bytes
