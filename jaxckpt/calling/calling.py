"""Calls of a step: the user's arguments in, a pure function of arrays, the user's results out.

A step that `jax.jit` takes as it is called stays as it is. In all other calls arguments and results are split
(`split`, `objects`): `jax.jit` sees arrays and a static rest. Values that the step hands through unchanged are no
results: the user's own arrays are given back.

Read after the other files of this folder.
"""

import inspect
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import starmap
from types import MappingProxyType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp

from jaxckpt import _compat
from jaxckpt._errors import ArgumentError
from jaxckpt.calling.arguments import check_arguments, check_static, on_device, static_object, unsharded
from jaxckpt.calling.objects import (
    has_objects,
    is_outer_object,
    is_variable,
    merging,
    objects_in,
    splitting,
    update_context,
    variables_in,
)
from jaxckpt.calling.scopes import module_scopes, without_path
from jaxckpt.calling.split import Place, SplitTree, Static, is_array, numbers_are_static, readable_path, split, unsplit
from jaxckpt.calling.wrappers import Unwrapped, unwrap

_Key = int | str
"""A position among the arguments of the function below all wrappers, or the name of a keyword argument."""
_NO_KEYWORDS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Rest:
    """A split call without its arrays, as jit's static argument."""

    parts: tuple[Static, ...]
    keys: tuple[_Key, ...]
    roots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _ResultRest:
    """Results without their arrays; `sources` has for each array the flat argument that it is, or None."""

    objects: tuple[Static, ...]
    out: Static
    sources: tuple[int | None, ...]
    paths: tuple[str, ...]
    lost: tuple[str, ...]  # paths of variables that are written, and whose objects are not returned


