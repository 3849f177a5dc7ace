"""What XLA computes again by itself is counted, and its cause named."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from jaxckpt.compiler import footprint
from jaxckpt.compiler.caveats import HOST_OPTION, audit

LAYERS, TOKENS, WIDTH, HIDDEN = 600, 65536, 2048, 8192
"""Inputs of all layers: 150 GiB, more than an H200 has, in host memory."""


def body(x, weights):
    x = checkpoint_name(x, "x")
    return x + jax.nn.gelu(x @ weights[0]) @ weights[1], None


def loss(weights, x):
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[], names_which_can_be_offloaded=["x"], offload_src="device", offload_dst="pinned_host"
    )
    return jax.lax.scan(jax.checkpoint(body, policy=policy), x, weights)[0].astype(jnp.float32).sum()


def spec(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


WEIGHTS = (spec(LAYERS, WIDTH, HIDDEN), spec(LAYERS, HIDDEN, WIDTH))


@pytest.mark.parametrize("corrected", [False, True])
def test_xla_recomputes_offloads_unless_the_option_is_set(h200, corrected, tmp_path):
    """XLA recomputes products in kernels of its own, and none of cuBLAS: it is given a folder without choices."""
    no_choices = ("xla_gpu_per_fusion_autotune_cache_dir", str(tmp_path))
    options = ((HOST_OPTION, True), no_choices) if corrected else (no_choices,)
    made = footprint(jax.grad(loss), WEIGHTS, spec(TOKENS, WIDTH), target=h200, compiler_options=options)
    assert made.host_temp_bytes == LAYERS * TOKENS * WIDTH * 2
    assert made.compiler_options == options
    added = made.memory.rematerialised
    if corrected:
        assert not added and not list(audit(made.memory))
    else:
        assert {kernel.count for kernel in added} == {LAYERS}
        assert sum(k.matmul_flops * k.count for k in added) >= LAYERS * 2 * TOKENS * WIDTH * HIDDEN
        counted, cause = audit(made.memory)
        assert f"added {len(added)} kernels" in counted and counted in made.caveats
        assert HOST_OPTION in cause and "150.00 GiB" in cause
