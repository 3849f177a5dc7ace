"""A footprint as a report: what the step takes, what is alive at the peak, and what each scope holds.

Without a memory map the totals are all there is, and it says so. Read after `rows` and `estimate`.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.comparison.comparison import PeakBuffer
from jaxckpt.compiler import Footprint
from jaxckpt.hlo import Buffer, Kernel, MemoryMap, Part, ScopeMemory, seconds_by_part
from jaxckpt.ir.layers import Layers, fold_layers, layer_ranges
from jaxckpt.report.estimate import rates_of
from jaxckpt.report.rows import array_text, layer_table, more_kinds, short_source, signed_bytes, table_of_known
from jaxckpt.report.tree import Element, Section, Table, Text, columns

_BUFFER_ROWS = 12
_SCOPE_ROWS = 16
_FEW_ROWS = 8


def footprint_report(footprint: Footprint, *, depth: int | None = None) -> Section:
    """Totals, the peak and what is alive there, scopes, and what XLA did by itself; equal layers folded.

    Scopes below a depth are added up.
    """
    memory = footprint.memory
    parts: list[Element] = [Table(columns=columns("", ">"), rows=tuple(_total_rows(footprint)))]
    parts += [Text(text=f"Note: {sentence}") for sentence in _sentences(footprint)]
    if footprint.undonated:
        parts.append(_undonated(footprint))
    if memory is not None:
        if memory.kernels and memory.peak_bytes:
            parts.append(_peak(memory))
        rates = rates_of(footprint)
        parts += [_scopes(memory, depth), _by_part(memory, {} if rates is None else seconds_by_part(memory, rates))]
        if memory.rematerialised:
            parts.append(_by_xla(memory.rematerialised))
    title = f"{format_bytes(footprint.total_bytes)} on {footprint.target or 'an unknown machine'}"
    return Section(title=title, parts=tuple(parts))


def _total_rows(made: Footprint) -> Iterator[tuple[str, str]]:
    yield "total", format_bytes(made.total_bytes)
    yield "  arguments", format_bytes(made.argument_bytes)
    yield "  outputs", format_bytes(made.output_bytes)
    yield "  of these in donated arguments", signed_bytes(-made.alias_bytes, zero="none")
    yield "  temporaries", format_bytes(made.temp_bytes)
    if made.program_bytes:
        yield "  program and constants", format_bytes(made.program_bytes)
    if made.host_bytes:
        yield "host memory", format_bytes(made.host_bytes)
    if made.unused_argument_bytes:
        yield "arguments that nothing reads", format_bytes(made.unused_argument_bytes)
    if made.step_s:
        yield "estimated step", format_seconds(made.estimated_step_s)
    if made.compile_s:
        yield "compile", format_seconds(made.compile_s)
    for name, value in made.compiler_options:
        yield f"option {name}", str(value)


def _sentences(footprint: Footprint) -> tuple[str, ...]:
    """Caveats and problems, each once: most footprints repeat the problems of their map among the caveats."""
    if footprint.memory is None:
        unknown = "nothing was read of the program: where the bytes are is not known."
        return (*footprint.caveats, unknown)
    return tuple(dict.fromkeys((*footprint.caveats, *footprint.memory.problems)))


def _undonated(footprint: Footprint) -> Table:
    sizes = [size_bytes for _, size_bytes in footprint.undonated]
    return Table(
        title="Donated, and taken over by no result",
        columns=columns("argument", ">bytes"),
        rows=tuple((path, format_bytes(size_bytes)) for path, size_bytes in footprint.undonated),
        compact_rows=_FEW_ROWS,
        rest=f"and {len(sizes) - _FEW_ROWS} more, {format_bytes(sum(sizes[_FEW_ROWS:]))}",
    )


### The peak


def _peak(memory: MemoryMap) -> Section:
    alive = memory.alive_at(memory.peak)
    table = layer_table(
        alive,
        ("buffer", "part", "role", ">each", ">all", "source"),
        _buffer_cells,
        scope=lambda b: b.scope,
        alike=lambda b: (b.op, b.dtype, b.shape, b.part, b.role, b.size_bytes, b.source),
        title="Alive at the peak",
        shown=_BUFFER_ROWS,
        rest=more_kinds,
    )
    return Section(
        title=f"At the peak: {format_bytes(memory.peak_bytes)} of temporaries",
        parts=(Text(text=_peak_place(memory)), table, _roles(alive)),
    )


def _peak_place(memory: MemoryMap) -> str:
    kernel = memory.kernels[memory.peak]
    made_by = f"{kernel.name} ({kernel.op})" if kernel.op else kernel.name
    where = f"in {kernel.scope or '/'}, {kernel.part}"
    line = f", {kernel.source}" if kernel.source else ""
    return (
        f"Kernel {memory.peak} of {len(memory.kernels)}, counted from 0: {made_by} {where}{line}.\n"
        f"XLA allocates {format_bytes(memory.temp_bytes)} for temporaries, {memory.fragmentation:.3f} times as much."
    )


def _buffer_cells(group: Layers[Buffer]) -> tuple[int | str, ...]:
    first, count = group.items[0], len(group.items)
    each = format_bytes(first.size_bytes)
    return (
        count * first.size_bytes,
        array_text(first.dtype, first.shape, first.op or first.name),
        str(first.part),
        role_text(first),
        each if count == 1 else f"{count} x {each}",
        format_bytes(count * first.size_bytes),
        short_source(first.source),
    )


def role_text(buffer: Buffer | PeakBuffer) -> str:
    """Role of a buffer in words."""
    return str(buffer.role).replace("_", " ")


def _roles(alive: tuple[Buffer, ...]) -> Table:
    sizes: Counter[str] = Counter()
    for buffer in alive:
        sizes[role_text(buffer)] += buffer.size_bytes
    total = sum(sizes.values())
    return Table(
        title="By role",
        columns=columns("role", ">bytes", ">share"),
        rows=tuple((role, format_bytes(size), f"{size / total:.0%}") for role, size in sizes.most_common()),
    )


### Scopes and parts


_SCOPE_HEADINGS = columns(
    "scope", "layers", ">held each", ">held", ">at the peak", ">largest", ">GFLOP", ">recomputed", ">traffic"
)


def _scopes(memory: MemoryMap, depth: int | None) -> Section:
    total, *scopes = memory.scopes(depth)
    folded = [_scope_row((total,), "full step", "")]
    groups = fold_layers(scopes, scope=lambda row: row.scope, alike=lambda _: None)
    by_size = sorted(groups, key=lambda group: -sum(row.held_bytes + row.peak_bytes for row in group.items))
    folded += [_scope_row(group.items, group.scope, layer_ranges(sorted(group.layers))) for group in by_size]
    compact = Table(
        columns=_SCOPE_HEADINGS,
        rows=tuple(folded),
        compact_rows=_SCOPE_ROWS,
        rest=f"and {len(folded) - _SCOPE_ROWS} more scopes",
        notes=(
            "Held: from the forward pass to the backward, by each layer and by all. Largest: the most that a layer has"
            " alive at one time. Recomputed: the share of its arithmetic that runs a second time. The other columns are"
            " sums over all layers. A scope includes all below it.",
        ),
    )
    every = Table(
        title="Every layer",
        columns=_SCOPE_HEADINGS,
        rows=tuple(_scope_row((row,), row.scope, "") for row in scopes),
        compact_rows=0,
        rest=f"{len(scopes)} scopes in the order of first use",
    )
    parts = (compact, every) if len(scopes) >= len(folded) else (compact,)
    return Section(title="By scope", parts=parts, folded=True)


def _scope_row(rows: tuple[ScopeMemory, ...], scope: str, layers: str) -> tuple[str, ...]:
    flops = sum(row.flops for row in rows)
    recomputed = sum(row.recomputed_flops for row in rows)
    return (
        scope,
        layers,
        _range(rows, lambda row: row.held_bytes),
        format_bytes(sum(row.held_bytes for row in rows)),
        format_bytes(sum(row.peak_bytes for row in rows)),
        format_bytes(max(row.largest_bytes for row in rows)),
        f"{flops / 1e9:.4g}",
        f"{recomputed / flops:.0%}" if recomputed and flops else "",
        format_bytes(sum(row.traffic_bytes for row in rows)),
    )


def _range(rows: tuple[ScopeMemory, ...], figure: Callable[[ScopeMemory], int]) -> str:
    """A figure of each layer: one where all read the same, else the least and the most."""
    least, most = format_bytes(min(map(figure, rows))), format_bytes(max(map(figure, rows)))
    if least == most:
        return least
    (low, unit), (high, other) = least.split(" "), most.split(" ")
    return f"{low}-{high} {unit}" if unit == other else f"{least} - {most}"


def _by_part(memory: MemoryMap, seconds: Mapping[Part, float]) -> Section:
    parts = [part for part in Part if any(kernel.part is part for kernel in memory.kernels)]
    unpriced = sum(not kernel.is_priced for kernel in memory.kernels)
    note = f"The arithmetic of {unpriced} kernels could not be read: GFLOP and the estimated step are too low by it."
    headings = ("part", "kernels", "GFLOP", "traffic", "at the peak", "time (est.)")
    rows = [dict(_part_cells(memory, part, seconds)) for part in parts]
    table = table_of_known("", headings, rows, notes=(note,) if unpriced else ())
    return Section(title="By part of the step", parts=(table,), folded=True)


def _part_cells(memory: MemoryMap, part: Part, seconds: Mapping[Part, float]) -> Iterator[tuple[str, str]]:
    kernels = [kernel for kernel in memory.kernels if kernel.part is part]
    alive = [buffer.size_bytes for buffer in memory.alive_at(memory.peak) if buffer.part is part]
    yield "part", str(part)
    yield "kernels", str(len(kernels))
    yield "GFLOP", f"{sum(k.flops * k.count for k in kernels) / 1e9:.4g}"
    yield "traffic", format_bytes(sum(k.traffic_bytes * k.count for k in kernels))
    yield "at the peak", format_bytes(sum(alive))
    if seconds:
        yield "time (est.)", format_seconds(seconds[part])


### XLA's own rematerialisation


def _by_xla(added: tuple[Kernel, ...]) -> Section:
    flops = sum(kernel.flops * kernel.count for kernel in added)
    table = layer_table(
        added,
        ("op", ">kernels", ">runs a step", ">GFLOP"),
        _kernel_cells,
        scope=lambda k: k.scope,
        alike=lambda k: k.op or k.opcode,
        shown=_FEW_ROWS,
    )
    title = f"XLA's own rematerialisation: {len(added)} kernels, {flops / 1e9:.3g} GFLOP in each step"
    return Section(title=title, parts=(table,))


def _kernel_cells(group: Layers[Kernel]) -> tuple[float | str, ...]:
    first, runs = group.items[0], sum(k.count for k in group.items)
    flops = sum(k.flops * k.count for k in group.items)
    return flops, first.op or first.opcode, str(len(group.items)), str(runs), f"{flops / 1e9:.3g}"
