"""Plans that fit, proved by the compiler: the loop from prediction to proof, the plan that users hold, its file.

Read in this order: `user_plan` (the plan as users hold it), `options`, `planner` and `search` (predict, compile,
compare, correct), `loop_split` and `loop_tiling` (loops whose iterations differ), `floor` and `refusals` (budgets that
no plan meets), `frontier_search` (memory against time), `batch_search` (the largest batch), `document` and `plan_file`
(plans as TOML), `analysis` and `explanation` (residuals and policies, without a compiler), `apply_policy`, `broadcast`
(one plan for several processes), `plan_check` (a plan of before), `plan_cache` and `planned_step` (a step that is
planned when it is called), `step_spec`, `verify_plan`.
"""

from jaxckpt.planner.analysis import Analysis, ScopeResiduals, analyze
from jaxckpt.planner.apply_policy import apply
from jaxckpt.planner.batch_search import BatchSearch, TriedBatch, max_batch
from jaxckpt.planner.broadcast import plan_once
from jaxckpt.planner.explanation import Explained, Explanation, explain
from jaxckpt.planner.floor import Floor, Holder, Share, floor_of
from jaxckpt.planner.frontier_search import ExpectedPoint, Frontier, FrontierPoint, frontier_of, pareto
from jaxckpt.planner.options import PlanOptions
from jaxckpt.planner.plan_check import PlanCheck, check_plan, load_or_plan
from jaxckpt.planner.plan_file import load_plan, require_folder, save_plan
from jaxckpt.planner.planned_step import PlannedStep, jit
from jaxckpt.planner.planner import Planner, plan
from jaxckpt.planner.step_spec import step_from_spec
from jaxckpt.planner.user_plan import Argument, Attempt, Described, Plan

__all__ = [
    "Analysis",
    "Argument",
    "Attempt",
    "BatchSearch",
    "Described",
    "ExpectedPoint",
    "Explained",
    "Explanation",
    "Floor",
    "Frontier",
    "FrontierPoint",
    "Holder",
    "Plan",
    "PlanCheck",
    "PlanOptions",
    "PlannedStep",
    "Planner",
    "ScopeResiduals",
    "Share",
    "TriedBatch",
    "analyze",
    "apply",
    "check_plan",
    "explain",
    "floor_of",
    "frontier_of",
    "jit",
    "load_or_plan",
    "load_plan",
    "max_batch",
    "pareto",
    "plan",
    "plan_once",
    "require_folder",
    "save_plan",
    "step_from_spec",
]
