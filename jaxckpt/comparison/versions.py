"""Turns versions of any kind into footprints, and compares the footprints.

A version is a step, a plan or a policy for it, a footprint, or the path of a file or folder: a saved footprint
(`.json`), a saved plan or a policy (`.toml`), or XLA's dump of any program. All problems with versions are reported
before anything is compiled.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from jaxckpt._errors import ComparisonError
from jaxckpt._progress import Progress, silent
from jaxckpt._step import Step
from jaxckpt.comparison.comparison import Comparison, compare_footprints
from jaxckpt.compiler import Footprint, footprint, footprint_of_dump, load_footprint
from jaxckpt.machine import Target
from jaxckpt.planner import Plan, Planner, load_plan
from jaxckpt.policy import Policy, load_policy, policies

Version = Callable[..., Any] | Step | Plan | Policy | Footprint | str | Path
"""All that can be compared. A new kind is added in `_read`, and in `_footprint` if it is compiled."""
_Read = Step | Plan | Policy | Footprint


def compare(
    versions: Mapping[str, Version],
    *args: Any,
    target: Target | str | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    step: Callable[..., Any] | Step | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compares the footprints of versions of a step; the first version is the reference.

    Args:
      versions: By name. A step, plain or jitted, is compiled with `args`, a `jaxckpt.Step` with its own arguments. A
        plan or policy is applied to `step` and compiled, unless a plan has a footprint for this target with a memory
        map. A `Footprint` is used unchanged. A path is a saved footprint (".json", ".json.gz"), a saved
        plan or a policy (".toml"), or XLA's dump: a folder, or an `*after_optimizations*` file in it. The name of a
        ready policy is that policy.
      *args: Arguments of the steps, as for `jaxckpt.footprint`.
      target: The machine to compile for; optional if only plans, footprints and files are compared.
      donate_argnums: As for `jaxckpt.footprint`.
      static_argnums: As for `jaxckpt.footprint`.
      step: The step of the plans and policies; None for the first step among the versions.
      progress: Called with a sentence before each longer piece of work.

    Returns:
      Totals, scopes, buffers added and removed at the peak, recomputed ops, and the frontier of memory and time.

    Raises:
      ComparisonError: There is no version, versions have no names, or some cannot be compiled; the message names all.
      CompileError: The compiler fails for a version.
      PlanMismatchError: A plan is for another step.
      PolicyError: A rule of a policy matches nothing in the step.
      FootprintFileError: A file is no footprint that we can read.
      HloError: A file or folder is no dump that we can read.
      TargetError: The target is unknown or cannot be compiled for here.

    Example:
      >>> import jax.numpy as jnp
      >>> twice = compare({"once": jnp.sin, "twice": lambda x: jnp.sin(jnp.sin(x))}, jnp.ones(8), target="cpu")
      >>> twice.names, twice["twice"].argument_bytes
      (('once', 'twice'), 32)
    """
    if not isinstance(versions, Mapping):
        raise ComparisonError(
            "compare(versions) takes versions by name.",
            got=f"a {type(versions).__name__}",
            needed="a dict of names and versions",
            advice='jaxckpt.compare({"as it is": step, "planned": plan}, *args, target="h200")',
        )
    with_args = partial(Step, args=args, donate_argnums=donate_argnums, static_argnums=static_argnums)
    read = {name: _read(version, target, with_args) for name, version in versions.items()}
    steps = (version for version in read.values() if isinstance(version, Step))
    planned = _read(step, target, with_args) if step is not None else next(steps, None)
    _check(read, target, planned)
    machine = Target(target) if isinstance(target, str) else target
    say = progress or silent

    @cache  # one trace serves all plans and policies of a target
    def planner(target: Target) -> Planner:
        assert planned is not None, "checked before"
        return Planner(planned, target=target, progress=say)

    return compare_footprints({name: _footprint(name, each, machine, planner, say) for name, each in read.items()})


def footprint_of_path(path: str | Path, *, target: Target | str | None = None) -> Footprint:
    """The footprint of a saved file (".json", ".json.gz"), or of a program that XLA dumped in a file or folder.

    The rates of the target estimate the time of a dumped program; None leaves the time out.
    """
    path = Path(path)
    if path.name.endswith((".json", ".json.gz")):
        return load_footprint(path)
    return footprint_of_dump(path, target=target)


def _read(version: Any, target: Target | str | None, with_args: Callable[..., Step]) -> Any:
    """A version as one of `_Read`; an object of another kind is returned as it is, to be refused with the others."""
    match version:
        case Step() | Plan() | Policy() | Footprint():
            return version
        case str() if version in policies() and not Path(version).exists():
            return load_policy(version)
        case str() | Path() if Path(version).suffix != ".toml":
            return footprint_of_path(version, target=target)
        case str() | Path():
            return load_policy(Path(version)) if _is_policy(Path(version)) else load_plan(version)
        case _ if callable(version):
            return with_args(version)
        case _:
            return version


def _is_policy(path: Path) -> bool:
    """True if a TOML file is a policy: only plans have a "format" key. A file that cannot be read is no policy."""
    try:
        return "format" not in tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return False


def _check(versions: Mapping[str, Any], target: Target | str | None, planned: Step | None) -> None:
    found = {name: _problem(version, target, planned) for name, version in versions.items()}
    problems = [f"{name!r} is {problem}" for name, problem in found.items() if problem]
    if not versions:
        problems.append("no version at all")
    if not problems:
        return
    raise ComparisonError(
        f"compare({{{', '.join(map(repr, versions))}}}) has versions that cannot be compared.",
        got="; ".join(f"({number}) {problem}" for number, problem in enumerate(problems, 1)),
        needed="steps with target=, plans and policies with the step that they are for, footprints, or paths of files"
        " that hold one of these or XLA's dumps",
        advice='jaxckpt.compare({"as it is": step, "planned": plan}, *args, target="h200")',
        problems=tuple(problems),
    )


def _problem(version: Any, target: Target | str | None, planned: Step | None) -> str:
    """Why one version cannot be compared; "" where it can."""
    match version:
        case Step() if target is None:
            return "a step, and there is no target to compile it for"
        case Plan() if planned is None and not _is_known(version, target):
            return "a plan that must be compiled, and there is no step among the versions, nor step="
        case Policy() if planned is None or target is None:
            return f"a policy, and there is no {'step' if planned is None else 'target'} to carry it out"
        case Step() | Plan() | Policy() | Footprint():
            return ""
    return f"a {type(version).__name__}"


def _is_known(plan: Plan, target: Target | str | None) -> bool:
    """True if the plan's own footprint is for the target and has a memory map, so that nothing must be compiled."""
    wanted = plan.target if target is None else Target(target).name
    return plan.footprint is not None and plan.footprint.memory is not None and plan.footprint.target == wanted


def _footprint(
    name: str, version: _Read, target: Target | None, planner: Callable[[Target], Planner], say: Progress
) -> Footprint:
    """The footprint of a version, compiled where it must be."""
    match version:
        case Footprint():
            return version
        case Plan(footprint=Footprint() as known) if _is_known(version, target):
            return known
        case Plan():
            say(f"carrying out {name}")
            return planner(target or Target(version.target)).measure(version).footprint
    assert target is not None, "checked before"
    if isinstance(version, Step):
        say(f"compiling {name} for {target.name}")
        return footprint(version, target=target)
    say(f"carrying out {name}")
    followed = planner(target).follow(version).footprint
    assert followed is not None, "plans that are followed are compiled"
    return followed
