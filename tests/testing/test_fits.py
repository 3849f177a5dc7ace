"""A budget asserted: what passes, what is said where it does not, and what is refused."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt._compilers import compiler_for
from jaxckpt._errors import ArgumentError, BudgetError, FootprintAssertionError
from jaxckpt.compiler import Footprint
from jaxckpt.testing import assert_fits
from jaxckpt.testing.fits import holders_table
from tests.testing.footprints import MIB, made

TOTAL = made().total_bytes  # 64 of arguments, 24 of layers, 8 of the head, 1 of gaps


def stripped(text: str) -> list[list[str]]:
    """For each line its cells."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


def test_a_step_may_take_the_exact_budget_but_not_one_byte_more():
    assert assert_fits(made(), budget=TOTAL) == made()
    with pytest.raises(AssertionError, match="1 bytes too much"):
        assert_fits(made(), budget=TOTAL - 1)


def test_the_message_has_the_assertion_the_finding_and_advice():
    with pytest.raises(FootprintAssertionError) as raised:
        assert_fits(made(), budget="90MiB")
    headline, got, needed, advice, *_ = str(raised.value).splitlines()
    assert headline == "assert_fits(step, budget='90MiB', target='h200'): the step does not fit."
    assert got.startswith("  Got:    97 MiB on h200: arguments 64 MiB + outputs 40 MiB - alias 40 MiB")
    assert got.endswith("7 MiB (7340032 bytes) too much")
    assert needed == "  Needed: at most 90 MiB (94371840 bytes)"
    assert advice.endswith("jaxckpt plan MODULE:FUNCTION --budget 90MiB --target h200")
    assert raised.value.budget_bytes == 90 * MIB
    assert raised.value.footprint.total_bytes == TOTAL


def test_the_largest_holders_are_shown_with_equal_layers_folded():
    with pytest.raises(FootprintAssertionError) as raised:
        assert_fits(made(), budget=1)
    rows = [row for row in stripped(str(raised.value)) if row and row[-1].endswith(("%", ")"))]
    assert rows == [
        ["(arguments)", "64 MiB", "66.0%"],
        ["GPT/block_*/mlp", "0-11", "2 MiB", "24 MiB", "24.7%", "float32[8,65536] dot_general (gpt.py:31)"],
        ["GPT/head", "8 MiB", "8 MiB", "8.2%", "float32[8,262144] dot_general (gpt.py:31)"],
        ["(gaps at the peak)", "1 MiB", "1.0%"],
    ]


def test_holders_add_up_to_the_total():
    table = holders_table(made(constant_bytes=3 * MIB, alias_bytes=30 * MIB))
    assert sum(float(row[3].removesuffix(" MiB")) for row in table.rows) == TOTAL // MIB + 3 + 10


def test_many_holders_end_in_their_sum():
    even = made(layers=20)
    memory = even.memory
    uneven = tuple(dataclasses.replace(b, size_bytes=b.size_bytes - 4096 * b.id) for b in memory.buffers)
    table = holders_table(even.with_memory(dataclasses.replace(memory, buffers=uneven)))
    assert len(table.rows) == 16
    assert [row[0] for row in table.rows][:3] == ["(arguments)", "GPT/head", "GPT/block_0/mlp"]
    assert "and 7 more, 13.43 MiB" in table.notes  # six layers of 2 MiB, and the gaps


def test_a_missing_memory_map_is_reported_and_figures_are_shown():
    with pytest.raises(FootprintAssertionError, match="XLA's buffers were not read") as raised:
        assert_fits(made(memory=None), budget=1)
    assert ["(temporaries)", "33 MiB", "34.0%"] in stripped(str(raised.value))


def test_caveats_of_the_footprint_are_shown():
    with pytest.raises(FootprintAssertionError, match="They do not add up"):
        assert_fits(made(caveats=("They do not add up.",)), budget=1)


@pytest.mark.parametrize(
    ("changes", "budget", "advice"),
    [
        ({"alias_bytes": 0}, "100MiB", "donate what the step returns changed"),
        ({}, "40MiB", "no plan changes"),
        ({"alias_bytes": 0, "argument_bytes": 2**20, "output_bytes": 2**30}, "512MiB", "no plan changes"),
        ({}, "90 MiB", "--budget '90 MiB'"),
    ],
)
def test_the_advice_is_the_cheapest_thing_that_helps(changes, budget, advice):
    with pytest.raises(FootprintAssertionError) as raised:
        assert_fits(made(**changes), budget=budget)
    assert advice in raised.value.advice


@pytest.mark.parametrize("share", [0.5, 1.0, "50%"])
def test_a_share_is_refused_before_anything_is_compiled(share):
    def never(x):
        raise RuntimeError("traced")

    with pytest.raises(BudgetError, match="which is not known here"):
        assert_fits(never, 1.0, budget=share)


@pytest.mark.parametrize("budget", ["6 apples", -1, 0, float("nan"), None, "150%"])
def test_what_is_no_budget_is_refused(budget):
    with pytest.raises(BudgetError):
        assert_fits(made(), budget=budget)


@pytest.mark.parametrize(
    "given",
    [{"target": "h200"}, {"donate_argnums": 0}, {"static_argnums": (0,)}, {"compiler_options": [("xla_a", 1)]}],
)
def test_a_footprint_takes_nothing_that_could_change_it(given):
    with pytest.raises(ArgumentError, match=f"a footprint and {next(iter(given))}"):
        assert_fits(made(), budget="1GiB", **given)
    with pytest.raises(ArgumentError, match="a footprint and arguments"):
        assert_fits(made(), 1, budget="1GiB")


def test_the_room_is_reached_through_the_front_door():
    assert jaxckpt.testing.assert_fits is assert_fits
    assert set(jaxckpt.testing.__all__) <= set(dir(jaxckpt.testing))
    assert all(getattr(jaxckpt.testing, name) for name in jaxckpt.testing.__all__)
    with pytest.raises(AttributeError, match="assert_fitz"):
        _ = jaxckpt.testing.assert_fitz


def test_a_real_step_is_compiled_for_a_machine_that_is_not_there():
    if not compiler_for("cuda").fits:
        pytest.skip("NVIDIA's compiler is not installed")

    def step(w, x):
        return w - jax.grad(lambda w: jnp.tanh(jnp.tanh(x @ w) @ w).sum())(w)

    w, x = (jax.ShapeDtypeStruct(shape, "float32") for shape in ((256, 256), (4096, 256)))
    footprint = assert_fits(step, w, x, budget="1GiB", donate_argnums=0)
    assert isinstance(footprint, Footprint)
    assert footprint.target == "h200"
    assert footprint.alias_bytes == 256 * 256 * 4
    with pytest.raises(FootprintAssertionError, match="does not fit") as raised:
        assert_fits(footprint, budget=footprint.total_bytes - 1)
    assert "(arguments)" in raised.value.table
