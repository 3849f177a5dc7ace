"""All that the engine knows while it runs, as records of arrays that the compiled loops share.

`Machine` is made once from a program, a rule and a memory, and changed in place by `engine`. A storage is what is
evicted; its tensors are its root and the views of it. `near` holds for each storage those that its calls read, from
`up` on, and those computed from it, from `down` on, each in the order of the calls that link them: of these the first
`ups` and `downs` are links of calls that were issued, and all that anybody may look at.

Read after `program`, `evictors` and `memory`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from jaxckpt.dynamic.evictors import DTE_CLOCK_BYTES, Evictor
from jaxckpt.dynamic.memory import Fit, Memory, Mode
from jaxckpt.dynamic.pool import Blocks, make_blocks, records
from jaxckpt.dynamic.program import Constant, Get, Keep, Note, Program, Release, RunCall

RUN, GET, RELEASE, KEEP, CONSTANT = range(5)
"""Codes of statements."""
RUNNING, DONE, OUT_OF_MEMORY, THRASHED, LOST = range(5)
"""How it ended; all but the first in the order of `Status`."""
EVENT_RUN, EVENT_EVICT, EVENT_FREE, EVENT_TAKE, EVENT_PLACE, EVENT_REFUSE = range(6)
"""Codes of events, the first ones in the order of `EventKind`: call run, storage evicted, storage freed for good,
storage's memory taken over; storage given an address, storage refused one while so many bytes were free."""

STORAGE = np.dtype(
    [
        ("bytes", "i8"),
        ("cost", "f8"),  # of the calls issued so far that made its tensors
        ("last", "f8"),  # clock of its last access
        ("memo", "f8"),  # cost of its evicted neighbourhood, if not dirty
        ("stamp", "i8"),  # when it last became evictable
        ("mark", "i8"),  # of the last walk that came by
        ("refs", "i4"),
        ("locks", "i4"),
        ("slot", "i4"),  # its place among the candidates, or -1
        ("class_", "i4"),  # its class of evicted storages, or -1
        ("next", "i4"),  # the next member of its class, in a ring
        ("before", "i4"),
        ("block", "i4"),  # its block in the pool, or -1
        ("times", "i4"),  # how often it was recomputed
        ("root", "i4"),  # the tensor that owns it
        ("tensor", "i4"),  # its first tensor in `tensors_of`
        ("tensors", "i4"),
        ("up", "i4"),
        ("ups", "i4"),
        ("all_ups", "i4"),  # with those of calls that were not issued
        ("down", "i4"),
        ("downs", "i4"),
        ("all_downs", "i4"),
        ("material", "i1"),
        ("fixed", "i1"),  # never evicted: a constant, or of a call that may run only once
        ("lent", "i1"),  # never freed
        ("pinned", "i1"),  # stays: a result, or nothing is there any more to bring it back
        ("kept", "i1"),  # a result
        ("gone", "i1"),  # freed for good
        ("dirty", "i1"),
        ("dense", "i1"),
        ("waits", "i1"),
    ],
    align=True,
)
TENSOR = np.dtype(
    [
        ("storage", "i4"),
        ("call", "i4"),
        ("replaces", "i4"),  # the storage whose new state it is, or -1
        ("defined", "i1"),
        ("shared", "i1"),  # a view
        ("first", "i1"),  # the first result of its call that lies in its storage
        ("takes", "i1"),  # whether it takes that storage's memory over
    ],
    align=True,
)
CALL = np.dtype(
    [("cost", "f8"), ("arg", "i4"), ("args", "i4"), ("out", "i4"), ("outs", "i4"), ("times", "i4")], align=True
)
COUNTERS = (
    *("base_price", "recompute_price", "recomputations", "forced_evictions", "eager_evictions", "banished"),
    *("taken_over", "peak_bytes", "searches", "looked_at", "refused"),
)
"""Fields of `Simulation` that the engine counts."""
NOW = np.dtype(
    [
        *((name, "f8") for name in ("clock", "most_recompute_price", "free_share", "largest_free_share")),
        *((name, "f8") for name in ("repeat_factor", "offset")),
        *((name, "f8") for name in ("clock_unit", "time_exponent", "memory_exponent")),
        *((name, "f8" if name.endswith("price") else "i8") for name in COUNTERS),
        *((name, "i8") for name in ("budget", "memory", "stamp", "walk", "issued", "statement", "candidate_count")),
        *(
            (name, "i8")
            for name in ("runs", "search_ns", "status", "needed", "failed", "seed", "class_count", "events")
        ),
        *(
            (name, "i8")
            for name in ("mode", "dealloc", "in_place", "cost", "includes_own", "gain", "staleness", "search")
        ),
        *(
            (name, "i8")
            for name in ("least_bytes", "frames", "held", "waiting", "tried", "most_recomputations", "drops_recomputed")
        ),
    ],
    align=True,
)
"""One record: clock, counters, settings."""
CLASS = np.dtype([("mark", "i8"), ("value", "f8"), ("members", "i4"), ("spare", "i4")], align=True)
"""A class of evicted storages; `spare` holds, apart from that, numbers that no class has."""
FRAME = np.dtype([("tensor", "i4"), ("next", "i4"), ("held", "i4"), ("repeated", "i1")], align=True)


