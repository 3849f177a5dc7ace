"""Real compilers, real figures: each is compared with a count by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from jaxckpt import _compat
from jaxckpt._errors import CompileError, TargetError
from jaxckpt.compiler import caveats, compile_step, footprint, lower_flat
from jaxckpt.machine import Target
from jaxckpt.machine.devices import target_config

MIB = 2**20
ACTIVATION_BYTES = 4096 * 1024 * 2
WEIGHTS_BYTES = 4 * 1024 * 1024 * 2
SMALL_BYTES = 4096
"""Tables of the pointers in tuples, and what aligns buffers."""


def chain(weights, x):
    """Four bf16 products with tanh; its gradient must keep each tanh."""
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return x.astype(jnp.float32).sum()


CHAIN_SPECS = (
    jax.ShapeDtypeStruct((4, 1024, 1024), jnp.bfloat16),
    jax.ShapeDtypeStruct((4096, 1024), jnp.bfloat16),
)


def test_a_chain_saves_four_activations_and_one_cotangent(h200):
    """The products are cuBLAS's: the gradient of tanh reads what cuBLAS wrote, and is not written over it."""
    made = footprint(jax.grad(chain), *CHAIN_SPECS, target=h200)
    assert made.argument_bytes == WEIGHTS_BYTES + ACTIVATION_BYTES
    assert made.output_bytes == WEIGHTS_BYTES
    assert made.alias_bytes == 0
    further = 2 if jax.__version_info__ < (0, 12) else 3  # later ones put the last gradient of a weight off
    assert 0 <= made.temp_bytes - (4 + further) * ACTIVATION_BYTES < SMALL_BYTES
    assert made.total_bytes == 2 * WEIGHTS_BYTES + ACTIVATION_BYTES + made.temp_bytes
    assert made.host_bytes == 0
    assert made.unused_argument_bytes == 0
    assert made.caveats == ()


