"""Scopes and their targets: functions, methods, classes of modules, objects that can be called.

A class becomes a subclass of the same name, in which some methods have the scope: the class itself is not changed, and
everything named after the class (Linen's parameters) keeps its name. An object becomes one of such a subclass, with the
same fields. The kind of module that a method belongs to is found by the method's arguments when it is called.

Read after `flax_modules`.
"""

import contextlib
import copy
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.extend.source_info_util as source_info

from jaxckpt import _compat
from jaxckpt._errors import ScopeError, closest_names
from jaxckpt.annotate import flax_modules
from jaxckpt.annotate.checkpoint import Checkpoint, saves_all
from jaxckpt.annotate.pytree_classes import register_like
from jaxckpt.calling.calling import MARKS_ARE_READ
from jaxckpt.ir.scope import POLICY_MARK
from jaxckpt.policy import Policy, new_mark

_Target = TypeVar("_Target")
_Entered = tuple[tuple["Scope", contextlib.ExitStack], ...]
_ENTERED: ContextVar[_Entered] = ContextVar("jaxckpt_scopes", default=())
"""The `with` scopes around this point, outermost first; each thread has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A scope without a target yet: a decorator and a context manager, with the options of `jaxckpt.scope`."""

    name: str | None = None
    policy: Policy | None = None
    methods: tuple[str, ...] = ("__call__",)
    static_argnames: tuple[str, ...] = ()
    prevent_cse: bool = True

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint for the scope's policy; None without a policy, or with one that saves everything."""
        if self.policy is None or saves_all(self.policy):
            return None
        return Checkpoint(policy=self.policy, prevent_cse=self.prevent_cse)

    def __call__(self, target: _Target) -> _Target:
        """The target with the scope around its calls."""
        scoped: _Target = with_scope(target, self)
        return scoped

    def __enter__(self) -> None:
        """Names what is traced from here on; the policy is carried out when the step goes through `jaxckpt.apply`.

        Warns once for each `with` statement if the step is differentiated outside of `jaxckpt.apply`.
        """
        entered = _ENTERED.get()
        if any(scope is self for scope, _ in entered):
            raise ScopeError(
                "`with` enters a jaxckpt.scope inside itself.",
                got=f"the scope {self.name!r} twice",
                needed="a scope of its own for each part",
                advice=f"with jaxckpt.scope({self.name or 'tail'!r}, ...):",
            )
        if self.checkpoint is not None and not MARKS_ARE_READ.get() and _compat.is_differentiated():
            frame = sys._getframe(1)
            _warn_of_no_effect((frame.f_code.co_filename, frame.f_lineno))
        stack = contextlib.ExitStack()
        stack.enter_context(marked(self.name or "", self.policy))
        _ENTERED.set((*entered, (self, stack)))

    def __exit__(self, *error: object) -> None:
        """Ends the scope."""
        *outer, (_, stack) = _ENTERED.get()
        _ENTERED.set(tuple(outer))
        stack.close()


@functools.lru_cache(maxsize=1024)
def _warn_of_no_effect(_place: tuple[str, int]) -> None:
    """Warns about the `with` statement at a place, once: JAX's own filters make Python forget what it has shown."""
    warnings.warn(
        "`with jaxckpt.scope(policy=...)` has no effect here: this function is differentiated without jaxckpt.apply. "
        "Differentiate first and apply then, jaxckpt.apply(step), or plan the step with jaxckpt.plan; or put "
        "@jaxckpt.scope(policy=...) on a function or class, which acts by itself.",
        stacklevel=3,
    )


