"""A planned step against the step as written, on the CPU: equal bits in float32, equal loss curves over 20 real steps.

The model is the demo's, small; everything between its stages is recomputed.
Two comparisons: op by op in float32 with a deterministic order of work, where every bit must be equal over 20 updates;
and the compiled bfloat16 step over 20 updates of real parameters, where XLA may round differently in the last place.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.record import keep
from jaxckpt.cli import gpt2
from jaxckpt.planner import Plan, Planner

STEPS = 20
SHAPE = {"width": 128, "heads": 4, "vocabulary": 512, "sequence": 64}
LAYERS, BATCH = 4, 4


def main() -> None:
    model = gpt2.training_step(layers=LAYERS, batch=BATCH, **SHAPE)
    planner = Planner(model.step, *model.args, target="h200", donate_argnums=model.donate_argnums)
    plan = planner.plan(budget="1GiB", strategy="full")
    curves = {"as written": losses(model, model.step), "planned": losses(model, plan.apply(model.step))}
    differing = float32_bits_differing()
    worst = max(abs(a - b) for a, b in zip(curves["as written"], curves["planned"], strict=True))
    print(f"plan: {plan.predicted.recomputed_ops} ops run again")
    for name, curve in curves.items():
        print(f"{name:12s}", " ".join(f"{loss:.4f}" for loss in curve))
    print(f"largest difference of losses over {STEPS} steps: {worst:.3g}")
    print(
        f"float32, op by op, {STEPS} updates: {differing['values']} values compared,"
        f" {differing['differing']} differ in any bit"
    )
    data = {"steps": STEPS, "curves": curves, "largest_difference": worst, "float32_bits": differing}
    keep("numerics", data | {"recomputed_ops": plan.predicted.recomputed_ops})


def losses(model: gpt2.TrainingStep, step: Any) -> list[float]:
    """The loss of each of 20 updates on one batch."""
    parameters, state, tokens = real_arguments(model)
    step = jax.jit(step)
    curve = []
    for _ in range(STEPS):
        parameters, state, loss = step(parameters, state, tokens)
        curve.append(float(loss))
    return curve


def real_arguments(model: gpt2.TrainingStep) -> tuple[Any, Any, jax.Array]:
    parameters = model.model.init(jax.random.key(0), jnp.zeros((1, model.model.sequence), jnp.int32))
    tokens = jax.random.randint(jax.random.key(1), model.args[2].shape, 0, model.model.vocabulary)
    return parameters, model.optimiser.init(parameters), tokens


def float32_bits_differing() -> dict[str, Any]:
    """A float32 network run op by op, as written and with everything recomputed: the same kernels on the same bits."""
    keys = jax.random.split(jax.random.key(2), 7)
    weights = [jax.random.normal(key, (64, 64)) / 8 for key in keys[:6]]
    x = jax.random.normal(keys[6], (32, 64))

    def step(weights: list[jax.Array], x: jax.Array) -> Any:
        def loss(weights: list[jax.Array]) -> jax.Array:
            hidden = x
            for w in weights:
                hidden = hidden + jax.nn.gelu(hidden @ w)
            return jnp.mean(hidden**2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]

    planner = Planner(step, weights, x, target="h200")
    full: Plan = planner.plan(budget="1GiB", strategy="full")
    compared = differing = 0
    curve = []
    for _ in range(STEPS):
        with jax.disable_jit():
            expected = jax.tree.leaves(step(weights, x))
        found = planner.rewritten(full).call(*weights, x)
        for one, other in zip(expected, found, strict=True):
            compared += int(np.size(one))
            differing += int(np.sum(np.asarray(one) != np.asarray(other)))
        curve.append(float(found[0]))
        weights = list(found[1:])
    return {
        "steps": STEPS,
        "values": compared,
        "differing": differing,
        "first_loss": curve[0],
        "last_loss": curve[-1],
        "recomputed_ops": full.predicted.recomputed_ops,
    }


if __name__ == "__main__":
    main()
