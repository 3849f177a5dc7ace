"""Rule 3 of `fusion`: of a chain of ops whose result several kernels read, the result is stored, not what is before."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt import Planner
from jaxckpt.cost import fuse, strip_views
from jaxckpt.ir import Phase
from jaxckpt.machine import Target, targets
from jaxckpt.solve import solve
from jaxckpt.trace import trace_step

needs_gpu_target = pytest.mark.skipif(
    not any(status.name == "h200" and status.usable for status in targets()),
    reason="needs the CUDA plugin: pip install 'jaxckpt[gpu-targets]'",
)


def step(weights, x):
    """Elementwise ops lead from one residual stream of cotangents to the next, with no product between the two."""

    def loss(weights):
        hidden = x
        for weight in weights:
            hidden = jnp.tanh(hidden @ weight) + hidden * jnp.sin(hidden)
        return jnp.mean(hidden**2)

    return jax.value_and_grad(loss)(weights)


def specs(layers=6, width=256, rows=16384):
    spec = jax.ShapeDtypeStruct
    return [spec((width, width), jnp.float32)] * layers, spec((rows, width), jnp.float32)


def test_only_the_end_of_a_chain_is_stored():
    graph = trace_step(step, *specs()).graph
    fusion = fuse(graph, Target("h200").rates)
    cotangents = [op for op in graph.ops if op.phase is Phase.BACKWARD and op.primitive == "add_any"]
    streams = [
        op for op in cotangents if any(graph.ops[graph.producer[v]].primitive == "dot_general" for v in op.reads)
    ]
    assert len(streams) == 5
    inner = [op for op in cotangents if not {stream.id for stream in streams}.isdisjoint(graph.readers[op.writes[0]])]
    assert all(op.writes[0] in fusion.materialised for op in streams if len(graph.readers[op.writes[0]]) > 1)
    assert len(inner) >= 5
    assert not fusion.materialised.intersection(op.writes[0] for op in inner)


def test_an_op_without_results_reads_what_is_in_memory():
    def loss(weights, x):
        hidden = jnp.tanh(x @ weights)
        jax.debug.callback(lambda rows: None, hidden.reshape(-1))
        return jnp.mean(jnp.tanh(hidden @ weights) ** 2)

    (weights, *_), x = specs()
    graph = trace_step(jax.grad(loss), weights, x).graph
    (read,) = next(op for op in graph.ops if op.effects).reads
    assert strip_views(graph, read) in fuse(graph, Target("h200").rates).materialised


@needs_gpu_target
@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="jax 0.10.2 makes other kernels of tanh and its derivative")
def test_predictions_are_those_of_the_compiled_step():
    planner = Planner(step, *specs(), target="h200")
    plan = solve(planner.problem, "full")
    compiled = planner.measure(plan).footprint
    assert plan.predicted.total_bytes == pytest.approx(compiled.total_bytes, rel=0.01)
    assert plan.predicted.step_s == pytest.approx(compiled.step_s, rel=0.05)
