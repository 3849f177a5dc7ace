"""A plan as a document: nested dicts, lists, texts and numbers, as TOML and JSON have them, and back.

`_PlanFile` is the schema. Decisions are written one entry for each kind of value, the same value of every layer
together ("GPT/block_*/qkv", layers "0-11"). The document holds a digest of all but the decisions, and the decisions as
they were planned: where a person has changed some, the plan is read as an edited one, without the figures that were
measured for others. A document in which anything else was changed is no plan.

Read after `user_plan`. For documents as files see `plan_file`.
"""

import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Annotated, Any

from jaxckpt import _records, ir
from jaxckpt._records import Limit, RecordError, TomlTable, read_record, shared_fields, table_from_record
from jaxckpt._version import __version__
from jaxckpt.compiler import Footprint
from jaxckpt.ir.layers import fold_layers, layer_ranges, layers_from_ranges, unfolded_scope
from jaxckpt.planner.user_plan import Argument, Attempt, Described, Plan, decision_text, with_changes

FORMAT = "jaxckpt-plan"
VERSION = 1

_ARGUMENT = re.compile(r"(?P<path>.*) (?P<dtype>[^ \[\]]+)\[(?P<shape>[0-9]*(?:,[0-9]+)*)\](?P<weak> weak)?", re.DOTALL)
_Line = Annotated[str, Limit(" such as \"[0]['w'] float32[8,4]\"", lambda line: _ARGUMENT.fullmatch(line) is not None)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Versions:
    jaxckpt: str
    jax: str
    jaxlib: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    static_argnums: tuple[int, ...]
    flat: tuple[_Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    """An entry of decisions without the decision's own keys."""

    scope: str
    layers: str | None = None
    primitive: str
    name: str | None = None
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    source: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanFile:
    """The keys of a document, in their order."""

    format: str = FORMAT
    version: int = VERSION
    digest: str
    fingerprint: str
    strategy: str
    target: str
    budget_bytes: int | None = None
    notes: tuple[str, ...]
    stages: tuple[int, ...]
    layers: tuple[int, ...] = ()
    stretches: tuple[ir.LoopSplit, ...] = ()
    nests: tuple[ir.LoopTiling, ...] = ()
    row_chunks: tuple[ir.RowChunk, ...] = ()
    host_arguments: tuple[int, ...] = ()
    written_by: _Versions
    predicted: ir.Prediction | None = None
    measured: Footprint | None = None
    estimated_step_s: float = 0.0
    as_planned: tuple[str, ...] = ()
    attempt: tuple[Attempt, ...] = ()
    decision: tuple[Any, ...] = ()
    arguments: _Arguments


### From a plan


def document_from_plan(plan: Plan) -> TomlTable:
    """A plan as a document: of equal plans and versions of jaxckpt and jax equal ones, keys in reading order."""
    jax, jaxlib = map(importlib.metadata.version, ("jax", "jaxlib"))
    own = {
        "digest": "",
        "stretches": plan.loop_splits,
        "nests": plan.loop_tilings,
        "written_by": _Versions(jaxckpt=__version__, jax=jax, jaxlib=jaxlib),
        "predicted": plan.prediction,
        "measured": plan.footprint,
        "as_planned": tuple(_run_lengths(decision_text(decision) for decision in plan.decisions.values())),
        "attempt": plan.attempts,
        "decision": tuple(_entries(plan)),
        "arguments": _Arguments(static_argnums=plan.static_argnums, flat=tuple(map(_line, plan.arguments))),
    }
    document = table_from_record(_PlanFile(**shared_fields(plan, _PlanFile) | own))
    for key in ("as_planned", "attempt", "decision", "layers", "stretches", "nests", "row_chunks", "host_arguments"):
        if not document[key]:
            del document[key]
    return document | {"digest": digest(document, plan.described)}


def digest(document: Mapping[str, Any], described: Iterable[Described]) -> str:
    """A hash of all keys of a document but its own digest; comments and order do not change the hash.

    Of entries of decisions only the values count, where the document says the decisions a second time.
    """
    contents = {key: entry for key, entry in document.items() if key != "digest"}
    if contents.get("as_planned"):
        contents["decision"] = [table_from_record(each) for each in described]
    return _records.digest(contents, separators=None)


def _run_lengths(texts: Iterable[str]) -> Iterator[str]:
    """Texts with how often each comes in a row, "3 x save"."""
    return (f"{len(list(alike))} x {text}" for text, alike in groupby(texts))


def _texts(run_lengths: Iterable[str]) -> Iterator[str]:
    for each in run_lengths:
        count, _, text = each.partition(" x ")
        yield from [text] * int(count)


def _line(argument: Argument) -> str:
    weak = " weak" if argument.weak_type else ""
    return f"{argument.path} {argument.dtype}[{','.join(map(str, argument.shape))}]{weak}"


def _entries(plan: Plan) -> Iterator[TomlTable]:
    def alike(d: Described) -> tuple[object, ...]:
        return d.primitive, d.name, d.shape, d.dtype, d.size_bytes, d.source, plan.decisions[d.value]

    for group in fold_layers(plan.described, scope=lambda d: d.scope, alike=alike):
        first, values = group.items[0], [[d.value for d in layer] for layer in group.members]
        decision = plan.decisions[first.value]
        own = {
            "scope": group.scope,
            "layers": layer_ranges(group.layers) if group.layers else None,
            "values": tuple(values if group.layers else values[0]),
        }
        entry = _Values(**shared_fields(first, _Values) | own)
        yield {"decision": type(decision).__name__.lower(), **table_from_record(decision), **table_from_record(entry)}


### To a plan


def plan_from_document(document: TomlTable) -> Plan:
    """Reads a document of our format and version; a `RecordError` has all that is not as it was written."""
    file = read_record(_PlanFile, document)
    decided = sorted(_decided_values(file.decision), key=lambda pair: pair[0].value)
    described = tuple(described for described, _ in decided)
    if file.digest != digest(document, described):
        raise RecordError(["its digest is not that of its contents: not only decisions were changed in it"])
    own = {
        "decisions": {described.value: decision for described, decision in decided},
        "loop_splits": file.stretches,
        "loop_tilings": file.nests,
        "prediction": file.predicted,
        "footprint": file.measured,
        "described": described,
        "arguments": tuple(map(_argument, file.arguments.flat)),
        "static_argnums": file.arguments.static_argnums,
        "attempts": file.attempt,
    }
    plan = Plan(**shared_fields(file, Plan) | own)
    before = dict(zip(plan.decisions, _texts(file.as_planned), strict=True)) if file.as_planned else {}
    is_edited = any(decision_text(plan.decisions[value]) != text for value, text in before.items())
    return with_changes(plan, before) if is_edited else plan


def _decided_values(entries: tuple[Any, ...]) -> list[tuple[Described, ir.Decision]]:
    """Values with their decisions, or all entries that are none, layers without values, and values that come twice."""
    problems: list[str] = []
    seen: set[int] = set()
    decided: list[tuple[Described, ir.Decision]] = []
    for number, entry in enumerate(entries, 1):
        try:
            found = list(_decided(entry))
        except RecordError as error:
            problems.extend(f"decision {number}: {problem}" for problem in error.problems)
            continue
        ids = [described.value for described, _ in found]
        repeated = sorted({value for value in ids if value in seen or ids.count(value) > 1})
        if repeated:
            values = ", ".join(map(str, repeated))
            problems.append(f"decision {number}: value {values} is decided more than once")
        seen.update(ids)
        decided.extend(found)
    if problems:
        raise RecordError(problems)
    return decided


def _decided(entry: Any) -> Iterator[tuple[Described, ir.Decision]]:
    """The values of one entry; `RecordError` where the entry is wrong."""
    # Complexity: every entry is checked before it is read, so that all that is wrong is named.
    word = entry.get("decision") if isinstance(entry, dict) else None
    kind = ir.DECISIONS.get(word) if isinstance(word, str) else None
    if kind is None:
        raise RecordError([f"decision = {word!r} should be one of {', '.join(ir.DECISIONS)}"])
    own = {each.name for each in fields(kind)}
    decision: ir.Decision = read_record(kind, {key: value for key, value in entry.items() if key in own})
    read = read_record(_Values, {key: value for key, value in entry.items() if key not in own and key != "decision"})
    for scope, ids in _layers(read):
        for value in ids:
            yield Described(**shared_fields(read, Described) | {"value": value, "scope": scope}), decision


def _layers(entry: _Values) -> Iterator[tuple[str, list[int]]]:
    """The scope of each layer of an entry, with its values; `RecordError` where these do not belong together."""
    # Complexity: every entry is checked before it is read, so that all that is wrong is named.
    values, is_layered = entry.values, entry.layers is not None
    lists = values if is_layered else (list(values),)
    if not all(isinstance(ids, list) and all(type(value) is int for value in ids) for ids in lists):
        raise RecordError(["values are lists of ids, one for each layer, where there are layers, and ids elsewhere"])
    if entry.layers is None:
        yield entry.scope, *lists
        return
    try:
        layers = layers_from_ranges(entry.layers, most=len(values))
    except ValueError as error:
        raise RecordError([str(error)]) from error
    if len(layers) != len(values) or len(set(layers)) != len(layers) or "*" not in entry.scope:
        raise RecordError([f"layers {entry.layers!r} of {entry.scope!r} do not go with {len(values)} lists of values"])
    for layer, ids in zip(layers, values, strict=True):
        yield unfolded_scope(entry.scope, layer), ids


def _argument(line: str) -> Argument:
    match = _ARGUMENT.fullmatch(line)
    assert match is not None, "lines were checked"
    shape = tuple(int(size) for size in match["shape"].split(",") if size)
    return Argument(path=match["path"], shape=shape, dtype=match["dtype"], weak_type=match["weak"] is not None)