MARKS_ARE_READ: ContextVar[bool] = ContextVar("jaxckpt_marks_are_read", default=False)
"""True while a step is traced for something that finds the policies of its marks; each thread has its own."""


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, slots=True)
class _Results:
    """Results as arrays and the rest."""

    arrays: tuple[Any, ...]
    rest: _ResultRest

    def tree_flatten(self) -> tuple[tuple[Any, ...], _ResultRest]:
        """The arrays as children."""
        return self.arrays, self.rest

    @classmethod
    def tree_unflatten(cls, rest: _ResultRest, arrays: tuple[Any, ...]) -> "_Results":
        """Results with other arrays."""
        return cls(tuple(arrays), rest)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCall:
    """One call of a step, as `jax.jit` takes it.

    Attributes:
      jitted: The step, or the pure function that it becomes, under `jax.jit`.
      args: The arguments of `jitted`; those at the positions `static` are not traced.
      kwargs: Its keyword arguments.
      static: Positions and names of arguments of `jitted` that are not traced.
      leaves: The flat arrays, in the order in which `jitted` takes them.
      places: For each of these the root and the entries of its path.
      positions: For each the position or name of the argument that it is in; None where a method or partial binds it.
      donated: Indices of leaves that are donated, but for what `jitted` says itself; see `donation`.
      donates_all: True if a jit donates whatever can be used, and is silent about the rest.
      untraced: Positions, as the step is called, and names of arguments that are not traced.
      jit: "jax", "nnx" or "equinox" for the jit around the step; "" for none.
      function: The function below all wrappers but `jax.jit`.
      is_split: True if `jitted` is a pure function of ours.
    """

    jitted: jax.stages.Wrapped = field(repr=False)
    args: tuple[Any, ...] = field(repr=False)
    kwargs: Mapping[str, Any] = field(repr=False)
    static: frozenset[_Key]
    leaves: tuple[Any, ...] = field(repr=False)
    places: tuple[Place, ...] = field(repr=False)
    positions: tuple[_Key | None, ...]
    donated: frozenset[int]
    donates_all: bool
    untraced: frozenset[_Key]
    jit: str
    function: Callable[..., Any] = field(repr=False)
    is_split: bool

    @property
    def paths(self) -> tuple[str, ...]:
        """For each flat array its path, as a user would write it ("model.blocks.0.kernel")."""
        return tuple(starmap(readable_path, self.places))

    def trace(self, *, reads_marks: bool = True) -> jax.stages.Traced:
        """Traces the step, without shardings of automatic meshes; a call of equal types gives the same jaxpr.

        `reads_marks` is False if the policies of marks in the step have no effect on what becomes of the trace.
        """
        args = (arg if i in self.static else jax.tree.map(unsharded, arg) for i, arg in enumerate(self.args))
        named = {
            name: arg if name in self.static else jax.tree.map(unsharded, arg) for name, arg in self.kwargs.items()
        }
        before = MARKS_ARE_READ.set(reads_marks)
        try:
            return self.jitted.trace(*args, **named)
        except Exception as error:
            if is_outer_object(error):
                raise _outer_object(self.function) from error
            raise
        finally:
            MARKS_ARE_READ.reset(before)

    def on_device(self) -> "StepCall":
        """The call with descriptions on the device of the arrays that are in host memory; only to be traced."""
        if not any(on_device(leaf) is not leaf for leaf in self.leaves):
            return self
        args = tuple(arg if i in self.static else jax.tree.map(on_device, arg) for i, arg in enumerate(self.args))
        named = {n: arg if n in self.static else jax.tree.map(on_device, arg) for n, arg in self.kwargs.items()}
        return replace(self, args=args, kwargs=named, leaves=tuple(map(on_device, self.leaves)))

    def run(self) -> Sequence[Any]:
        """Runs the step as it is written; flat results."""
        return jax.tree.leaves(self.jitted(*self.args, **self.kwargs))

    def donation(self, stage: jax.stages.Traced) -> frozenset[int]:
        """Indices of leaves whose memory the results may take; not of those that the step hands through unchanged."""
        leaves = _compat.traced_leaves(stage)
        donated = self.donated.union(i for i, is_donated in enumerate(leaves.donated) if is_donated)
        if self.is_split:
            donated -= frozenset(self._rest(stage).sources)
        if self.donates_all:
            free = Counter(map(_type_of, jax.tree.leaves(stage.out_info)))
            donated = frozenset(i for i in sorted(donated) if _takes(free, _type_of(leaves.avals[i])))
        return donated

    def lost_variables(self, stage: jax.stages.Traced) -> tuple[str, ...]:
        """Paths of variables that the step writes, and whose objects it does not return."""
        return self._rest(stage).lost if self.is_split else ()

    def result_paths(self, stage: jax.stages.Traced) -> tuple[str, ...]:
        """For each flat result its path: in the results, or that of a variable that the step writes."""
        if self.is_split:
            rest = self._rest(stage)
            return tuple(p for p, source in zip(rest.paths, rest.sources, strict=True) if source is None)
        pairs = jax.tree_util.tree_flatten_with_path(stage.out_info)[0]
        return tuple(jax.tree_util.keystr(path) for path, _ in pairs)

    def results(self, stage: jax.stages.Traced, flat: Sequence[Any]) -> Any:
        """The user's results from flat ones; objects among the arguments are updated."""
        results = jax.tree.unflatten(stage.out_tree, flat)
        if not self.is_split:
            return results
        rest = results.rest
        computed = iter(results.arrays)
        # The user's own jit returns arrays, also where an argument that is no array is handed through.
        arrays = iter([next(computed) if i is None else jnp.asarray(self.leaves[i]) for i in rest.sources])
        filled = tuple(part.filled(arrays) for part in rest.objects), rest.out.filled(arrays)
        with merging(inner=False) as merge:
            return merge(filled)[1]

    def _rest(self, stage: jax.stages.Traced) -> _ResultRest:
        results: _Results = jax.tree.unflatten(stage.out_tree, [None] * stage.out_tree.num_leaves)
        return results.rest


