"""A plan as a document: nested dicts, lists, texts and numbers, as TOML and JSON have them, and back.

Decisions are written one entry for each kind of value, the same value of every layer together ("GPT/block_*/qkv",
layers "0-11"). The document holds a digest of itself: its figures were measured for these very decisions, so a
document in which either was changed is no plan. (What a person may write by hand is a policy.)

Read after `plan`. How a document becomes a file, see `file`.
"""

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from jaxckpt import ir
from jaxckpt._version import __version__
from jaxckpt.compiler import Footprint
from jaxckpt.planner.plan import Argument, Attempt, Described, Plan

FORMAT = "jaxckpt-plan"
VERSION = 1

Document = dict[str, Any]

_DECISIONS = {"save": ir.Save, "recompute": ir.Recompute, "offload": ir.Offload, "partition": ir.Partition}
_WORD = {kind: word for word, kind in _DECISIONS.items()}
_ARGUMENT = re.compile(r"(?P<path>.*) (?P<dtype>[^ \[\]]+)\[(?P<shape>[0-9]*(?:,[0-9]+)*)\]", re.DOTALL)


### From a plan


def document_from_plan(plan: Plan) -> Document:
    """Writes a plan as a document.

    Returns:
      Equal plans of one version of jaxckpt and jax give equal documents, keys in reading order.
    """
    document: Document = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": plan.fingerprint,
        "strategy": plan.strategy,
        "target": plan.target,
        "budget_bytes": plan.budget_bytes,
        "notes": list(plan.notes),
        "stages": list(plan.stages),
        "layers": list(plan.layers),
        "stretches": [{"loop": each.loop, "lengths": list(each.lengths)} for each in plan.loop_splits],
        "nests": list(map(_record, plan.loop_tilings)),
        "written_by": _versions(),
        "predicted": None if plan.prediction is None else _record(plan.prediction),
        "measured": None if plan.footprint is None else plan.footprint.to_dict(),
        "attempt": list(map(_record, plan.attempts)),
        "decision": list(_entries(plan)),
        "arguments": {"static_argnums": list(plan.static_argnums), "flat": list(map(_line, plan.arguments))},
    }
    for key in ("budget_bytes", "predicted", "measured", "attempt", "decision", "layers", "stretches", "nests"):
        if document[key] in (None, []):
            del document[key]
    return {"format": FORMAT, "version": VERSION, "digest": digest(document), **document}


