"""A chain of names and transformations says which scope of the model something belongs to.

`jvp(GPT)/block_3/qkv` is a forward equation of the scope GPT/block_3/qkv; the backward of it stands under
`transpose(jvp(GPT))/block_3/qkv`. A transposed `jax.checkpoint` or `custom_vjp` repeats the stack that it was
called in (`transpose(jvp(GPT))/block_3/jvp(GPT)/block_3`); `repeated` finds that. What is not here: where marks
come from (name stacks in `jaxckpt.program.flat_program`, XLA's op names in `jaxckpt.hlo`), and which of the
transformations decides the phase.
"""

import functools
import re

Marks = tuple[tuple[str, bool], ...]
"""The entries of a name stack: (name, whether a transformation put it there), outermost first."""

TRANSPOSE = ("transpose", True)
JVP = ("jvp", True)
RECOMPUTED = "rematted_computation"
"""The scope of ops that `jax.checkpoint` recomputes, and of our clones."""
POLICY_MARK = "jaxckpt.policy."
"""A scope of this prefix and a digest says that a policy is meant for what stands in it."""
TAG = "jaxckpt."
"""Names of values with this prefix are ours: they carry out what scopes decided, and no rule can mean them."""
OWN = "jaxckpt"
"""The scope of equations that the rewriter adds."""

_NO_SCOPE = frozenset({RECOMPUTED, "checkpoint", "closed_call", "core_call", "eval_jaxpr"})
_WRAPPED = re.compile(r"(?:jit|pjit|jvp|transpose|vmap|remat|checkpoint)\((.*)\)")


@functools.lru_cache(maxsize=65536)
def path_of_marks(marks: Marks) -> str:
    """`scope_path` of a name stack's entries.

    Example:
      >>> path_of_marks((("transpose", True), ("jvp", True), ("GPT", False), ("block_3", False)))
      'GPT/block_3'
    """
    skipped = repeated(marks)
    names = [
        _unwrapped(name)
        for position, (name, transformed) in enumerate(marks)
        if not transformed and position not in skipped
    ]
    if OWN in names:
        names = names[: names.index(OWN)]
    return "/".join(name for name in names if name and name not in _NO_SCOPE and not name.startswith(POLICY_MARK))


@functools.lru_cache(maxsize=65536)
def policies_of_marks(marks: Marks) -> tuple[str, ...]:
    """The digests of the policies that a name stack stands under, outermost first, each once.

    Example:
      >>> policies_of_marks((("net", False), ("tail", False), ("jaxckpt.policy.3fa9", False)))
      ('3fa9',)
    """
    digests = (name.removeprefix(POLICY_MARK) for name, _ in marks if name.startswith(POLICY_MARK))
    return tuple(dict.fromkeys(digests))


def scope_at_depth(scope: str, depth: int) -> str:
    """The first names of a scope, at most `depth` of them.

    Example:
      >>> scope_at_depth("GPT/block_3/attention/qkv", 2)
      'GPT/block_3'
    """
    return "/".join(scope.split("/")[:depth])


def is_recomputed(marks: Marks) -> bool:
    """True if the equation is marked as recomputed."""
    return (RECOMPUTED, False) in marks


@functools.lru_cache(maxsize=65536)
def repeated(marks: Marks) -> frozenset[int]:
    """Positions of entries that only repeat the entries before them.

    A stack that begins X Y, where Y is X with fewer transposes, names one place twice: X is how the transposed
    equation got there, Y how the original did. X must name something: marks alone repeat in any second derivative.

    Example:
      >>> sorted(repeated((("net", False), TRANSPOSE, ("net", False), JVP, ("block", False))))
      [2]
    """
    positions = list(range(len(marks)))
    while (found := _repetition([marks[p] for p in positions])) is not None:
        start, stop = found
        del positions[start:stop]
    return frozenset(range(len(marks))) - frozenset(positions)


def _repetition(marks: list[tuple[str, bool]]) -> tuple[int, int] | None:
    if TRANSPOSE not in marks:
        return None
    for start in range(2, len(marks)):
        first = _without_transposes(marks[:start])
        if all(transformed for _, transformed in first):
            continue
        for stop in range(start + len(first), min(2 * start, len(marks) + 1)):
            if _without_transposes(marks[start:stop]) == first:
                return start, stop
    return None


def _without_transposes(marks: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    return [mark for mark in marks if mark != TRANSPOSE]


def _unwrapped(name: str) -> str:
    while (match := _WRAPPED.fullmatch(name)) is not None:
        name = match[1]
    return name