def with_scope(target: object, scope: Scope) -> Callable[..., Any]:
    """The target with a scope around its calls."""
    if isinstance(target, functools.partial) and isinstance(target.func, type):
        return functools.partial(with_scope(target.func, scope), *target.args, **target.keywords)
    if isinstance(target, type):
        return _class(target, scope)
    if inspect.ismethod(target):
        return functools.wraps(target)(functools.partial(_function(target.__func__, scope), target.__self__))
    if inspect.isroutine(target) or isinstance(target, functools.partial) or _is_wrapped(target):
        return _function(target, scope)
    if callable(target):
        return _object(target, scope)
    raise ScopeError(
        f"jaxckpt.scope({type(target).__name__}) cannot have a scope.",
        got=repr(target),
        needed="a function, a method, a class of modules, or an object that can be called",
        advice='jaxckpt.scope(f), jaxckpt.scope("name"), or `with jaxckpt.scope("name"):`',
    )


@contextlib.contextmanager
def marked(name: str, policy: Policy | None) -> Iterator[None]:
    """A context in which traced equations stand under a name and the mark of a policy."""
    with contextlib.ExitStack() as stack:
        if name:
            stack.enter_context(jax.named_scope(name))
        if policy is not None:
            stack.enter_context(jax.named_scope(f"{POLICY_MARK}{new_mark(policy)}"))
        yield


def _is_wrapped(target: object) -> bool:
    """True for a function under a transformation (`jax.jit`, `jax.custom_vjp`)."""
    return callable(target) and callable(getattr(target, "__wrapped__", None))


def _class(cls: type, scope: Scope) -> type:
    for method in scope.methods:
        _require_method(cls, method)
    if flax_modules.is_linen_class(cls):
        return _linen_class(cls, scope)
    name = scope.name or cls.__name__
    names = {m: name if m == "__call__" else f"{name}.{m}" for m in scope.methods}
    return _subclass(cls, {m: _method(cls, m, scope, name=each) for m, each in names.items()})


def _method(cls: type, method: str, scope: Scope, *, name: str) -> Any:
    """A method under a scope; static methods and class methods stay what they are."""
    held = inspect.getattr_static(cls, method)
    if isinstance(held, (staticmethod, classmethod)):
        return type(held)(_function(held.__func__, scope, name=name))
    return _function(getattr(cls, method), scope, name=name)


def _linen_class(cls: type, scope: Scope) -> type:
    """Flax puts the module's name around its methods itself; a scope's own name goes around that."""
    if scope.policy is None and scope.name is None:
        return cls
    policy = scope.policy
    if scope.checkpoint is not None:
        own = {m: flax_modules.unhandled(_function(getattr(cls, m), scope, name="")) for m in scope.methods}
        cls, policy = _subclass(cls, own), None
        if scope.name is None:
            return cls
    return _subclass(cls, {m: _with_marks(getattr(cls, m), scope.name or "", policy) for m in scope.methods})


def _subclass(cls: type, own: dict[str, Callable[..., Any]]) -> type:
    """A subclass of the same name with some methods of its own."""
    same: dict[str, Any] = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    if not any("__dict__" in vars(each) for each in cls.__mro__):
        same["__slots__"] = ()  # else objects of the class, which have no other fields, could not become its objects
    scoped = type(cls)(cls.__name__, (cls,), {**same, **own})
    register_like(cls, scoped)
    return scoped


def _with_marks(method: Callable[..., Any], name: str, policy: Policy | None) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with marked(name, policy):
            return method(*args, **kwargs)

    return call


def _require_method(cls: type, method: str) -> None:
    if any(method in vars(each) for each in cls.__mro__) and callable(getattr(cls, method)):  # a metaclass has __call__
        return
    known = [name for name in dir(cls) if callable(getattr(cls, name, None)) and not name.startswith("__")]
    (suggested, *_) = (*closest_names(method, known, cutoff=0.5), *known, "__call__")
    raise ScopeError(
        f"jaxckpt.scope({cls.__name__}): it has no method {method!r}.",
        got=f"methods = {method!r}",
        needed=f"methods of {cls.__name__}: {', '.join(known) or 'it has none'}",
        advice=f"methods=({suggested!r},)",
        method=method,
    )


