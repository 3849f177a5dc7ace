"""Plans that fit, proved by the compiler: the loop from prediction to proof, the plan that users hold, its file.

Read in this order: `plan` (what users hold), `policies` (what people decided), `explain` (who decided what), `allowed`
(what may be decided), `floor` (what no plan lowers, and what would), `refusals` (what is said then), `stretching`
(loops whose last turns keep more), `planner` and `search` (predict, compile, compare, correct), `frontier` and `trade`
(memory against time), `returned`, `batches` and `batch_search` (how large a batch fits), `analysis` (where the
residuals are, before anything is decided), `document` (a plan as plain data), `file` (the same as TOML), `once` (one
plan for a run of several processes).
"""

from jaxckpt.fit.analysis import Analysis, ScopeResiduals, analyze
from jaxckpt.fit.batch_search import max_batch
from jaxckpt.fit.batches import BatchSearch, TriedBatch
from jaxckpt.fit.explain import Explained, Explanation, explain
from jaxckpt.fit.file import load_plan, require_folder, save_plan
from jaxckpt.fit.floor import Floor, Holder, Share, floor_of
from jaxckpt.fit.frontier import ExpectedPoint, Frontier, FrontierPoint
from jaxckpt.fit.once import plan_once
from jaxckpt.fit.plan import Argument, Attempt, Described, Plan
from jaxckpt.fit.planner import Planner, plan
from jaxckpt.fit.policies import apply
from jaxckpt.fit.returned import MadeStep, made_step
from jaxckpt.fit.trade import frontier_of, pareto

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
    "MadeStep",
    "Plan",
    "Planner",
    "ScopeResiduals",
    "Share",
    "TriedBatch",
    "analyze",
    "apply",
    "explain",
    "floor_of",
    "frontier_of",
    "load_plan",
    "made_step",
    "max_batch",
    "pareto",
    "plan",
    "plan_once",
    "require_folder",
    "save_plan",
]
