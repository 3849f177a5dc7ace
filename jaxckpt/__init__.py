"""Fits JAX training steps into memory, and proves it with the XLA compiler.

You hand it the step you already have and the machine it must run on. For every residual it decides whether to save,
recompute, offload or shard it, rewrites the step, and proves the result with the real compiler, on a machine that need
not have the device.

To read the code, follow the data: `ir` (a step as plain data), `schedule` (the order of work that a plan asks for),
`cost` (bytes and seconds of a schedule), `policy`, `solve`; then `program`, `outline` and `trace` (jaxprs), `rewrite`
(a plan carried out), `compiler` (what XLA says), `planner` (the search over all of these), `report`, `cli`. `dynamic`
stands apart: evictors that decide at run time. docs/how-it-works.md follows one value all the way.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxckpt._errors import (
    AgreementError,
    ArgumentError,
    BatchError,
    BudgetError,
    ChunkError,
    ComparisonError,
    CompileError,
    FootprintAssertionError,
    FootprintFileError,
    GraphError,
    HloError,
    InfeasibleBudgetError,
    JaxckptError,
    MissingPackageError,
    NoGradientError,
    PictureError,
    PlanFileError,
    PlanMismatchError,
    PolicyError,
    ReportFileError,
    ScopeError,
    SnapshotFileError,
    StepReferenceError,
    TargetError,
    UnknownStrategyError,
    UnknownTargetError,
    UnsupportedDecisionError,
    UnverifiableError,
    VerificationError,
    VersionMismatchError,
)
from jaxckpt._version import __version__

if TYPE_CHECKING:
    from jaxckpt._step import Step
    from jaxckpt.annotate import chunked, name, scope
    from jaxckpt.calibration import calibrate
    from jaxckpt.comparison import Comparison, Verdicts, compare, verdicts
    from jaxckpt.compiler import Footprint, footprint, load_footprint
    from jaxckpt.dynamic.eager import timed_scopes
    from jaxckpt.linter import Finding, Findings, lint
    from jaxckpt.machine import Calibration, Target, targets
    from jaxckpt.planner import (
        BatchSearch,
        Explanation,
        Floor,
        Frontier,
        Plan,
        Planner,
        PlanOptions,
        analyze,
        apply,
        explain,
        load_plan,
        max_batch,
        pareto,
        plan,
        plan_once,
    )
    from jaxckpt.policy import Policy, load_policy, policies
    from jaxckpt.policy.readers import Reading, read_policy
    from jaxckpt.report.picture import draw
    from jaxckpt.solve import Offloading
    from jaxckpt.verifier import Verification, verify

_HOMES = {
    "BatchSearch": "planner",
    "Calibration": "machine",
    "Comparison": "comparison",
    "Explanation": "planner",
    "Finding": "linter",
    "Findings": "linter",
    "Floor": "planner",
    "Footprint": "compiler",
    "Frontier": "planner",
    "Offloading": "solve",
    "Plan": "planner",
    "PlanOptions": "planner",
    "Planner": "planner",
    "Policy": "policy",
    "Reading": "policy.readers",
    "Step": "_step",
    "Target": "machine",
    "Verdicts": "comparison",
    "Verification": "verifier",
    "analyze": "planner",
    "apply": "planner",
    "calibrate": "calibration",
    "chunked": "annotate",
    "compare": "comparison",
    "draw": "report.picture",
    "explain": "planner",
    "footprint": "compiler",
    "lint": "linter",
    "load_footprint": "compiler",
    "load_plan": "planner",
    "load_policy": "policy",
    "max_batch": "planner",
    "name": "annotate",
    "pareto": "planner",
    "plan": "planner",
    "plan_once": "planner",
    "policies": "policy",
    "read_policy": "policy.readers",
    "scope": "annotate",
    "targets": "machine",
    "timed_scopes": "dynamic.eager",
    "verdicts": "comparison",
    "verify": "verifier",
}
"""Where each public name lives; a room is loaded when one of its names is first used."""

_ROOMS = {"dynamic", "testing"}
"""Rooms that are used by their own name."""

__all__ = [
    "AgreementError",
    "ArgumentError",
    "BatchError",
    "BatchSearch",
    "BudgetError",
    "Calibration",
    "ChunkError",
    "Comparison",
    "ComparisonError",
    "CompileError",
    "Explanation",
    "Finding",
    "Findings",
    "Floor",
    "Footprint",
    "FootprintAssertionError",
    "FootprintFileError",
    "Frontier",
    "GraphError",
    "HloError",
    "InfeasibleBudgetError",
    "JaxckptError",
    "MissingPackageError",
    "NoGradientError",
    "Offloading",
    "PictureError",
    "Plan",
    "PlanFileError",
    "PlanMismatchError",
    "PlanOptions",
    "Planner",
    "Policy",
    "PolicyError",
    "Reading",
    "ReportFileError",
    "ScopeError",
    "SnapshotFileError",
    "Step",
    "StepReferenceError",
    "Target",
    "TargetError",
    "UnknownStrategyError",
    "UnknownTargetError",
    "UnsupportedDecisionError",
    "UnverifiableError",
    "Verdicts",
    "Verification",
    "VerificationError",
    "VersionMismatchError",
    "__version__",
    "analyze",
    "apply",
    "calibrate",
    "chunked",
    "compare",
    "draw",
    "explain",
    "footprint",
    "lint",
    "load_footprint",
    "load_plan",
    "load_policy",
    "max_batch",
    "name",
    "pareto",
    "plan",
    "plan_once",
    "policies",
    "read_policy",
    "scope",
    "targets",
    "timed_scopes",
    "verdicts",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"jaxckpt.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxckpt' has no attribute {name!r}")
    return getattr(import_module(f"jaxckpt.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_ROOMS})
