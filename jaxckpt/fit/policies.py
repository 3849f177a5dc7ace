"""A policy becomes a plan: its rules meet the step's graph, the rest follows from the step's own structure.

What a policy recomputes starts from what crosses between the stages of the forward pass, which are found by structure
as for `strategy="full"`; a rule that names a crossing value, or its primitive, may decide otherwise. Saves of values
that cost nothing to make again (views, masks, casts of parameters) are left to the compiler.

Read after `jaxckpt.policy` and `planner`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxckpt import ir
from jaxckpt._errors import PolicyError
from jaxckpt.ir import Decision, Recompute, Save
from jaxckpt.policy import Policy, resolve
from jaxckpt.rewrite import apply_decided
from jaxckpt.solve import Problem, boundaries, solve
from jaxckpt.target import Target
from jaxckpt.trace import Traced

_RATES = Target("h200").rates
"""A policy's stages depend on bytes; seconds only break ties."""


def plan_of_policy(problem: Problem, policy: Policy) -> ir.Plan:
    """Carries a policy over to one step.

    Args:
      problem: The step, with its costs; its budget is not looked at.
      policy: The rules.

    Returns:
      A plan with its prediction.

    Raises:
      PolicyError: A rule matches nothing.
    """
    resolved = resolve(policy, problem.graph)
    named = {r.candidate.value for r in resolved if r.rule is not None and policy.rules[r.rule].match.names_values}
    worth = problem.worth_saving
    decisions: dict[int, Decision] = {
        r.candidate.value: r.decision
        for r in resolved
        if isinstance(r.decision, Recompute) or r.candidate.value in worth
    }
    if not any(isinstance(d, Recompute) for d in decisions.values()):
        return problem.plan(decisions, (0,), policy.name)
    stages = solve(problem, "full").stages
    crossing = dict.fromkeys(boundaries(problem, stages) - named, Save())
    outputs = frozenset(problem.graph.outputs)
    decisions = {v: d for v, d in {**decisions, **crossing}.items() if v not in outputs}
    return problem.plan(decisions, stages, policy.name)


def apply(
    step: Callable[..., Any],
    policy: Policy | str | Path,
    *,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
) -> Callable[..., Any]:
    """The step with a policy carried out. Nothing is compiled for a target and no budget is kept.

    Args:
      step: Loss, gradient and, if it is there, update: a function, plain or jitted.
      policy: A policy, the path of one, or the name of one that comes with jaxckpt.
      donate_argnums: Positions whose memory the results may take when the function is called outside `jax.jit`.
      static_argnums: Positions that are not traced.

    Returns:
      A function of the same signature and results. Wrap it in `jax.jit`. The policy meets the step when it is called,
      once for each kind of arguments.

    Raises:
      PolicyError: There is no such policy; or, when called: one of its rules matches nothing in the step.
      NoGradientError, ArgumentError: When called: as `jaxckpt.plan`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> frugal = apply(step, Policy(default="recompute"))
      >>> bool(jnp.allclose(frugal(jnp.eye(4), jnp.ones((2, 4))), step(jnp.eye(4), jnp.ones((2, 4)))))
      True
    """
    chosen = policy if isinstance(policy, Policy) else load_policy(policy)

    def decide(traced: Traced) -> ir.Plan:
        return plan_of_policy(Problem(graph=traced.graph, rates=_RATES), chosen)

    return apply_decided(step, decide, donate_argnums=donate_argnums, static_argnums=static_argnums)


def load_policy(path: str | Path) -> Policy:
    """Reads a policy from a TOML file, or a ready one by its name.

    Args:
      path: Of a file; or the name of one of those that come with jaxckpt (`jaxckpt.policies()`).

    Raises:
      PolicyError: There is no such file or name, or it cannot be read; the closest name is said.
    """
    path = Path(path)
    found = path if path.is_file() else _folder() / f"{path}.toml"
    try:
        return Policy.from_toml(found.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(
            f"load_policy({str(path)!r}): there is no such policy.",
            got=str(path),
            needed=f"a TOML file, or one of {', '.join(policies())}",
            advice="check the spelling, or write the policy: see policies/ for examples",
            problems=(str(error),),
        ) from error
    except PolicyError as error:
        error.add_note(f"in {found}")
        raise


def policies() -> tuple[str, ...]:
    """The names of the policies that come with jaxckpt."""
    return tuple(sorted(file.stem for file in _folder().glob("*.toml")))


def _folder() -> Path:
    """Where the ready policies are: in the package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    shipped = package / "policies_data"
    return shipped if shipped.is_dir() else package.parent / "policies"