class Calling:
    """A step with the ways in which it can be called.

    Args:
      step: A function, plain or under the jit of JAX, NNX or Equinox; a method, partial or object that can be called.
      donate_argnums: Positions, as the step is called, whose memory the results may take; added to those of its jit.
      static_argnums: Positions of arguments that are not traced; those of a jitted step are read from it.
      named_like: A step that is called alike, whose names its arguments are to have; None for their own.

    Example:
      >>> import jax.numpy as jnp
      >>> calling = Calling(lambda params, activation: activation(params["w"]))
      >>> with calling.bind(({"w": jnp.ones(2)}, jnp.tanh)) as call:
      ...     call.paths, str(call.trace().jaxpr.eqns[0].primitive)
      (("params['w']",), 'tanh')
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *,
        donate_argnums: int | Sequence[int] = (),
        static_argnums: int | Sequence[int] = (),
        named_like: "Calling | None" = None,
    ):
        if not callable(step):
            raise ArgumentError(
                f"a {type(step).__name__} stands where the step should.",
                got=f"a {type(step).__name__}",
                needed="the training step, a function, in front of its arguments",
                advice="jaxckpt.plan(step, *args, budget=..., target=...), plan.apply(step)",
            )
        self.step = step
        self._jit_options: dict[str, Any] | None = None
        self._unwrapped = unwrap(step)
        is_jitted = self._unwrapped.jit == "jax"  # a jit has the attributes of the function that it wraps
        if self._unwrapped.function is step and hasattr(step, _CALLING) and not is_jitted:
            calling, options = getattr(step, _CALLING)
            self._unwrapped, self._jit_options = _unwrapped_like(step, calling), options or None
        self._donate_argnums = _as_tuple(donate_argnums, "donate_argnums")
        self._static_argnums = _as_tuple(static_argnums, "static_argnums")
        self._named_like = named_like or self
        self._jitted: dict[frozenset[_Key], jax.stages.Wrapped] = {}
        self._pure: jax.stages.Wrapped | None = None
        self._without_jit: Calling | None = None

    @property
    def is_jitted(self) -> bool:
        """True if a jit around the step says which arguments are static."""
        return bool(self._unwrapped.jit)

    @property
    def function(self) -> Callable[..., Any]:
        """The function below all wrappers but `jax.jit`."""
        return self._unwrapped.function

    def forget(self) -> None:
        """Drops what JAX has traced; for steps that close over values of an outer trace."""
        self._jitted, self._pure = {}, None

    @contextmanager
    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any] = _NO_KEYWORDS) -> Iterator[StepCall]:
        """A call with arguments: arrays, descriptions of arrays, objects, or pytrees with any leaves."""
        args, kwargs = self._completed(args, kwargs)
        self._require_positions(len(args))
        static = self._static(len(args))
        if self._is_direct(args, kwargs, static):
            yield self._direct(args, kwargs, static)
            return
        with update_context():
            yield self._split(args, kwargs, static)

    def rebuilt(
        self, args: Sequence[Any], replace: Callable[[Sequence[str], Sequence[Any]], Sequence[Any]]
    ) -> tuple[Any, ...]:
        """The arguments as new objects and pytrees, with the arrays that `replace` makes of their paths and arrays."""
        bound = len(self._unwrapped.bound)
        static = {key - bound for key in self._static(bound + len(args)) if isinstance(key, int)}
        with splitting(tag=None) as apart:
            parts = [self._part(i, apart(arg), f"[{i}]", i in static) for i, arg in enumerate(args)]
        arrays = iter(replace([p for part in parts for p in part.paths], [a for part in parts for a in part.arrays]))
        with merging(inner=False, tag=None) as merge:
            return tuple(merge(tuple(part.static.filled(arrays) for part in parts)))

    def _completed(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """All arguments, bound ones included; keyword arguments become positional where the function has them so."""
        args = (*self._unwrapped.bound, *args)
        kwargs = {**self._unwrapped.keywords, **kwargs}
        if not kwargs:
            return args, {}
        try:
            found = self._signature(follow_wrapped=self._unwrapped.jit == "jax").bind(*args, **kwargs)
        except (TypeError, ValueError):  # the call itself will say what is wrong
            return args, kwargs
        return found.args, found.kwargs

    def _signature(self, *, follow_wrapped: bool) -> inspect.Signature:
        return inspect.signature(self.function, follow_wrapped=follow_wrapped)

    def _require_positions(self, count: int) -> None:
        """Refuses positions at which the step takes no argument; an argument that has a default may be left out."""
        bound = len(self._unwrapped.bound)
        most = max(count, len(self._names)) - bound
        for name, positions in (("donate_argnums", self._donate_argnums), ("static_argnums", self._static_argnums)):
            if any(not -count <= position < most for position in positions):
                raise ArgumentError(
                    f"{name} names an argument that {_name_of(self.step)} does not have.",
                    got=f"{name}={positions}",
                    needed=f"positions below {most}: {', '.join(self._names[bound:]) or f'{most} arguments'}",
                    advice="count from 0, the arguments of the step alone",
                )

    def _static(self, count: int) -> frozenset[_Key]:
        """Positions and names of arguments that are not traced; a call may leave some out that have defaults."""
        bound = len(self._unwrapped.bound)
        asked = frozenset(p % count if p < 0 else p + bound for p in self._static_argnums)
        own = frozenset(
            key % count if isinstance(key, int) and key < 0 and count else key for key in self._unwrapped.static
        )
        if not self.is_jitted:
            return asked | own
        if not asked <= own:
            raise ArgumentError(
                "the step is jitted already, and its jit says which arguments are static.",
                got=f"static_argnums={self._static_argnums}",
                needed=f"positions that its jit knows as static: {sorted(map(str, self._unwrapped.static))}",
                advice="leave static_argnums out, or name them in the step's own jit",
            )
        return own

    def _is_direct(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], static: frozenset[_Key]) -> bool:
        """True if `jax.jit` takes the step and its arguments as they are."""
        traced = [value for key, value in _items(args, kwargs) if key not in static]
        if self._unwrapped.jit == "jax":
            if any(map(has_objects, traced)):
                self._refuse_lost_state(args, kwargs)
            return True
        if self._unwrapped.jit or self._unwrapped.bound or self._unwrapped.keywords:
            return False
        return not any(has_objects(value) or numbers_are_static(value) for value in traced)

    def _direct(self, args: tuple[Any, ...], kwargs: dict[str, Any], static: frozenset[_Key]) -> StepCall:
        leaves: list[Any] = []
        places: list[Place] = []
        keys: list[_Key] = []
        roots = self._roots(args, kwargs)
        for key, value in _items(args, kwargs):
            if key in static:
                check_static(roots[key], value)
                continue
            for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
                leaves.append(leaf)
                places.append((roots[key], path))
                keys.append(key)
        if not all(map(is_array, leaves)):
            check_arguments(tuple(zip(starmap(readable_path, places), leaves, strict=True)))
        if self._unwrapped.jit == "jax":
            jitted: Any = self.function
        else:
            if (jitted := self._jitted.get(static)) is None:
                jitted = self._jitted.setdefault(static, _jitted(self.function, static, self._jit_options))
        return StepCall(
            jitted=jitted,
            args=args,
            kwargs=kwargs,
            static=static,
            leaves=tuple(leaves),
            places=tuple(places),
            positions=tuple(map(self._position, keys)),
            donated=self._donated(keys, len(args)),
            donates_all=self._unwrapped.donates_after is not None,
            jit=self._unwrapped.jit,
            function=self.function,
            untraced=self._untraced(static),
            is_split=False,
        )

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any], static: frozenset[_Key]) -> StepCall:
        roots = self._roots(args, kwargs)
        items = _items(args, kwargs)
        with splitting() as apart:
            parts = [
                self._part(key, value if key in static else apart(value), roots[key], key in static)
                for key, value in items
            ]
        keys = [key for (key, _), part in zip(items, parts, strict=True) for _ in part.arrays]
        rest = _Rest(tuple(p.static for p in parts), tuple(key for key, _ in items), tuple(roots.values()))
        if self._pure is None:
            self._pure = _pure(self.function, _name_of(self.function), self._unwrapped.jit, self._jit_options)
        return StepCall(
            jitted=self._pure,
            args=(rest, *(part.arrays for part in parts)),
            kwargs={},
            static=frozenset({0}),
            leaves=tuple(array for part in parts for array in part.arrays),
            places=tuple(place for part in parts for place in part.places),
            positions=tuple(map(self._position, keys)),
            donated=self._donated(keys, len(args)),
            donates_all=self._unwrapped.donates_after is not None,
            jit=self._unwrapped.jit,
            function=self.function,
            untraced=self._untraced(static),
            is_split=True,
        )

    def _part(self, key: _Key, value: Any, root: str, is_static: bool) -> SplitTree:
        if is_static:
            if has_objects(value):
                raise static_object(root)
            return unsplit(value)
        is_bound = root in self._unwrapped.keywords or (isinstance(key, int) and key < len(self._unwrapped.bound))
        numbers = self._unwrapped.jit == "equinox" or is_bound or numbers_are_static(value)
        return split(value, root, numbers_are_static=numbers)

    def _roots(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[_Key, str]:
        """The names of arguments, at which their paths begin."""
        bound = len(self._unwrapped.bound)
        names = (*self._names[:bound], *self._named_like._names[len(self._named_like._unwrapped.bound) :])
        positional: dict[_Key, str] = {i: names[i] if i < len(names) else f"[{i}]" for i in range(len(args))}
        return {**positional, **{name: name for name in kwargs}}

    @cached_property
    def _names(self) -> list[str]:
        """The names of positional parameters."""
        try:
            parameters = self._signature(follow_wrapped=True).parameters.values()
        except (TypeError, ValueError):  # some callables have no signature
            return []
        kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        return [parameter.name for parameter in parameters if parameter.kind in kinds]

    def _position(self, key: _Key) -> _Key | None:
        """The position as the step is called."""
        if isinstance(key, str):
            return key
        bound = len(self._unwrapped.bound)
        return key - bound if key >= bound else None

    def _untraced(self, static: frozenset[_Key]) -> frozenset[_Key]:
        return frozenset(key for key in map(self._position, static) if key is not None)

    def _donated(self, keys: Sequence[_Key], count: int) -> frozenset[int]:
        bound = len(self._unwrapped.bound)
        asked: set[_Key] = {p % count if p < 0 and count else p + bound for p in self._donate_argnums}
        if self._unwrapped.jit != "jax":  # whose own donation is in the trace
            asked.update(filter(self._unwrapped.donates, keys))
        return frozenset(i for i, key in enumerate(keys) if key in asked)

    def _refuse_lost_state(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Refuses a step under `jax.jit` that writes to NNX objects and does not return them."""
        inner = getattr(self.function, "__wrapped__", None)
        if inner is None:
            return
        if self._without_jit is None:
            static = sorted(key for key in self._unwrapped.static if isinstance(key, int))
            self._without_jit = Calling(inner, static_argnums=tuple(static))
        with self._without_jit.bind(args, kwargs) as call:
            refuse_lost_state(_name_of(self.step), call, call.trace())


