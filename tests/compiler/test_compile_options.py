"""Work that is spared a compiler changes no figure, and is spared only where nothing can run."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jaxckpt._errors import CompileError
from jaxckpt.compiler import compile_options as quick, footprint
from jaxckpt.compiler.compile_options import quick_options
from jaxckpt.machine import Target

CACHE = "xla_gpu_kernel_cache_file"


def layers(weights, x):
    for weight in weights:
        x = jnp.tanh(jnp.sin(x) @ weight)
    return x.astype(jnp.float32).sum()


SPECS = jax.ShapeDtypeStruct((3, 256, 256), jnp.bfloat16), jax.ShapeDtypeStruct((512, 256), jnp.bfloat16)


def test_figures_are_those_of_an_unhurried_compiler(h200):
    quickly = [
        footprint(jax.grad(layers), *SPECS, target=h200) for _ in range(2)
    ]  # with an empty file, then with its own
    unhurried = (("xla_gpu_autotune_level", 4), (CACHE, ""))
    slowly = footprint(jax.grad(layers), *SPECS, target=h200, compiler_options=unhurried)
    assert quickly[0].temp_bytes > 0
    for made in quickly:
        assert (made.temp_bytes, made.total_bytes, made.step_s) == (
            slowly.temp_bytes,
            slowly.total_bytes,
            slowly.step_s,
        )
        assert made.memory.buffers == slowly.memory.buffers
        assert made.compiler_options == ()


def test_kernels_are_kept_for_the_next_compile(h200):
    footprint(jax.grad(layers), *SPECS, target=h200)
    with quick_options(h200) as options:
        assert Path(options[CACHE]).stat().st_size > 0


def test_each_device_has_its_own_kernels(h200):
    with quick_options(h200) as options, quick_options(Target("h100")) as others:
        assert options["xla_gpu_autotune_level"] == 0
        assert others[CACHE] != options[CACHE]
    with quick_options(Target("h200:8")) as options_of_eight:
        assert options_of_eight[CACHE] == options[CACHE]


def test_compiles_at_the_same_time_write_to_different_files(h200):
    with quick_options(h200) as first, quick_options(h200) as second:
        assert first[CACHE] != second[CACHE]
    with quick_options(h200) as third:
        assert third[CACHE] == first[CACHE]


def test_a_file_that_has_grown_too_large_is_begun_anew(h200, monkeypatch):
    footprint(jax.grad(layers), *SPECS, target=h200)
    monkeypatch.setattr(quick, "_MOST_BYTES", 0)
    with quick_options(h200) as options:
        assert not Path(options[CACHE]).exists()


def test_what_may_run_is_compiled_as_always():
    for name in ("cpu", "attached"):
        with quick_options(Target(name)) as options:
            assert options == {}


def test_the_cache_is_free_after_a_failed_compile(h200):
    with pytest.raises(CompileError):
        footprint(jax.grad(layers), *SPECS, target=h200, compiler_options=(("xla_no_such_option", 1),))
    with quick_options(h200) as options:
        assert CACHE in options


@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="the older compiler starts nothing early in this step")
def test_the_order_of_least_memory_is_an_option_on_several_devices(h200x8):
    """Without XLA's latency-hiding scheduler no recomputation starts early to hide the reduction of gradients."""
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    replicated, cut = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))
    up, down = (jax.ShapeDtypeStruct(shape, "float32", sharding=replicated) for shape in ((256, 1024), (1024, 256)))
    x = jax.ShapeDtypeStruct((65536, 256), jnp.float32, sharding=cut)

    @jax.checkpoint
    def block(y, up, down):
        return y + jnp.tanh(jnp.sin(y @ up)) @ down

    def step(weights, x):
        def loss(weights):
            y = x
            for each in weights:
                y = block(y, *each)
            return (y**2).mean()

        return jax.tree.map(jnp.subtract, weights, jax.grad(loss)(weights))

    default, ordered = (
        footprint(step, [(up, down)] * 6, x, target=h200x8, donate_argnums=0, compiler_options=options).temp_bytes
        for options in ((), (("xla_gpu_enable_latency_hiding_scheduler", False),))
    )
    assert ordered < 0.9 * default


def test_a_step_whose_kernels_need_the_autotuner_is_compiled_with_it(h200):
    """Mixture of experts: the rows of a product are those of several groups, in the order of another product."""

    def loss(up, sent, weights):
        hidden = jnp.einsum("egpw,ewh->egph", jnp.einsum("gtw,gtep->egpw", sent, weights), up)
        return hidden.astype(jnp.float32).sum()

    shapes = (8, 1024, 4096), (16, 1024, 1024), (16, 1024, 8, 160)
    specs = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    if jax.__version_info__ >= (0, 12):  # what shows that the test reaches the second compile
        with pytest.raises(CompileError, match="No supported config found"):
            footprint(loss, *specs, target=h200, compiler_options=(("xla_gpu_autotune_level", 0),))
    made = footprint(loss, *specs, target=h200)  # before another compile tells XLA to take cuBLAS for the product
    expected = footprint(loss, *specs, target=h200, compiler_options=(("xla_gpu_autotune_level", 4),))
    assert (made.total_bytes, made.compiler_options) == (expected.total_bytes, ())
    with quick_options(h200, "loss") as options, quick_options(Target("h100"), "loss") as elsewhere:
        assert ("xla_gpu_autotune_level" in options) == (jax.__version_info__ < (0, 12))
        assert elsewhere["xla_gpu_autotune_level"] == 0
