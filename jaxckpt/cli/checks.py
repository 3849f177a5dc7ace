"""Verbs that judge a step: `jaxckpt lint` by known mistakes, `verdicts` by compiling, `verify` by running."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxckpt._errors import PolicyError
from jaxckpt.cli.console import EXIT_REFUSED, Json, PolicyName, Reference, Shell, TargetName, compiled_target

if TYPE_CHECKING:
    from jaxckpt._step import Step
    from jaxckpt.verifier import Verification


def lint(
    reference: Reference,
    policy: PolicyName = None,
    target: Annotated[str | None, typer.Option(help="The machine that the step should run on.")] = None,
    json: Json = False,
) -> None:
    """Look for what is known to go wrong; fails where something is without effect or wrong."""
    from jaxckpt.cli.reference import load_step
    from jaxckpt.linter import lint as lint_step
    from jaxckpt.policy import load_policy
    from jaxckpt.report import findings_report

    shell = Shell(json=json)
    with shell.progress() as say:
        chosen = None if policy is None else load_policy(policy)  # mistakes are said before the user's code runs
        step = load_step(reference)
        say("tracing the step")
        findings = lint_step(step, policy=chosen, target=target)
    shell.show(findings_report(findings), dataclasses.asdict(findings) | {"ok": not findings.errors}, unfold=True)
    if findings.errors:
        raise typer.Exit(EXIT_REFUSED)


def verdicts(reference: Reference, policy: PolicyName = None, target: TargetName = "h200", json: Json = False) -> None:
    """Say of each rule, or of each name, whether it pays."""
    from jaxckpt.cli.reference import load_step
    from jaxckpt.comparison import verdicts as judge
    from jaxckpt.policy import load_policy
    from jaxckpt.report import verdicts_report

    shell = Shell(json=json)
    machine = compiled_target(target)
    with shell.progress() as say:
        chosen = None if policy is None else load_policy(policy)  # mistakes are said before the user's code runs
        said = judge(load_step(reference), policy=chosen, target=machine, progress=say)
    shell.show(verdicts_report(said), said, unfold=True)


def verify(
    reference: Reference,
    policy: PolicyName = None,
    plan: Annotated[Path | None, typer.Option(help="A plan file, as jaxckpt plan writes it.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="One operation at a time; every bit must be equal.")] = False,
    json: Json = False,
) -> None:
    """Run a training step and its planned form, and compare all results."""
    from jaxckpt.cli.reference import load_step
    from jaxckpt.report import verification_report
    from jaxckpt.verifier import verify as verify_step

    shell = Shell(json=json)
    with shell.progress() as say:
        planned_form = _planned_form(reference, policy, plan)
        step = load_step(reference)
        say("running the step and the planned step")
        verification = verify_step(step, planned_form(step), exact=exact)
    shell.show(verification_report(verification), verification_data(verification))
    verification.check()


def _planned_form(reference: str, policy: str | None, plan: Path | None) -> "Callable[[Step], Any]":
    """Function that makes the planned step; plan and policy files are read and checked before the user's code runs."""
    if (policy is None) == (plan is None):
        raise PolicyError(
            "jaxckpt verify: needs a policy or a plan to compare the step with.",
            got="neither" if policy is None else f"--policy {policy} --plan {plan}",
            needed="either --policy or --plan",
            advice=f"jaxckpt verify {reference} --policy nothing",
        )
    from jaxckpt.planner import apply, load_plan

    if plan is not None:
        loaded = load_plan(plan)
        return lambda step: loaded.apply(step.function)
    return lambda step: apply(step.function, policy, static_argnums=step.static_argnums)


def verification_data(verification: "Verification") -> dict[str, Any]:
    """A verification as plain data."""
    leaves = [dataclasses.asdict(leaf) | {"allowed": leaf.allowed, "ok": leaf.ok} for leaf in verification.leaves]
    known = {"ok": verification.ok, "bit_equal": verification.bit_equal, "leaves": leaves}
    return dataclasses.asdict(verification) | known