def refuse_lost_state(name: str, call: StepCall, stage: jax.stages.Traced) -> None:
    """Refuses a step that writes variables which `jax.jit` around it would drop."""
    lost = call.lost_variables(stage)
    if lost:
        raise ArgumentError(
            f"{name} writes to its arguments in place, and jax.jit around it drops the new values.",
            got=", ".join(lost[:6]) + (f" and {len(lost) - 6} more variables" if len(lost) > 6 else ""),
            needed="flax.nnx.jit, which keeps the new values, or a step that returns its objects",
            advice="nnx.jit instead of jax.jit; or plan.apply(step) without any jit, which compiles the step too",
            lost=lost,
        )


def _outer_object(function: Callable[..., Any]) -> ArgumentError:
    """The error of a step that writes to objects which it closes over, or differentiates them."""
    closed_over = tuple(_closed_over(function))
    parameters = (["self"] if inspect.ismethod(function) else []) + [name.rpartition(".")[2] for name in closed_over]
    return ArgumentError(
        f"{_name_of(function)} writes to an NNX object that is not among its arguments, or differentiates one.",
        got=f"it closes over {', '.join(closed_over) or 'the object'}",
        needed="all objects that the step changes as arguments: only these can be given back",
        advice=f"def {_name_of(function)}({', '.join((*parameters, '...'))})"
        if closed_over
        else f"the object as an argument of {_name_of(function)}",
        objects=closed_over,
    )