def test_the_chain_without_gradient_keeps_two_activations(h200):
    temp_bytes = footprint(chain, *CHAIN_SPECS, target=h200).temp_bytes
    assert 0 <= temp_bytes - (2 * ACTIVATION_BYTES + WEIGHTS_BYTES // 4) < SMALL_BYTES  # and a copy of one weight


def test_a_footprint_says_how_it_was_got(h200):
    made = footprint(lambda x: x + 1, np.ones(4), target="h200")
    assert made.target == "h200"
    assert made.jax_version == jax.__version__
    assert made.plugin_version == h200.compiler_version != ""
    assert made.compile_s > 0


def test_donation_lends_arguments_to_outputs(h200, f32):
    def update(state, gradient):
        return state - gradient

    plain = footprint(update, f32(256, 1024), f32(256, 1024), target=h200)
    lent = footprint(update, f32(256, 1024), f32(256, 1024), target=h200, donate_argnums=0)
    jitted = jax.jit(update, donate_argnums=0)
    assert plain.alias_bytes == 0
    assert lent.alias_bytes == MIB
    assert lent.total_bytes == plain.total_bytes - MIB == 2 * MIB
    assert footprint(jitted, f32(256, 1024), f32(256, 1024), target=h200).alias_bytes == MIB


def test_closed_over_arrays_are_counted_as_the_program(h200, f32):
    held = jnp.asarray(np.random.default_rng(0).normal(size=(512, 512)), jnp.float32)
    for target in (h200, Target("cpu")):
        made = footprint(lambda x: x + held, f32(512, 512), target=target)
        assert made.constant_bytes == MIB
        assert made.total_bytes == 3 * MIB == made.reported_peak_bytes


def test_arguments_that_nothing_reads_are_reported_apart(h200, f32):
    keys = jax.random.split(jax.random.key(0), 28)
    made = footprint(lambda x, y, keys: x + 1, f32(4), f32(512, 512), keys, target=h200)
    assert made.argument_bytes == 16
    assert made.unused_argument_bytes == MIB + 28 * 8
    assert made.caveats == (caveats.UNUSED_CAVEAT,)


def test_a_step_without_outputs_takes_nothing(h200, f32):
    assert footprint(lambda x: (), f32(4), target=h200).total_bytes == 0


def test_typed_keys_compile(h200):
    keys = jax.ShapeDtypeStruct((28,), jax.random.key(0).dtype)
    made = footprint(lambda keys: (keys, jax.random.uniform(keys[3], (8,))), keys, target=h200)
    assert made.argument_bytes == 28 * 8
    assert made.output_bytes >= 28 * 8 + 8 * 4


def test_figures_are_per_device_of_a_mesh(h200x8, f32):
    mesh = h200x8.mesh((8,), ("data",))
    rows = f32(1024, 1024, sharding=NamedSharding(mesh, PartitionSpec("data")))
    made = footprint(lambda x: x + 1, rows, target=h200x8)
    assert made.argument_bytes == made.output_bytes == 4 * MIB // 8


@pytest.mark.parametrize("abstract", [False, True])
def test_a_mesh_elsewhere_is_rebuilt_on_the_target(h200x8, f32, abstract):
    if abstract:
        mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    else:
        mesh = Target("h100:8").mesh((8,), ("data",))
    rows = f32(1024, 1024, sharding=NamedSharding(mesh, PartitionSpec("data")))
    compilation = compile_step(lambda x, y: x @ y, rows, np.ones((1024, 8), "f"), target=h200x8)
    assert compilation.footprint.argument_bytes == 4 * MIB // 8 + 1024 * 8 * 4
    found = compilation.executable.input_shardings[0][0].device_set
    assert found == set(h200x8.devices)


def test_a_mesh_that_the_caller_made_for_the_same_device_is_kept(h200):
    (device,) = _compat.cuda_topology_devices(target_config(h200.facts), "1x1x1")
    assert device != h200.devices[0]
    own = jax.sharding.SingleDeviceSharding(device)
    spec = jax.ShapeDtypeStruct((4,), jnp.float32, sharding=own)
    compilation = compile_step(lambda x, y: x + y, spec, np.ones(4, "f"), target=h200)
    assert compilation.executable.input_shardings[0][0].device_set == {device}


def test_a_mesh_that_the_caller_has_set_is_followed(h200, f32):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    rows = f32(64, 64, sharding=NamedSharding(mesh, PartitionSpec("data")))
    with jax.set_mesh(mesh):
        made = footprint(
            lambda x: jax.lax.with_sharding_constraint(jnp.sin(x), PartitionSpec("data")),
            rows,
            target=h200,
        )
    assert made.argument_bytes == 64 * 64 * 4


def test_explicit_axes_compile_on_a_mesh_of_the_target(h200x8, f32):
    mesh = h200x8.mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        rows = f32(64, 64, sharding=NamedSharding(mesh, PartitionSpec("data")))
        made = footprint(
            lambda x: jax.sharding.reshard(jnp.sin(x), PartitionSpec(None, "data")),
            rows,
            target=h200x8,
        )
    assert made.argument_bytes == made.output_bytes == 64 * 64 * 4 // 8


def test_shardings_of_the_jit_are_taken_over(h200x8, f32):
    mesh = h200x8.mesh((8,), ("data",))
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    made = footprint(
        jax.jit(lambda x: x + 1, in_shardings=split, out_shardings=whole),
        f32(256, 1024),
        target=h200x8,
    )
    assert made.argument_bytes == MIB // 8
    assert made.output_bytes == MIB


def test_a_mesh_too_large_for_the_target_is_refused(h200, f32):
    mesh = AbstractMesh((8,), ("data",))
    rows = f32(64, 64, sharding=NamedSharding(mesh, PartitionSpec("data")))
    with pytest.raises(TargetError, match="too few devices for a mesh of 8"):
        lower_flat(lambda x: (x,), (rows,), target=h200)


def test_offloaded_results_lie_on_the_host(h200, f32):
    made = footprint(lambda x: jax.device_put(x @ x, jax.memory.Space.Host), f32(256, 256), target=h200)
    assert made.output_bytes == 0
    assert made.host_bytes == made.host_output_bytes == 256 * 256 * 4


@pytest.mark.parametrize("is_returned", [False, True])
def test_host_arguments_are_on_the_host(h200, is_returned):
    state = jax.device_put(jnp.ones((256, 256)), jax.memory.Space.Host)

    def step(x):
        moved = jax.device_put(x, jax.memory.Space.Device) @ jnp.ones((256, 256))
        return jax.device_put(moved, jax.memory.Space.Host) if is_returned else moved

    made = footprint(step, state, target=h200, donate_argnums=(0,) if is_returned else ())
    assert made.host_argument_bytes == 256 * 256 * 4
    assert made.argument_bytes == 0
    assert made.host_alias_bytes == (256 * 256 * 4 if is_returned else 0)
    assert made.output_bytes == (0 if is_returned else 256 * 256 * 4)
    assert made.caveats == ()


def test_host_arguments_on_a_mesh(h200x8, f32):
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"), memory_kind="pinned_host")
    made = footprint(
        lambda x: jax.device_put(x, jax.memory.Space.Device) + 1, f32(256, 1024, sharding=rows), target=h200x8
    )
    assert made.host_argument_bytes == MIB // 8
    assert made.argument_bytes == 0


def test_convolutions_are_flagged_as_counted_too_low(h200, f32):
    def convolve(x, w):
        return jax.lax.conv(x, w, (1, 1), "SAME")

    made = footprint(convolve, f32(2, 64, 32, 32), f32(64, 64, 3, 3), target=h200)
    assert made.caveats == (caveats.CONVOLUTION_CAVEAT,)


def test_the_processor_is_compiled_for_with_its_caveats(f32):
    made = footprint(lambda x: x @ x, f32(256, 256), target="cpu")
    assert made.argument_bytes == made.output_bytes == 256 * 256 * 4
    assert made.caveats == caveats.CPU_CAVEATS
    assert footprint(lambda x: x + 1, f32(4), target="attached").argument_bytes == 16


def test_the_executable_is_kept_for_other_readers(h200, f32):
    compilation = compile_step(lambda x: jnp.sin(x), f32(8), target=h200)
    assert "sine(" in compilation.executable.as_text()


def test_compiler_options_are_passed_on_and_recorded(h200, f32):
    options = (("xla_gpu_autotune_level", 0),)
    jitted = jax.jit(lambda x: x + 1, compiler_options={"xla_gpu_enable_triton_gemm": False})
    made = footprint(jitted, f32(4), target=h200, compiler_options=options)
    assert made.compiler_options == (("xla_gpu_enable_triton_gemm", False), *options)


def test_a_donation_that_cannot_be_used_stays_a_warning(h200, f32):
    with pytest.warns(UserWarning, match="donated buffers were not usable"):
        footprint(lambda x: x.sum(), f32(8), target=h200, donate_argnums=0)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="with a GPU callbacks lower")
