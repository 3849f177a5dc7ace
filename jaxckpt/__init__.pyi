"""The public names and where each is defined: for type checkers, and read by `jaxckpt/__init__.py`."""

from jaxckpt import dynamic as dynamic, testing as testing
from jaxckpt._errors import (
    AgreementError as AgreementError,
    ArgumentError as ArgumentError,
    BatchError as BatchError,
    BudgetError as BudgetError,
    ChunkError as ChunkError,
    ComparisonError as ComparisonError,
    CompileError as CompileError,
    FootprintAssertionError as FootprintAssertionError,
    FootprintFileError as FootprintFileError,
    GraphError as GraphError,
    HloError as HloError,
    InfeasibleBudgetError as InfeasibleBudgetError,
    JaxckptError as JaxckptError,
    MissingPackageError as MissingPackageError,
    NoGradientError as NoGradientError,
    PictureError as PictureError,
    PlanFileError as PlanFileError,
    PlanMismatchError as PlanMismatchError,
    PolicyError as PolicyError,
    ReportFileError as ReportFileError,
    ScopeError as ScopeError,
    SnapshotFileError as SnapshotFileError,
    StepReferenceError as StepReferenceError,
    TargetError as TargetError,
    UnknownStrategyError as UnknownStrategyError,
    UnknownTargetError as UnknownTargetError,
    UnsupportedDecisionError as UnsupportedDecisionError,
    UnverifiableError as UnverifiableError,
    VerificationError as VerificationError,
    VersionMismatchError as VersionMismatchError,
)
from jaxckpt._step import Step as Step
from jaxckpt._version import __version__ as __version__
from jaxckpt.annotate import chunked as chunked, name as name, scope as scope
from jaxckpt.calibration import calibrate as calibrate
from jaxckpt.comparison import Comparison as Comparison, Verdicts as Verdicts, compare as compare, verdicts as verdicts
from jaxckpt.compiler import Footprint as Footprint, footprint as footprint, load_footprint as load_footprint
from jaxckpt.dynamic.eager import timed_scopes as timed_scopes
from jaxckpt.linter import Finding as Finding, Findings as Findings, lint as lint
from jaxckpt.machine import Calibration as Calibration, Target as Target, targets as targets
from jaxckpt.planner import (
    BatchSearch as BatchSearch,
    Explanation as Explanation,
    Floor as Floor,
    Frontier as Frontier,
    Plan as Plan,
    Planner as Planner,
    PlanOptions as PlanOptions,
    analyze as analyze,
    apply as apply,
    explain as explain,
    jit as jit,
    load_or_plan as load_or_plan,
    load_plan as load_plan,
    max_batch as max_batch,
    pareto as pareto,
    plan as plan,
    plan_once as plan_once,
)
from jaxckpt.policy import Policy as Policy, load_policy as load_policy, policies as policies
from jaxckpt.policy.readers import Reading as Reading, read_policy as read_policy
from jaxckpt.random_streams import RandomStreams as RandomStreams
from jaxckpt.report.picture import draw as draw
from jaxckpt.solve import Offloading as Offloading
from jaxckpt.verifier import Verification as Verification, verify as verify