def _closed_over(function: Any) -> Iterator[str]:
    """Names of NNX objects that a function and those below its wrappers close over, or have as attributes."""
    values: dict[str, Any] = {"self": function.__self__} if inspect.ismethod(function) else {}
    while function is not None:
        if inspect.isfunction(function) or inspect.ismethod(function):
            found = inspect.getclosurevars(function)
            values |= {**found.globals, **found.nonlocals}
        function = getattr(function, "__wrapped__", None)
    for name, value in values.items():
        if has_objects(value):
            yield name
        elif not isinstance(value, type | ModuleType):
            yield from (
                f"{name}.{field}" for field, each in getattr(value, "__dict__", {}).items() if has_objects(each)
            )


def _pure(
    function: Callable[..., Any], name: str, jit: str, compiler_options: dict[str, Any] | None
) -> jax.stages.Wrapped:
    """A jitted function of a call's rest and arrays, for a step under the jit of a library."""

    def pure(rest: _Rest, *groups: tuple[Any, ...]) -> _Results:
        try:
            return run(rest, groups, module_scopes)
        except Exception:  # modules of one class differ by their paths: `jax.tree.map` over two of them fails
            if not any(has_objects(static.filled(arrays)) for static, arrays in zip(rest.parts, groups, strict=True)):
                raise
        return run(rest, groups, lambda _: nullcontext())

    def run(rest: _Rest, groups: Sequence[tuple[Any, ...]], scopes: Callable[..., Any]) -> _Results:
        flat = [array for group in groups for array in group]
        filled = [static.filled(arrays) for static, arrays in zip(rest.parts, groups, strict=True)]
        with merging(inner=True) as merge:
            values = dict(zip(rest.keys, merge(filled), strict=True))
        objects = [
            (readable_path(root, path), each)
            for root, value in zip(rest.roots, values.values(), strict=True)
            for path, each in objects_in(value)
        ]
        with scopes(objects):
            args = [value for key, value in values.items() if isinstance(key, int)]
            out = function(*args, **{key: value for key, value in values.items() if isinstance(key, str)})
        without_path((out, [each for _, each in objects]))
        return _results(objects, out, flat, jit=jit)

    pure.__name__ = pure.__qualname__ = name
    return jax.jit(pure, static_argnums=0, compiler_options=compiler_options)


