"""The arrays of a run that are in memory, and the engine's decisions carried out on them.

An array is dropped by letting go of it: nobody else holds what an operation has made, so its memory is free at once.
Donated arguments are held by the caller too, and are deleted. Read after `operation` and `program`.
"""

from collections.abc import Sequence
from typing import Any

from jaxckpt.dynamic.eager.operation import Operation, Operations
from jaxckpt.dynamic.eager.program import Prepared
from jaxckpt.dynamic.simulation import Event, EventKind


class Arrays:
    """Arrays in memory, by tensor; at first those of the step's constants.

    Attributes:
      live_bytes: Of all arrays here; views have none.
      peak_bytes: The most that they were.
    """

    def __init__(self, prepared: Prepared, given: dict[int, Any], operations: Operations):
        self._prepared = prepared
        self._operations = operations
        self._here = dict(given)
        self._storage = prepared.program.storage
        self._members: dict[int, list[int]] = {}
        for t, storage in enumerate(self._storage):
            self._members.setdefault(storage, []).append(t)
        donated = prepared.traced.donated
        self._owned = {t: given[t] for t, i in prepared.constants.items() if isinstance(i, int) and i in donated}
        self.live_bytes = sum(array.nbytes for array in given.values())
        self.peak_bytes = self.live_bytes

    def __getitem__(self, tensor: int) -> Any:
        return self._here[tensor]

    def carry_out(self, events: Sequence[Event]) -> tuple[float, float]:
        """Does what the engine says, in its order; seconds of all operations, and of the last one."""
        compute_s = last_s = 0.0
        for at, event in enumerate(events):
            if event.kind is EventKind.RUN:
                last_s = self._run(event.id, _taken(events, at))
                compute_s += last_s
            elif event.kind is not EventKind.TAKE:
                self._drop(event.id)
        return compute_s, last_s

    def _run(self, call: int, taken: frozenset[int]) -> float:
        operation = self._prepared.operations[call]
        repeated = self._already_in_memory(operation)
        donated = tuple(i for i, t in enumerate(operation.operands) if isinstance(t, int) and self._storage[t] in taken)
        operands = operation.operands_in(self._here)
        for storage in taken:
            self._forget(storage)
        results, seconds = self._operations.run(operation, operands, donated=donated)
        for t, result in zip(operation.writes, results, strict=True):
            self._here[t] = result
            self.live_bytes += 0 if operation.is_view else result.nbytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        for view in repeated:
            self._view(view)
        return seconds

    def _already_in_memory(self, operation: Operation) -> list[int]:
        """Drops results of an operation that are here, since it makes them again; which views of them were here."""
        views = []
        for t in () if operation.is_view else operation.writes:
            if t in self._here:
                views += [member for member in self._members[t] if member != t and member in self._here]
                self._forget(t)
        return views

    def _view(self, tensor: int) -> None:
        """Makes a view again, of what its operand is by now."""
        call = self._prepared.program.producer[tensor]
        assert call is not None, "a view is made by an operation"
        operation = self._prepared.operations[call]
        (self._here[tensor],), _ = self._operations.run(operation, operation.operands_in(self._here))

    def _drop(self, storage: int) -> None:
        owned = self._owned.pop(storage, None)
        self._forget(storage)
        if owned is not None and not any(owned is other for other in self._here.values()):
            owned.delete()

    def _forget(self, storage: int) -> None:
        self.live_bytes -= self._here[storage].nbytes if storage in self._here else 0
        for t in self._members[storage]:
            self._here.pop(t, None)


def _taken(events: Sequence[Event], at: int) -> frozenset[int]:
    """The storages whose memory the results of the run at a position take over."""
    taken = set()
    for event in events[at + 1 :]:
        if event.kind is not EventKind.TAKE:
            break
        taken.add(event.id)
    return frozenset(taken)
