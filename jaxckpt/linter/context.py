"""The context of a lint: the raw trace of the step, its graph, and the decisions of a policy for it.

The raw trace holds the user's own `jax.checkpoint`s, loops and names; the graph holds phases, sizes and readers. A lint
reads either and yields diagnostics.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt._errors import PolicyError
from jaxckpt.ir import Graph, Op
from jaxckpt.ir.scope import TRANSPOSE, Marks, is_recomputed, path_of_marks
from jaxckpt.linter.finding import Location
from jaxckpt.linter.jax_policies import ReadPolicy, read_policies
from jaxckpt.machine import Target
from jaxckpt.policy import Policy
from jaxckpt.policy.rule import globs
from jaxckpt.program import FlatProgram
from jaxckpt.program.inline import REMATS, inline, open_jaxpr
from jaxckpt.solve import PolicyPlan, Problem, plan_from_policy
from jaxckpt.trace import Traced
from jaxckpt.trace.op_facts import SourceLines
from jaxckpt.trace.sharding import aval_bytes

LOOPS = frozenset({"scan", "while"})
_REMAT3 = "RematTraced"
_HOST = "<host>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """A defect that a lint finds at one location, and its remedy."""

    where: Location
    text: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EquationSite:
    """One equation of the raw trace, the equations around it (outermost first), and its full name stack."""

    eqn: jex.JaxprEqn
    around: tuple[jex.JaxprEqn, ...]
    marks: Marks

    @property
    def primitive(self) -> str:
        """The name of its primitive."""
        return str(self.eqn.primitive.name)

    @property
    def is_recomputed(self) -> bool:
        """True if a user's `jax.checkpoint` recomputes it."""
        return is_recomputed(self.marks)

    @property
    def is_transposed(self) -> bool:
        """True if differentiation transposed it."""
        return TRANSPOSE in self.marks

    @property
    def loops(self) -> tuple[jex.JaxprEqn, ...]:
        """The loops around it."""
        return tuple(eqn for eqn in self.around if eqn.primitive.name in LOOPS)

    @property
    def is_checkpoint(self) -> bool:
        """True for a `jax.checkpoint`, of the present kind or of the new one."""
        return self.primitive in REMATS or type(self.eqn.params.get("_prim")).__name__ == _REMAT3

    @property
    def written_bytes(self) -> int:
        """Bytes of its largest result."""
        return max((aval_bytes(v.aval) for v in self.eqn.outvars), default=0)

    @property
    def goes_to_host(self) -> bool:
        """True if it moves an array from the device to host memory."""
        if any(True for _ in jex.jaxprs_in_params(self.eqn.params)):
            return False  # an equation in its body does
        to_host = any(_HOST in str(v.aval) for v in self.eqn.outvars)
        return to_host and not any(_HOST in str(v.aval) for v in self.eqn.invars)


@dataclass(frozen=True, kw_only=True, eq=False)
class LintContext:
    """A traced step, and the policy and the machine, if any, that it is checked against."""

    traced: Traced
    policy: Policy | None = None
    target: Target | None = None
    _sources: SourceLines = field(default_factory=SourceLines, repr=False)

    @property
    def graph(self) -> Graph:
        """The step as plain data, without the user's checkpoints."""
        return self.traced.graph

    @cached_property
    def problem(self) -> Problem:
        """The step with its costs."""
        return Problem(graph=self.graph, rates=(self.target or Target("h200")).rates)

    @cached_property
    def sites(self) -> tuple[EquationSite, ...]:
        """Every equation of the raw trace; the equations of a body follow the one that holds it."""
        return tuple(_walk(open_jaxpr(self.traced.stage.jaxpr), (), ()))

    @cached_property
    def raw(self) -> FlatProgram:
        """The raw trace with calls inlined, except for the user's checkpoints and loops."""
        captured = _compat.captured_arrays(self.traced.stage)
        return inline(self.traced.stage.jaxpr, captured, keep_user_remat=True)

    @cached_property
    def checkpoints(self) -> tuple[tuple[EquationSite, tuple[ReadPolicy, ...]], ...]:
        """The user's checkpoints with their policies; in loops those of the forward pass too."""
        return tuple((site, read_policies(policy_of(site))) for site in self.sites if site.is_checkpoint)

    @cached_property
    def names(self) -> dict[str, EquationSite]:
        """Every `checkpoint_name` of the raw trace, with its first equation."""
        found: dict[str, EquationSite] = {}
        for site in self.sites:
            if site.primitive == "name":
                found.setdefault(site.eqn.params["name"], site)
            elif type(prim := site.eqn.params.get("_prim")).__name__ == "CheckpointName":
                found.setdefault(str(getattr(prim, "name", "")), site)
        return found

    def named(self, pattern: str) -> EquationSite | None:
        """The equation of the first name that a glob matches, or None."""
        return next((site for name, site in self.names.items() if globs(pattern, name)), None)

    @cached_property
    def device_count(self) -> int:
        """Devices of the mesh that the arguments, or constraints in the step, are laid out over; 1 without one."""
        mesh = self.traced.mesh
        return 1 if mesh is None else math.prod(dict(mesh.shape).values())

    @cached_property
    def policy_plan(self) -> PolicyPlan | PolicyError:
        """The plan of the policy and the marks for the step, or the error where they do not fit the step."""
        try:
            return plan_from_policy(self.problem, self.policy)
        except PolicyError as error:
            return error

    @property
    def fitting(self) -> PolicyPlan | None:
        """The plan, or None where policy and marks do not fit the step."""
        return self.policy_plan if isinstance(self.policy_plan, PolicyPlan) else None

    def location_of(self, site: EquationSite) -> Location:
        """The location of an equation; without a source line of its own, with that of an equation around it."""
        lines = map(self._sources.of, (site.eqn, *reversed(site.around)))
        return Location(scope=path_of_marks(site.marks), source=next(filter(None, lines), ""))


def location_of_op(op: Op) -> Location:
    """The location of an op of the graph."""
    return Location(scope=op.scope, source=op.source)


def policy_of(site: EquationSite) -> Callable[..., Any] | None:
    """The policy of a checkpoint."""
    prim = site.eqn.params.get("_prim")
    return getattr(prim, "policy", None) if prim is not None else site.eqn.params.get("policy")


def equations_inside(sites: Sequence[EquationSite], outer: EquationSite) -> Iterator[EquationSite]:
    """The equations in the body of another equation."""
    return (site for site in sites if any(eqn is outer.eqn for eqn in site.around))


def _walk(jaxpr: jex.Jaxpr, around: tuple[jex.JaxprEqn, ...], marks: Marks) -> Iterator[EquationSite]:
    for eqn in jaxpr.eqns:
        here = marks + _compat.name_stack_marks(eqn.source_info.name_stack)
        yield EquationSite(eqn=eqn, around=around, marks=here)
        for body in jex.jaxprs_in_params(eqn.params):
            yield from _walk(open_jaxpr(body), (*around, eqn), here)