def _results(objects: Sequence[tuple[str, Any]], out: Any, flat: Sequence[Any], *, jit: str) -> _Results:
    """The results of a step, with what it writes to its objects.

    Python numbers in results stay what they are under `equinox.filter_jit`. A variable outside of modules that is not
    written is given back under `nnx.jit` only: a state that the step takes and returns may be donated.
    """
    source = {id(array): i for i, array in enumerate(flat)}
    objects = [
        (root, each)
        for root, each in objects
        if jit == "nnx" or not is_variable(each) or any(id(leaf) not in source for leaf in jax.tree.leaves(each))
    ]
    lost = tuple(_lost(objects, out, source))
    with splitting() as apart:
        parts = [split(apart(each), root, numbers_are_static=False) for root, each in objects]
        returned = apart(out)
    returned_part = split(returned, "", numbers_are_static=jit == "equinox" or numbers_are_static(returned))
    arrays = [array for part in (*parts, returned_part) for array in part.arrays]
    sources = tuple(source.get(id(array)) for array in arrays)
    rest = _ResultRest(
        objects=tuple(part.static for part in parts),
        out=returned_part.static,
        sources=sources,
        paths=tuple(path for part in (*parts, returned_part) for path in part.paths),
        lost=lost,
    )
    return _Results(tuple(a for a, known in zip(arrays, sources, strict=True) if known is None), rest)


