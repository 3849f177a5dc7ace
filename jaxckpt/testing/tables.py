"""Tables below an assertion's four lines: the largest buffers of a footprint, or two snapshots by layer.

Read after `change`.
"""

from collections.abc import Iterator

from jaxckpt._units import format_bytes
from jaxckpt.compiler import Footprint
from jaxckpt.hlo import Buffer
from jaxckpt.ir.layers import Layers, fold_layers, layer_ranges
from jaxckpt.report import Section, Table
from jaxckpt.report.rows import array_text, layer_table, short_source, signed_bytes
from jaxckpt.report.tree import columns
from jaxckpt.testing.change import Change, ScopeChange
from jaxckpt.testing.snapshot import DEPTH, bytes_by_scope, cut_scope

_MOST_ROWS = 16
_EXPLAINED = (
    "Temporaries alive at the peak by scope, a layer each and all; then what is no temporary: (results) are those that"
    " take over no argument; (gaps at the peak) are allocated and not alive."
)


def holders_table(footprint: Footprint, *, depth: int = DEPTH) -> Table:
    """Where the bytes of a footprint are at its peak, largest first; all rows together are its total."""
    rows = sorted(_holders(footprint, depth), key=lambda row: -row[0])
    shown, rest = rows[:_MOST_ROWS], rows[_MOST_ROWS:]
    notes: tuple[str, ...] = (f"and {len(rest)} more, {format_bytes(sum(size for size, _ in rest))}",) if rest else ()
    if footprint.memory is None:
        notes += ("XLA's buffers were not read: temporaries cannot be told apart by layer.",)
    return Table(
        title="What holds the bytes",
        columns=columns("scope", "layers", ">each", ">all", ">of total", "largest buffer"),
        rows=tuple((*cells, _share(size, footprint.total_bytes), last) for size, (*cells, last) in shown),
        notes=(_EXPLAINED, *notes, *footprint.caveats),
    )


def change_report(change: Change) -> Section:
    """Two snapshots: figures that changed, then scopes that changed, equal layers folded."""
    tables = (_figures_table(change), *((_scopes_table(change),) if change.scopes else ()))
    return Section(title="Snapshot and now", parts=tables)


### Holders


def _holders(footprint: Footprint, depth: int) -> Iterator[tuple[int, tuple[str, ...]]]:
    for name, size_bytes in _outside_scopes(footprint):
        if size_bytes:
            yield size_bytes, (name, "", "", format_bytes(size_bytes), "")
    memory = footprint.memory
    largest: dict[str, str] = {}
    for buffer in () if memory is None else memory.alive_at(memory.peak):
        largest.setdefault(cut_scope(buffer.scope, depth), _described(buffer))
    scopes = bytes_by_scope(footprint, depth=depth)
    for group in fold_layers(scopes, scope=lambda each: each.scope, alike=lambda each: each.peak_bytes):
        first, size_bytes = group.items[0], sum(item.peak_bytes for item in group.items)
        if size_bytes:
            layers = layer_ranges(group.layers)
            each, everything = format_bytes(first.peak_bytes), format_bytes(size_bytes)
            yield size_bytes, (group.scope or "/", layers, each, everything, largest[first.scope])


def _outside_scopes(footprint: Footprint) -> Iterator[tuple[str, int]]:
    """Bytes of the total that no scope holds at the peak."""
    memory = footprint.memory
    yield "(arguments)", footprint.argument_bytes
    yield "(results)", footprint.output_bytes - footprint.alias_bytes
    yield "(program)", footprint.program_bytes
    if memory is None:
        yield "(temporaries)", footprint.temp_bytes
    else:
        yield "(gaps at the peak)", footprint.temp_bytes - memory.peak_bytes


def _described(buffer: Buffer) -> str:
    made_at = f" ({short_source(buffer.source)})" if buffer.source else ""
    return f"{array_text(buffer.dtype, buffer.shape, buffer.op or buffer.name)}{made_at}"


def _share(size_bytes: int, total_bytes: int) -> str:
    return f"{100 * size_bytes / total_bytes:.1f}%" if total_bytes else ""


### Changes


def _figures_table(change: Change) -> Table:
    before, after = change.before, change.after
    figures = (
        ("total", before.total_bytes, after.total_bytes),
        ("arguments", before.argument_bytes, after.argument_bytes),
        ("results", before.output_bytes, after.output_bytes),
        ("  of these in donated arguments", before.alias_bytes, after.alias_bytes),
        ("temporaries", before.temp_bytes, after.temp_bytes),
        ("  of these alive at the peak", before.peak_bytes, after.peak_bytes),
        ("program and constants", before.program_bytes, after.program_bytes),
        ("host memory", before.host_bytes, after.host_bytes),
    )
    return Table(
        columns=columns("", ">snapshot", ">now", ">change"),
        rows=tuple(
            (name, format_bytes(was), format_bytes(now), signed_bytes(now - was))
            for name, was, now in figures
            if was != now
        ),
        notes=change.notes,
    )


def _scopes_table(change: Change) -> Table:
    return layer_table(
        change.scopes,
        (">peak: was", ">now", ">all layers", ">held: was", ">now", ">all layers"),
        _change_cells,
        scope=lambda each: each.scope,
        alike=lambda each: each.figures,
        title="By layer: alive at the peak, and held from forward to backward",
        shown=_MOST_ROWS,
        rest=lambda count, _: f"and {count} more that changed less",
    )


def _change_cells(group: Layers[ScopeChange]) -> tuple[int | str, ...]:
    held_was, held_now, peak_was, peak_now = group.items[0].figures
    held, peak = (sum(sizes) for sizes in zip(*((i.held_bytes, i.peak_bytes) for i in group.items), strict=True))
    return (
        max(abs(held), abs(peak)),
        format_bytes(peak_was),
        format_bytes(peak_now),
        signed_bytes(peak),
        format_bytes(held_was),
        format_bytes(held_now),
        signed_bytes(held),
    )
