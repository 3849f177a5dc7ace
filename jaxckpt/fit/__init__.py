"""Plans that fit, proved by the compiler: the loop from prediction to proof, the plan that users hold, its file.

Read in this order: `plan` (what users hold), `policies` (what people decided), `explain` (who decided what), `planner`
(predict, compile, compare, correct), `analysis` (where the residuals are, before anything is decided), `document` (a
plan as plain data), `file` (the same as TOML).
"""

from jaxckpt.fit.analysis import Analysis, ScopeResiduals, analyze
from jaxckpt.fit.explain import Explained, Explanation, explain
from jaxckpt.fit.file import load_plan, require_folder, save_plan
from jaxckpt.fit.plan import Argument, Attempt, Described, Plan
from jaxckpt.fit.planner import Planner, plan
from jaxckpt.fit.policies import apply

__all__ = [
    "Analysis",
    "Argument",
    "Attempt",
    "Described",
    "Explained",
    "Explanation",
    "Plan",
    "Planner",
    "ScopeResiduals",
    "analyze",
    "apply",
    "explain",
    "load_plan",
    "plan",
    "require_folder",
    "save_plan",
]
