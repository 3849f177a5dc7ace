"""Program of the dynamic engine: calls over tensors, in the order in which an eager framework issues them.

Nothing here knows the future or the past: a `Program` is a list of steps, each of which an eager framework would have
done one after the other. A tensor owns its storage, or is a view of another one's. `program_from_graph` makes one of a
traced step, `unit_chain` makes the chain that DTR's authors measure; `log` reads and writes them.

A price is whatever the maker counts in: seconds, nanoseconds, bytes, or one each.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from jaxckpt._errors import JaxckptError


class ProgramError(JaxckptError, ValueError):
    """A program that breaks its own rules, or a log that cannot be read.

    Example:
      >>> import pathlib, tempfile
      >>> from jaxckpt import dynamic
      >>> path = pathlib.Path(tempfile.mkdtemp(), "chain.log")
      >>> _ = path.write_text("[")
      >>> dynamic.read_log(path)
      Traceback (most recent call last):
      ...
      jaxckpt.dynamic.program.ProgramError: line 1 of the log cannot be read.
      ...
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One array that the program names.

    Attributes:
      name: For people.
      size_bytes: Of its own storage; 0 for a view.
      view_of: The tensor whose storage it shares, or None where it has its own.

    Example:
      >>> from jaxckpt import dynamic
      >>> dynamic.Tensor(name="x", size_bytes=1024).view_of is None
      True
    """

    name: str
    size_bytes: int
    view_of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operation.

    Attributes:
      name: What is computed.
      price: Of one execution.
      reads: Tensors, in operand order.
      writes: Tensors that it makes; ids that follow each other.
      once: It may never run a second time: effects, draws of random bits that are not reproducible.
      dense: Much work for each byte it writes (products, convolutions); Coop lays these out apart.
      replaces: For each written tensor the tensor that it is the new state of, or None; that one's memory may be
        taken over. Empty where nothing is replaced.

    Example:
      >>> from jaxckpt import dynamic
      >>> forward, *_, backward = dynamic.unit_chain(4).calls
      >>> forward.name, forward.reads, forward.writes, forward.price
      ('f0', (), (0,), 1)
      >>> backward.name, backward.reads, backward.writes, backward.price
      ('b0', (6,), (7,), 1)
    """

    name: str
    price: float
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    once: bool = False
    dense: bool = False
    replaces: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor is there from now on, made by nobody: parameters, inputs."""

    tensor: int
    lent: bool = True
    """The program does not own it: it is never freed. False for donated arguments, which go at their release."""


@dataclass(frozen=True, slots=True)
class RunCall:
    """A call is issued."""

    call: int


@dataclass(frozen=True, slots=True)
class Get:
    """One more name for a tensor."""

    tensor: int


@dataclass(frozen=True, slots=True)
class Release:
    """One name less; the last one says that the program will not ask for it again."""

    tensor: int


@dataclass(frozen=True, slots=True)
class Keep:
    """A result: it is there from now to the end, brought back where it was evicted."""

    tensor: int


@dataclass(frozen=True, slots=True)
class Note:
    """A remark in the log, such as where the backward pass begins."""

    text: str


Statement = Constant | RunCall | Get | Release | Keep | Note


@dataclass(frozen=True, kw_only=True)
class Program:
    """Calls over tensors, and the order of everything.

    Attributes:
      tensors: By id.
      calls: By id, in the order in which they are issued.
      statements: All that happens, in order.

    Example:
      >>> from jaxckpt import dynamic
      >>> program = dynamic.unit_chain(4)
      >>> program.validate()
      >>> len(program.calls), len(program.tensors), program.base_price
      (8, 8, 8)
    """

    tensors: tuple[Tensor, ...]
    calls: tuple[Call, ...]
    statements: tuple[Statement, ...]

    @cached_property
    def storage(self) -> tuple[int, ...]:
        """For each tensor the tensor that owns its storage."""
        owner: list[int] = []
        for i, tensor in enumerate(self.tensors):
            owner.append(i if tensor.view_of is None else owner[tensor.view_of])
        return tuple(owner)

    @cached_property
    def producer(self) -> tuple[int | None, ...]:
        """For each tensor the call that writes it; None for constants."""
        made: list[int | None] = [None] * len(self.tensors)
        for i, call in enumerate(self.calls):
            for t in call.writes:
                made[t] = i
        return tuple(made)

    @cached_property
    def base_price(self) -> float:
        """Of all calls once."""
        return sum(call.price for call in self.calls)

    def priced_by_bytes(self) -> "Program":
        """The same with each call priced at the bytes that it reads and writes, as DTE does without measuring."""
        size = [self.tensors[owner].size_bytes for owner in self.storage]
        calls = (replace(c, price=float(sum(size[t] for t in (*c.reads, *c.writes)))) for c in self.calls)
        return replace(self, calls=tuple(calls))

    @cached_property
    def constant_bytes(self) -> int:
        """Of what is there without being computed."""
        return sum(self.tensors[each.tensor].size_bytes for each in self.statements if isinstance(each, Constant))

    def validate(self) -> None:
        """Checks that everything is made before it is read, once, and that written ids follow each other.

        Raises:
          ProgramError: All broken rules at once, numbered.
        """
        problems = tuple(_problems(self))
        if problems:
            raise ProgramError(
                f"Program.validate: {len(problems)} rules are broken.",
                got="; ".join(f"({i}) {text}" for i, text in enumerate(problems[:20], 1)),
                needed="tensors made once and before they are read, calls issued in order, sizes of at least 0",
                advice="make programs with `program_from_graph` or `read_log`",
                problems=problems,
            )


def _problems(program: Program) -> list[str]:
    known, found, issued = set[int](), _tensor_problems(program.tensors), 0
    for statement in program.statements:
        match statement:
            case Constant(tensor):
                known.add(tensor)
            case RunCall(call):
                found += [f"call {call} is issued as number {issued}"] if call != issued else []
                found += _call_problems(call, program.calls[call], known)
                known.update(program.calls[call].writes)
                issued += 1
            case Get(tensor) | Release(tensor) | Keep(tensor) if tensor not in known:
                found.append(f"{type(statement).__name__} of {tensor}, which is not made yet")
    return found


def _tensor_problems(tensors: tuple[Tensor, ...]) -> list[str]:
    found = [f"tensor {i} is a view of {t.view_of}" for i, t in enumerate(tensors) if (t.view_of or 0) >= max(i, 1)]
    found += [f"tensor {i} has {t.size_bytes} bytes" for i, t in enumerate(tensors) if t.size_bytes < 0]
    return found + [f"view {i} has bytes" for i, t in enumerate(tensors) if t.view_of is not None and t.size_bytes]


def _call_problems(number: int, call: Call, known: set[int]) -> list[str]:
    found = [f"call {number} reads {t} before it is made" for t in call.reads if t not in known]
    found += [f"call {number} makes {t} again" for t in call.writes if t in known]
    if not call.writes or call.writes != tuple(range(call.writes[0], call.writes[0] + len(call.writes))):
        found.append(f"call {number} writes {call.writes}")
    return found


class ProgramWriter:
    """Collects tensors, calls and statements in the order of a program."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.calls: list[Call] = []
        self.statements: list[Statement] = []

    def tensor(self, name: str, size_bytes: int, view_of: int | None = None) -> int:
        """Adds a tensor and returns its id."""
        self.tensors.append(Tensor(name=name, size_bytes=size_bytes, view_of=view_of))
        return len(self.tensors) - 1

    def call(self, call: Call) -> None:
        """Adds a call and issues it."""
        self.calls.append(call)
        self.statements.append(RunCall(len(self.calls) - 1))

    def program(self) -> Program:
        """The program so far."""
        return Program(tensors=tuple(self.tensors), calls=tuple(self.calls), statements=tuple(self.statements))