def digest(document: Mapping[str, Any]) -> str:
    """A hash of all that a document says, but for its own digest; not of comments or order."""
    said = {key: entry for key, entry in document.items() if key != "digest"}
    text = json.dumps(said, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _versions() -> dict[str, str]:
    return {"jaxckpt": __version__} | {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}


def _record(data: Any) -> Document:
    return {each.name: getattr(data, each.name) for each in fields(data) if each.compare}


def _line(argument: Argument) -> str:
    return f"{argument.path} {argument.dtype}[{','.join(map(str, argument.shape))}]"


def _entries(plan: Plan) -> Iterator[Document]:
    def alike(d: Described) -> tuple[object, ...]:
        return d.primitive, d.name, d.shape, d.dtype, d.size_bytes, d.source, plan.decisions[d.value]

    for group in ir.fold_layers(plan.described, scope=lambda d: d.scope, alike=alike):
        first, values = group.items[0], [[d.value for d in layer] for layer in group.members]
        decision = plan.decisions[first.value]
        entry = {
            "decision": _WORD[type(decision)],
            **_record(decision),
            "scope": group.scope,
            "layers": ir.layer_ranges(group.layers) if group.layers else None,
            "primitive": first.primitive,
            "name": first.name,
            "dtype": first.dtype,
            "shape": list(first.shape),
            "size_bytes": first.size_bytes,
            "source": first.source,
            "values": values if group.layers else values[0],
        }
        yield {key: each for key, each in entry.items() if each is not None}


### What is wrong with a document


def problems_of_document(document: Mapping[str, Any]) -> tuple[str, ...]:
    """All that keeps a document of our format and version from being a plan, one sentence each."""
    check = _Check()
    check.table(document, _PLAN, "")
    if not check.problems:
        check.decisions(document.get("decision", ()))
    if not check.problems and document["digest"] != digest(document):
        check.problems.append("its digest is not that of its contents: it was changed after it was written")
    return tuple(check.problems)


@dataclass(frozen=True, slots=True)
class _Is:
    """What an entry must be."""

    words: str
    holds: Callable[[Any], bool]
    required: bool = True

    def maybe(self) -> "_Is":
        """The same for an entry that may be missing."""
        return _Is(self.words, self.holds, required=False)


def _is_count(entry: Any) -> bool:
    return isinstance(entry, int) and not isinstance(entry, bool)


def _list_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda entry: isinstance(entry, list) and all(map(holds, entry))


def _is_text(entry: Any) -> bool:
    return isinstance(entry, str)


def _is_table(entry: Any) -> bool:
    return isinstance(entry, dict)


def _is_option(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and _is_text(entry[0])


_TEXT = _Is("a text", _is_text)
_COUNT = _Is("a whole number", _is_count)
_FLAG = _Is("true or false", lambda entry: isinstance(entry, bool))
_FIGURE = _Is("a number", lambda entry: _is_count(entry) or isinstance(entry, float))
_TABLE = _Is("a table", _is_table)
_TABLES = _Is("tables", _list_of(_is_table))
_TEXTS = _Is("a list of texts", _list_of(_is_text))
_COUNTS = _Is("a list of whole numbers", _list_of(_is_count))
_OPTIONS = _Is("a list of pairs", _list_of(_is_option))
_HELD = _Is("a list of pairs of path and bytes", _list_of(lambda entry: _is_option(entry) and _is_count(entry[1])))
_VALUES = _Is("a list of ids, or one such list for each layer", _list_of(lambda e: _is_count(e) or _COUNTS.holds(e)))
_LINES = _Is(
    "a list of lines such as \"[0]['w'] float32[8,4]\"",
    _list_of(lambda entry: _is_text(entry) and _ARGUMENT.fullmatch(entry) is not None),
)
_DECISION = _Is(f"one of {', '.join(_DECISIONS)}", lambda entry: _is_text(entry) and entry in _DECISIONS)
_OF_TYPE: dict[Any, _Is] = {
    int: _COUNT, int | None: _COUNT, float: _FIGURE, str: _TEXT, str | None: _TEXT, bool: _FLAG,
}  # fmt: skip

_Keys = Mapping[str, _Is]


def _keys_of(data: type, **others: _Is) -> _Keys:
    """What the fields of a dataclass must be; those with a default may be missing, and what is not compared is out."""
    compared = [each for each in fields(data) if each.compare]
    known = {each.name: others.get(each.name) or _OF_TYPE[each.type] for each in compared}
    return {each.name: known[each.name] if each.default is MISSING else known[each.name].maybe() for each in compared}


_PLAN: _Keys = {
    "format": _TEXT,
    "version": _COUNT,
    "digest": _TEXT,
    "fingerprint": _TEXT,
    "strategy": _TEXT,
    "target": _TEXT,
    "budget_bytes": _COUNT.maybe(),
    "notes": _TEXTS,
    "stages": _COUNTS,
    "layers": _COUNTS.maybe(),
    "stretches": _TABLES.maybe(),
    "nests": _TABLES.maybe(),
    "written_by": _TABLE,
    "predicted": _TABLE.maybe(),
    "measured": _TABLE.maybe(),
    "attempt": _TABLES.maybe(),
    "decision": _TABLES.maybe(),
    "arguments": _TABLE,
}
_TABLES_OF: Mapping[str, _Keys] = {
    "written_by": {"jaxckpt": _TEXT, "jax": _TEXT, "jaxlib": _TEXT},
    "predicted": _keys_of(ir.Prediction),
    "measured": _keys_of(Footprint, compiler_options=_OPTIONS, caveats=_TEXTS, undonated=_HELD),
    "attempt": _keys_of(Attempt),
    "stretches": _keys_of(ir.LoopSplit, lengths=_COUNTS),
    "nests": _keys_of(ir.LoopTiling),
    "arguments": {"static_argnums": _COUNTS, "flat": _LINES},
}
_ENTRY: _Keys = {
    "decision": _DECISION,
    "scope": _TEXT,
    "layers": _TEXT.maybe(),
    "primitive": _TEXT,
    "name": _TEXT.maybe(),
    "dtype": _TEXT,
    "shape": _COUNTS,
    "size_bytes": _COUNT,
    "source": _TEXT,
    "values": _VALUES,
}


@dataclass(frozen=True, slots=True)
class _Check:
    """Problems found so far."""

    problems: list[str] = field(default_factory=list)

    def table(self, table: Mapping[str, Any], keys: _Keys, where: str) -> None:
        """Missing, unknown and wrong entries of a table and of the tables in it."""
        missing = (key for key, is_ in keys.items() if is_.required and key not in table)
        self.problems.extend(f"{where}{key} is missing" for key in missing)
        self.problems.extend(f"{where}{key} is no key of ours" for key in table if key not in keys)
        for key, is_ in keys.items():
            if key not in table:
                continue
            if not is_.holds(table[key]):
                self.problems.append(f"{where}{key} is not {is_.words}")
            elif key in _TABLES_OF and not where:
                inner = table[key] if isinstance(table[key], list) else [table[key]]
                for each in inner:
                    self.table(each, _TABLES_OF[key], f"{key}.")

    def decisions(self, entries: list[Document]) -> None:
        """Entries that are no decisions, layers that fit no values, ids that come twice."""
        seen: set[int] = set()
        for number, entry in enumerate(entries, 1):
            where = f"decision {number}: "
            kind = _DECISIONS.get(entry["decision"]) if _is_text(entry.get("decision")) else None
            before = len(self.problems)
            self.table(entry, dict(_ENTRY) | (dict(_keys_of(kind)) if kind else {}), where)
            if len(self.problems) > before:
                continue
            try:
                values = [value for _, ids in _layers(entry) for value in ids]
            except ValueError as error:
                self.problems.append(f"{where}{error}")
                continue
            repeated = sorted({v for v in values if v in seen or values.count(v) > 1})
            seen.update(values)
            if repeated:
                self.problems.append(f"{where}value {', '.join(map(str, repeated))} is decided more than once")


### To a plan


def plan_from_document(document: Mapping[str, Any]) -> Plan:
    """Reads a document of which `problems_of_document` says nothing."""
    decided = sorted(
        (pair for entry in document.get("decision", ()) for pair in _decided(entry)), key=lambda pair: pair[0].value
    )
    predicted, measured = document.get("predicted"), document.get("measured")
    arguments = document["arguments"]
    return Plan(
        fingerprint=document["fingerprint"],
        decisions={described.value: decision for described, decision in decided},
        stages=tuple(document["stages"]),
        layers=tuple(document.get("layers", ())),
        loop_splits=tuple(
            ir.LoopSplit(loop=each["loop"], lengths=tuple(each["lengths"])) for each in document.get("stretches", ())
        ),
        loop_tilings=tuple(ir.LoopTiling(**each) for each in document.get("nests", ())),
        strategy=document["strategy"],
        prediction=None if predicted is None else ir.Prediction(**predicted),
        target=document["target"],
        budget_bytes=document.get("budget_bytes"),
        footprint=None if measured is None else Footprint.from_dict(measured),
        described=tuple(described for described, _ in decided),
        arguments=tuple(map(_argument, arguments["flat"])),
        static_argnums=tuple(arguments["static_argnums"]),
        notes=tuple(document["notes"]),
        attempts=tuple(Attempt(**attempt) for attempt in document.get("attempt", ())),
    )


def _decided(entry: Document) -> Iterator[tuple[Described, ir.Decision]]:
    kind = _DECISIONS[entry["decision"]]
    decision = kind(**{each.name: entry[each.name] for each in fields(kind) if each.name in entry})
    for scope, ids in _layers(entry):
        for value in ids:
            described = Described(
                value=value,
                scope=scope,
                primitive=entry["primitive"],
                name=entry.get("name"),
                shape=tuple(entry["shape"]),
                dtype=entry["dtype"],
                size_bytes=entry["size_bytes"],
                source=entry["source"],
            )
            yield described, decision


def _layers(entry: Document) -> Iterator[tuple[str, list[int]]]:
    """The scope of each layer of an entry, with its values.

    Raises:
      ValueError: Layers and values do not belong together.
    """
    values, is_layered = entry["values"], "layers" in entry
    if any(isinstance(each, list) != is_layered for each in values):
        raise ValueError("values are lists of ids, one for each layer, where there are layers, and ids elsewhere")
    if not is_layered:
        yield entry["scope"], values
        return
    layers = ir.layers_from_ranges(entry["layers"], most=len(values))
    if len(layers) != len(values) or len(set(layers)) != len(layers) or "*" not in entry["scope"]:
        raise ValueError(
            f"layers {entry['layers']!r} of {entry['scope']!r} do not go with {len(values)} lists of values"
        )
    for layer, ids in zip(layers, values, strict=True):
        yield ir.unfolded_scope(entry["scope"], layer), ids


def _argument(line: str) -> Argument:
    match = _ARGUMENT.fullmatch(line)
    assert match is not None, "lines were checked"
    shape = tuple(int(size) for size in match["shape"].split(",") if size)
    return Argument(path=match["path"], shape=shape, dtype=match["dtype"])
