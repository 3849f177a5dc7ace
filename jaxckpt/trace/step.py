"""Traces a training step into a graph, which keeps the way back from every value to its variable.

The step is traced once, as JAX traces it under `jit`; nothing is compiled or run. Its own exceptions pass through
untouched. Then: inlining, common subexpression elimination, dead code elimination, phases, code sinking, graph.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import jax.core
import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt._errors import NoGradientError
from jaxckpt.calling import Calling, StepCall
from jaxckpt.calling.arguments import leaf_sharding
from jaxckpt.ir import Graph, Phase
from jaxckpt.outline.outline import closed_jaxpr
from jaxckpt.program.flat_program import AnyMesh, CondKey, FlatProgram, array_spec
from jaxckpt.program.inline import inline
from jaxckpt.program.open_loops import conds_to_keep_closed, is_sound
from jaxckpt.program.simplify import eliminate_common_subexpressions, eliminate_dead_code
from jaxckpt.trace.graph import graph_of
from jaxckpt.trace.phase import move_to_forward, phases_from_liveness, phases_from_marks
from jaxckpt.trace.sharding import propagate_shardings
from jaxckpt.trace.sink import sink_elementwise

_NO_KEYWORDS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traced:
    """A traced step.

    Attributes:
      graph: The step as plain data.
      program: The step as one level of JAX equations: equation `i` is `graph.ops[i]`.
      jaxpr: The same as a closed jaxpr, open loops closed; computes what the step computes.
      variables: By value id, the variable in `program`.
      specs: The flat arguments, with their shardings.
      paths: The path of each in the step's arguments ("state['params']").
      positions: For each the position or the name of the argument that it is in; None where the step itself binds it.
      donated: Indices of flat arguments whose memory the results may take.
      static: Positions and keywords of arguments that are not traced, as the step is called.
      jit: "jax", "nnx" or "equinox" for the jit around the step; "" for none.
      phases_source: "names" where differentiation marked the phases, "structure" where liveness gave them.
      name: The step's name.
      stage: The step as JAX traced it, before any of our work.
    """

    graph: Graph = field(repr=False)
    program: FlatProgram = field(repr=False)
    jaxpr: jex.ClosedJaxpr = field(repr=False)
    variables: tuple[jex.Var, ...] = field(repr=False)
    specs: tuple[jax.ShapeDtypeStruct, ...] = field(repr=False)
    paths: tuple[str, ...] = field(repr=False)
    positions: tuple[int | str | None, ...] = field(repr=False)
    donated: frozenset[int]
    static: frozenset[int | str]
    jit: str
    phases_source: str
    name: str
    stage: jax.stages.Traced = field(repr=False)

    def flat_function(self) -> Callable[..., Sequence[Any]]:
        """The original step over flat arrays, as its author wrote it: the user's own checkpoints included."""
        return _compat.traced_leaves(self.stage).call

    @property
    def compiler_options(self) -> tuple[tuple[str, Any], ...]:
        """The XLA options of the step's own jit, as pairs."""
        return _compat.traced_leaves(self.stage).compiler_options

    @property
    def in_shardings(self) -> tuple[jax.sharding.Sharding | None, ...]:
        """The sharding that the step's own jit asks of each flat argument, or None."""
        return _compat.jit_in_shardings(self.stage)

    @property
    def out_shardings(self) -> tuple[jax.sharding.Sharding | None, ...]:
        """The sharding that it asks of each result, or None."""
        return _compat.traced_leaves(self.stage).out_shardings

    @property
    def mesh(self) -> AnyMesh | None:
        """The mesh of the arguments, of a constraint in the step, or of the context; None where there is none."""
        constraints = (equation.eqn.params.get("sharding") for equation in self.program.equations)
        shardings = (*(spec.sharding for spec in self.specs), *self.in_shardings, *constraints)
        meshes = (getattr(sharding, "mesh", None) for sharding in shardings)
        context = jax.sharding.get_abstract_mesh()
        return next((mesh for mesh in meshes if mesh is not None), None if context.empty else context)

    def closes_over_tracers(self) -> bool:
        """True if the step reads values of an outer trace, and so means nothing outside that trace."""
        return any(isinstance(array, jax.core.Tracer) for _, array in self.program.constants)


