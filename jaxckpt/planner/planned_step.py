"""A step that is planned when it is called: the function `jit` and what it returns.

Read after `planner` and `plan_cache`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar, Unpack, cast, overload

from jaxckpt import _compat
from jaxckpt._errors import ArgumentError, InfeasibleBudgetError
from jaxckpt._progress import Progress, silent
from jaxckpt._units import format_bytes
from jaxckpt.calling import Calling
from jaxckpt.compiler import Footprint
from jaxckpt.machine import Target
from jaxckpt.planner.broadcast import plan_once
from jaxckpt.planner.options import PlanKeywords, PlanOptions, options_with
from jaxckpt.planner.plan_cache import PlanCache, PlanQuestion
from jaxckpt.planner.planner import Planner
from jaxckpt.planner.user_plan import Plan
from jaxckpt.rewrite import PlannedFunction
from jaxckpt.rewrite.agreement import spans_processes
from jaxckpt.trace import Traced

_Arguments = ParamSpec("_Arguments")
_Results = TypeVar("_Results")
_DEFAULT = PlanOptions()

_MARGIN = 0.05
"""The share of a device's memory that the default budget leaves free: fragments of the allocator, and arrays of the
process that are no arguments of the step. XLA's scheduler for GPUs leaves as much free (the default of its option
`xla_gpu_memory_limit_slop_factor` is 95). The value was never tried on a full device."""


class PlannedStep(PlannedFunction[_Arguments, _Results]):
    """A step that is planned when it is called, once for each kind of arguments; `jaxckpt.jit` makes it.

    It is called as the step is, and may stand under `jax.jit`, `nnx.jit` or `equinox.filter_jit`. `lower` takes
    descriptions of arrays too: it plans, and runs nothing.
    """

    def __init__(
        self,
        step: Callable[_Arguments, _Results],
        calling: Calling,
        *,
        budget: str | int | float | None,
        target: Target | str,
        strategy: str,
        other_shapes: str,
        cache: PlanCache | None,
        options: PlanOptions,
        progress: Progress,
    ) -> None:
        super().__init__(step, calling, self._plan_for, state_on_host="state" in options.allow)
        self._budget = budget
        self._target = target
        self._strategy = strategy
        self._keeps_others = other_shapes == "as_written"
        self._cache = cache
        self._options = options
        self._say = progress

    @property
    def plan(self) -> Plan | None:
        """The plan of the latest call; None before the first."""
        return cast(Plan | None, super().plan)

    @property
    def footprint(self) -> Footprint | None:
        """The compiled footprint of that plan."""
        return None if self.plan is None else self.plan.footprint

    def _plan_for(self, traced: Traced) -> Plan:
        target = Target(self._target)
        target.require_compiler()
        question = PlanQuestion(
            traced=traced,
            target=target,
            budget=_default_budget(target) if self._budget is None else self._budget,
            strategy="none" if self._keeps_others and self.plan is not None else self._strategy,
            options=self._options,
        )
        is_shared = spans_processes(traced)

        def answer() -> Plan:
            return plan_once(lambda: self._answer(question)) if is_shared else self._answer(question)

        return _compat.outside_of_traces(answer)  # a jit around the step traces it, and planning compiles

    def _answer(self, question: PlanQuestion) -> Plan:
        """The plan on disk, or a new one."""
        known = None if self._cache is None else self._cache.read(question)
        if known is not None and self._cache is not None:
            self._say(f"the plan is known from {self._cache.path(question)}")
            return known
        planner = Planner.of_traced(
            question.traced, target=question.target, options=question.options, progress=self._say
        )
        try:
            plan = planner.plan(budget=question.budget, strategy=question.strategy)
        except InfeasibleBudgetError:
            if question.strategy == self._strategy:
                raise
            plan = planner.plan(budget=question.budget, strategy=self._strategy)
        if self._cache is not None:
            self._cache.write(question, plan)
        return plan


class JitKeywords(PlanKeywords, total=False):
    """The keywords of `jit`: its own, and the fields of `PlanOptions`."""

    budget: str | int | float | None
    target: Target | str
    strategy: str
    other_shapes: Literal["plan", "as_written"]
    cache: bool | str | Path
    donate_argnums: int | Sequence[int]
    static_argnums: int | Sequence[int]
    options: PlanOptions
    progress: Progress | None


@overload
def jit(step: Callable[_Arguments, _Results], **keywords: Unpack[JitKeywords]) -> PlannedStep[_Arguments, _Results]: ...


@overload
def jit(
    **keywords: Unpack[JitKeywords],
) -> Callable[[Callable[_Arguments, _Results]], PlannedStep[_Arguments, _Results]]: ...


def jit(
    step: Callable[..., Any] | None = None,
    *,
    budget: str | int | float | None = None,
    target: Target | str = "attached",
    strategy: str = "optimal",
    other_shapes: Literal["plan", "as_written"] = "plan",
    cache: bool | str | Path = True,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    options: PlanOptions = _DEFAULT,
    progress: Progress | None = None,
    **keywords: Unpack[PlanKeywords],
) -> Any:
    """Plans a training step at its first call, for the arguments of that call, and compiles it.

    The plan of the first call is kept on disk for later runs of the program. If several processes run the step
    together, process 0 plans and the others receive its plan.

    Args:
      step: Loss, gradient and, if there is one, the update, as you write it: plain, or under the jit of JAX, NNX or
        Equinox. Without it, `jit` returns a decorator.
      budget: "6GiB", "6GB", bytes, or a share of the unplanned step's footprint; None for 95% of the memory of a device
        (for an attached GPU: of what JAX's allocator may use, XLA_PYTHON_CLIENT_MEM_FRACTION).
      target: A `Target` or its name; "attached" for the devices that JAX uses.
      strategy: As for `jaxckpt.plan`.
      other_shapes: For arguments of other shapes than those of the first call, such as a smaller last batch: "plan"
        makes another plan; "as_written" runs the step as written if it fits the budget.
      cache: True for plans on disk in the user's cache directory, a path for another folder, False for none.
      donate_argnums: Arguments whose memory the results may take; those of a jitted step are read from it.
      static_argnums: Arguments that are not traced; those of a jitted step are read from it.
      options: All options as one object.
      progress: Called with a sentence before each longer piece of work, such as `print`.
      **keywords: Fields of `PlanOptions`, which override those of `options`.

    Returns:
      A function of the same signature. Its `plan` and `footprint` are those of the latest call; `lower(*args)` plans
      and lowers without running.

    Raises:
      ArgumentError: An option or the memory of the target is unknown. A call raises the errors of `jaxckpt.plan`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> @jit(target="cpu", cache=False)
      ... def step(w, x):
      ...     return jax.grad(lambda w: jnp.tanh(jnp.tanh(x @ w) @ w).sum())(w)
      >>> step(jnp.eye(4), jnp.ones((2, 4))).shape, step.plan.target
      ((4, 4), 'cpu')
    """
    if other_shapes not in ("plan", "as_written"):
        raise ArgumentError(
            'jit(other_shapes=...) is neither "plan" nor "as_written".',
            got=repr(other_shapes),
            needed='"plan" or "as_written"',
            advice='other_shapes="plan"',
        )
    chosen = options_with(options, keywords, called=jit)

    def planned(step: Callable[..., Any]) -> PlannedStep[..., Any]:
        return PlannedStep(
            step,
            Calling(step, donate_argnums=donate_argnums, static_argnums=static_argnums),
            budget=budget,
            target=target,
            strategy=strategy,
            other_shapes=other_shapes,
            cache=None if cache is False else PlanCache(None if cache is True else cache),
            options=chosen,
            progress=progress or silent,
        )

    return planned if step is None else planned(step)


def _default_budget(target: Target) -> int:
    if target.memory_bytes:
        return int((1 - _MARGIN) * target.memory_bytes)
    raise ArgumentError(
        f"jit(target={target.name!r}) has no budget.",
        got=f"a device that does not say how much memory it has ({format_bytes(target.memory_bytes)})",
        needed="an amount of memory",
        advice='budget="16GiB"',
    )
