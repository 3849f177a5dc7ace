"""Edits of a policy file that keep its comments and layout where the policy did not change.

1. The text is split into parts: the text above the first table, and each table with the comments right above it.
2. A part whose entries are the same stays as it is; in another part the changed keys are set.
3. New rules are written; removed rules go with their comments.
4. The result is parsed. Where it is not the policy (a layout that is not understood), the policy is written anew.

Read after `toml`.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxckpt._errors import PolicyError
from jaxckpt.policy.policy import Policy
from jaxckpt.policy.toml import policy_from_toml, policy_tables, toml_from_policy

_HEADER = re.compile(r"\s*\[\[?\s*([^\[\]]*?)\s*\]\]?\s*(#.*)?")


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
    parts, old, new = _split(text), policy_tables(before), policy_tables(after)
    if {name: len(texts) for name, texts in parts.items()} != {name: len(tables) for name, tables in old.items()}:
        raise ValueError("tables that are no rules")
    for name in parts:
        for part in _aligned(name, parts[name], old[name], new[name]):
            yield f"{part}\n" if name and not part.endswith("\n") else part


def _split(text: str) -> dict[str, list[str]]:
    """The texts of all tables by their name; "" is the name of the text above them."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    for line in text.splitlines(keepends=True):
        if (header := _HEADER.fullmatch(line.rstrip("\r\n"))) is not None:
            above = parts[-1][1]
            start = len(above)
            while start and above[start - 1].strip().startswith("#"):
                start -= 1
            if len(parts) == 1 and start == 0:  # comments at the very top are about the file
                start = len(above)
            parts.append((header[1], above[start:]))
            del above[start:]
        parts[-1][1].append(line)
    texts: dict[str, list[str]] = {"": [], "regions": [], "rule": []}
    for name, lines in parts:
        texts[name].append("".join(lines))
    return texts


def _aligned(
    name: str, parts: Sequence[str], old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """The texts of new tables of one name: as they are where a table is unchanged, else edited or written."""
    import tomlkit  # only to write: planning needs none

    matcher = difflib.SequenceMatcher(None, list(map(str, old)), list(map(str, new)), autojunk=False)
    for what, start, stop, new_start, new_stop in matcher.get_opcodes():
        if what == "equal":
            yield from parts[start:stop]
            continue
        both = min(stop - start, new_stop - new_start)
        for i in range(both):
            yield _set(name, parts[start + i], old[start + i], new[new_start + i])
        for table in new[new_start + both : new_stop]:
            yield "\n" + tomlkit.dumps({name: table if name == "regions" else [table]})


def _set(name: str, part: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """A part with the changed keys set and the removed ones deleted."""
    import tomlkit  # only to write: planning needs none

    document = tomlkit.parse(part)
    found: Any = document[name] if name else document
    table = found[0] if name == "rule" else found
    for key in [key for key in table if key in old and key not in new]:
        del table[key]
    for key, value in new.items():
        if key not in old or old[key] != value:
            table[key] = value  # the comment behind it stays
    return tomlkit.dumps(document)
