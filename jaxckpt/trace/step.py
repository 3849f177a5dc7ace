"""Traces a training step into a graph, which keeps the way back from every value to its variable.

The step is traced once, as JAX traces it under `jit`; nothing is compiled or run. Its own exceptions pass through
untouched. Then: inlining, common subexpression elimination, dead code elimination, phases, graph.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import jax.core
import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt._errors import ArgumentError, NoGradientError
from jaxckpt.ir import Graph, Phase
from jaxckpt.outline.outline import closed_jaxpr
from jaxckpt.program.flat_program import FlatProgram
from jaxckpt.program.inline import inline
from jaxckpt.program.open_cond import conds_to_keep_closed
from jaxckpt.program.open_scan import is_sound
from jaxckpt.program.simplify import eliminate_common_subexpressions, eliminate_dead_code
from jaxckpt.trace.arguments import argument_paths, check_arguments, leaf_sharding, without_automatic_shardings
from jaxckpt.trace.graph import graph_of
from jaxckpt.trace.phase import phases_from_liveness, phases_from_marks
from jaxckpt.trace.sharding import aval_bytes, propagate_shardings
from jaxckpt.trace.to_forward import move_to_forward

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
      paths: The path of each in the step's arguments ("[0]['params']").
      donated: Indices of flat arguments whose memory the results may take.
      static: Positions and keywords of arguments that are not traced.
      phases_source: "names" where differentiation marked the phases, "structure" where liveness gave them.
      name: The step's name.
      jitted: The step under `jax.jit`; tracing it again with equal arguments gives the same jaxpr.
      stage: The step as JAX traced it, before any of our work.
    """

    graph: Graph = field(repr=False)
    program: FlatProgram = field(repr=False)
    jaxpr: jex.ClosedJaxpr = field(repr=False)
    variables: tuple[jex.Var, ...] = field(repr=False)
    specs: tuple[jax.ShapeDtypeStruct, ...] = field(repr=False)
    paths: tuple[str, ...] = field(repr=False)
    donated: frozenset[int]
    static: frozenset[int | str]
    phases_source: str
    name: str
    jitted: jax.stages.Wrapped = field(repr=False)
    stage: jax.stages.Traced = field(repr=False)

    def flat_function(self) -> Callable[..., Sequence[Any]]:
        """The original step over flat arrays, as its author wrote it: the user's own checkpoints included."""
        return _compat.traced_leaves(self.stage).call

    @property
    def compiler_options(self) -> tuple[tuple[str, Any], ...]:
        """The XLA options of the step's own jit, as pairs."""
        return _compat.traced_leaves(self.stage).compiler_options

    @property
    def in_tree(self) -> Any:
        """The tree of `(args, kwargs)`, without static arguments."""
        return _compat.argument_tree(self.stage)

    @property
    def out_tree(self) -> Any:
        """The tree of the results."""
        return self.stage.out_tree

    @property
    def in_shardings(self) -> tuple[jax.sharding.Sharding | None, ...]:
        """The sharding that the step's own jit asks of each flat argument, or None."""
        return _compat.jit_in_shardings(self.stage)

    @property
    def out_shardings(self) -> tuple[jax.sharding.Sharding | None, ...]:
        """The sharding that it asks of each result, or None."""
        return _compat.traced_leaves(self.stage).out_shardings

    @property
    def mesh(self) -> Any:
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
    keep_user_remat: bool = False,
    eager: bool = False,
    open_loops: bool = True,
) -> Traced:
    """Traces a training step into a graph; sizes are bytes per device, as the compiler will split values over the mesh.

    A jitted step brings its donation, static arguments and shardings along.

    Args:
      step: Loss, gradient and, in a full step, update.
      *args: Arrays, `jax.ShapeDtypeStruct`s (with shardings where there is a mesh), numbers, key arrays, None, or
        pytrees of these.
      kwargs: Keyword arguments of the step.
      donate_argnums: Positions whose memory the results may take, besides those of the step's own jit.
      static_argnums: Positions that are not traced.
      keep_user_remat: Leaves the user's `jax.checkpoint` as it is. Otherwise it is undone, so that every residual can
        be decided on.
      eager: The step is to be run op by op as it was traced: calls with custom derivatives are inlined too, nothing
        is moved, and a backward pass is not required; where none is marked all ops are forward.
      open_loops: Opens the loops that belong to the gradient, so that values in their bodies can be decided on;
        otherwise each loop is one op. With `eager` none is opened.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxckpt.ir import Phase
      >>> step = jax.grad(lambda w, x: jnp.sin(x @ w).sum())
      >>> traced = trace_step(step, jnp.ones((2, 3)), jnp.ones((4, 2)))
      >>> [op.primitive for op in traced.graph.ops if op.phase is Phase.FORWARD]
      ['dot_general', 'cos']
    """
    static = _positions(static_argnums, len(args))
    jitted, known = _jitted(step, static)
    pairs = argument_paths(args, kwargs, static=known)
    check_arguments(pairs)
    roots = tuple(f"[{position}]" for position in _positions(donate_argnums, len(args)))
    call = _Call(
        jitted=jitted,
        static=known,
        paths=tuple(path for path, _ in pairs),
        shardings=tuple(leaf_sharding(leaf) for _, leaf in pairs),
        donated=frozenset(i for i, (path, _) in enumerate(pairs) if path.startswith(roots or "none")),
    )
    stage = trace_stage(jitted, args, kwargs, static=known)
    return _read(call, stage, keep_user_remat=keep_user_remat, eager=eager, open_loops=open_loops)


