"""A plan and a step become a function of the step's own signature.

The function traces the step with the arguments that it is called with, checks that the plan is for exactly that step
(shapes, types, operations), and runs the rewritten step. It never plans anew: a difference is an error. The rewriting
is done once for each kind of arguments.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.core

from jaxckpt._compilers import compiler_for
from jaxckpt.ir import Graph, GraphPlan
from jaxckpt.rewrite.agreement import platforms, require_agreement
from jaxckpt.rewrite.check_plan import Argument, check_planned
from jaxckpt.rewrite.known_bad import refuse_miscompiled
from jaxckpt.rewrite.rewrite import Rewritten, rewrite
from jaxckpt.trace import Traced, trace_stage, trace_step

_Arguments = ParamSpec("_Arguments")
_Results = TypeVar("_Results")


def apply(
    step: Callable[_Arguments, _Results],
    plan: GraphPlan,
    *,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    arguments: Sequence[Argument] = (),
    graph: Graph | None = None,
) -> Callable[_Arguments, _Results]:
    """The step with a plan's decisions carried out: a function of the same signature, results and effects.

    Under `jax.jit` it is part of the trace around it; called directly, it is compiled once for each kind of arguments.
    When called it raises what `trace_step`, `check_planned`, `refuse_miscompiled` and `require_agreement` raise. The
    arguments and the graph that the plan was made for let the error of a mismatch name what differs.
    """

    def decide(traced: Traced) -> GraphPlan:
        check_planned(traced, plan, arguments, graph)
        return plan

    return apply_decided(step, decide, donate_argnums=donate_argnums, static_argnums=static_argnums)


def apply_decided(
    step: Callable[_Arguments, _Results],
    decide: Callable[[Traced], GraphPlan],
    *,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
) -> Callable[_Arguments, _Results]:
    """As `apply`, with decisions that `decide` makes when the step is called, once for each kind of arguments."""
    calls: dict[int, _RewrittenCall] = {}
    latest: Traced | None = None

    @functools.wraps(step, updated=())
    def planned(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Results:
        nonlocal latest
        call = None
        if latest is not None:  # jit gives back the same jaxpr where nothing has changed
            call = calls.get(id(trace_stage(latest.jitted, args, kwargs, static=latest.static).jaxpr))
        if call is None:
            options: Any = {"donate_argnums": donate_argnums, "static_argnums": static_argnums}
            traced = trace_step(step, *args, kwargs=kwargs, **options)
            call = _RewrittenCall(_rewritten(traced, decide(traced)))
            if not traced.closes_over_tracers():
                latest = traced
                calls[id(traced.stage.jaxpr)] = call
        results: _Results = call(args, kwargs)
        return results

    return planned


def _rewritten(traced: Traced, plan: GraphPlan) -> Rewritten:
    """A rewritten step that the compilers of its devices get right, and that all processes of the run agree on."""
    found = rewrite(traced, plan, stacked="tpu" in platforms(traced))
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
    """A rewritten step as a function of its arguments, jitted unless it is called within a trace."""

    def __init__(self, rewritten: Rewritten):
        self.traced = rewritten.traced
        self._rewritten = rewritten
        self._jitted = jax.jit(self._run, donate_argnums=tuple(sorted(self.traced.donated)))

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        static = self.traced.static
        dynamic = tuple(arg for i, arg in enumerate(args) if i not in static)
        named = {name: arg for name, arg in kwargs.items() if name not in static}
        flat = jax.tree.leaves((dynamic, named))
        is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in flat)
        results = self._run(*flat) if is_traced else self._jitted(*flat)
        return jax.tree.unflatten(self.traced.out_tree, results)

    def _run(self, *flat: jax.Array) -> Sequence[jax.Array]:
        """The rewritten step between the shardings that the step's own jit asks for."""
        operands = map(_constrained, flat, self.traced.in_shardings)
        return list(map(_constrained, self._rewritten.call(*operands), self.traced.out_shardings))


def _constrained(array: jax.Array, sharding: jax.sharding.Sharding | None) -> jax.Array:
    return array if sharding is None else jax.lax.with_sharding_constraint(array, sharding)
