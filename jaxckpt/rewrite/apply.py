"""A plan and a step become a function of the step's own signature.

The function traces the step with the arguments that it is called with, checks that the plan is for exactly that step
(shapes, types, operations), and runs the rewritten step. It never plans anew: a difference is an error. The rewriting
is done once for each kind of arguments.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.core

from jaxckpt._compilers import compiler_for
from jaxckpt.ir import Graph, GraphPlan
from jaxckpt.rewrite.agreement import platforms, require_agreement
from jaxckpt.rewrite.check_plan import PlannedArgument, check_planned
from jaxckpt.rewrite.known_bad import refuse_miscompiled
from jaxckpt.rewrite.rewrite import Rewritten, rewrite
from jaxckpt.trace import Traced, trace_stage, trace_step


def apply(
    step: Callable[..., Any],
    plan: GraphPlan,
    *,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    keep_user_remat: bool = False,
    arguments: Iterable[PlannedArgument] = (),
    graph: Graph | None = None,
) -> Callable[..., Any]:
    """The step with a plan's decisions carried out: a function of the same signature, results and effects.

    Under `jax.jit` it is part of the trace around it; called directly, it is compiled once for each kind of arguments.
    When called it raises what `trace_step`, `check_planned`, `refuse_miscompiled` and `require_agreement` raise. The
    arguments and the graph that the plan was made for let the error of a mismatch name what differs.
    """
    arguments = tuple(arguments)

    def decide(traced: Traced) -> GraphPlan:
        check_planned(traced, plan, arguments=arguments, graph=graph)
        return plan

    return apply_decided(
        step,
        decide,
        donate_argnums=donate_argnums,
        static_argnums=static_argnums,
        keep_user_remat=keep_user_remat,
    )


def apply_decided(
    step: Callable[..., Any],
    decide: Callable[[Traced], GraphPlan],
    *,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    keep_user_remat: bool = False,
) -> Callable[..., Any]:
    """As `apply`, with decisions that `decide` makes when the step is called, once for each kind of arguments."""
    applied = _Applied(
        step,
        decide,
        options={
            "donate_argnums": donate_argnums,
            "static_argnums": static_argnums,
            "keep_user_remat": keep_user_remat,
        },
    )

    @functools.wraps(step, updated=())
    def planned(*args: Any, **kwargs: Any) -> Any:
        return applied(args, kwargs)

    return planned


class _Applied:
    """A step with decisions, and the steps rewritten so far, one for each kind of arguments."""

    def __init__(self, step: Callable[..., Any], decide: Callable[[Traced], GraphPlan], *, options: dict[str, Any]):
        self._step = step
        self._decide = decide
        self._options = options
        self._jitted: Any = None
        self._static: frozenset[int | str] = frozenset()
        self._compiled: dict[int, _CompiledStep] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        compiled = self._known(args, kwargs) or self._rewrite(args, kwargs)
        return compiled(jax.tree.leaves((compiled.dynamic(args), compiled.named(kwargs))))

    def _known(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "_CompiledStep | None":
        """The step rewritten for this trace; jit gives back the same jaxpr where nothing has changed."""
        if not self._compiled:
            return None
        stage = trace_stage(self._jitted, args, kwargs, static=self._static)
        return self._compiled.get(id(stage.jaxpr))

    def _rewrite(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "_CompiledStep":
        traced = trace_step(self._step, *args, kwargs=kwargs, **self._options)
        plan = self._decide(traced)
        rewritten = rewrite(traced, plan, stacked="tpu" in platforms(traced))
        for platform in platforms(traced):
            refuse_miscompiled(
                rewritten.traced.graph,
                plan,
                called=f"apply({traced.name})",
                platform=platform,
                version=compiler_for(platform).version or "",
            )
        require_agreement(traced, plan)
        compiled = _CompiledStep(rewritten)
        if not traced.closes_over_tracers():
            self._jitted, self._static = traced.jitted, traced.static
            self._compiled[id(traced.stage.jaxpr)] = compiled
        return compiled


class _CompiledStep:
    """A rewritten step as a function of flat arguments."""

    def __init__(self, rewritten: Rewritten):
        self._rewritten = rewritten
        self._traced = rewritten.traced
        self._compiled = jax.jit(self._run, donate_argnums=tuple(sorted(self._traced.donated)))

    def __call__(self, flat: Sequence[Any]) -> Any:
        is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in flat)
        results = self._run(*flat) if is_traced else self._compiled(*flat)
        return jax.tree.unflatten(self._traced.out_tree, results)

    def dynamic(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The positional arguments that are traced."""
        return tuple(arg for i, arg in enumerate(args) if i not in self._traced.static)

    def named(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The keyword arguments that are traced."""
        return {name: arg for name, arg in kwargs.items() if name not in self._traced.static}

    def _run(self, *flat: jax.Array) -> Sequence[jax.Array]:
        """The rewritten step between the shardings that the step's own jit asks for."""
        operands = map(_constrained, flat, self._traced.in_shardings)
        return list(map(_constrained, self._rewritten.call(*operands), self._traced.out_shardings))


def _constrained(array: jax.Array, sharding: jax.sharding.Sharding | None) -> jax.Array:
    return array if sharding is None else jax.lax.with_sharding_constraint(array, sharding)
