"""Origins of instructions in the user's program, parsed from XLA's op names.

`jit(step)/transpose(jvp(GPT))/block_3/qkv/dot_general` is the backward of the matrix product in the scope
GPT/block_3/qkv. The text is JAX's name stack and the primitive; names of jitted functions and of the bodies of loops
are in the text too and are no scopes. `jaxckpt.ir.scope` explains marks.
"""

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxckpt.hlo.memory import Part
from jaxckpt.ir.scope import JVP, TRANSPOSE, Marks, is_recomputed, path_of_marks

_WRAPPED = re.compile(r"([A-Za-z_0-9]+)\((.*)\)", re.DOTALL)
_FUNCTIONS = frozenset({"jit", "pjit", "xla_call"})
_LOOPS = frozenset({("while", "body"), ("while", "cond"), ("cond", "branch_0_fun"), ("cond", "branch_1_fun")})


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where an instruction came from; its primitive is "" where nothing is said. Marks are outermost first."""

    scope: str = ""
    op: str = ""
    marks: Marks = ()

    def part(self, depth: int = 0) -> Part | None:
        """The part of the step, by the outermost mark; None where there is none.

        `depth` marks of differentiation stand around everything (see `mark_depth`).
        """
        if is_recomputed(self.marks):
            return Part.RECOMPUTE
        marks = [mark for mark in self.marks if mark in (JVP, TRANSPOSE)][depth:]
        if not marks:
            return None
        return Part.BACKWARD if marks[0] == TRANSPOSE else Part.FORWARD


@functools.lru_cache(maxsize=65536)
def origin_of(op_name: str) -> Origin:
    """Reads an op name.

    Example:
      >>> origin = origin_of("jit(step)/transpose(jvp(GPT))/block_3/qkv/dot_general")
      >>> origin.scope, origin.op, str(origin.part())
      ('GPT/block_3/qkv', 'dot_general', 'backward')
    """
    *around, op = _split(op_name.partition(";")[0])  # of an instruction that XLA merged of several, the first
    marks = tuple(mark for token in _without_loops(around) for mark in _marks(token))
    return Origin(scope=path_of_marks(marks), op=op, marks=marks)


def mark_depth(origins: Iterable[Origin]) -> int:
    """How many `jvp` stand around every transpose: a forward-over-reverse product has one more than others."""
    depths = [
        marks.index(TRANSPOSE)
        for origin in origins
        if TRANSPOSE in (marks := [mark for mark in origin.marks if mark in (JVP, TRANSPOSE)])
    ]
    return min(depths, default=0)


def _split(op_name: str) -> list[str]:
    """Splits at slashes that stand in no parenthesis."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(op_name):
        depth += (character == "(") - (character == ")")
        if character == "/" and depth <= 0:
            parts.append(op_name[start:at])
            start = at + 1
    return [*parts, op_name[start:]]


def _without_loops(tokens: list[str]) -> Iterator[str]:
    """Drops what JAX writes for the bodies of loops and branches."""
    at = 0
    while at < len(tokens):
        if tuple(tokens[at : at + 2]) in _LOOPS:
            at += 2
        else:
            yield tokens[at]
            at += 1


def _marks(token: str) -> Iterator[tuple[str, bool]]:
    """The marks of "transpose(jvp(GPT))": two transformations and a name; none of "jit(step)"."""
    match = _WRAPPED.fullmatch(token)
    if match is None:
        if token:
            yield token, False
    elif match[1] not in _FUNCTIONS:
        yield match[1], True
        for inner in _split(match[2]):
            yield from _marks(inner)
