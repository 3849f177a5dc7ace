"""All that the engine knows while it runs, as records of arrays that the compiled loops share.

`Machine` is made once from a program, a rule and a memory, and changed in place by `engine`. A storage is what is
evicted; its tensors are its root and the views of it. `Links` hold, for each storage, the storages that its calls read
(`up`) and those computed from it (`down`), with the call that made the link: what has not been issued is not there yet.

Read after `program`, `evictors` and `memory`.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from jaxckpt.dynamic.evictors import Evictor
from jaxckpt.dynamic.memory import Fit, Memory, Mode
from jaxckpt.dynamic.pool import Blocks, make_blocks, records
from jaxckpt.dynamic.program import Constant, Get, Keep, Note, Program, Release, RunCall

RUN, GET, RELEASE, KEEP, CONSTANT = range(5)
"""Codes of statements."""
RUNNING, DONE, OUT_OF_MEMORY, THRASHED, LOST = range(5)
"""How it ended."""
EVENT_RUN, EVENT_EVICT, EVENT_FREE, EVENT_TAKE, EVENT_PLACE, EVENT_REFUSE = range(6)
"""Codes of events: call run, storage evicted, storage freed for good, storage's memory taken over; storage given
an address, storage refused one while so many bytes were free."""

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
        ("slot", "i4"),  # its place among the evictable, or -1
        ("node", "i4"),  # its node in the union-find, or -1
        ("block", "i4"),  # its block in the pool, or -1
        ("times", "i4"),  # how often it was recomputed
        ("tensor", "i4"),  # its first tensor in `tensors_of`
        ("tensors", "i4"),
        ("up", "i4"),
        ("ups", "i4"),
        ("down", "i4"),
        ("downs", "i4"),
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
        ("takes", "i1"),  # whether it takes that storage's memory over
    ],
    align=True,
)
CALL = np.dtype(
    [("cost", "f8"), ("arg", "i4"), ("args", "i4"), ("out", "i4"), ("outs", "i4"), ("times", "i4")], align=True
)
NOW = np.dtype(
    [
        *(
            (name, "f8")
            for name in ("clock", "first", "repeated_price", "limit", "free_share", "largest_share", "penalty")
        ),
        *((name, "f8") for name in ("nudge", "regret")),
        *((name, "i8") for name in ("budget", "memory", "peak", "stamp", "walk", "issued", "step", "evictable")),
        *((name, "i8") for name in ("runs", "forced", "eager", "banished", "taken", "searches", "looked", "search_ns")),
        *((name, "i8") for name in ("status", "needed", "failed", "seed", "nodes", "events", "recomputed")),
        *((name, "i8") for name in ("mode", "dealloc", "in_place", "cost", "own", "gain", "staleness", "search")),
        *((name, "i8") for name in ("least", "frames", "held", "waiting", "tried", "most", "drops")),
    ],
    align=True,
)
NODE = np.dtype([("parent", "i4"), ("mark", "i8"), ("value", "f8")], align=True)
FRAME = np.dtype([("tensor", "i4"), ("next", "i4"), ("phase", "i4"), ("held", "i4"), ("repeated", "i1")], align=True)


class Links(NamedTuple):
    """Neighbours of storages; `call` is the number of the call that made the link."""

    storage: Any
    call: Any


class Machine(NamedTuple):
    """The engine's memory."""

    now: Any  # one record: clock, counters, settings
    storages: Any
    tensors: Any
    calls: Any
    args: Any  # tensors that calls read
    tensors_of: Any  # tensors of storages
    steps: Any  # what a step does, and to which tensor or call
    up: Links  # what storages were computed from
    down: Links  # what was computed from storages
    pool: Any  # ids of evictable storages, in no order
    nodes: Any  # of the union-find
    frames: Any  # the stack of what is being made, each waiting for the one after it
    held: Any  # for each operand of those, whether it is locked
    walk: Any  # room for walks over evicted storages
    numbers: Any  # room for renumbering classes
    waiting: Any  # storages that were released and can be freed once nothing evicted needs them
    regen: Any  # room for DTE's planner: runs again, time and bytes to bring back
    window: Any  # room for searches: sizes and costs by address
    window_blocks: Any  # whose they are
    blocks: Blocks
    events: Any  # what happened, if there is room for it
    tick: Any  # room for the clock


class Layout(NamedTuple):
    """The part of a machine that is the same for every run of a program."""

    storages: Any
    tensors: Any
    calls: Any
    args: Any
    tensors_of: Any
    steps: Any
    up: Links
    down: Links
    storage_ids: tuple[int, ...]  # for each storage the tensor that owns it


_CODES = {RunCall: RUN, Get: GET, Release: RELEASE, Keep: KEEP, Constant: CONSTANT}


def layout(program: Program) -> Layout:
    """The program as arrays."""
    roots = tuple(dict.fromkeys(program.storage))
    number = {root: i for i, root in enumerate(roots)}
    storage_of = [number[root] for root in program.storage]
    storages, tensors = _storages(program, roots), _tensors(program, storage_of)
    calls, args = _calls(program)
    members: list[list[int]] = [[] for _ in roots]
    for t, s in enumerate(storage_of):
        members[s].append(t)
    storages["tensor"], storages["tensors"], tensors_of = _joined(members)
    ups, downs = _links(program, storage_of, len(roots))
    storages["up"], storages["ups"], up = _joined(ups)
    storages["down"], storages["downs"], down = _joined(downs)
    steps = [
        (_CODES[type(step)], step.call if isinstance(step, RunCall) else step.tensor)
        for step in program.steps
        if not isinstance(step, Note)
    ]
    return Layout(
        storages=storages,
        tensors=tensors,
        calls=calls,
        args=args,
        tensors_of=tensors_of,
        steps=np.array(steps, dtype=np.int32).reshape(-1, 2),
        up=Links(*_pairs(up)),
        down=Links(*_pairs(down)),
        storage_ids=roots,
    )


