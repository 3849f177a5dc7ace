"""A compiler without a device gives matrix products the kernels that a device's autotuner would choose."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from jaxckpt.compiler import compile_step
from jaxckpt.compiler.product_kernels import choice_name, choose_products, product_options
from jaxckpt.machine import Target, autotuner_device_name, known_facts

MIB = 2**20
ROWS = 16384


def product(x, weight):
    """A product with ops of one array before it and behind it."""
    return jnp.tanh(jax.nn.relu(x) @ weight)


def compiled(inner, width, *, target="h200"):
    args = (jax.ShapeDtypeStruct((ROWS, inner), jnp.bfloat16), jax.ShapeDtypeStruct((inner, width), jnp.bfloat16))
    return compile_step(product, *args, target=Target(target))


def kernels(compilation):
    return [kernel.opcode for kernel in compilation.footprint.memory.kernels]


@pytest.mark.parametrize("target", ["h200", "h100", "a100-80", "b200"])
def test_a_product_that_waits_for_no_memory_is_a_librarys(h200, target):
    made = compiled(4096, 4096, target=target)
    assert "custom-call" in kernels(made)
    assert len(kernels(made)) == 3  # relu, the product, tanh
    assert made.footprint.temp_bytes >= 2 * ROWS * 4096  # the result of relu, and what the library writes


def test_a_product_that_waits_for_memory_is_one_fused_kernel(h200):
    made = compiled(64, 4096)
    assert kernels(made) == ["fusion"]
    assert made.footprint.temp_bytes < MIB


def test_a_product_that_transposes_a_large_operand_is_one_fused_kernel(h200):
    """The library contracts the last axis of images: another one needs a copy, by a kernel of its own."""
    weight = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    for shape, opcode, equation in (
        ((32, 64, ROWS), "fusion", "bcx,cd->bxd"),
        ((32, ROWS, 64), "custom-call", "bxc,cd->bxd"),
    ):
        images = jax.ShapeDtypeStruct(shape, jnp.float32)
        made = compile_step(partial(jnp.einsum, equation), images, weight, target=h200)
        assert kernels(made) == [opcode]
        assert made.footprint.temp_bytes < MIB


def test_a_product_whose_operand_has_a_bias_is_one_fused_kernel(h200):
    """The library adds a bias to the result alone: one of an operand is a kernel of its own, and an array in memory."""
    x, weight = jax.ShapeDtypeStruct((ROWS, 64), jnp.float32), jax.ShapeDtypeStruct((64, 64), jnp.float32)
    bias = jax.ShapeDtypeStruct((64,), jnp.float32)
    behind = compile_step(lambda x, weight, bias: x @ weight + bias, x, weight, bias, target=h200)
    before = compile_step(lambda x, weight, bias: (x + bias) @ weight, x, weight, bias, target=h200)
    assert kernels(behind) == ["custom-call"]
    assert kernels(before) == ["fusion"]
    assert before.footprint.temp_bytes < MIB


def test_a_step_compiles_again_only_for_products_that_it_meets_first(h200, monkeypatch):
    from jaxckpt.compiler import compile as module

    written = []

    def noted(dump, target):
        written.append(choose_products(dump, target))
        return written[-1]

    monkeypatch.setattr(module, "choose_products", noted)
    compiled(4096, 4608)
    compiled(4096, 4608)
    assert written == [True, False]


def test_targets_that_choose_by_themselves_get_no_options():
    assert product_options(Target("cpu")) == ()
    assert not choose_products("no such folder", Target("cpu"))


def test_a_dump_without_the_version_writes_no_choices(h200, tmp_path):
    assert not choose_products(tmp_path, h200)


def test_the_name_of_a_choice_hashes_device_product_and_version():
    device = autotuner_device_name(known_facts()["h200"])
    assert device == (
        "CUDA: 9.0, Cores: 132, GPU clock: 1.98 GHz, Memory bandwidth: 4800 GB/s, L2 cache: 50 MB, DNN version: 9.10.0"
    )
    names = {choice_name("{}", device, 45), choice_name("{}", device, 46), choice_name("{ }", device, 45)}
    assert len(names) == 3
    assert all(name.endswith(".textproto") and "=" not in name for name in names)