class Machine(NamedTuple):
    """The engine's memory."""

    now: Any  # one record
    storages: Any
    tensors: Any
    calls: Any
    args: Any  # tensors that calls read
    tensors_of: Any  # tensors of storages
    statements: Any  # what a statement does, and to which tensor or call
    near: Any  # storages that others were computed from, or that were computed from them
    near_call: Any  # the call that made the link
    candidates: Any  # ids of storages that may be evicted, in no order
    classes: Any  # of evicted storages
    frames: Any  # the stack of what is being made, each waiting for the one after it
    held: Any  # for each operand of those, whether it is locked
    walk: Any  # scratch space of walks over evicted storages
    waiting: Any  # storages that were released and can be freed once nothing evicted needs them
    regen: Any  # scratch space of DTE's planner: runs again, time and bytes to bring back
    window: Any  # scratch space of searches: sizes and costs by address
    window_blocks: Any  # scratch space of searches: the blocks of `window`, in the same order
    blocks: Blocks
    events: Any  # what happened, as far as there is space
    tick: Any  # scratch space of the clock


_CODES = {RunCall: RUN, Get: GET, Release: RELEASE, Keep: KEEP, Constant: CONSTANT}


def layout(program: Program) -> dict[str, Any]:
    """The arrays of a machine that are the same at the start of every run of a program."""
    roots = tuple(dict.fromkeys(program.storage))
    number = {root: i for i, root in enumerate(roots)}
    storage_of = np.array([number[root] for root in program.storage], dtype=np.int32)
    tensors = _tensors(program, storage_of)
    storages = _storages(program, np.array(roots, dtype=np.int32), tensors)
    tensors_of, storages["tensor"], storages["tensors"] = _grouped(storage_of, len(roots))
    calls = records(len(program.calls), CALL)
    calls[:] = [(c.price, 0, len(c.reads), c.writes[0], len(c.writes), 0) for c in program.calls]
    calls["arg"] = np.cumsum(calls["args"]) - calls["args"]
    links = _links(program, storage_of.tolist())
    upward, storages["up"], storages["all_ups"] = _grouped(links[:, 0], len(roots))
    downward, storages["down"], storages["all_downs"] = _grouped(links[:, 1], len(roots))
    storages["down"] += len(links)
    statements = [
        (_CODES[type(each)], each.call if isinstance(each, RunCall) else each.tensor)
        for each in program.statements
        if not isinstance(each, Note)
    ]
    return {
        "storages": storages,
        "tensors": tensors,
        "calls": calls,
        "args": np.array([t for call in program.calls for t in call.reads], dtype=np.int32),
        "tensors_of": tensors_of,
        "statements": np.array(statements, dtype=np.int32).reshape(-1, 2),
        "near": np.concatenate([links[upward, 1], links[downward, 0]]),
        "near_call": np.concatenate([links[upward, 2], links[downward, 2]]),
    }


def _storages(program: Program, roots: Any, tensors: Any) -> Any:
    storages = records(len(roots), STORAGE)
    storages["root"] = roots
    storages["bytes"] = [program.tensors[t].size_bytes for t in roots]
    for name in ("slot", "class_", "block"):
        storages[name] = -1
    storages["last"] = -np.inf
    storages["dirty"] = 1
    storages["lent"] = np.isin(roots, [s.tensor for s in program.statements if isinstance(s, Constant) and s.lent])
    dense, once = np.array([*((c.dense, c.once) for c in program.calls), (False, False)]).T  # the last: of constants
    storages["dense"] = dense[tensors["call"][roots]]
    storages["fixed"] = tensors["call"][roots] < 0
    storages["fixed"][tensors["storage"][once[tensors["call"]]]] = 1
    return storages


def _tensors(program: Program, storage_of: Any) -> Any:
    tensors = records(len(program.tensors), TENSOR)
    tensors["storage"] = storage_of
    tensors["call"] = [-1 if c is None else c for c in program.producer]
    tensors["shared"] = [t.view_of is not None for t in program.tensors]
    storage_and_call = tensors["storage"].astype(np.int64) * (len(program.calls) + 1) + tensors["call"] + 1
    _, first = np.unique(storage_and_call, return_index=True)
    tensors["first"][first] = 1
    tensors["replaces"] = -1
    for call in program.calls:
        for t, old in zip(call.writes, call.replaces, strict=False):
            tensors[t]["replaces"] = -1 if old is None else storage_of[old]
    return tensors


