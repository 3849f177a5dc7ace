"""`jaxckpt verdicts`: what each rule of a policy, or each name of a step, is worth, by compiling."""

from jaxckpt.cli.console import Json, PolicyName, Reference, Shell, TargetName, compiled_target


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
        step = load_step(reference)
        said = judge(step, policy=chosen, target=machine, progress=say)
    shell.show(verdicts_report(said), said, unfold=True)
