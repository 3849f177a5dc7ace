"""Finds the regions of a step that treat rows alike, around its largest values.

For a large value and one of its dimensions, taken for the rows:

1. Every equation that computes or reads a large value with rows joins the region (large: more than half of the
   elements). So the large values exist in the region alone.
2. Equations on a path from the region back into it join: what is between the logits and their gradient.
3. Each equation that joins must compute each row by itself, from that row and from values without rows. Sums over rows
   leave the region: weight gradients, the loss. A sum that the region reads couples the rows, and is refused.

What the region reads besides (hidden states, labels, weights, cotangents) is available before it. The equations of 2
must not be matrix products: then the path goes through other layers, and the region would be most of the step.

Complexity: linear in the equations for each value and dimension that is tried, times the rounds of 2.
"""

from collections import defaultdict
from collections.abc import Iterator

import jax.extend.core as jex

from jaxckpt.ir import Kind, Phase, kind_of
from jaxckpt.program.flat_program import Equation
from jaxckpt.program.open_loops import is_loop_boundary
from jaxckpt.rows.axis import RowAxis
from jaxckpt.rows.region import RefusedRows, RowRegion, RowRegions
from jaxckpt.rows.row_numbers import RowNumbers
from jaxckpt.rows.rules import READ, WRITTEN, RowFlow, RowsMixedError, called, flow_through
from jaxckpt.trace import Traced
from jaxckpt.trace.sharding import aval_bytes

_SEED_SHARE = 4
"""Values of at least a quarter of the bytes of the largest forward value are tried."""
_MOST_TRIALS = 64
"""The most values and dimensions that are tried."""


def find_regions(traced: Traced) -> RowRegions:
    """The regions around the largest values of the forward pass.

    One group of values may have several regions, with other dimensions as rows (the batch, the sequence).
    """
    step = _StepIndex(traced)
    found: dict[tuple[tuple[int, ...], int], RowRegion] = {}
    refused: list[RefusedRows] = []
    tried: set[tuple[jex.Var, RowAxis, int]] = set()
    trials = 0
    for value, variable in _large_values(traced):
        for dimension, rows in enumerate(variable.aval.shape):
            if rows < 2 or (variable, RowAxis(dimension=dimension), rows) in tried or trials == _MOST_TRIALS:
                continue
            trials += 1
            search = _Search(step, variable, dimension)
            try:
                region = search.region(value)
                found.setdefault((region.positions, rows), region)
            except RowsMixedError as error:
                refused.append(RefusedRows(value=value, dimension=dimension, reason=str(error)))
            tried.update((each, axis, rows) for each, axis in search.axes.items())
    ordered = sorted(found.values(), key=lambda region: -region.large_bytes)
    return RowRegions(regions=tuple(ordered), refused=tuple(refused))


def _large_values(traced: Traced) -> Iterator[tuple[int, jex.Var]]:
    """Ids and variables of the largest values that the forward pass computes, largest first."""
    graph = traced.graph
    forward = [v for op in graph.ops if op.phase is Phase.FORWARD for v in op.writes]
    forward.sort(key=lambda value: -aval_bytes(traced.variables[value].aval))
    least = aval_bytes(traced.variables[forward[0]].aval) / _SEED_SHARE if forward else 0
    for value in forward:
        variable = traced.variables[value]
        if aval_bytes(variable.aval) >= least and hasattr(variable.aval, "dtype"):
            yield value, variable


class _StepIndex:
    """Producers, readers and results of a step's program; shared by all searches."""

    def __init__(self, traced: Traced) -> None:
        program = traced.program
        self.equations = program.equations
        self.producer = {v: p for p, equation in enumerate(self.equations) for v in equation.eqn.outvars}
        self.readers: defaultdict[jex.Var, list[int]] = defaultdict(list)
        for position, equation in enumerate(self.equations):
            for variable in equation.variables():
                self.readers[variable].append(position)
        self.results = {atom for atom in program.outvars if isinstance(atom, jex.Var)}
        values = zip(traced.variables, traced.graph.values, strict=True)
        self.sharded = {variable for variable, value in values if value.split or value.local}
        self.numbers = RowNumbers(program)