def trace_stage(
    jitted: jax.stages.Wrapped, args: Sequence[Any], kwargs: Mapping[str, Any], *, static: frozenset[int | str]
) -> jax.stages.Traced:
    """Traces a jitted step, with the shardings of automatic meshes left out; for equal types from jax's cache."""
    plain_args, plain_kwargs = without_automatic_shardings(args, kwargs, static=static)
    return jitted.trace(*plain_args, **plain_kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call of a step, before the step is traced."""

    jitted: jax.stages.Wrapped
    static: frozenset[int | str]
    paths: tuple[str, ...]
    shardings: tuple[Any, ...]
    donated: frozenset[int]


def _positions(argnums: int | Sequence[int], count: int) -> tuple[int, ...]:
    argnums = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    return tuple(position % count if count else position for position in argnums)


def _jitted(step: Callable[..., Any], static: tuple[int, ...]) -> tuple[jax.stages.Wrapped, frozenset[int | str]]:
    """The step as a jitted function, and which of its arguments are static."""
    if not isinstance(step, jax.stages.Wrapped):
        return jax.jit(step, static_argnums=static), frozenset(static)
    positions, names = _compat.jit_static_arguments(step)
    if not set(static) <= set(positions):
        raise ArgumentError(
            "trace_step: the step is jitted already, and its jit says which arguments are static.",
            got=f"static_argnums={static}",
            needed=f"positions that its jit knows as static: {positions}",
            advice="leave static_argnums out, name them in the step's own jax.jit, or pass step.__wrapped__",
        )
    return step, frozenset((*positions, *names))


def _phased(program: FlatProgram, *, eager: bool) -> tuple[FlatProgram, tuple[Phase, ...], str]:
    """The program in its final order, a phase an equation, and the `phases_source`."""
    if eager:
        try:
            marked = phases_from_marks(program)
        except NoGradientError:
            marked = None
        phases = (Phase.FORWARD,) * len(program.equations) if marked is None else marked.phases
        return program, phases, "structure" if marked is None else "names"
    marked = phases_from_marks(program)
    if marked is None:
        by_liveness = phases_from_liveness(program, lambda variable: aval_bytes(variable.aval))
        return *move_to_forward(program, by_liveness), "structure"
    return *move_to_forward(program, marked), "names"


def _read(call: _Call, stage: jax.stages.Traced, *, keep_user_remat: bool, eager: bool, open_loops: bool) -> Traced:
    leaves = _compat.traced_leaves(stage)
    inlined_with = functools.partial(
        inline,
        stage.jaxpr,
        _compat.captured_arrays(stage),
        keep_user_remat=keep_user_remat,
        inline_custom=eager,
        open_loops=not eager and open_loops,
    )
    inlined = eliminate_dead_code(eliminate_common_subexpressions(inlined_with()))
    if closed_conds := conds_to_keep_closed(inlined):
        inlined = eliminate_dead_code(eliminate_common_subexpressions(inlined_with(closed_conds=closed_conds)))
    program, phases, source = _phased(inlined, eager=eager)
    if not is_sound(program):
        return _read(call, stage, keep_user_remat=keep_user_remat, eager=eager, open_loops=False)
    donated = call.donated | {i for i, is_donated in enumerate(leaves.donated) if is_donated}
    of_jit = _compat.jit_in_shardings(stage)
    shardings = [asked or own for asked, own in zip(of_jit, call.shardings, strict=True)]
    split = {} if eager else propagate_shardings(program, shardings, leaves.out_shardings)
    graph, variables = graph_of(program, phases, shardings=shardings, donated=donated, splits=split)
    return Traced(
        graph=graph,
        program=program,
        jaxpr=closed_jaxpr(program, program.equations, program.outvars),
        variables=variables,
        specs=tuple(map(_spec, leaves.avals, shardings)),
        paths=call.paths,
        donated=donated,
        static=call.static,
        phases_source=source,
        name=leaves.name,
        jitted=call.jitted,
        stage=stage,
    )


def _spec(aval: jax.core.ShapedArray, sharding: jax.sharding.Sharding | None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding, weak_type=getattr(aval, "weak_type", False))
