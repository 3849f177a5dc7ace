"""Effect of XLA's scheduling options on compiled totals, on one GPU and data parallel on eight.

    python -m benchmarks.scheduler

The options are those found in the CUDA compiler of jax 0.12.0.1 that concern the order of kernels and memory. The
memory limit is that of the scheduler and of XLA's own rematerialisation, in percent of the device's memory. Steps on
eight GPUs have `jax.checkpoint` on each block: the order matters where recomputation may start early.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import jaxckpt
from benchmarks.models import MODELS, TrainingStep
from benchmarks.models.blocks import as_written, rematerialised
from benchmarks.record import keep

SIZES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {"gpt2-small": {"layers": 4, "batch": 8}, "resnet50": {"batch": 32}}
)
"""Sizes of the models where these are not the real ones; the batch is that of one device."""
_HIDING = "xla_gpu_enable_latency_hiding_scheduler"
OPTIONS: Mapping[str, tuple[tuple[str, Any], ...]] = MappingProxyType(
    {
        "no option": (),
        "latency hiding off": ((_HIDING, False),),
        "latency hiding on, memory fencing from 1 MiB": (
            (_HIDING, True),
            ("xla_gpu_experimental_scheduler_memory_fencing_threshold_bytes", 2**20),
        ),
        "memory limit 1%": (("xla_gpu_memory_limit_slop_factor", 1),),
    }
)
"""By their names in the result."""


def main() -> None:
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for model, sizes in SIZES.items():
        for devices, made in steps(model, sizes):
            row = rows[f"{model}, {devices} GPU"] = {}
            target = "h200" if devices == 1 else f"h200:{devices}"
            for name, options in OPTIONS.items():
                found = jaxckpt.footprint(
                    made.step, *made.args, target=target, donate_argnums=made.donate_argnums, compiler_options=options
                )
                row[name] = {"total_bytes": found.total_bytes, "step_s": found.step_s}
                total_mib = found.total_bytes / 2**20
                print(f"{model} on {devices}, {name}: {total_mib:,.1f} MiB, {1e3 * found.step_s:.2f} ms", flush=True)
    sizes, options = ({name: dict(each) for name, each in found.items()} for found in (SIZES, OPTIONS))
    keep("scheduler", {"sizes": sizes, "options": options, "rows": rows})


def steps(model: str, sizes: Mapping[str, int]) -> Iterator[tuple[int, TrainingStep]]:
    """The step as written on one device, and with `jax.checkpoint` on each block data parallel on eight."""
    yield 1, MODELS[model].step(**sizes, remat=as_written)
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    made = MODELS[model].step(**{**sizes, "batch": 8 * sizes["batch"]}, remat=rematerialised())

    def sharded(spec: jax.ShapeDtypeStruct, *axes: str) -> jax.ShapeDtypeStruct:
        return spec.update(sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    *state, batch = made.args
    args = (*jax.tree.map(sharded, state), jax.tree.map(lambda spec: sharded(spec, "data"), batch))
    yield (
        8,
        TrainingStep(
            step=made.step, args=args, donate_argnums=made.donate_argnums, optimiser=made.optimiser, batch=made.batch
        ),
    )


if __name__ == "__main__":
    main()
