"""Fits JAX training steps into memory, and proves it with the XLA compiler.

You hand it the step you already have and the machine it must run on; it decides for every residual whether to keep
or to recompute it, rewrites the step, and proves the result with the real compiler, on a machine that need not have
the device.

To read the code, follow the data: `ir` (a step as plain data), `policy`, `cost`, `solve`, then `trace`, `mark` (scopes
in users' code), `target`, `advise` (lint), `rewrite`, `numerics`, `measure`, `fit` (the loop), `versus`, `report`,
`cli`.
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
    from jaxckpt.advise import Finding, Findings, lint
    from jaxckpt.calibration import calibrate
    from jaxckpt.eager import timed_scopes
    from jaxckpt.fit import (
        BatchSearch,
        Explanation,
        Floor,
        Frontier,
        Plan,
        Planner,
        analyze,
        apply,
        explain,
        load_plan,
        max_batch,
        pareto,
        plan,
        plan_once,
    )
    from jaxckpt.mark import chunked, name, scope
    from jaxckpt.measure import Footprint, footprint, load_footprint
    from jaxckpt.numerics import Verification, verify
    from jaxckpt.policy import Policy, load_policy, policies
    from jaxckpt.policy.readers import Reading, read_policy
    from jaxckpt.report.picture import draw
    from jaxckpt.solve import Offloading
    from jaxckpt.target import Calibration, Target, targets
    from jaxckpt.versus import Comparison, Verdicts, compare, verdicts

_HOMES = {
    "BatchSearch": "fit",
    "Calibration": "target",
    "Comparison": "versus",
    "Explanation": "fit",
    "Finding": "advise",
    "Findings": "advise",
    "Floor": "fit",
    "Footprint": "measure",
    "Frontier": "fit",
    "Offloading": "solve",
    "Plan": "fit",
    "Planner": "fit",
    "Policy": "policy",
    "Reading": "policy.readers",
    "Target": "target",
    "Verdicts": "versus",
    "Verification": "numerics",
    "analyze": "fit",
    "apply": "fit",
    "calibrate": "calibration",
    "chunked": "mark",
    "compare": "versus",
    "draw": "report.picture",
    "explain": "fit",
    "footprint": "measure",
    "lint": "advise",
    "load_footprint": "measure",
    "load_plan": "fit",
    "load_policy": "policy",
    "max_batch": "fit",
    "name": "mark",
    "pareto": "fit",
    "plan": "fit",
    "plan_once": "fit",
    "policies": "policy",
    "read_policy": "policy.readers",
    "scope": "mark",
    "targets": "target",
    "timed_scopes": "eager",
    "verdicts": "versus",
    "verify": "numerics",
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
    "Planner",
    "Policy",
    "PolicyError",
    "Reading",
    "ReportFileError",
    "ScopeError",
    "SnapshotFileError",
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
