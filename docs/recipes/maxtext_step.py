"""MaxText's own train step, with its configuration and its sharding rules, fitted into a budget instead of a policy."""

from pathlib import Path

import jax
import maxtext
from flax import nnx
from flax.linen import logical_axis_rules
from jax.sharding import Mesh
from maxtext.common.train_state_nnx import TrainStateNNX
from maxtext.configs import pyconfig
from maxtext.input_pipeline.synthetic_data_processing import SyntheticDataIterator
from maxtext.optimizers import optimizers
from maxtext.trainers.pre_train import train, train_compile
from maxtext.utils import maxtext_utils, model_creation_utils, sharding

import jaxckpt

LAYERS, ROWS, TOKENS, BUDGET = 2, 4, 256, "96MiB"
sizes = f"base_num_decoder_layers={LAYERS} per_device_batch_size={ROWS} max_target_length={TOKENS} vocab_size=2048"
width = "base_emb_dim=256 base_mlp_dim=1024 base_num_query_heads=4 base_num_kv_heads=4 head_dim=64"
how = "run_name=recipe hardware=cpu skip_jax_distributed_system=true attention=dot_product enable_checkpointing=false"
rate = "dataset_type=synthetic learning_rate=1e-3 warmup_steps_fraction=0 steps=10 remat_policy=minimal dtype=float32"
base = f"{Path(maxtext.__file__).parent}/configs/base.yml"
config = pyconfig.initialize(["", base, *f"{sizes} {width} {how} {rate}".split()])


def setup(devices):
    """The step under `jax.jit`, its arguments as shapes, and its mesh, as MaxText's train_compile.py makes them."""
    mesh = Mesh(maxtext_utils.create_device_mesh(config, devices), config.mesh_axes)
    args, _, states, _, graph = train_compile.get_shaped_inputs(mesh, config)
    data = sharding.get_input_data_sharding(config, mesh)
    made = maxtext_utils.get_functional_train_with_signature(train.train_step, data, states, graph, config)
    step, ins, outs, _, donated = made
    return jax.jit(step, in_shardings=ins, out_shardings=outs, donate_argnums=donated), args, mesh


def losses(step, mesh):
    model = model_creation_utils.create_nnx_abstract_model(config, mesh)[0]()
    schedule = maxtext_utils.create_learning_rate_schedule(config)
    optimizer = nnx.Optimizer(model, optimizers.get_optimizer(config, schedule, model, mesh=mesh), wrt=nnx.Param)
    state, batches, found = nnx.state(TrainStateNNX(model, optimizer)), SyntheticDataIterator(config, mesh), []
    for _ in range(3):
        state, metrics = step(state, next(batches))
        found.append(float(metrics["scalar"]["learning/loss"]))
    return found


step, shapes, mesh = setup(jaxckpt.Target("h200").devices)
with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
    as_written = jaxckpt.footprint(step, *shapes, target="h200")
    plan = jaxckpt.plan(step, *shapes, budget=BUDGET, target="h200")
print("as written:", as_written.summary())
print("planned:", plan.summary())
step, _, mesh = setup(jax.devices())
with jax.set_mesh(mesh), logical_axis_rules(config.logical_axis_rules):
    print("losses as written:", losses(step, mesh))
    print("losses with plan: ", losses(plan.apply(step), mesh))