class _Search:
    """The search around one value with one dimension as rows.

    Attributes:
      axes: Where the rows are, for values that the region computes, or that are large.
      flows: The equations of the region by position.
      sums: Results that are sums over rows, with the equation that sums.
    """

    def __init__(self, step: _StepIndex, seed: jex.Var, dimension: int) -> None:
        self.step, self.seed = step, seed
        self.dimension, self.rows = dimension, seed.aval.shape[dimension]
        self.axes: dict[jex.Var, RowAxis] = {}
        self.flows: dict[int, RowFlow] = {}
        self.sums: dict[jex.Var, jex.JaxprEqn] = {}
        self.pending: list[int] = []
        self.home = step.equations[step.producer[seed]]

    def region(self, value: int) -> RowRegion:
        """The region; raises `RowsMixedError` with the reason where there is none."""
        self._place(self.seed, RowAxis(dimension=self.dimension))
        self._join_pending()
        while between := self._between():
            for position in between:
                self._join(position, is_between=True)
                self._join_pending()
        self._check_operands()
        positions = tuple(sorted(self.flows))
        outputs = [v for p in positions for v in self.step.equations[p].eqn.outvars if self._leaves(v)]
        if large := next((v for v in outputs if v in self.axes and self._is_large(v)), None):
            raise RowsMixedError(f"a value of its size ({large.aval.str_short()}) is a result of the step")
        computed = (v for p in positions for v in self.step.equations[p].eqn.outvars if v in self.axes)
        return RowRegion(
            value=value,
            dimension=self.dimension,
            rows=self.rows,
            positions=positions,
            flows=self.flows,
            axes={v: axis for v, axis in self.axes.items() if self._is_computed(v)},
            sums=tuple(v for v in outputs if v in self.sums),
            stacked=tuple(v for v in outputs if v in self.axes),
            large_bytes=sum(aval_bytes(v.aval) for v in computed if self._is_large(v)),
        )

    def _is_large(self, variable: jex.Var) -> bool:
        return 2 * variable.aval.size > self.seed.aval.size

    def _is_computed(self, variable: jex.Var) -> bool:
        return self.step.producer.get(variable) in self.flows

    def _leaves(self, variable: jex.Var) -> bool:
        """True if something outside of the region reads a value."""
        return variable in self.step.results or any(p not in self.flows for p in self.step.readers[variable])

    def _place(self, variable: jex.Var, axis: RowAxis) -> None:
        """Notes where the rows of a value are; what computes and reads a large one joins the region."""
        known = self.axes.setdefault(variable, axis)
        if known != axis:
            raise RowsMixedError(
                f"a value ({variable.aval.str_short()}) is read by rows in one place, and across in one"
            )
        if self._is_large(variable):
            producer = self.step.producer.get(variable)
            self.pending += [*([] if producer is None else [producer]), *self.step.readers[variable]]

    def _join_pending(self) -> None:
        while self.pending:
            self._join(self.pending.pop())

    def _join(self, position: int, *, is_between: bool = False) -> None:
        """Adds an equation to the region."""
        if position in self.flows:
            return
        equation = self.step.equations[position]
        self._check_place(equation)
        self.flows[position] = flow = self._flow(equation, is_between=is_between)
        for atom, axis in zip(equation.eqn.invars, flow.operands, strict=True):
            if axis is not None and isinstance(atom, jex.Var) and self._is_large(atom):
                self._place(atom, axis)
        for variable, result in zip(equation.eqn.outvars, flow.results, strict=True):
            if result is not None:
                self._place(variable, result)
            elif flow.is_sum:
                self.sums[variable] = equation.eqn

    def _check_place(self, equation: Equation) -> None:
        eqn = equation.eqn
        if equation.effects:
            raise RowsMixedError(f"{called(eqn)} has an effect")
        if is_loop_boundary(eqn) or equation.loop != self.home.loop:
            raise RowsMixedError(f"{called(eqn)} takes rows into or out of a loop")
        if equation.manual is not None:
            raise RowsMixedError(f"{called(eqn)} is in a shard_map")
        if not self.step.sharded.isdisjoint([*equation.variables(), *eqn.outvars]):
            raise RowsMixedError(f"{called(eqn)} has sharded values: devices would exchange sums in each piece")

    def _flow(self, equation: Equation, *, is_between: bool) -> RowFlow:
        """The rows of an equation, from the first of its results or operands whose rows are known."""
        eqn = equation.eqn
        known = [(WRITTEN, i, v) for i, v in enumerate(eqn.outvars) if v in self.axes]
        known += [(READ, i, v) for i, v in enumerate(eqn.invars) if isinstance(v, jex.Var) and v in self.axes]
        if not known:
            raise RowsMixedError(f"the rows are coupled: {called(eqn)} of a sum over all rows is read by each row")
        if is_between and kind_of(eqn.primitive.name) is Kind.CONTRACTION:
            raise RowsMixedError(f"{called(eqn)} of another layer is between the forward pass and the backward pass")
        side, position, variable = known[0]
        return flow_through(eqn, side, position, self.axes[variable], self.rows, self.step.numbers)

    def _between(self) -> list[int]:
        """Equations outside of the region that read it and that it reads, through others or directly."""
        equations = self.step.equations
        after = {v for p in self.flows for v in equations[p].eqn.outvars}
        reads = []
        for position, equation in enumerate(equations):
            if position not in self.flows and not after.isdisjoint(equation.variables()):
                after.update(equation.eqn.outvars)
                reads.append(position)
        before = {v for p in self.flows for v in equations[p].variables()}
        found = []
        for position in reversed(reads):
            if not before.isdisjoint(equations[position].eqn.outvars):
                before.update(equations[position].variables())
                found.append(position)
        return found[::-1]

    def _check_operands(self) -> None:
        """Refuses a region that reads a sum of its own, or one of its values with other rows."""
        for position, flow in self.flows.items():
            eqn = self.step.equations[position].eqn
            for atom, axis in zip(eqn.invars, flow.operands, strict=True):
                if isinstance(atom, jex.Var) and atom in self.sums:
                    raise RowsMixedError(
                        f"the rows are coupled: {called(eqn)} reads {called(self.sums[atom])}, a sum over rows"
                    )
                if isinstance(atom, jex.Var) and self._is_computed(atom) and self.axes[atom] != axis:
                    raise RowsMixedError(f"{called(eqn)} reads other rows than its own")
