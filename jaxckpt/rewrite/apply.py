"""A plan and a step become a function of the step's own signature.

The function traces the step with the arguments that it is called with, checks that the plan is for exactly that step
(shapes, types, operations), and runs the rewritten step. It never plans anew: a difference is an error. The rewriting
is done once for each kind of arguments.

Under `jax.jit` over automatic meshes a trace shows neither the shardings of arguments nor `in_shardings`, and decisions
that shard values depend on them. Such a step is one equation of the trace, which is rewritten when it is lowered.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar

import jax
import jax.core
import jax.extend.core as jex
from jax.sharding import NamedSharding

from jaxckpt import _compat
from jaxckpt._compilers import compiler_for
from jaxckpt.calling import Calling, StepCall
from jaxckpt.calling.arguments import leaf_sharding
from jaxckpt.calling.calling import mark_planned, refuse_lost_state
from jaxckpt.ir import GraphPlan, Offload, Partition
from jaxckpt.program.flat_program import open_jaxpr
from jaxckpt.rewrite.agreement import platforms, require_agreement
from jaxckpt.rewrite.check_plan import Argument, check_planned
from jaxckpt.rewrite.host_arguments import described_in, moved_in_trace, moved_to
from jaxckpt.rewrite.known_bad import refuse_miscompiled
from jaxckpt.rewrite.moves import copy_options
from jaxckpt.rewrite.rewrite import Rewritten, rewrite
from jaxckpt.trace import Traced, trace_call

_Arguments = ParamSpec("_Arguments")
_Results = TypeVar("_Results")
_Shardings = tuple[Any, ...]


def apply(
    step: Callable[_Arguments, _Results],
    plan: GraphPlan,
    *,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    arguments: Sequence[Argument] = (),
    compiler_options: Sequence[tuple[str, Any]] = (),
) -> "PlannedFunction[_Arguments, _Results]":
    """The step with a plan's decisions carried out: a function of the same signature, results and effects.

    An effect under a `jax.checkpoint` of the step happens once, since the plan decides what is recomputed.

    Under `jax.jit` it is part of the trace around it; called directly, it is compiled once for each kind of arguments,
    with the XLA options of the step's own jit and `compiler_options`, those of the compile that the plan was held
    against. The latter are for the compiler of a GPU or TPU.
    When called it raises what `trace_step`, `check_planned`, `refuse_miscompiled` and `require_agreement` raise. The
    arguments that the plan was made for let the error of a mismatch name those that differ.
    """

    def decide(traced: Traced) -> GraphPlan:
        check_planned(traced, plan, arguments)
        return plan

    calling = Calling(step, donate_argnums=donate_argnums, static_argnums=static_argnums)
    return PlannedFunction(
        step, calling, decide, state_on_host=bool(plan.host_arguments), compiler_options=dict(compiler_options)
    )


def apply_decided(
    step: Callable[_Arguments, _Results],
    decide: Callable[[Traced], GraphPlan],
    *,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
) -> "PlannedFunction[_Arguments, _Results]":
    """As `apply`, with decisions that `decide` makes when the step is called, once for each kind of arguments."""
    calling = Calling(step, donate_argnums=donate_argnums, static_argnums=static_argnums)
    return PlannedFunction(step, calling, decide)


class PlannedFunction(Generic[_Arguments, _Results]):
    """A step with decisions carried out, which are made when it is called, once for each kind of arguments.

    It is called as the step is, and may stand under `jax.jit`, `nnx.jit` or `equinox.filter_jit`.

    With `state_on_host` decisions may have arguments in host memory. The step is traced as if they were on the device.
    Called directly, it moves arguments to where the decisions have them; under a jit they should be there.
    """

    def __init__(
        self,
        step: Callable[_Arguments, _Results],
        calling: Calling,
        decide: Callable[[Traced], GraphPlan],
        *,
        state_on_host: bool = False,
        compiler_options: dict[str, Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, step, updated=())
        if calling.function is not step:  # what binds arrays is no function: Equinox looks for arrays in wrapped ones
            self.__signature__ = inspect.signature(step)
            del self.__wrapped__
        self._compiler_options = compiler_options or {}
        mark_planned(self, calling, self._compiler_options)
        self._calling = calling
        self._decide = decide
        self._state_on_host = state_on_host
        self._calls: dict[tuple[int, _Shardings], _RewrittenCall | _UnloweredCall] = {}
        self._plan: GraphPlan | None = None

    def __repr__(self) -> str:
        """The step's name and, after the first call, the strategy that decided."""
        decided = () if self._plan is None else (self._plan.strategy,)
        return f"{type(self).__name__}({', '.join((getattr(self, '__name__', 'step'), *decided))})"

    @property
    def plan(self) -> GraphPlan | None:
        """The decisions that the latest call carried out; None before the first."""
        return self._plan

    def __call__(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Results:
        """Runs the planned step."""
        with self._calling.bind(args, kwargs) as call:
            traced_call = call.on_device() if self._state_on_host else call
            stage = traced_call.trace()  # jit gives back the same jaxpr where nothing has changed
            if _is_called_by_jax():
                refuse_lost_state(_compat.traced_leaves(stage).name, call, stage)
            results: _Results = call.results(stage, self._rewritten(traced_call, stage, call.leaves)(call.leaves))
            return results

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Binds the step to an object of whose class it is a method."""
        return self if instance is None else MethodType(self, instance)

    def lower(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> jax.stages.Lowered:
        """Lowers what a call with these arguments would run: a function of flat arrays, in the order of the step's."""
        with self._calling.bind(args, kwargs) as call:
            traced_call = call.on_device() if self._state_on_host else call
            return self._rewritten(traced_call, traced_call.trace(), call.leaves).lower(call.leaves)

    def _rewritten(
        self, call: StepCall, stage: jax.stages.Traced, leaves: Sequence[Any]
    ) -> "_RewrittenCall | _UnloweredCall":
        """The step for a call, as it was traced; `leaves` are those that the step is called with."""
        key = id(stage.jaxpr), _shardings(call.leaves)
        found = self._calls.get(key)
        if found is None:
            traced = trace_call(call, stage)
            plan = self._decide(traced)
            is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
            if is_traced and _needs_shardings(traced, plan):
                found = _UnloweredCall(self, call, traced, plan)
            else:
                found = _RewrittenCall(
                    _rewritten(traced, plan),
                    plan,
                    state_on_host=self._state_on_host,
                    compiler_options=self._compiler_options,
                )
            if traced.closes_over_tracers():
                self._calling.forget()
            else:
                self._calls[key] = found
        self._plan = found.plan
        return found

    def _lowered(self, call: StepCall, stage: jax.stages.Traced) -> "_RewrittenCall":
        """As `_rewritten`, for a call whose leaves are described with the shardings that jit lowers them with."""
        traced = trace_call(call, stage)
        self._plan = self._decide(traced)
        return _RewrittenCall(_rewritten(traced, self._plan), self._plan)


def _is_called_by_jax() -> bool:
    """True if the planned function is called by `jax.jit` itself, and not by other code within it."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith("jax.")


def _rewritten(traced: Traced, plan: GraphPlan) -> Rewritten:
    """A rewritten step that the compilers of its devices get right, and that all processes of the run agree on."""
    found = rewrite(traced, plan, for_tpu="tpu" in platforms(traced))
    for platform in platforms(traced):
        refuse_miscompiled(
            found.traced.graph,
            plan,
            called=f"apply({traced.name})",
            platform=platform,
            version=compiler_for(platform).version or "",
        )
    require_agreement(traced, plan)
    return found


class _RewrittenCall:
    """A rewritten step as a function of its flat arguments, jitted unless it is called within a trace."""

    def __init__(
        self,
        rewritten: Rewritten,
        plan: GraphPlan,
        *,
        state_on_host: bool = False,
        compiler_options: dict[str, Any] | None = None,
    ):
        self.plan = plan
        self.traced = rewritten.traced
        self._rewritten = rewritten
        self._avals = [variable.aval for variable in open_jaxpr(rewritten.jaxpr).invars]
        self._state_on_host = state_on_host
        used = platforms(self.traced)
        options = dict(option for platform in used for option in copy_options(plan, platform))
        options |= dict(self.traced.compiler_options) | ({} if "cpu" in used else compiler_options or {})
        donated = tuple(sorted(self.traced.donated))
        self._jitted = jax.jit(self.run, donate_argnums=donated, compiler_options=options or None)

    def lower(self, flat: Sequence[Any]) -> jax.stages.Lowered:
        """Lowers the step as a jit of its own."""
        return self._jitted.lower(*map(described_in, flat, self._avals))

    def __call__(self, flat: Sequence[Any]) -> Sequence[Any]:
        is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in flat)
        if self._state_on_host:  # of 450 leaves the memories are found in 0.7 ms, in every step
            flat = self._moved(flat, is_traced=is_traced)
        return self.run(*flat) if is_traced else self._jitted(*flat)

    def _moved(self, flat: Sequence[Any], *, is_traced: bool) -> Sequence[Any]:
        """The arguments in the memories that the plan has them in."""
        if is_traced:
            return moved_in_trace(self.traced.name, self.traced.paths, flat, self._avals)
        donated = (i in self.traced.donated for i in range(len(flat)))
        return list(map(moved_to, flat, self._avals, donated))

    def run(self, *flat: jax.Array) -> Sequence[jax.Array]:
        """The rewritten step between the shardings that the step's own jit asks for."""
        rewritten = self._rewritten
        operands = map(_constrained, flat, rewritten.in_shardings)
        return list(map(_constrained, rewritten.call(*operands), rewritten.out_shardings))


class _UnloweredCall:
    """A step under a jit, rewritten when the jit is lowered: only then the shardings of its arguments are known."""

    def __init__(self, step: PlannedFunction[..., Any], call: StepCall, traced: Traced, plan: GraphPlan):
        self.plan = plan
        self._step = step
        self._call = replace(call, args=(), kwargs={}, leaves=traced.specs)  # without tracers of the jit's trace
        self.traced = traced

    def __call__(self, flat: Sequence[Any]) -> Sequence[Any]:
        return _planned_step_p.bind(*flat, call=self)

    def lower(self, flat: Sequence[Any]) -> jax.stages.Lowered:
        """Lowers the step as a jit of its own."""
        return jax.jit(lambda *flat: self(flat)).lower(*flat)

    def with_shardings(self, shardings: Sequence[NamedSharding | None]) -> Callable[..., Sequence[Any]]:
        """The rewritten step over flat arrays with such shardings."""
        specs = [
            jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding, weak_type=spec.weak_type)
            for spec, sharding in zip(self.traced.specs, shardings, strict=True)
        ]
        call = replace(self._call, leaves=tuple(specs))
        return self._step._lowered(call, self.traced.stage).run


