"""Several training steps as one program: what a step leaves as its state is what the next one begins with.

One step says little about memory with addresses. Parameters lie where they were first put, side by side; only when
they are updated do they move, and what stays for good then lies between what comes and goes. Read after `program`.
"""

from collections.abc import Mapping
from dataclasses import replace

from jaxckpt.dynamic.program import Constant, Keep, Note, Program, ProgramWriter, Release, RunCall, Statement
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
    repeated = _Repeated(program, state)
    for number in range(1, steps + 1):
        repeated.add(last=number == steps)
    return repeated.program()


class _Repeated(ProgramWriter):
    def __init__(self, one: Program, state: Mapping[int, int]):
        super().__init__()
        self.one = one
        self.state = state
        self.constants = {step.tensor for step in one.steps if isinstance(step, Constant)}
        self.passed_on = self.constants | set(state.values())
        self.unchanged = self.constants - {old for old, new in state.items() if old != new}
        self.ids: dict[int, int] = {}

    def add(self, *, last: bool) -> None:
        """Adds a step, whose constants are those of the step before, or what became of them."""
        before, self.ids = self.ids, {}
        for t, tensor in enumerate(self.one.tensors):
            if before and t in self.constants:
                self.ids[t] = before[self.state.get(t, t)]
            else:
                view_of = None if tensor.view_of is None else self.ids[tensor.view_of]
                self.ids[t] = self.tensor(tensor.name, tensor.size_bytes, view_of)
        for step in self.one.steps:
            if not (before and isinstance(step, Constant)):
                self._add_step(step, last=last)

    def _add_step(self, step: Statement, *, last: bool) -> None:
        match step:
            case RunCall(number):
                call, ids = self.one.calls[number], self.ids
                replaces = tuple(None if t is None else ids[t] for t in call.replaces)
                reads, writes = (tuple(ids[t] for t in tensors) for tensors in (call.reads, call.writes))
                self.call(replace(call, reads=reads, writes=writes, replaces=replaces))
            case Note():
                self.steps.append(step)
            case Keep(tensor) if not last:
                self.steps += [] if tensor in self.passed_on else [Release(self.ids[tensor])]
            case Release(tensor) if tensor in self.unchanged and not last:
                pass  # it is read again in the next step
            case _:
                self.steps.append(replace(step, tensor=self.ids[step.tensor]))
