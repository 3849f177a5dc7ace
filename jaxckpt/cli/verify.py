"""`jaxckpt verify`: does the planned step compute what the step computes? Both are run, here."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxckpt._errors import PolicyError
from jaxckpt.cli.console import Json, PolicyName, Reference, Shell

if TYPE_CHECKING:
    from jaxckpt._step import Step
    from jaxckpt.verifier import Verification


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
    chosen = policy
    return lambda step: apply(step.function, chosen, static_argnums=step.static_argnums)


def verification_data(verification: "Verification") -> dict[str, Any]:
    """A verification as plain data."""
    leaves = [dataclasses.asdict(leaf) | {"allowed": leaf.allowed, "ok": leaf.ok} for leaf in verification.leaves]
    return dataclasses.asdict(verification) | {
        "ok": verification.ok,
        "bit_equal": verification.bit_equal,
        "leaves": leaves,
    }