def _object(target: Callable[..., Any], scope: Scope) -> Callable[..., Any]:
    if flax_modules.is_linen(target):
        raise ScopeError(
            f"jaxckpt.scope({type(target).__name__}(...)) is put on a module that was created already.",
            got=f"a Linen module {type(target).__name__}",
            needed="its class: Flax names a module when it is created",
            advice=f"jaxckpt.scope({type(target).__name__}, policy=...)(...)",
        )
    scoped = copy.copy(target)
    try:
        object.__setattr__(scoped, "__class__", _class(type(target), scope))
    except TypeError:  # a class of C: its objects cannot change class
        return _function(target, scope)
    return scoped


def _function(function: Callable[..., Any], scope: Scope, *, name: str | None = None) -> Callable[..., Any]:
    name = name if name is not None else scope.name
    own = _own_name(function)
    static = _static_positions(function, scope.static_argnames)
    checkpoint = scope.checkpoint

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        of_linen = bool(args) and flax_modules.is_linen(args[0])
        given = own if name is None and not of_linen else name or ""
        around = _last_name() if of_linen else ""
        with marked(given, scope.policy):
            if checkpoint is None:
                return function(*args, **kwargs)
            bound, traced, named = _without_static(function, args, kwargs, static, scope.static_argnames)
            if of_linen:
                return flax_modules.call_method(bound, checkpoint, around, *traced, **named)
            if flax_modules.has_nnx((traced, named)):
                return flax_modules.call_with_state(bound, checkpoint, traced, named)
            return checkpoint(lambda args, kwargs: bound(*args, **kwargs), traced, named)

    return call


def _own_name(function: Callable[..., Any]) -> str:
    """The name of a function; "" for one without a name."""
    function = function.func if isinstance(function, functools.partial) else function
    name = getattr(function, "__name__", "")
    if name == "__call__":
        name = getattr(function, "__qualname__", "").rpartition(".")[0].rpartition(".")[2]
    return "" if name.startswith("<") else name


def _last_name() -> str:
    """The innermost name around this call."""
    marks = _compat.name_stack_marks(source_info.current_name_stack())
    return next((name for name, transformed in reversed(marks) if not transformed), "")


def _static_positions(function: Callable[..., Any], names: Sequence[str]) -> frozenset[int]:
    """Positions of the arguments that are not traced."""
    if not names:
        return frozenset()
    parameters = inspect.signature(function).parameters
    known = list(parameters)
    missing = [name for name in names if name not in known]
    if missing and all(p.kind is not inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        raise _no_argument(function, missing[0], names, known)
    return frozenset(known.index(name) for name in names if name in known)


def _no_argument(function: Callable[..., Any], missing: str, names: Sequence[str], known: list[str]) -> ScopeError:
    (suggested, *_) = (*closest_names(missing, known, cutoff=0.5), *known, "flag")
    return ScopeError(
        f"jaxckpt.scope: {_own_name(function) or 'the function'} has no argument {missing!r}.",
        got=f"static_argnames = {tuple(names)!r}",
        needed=f"names of its arguments: {', '.join(known) or 'it has none'}",
        advice=f"static_argnames=({suggested!r},)",
        argument=missing,
    )


def _without_static(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    positions: frozenset[int],
    names: Sequence[str],
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """A function of the arguments that are traced, and these arguments."""
    if not names:
        return function, args, kwargs
    positional = [i for i in range(len(args)) if i not in positions]
    fixed = {name: value for name, value in kwargs.items() if name in names}

    def bound(*traced: Any, **named: Any) -> Any:
        filled = list(args)
        for position, value in zip(positional, traced, strict=True):
            filled[position] = value
        return function(*filled, **fixed, **named)

    named = {name: value for name, value in kwargs.items() if name not in names}
    return functools.wraps(function)(bound), tuple(args[i] for i in positional), named