def test_a_host_callback_is_refused_with_advice(h200, f32):
    def shout(x):
        jax.debug.print("{x}", x=x[0])
        return x + 1

    with pytest.raises(CompileError) as caught:
        footprint(shout, f32(4), target=h200)
    assert str(caught.value) == (
        'step "shout" cannot be compiled for target "h200": '
        "it calls back to Python, which does not compile without the device.\n"
        "  Got:    Unknown backend: 'gpu' requested, but no platforms that are instances of gpu are present. "
        "Platforms present are: cpu\n"
        "  Needed: no jax.debug.print, pure_callback, io_callback or eqx.error_if in the step\n"
        "  Try:    without prints and debug callbacks, which take no device memory, compile it for any target; a step"
        ' that reads what a callback returns compiles for target="attached"'
    )
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.__cause__ is not None
    assert not caught.value.resource_exhausted


def test_an_unknown_option_of_the_compiler_is_named(h200, f32):
    with pytest.raises(CompileError, match="'xla_nonsense'") as caught:
        footprint(lambda x: x + 1, f32(4), target=h200, compiler_options=(("xla_nonsense", 1),))
    assert "an XLA option is unknown" in str(caught.value)


def test_a_mesh_inside_the_step_must_be_the_targets(h200, f32):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("data"))
    with pytest.raises(CompileError, match="names devices of its own") as caught:
        footprint(lambda x: jax.lax.with_sharding_constraint(x + 1, split), f32(4), target=h200)
    assert "jaxckpt.Target(...).mesh" in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*allas:DeprecationWarning")  # jax's own, about its backends
def test_a_pallas_kernel_needs_a_mesh_or_nothing(h200, f32):
    from jax.experimental import pallas

    def add_one(source, sink):
        sink[...] = source[...] + 1

    def step(x):
        return pallas.pallas_call(add_one, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    if not jax.__version__.startswith("0.10."):  # whose lowering does not ask
        with pytest.raises(CompileError, match="asks which GPU is attached") as caught:
            footprint(step, f32(64, 64), target=h200)
        assert 'jax.set_mesh(jaxckpt.Target("h200").mesh' in str(caught.value)
    with jax.set_mesh(h200.mesh((1,), ("device",))):
        assert footprint(step, f32(64, 64), target=h200).total_bytes == 2 * 64 * 64 * 4


def test_a_compiler_without_figures_proves_nothing(monkeypatch, f32):
    monkeypatch.setattr(jax.stages.Compiled, "memory_analysis", lambda self: None)
    with pytest.raises(CompileError, match="gives no memory figures"):
        footprint(lambda x: x + 1, f32(4), target="cpu")
