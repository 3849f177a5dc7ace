"""Several training steps as one program: what a step leaves as its state is what the next one begins with.

One step says little about memory with addresses. Parameters lie where they were first put, side by side; only when
they are updated do they move, and what stays for good then lies between what comes and goes. Read after `program`.
"""

from collections.abc import Mapping
from dataclasses import replace

from jaxckpt.dynamic.program import Call, Constant, Keep, Note, Program, Release, RunCall, Statement, Tensor
from jaxckpt.ir import Graph


def state_of(graph: Graph) -> dict[int, int]:
    """For each donated argument the result that takes its place: the first of its type that no other one took.

    That is how `jax.jit` pairs them. Arguments that find none are left out.
    """
    waiting: dict[str, list[int]] = {}
    for v in dict.fromkeys(graph.outputs):
        waiting.setdefault(str(graph.values[v]), []).append(v)
    found = {}
    for v in (v for v in graph.inputs if v in graph.donated):
        same = waiting.get(str(graph.values[v]), [])
        if same:
            found[v] = same.pop(0)
    return found


def trained(program: Program, *, steps: int, state: Mapping[int, int]) -> Program:
    """A program repeated, each repetition beginning with the state that the one before has left.

    `state` maps each constant that is updated to the kept tensor that is its new state. Results that are no state are
    dropped after each step but the last; constants that are no state are the same at each step.
    """
    return _Repeated(program, steps, state).program()


class _Repeated:
    """Collects what each step adds."""

    def __init__(self, one: Program, times: int, state: Mapping[int, int]):
        self.one = one
        self.times = times
        self.state = state
        self.constants = {step.tensor for step in one.steps if isinstance(step, Constant)}
        self.updated = {old for old, new in state.items() if old != new}
        self.tensors: list[Tensor] = []

    def program(self) -> Program:
        one, steps, calls = self.one, list[Statement](), list[Call]()
        ids: dict[int, int] = {}
        for time in range(self.times):
            ids = self._ids(ids)
            steps += self._steps(ids, len(calls), first=time == 0, last=time == self.times - 1)
            calls += [
                replace(
                    call,
                    reads=tuple(ids[t] for t in call.reads),
                    writes=tuple(ids[t] for t in call.writes),
                    replaces=tuple(None if t is None else ids[t] for t in call.replaces),
                )
                for call in one.calls
            ]
        return Program(tensors=tuple(self.tensors), calls=tuple(calls), steps=tuple(steps))

    def _ids(self, before: Mapping[int, int]) -> dict[int, int]:
        """The tensors of a step: constants are those of the step before, or what became of them."""
        ids: dict[int, int] = {}
        for t, tensor in enumerate(self.one.tensors):
            if before and t in self.constants:
                ids[t] = before[self.state.get(t, t)]
                continue
            ids[t] = len(self.tensors)
            view_of = None if tensor.view_of is None else ids[tensor.view_of]
            self.tensors.append(replace(tensor, view_of=view_of))
        return ids

    def _steps(self, ids: Mapping[int, int], calls: int, *, first: bool, last: bool) -> list[Statement]:
        found: list[Statement] = []
        passed_on = set(self.state.values()) | self.constants
        for step in self.one.steps:
            match step:
                case RunCall(call):
                    found.append(RunCall(call + calls))
                case Note():
                    found.append(step)
                case Constant(tensor, lent):
                    found += [Constant(ids[tensor], lent)] if first else []
                case Keep(tensor) if not last:
                    found += [] if tensor in passed_on else [Release(ids[tensor])]
                case Release(tensor) if tensor in self.constants and tensor not in self.updated and not last:
                    continue  # it is read again in the next step
                case _:
                    found.append(replace(step, tensor=ids[step.tensor]))
        return found
