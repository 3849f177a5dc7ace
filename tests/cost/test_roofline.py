"""What an op needs of the units: products of lengths that their kernels cannot do, and random bits."""

from dataclasses import replace

import pytest

from jaxckpt.cost import arithmetic_costs
from tests.graphs import RATES, Builder


def padding_bytes(left, right, result, *, contracted):
    build = Builder()
    operands = [build.shaped("neg", build.input(4), shape=shape) for shape in (left, right)]
    flops = 2.0 * contracted
    for length in result:
        flops *= length
    product = build.shaped("dot_general", *operands, shape=result, flops=flops)
    return arithmetic_costs(build.graph(product), RATES).padding_bytes[2]


@pytest.mark.parametrize(
    ("left", "right", "result", "contracted", "expected_bytes"),
    [
        ((64, 32), (32, 128), (64, 128), 32, 0),
        ((64, 31), (31, 128), (64, 128), 31, 4 * (64 * 31 + 31 * 128)),
        ((64, 32), (32, 30522), (64, 30522), 32, 4 * 32 * 30522),
        ((8, 197, 64), (8, 64, 197), (8, 197, 197), 64, 0),
        ((31, 32), (32,), (31,), 32, 0),
    ],
    ids=["aligned", "contracted", "free", "batched", "vector"],
)
def test_products_copy_operands_of_odd_lengths_unless_batched(left, right, result, contracted, expected_bytes):
    assert padding_bytes(left, right, result, contracted=contracted) == expected_bytes


def drawing_s(dtype):
    build = Builder()
    key = build.input(8)
    build.values[key] = replace(build.values[key], dtype=dtype)
    bits = build.op("random_bits", key, size_bytes=4000)
    return arithmetic_costs(build.graph(build.op("lt", bits, size_bytes=4000)), RATES).vector_s


def test_random_bits_by_threefry_take_many_instructions():
    drawn_s, compared_s = drawing_s("key<fry>")
    assert drawn_s > 100 * compared_s > 0
    assert drawing_s("key<rbg>") == (0.0, compared_s)
