"""One process of a run of two, each with four CPU devices: what `test_agree` starts and reads.

Called with a port, the number of the process and a folder; there it writes what it found, as JSON.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt import Policy
from jaxckpt.ir import Partition, Save
from jaxckpt.policy import Match, Rule
from jaxckpt.rewrite import agreement as agree

LAYERS, WIDTH, TOKENS = 3, 16, 32


def step(weights: Any, x: Any) -> Any:
    """A loss and its gradient; the hidden values have a name."""

    def loss(weights):
        y = x
        for number, w in enumerate(weights):
            with jax.named_scope(f"block_{number}"):
                hidden = checkpoint_name(jnp.sin(y @ w), "hidden")
                y = y + jnp.tanh(hidden)
        return (y**2).mean()

    return jax.value_and_grad(loss)(weights)


def keeping(decision: Any) -> Policy:
    """The hidden values as decided, everything else computed again."""
    return Policy(default="recompute", rules=(Rule(match=Match(name="hidden"), decision=decision),))


def arrays() -> tuple[Any, Any]:
    """The same numbers in every process."""
    drawn = np.random.default_rng(0)
    weights = [drawn.normal(size=(WIDTH, WIDTH)).astype("float32") / 4 for _ in range(LAYERS)]
    return weights, drawn.normal(size=(TOKENS, WIDTH)).astype("float32")


def over(mesh: Mesh) -> tuple[Any, Any]:
    """The arguments over a mesh: weights whole, the batch split."""

    def put(array: Any, *axes: str) -> Any:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    weights, x = arrays()
    return [put(w) for w in weights], put(x, "data")


def numbers(results: Any, mesh: Mesh) -> list[float]:
    """A loss and gradients as plain numbers, wherever their parts are."""
    whole = jax.jit(lambda leaves: leaves, out_shardings=NamedSharding(mesh, PartitionSpec()))(results)
    return [float(v) for leaf in jax.tree.leaves(whole) for v in np.asarray(leaf.addressable_data(0)).ravel()]


def caught(call: Callable[[], Any]) -> str:
    """What a call says when it fails; "" where it does not."""
    try:
        call()
    except jaxckpt.AgreementError as error:
        return str(error)
    return ""


def main(port: str, index: int, folder: str) -> None:
    """Everything that the tests ask about, in the same order in both processes."""
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=index)
    first = jaxckpt.plan_once(lambda: jaxckpt.Planner(step, *arrays(), target="cpu").follow(keeping(Save())))
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    args = over(mesh)
    found: dict[str, Any] = {"made before there are devices": agree.digest(first)}
    found |= {"devices": jax.device_count(), "local": jax.local_device_count()}
    found["unplanned"] = numbers(jax.jit(step)(*args), mesh)
    found["partitioned"] = numbers(jaxckpt.apply(step, keeping(Partition()))(*args), mesh)
    with jax.set_mesh(mesh):
        found["inside jit"] = numbers(jax.jit(jaxckpt.apply(step, keeping(Partition(axis="model"))))(*args), mesh)
    mine = jaxckpt.Planner(step, *arrays(), target="cpu").follow(keeping(Save()))
    found["made here"] = agree.digest(mine)
    made = []
    plan = jaxckpt.plan_once(lambda: made.append(index) or mine)
    found["made once"] = {"digest": agree.digest(plan), "equal": plan == mine, "made": made}
    found["planned"] = numbers(plan.apply(step)(*args), mesh)
    planned = jaxckpt.jit(step, budget="1GiB", cache=folder)
    found["jit"] = numbers(planned(*args), mesh)
    found["jit's plan"] = agree.digest(planned.plan)
    other = keeping(Save()) if index else Policy(default="recompute")
    found["different"] = caught(lambda: jaxckpt.apply(step, other)(*args))
    found["failed"] = caught(lambda: jaxckpt.plan_once(fail)) if index else failing()
    if not index:
        agree.PATIENCE_S = 2.0
        found["alone"] = caught(lambda: jaxckpt.apply(step, keeping(Save()))(*args))
        whole = jax.device_put(arrays(), jax.local_devices()[0])
        found["own devices"] = caught(lambda: jaxckpt.apply(step, keeping(Save()))(*whole))
    Path(folder, f"{index}.json").write_text(json.dumps(found))
    jax.distributed.shutdown()


def fail() -> Any:
    """A plan that cannot be made."""
    raise jaxckpt.BudgetError("no plan.", got="6 apples", needed="bytes", advice="bytes")


def failing() -> str:
    """What process 0 raises itself."""
    try:
        jaxckpt.plan_once(fail)
    except jaxckpt.BudgetError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
