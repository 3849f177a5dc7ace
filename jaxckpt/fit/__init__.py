"""Plans that fit, proved by the compiler: the loop from prediction to proof, the plan that users hold, its file.

Read in this order: `plan` (what users hold), `policies` (what people decided), `planner` (predict, compile, compare,
correct), `analysis` (where the residuals are, before anything is decided), `document` (a plan as plain data), `file`
(the same as TOML).
"""

from jaxckpt.fit.analysis import Analysis, ScopeResiduals, analyze
from jaxckpt.fit.file import load_plan, require_folder, save_plan
from jaxckpt.fit.plan import Argument, Attempt, Described, Plan
from jaxckpt.fit.planner import Planner, plan
from jaxckpt.fit.policies import apply, load_policy, policies

__all__ = [
    "Analysis",
    "Argument",
    "Attempt",
    "Described",
    "Plan",
    "Planner",
    "ScopeResiduals",
    "analyze",
    "apply",
    "load_plan",
    "load_policy",
    "plan",
    "policies",
    "require_folder",
    "save_plan",
]