def _storages(program: Program, roots: tuple[int, ...]) -> Any:
    storages = records(len(roots), STORAGE)
    storages["bytes"] = [program.tensors[t].size_bytes for t in roots]
    for name in ("slot", "node", "block"):
        storages[name] = -1
    storages["last"] = -np.inf
    made = [program.producer[t] for t in roots]
    lent = {step.tensor for step in program.steps if isinstance(step, Constant) and step.lent}
    storages["lent"] = [t in lent for t in roots]
    storages["dense"] = [c is not None and program.calls[c].dense for c in made]
    fixed = {program.storage[t] for call in program.calls if call.once for t in call.writes}
    storages["fixed"] = [c is None or t in fixed for t, c in zip(roots, made, strict=True)]
    storages["dirty"] = 1
    return storages


def _tensors(program: Program, storage_of: list[int]) -> Any:
    tensors = records(len(program.tensors), TENSOR)
    tensors["storage"] = storage_of
    tensors["call"] = [-1 if c is None else c for c in program.producer]
    tensors["shared"] = [t.view_of is not None for t in program.tensors]
    tensors["replaces"] = -1
    for call in program.calls:
        for t, old in zip(call.writes, call.replaces, strict=False):
            tensors[t]["replaces"] = -1 if old is None else storage_of[old]
    return tensors


def _calls(program: Program) -> tuple[Any, Any]:
    calls = records(len(program.calls), CALL)
    calls["cost"] = [c.price for c in program.calls]
    calls["arg"], calls["args"], args = _joined([list(c.reads) for c in program.calls])
    calls["out"] = [c.writes[0] for c in program.calls]
    calls["outs"] = [len(c.writes) for c in program.calls]
    return calls, np.array(args, dtype=np.int32)


def _joined(groups: list[list[Any]]) -> tuple[list[int], list[int], list[Any]]:
    """Where each group begins, how long it is, and all groups one after the other."""
    lengths = [len(group) for group in groups]
    return [0, *accumulate(lengths)][: len(groups)], lengths, [x for group in groups for x in group]


def _links(program: Program, storage_of: list[int], count: int) -> tuple[list[list[Any]], list[list[Any]]]:
    ups: list[dict[int, int]] = [{} for _ in range(count)]
    downs: list[dict[int, int]] = [{} for _ in range(count)]
    for i, call in enumerate(program.calls):
        sources = {storage_of[t] for t in call.reads}
        for s in dict.fromkeys(storage_of[t] for t in call.writes):
            for source in sources - {s}:
                ups[s].setdefault(source, i)
                downs[source].setdefault(s, i)
    return [list(link.items()) for link in ups], [list(link.items()) for link in downs]


def _pairs(links: list[tuple[int, int]]) -> tuple[Any, Any]:
    pairs = np.array(links, dtype=np.int32).reshape(-1, 2)
    return pairs[:, 0].copy(), pairs[:, 1].copy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """All that a run needs besides its program; see `simulate` for the words.

    Attributes:
      budget: Bytes; None for no limit.
      limit: The price of recomputations at which a run is given up.
      most: Their number at which it is.
    """

    budget: int | None
    rule: Evictor
    memory: Memory
    limit: float = np.inf
    most: int = 2**62
    seed: int = 0
    record: bool = False


def machine_of(parts: Layout, task: Task, *, record: int = 0) -> Machine:
    """A machine before its first step, with room for so many events."""
    memory = task.memory
    storages, total = parts.storages.copy(), int(parts.storages["bytes"].sum())
    count = len(storages)
    storages["bytes"] = -(-storages["bytes"] // memory.alignment) * memory.alignment
    budget = task.budget or max(1, 2 * int(storages["bytes"].sum()) + memory.small_bytes * memory.small_slots)
    addressed = memory.mode in (Mode.HINT, Mode.HARD)
    capacity = max(budget, memory.capacity or 2 * total) if memory.mode is Mode.HINT else budget
    zone = memory.small_bytes * memory.small_slots if addressed else 0
    zone = 0 if zone > capacity // 16 else zone
    small = memory.small_bytes if zone else 0
    blocks = make_blocks(
        capacity, most=count, groups=memory.groups, zone=zone, small=small, first=memory.fit is Fit.FIRST
    )
    return Machine(
        now=_now(task, budget, small=small),
        storages=storages,
        tensors=parts.tensors.copy(),
        calls=parts.calls.copy(),
        args=parts.args,
        tensors_of=np.array(parts.tensors_of, dtype=np.int32),
        steps=parts.steps,
        up=parts.up,
        down=parts.down,
        pool=np.zeros(count, dtype=np.int32),
        nodes=records(2 * count + 8, NODE),
        frames=records(len(parts.tensors) + 1, FRAME),
        held=np.zeros(len(parts.args) + 1, dtype=np.int8),
        walk=np.zeros(count + 1, dtype=np.int32),
        numbers=np.zeros(count + 1, dtype=np.int32),
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
        "limit": task.limit,
        "most": task.most,
        "penalty": rule.repeated,
        "nudge": rule.nudge,
        "budget": budget,
        "seed": task.seed + 1,
        "mode": memory.mode,
        "dealloc": memory.dealloc,
        "in_place": memory.in_place,
        "drops": memory.drops_again,
        "cost": rule.cost,
        "own": rule.own,
        "gain": rule.size,
        "staleness": rule.staleness,
        "search": rule.search,
        "least": max(rule.least_bytes, small + 1 if small else 0),
    }
    for name, value in settings.items():
        now[name] = value
    return now
