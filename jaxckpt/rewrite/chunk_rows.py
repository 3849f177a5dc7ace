"""A region of a step that treats rows alike is computed in pieces, forward and backward together.

A scan runs over the pieces. Its body has the equations of the region at the size of one piece; it slices what has rows,
reads the rest in full, adds to sums over rows (in float32 where they are narrower), and writes results with rows into
their place. So the large values of the region exist for one piece at a time. The sums are taken in another order than
in the step as written: results differ by rounding.

`jaxckpt.annotate.chunked` does the same for a function that the user marks, and recomputes it in the backward; here no
matrix product is computed twice. Read after `rows.find`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from jaxckpt._errors import ChunkError, PlanMismatchError
from jaxckpt.ir import Phase, RowChunk
from jaxckpt.program.flat_program import Equation, body_jaxpr, open_jaxpr, renamed
from jaxckpt.program.open_loops import Visibility, is_sound
from jaxckpt.rewrite.loop_transforms import with_equations
from jaxckpt.rewrite.row_piece import PieceWriter, accumulator_dtype
from jaxckpt.rows import RowRegion, RowRegions, find_regions
from jaxckpt.trace import Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A region that runs in pieces.

    Attributes:
      region: Of the step as it was traced.
      pieces: A divisor of the region's rows.
    """

    region: RowRegion
    pieces: int

    @property
    def piece_rows(self) -> int:
        """Rows of one piece."""
        return self.region.rows // self.pieces


def with_row_chunks(traced: Traced, row_chunks: Sequence[RowChunk]) -> Traced:
    """The traced step with the regions in pieces that a plan names; they are found anew, always the same.

    Raises:
      PlanMismatchError: The step has no region with such a value and such rows, or they cannot be divided like that.
    """
    for row_chunk in row_chunks:
        found = find_regions(traced)
        region = next((each for each in found.regions if _is_named(row_chunk, each)), None)
        if region is None:
            raise _no_such_region(traced, row_chunk, found)
        traced = with_chunk(traced, Chunk(region=region, pieces=row_chunk.pieces))
    return traced


def _is_named(row_chunk: RowChunk, region: RowRegion) -> bool:
    is_same = (region.value, region.dimension) == (row_chunk.value, row_chunk.dimension)
    return is_same and row_chunk.pieces in region.pieces


def _no_such_region(traced: Traced, row_chunk: RowChunk, found: RowRegions) -> PlanMismatchError:
    can_be = "; ".join(f"value {each.value} in dimension {each.dimension}, {each.rows} rows" for each in found.regions)
    return PlanMismatchError(
        f"with_row_chunks({traced.name}): the step has no rows that can be divided like that.",
        got=f"value {row_chunk.value} in dimension {row_chunk.dimension}, in {row_chunk.pieces} pieces",
        needed=f"a divisor of the rows of one of: {can_be or 'no region of this step treats rows alike'}",
        advice="plan again: the step's code, or the version of jax or of jaxckpt has changed",
        row_chunk=row_chunk,
    )


def with_chunk(traced: Traced, chunk: Chunk) -> Traced:
    """The traced step with a region in pieces; its graph, program and jaxpr are made anew.

    The loop over pieces is one op of the backward pass, as are the equations of the forward pass that read its results.

    Raises:
      ChunkError: The rows cannot be divided into so many pieces, or the region cannot be one op in its place.
    """
    region = chunk.region
    if chunk.pieces < 2 or region.rows % chunk.pieces:
        raise ChunkError(
            f"with_chunk({traced.name}): the rows cannot be divided like that.",
            got=f"{chunk.pieces} pieces of {region.rows} rows",
            needed=f"a divisor of {region.rows}, at least 2",
            advice=f"pieces={region.most_pieces(max(chunk.pieces, 2))}",
        )
    program = traced.program
    ordered = _ordered(traced, chunk)
    if not is_sound(program.replace(equations=tuple(equation for equation, _ in ordered))):
        raise ChunkError(
            f"with_chunk({traced.name}): the region cannot be one op.",
            got="loops with equations before and after the region",
            needed="a region before or after each loop",
            advice="another region",
        )
    changed, _ = with_equations(traced, ordered, program.loops, {})
    jex.check_jaxpr(open_jaxpr(changed.jaxpr))
    return changed


