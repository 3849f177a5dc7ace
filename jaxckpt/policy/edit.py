"""Edits of a policy file that keep its comments and layout where the policy did not change.

1. The text is split into parts: the text above the first table, and each table with the comments right above it.
2. A part whose entries are the same stays as it is; in another part the changed keys are set.
3. New rules are written; removed rules go with their comments.
4. The result is parsed. Where it is not the policy (a layout that is not understood), the policy is written anew.

Read after `toml`.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jaxckpt._errors import PolicyError
from jaxckpt.policy.policy import Policy
from jaxckpt.policy.rule import Rule
from jaxckpt.policy.toml import policy_entries, policy_from_toml, region_entries, rule_entries, toml_from_policy

_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]*?)\s*\]\]?\s*(#.*)?")
_KEYS = ("name", "for", "about", "default")


def edited(text: str, policy: Policy) -> str:
    r"""The text of a policy file, edited so that it holds another policy; unchanged parts keep their comments.

    Example:
      >>> before = 'default = "save"  # fits\n\n[[rule]]\nname = "qkv"  # wide\ndecision = "save"\n'
      >>> policy = Policy.from_toml(before.replace('"save"\n', '"offload"\n'))
      >>> print(edited(before, policy))
      default = "save"  # fits
      <BLANKLINE>
      [[rule]]
      name = "qkv"  # wide
      decision = "offload"
      space = "pinned_host"
      <BLANKLINE>
    """
    try:
        before = policy_from_toml(text)
        changed = text if before == policy else "".join(_parts(text, before, policy))
        if policy_from_toml(changed) == policy:
            return changed
    except (PolicyError, ValueError, IndexError, KeyError):
        pass  # a layout that is not understood: the content matters more than the comments
    return toml_from_policy(policy)


def _parts(text: str, before: Policy, after: Policy) -> Iterator[str]:
    top, tables = _split(text)
    yield _set(top, policy_entries(before), policy_entries(after))
    rules, regions = ([part for name, part in tables if name == wanted] for wanted in ("rule", "regions"))
    if len(rules) != len(before.rules) or len(rules) + len(regions) != len(tables):
        raise ValueError("tables that are no rules")
    if after.regions is not None:
        if before.regions is None:
            yield _written(Policy(regions=after.regions), "[regions]")
        else:
            yield _set(regions[0], region_entries(before.regions), region_entries(after.regions))
    for part in _rules(rules, before.rules, after.rules):
        yield part if part.endswith("\n") else part + "\n"


def _split(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The text above the tables, and the name and text of each table."""
    found: list[list[str]] = [[]]
    names: list[str] = []
    for line in text.splitlines(keepends=True):
        if (header := _HEADER.fullmatch(line.rstrip("\r\n"))) is not None:
            above = found[-1]
            start = len(above)
            while start and above[start - 1].strip().startswith("#"):
                start -= 1
            if not names and start == 0:  # comments at the very top are about the file
                start = len(above)
            found[-1], rest = above[:start], above[start:]
            found.append([*rest, line])
            names.append(header[1])
        else:
            found[-1].append(line)
    top, *tables = ("".join(lines) for lines in found)
    return top, list(zip(names, tables, strict=True))


def _rules(parts: Sequence[str], before: Sequence[Rule], after: Sequence[Rule]) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for what, start, stop, new_start, new_stop in matcher.get_opcodes():
        if what == "equal":
            yield from parts[start:stop]
            continue
        both = min(stop - start, new_stop - new_start)
        for old, new in zip(range(start, start + both), range(new_start, new_start + both), strict=True):
            yield _set(parts[old], rule_entries(before[old]), rule_entries(after[new]))
        for new in range(new_start + both, new_stop):
            yield _written(Policy(rules=(after[new],)), "[[rule]]")


def _written(policy: Policy, header: str) -> str:
    """The one table of a policy."""
    text = toml_from_policy(policy)
    return "\n" + text[text.index(header) :]


def _set(part: str, before: Iterable[tuple[str, Any]], after: Iterable[tuple[str, Any]]) -> str:
    """A part with the changed keys set and the removed ones deleted."""
    import tomlkit  # only to write: planning needs none

    old, new = dict(before), dict(after)
    if old == new:
        return part
    document = tomlkit.parse(part)
    table = _table_of(document)
    for key in [key for key in table if key in old and key not in new]:
        del table[key]
    for key, value in new.items():
        if key not in old or old[key] != value:
            table[key] = value  # the comment behind it stays
    return tomlkit.dumps(document)


def _table_of(document: Any) -> Any:
    """The one table of a part; the document itself for the keys above the tables."""
    if len(document) != 1 or set(document) & set(_KEYS):
        return document
    (table,) = document.values()
    return table[0] if isinstance(table, list) else table