def trace_step(
    step: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] = _NO_KEYWORDS,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    eager: bool = False,
    open_loops: bool = True,
) -> Traced:
    """Traces a training step into a graph; sizes are bytes per device, as the compiler will split values over the mesh.

    Arguments are arrays, `jax.ShapeDtypeStruct`s (with shardings where there is a mesh), numbers, key arrays, None, NNX
    objects, or pytrees of these with any other leaves, which are static. A jitted step brings its donation, static
    arguments and shardings along. The user's `jax.checkpoint` is undone, so that every residual can be decided on.
    `open_loops` opens the loops that belong to the gradient, so that values in their bodies can be decided on too;
    otherwise each loop is one op.

    With `eager` the step is to be run op by op as it was traced: calls with custom derivatives are inlined too, nothing
    is moved or opened, and a backward pass is not required; where none is marked all ops are forward.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxckpt.ir import Phase
      >>> step = jax.grad(lambda w, x: jnp.sin(x @ w).sum())
      >>> traced = trace_step(step, jnp.ones((2, 3)), jnp.ones((4, 2)))
      >>> [op.primitive for op in traced.graph.ops if op.phase is Phase.FORWARD]
      ['dot_general', 'cos']
    """
    calling = Calling(step, donate_argnums=donate_argnums, static_argnums=static_argnums)
    with calling.bind(args, kwargs) as call:
        return trace_call(call, call.trace(), eager=eager, open_loops=open_loops)


def trace_call(call: StepCall, stage: jax.stages.Traced, *, eager: bool = False, open_loops: bool = True) -> Traced:
    """As `trace_step`, for a call that JAX has traced."""
    leaves = _compat.traced_leaves(stage)
    donated = call.donation(stage)
    of_jit = _compat.jit_in_shardings(stage)
    shardings = [asked or leaf_sharding(leaf) for asked, leaf in zip(of_jit, call.leaves, strict=True)]
    program, phases, source = _program(stage, eager=eager, open_loops=open_loops and not eager)
    split = {} if eager else propagate_shardings(program, shardings, leaves.out_shardings)
    graph, variables = graph_of(program, phases, shardings=shardings, donated=donated, splits=split)
    return Traced(
        graph=graph,
        program=program,
        jaxpr=closed_jaxpr(program, program.equations, program.outvars),
        variables=variables,
        specs=tuple(map(array_spec, leaves.avals, shardings)),
        paths=call.paths,
        positions=call.positions,
        donated=donated,
        static=call.untraced,
        jit=call.jit,
        phases_source=source,
        name=leaves.name,
        stage=stage,
    )


def _program(stage: jax.stages.Traced, *, eager: bool, open_loops: bool) -> tuple[FlatProgram, tuple[Phase, ...], str]:
    """The program in its final order, a phase an equation, and the `phases_source`."""
    captured = _compat.captured_arrays(stage)

    def simplified(closed_conds: frozenset[CondKey]) -> FlatProgram:
        inlined = inline(stage.jaxpr, captured, inline_custom=eager, open_loops=open_loops, closed_conds=closed_conds)
        return eliminate_dead_code(eliminate_common_subexpressions(inlined))

    program = simplified(frozenset())
    if closed_conds := conds_to_keep_closed(program):
        program = simplified(closed_conds)
    phased = _phased(program, eager=eager)
    if open_loops and not is_sound(phased[0]):
        return _program(stage, eager=eager, open_loops=False)
    return phased


def _phased(program: FlatProgram, *, eager: bool) -> tuple[FlatProgram, tuple[Phase, ...], str]:
    try:
        found = phases_from_marks(program)
    except NoGradientError:
        if not eager:
            raise
        found = None
    source = "structure" if found is None else "names"
    if eager:
        return program, (Phase.FORWARD,) * len(program.equations) if found is None else found.phases, source
    return *sink_elementwise(*move_to_forward(program, found or phases_from_liveness(program))), source
