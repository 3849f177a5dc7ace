"""A plan for a run of several processes: process 0 makes the plan and broadcasts it.

Planning is deterministic, so processes of one version of everything come to the same plan by themselves, and
`Plan.apply` refuses to go on where they do not. Made once, it cannot differ, and compiles are not done everywhere.
"""

from collections.abc import Callable

import jax

from jaxckpt import _compat
from jaxckpt._errors import AgreementError
from jaxckpt.planner.plan_file import plan_from_text, text_from_plan
from jaxckpt.planner.user_plan import Plan
from jaxckpt.rewrite import broadcast

_FAILED = "failed: "


def plan_once(make: Callable[[], Plan]) -> Plan:
    """A plan that process 0 makes and sends to the other processes (`jax.distributed`); for one process, `make()`.

    Every process has to call this function. The plan is sent through the store of JAX's distributed runtime, without
    devices.

    Args:
      make: Makes the plan; called by process 0 only.

    Returns:
      Equal plans on all processes.

    Raises:
      AgreementError: On the others, if process 0 fails or does not answer in time.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> import jaxckpt
      >>> step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
      >>> args = jnp.eye(4), jnp.ones((2, 4))
      >>> plan = plan_once(lambda: jaxckpt.plan(step, *args, budget="1GiB", target="cpu"))
      >>> plan.target
      'cpu'
    """
    run = _compat.distributed_run()
    if run is None:
        return make()
    # The runtime creates the devices of all processes together. Process 0 compiles, for which its devices must exist,
    # and would wait for a process that waits for the plan: jax 0.12.0.1 gives up after five minutes.
    jax.local_devices()
    if run.index:
        return _received(broadcast(run, None, what="plan_once"))
    try:
        plan = make()
    except Exception as error:
        broadcast(run, _FAILED + str(error), what="plan_once")
        raise
    broadcast(run, text_from_plan(plan), what="plan_once")
    return plan


def _received(text: str) -> Plan:
    if not text.startswith(_FAILED):
        return plan_from_text(text)
    raise AgreementError(
        "plan_once: process 0 of this run could not make the plan.",
        got=text.removeprefix(_FAILED),
        needed="a plan",
        advice="as the message says; the error of process 0 has details",
        process=0,
    )