def _ordered(traced: Traced, chunk: Chunk) -> list[tuple[Equation, Phase]]:
    """The equations of the step with the loop over pieces in the place of the region, with their phases.

    The loop runs as early as all that it reads is available, after the rest of the forward pass, whose own loops stay
    whole. What reads its results follows it, and is no longer of the forward pass.
    """
    equations, ops = traced.program.equations, traced.graph.ops
    members = frozenset(chunk.region.positions)
    home = equations[chunk.region.positions[0]]
    loops = Visibility(traced.program.loops)
    phase = Phase.FORWARD
    if any(ops[p].phase is not Phase.FORWARD for p in members):
        phase = Phase.BACKWARD
    reads = {v for p in members for v in equations[p].variables()}
    results = {v for p in members for v in equations[p].eqn.outvars}
    begin = chunk.region.positions[0]
    for position, equation in enumerate(equations):
        if position not in members and not reads.isdisjoint(equation.eqn.outvars):
            begin = max(begin, position + 1)
    before: list[tuple[Equation, Phase]] = []
    after: list[tuple[Equation, Phase]] = []
    for position, equation in enumerate(equations):
        if position in members:
            continue
        own = ops[position].phase
        if not results.isdisjoint(equation.variables()):
            results.update(equation.eqn.outvars)
            after.append((equation, max(own, phase, key=list(Phase).index)))
        else:
            is_forward = own is Phase.FORWARD and home.loop in (None, *loops.path(equation.loop))
            (before if position < begin or is_forward else after).append((equation, own))
    loop = ((replace(home, eqn=eqn, in_user_remat=False), phase) for eqn in _loop_over_pieces(traced, chunk))
    return [*before, *loop, *after]


def _loop_over_pieces(traced: Traced, chunk: Chunk) -> Sequence[jex.JaxprEqn]:
    """The equations that compute all results of a region, with a scan over pieces."""
    region, rows = chunk.region, chunk.region.rows
    equations = traced.program.equations
    writer = PieceWriter(region, chunk.pieces)
    for position in region.positions:
        writer.write(equations[position].eqn, region.flows[position])
    own = {v for p in region.positions for v in equations[p].eqn.outvars}
    reads = tuple(dict.fromkeys(v for p in region.positions for v in equations[p].variables() if v not in own))
    writes = [writer.names[v] for v in (*region.sums, *region.stacked)]
    body = body_jaxpr([writer.number, *reads], writes, writer.eqns, open_jaxpr(traced.jaxpr))
    axes = [region.axes[v] for v in region.stacked]

    def computed(*operands: jax.Array) -> list[jax.Array]:
        def iteration(
            carry: tuple[list[jax.Array], list[jax.Array]], number: jax.Array
        ) -> tuple[tuple[list[jax.Array], list[jax.Array]], None]:
            results = jax.core.eval_jaxpr(body, (), number, *operands)
            sums = [total + part for total, part in zip(carry[0], results[: len(region.sums)], strict=True)]
            filled = []
            for array, part, axis in zip(carry[1], results[len(region.sums) :], axes, strict=True):
                apart = part.reshape(axis.separated(part.shape, chunk.piece_rows))
                first = number * (chunk.piece_rows * axis.inner)
                filled.append(lax.dynamic_update_slice_in_dim(array, apart, first, axis=axis.dimension + 1))
            return (sums, filled), None

        zeros = [jnp.zeros(v.aval.shape, accumulator_dtype(v.aval.dtype)) for v in region.sums]
        arrays = [
            jnp.zeros(axis.separated(v.aval.shape, rows), v.aval.dtype)
            for v, axis in zip(region.stacked, axes, strict=True)
        ]
        # Unrolled, XLA's scheduler for GPUs mixes the pieces: temporaries of a head are 18 MiB in a scan of 16 pieces,
        # 201 MiB unrolled, and 257 MiB without pieces (h200, jax 0.12.0.1).
        numbers = jnp.arange(chunk.pieces, dtype=jnp.int32)
        (sums, filled), _ = lax.scan(iteration, (zeros, arrays), numbers)
        return [
            *(total.astype(v.aval.dtype) for total, v in zip(sums, region.sums, strict=True)),
            *(array.reshape(v.aval.shape) for array, v in zip(filled, region.stacked, strict=True)),
        ]

    return _named(computed, reads, (*region.sums, *region.stacked))


def _named(
    function: Callable[..., list[jax.Array]], reads: Sequence[jex.Var], results: Sequence[jex.Var]
) -> list[jex.JaxprEqn]:
    """The equations of a function over variables, under new variables but for those of its results."""
    jaxpr = open_jaxpr(jax.make_jaxpr(function)(*(v.aval for v in reads)))
    names: dict[jex.Var, jex.Var] = dict(zip(jaxpr.invars, reads, strict=True))
    final = dict(zip(jaxpr.outvars, results, strict=True))
    eqns = []
    for eqn in jaxpr.eqns:
        for variable in eqn.outvars:
            names[variable] = final.get(variable) or jex.Var(variable.aval)
        operands = [renamed(atom, names) for atom in eqn.invars]
        eqns.append(eqn.replace(invars=operands, outvars=[names[v] for v in eqn.outvars]))
    return eqns
