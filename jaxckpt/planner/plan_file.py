"""Plans as TOML files that a person can read and compare, and back.

A file says first what was asked and what it takes, then the decisions, then the arguments that the plan is for; bytes
and seconds have a comment in units for people. Reading gives the plan that was written, or an error that names all
that is wrong; nothing is executed.

Read after `document`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxckpt._errors import PlanFileError
from jaxckpt._files import require_place, write_to_place
from jaxckpt._records import RecordError, TomlTable, parse_toml, read_document
from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.planner.document import FORMAT, VERSION, document_from_plan, plan_from_document
from jaxckpt.planner.user_plan import Plan

_HEADER = (
    "A plan of jaxckpt: what to do with each residual of one training step.",
    "Read it with jaxckpt.load_plan. It fits only the step that it was made for. Decisions may be changed by hand; the",
    "figures are of the decisions as they were planned, and void then: jaxckpt plan --check FILE measures anew.",
)


def save_plan(plan: Plan, path: str | Path) -> None:
    """Writes a plan, each decided value described in it, to a TOML file, whole or not at all.

    A file that is there is replaced; a link is followed.

    Raises:
      PlanFileError: The path takes no file (its folder is not there or may not be written to, or it is a folder), or
        the plan holds what a file cannot (a number that is not one).
      OSError: The disk is full; what was there before is there still.
    """
    path = Path(path)
    require_folder(path)
    data = _checked_text(plan, path).encode()
    write_to_place(path, data, called=f"save_plan({str(path)!r})", error=PlanFileError)


def require_folder(path: Path) -> None:
    """Refuses a path that takes no plan file: worth asking before the plan is made."""
    require_place(path, called=f"save_plan({str(path)!r})", error=PlanFileError)


def text_from_plan(plan: Plan) -> str:
    """The text of a plan's file; each decided value must be described in the plan."""
    return _text(document_from_plan(plan))


def plan_from_text(text: str) -> Plan:
    """The plan that `text_from_plan` wrote, by the same version of jaxckpt: another process of one run."""
    return plan_from_document(parse_toml(text))


def load_plan(path: str | Path) -> Plan:
    """Reads a plan that `save_plan` wrote.

    Returns:
      An equal plan; if decisions were changed in the file, a plan as from `Plan.edited`. `apply` and `jaxckpt plan
      --check` say if it is for a given step.

    Raises:
      PlanFileError: The file does not exist, is no plan, is of an unknown version, or was changed elsewhere than in its
        decisions; all problems are numbered in the message and listed in `problems`.

    Example:
      >>> import pathlib, tempfile
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.value_and_grad(lambda x: jnp.sin(x).sum())
      >>> plan = jaxckpt.plan(step, jnp.ones(4), budget="1GiB", target="cpu")
      >>> path = pathlib.Path(tempfile.mkdtemp(), "plan.toml")
      >>> plan.save(path)
      >>> jaxckpt.load_plan(path) == plan
      True
    """
    path = Path(path)
    try:
        return plan_from_document(read_document(path, parse_toml, format_=FORMAT, version=VERSION))
    except RecordError as error:
        raise PlanFileError(
            f"load_plan({str(path)!r}): this is no plan that can be read.",
            got=str(error),
            needed=f'a file with format = "{FORMAT}", version = {VERSION}, as plan.save writes it',
            advice="plan again, take the file from where it was saved, or read it with the jaxckpt that wrote it",
            path=path,
            problems=error.problems,
        ) from error


def _checked_text(plan: Plan, path: Path) -> str:
    """The file's text, read back once: what a plan may hold and TOML may not is found now, not when it is loaded."""
    undescribed = set(plan.decisions).symmetric_difference(described.value for described in plan.described)
    try:
        if undescribed:
            raise ValueError(f"values {sorted(undescribed)} are decided but not described, or the other way round")
        text = text_from_plan(plan)
        if plan_from_text(text) != plan:
            raise ValueError("it does not read back equal")
        text.encode()
    except (ValueError, TypeError) as error:
        raise PlanFileError(
            f"save_plan({str(path)!r}): this plan cannot be written.",
            got=str(error),
            needed="a plan as the planner makes it: texts, numbers, and a description of each decided value",
            advice="report it, if the planner made it",
            path=path,
            problems=(str(error),),
        ) from error
    return text


### The text


def _text(document: TomlTable) -> str:
    import tomlkit  # only to write: planning needs none

    written = tomlkit.document()
    for line in _HEADER:
        written.add(tomlkit.comment(line))
    for key, entry in document.items():
        if isinstance(entry, dict):
            written.add(key, _table(entry))
        elif entry and isinstance(entry, list) and isinstance(entry[0], dict):
            tables = tomlkit.aot()
            for each in entry:
                tables.append(_table(each))
            written.add(key, tables)
        else:
            written.add(key, _item(key, entry))
    return tomlkit.dumps(written)


def _table(entries: Mapping[str, Any]) -> Any:
    import tomlkit  # only to write: planning needs none

    table = tomlkit.table()
    for key, entry in entries.items():
        table.add(key, _item(key, entry))
    return table


def _item(key: str, entry: Any) -> Any:
    """An entry; bytes and seconds say what they are, long lists of texts stand below each other."""
    import tomlkit  # only to write: planning needs none

    item: Any = tomlkit.item(entry)
    if key.endswith("_bytes") and entry >= 1024:
        item.comment(format_bytes(entry))
    elif key.endswith("_s") and entry:
        item.comment(format_seconds(entry))
    elif isinstance(entry, list) and entry and isinstance(entry[0], str):
        item.multiline(True)
    return item