_planned_step_p = jex.Primitive("planned_step")
"""A step that is rewritten when it is lowered; without rules for derivatives and batching."""
_planned_step_p.multiple_results = True


def _results_of(*_: Any, call: _UnloweredCall) -> list[jax.core.AbstractValue]:
    return [variable.aval for variable in open_jaxpr(call.traced.jaxpr).outvars]


def _run_by_itself(*flat: Any, call: _UnloweredCall) -> Sequence[Any]:
    return jax.jit(functools.partial(_planned_step_p.bind, call=call))(*flat)


_planned_step_p.def_abstract_eval(_results_of)
_planned_step_p.def_impl(_run_by_itself)
_compat.register_step_lowering(_planned_step_p, lambda shardings, *, call: call.with_shardings(shardings))


def _needs_shardings(traced: Traced, plan: GraphPlan) -> bool:
    """True if a plan shards values of a step whose trace names no mesh: no type, constraint or context does.

    Effects and values of an outer trace belong to the trace; such steps need the mesh of the context.
    """
    shards = any(isinstance(d, Partition) or (isinstance(d, Offload) and d.shard) for d in plan.decisions.values())
    return shards and not traced.graph.mesh and not traced.closes_over_tracers() and not _has_effects(traced)


def _has_effects(traced: Traced) -> bool:
    return bool(open_jaxpr(traced.jaxpr).effects)


def _shardings(leaves: Sequence[Any]) -> _Shardings:
    """The axes of the arguments' mesh, or of the context's, and how each argument is split over them.

    A plan may name axes, or shard a value over one that it is replicated on.
    """
    shardings = list(map(leaf_sharding, leaves))
    named = [sharding if isinstance(sharding, NamedSharding) else None for sharding in shardings]
    mesh = next((sharding.mesh for sharding in named if sharding is not None), jax.sharding.get_abstract_mesh())
    return *mesh.shape.items(), *(None if sharding is None else sharding.spec for sharding in named)


def _constrained(array: jax.Array, sharding: jax.sharding.Sharding | None) -> jax.Array:
    return array if sharding is None else jax.lax.with_sharding_constraint(array, sharding)