def unit_chain(length: int, *, releases: bool = True) -> Program:
    """A chain of calls forward and its gradients backward, each of price 1 and size 1.

    The backward of the last call reads nothing; every other one reads the forward result before its own and the
    gradient after it.

    Args:
      length: Calls forward; as many again go backward.
      releases: Whether the program says what it will not ask for again.

    Returns:
      2 * `length` calls, no constants, nothing kept at the end.

    Example:
      >>> chain = unit_chain(16)
      >>> len(chain.calls), chain.base_price
      (32, 32)

    Source: Kirisame et al., Dynamic Tensor Rematerialization, ICLR 2021, section 3 and appendix A.
    """
    writer = ProgramWriter()
    gradient: tuple[int, ...] = ()
    for k in range(length):
        _unit_call(writer, f"f{k}", (k - 1,) if k else ())
    for k in reversed(range(length)):
        writer.statements += [Release(k)] if releases else []
        made = _unit_call(writer, f"b{k}", (k - 1, *gradient) if k and gradient else gradient)
        writer.statements += map(Release, gradient if releases else ())
        gradient = (made,)
    return writer.program()


def _unit_call(writer: ProgramWriter, name: str, reads: tuple[int, ...]) -> int:
    made = writer.tensor(name, 1)
    writer.call(Call(name=name, price=1, reads=reads, writes=(made,)))
    return made