def _lost(objects: Sequence[tuple[str, Any]], out: Any, source: Mapping[int, int]) -> Iterator[str]:
    """Paths of variables that are written, and whose objects are not among the results."""
    if not objects:
        return
    returned = {id(variable) for _, variable in variables_in(out)}
    for root, each in objects:
        for path, variable in variables_in(each):
            leaves = jax.tree.leaves(variable)  # not arrays where a library keeps shardings or metadata in variables
            is_written = any(is_array(leaf) and id(leaf) not in source for leaf in leaves)
            if is_written and id(variable) not in returned:
                yield f"{root}{path}"


def _jitted(
    function: Callable[..., Any], static: frozenset[_Key], compiler_options: dict[str, Any] | None
) -> jax.stages.Wrapped:
    positions = tuple(sorted(key for key in static if isinstance(key, int)))
    names = tuple(sorted(key for key in static if isinstance(key, str)))
    return jax.jit(function, static_argnums=positions, static_argnames=names, compiler_options=compiler_options)


_CALLING = "_jaxckpt_calling"
"""The attribute of a planned function that holds the `Calling` of its step, and XLA options."""


def mark_planned(planned: Callable[..., Any], calling: Calling, compiler_options: dict[str, Any]) -> None:
    """Notes on a planned function how its step is called and compiled, so that both are called alike."""
    setattr(planned, _CALLING, (calling, compiler_options))


def _unwrapped_like(planned: Callable[..., Any], calling: Calling) -> Unwrapped:
    """A planned function, whose arguments are those that callers give to the step."""
    of_step = calling._unwrapped
    static = frozenset(calling._position(key) for key in of_step.static) | set(calling._static_argnums)
    return Unwrapped(
        function=planned,
        jit="equinox" if of_step.jit == "equinox" else "",
        static=frozenset(key for key in static if key is not None),
    )


def _type_of(array: Any) -> tuple[Any, ...]:
    return array.shape, array.dtype


def _takes(free: Counter[tuple[Any, ...]], type_: tuple[Any, ...]) -> bool:
    """Takes one of the free results of a type, if there is one."""
    free[type_] -= 1
    return free[type_] >= 0


def _items(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[tuple[_Key, Any]]:
    """All arguments in the order in which jit flattens them."""
    return [*enumerate(args), *((name, kwargs[name]) for name in sorted(kwargs))]


def _as_tuple(argnums: int | Sequence[int], called: str) -> tuple[int, ...]:
    """Positions of arguments, of any integer type; `called` names them in an error."""
    try:
        several = argnums if isinstance(argnums, Iterable) else (argnums,)
        return tuple(map(operator.index, several))
    except TypeError:
        raise ArgumentError(
            f"{called}={argnums!r} names no positions of arguments.",
            got=repr(argnums),
            needed="the position of a positional argument, counted from 0, or a tuple of positions",
            advice=f"{called}=0",
        ) from None


def _name_of(step: Any) -> str:
    return getattr(step, "__name__", None) or type(step).__name__
