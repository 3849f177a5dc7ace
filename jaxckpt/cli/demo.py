"""`jaxckpt demo`: GPT-2 small planned at several budgets, beside what JAX's own policies take.

`run_demo` does the work and returns data; the verb prints it. Benchmarks and the README's table use the same data.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxckpt._errors import InfeasibleBudgetError, MissingPackageError
from jaxckpt._progress import Progress, silent
from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.cli.console import Json, Shell, compiled_target
from jaxckpt.cli.plan import plan_data, plans_for, refused_data

if TYPE_CHECKING:
    from jaxckpt.compiler import Footprint
    from jaxckpt.planner import Plan
    from jaxckpt.report import Section

BUDGETS = ("10GiB", "8GiB", "6GiB", "5GiB", "4GiB")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """Results of the demo.

    Attributes:
      target: The machine compiled for.
      layers: Blocks of the model.
      batch: Sequences in a step.
      baselines: Footprints of the model by what its blocks are wrapped in.
      plans: By budget, as typed, the plan that fits.
      refused: By budget, as typed, the error of those that cannot be met.
      planning_s: Tracing, graph and the first solution, without any compile.
      wall_s: All together.
    """

    target: str
    layers: int
    batch: int
    baselines: "dict[str, Footprint]"
    plans: "dict[str, Plan]"
    refused: dict[str, InfeasibleBudgetError]
    planning_s: float
    wall_s: float

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {
            "target": self.target,
            "layers": self.layers,
            "batch": self.batch,
            "baselines": {
                name: made.to_dict() | {"total_bytes": made.total_bytes} for name, made in self.baselines.items()
            },
            "plans": {
                budget: plan_data(plan) | {"attempts": [dataclasses.asdict(attempt) for attempt in plan.attempts]}
                for budget, plan in self.plans.items()
            },
            "refused": {refused[0]: refused_data(refused) for refused in self.refused.items()},
            "planning_s": self.planning_s,
            "wall_s": self.wall_s,
        }


def run_demo(
    *,
    target: str = "h200",
    layers: int = 12,
    batch: int = 8,
    budgets: Sequence[str] = BUDGETS,
    progress: Progress = silent,
) -> DemoResult:
    """Plans GPT-2 small at several budgets and compiles JAX's own policies beside it."""
    from jaxckpt.compiler import footprint
    from jaxckpt.planner import Planner

    started = time.perf_counter()
    gpt2 = _gpt2()
    machine = compiled_target(target)
    model = gpt2.training_step(layers=layers, batch=batch)
    planning = time.perf_counter()
    planner = Planner(model.step, *model.args, target=machine, donate_argnums=model.donate_argnums, progress=progress)
    _ = planner.solver.solve(planner.solver.empty_plan.predicted.temp_bytes // 2)
    planning_s = time.perf_counter() - planning
    plans, refused = plans_for(planner, budgets, progress=progress)
    baselines = {}
    for name, block in _blocks(gpt2).items():
        progress(f"compiling {name}")
        version = gpt2.training_step(layers=layers, batch=batch, block=block)
        baselines[name] = footprint(version.step, *version.args, target=machine, donate_argnums=version.donate_argnums)
    return DemoResult(
        target=machine.name,
        layers=layers,
        batch=batch,
        baselines=baselines,
        plans=plans,
        refused=refused,
        planning_s=planning_s,
        wall_s=time.perf_counter() - started,
    )


def demo_report(result: DemoResult) -> "Section":
    """The demo's table and what it refused."""
    from jaxckpt.report import Section, Text, table_of_known

    rows = [dict(_cells(name, made)) for name, made in result.baselines.items()]
    for plan in result.plans.values():
        assert plan.footprint is not None, "the planner compiled it"
        rows.append(dict(_cells("jaxckpt, unmarked model", plan.footprint, plan)))
    title = f"GPT-2 small, {result.layers} Linen blocks, batch {result.batch} x 1024, AdamW, on {result.target}"
    notes = (
        f"Totals are XLA's: arguments + outputs - donated + temporaries. {result.wall_s:.0f} s in all, of these"
        f" {result.planning_s:.1f} s to trace and to solve for the first time.",
    )
    refused = tuple(Text(text=f"{type(error).__name__}: {error}\n") for error in result.refused.values())
    return Section(title="", parts=(table_of_known(title, _HEADINGS, rows, notes=notes), *refused))


_HEADINGS = (
    "version",
    "budget",
    "total",
    "predicted",
    "off by",
    "arguments",
    "temp",
    "host",
    "step (est.)",
    "recompute",
    "compile",
)


def _cells(name: str, made: "Footprint", plan: "Plan | None" = None) -> Iterator[tuple[str, str]]:
    yield "version", name
    yield "total", format_bytes(made.total_bytes)
    yield "arguments", format_bytes(made.argument_bytes)
    yield "temp", format_bytes(made.temp_bytes)
    if made.host_bytes:
        yield "host", format_bytes(made.host_bytes)
    if made.compile_s:
        yield "compile", format_seconds(made.compile_s)
    if made.step_s:
        yield "step (est.)", format_seconds(made.estimated_step_s)
    if plan is not None:
        predicted = plan.predicted
        yield "budget", format_bytes(plan.budget_bytes or 0)
        yield "predicted", format_bytes(predicted.total_bytes)
        yield "off by", f"{100 * (predicted.total_bytes / made.total_bytes - 1):+.1f}%"
        yield "recompute", format_seconds(predicted.recompute_s) if predicted.recompute_s else "none"


def demo(
    target: Annotated[str, typer.Option(help="The machine to compile for.")] = "h200",
    layers: Annotated[int, typer.Option(help="Blocks of the model.")] = 12,
    batch: Annotated[int, typer.Option(help="Sequences in a step.")] = 8,
    budget: Annotated[list[str] | None, typer.Option(help="A budget; may be repeated.")] = None,
    json: Json = False,
) -> None:
    """Plan GPT-2 small at several budgets, for a device that need not be attached."""
    shell = Shell(json=json)
    with shell.progress() as say:
        result = run_demo(target=target, layers=layers, batch=batch, budgets=tuple(budget or BUDGETS), progress=say)
    shell.show(demo_report(result), result.to_dict())


def _gpt2() -> Any:
    try:
        from jaxckpt.cli import gpt2
    except ImportError as error:
        raise MissingPackageError(
            f"jaxckpt demo: its model needs {error.name}, which is not installed.",
            got=str(error),
            needed="flax and optax",
            advice='pip install "jaxckpt[flax]"',
            package=error.name,
        ) from error
    return gpt2


def _blocks(gpt2: Any) -> dict[str, Any]:
    """The blocks of the demo's baselines: the model's own, and JAX's policies around each block."""
    import flax.linen as nn
    import jax

    policies = jax.checkpoint_policies
    return {
        "no remat": gpt2.Block,
        "jax.checkpoint, no policy": nn.remat(gpt2.Block),
        "dots_saveable": nn.remat(gpt2.Block, policy=policies.dots_saveable),
        "dots_with_no_batch_dims_saveable": nn.remat(gpt2.Block, policy=policies.dots_with_no_batch_dims_saveable),
        "save_only_these_names(qkv, attn_out)": nn.remat(
            gpt2.Block, policy=policies.save_only_these_names("qkv", "attn_out")
        ),
    }
