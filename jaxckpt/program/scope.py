"""An equation's name stack as marks: which scope of the model it belongs to, and which transformations produced it.

The marks are explained in `jaxckpt.ir.scope`.
"""

from jax.extend.source_info_util import NameStack

from jaxckpt import _compat
from jaxckpt.ir.scope import RECOMPUTED, TRANSPOSE, path_of_marks, policies_of_marks, repeated


def scope_path(name_stack: NameStack) -> str:
    """The path of names around an equation, joined by "/", without marks of transformations; "" for no names."""
    return path_of_marks(_compat.name_stack_marks(name_stack))


def policy_digests(name_stack: NameStack) -> tuple[str, ...]:
    """The digests of the policies whose marks enclose an equation, outermost first."""
    return policies_of_marks(_compat.name_stack_marks(name_stack))


def without_repeats(name_stack: NameStack) -> NameStack:
    """The name stack without the entries that a transformation repeats; see `repeated`."""
    skipped = repeated(_compat.name_stack_marks(name_stack))
    return _compat.name_stack_without(name_stack, skipped) if skipped else name_stack


def without_recompute_marks(name_stack: NameStack) -> NameStack:
    """The name stack without the marks of recomputation."""
    marks = _compat.name_stack_marks(name_stack)
    skipped = frozenset(p for p, mark in enumerate(marks) if mark == (RECOMPUTED, False))
    return _compat.name_stack_without(name_stack, skipped) if skipped else name_stack


def forward_name_stack(name_stack: NameStack) -> NameStack:
    """The name stack of the forward equation that a backward one repeats: without its outermost transpose."""
    marks = _compat.name_stack_marks(name_stack)
    if TRANSPOSE not in marks:
        return name_stack
    return _compat.name_stack_without(name_stack, frozenset({marks.index(TRANSPOSE)}))
