"""The rules by which values are evicted, as data: what a value costs to bring back, over its size and its staleness.

All of them evict what has the least `cost / (size * staleness)`; they differ in what counts as cost and as size, and
in how they look: over all values, over a sample, or over windows of neighbouring addresses. The functions behind the
words are in `score` (costs, sizes) and `search` (how the least is found).

Sources: Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021 (`dtr`, `dtr_eq`, `local`, `msps`, `lru`, `size`,
`random` and the ablation grid); Hu et al., MegTaiChi, ICS 2022 (`dte`, `dte_static`); Zhang et al., Coop, NeurIPS 2023
(`coop`, and `dtr_oneflow` and `dte_oneflow`, with which its authors compare it: Coop's costs, over the sizes of DTR and
of DTE). `coop_by_byte` is ours: Coop's windows, the cheapest by the byte that it frees, over DTR's classes.
"""

import enum
from dataclasses import dataclass, replace

from jaxckpt._errors import JaxckptError


class UnknownEvictorError(JaxckptError, LookupError):
    """An `evictor=` that names no rule.

    Example:
      >>> from jaxckpt import dynamic
      >>> dynamic.evictor("nosuch")
      Traceback (most recent call last):
      ...
      jaxckpt.dynamic.evictors.UnknownEvictorError: evictor='nosuch' names no rule.
      ...
    """


DTE_CLOCK_BYTES = 1e8
"""DTE's clock goes on by one for so many bytes that calls read and write."""


class Cost(enum.IntEnum):
    """Cost of recomputing an evicted value.

    Example:
      >>> from jaxckpt import dynamic
      >>> [each.name for each in dynamic.Cost]
      ['NONE', 'LOCAL', 'ANCESTORS', 'EXACT', 'CLASSES', 'NEIGHBOURS', 'REGENERATION']
    """

    NONE = 0
    """One for every value."""
    LOCAL = 1
    """c(t): its own call."""
    ANCESTORS = 2
    """c(t) and all evicted calls that must run before it."""
    EXACT = 3
    """c(t) and its evicted neighbourhood e*(t): evicted ancestors, and evicted descendants."""
    CLASSES = 4
    """c(t) and the union-find classes of evicted values that touch it: e*(t), nearly, in nearly constant time."""
    NEIGHBOURS = 5
    """Each evicted neighbour at its own cost or its class's, whichever is more; two of a class count twice."""
    REGENERATION = 6
    """DTE's static planner: times that it runs again and what each takes, times bytes; needs the entire graph."""


class Size(enum.IntEnum):
    """Bytes gained by evicting a value.

    Example:
      >>> from jaxckpt import dynamic
      >>> [each.name for each in dynamic.Size]
      ['ONE', 'BYTES', 'WITH_FREE_NEIGHBOURS']
    """

    ONE = 0
    """Size does not matter, or the search sums sizes itself."""
    BYTES = 1
    """m(t)."""
    WITH_FREE_NEIGHBOURS = 2
    """m(t) and the free bytes on both its sides."""


class Staleness(enum.IntEnum):
    """How little it is needed.

    Example:
      >>> from jaxckpt import dynamic
      >>> [each.name for each in dynamic.Staleness]
      ['ONE', 'PAST', 'FUTURE']
    """

    ONE = 0
    """Does not matter."""
    PAST = 1
    """Clock since its last access."""
    FUTURE = 2
    """Calls until its next use; only a planner that has the whole program knows it."""


