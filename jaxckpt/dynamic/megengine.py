"""DTE as MegEngine configures it: settings of `megengine.dtr` and `megengine.jit.DTRConfig` as keywords of `simulate`.

MegEngine calls its engine DTR; Coop's paper calls it DTE. The rules `dte` and `dte_static` of `EVICTORS` are its scores
without its settings: any value may be evicted, and a budget is an amount of memory. Here the settings have MegEngine's
defaults, and a text such as "2GB" is 1024-based, as in MegEngine.

Two things differ from MegEngine. It checks the threshold before each op, without the bytes of the results; the
simulator counts these. Where no value is left to evict, it moves all values together; the simulator stops.

Read after `simulator`. Source: MegEngine, imperative/python/megengine/dtr/dtr.py, jit/dtr_config.py and
src/core/impl/graph/seq_dtr.cpp at 47952c07; Hu et al., MegTaiChi, ICS 2022.
"""

import re
from dataclasses import replace

from jaxckpt._errors import BudgetError
from jaxckpt.dynamic.evictors import evictor, sampled
from jaxckpt.dynamic.memory import Memory, Mode
from jaxckpt.dynamic.simulator import RunKeywords

_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?)b\s*", re.IGNORECASE)


class MegEngineKeywords(RunKeywords, total=False):
    """Keywords of `simulate` that hold settings of MegEngine."""

    budget: int


def megengine_dtr(
    device_bytes: int | str,
    *,
    eviction_threshold: int | str = 0,
    evictee_minimum_size: int | str = 2**20,
    enable_sqrt_sampling: bool = False,
) -> MegEngineKeywords:
    """Settings of `megengine.dtr`, the evictor of eager steps, as keywords of `simulate`.

    Args:
      device_bytes: Memory of the device.
      eviction_threshold: Bytes in memory from which on values are evicted before each op; the memory may hold more. 0:
        values are evicted when an allocation fails.
      evictee_minimum_size: Only larger values are evicted.
      enable_sqrt_sampling: Whether a search looks at about the square root of the candidates.

    Returns:
      The budget, the rule and the memory.

    Raises:
      BudgetError: An amount has another unit than B, KB, MB or GB, or is negative; a ValueError.
      TypeError: An amount is neither a whole number nor a text.

    Example:
      >>> from jaxckpt.dynamic import simulate, unit_chain
      >>> settings = megengine_dtr("11GB", eviction_threshold="2GB")
      >>> settings["budget"], settings["memory"].mode.name, settings["evictor"].least_bytes
      (2147483648, 'HINT', 1048577)
      >>> simulate(unit_chain(16), **megengine_dtr(8, evictee_minimum_size=0)).ok
      True
    """
    capacity, threshold = _amount(device_bytes), _amount(eviction_threshold)
    rule = sampled("dte") if enable_sqrt_sampling else evictor("dte")
    return MegEngineKeywords(
        budget=threshold or capacity,
        evictor=replace(rule, least_bytes=_amount(evictee_minimum_size) + 1),
        memory=Memory(mode=Mode.HINT, capacity=capacity) if threshold else Memory(mode=Mode.HARD),
    )


def megengine_dtr_config(
    *,
    eviction_threshold: int,
    evictee_minimum_size: int = 2**20,
    recomp_memory_factor: float = 1,
    recomp_time_factor: float = 1,
) -> MegEngineKeywords:
    """Settings of `megengine.jit.DTRConfig`, the planner of traced graphs, as keywords of `simulate`.

    Args:
      eviction_threshold: Bytes that values in memory stay below, if enough of them may be evicted.
      evictee_minimum_size: Smaller values are never evicted.
      recomp_memory_factor: Exponent of the bytes that recomputing a value brings back.
      recomp_time_factor: Exponent of the time that recomputing a value takes.

    Returns:
      The budget, the rule and the memory, in which values have no addresses that matter.

    Raises:
      BudgetError: The threshold is below 1, or another setting is negative.

    Example:
      >>> megengine_dtr_config(eviction_threshold=2**31, recomp_memory_factor=0)["evictor"].memory_exponent
      0
    """
    if eviction_threshold < 1 or min(evictee_minimum_size, recomp_memory_factor, recomp_time_factor) < 0:
        raise BudgetError(
            "megengine_dtr_config: a setting is too small.",
            got=f"{eviction_threshold=}, {evictee_minimum_size=}, {recomp_memory_factor=}, {recomp_time_factor=}",
            needed="a threshold of at least 1, and nothing below 0",
            advice="eviction_threshold=2 * 2**30",
        )
    rule = replace(
        evictor("dte_static"),
        least_bytes=evictee_minimum_size,
        memory_exponent=recomp_memory_factor,
        time_exponent=recomp_time_factor,
    )
    return MegEngineKeywords(budget=max(1, eviction_threshold - 1), evictor=rule, memory=Memory(mode=Mode.HINT))


def _amount(amount: int | str) -> int:
    """Bytes of an amount as MegEngine reads it."""
    if isinstance(amount, int):
        size_bytes = amount
    elif isinstance(amount, str):
        match = _AMOUNT.fullmatch(amount)
        size_bytes = int(float(match[1]) * 1024 ** " kmg".index(match[2].lower() or " ")) if match else -1
    else:
        raise TypeError(f"an amount of memory is a whole number of bytes or a text, not {amount!r}")
    if size_bytes < 0:
        raise BudgetError(
            f"{amount!r} is no amount of memory for MegEngine.",
            got=repr(amount),
            needed="a whole number of bytes of at least 0, or a text with B, KB, MB or GB",
            advice='"2GB" (1024**3 bytes each)',
            text=amount,
        )
    return size_bytes
