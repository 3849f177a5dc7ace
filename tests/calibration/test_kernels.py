"""What is timed is what we think: on an H200 each link of a chain is the kernel that it stands for, and no other."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt.calibration.kernels import Speeds, launch, matmul, probes
from jaxckpt.compiler import compile_step
from tests.compiler.conftest import h200

__all__ = ["h200"]

PROBES = {f"{probe.what} {probe.detail}": probe for probe in probes(Speeds(), small=True)}
BY_MEMORY = {name: probe for name, probe in PROBES.items() if probe.unit == "bytes/s"}
SPEEDS = Speeds(flops_per_s=7e14, bytes_per_s=4e12)


def kernels_of(probe, links, target):
    spec = jax.eval_shape(probe.start)
    memory = compile_step(probe.chain(links), spec, target=target).footprint.memory
    return [kernel for kernel in memory.kernels if kernel.count > 1]


@pytest.mark.parametrize("name", PROBES)
def test_links_keep_values_finite_and_not_zero(name):
    probe = PROBES[name]
    with jax.disable_jit():  # a kernel of thousands of multiply-adds can overflow the stack of XLA's compiler for CPUs
        found = jax.tree.leaves(probe.chain(4 * probe.inner)(probe.start()))
    for leaf in found:
        assert bool(jnp.isfinite(leaf.astype(jnp.float32)).all()) and bool((leaf != 0).any())


@pytest.mark.parametrize("name", BY_MEMORY)
def test_a_link_moves_the_bytes_that_it_is_counted_with(name, h200):
    probe = BY_MEMORY[name]
    links = 3 * probe.inner
    moved = sum(kernel.count * kernel.traffic_bytes for kernel in kernels_of(probe, links, h200))
    assert moved == pytest.approx(links * probe.work, rel=0.1)


def test_launches_are_kernels_one_after_the_other(h200):
    probe = launch()
    kernels = kernels_of(probe, 3 * probe.inner, h200)
    assert sum(kernel.count for kernel in kernels if kernel.traffic_bytes > 1000) == 3 * probe.inner


def test_a_product_is_counted_with_the_one_back(h200):
    probe = matmul(SPEEDS, "bfloat16", 64, 32, 128)
    kernels = kernels_of(probe, 2 * probe.inner, h200)
    assert sum(kernel.count * kernel.matmul_flops for kernel in kernels) == 2 * probe.inner * probe.work


def test_iterations_are_long_compared_with_the_loops_counter():
    for probe in probes(SPEEDS, small=False):
        assert probe.inner * probe.guess_s >= 0.99e-4
        assert probe.links(0.01) % probe.inner == 0
        assert probe.links(0.01) * probe.guess_s < 0.05


def test_the_first_figures_are_those_that_every_estimate_needs():
    first = [probe.what for probe in probes(SPEEDS, small=False)][:3]
    assert first == ["launch", "matmul", "elementwise"]
