"""A step as rules of eviction train it: what counts as a call, what is in memory, what each rule's memory is like.

Two bases. "kernels" is the step as it compiles: what is fused is one kernel, values are those in memory, seconds those
of the target. "eager" is every op of the step a kernel and every value in memory. Either is trained for a few steps in
one memory that holds the parameters too: how they are updated is half of what the rules differ in.

Read after `jaxckpt.dynamic` and `jaxckpt.solve`.
"""

from dataclasses import dataclass, replace

from jaxckpt._errors import ComparisonError
from jaxckpt._step import Step
from jaxckpt.dynamic import MEMORIES, Evictor, Memory, Mode, Program, Search, eager_seconds, evictor, program_from_graph
from jaxckpt.dynamic.kernel_program import training_of_kernels
from jaxckpt.machine import Target
from jaxckpt.solve import Problem
from jaxckpt.trace import trace_step

EVICTORS = ("dtr", "dte", "coop")
"""The rules that are compared unless others are asked for."""
_BASES = ("kernels", "eager")
_AS_RUN = {"dtr": "dtr_eq"}
"""DTR as it is run: classes stand for neighbourhoods."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A step that rules of eviction can run: its name, whose seconds count, one step, and all training steps."""

    name: str
    target: str
    problem: Problem
    program: Program


def trained_step(step: Step, *, target: Target | str, basis: str, steps: int) -> Trained:
    """Traces a step and makes a program of it; ComparisonError where there is no such basis."""
    if basis not in _BASES:
        raise ComparisonError(
            f"basis={basis!r} names no basis.",
            got=repr(basis),
            needed="one of " + ", ".join(map(repr, _BASES)),
            advice='basis="kernels"',
        )
    traced = trace_step(step.function, *step.args, kwargs=step.kwargs, **step.argnums)
    chosen = Target(target) if isinstance(target, str) else target
    problem = Problem(graph=traced.graph, rates=chosen.rates)
    if basis == "kernels":
        program = training_of_kernels(problem, steps=steps)
    else:
        prices_ns = [1e9 * seconds for seconds in eager_seconds(traced.graph, problem.rates)]
        program = program_from_graph(traced.graph, prices=prices_ns, steps=steps)
    return Trained(name=traced.name, target=chosen.name, problem=problem, program=program)


def rule_as_run(name: str) -> Evictor:
    """The rule of a name, with the same prices as all others."""
    return replace(evictor(_AS_RUN.get(name, name)), by_bytes=False)


def memory_of(rule: Evictor) -> Memory:
    """One hard block with addresses for every rule, laid out as the rule was published."""
    return MEMORIES[rule.name] if rule.search is Search.WINDOW else Memory(mode=Mode.HARD, drops_again=True)
