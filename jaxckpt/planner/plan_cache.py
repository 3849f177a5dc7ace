"""Plans on disk between runs: a plan file for each question, named by a hash of all that the answer depends on.

A question is a traced step, a target, a budget, a strategy, options, the flags in XLA_FLAGS, and the versions of what
plans and compiles. An entry is a plan file as `plan_file` writes it: it is parsed, and nothing in it is executed.
Entries are written atomically, so that processes may plan the same step at once, and one that is killed leaves no half
of an entry. An entry that cannot be read, or that is of another question, is named in a warning and replaced.
"""

import hashlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jaxlib.version
import platformdirs

from jaxckpt._errors import PlanFileError
from jaxckpt._units import budget_bytes, budget_fraction
from jaxckpt._version import __version__
from jaxckpt.machine import Target
from jaxckpt.planner.document import VERSION
from jaxckpt.planner.options import PlanOptions
from jaxckpt.planner.plan_file import load_plan, save_plan
from jaxckpt.planner.user_plan import Plan
from jaxckpt.policy import load_policy
from jaxckpt.trace import Traced


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """All that a plan depends on; budget and strategy are as `jaxckpt.plan` takes them."""

    traced: Traced = field(repr=False)
    target: Target
    budget: str | int | float
    strategy: str
    options: PlanOptions

    @property
    def key(self) -> str:
        """A hash of the question, the same in every process."""
        return hashlib.sha256("\n".join(self._texts()).encode()).hexdigest()[:32]

    def is_answered_by(self, plan: Plan) -> bool:
        """True if a plan is for this step, target and budget; of a share only the planner knows the bytes."""
        is_alike = (plan.fingerprint, plan.target) == (self.traced.graph.fingerprint, self.target.name)
        is_share = budget_fraction(self.budget) is not None
        return is_alike and (is_share or plan.budget_bytes == budget_bytes(self.budget, baseline_bytes=None))

    def _texts(self) -> Iterator[str]:
        traced, target, options = self.traced, self.target, self.options
        yield f"{traced.graph.fingerprint} {traced.specs} {sorted(traced.donated)} {traced.compiler_options}"
        yield f"{traced.in_shardings} {traced.out_shardings}"
        yield f"{target.name} {target.facts} {target.calibration} {target.compiler_version}"
        yield f"{self.budget!r} {self.strategy} {options}"
        if isinstance(options.policy, str | Path):
            yield repr(load_policy(options.policy))
        yield f"{jax.__version__} {jaxlib.version.__version__} {__version__} {VERSION}"
        yield os.environ.get("XLA_FLAGS", "")


class PlanCache:
    """A folder of plan files.

    Args:
      folder: Made when the first plan is written; None for the user's cache directory ("~/.cache/jaxckpt/plans" on
        Linux, or below XDG_CACHE_HOME).
    """

    def __init__(self, folder: str | Path | None = None):
        self.folder = platformdirs.user_cache_path("jaxckpt") / "plans" if folder is None else Path(folder)

    def path(self, question: PlanQuestion) -> Path:
        """The file of a question's plan."""
        return self.folder / f"{question.key}.toml"

    def read(self, question: PlanQuestion) -> Plan | None:
        """The plan of a question; None, after a warning, where the file is damaged or of another question."""
        path = self.path(question)
        if not path.exists():
            return None
        try:
            plan = load_plan(path)
        except PlanFileError as error:
            _warn(f"{path} is ignored and made anew: {error.got}")
            return None
        if not question.is_answered_by(plan) or plan.footprint is None:
            reason = "it is a plan for another step, target or budget, or was changed by hand"
            _warn(f"{path} is ignored and made anew: {reason}")
            return None
        return plan

    def write(self, question: PlanQuestion, plan: Plan) -> None:
        """Keeps a plan; where nothing can be written this is a warning."""
        path = self.path(question)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_plan(plan, path)
        except (OSError, PlanFileError) as error:
            _warn(f"the plan is not kept for the next run: {error}")


def _warn(sentence: str) -> None:
    warnings.warn(f"jaxckpt.jit: {sentence}.", RuntimeWarning, stacklevel=2)
