"""Sources of a configuration: a mapping, a file, or the text of one, in JSON or YAML.

Read after `checks`.
"""

import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from jaxckpt._errors import MissingPackageError
from jaxckpt.policy.readers.checks import Checks

Source = Mapping[str, Any] | str | Path


def text_of(source: str | Path, checks: Checks) -> str:
    """The text of a file, for a path; any other text itself."""
    try:
        if isinstance(source, Path) or ("\n" not in source and Path(source).is_file()):
            return Path(source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        checks.wrong(f"{str(source)!r} cannot be read: {error}")
        checks.refuse(cause=error)
    except ValueError:  # a text that no path can be
        pass
    return str(source)


def mapping_of(source: Source, checks: Checks, *, yaml: bool = False) -> Mapping[str, Any]:
    """The keys and values of a mapping, a file or its text: JSON, and YAML for systems that write it."""
    if isinstance(source, Mapping):
        return source
    text = text_of(source, checks)
    try:
        found = _json(text)
    except (ValueError, RecursionError) as error:
        found = _yaml(text, checks) if yaml else None
        if not yaml:
            checks.wrong(f"it is no JSON: {error}" if text.strip().startswith("{") else _no_file(text))
            checks.refuse(cause=error)
    if not isinstance(found, dict):
        checks.wrong(
            _no_file(text) if isinstance(found, str) else f"it is no table of keys and values: {found!r}"[:200]
        )
        checks.refuse()
    return found


def _no_file(text: str) -> str:
    return f"{text[:80]!r} is neither a file nor the text of a configuration"


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique_keys)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table, in which no key occurs twice; `json` would silently take the last value of such a key."""
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated!r} occurs twice")
    return table


def _yaml(text: str, checks: Checks) -> Any:
    try:
        yaml = import_module("yaml")
    except ImportError as error:
        raise MissingPackageError(
            f"{checks.reader}: this configuration is YAML, and no package that reads YAML is installed.",
            got="no package named yaml",
            needed="PyYAML",
            advice='pip install "jaxckpt[yaml]", or hand over the table: json.dumps of it, or a dict',
        ) from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        checks.wrong(f"it is no YAML: {' '.join(str(error).split())}"[:300])
        checks.refuse(cause=error)
