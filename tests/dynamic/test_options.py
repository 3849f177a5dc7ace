"""Options are data: as one object or as keywords they mean the same, and a keyword goes before the field."""

from dataclasses import FrozenInstanceError, replace

import jax
import jax.numpy as jnp
import pytest

from jaxckpt.dynamic import (
    EvictionOptions,
    Memory,
    Mode,
    Runner,
    RunOptions,
    TrainingOptions,
    UnknownEvictorError,
    address_map,
    address_maps,
    compare_evictors,
    run,
    simulate,
    unit_chain,
)

OPTIONS = RunOptions(evictor="lru", memory=Memory(mode=Mode.HARD), limit=50, seed=3)
KEYWORDS = {"evictor": "lru", "memory": Memory(mode=Mode.HARD), "limit": 50, "seed": 3}
W, X = jnp.eye(8), jnp.ones((64, 8))


def step(w, x):
    return jax.grad(lambda w: jnp.tanh(jnp.tanh(jnp.tanh(x @ w) @ w) @ w).sum())(w)


def timeless(found):
    return replace(found, run_s=0, search_s=0)


def test_simulations_take_options_as_one_object_or_as_keywords():
    chain = unit_chain(16)
    by_keywords, by_options = simulate(chain, budget=8, **KEYWORDS), simulate(chain, budget=8, options=OPTIONS)
    assert timeless(by_keywords) == timeless(by_options) != timeless(simulate(chain, budget=8))
    assert simulate(chain, budget=8, options=OPTIONS, evictor="dtr").evictor == "dtr"
    given, named = address_map(chain, budget=8, options=OPTIONS), address_map(chain, budget=8, **KEYWORDS)
    assert given.residences == named.residences and timeless(given.simulation) == timeless(named.simulation)


def test_eager_runs_do_too():
    named = run(step, W, X, budget=0.9, measure=False, evictor="dtr_eq", seed=1).counters
    given = RunOptions(evictor="dtr_eq", seed=1)
    assert timeless(run(step, W, X, budget=0.9, measure=False, options=given).counters) == timeless(named)
    assert timeless(Runner(step, budget=0.9, measure=False, options=given)(W, X).counters) == timeless(named)


def test_comparisons_do_too():
    options = EvictionOptions(evictors=("lru",), ratios=(0.9,), optimum=False, steps=2)
    given = compare_evictors(step, W, X, options=options)
    named = compare_evictors(step, W, X, evictors=("lru",), ratios=(0.9,), optimum=False, steps=2)
    assert [timeless(row) for row in given.rows] == [timeless(row) for row in named.rows]
    (placed,) = address_maps(step, W, X, ratio=0.9, options=TrainingOptions(evictors=("lru",), steps=2)).values()
    maps = address_maps(step, W, X, ratio=0.9, evictors=("lru",), steps=2)
    assert placed.residences == maps["lru"].residences and placed.calls == maps["lru"].calls


def test_options_are_frozen_and_know_their_names():
    with pytest.raises(FrozenInstanceError):
        OPTIONS.seed = 4
    with pytest.raises(TypeError, match="evictors"):
        simulate(unit_chain(4), evictors="dtr")
    with pytest.raises(TypeError, match="ratios"):
        address_maps(step, W, X, ratio=0.9, ratios=(0.9,))
    with pytest.raises(UnknownEvictorError):
        Runner(step, budget=None, evictor="dtt")


@pytest.mark.parametrize("alignment", [1, 512])
def test_the_larger_memory_of_hinted_addresses_is_aligned_too(alignment):
    memory = Memory(mode=Mode.HINT, alignment=alignment)
    assert simulate(unit_chain(16), budget=2 * alignment, evictor="dte", memory=memory).status == "ok"
