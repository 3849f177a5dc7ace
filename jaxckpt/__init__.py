"""Fits JAX training steps into the memory of a device, checked by the XLA compiler.

`jaxckpt.plan` takes a training step, its arguments, a target and a budget in bytes. For every residual it decides
whether to save, recompute, offload or shard it, rewrites the step, and compiles the result for the target: a plan is
returned only if the compiled total is within the budget. The device need not be attached.

To read the code, follow the data: `ir` (a step as plain data), `schedule` (the order of work that a plan asks for),
`cost` (bytes and seconds of a schedule), `policy`, `solve`; then `program`, `outline` and `trace` (jaxprs), `rewrite`
(a plan carried out), `compiler` (what XLA says), `planner` (the search over all of these), `report`, `cli`. `dynamic`
is independent of them: evictors that decide at run time. docs/how-it-works.md follows one value through all of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxckpt._errors import AgreementError as AgreementError
from jaxckpt._errors import ArgumentError as ArgumentError
from jaxckpt._errors import BatchError as BatchError
from jaxckpt._errors import BudgetError as BudgetError
from jaxckpt._errors import ChunkError as ChunkError
from jaxckpt._errors import ComparisonError as ComparisonError
from jaxckpt._errors import CompileError as CompileError
from jaxckpt._errors import FootprintAssertionError as FootprintAssertionError
from jaxckpt._errors import FootprintFileError as FootprintFileError
from jaxckpt._errors import GraphError as GraphError
from jaxckpt._errors import HloError as HloError
from jaxckpt._errors import InfeasibleBudgetError as InfeasibleBudgetError
from jaxckpt._errors import JaxckptError as JaxckptError
from jaxckpt._errors import MissingPackageError as MissingPackageError
from jaxckpt._errors import NoGradientError as NoGradientError
from jaxckpt._errors import PictureError as PictureError
from jaxckpt._errors import PlanFileError as PlanFileError
from jaxckpt._errors import PlanMismatchError as PlanMismatchError
from jaxckpt._errors import PolicyError as PolicyError
from jaxckpt._errors import ReportFileError as ReportFileError
from jaxckpt._errors import ScopeError as ScopeError
from jaxckpt._errors import SnapshotFileError as SnapshotFileError
from jaxckpt._errors import StepReferenceError as StepReferenceError
from jaxckpt._errors import TargetError as TargetError
from jaxckpt._errors import UnknownStrategyError as UnknownStrategyError
from jaxckpt._errors import UnknownTargetError as UnknownTargetError
from jaxckpt._errors import UnsupportedDecisionError as UnsupportedDecisionError
from jaxckpt._errors import UnverifiableError as UnverifiableError
from jaxckpt._errors import VerificationError as VerificationError
from jaxckpt._errors import VersionMismatchError as VersionMismatchError
from jaxckpt._version import __version__ as __version__

if TYPE_CHECKING:
    from jaxckpt import dynamic as dynamic
    from jaxckpt import testing as testing
    from jaxckpt._step import Step as Step
    from jaxckpt.annotate import chunked as chunked
    from jaxckpt.annotate import name as name
    from jaxckpt.annotate import scope as scope
    from jaxckpt.calibration import calibrate as calibrate
    from jaxckpt.comparison import Comparison as Comparison
    from jaxckpt.comparison import Verdicts as Verdicts
    from jaxckpt.comparison import compare as compare
    from jaxckpt.comparison import verdicts as verdicts
    from jaxckpt.compiler import Footprint as Footprint
    from jaxckpt.compiler import footprint as footprint
    from jaxckpt.compiler import load_footprint as load_footprint
    from jaxckpt.dynamic.eager import timed_scopes as timed_scopes
    from jaxckpt.linter import Finding as Finding
    from jaxckpt.linter import Findings as Findings
    from jaxckpt.linter import lint as lint
    from jaxckpt.machine import Calibration as Calibration
    from jaxckpt.machine import Target as Target
    from jaxckpt.machine import targets as targets
    from jaxckpt.planner import BatchSearch as BatchSearch
    from jaxckpt.planner import Explanation as Explanation
    from jaxckpt.planner import Floor as Floor
    from jaxckpt.planner import Frontier as Frontier
    from jaxckpt.planner import Plan as Plan
    from jaxckpt.planner import Planner as Planner
    from jaxckpt.planner import PlanOptions as PlanOptions
    from jaxckpt.planner import analyze as analyze
    from jaxckpt.planner import apply as apply
    from jaxckpt.planner import explain as explain
    from jaxckpt.planner import jit as jit
    from jaxckpt.planner import load_or_plan as load_or_plan
    from jaxckpt.planner import load_plan as load_plan
    from jaxckpt.planner import max_batch as max_batch
    from jaxckpt.planner import pareto as pareto
    from jaxckpt.planner import plan as plan
    from jaxckpt.planner import plan_once as plan_once
    from jaxckpt.policy import Policy as Policy
    from jaxckpt.policy import load_policy as load_policy
    from jaxckpt.policy import policies as policies
    from jaxckpt.policy.readers import Reading as Reading
    from jaxckpt.policy.readers import read_policy as read_policy
    from jaxckpt.report.picture import draw as draw
    from jaxckpt.solve import Offloading as Offloading
    from jaxckpt.verifier import Verification as Verification
    from jaxckpt.verifier import verify as verify

_NAMES = {
    "_step": "Step",
    "annotate": "chunked name scope",
    "calibration": "calibrate",
    "comparison": "Comparison Verdicts compare verdicts",
    "compiler": "Footprint footprint load_footprint",
    "dynamic.eager": "timed_scopes",
    "linter": "Finding Findings lint",
    "machine": "Calibration Target targets",
    "planner": "BatchSearch Explanation Floor Frontier Plan Planner PlanOptions analyze apply explain jit"
    " load_or_plan load_plan max_batch pareto plan plan_once",
    "policy": "Policy load_policy policies",
    "policy.readers": "Reading read_policy",
    "report.picture": "draw",
    "solve": "Offloading",
    "verifier": "Verification verify",
}
"""The public names of each room, which is loaded when one of them is first used; type checkers read the imports."""

_HOMES = {name: room for room, names in _NAMES.items() for name in names.split()}
_ROOMS = {"dynamic", "testing"}
"""Rooms that are used by their own name."""

__all__ = ["__version__", *_HOMES, *(name for name in list(globals()) if name.endswith("Error"))]


if not TYPE_CHECKING:  # type checkers would take a misspelt name for one of any type

    def __getattr__(name: str) -> Any:
        if name in _ROOMS:
            return import_module(f"jaxckpt.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'jaxckpt' has no attribute {name!r}")
        return getattr(import_module(f"jaxckpt.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_ROOMS})