class Search(enum.IntEnum):
    """Where the least is looked for.

    Example:
      >>> from jaxckpt import dynamic
      >>> [each.name for each in dynamic.Search]
      ['ALL', 'SAMPLE', 'RANDOM', 'WINDOW']
    """

    ALL = 0
    """Every value that may go."""
    SAMPLE = 1
    """About the square root of them, at random strides."""
    RANDOM = 2
    """One at random."""
    WINDOW = 3
    """Runs of neighbouring addresses as large as what is needed; with `Size.BYTES` the cheapest by the byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictor:
    """A rule of eviction.

    Attributes:
      name: Of the rule.
      cost: What it costs to bring a value back.
      includes_own: True if the value's own call is in that cost.
      size: What is gained.
      staleness: How little it is needed.
      search: Where the least is looked for.
      repeat_factor: Factor for every time that the value was recomputed already.
      offset: Added to cost and staleness, so that neither is 0.
      by_bytes: True if calls are priced at the bytes that they move instead of the program's prices; staleness then
        counts in units of `DTE_CLOCK_BYTES`.
      least_bytes: Smaller storages are never evicted, except when released.
      time_exponent: Of the time in `Cost.REGENERATION`; DTE's `recomp_time_factor`.
      memory_exponent: Of the bytes in `Cost.REGENERATION`; DTE's `recomp_memory_factor`.

    Example:
      >>> evictor("dtr").cost.name, evictor("coop").search.name, len(ablations())
      ('EXACT', 'WINDOW', 16)
    """

    name: str
    cost: Cost = Cost.EXACT
    includes_own: bool = True
    size: Size = Size.BYTES
    staleness: Staleness = Staleness.PAST
    search: Search = Search.ALL
    repeat_factor: float = 1.0
    offset: float = 0.0
    by_bytes: bool = False
    least_bytes: int = 0
    time_exponent: float = 1.0
    memory_exponent: float = 1.0


_DTE = Evictor(
    name="dte",
    cost=Cost.NEIGHBOURS,
    includes_own=False,
    size=Size.WITH_FREE_NEIGHBOURS,
    repeat_factor=1.0001,
    offset=1e-3,
    by_bytes=True,
)
EVICTORS = {
    rule.name: rule
    for rule in (
        Evictor(name="random", cost=Cost.NONE, size=Size.ONE, staleness=Staleness.ONE, search=Search.RANDOM),
        Evictor(name="size", cost=Cost.NONE, staleness=Staleness.ONE),
        Evictor(name="lru", cost=Cost.NONE, size=Size.ONE),
        Evictor(name="msps", cost=Cost.ANCESTORS, staleness=Staleness.ONE),
        Evictor(name="local", cost=Cost.LOCAL),
        Evictor(name="dtr"),
        Evictor(name="dtr_eq", cost=Cost.CLASSES),
        _DTE,
        Evictor(name="dte_static", cost=Cost.REGENERATION, staleness=Staleness.FUTURE, by_bytes=True),
        Evictor(name="dtr_oneflow", cost=Cost.NEIGHBOURS),
        Evictor(name="dte_oneflow", cost=Cost.NEIGHBOURS, size=Size.WITH_FREE_NEIGHBOURS),
        Evictor(name="coop", cost=Cost.NEIGHBOURS, size=Size.ONE, search=Search.WINDOW),
        Evictor(name="coop_by_byte", cost=Cost.CLASSES, size=Size.BYTES, search=Search.WINDOW),
    )
}
"""The published rules of eviction, by name.

Example:
  >>> from jaxckpt import dynamic
  >>> sorted(dynamic.EVICTORS)[:3]
  ['coop', 'coop_by_byte', 'dte']
  >>> dynamic.EVICTORS["coop"].search.name
  'WINDOW'
"""


def evictor(name: str | Evictor) -> Evictor:
    """The rule of a name; a rule stays as it is.

    Raises:
      UnknownEvictorError: There is no rule of this name.

    Example:
      >>> from jaxckpt import dynamic
      >>> dynamic.evictor("dtr").cost
      <Cost.EXACT: 3>
    """
    if isinstance(name, Evictor):
        return name
    if name not in EVICTORS:
        raise UnknownEvictorError(
            f"evictor={name!r} names no rule.",
            got=repr(name),
            needed=f"one of {', '.join(sorted(EVICTORS))}, or an Evictor",
            advice='evictor="coop"',
            name=name,
        )
    return EVICTORS[name]


def rule_as_run(name: str) -> Evictor:
    """The evictor of a name, with the program's own prices.

    For "dtr" it is the union-find approximation "dtr_eq", which is what we simulate.
    """
    return replace(evictor("dtr_eq" if name == "dtr" else name), by_bytes=False)


def sampled(rule: str | Evictor) -> Evictor:
    """The same rule over about the square root of the candidates, drawn anew at each search.

    Example:
      >>> sampled("dtr_eq").name
      'dtr_eq_sampled'
    """
    rule = evictor(rule)
    return replace(rule, name=f"{rule.name}_sampled", search=Search.SAMPLE)


def ablations() -> tuple[Evictor, ...]:
    """The 16 rules of DTR's ablation: what counts as cost, whether size counts, whether staleness counts.

    Returns:
      From cost e* with both to no cost with neither, which evicts at random.

    Example:
      >>> from jaxckpt import dynamic
      >>> len(list(dynamic.ablations())), next(iter(dynamic.ablations())).name
      (16, 'exact+size+stale')
    """
    words = {Cost.EXACT: "exact", Cost.CLASSES: "classes", Cost.LOCAL: "local", Cost.NONE: "none"}
    rules = []
    for cost, word in words.items():
        for size in (Size.BYTES, Size.ONE):
            for stale in (Staleness.PAST, Staleness.ONE):
                name = f"{word}{'+size' * (size is Size.BYTES)}{'+stale' * (stale is Staleness.PAST)}"
                search = Search.RANDOM if name == "none" else Search.ALL
                rules.append(Evictor(name=name, cost=cost, size=size, staleness=stale, search=search))
    return tuple(rules)