def _links(program: Program, storage_of: list[int]) -> Any:
    """Rows of a storage, one that it is computed from, and the first call that does so, in the order of calls."""
    links: dict[tuple[int, int], int] = {}
    for i, call in enumerate(program.calls):
        sources = {storage_of[t] for t in call.reads}
        for s in dict.fromkeys(storage_of[t] for t in call.writes):
            for source in sources - {s}:
                links.setdefault((s, source), i)
    return np.array([(*link, i) for link, i in links.items()], dtype=np.int32).reshape(-1, 3)


def _grouped(keys: Any, count: int) -> tuple[Any, Any, Any]:
    """Places of equal keys side by side, and for each key where its group begins and how long it is."""
    lengths = np.bincount(keys, minlength=count)
    return np.argsort(keys, kind="stable").astype(np.int32), np.cumsum(lengths) - lengths, lengths


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """All that a run needs besides its program; see `simulate` for the words.

    Attributes:
      budget: Bytes; None for no limit.
      most_recompute_price: The price of recomputations at which a run is given up.
      most_recomputations: Their number at which it is.

    Example:
      >>> from jaxckpt import dynamic
      >>> task = dynamic.Task(budget=8, rule=dynamic.evictor("dtr"), memory=dynamic.Memory())
      >>> online = dynamic.Online(dynamic.unit_chain(16), task)
      >>> calls = list(online)  # the events of each call
      >>> online.status.name
      'OK'
    """

    budget: int | None
    rule: Evictor
    memory: Memory
    most_recompute_price: float = np.inf
    most_recomputations: int = 2**62
    seed: int = 0
    record: bool = False


def machine_of(parts: Mapping[str, Any], task: Task, *, record: int = 0) -> Machine:
    """A machine before its first statement, with space for so many events; `parts` is a program's `layout`."""
    memory, storages = task.memory, parts["storages"].copy()
    storages["bytes"] = -(-storages["bytes"] // memory.alignment) * memory.alignment
    count, total = len(storages), int(storages["bytes"].sum())
    budget = task.budget or max(1, 2 * total + memory.small_bytes * memory.small_slots)
    addressed = memory.mode in (Mode.HINT, Mode.HARD)
    capacity = max(budget, memory.capacity or 2 * total) if memory.mode is Mode.HINT else budget
    zone = memory.small_bytes * memory.small_slots if addressed else 0
    zone = 0 if zone > capacity // 16 else zone
    small = memory.small_bytes if zone else 0
    classes = records(count, CLASS)
    classes["spare"] = range(count)
    blocks = make_blocks(
        capacity, most=count, groups=memory.groups, zone=zone, small=small, first=memory.fit is Fit.FIRST
    )
    changed = {"storages": storages, "tensors": parts["tensors"].copy(), "calls": parts["calls"].copy()}
    return Machine(
        **{**parts, **changed},
        now=_now(task, budget, small=small),
        candidates=np.zeros(count, dtype=np.int32),
        classes=classes,
        frames=records(len(parts["tensors"]) + 1, FRAME),
        held=np.zeros(len(parts["args"]) + 1, dtype=np.int8),
        walk=np.zeros(count + 1, dtype=np.int32),
        waiting=np.zeros(count + 1, dtype=np.int32),
        regen=np.zeros((3, count), dtype=np.float64),
        window=np.zeros((2, 2 * count + 3), dtype=np.float64),
        window_blocks=np.zeros(2 * count + 3, dtype=np.int32),
        blocks=blocks,
        events=np.zeros((record, 3), dtype=np.int64),
        tick=np.zeros(2, dtype=np.int64),
    )


def _now(task: Task, budget: int, *, small: int) -> Any:
    rule, memory = task.rule, task.memory
    now = records(1, NOW)
    settings = {
        "tried": -1,
        "clock": 1.0,  # what was never read is then staler than what was read at once
        "most_recompute_price": task.most_recompute_price,
        "most_recomputations": task.most_recomputations,
        "repeat_factor": rule.repeat_factor,
        "offset": rule.offset,
        "clock_unit": DTE_CLOCK_BYTES if rule.by_bytes else 1.0,
        "time_exponent": rule.time_exponent,
        "memory_exponent": rule.memory_exponent,
        "budget": budget,
        "seed": task.seed + 1,
        "mode": memory.mode,
        "dealloc": memory.dealloc,
        "in_place": memory.in_place,
        "drops_recomputed": memory.drops_recomputed,
        "cost": rule.cost,
        "includes_own": rule.includes_own,
        "gain": rule.size,  # numpy's records have a `size` of their own
        "staleness": rule.staleness,
        "search": rule.search,
        "least_bytes": max(rule.least_bytes, small + 1 if small else 0),
    }
    for name, value in settings.items():
        now[name] = value
    return now
