"""Plans that fit, proved by the compiler: the loop from prediction to proof, the plan that users hold, its file.

Read in this order: `user_plan` (the plan as users hold it), `options`, `planner` and `search` (predict, compile,
compare, correct), `loop_split` and `loop_tiling` (loops whose iterations differ), `chunking` (a loss head in pieces),
`floor` and `refusals` (budgets that no plan meets), `frontier_search` (memory against time), `batch_search` (the
largest batch), `document` and `plan_file` (plans as TOML), `analysis` and `explanation` (residuals and policies,
without a compiler), `apply_policy`, `broadcast` (one plan for several processes), `plan_check` (a plan of before),
`plan_cache` and `planned_step` (a step that is planned when it is called), `step_spec`, `verify_plan`.
"""

from jaxckpt.planner.analysis import Analysis as Analysis, ScopeResiduals as ScopeResiduals, analyze as analyze
from jaxckpt.planner.apply_policy import apply as apply
from jaxckpt.planner.batch_search import BatchSearch as BatchSearch, TriedBatch as TriedBatch, max_batch as max_batch
from jaxckpt.planner.broadcast import plan_once as plan_once
from jaxckpt.planner.explanation import (
    Explained as Explained,
    ExplainedRegion as ExplainedRegion,
    Explanation as Explanation,
    explain as explain,
)
from jaxckpt.planner.floor import Floor as Floor, Holder as Holder, Share as Share, floor_of as floor_of
from jaxckpt.planner.frontier_search import (
    ExpectedPoint as ExpectedPoint,
    Frontier as Frontier,
    FrontierPoint as FrontierPoint,
    frontier_of as frontier_of,
    pareto as pareto,
)
from jaxckpt.planner.options import PlanOptions as PlanOptions
from jaxckpt.planner.plan_check import PlanCheck as PlanCheck, check_plan as check_plan, load_or_plan as load_or_plan
from jaxckpt.planner.plan_file import load_plan as load_plan, require_folder as require_folder, save_plan as save_plan
from jaxckpt.planner.planned_step import PlannedStep as PlannedStep, jit as jit
from jaxckpt.planner.planner import Planner as Planner, plan as plan
from jaxckpt.planner.step_spec import step_from_spec as step_from_spec
from jaxckpt.planner.user_plan import Argument as Argument, Attempt as Attempt, Described as Described, Plan as Plan
