"""The bases of `benchmarks.coop` are what they are called."""

import pytest

from benchmarks.coop import cost_density, target_of
from benchmarks.record import read
from benchmarks.tables import ROOT
from jaxckpt.dynamic import Call, Program, Tensor


def test_cost_density_is_the_time_of_a_byte_of_products_over_that_of_others():
    sizes, prices, dense = (2**21, 2**21, 2**22, 64), (600.0, 100.0, 200.0, 10**9), (True, False, False, False)
    tensors = tuple(Tensor(name=f"t{i}", size_bytes=size) for i, size in enumerate(sizes))
    rows = enumerate(zip(prices, dense, strict=True))
    calls = tuple(Call(name="op", price=price, reads=(), writes=(i,), dense=kind) for i, (price, kind) in rows)
    assert cost_density(Program(tensors=tensors, calls=calls, statements=())) == pytest.approx(6.0)


def test_products_of_the_float32_target_run_on_its_lanes():
    target = target_of(str(ROOT / "benchmarks" / "a100-float32.toml"))
    rates = target.rates
    assert rates.matmul("float32") == pytest.approx(rates.vector_flops_per_s)
    assert rates.memory_bandwidth_bytes_per_s == target_of("a100-80").rates.memory_bandwidth_bytes_per_s
    densities = read("coop-densities")["targets"]
    assert densities[target.facts.description].keys() == densities[target_of("h200").facts.description].keys()
