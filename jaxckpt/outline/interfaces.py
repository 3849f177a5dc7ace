"""Interfaces of open loops and branches: what each reads from outside of its body, and what it gives.

Lambda lifting: the free variables of a body become constants, carries and slices of its loop, or operands of its cond.

1. A value from further out is a constant.
2. A value that another loop makes in the same iteration is stacked there, and this loop goes through the stack:
   of `y = f(x)` in loop A and `g(y)` in loop B, A stacks y and B slices the stack.
3. A branch gives such a value in a slot of its cond, which branches share where their values have one type, as JAX
   shares them.
4. An equation that runs an iteration ahead (`Equation.is_pipelined`, software pipelining) makes a carry: of the
   variable that it reads, where the body makes that variable, so that an iteration reads the value of the one before,
   zeros in the first; else of its result, so that an iteration gives the result to the next. Two such loops that run
   in opposite directions meet in the same places of a stack, but for the last value of the one: the first iteration
   of the other gets it as the initial carry.

Variables keep their names on both sides of a body's border. Complexity: linear in equations times the depth of loops.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import jax
import jax.core
import jax.extend.core as jex
import jax.numpy as jnp

from jaxckpt import _compat
from jaxckpt.ir import regions
from jaxckpt.program.flat_program import Atom, Equation, OpenLoop, open_jaxpr
from jaxckpt.program.open_loops import (
    BRANCHES,
    IS_PROBE,
    Visibility,
    is_loop_boundary,
    operands_and_loops,
    stack_writers,
)

Path = tuple[int, ...]
"""The loops around an equation, outermost first."""


class LoopTree:
    """The loops and branches of a program, and for each its path: the loops around it and itself.

    In bodies of `shard_map` the loops outside of such bodies are not part of any path.
    """

    def __init__(self, loops: Sequence[OpenLoop], *, in_shard_map: bool = False):
        self.loops = loops
        paths = map(Visibility(loops).path, range(len(loops)))
        self.paths = [tuple(k for k in p if not in_shard_map or loops[k].manual is not None) for p in paths]

    def parent(self, loop: int) -> int | None:
        """The loop around a loop, where it is of this tree."""
        return next(iter(self.paths[loop][-2:-1]), None)

    def path(self, loop: int | None) -> Path:
        """The loops around a loop and itself; () outside of all loops."""
        return () if loop is None else self.paths[loop]

    def iterating(self, loop: int) -> tuple[int, ...]:
        """The loops whose iterations go through an array of a loop: of a tile the loop over tiles, and itself."""
        parent = self.loops[loop].parent
        return (parent, loop) if self.loops[loop].is_inner_tile and parent is not None else (loop,)


@dataclass(frozen=True, slots=True)
class Carry:
    """One place of a loop's carry.

    Attributes:
      init: The value of the first iteration.
      current: The variable of every iteration.
      following: The value that an iteration hands to the next.
      final: The variable of the value that the last iteration hands on.
    """

    init: Atom
    current: jex.Var
    following: Atom
    final: jex.Var


@dataclass(slots=True)
class LoopInterface:
    """The inputs and results of a loop or branch; each pass of `outline` adds to them.

    Attributes:
      constants: Variables from further out, in order.
      carries: Of a loop, its carry.
      slices: Variables of slices, each with its array; of a branch, its own variables, each with the one outside.
      stacks: Values, each with the variable of its stack; of a branch, with the slot.
      picked: Variables of slices that the body takes by an index of its own, each with its array.
      updates: The array before, the value, and the array afterwards, where the body puts values into carried arrays.
      pipelined: Carries of equations that run an iteration ahead, each with the equations of its initial value.
      before: Equations that make initial carries and arrays; they stand in front of the loop.
      start: Equations at the start of the body.
      after: Equations at the end of the body.
    """

    constants: dict[jex.Var, None] = field(default_factory=dict)
    carries: list[Carry] = field(default_factory=list)
    slices: dict[jex.Var, Atom] = field(default_factory=dict)
    stacks: list[tuple[Atom, jex.Var]] = field(default_factory=list)
    picked: dict[jex.Var, Atom] = field(default_factory=dict)
    updates: list[tuple[jex.Var, Atom, jex.Var]] = field(default_factory=list)
    pipelined: list[tuple[Carry, Sequence[jex.JaxprEqn]]] = field(default_factory=list)
    before: list[jex.JaxprEqn] = field(default_factory=list)
    start: list[jex.JaxprEqn] = field(default_factory=list)
    after: list[jex.JaxprEqn] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FilledArray:
    """An array that several loops, or tiles, fill one after the other; `like` gives the source of its zeros."""

    loops: Sequence[int]
    values: Sequence[Atom]
    like: jex.JaxprEqn


@dataclass(slots=True)
class Cond:
    """A cond: its branches as loops, the atom that selects one, and its results, each with a value of every branch."""

    branches: tuple[int, ...]
    index: Atom
    results: list[tuple[jex.Var, Sequence[Atom]]] = field(default_factory=list)


class Interfaces:
    """The interfaces of all loops and branches.

    Attributes:
      loops: One for each loop, with stacks that the step makes itself, and more for values that other loops read.
      filled: Stacks that several loops, or tiles, fill.
      conds: The cond of each branch.
      shifted: Equations that run an iteration ahead, by `id` of JAX's equation, as equations of an iteration.
    """

    def __init__(self, equations: Sequence[Equation], tree: LoopTree):
        self.loops = [LoopInterface() for _ in tree.loops]
        self.filled: dict[jex.Var, FilledArray] = {}
        self.conds = _conds_of(tree.loops)
        self.shifted: dict[int, jex.JaxprEqn] = {}
        self._tree = tree
        self._home = {v: tree.path(equation.loop) for equation in equations for v in equation.eqn.outvars}
        """For each variable the loops around the equation that makes it."""
        self._stack_of: dict[jex.Var, jex.Var] = {}
        self._slots: dict[tuple[Path, jax.core.AbstractValue], list[jex.Var]] = {}
        """For each cond, by its branches, and type the slots."""
        self._inits: defaultdict[int, dict[int, tuple[Atom, jex.Var]]] = defaultdict(dict)
        """For each loop, by place in the carry, the first value and the variable."""
        self._finals: dict[jex.Var, jex.Var] = {}
        """For the result of a pipelined equation, the variable of what its last iteration carries."""
        for equation in equations:
            if equation.eqn.primitive.name == regions.STACK:
                self._own_stack(equation.eqn)
        for equation in equations:
            self._connect(equation)
        for equation in equations:  # last: what they carry is read from loops whose interface is known
            if equation.is_pipelined:
                self._pipeline(equation)

    def _own_stack(self, eqn: jex.JaxprEqn) -> None:
        """A stack that the step makes itself.

        A value of such a stack is not stacked a second time for another loop, unless the stack is an output alone.
        """
        (stack,), loops = eqn.outvars, stack_writers(eqn)
        if len(loops) > 1 or self._tree.loops[loops[0]].is_inner_tile:
            self.filled[stack] = FilledArray(loops, eqn.invars, eqn)
        else:
            self.loops[loops[0]].stacks.append((eqn.invars[0], stack))
        for loop, value in () if IS_PROBE in eqn.params else zip(loops, eqn.invars, strict=True):
            if isinstance(value, jex.Var) and self._home.get(value, ()) == self._tree.paths[loop]:
                self._stack_of.setdefault(value, stack)

    def _connect(self, equation: Equation) -> None:
        """Notes what an equation reads from outside of its loop, and what it says of a loop."""
        eqn = equation.eqn
        picks = eqn.primitive.name == regions.SLICE and self._picks(eqn)
        for variable, loop in operands_and_loops(equation, self._tree.loops):
            self._make_visible(variable, self._tree.path(eqn.params["loop"] if picks else loop))
        if is_loop_boundary(eqn):
            self._note(eqn, self.loops[eqn.params["loop"]], picks=picks)

    def _note(self, eqn: jex.JaxprEqn, interface: LoopInterface, *, picks: bool) -> None:
        """Notes a place of the carry, a slice, or a result of a cond."""
        match eqn.primitive.name:
            case regions.CARRY:
                self._inits[eqn.params["loop"]][eqn.params["index"]] = (eqn.invars[0], eqn.outvars[0])
            case regions.END:
                inits = [each for _, each in sorted(self._inits[eqn.params["loop"]].items())]
                places = zip(inits, eqn.invars, eqn.outvars, strict=True)
                interface.carries = [Carry(*init, following, final) for init, following, final in places]
            case regions.SLICE:
                (interface.picked if picks else interface.slices)[eqn.outvars[0]] = eqn.invars[0]
            case regions.COND_END:
                cond = self.conds[eqn.params[BRANCHES][0]]
                cond.index, *values = eqn.invars
                cond.results.append((eqn.outvars[0], values))

    def _picks(self, slicing: jex.JaxprEqn) -> bool:
        """True for a scan of parts, tiles or numbered iterations: it has the array as a constant.

        Any other one goes through it. Numbered iterations of keys, which are no numbers, do so too.
        """
        opened = self._tree.loops[slicing.params["loop"]]
        is_numbered = opened.reads_iteration_number and _is_number(slicing.outvars[0].aval)
        return opened.is_inner_tile or opened.offset is not None or is_numbered

    def _make_visible(self, variable: Atom, path: Path) -> None:
        if isinstance(variable, jex.Var):
            home = self._home.get(variable, ())
            level = path[: len(home)]
            for loop in path[len(home) :]:
                self.loops[loop].constants.setdefault(variable)
            if home != level:
                self._slice(variable, home, level, path)

    def _slice(self, variable: jex.Var, home: Path, level: Path, path: Path) -> None:
        """Makes a value of another loop's iteration readable in the same iteration of a loop."""
        if variable not in self._stack_of:
            self._stack(variable, home, path)
        stack, interface = self._stack_of[variable], self.loops[level[-1]]
        if stack in self.filled:
            interface.picked[variable] = stack
            self._make_visible(stack, level)
        else:
            interface.slices[variable] = stack
            self._make_visible(stack, level[:-1])

    def _stack(self, variable: jex.Var, home: Path, path: Path) -> None:
        """Stacks a value for another body: of a tile the values of all tiles, unless that body is in the same tile.

        Of keys, which are no numbers, there is one stack for each tile, and a stack of these stacks.
        """
        loop = home[-1]
        iterating = self._tree.iterating(loop)
        if len(iterating) > 1 and iterating[0] not in path and _is_number(variable.aval):
            length = prod(self._tree.loops[each].length for each in iterating)
            stack = jex.Var(_compat.stacked_aval(length, variable.aval))
            self._home[stack] = home[: -len(iterating)]
            self.filled[stack] = FilledArray((loop,), [variable], self._tree.loops[loop].eqn)
        else:
            stack = self._stack_of_all(variable, loop)
            self._home[stack] = home[:-1]
            self.loops[loop].stacks.append((variable, stack))
        self._stack_of[variable] = stack

    def _stack_of_all(self, variable: jex.Var, loop: int) -> jex.Var:
        """A stack of the values of all iterations; of a branch a slot that it does not use yet."""
        if loop not in self.conds:
            return jex.Var(self._tree.loops[loop].stacked_aval(variable.aval))
        taken = [slot for _, slot in self.loops[loop].stacks]
        slots = self._slots.setdefault((self.conds[loop].branches, variable.aval), [])
        free = [slot for slot in slots if slot not in taken]
        if not free:
            slots.append(jex.Var(variable.aval))
        return free[0] if free else slots[-1]

    def _pipeline(self, equation: Equation) -> None:
        """An equation an iteration later than what it reads, or an iteration earlier than what reads its result."""
        eqn, (read,), (result,), loop = equation.eqn, equation.eqn.invars, equation.eqn.outvars, equation.loop
        assert loop is not None, "iterations are those of a loop"
        path = self._tree.paths[loop]
        before: Sequence[jex.JaxprEqn] = ()
        if self._home[read] == path:
            before, zeros = zeros_like_aval(read.aval, eqn)
            carry = Carry(init=zeros, current=jex.Var(read.aval), following=read, final=jex.Var(read.aval))
            self._finals[result] = carry.final
            self._home[carry.final] = path[:-1]
            self.shifted[id(eqn)] = eqn.replace(invars=[carry.current])
        else:
            init = self._finals[read]
            self._make_visible(init, path[:-1])
            carry = Carry(init=init, current=result, following=jex.Var(result.aval), final=jex.Var(result.aval))
            self.shifted[id(eqn)] = eqn.replace(outvars=[carry.following])
        self.loops[loop].pipelined.append((carry, before))


def _is_number(aval: jax.core.AbstractValue) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.generic)


def _conds_of(loops: Sequence[OpenLoop]) -> dict[int, Cond]:
    together: dict[int, list[int]] = {}
    for loop, opened in enumerate(loops):
        if opened.cond_branch is not None:
            together.setdefault(opened.cond_branch.branch.cond, []).append(loop)
    conds: dict[int, Cond] = {}
    for branches in together.values():
        cond_branch = loops[branches[0]].cond_branch
        assert cond_branch is not None, "they are branches"
        conds.update(dict.fromkeys(branches, Cond(tuple(branches), cond_branch.index)))
    return conds


def zeros_like_aval(aval: jax.core.AbstractValue, like: jex.JaxprEqn) -> tuple[list[jex.JaxprEqn], Atom]:
    """Zeros of some type, and the equations that make them, with the source of another equation."""
    sharding = None if aval.sharding.mesh.empty else aval.sharding

    def zeros(element: jax.Array) -> jax.Array:
        if not jnp.issubdtype(aval.dtype, jax.dtypes.extended):
            return jax.lax.full(aval.shape, 0, aval.dtype, sharding=sharding)
        return jax.lax.full(aval.shape, jax.random.key(0, impl=str(jax.random.key_impl(element))), sharding=sharding)

    # jax names the implementation of a traced key, not that of its type alone.
    jaxpr = open_jaxpr(jax.make_jaxpr(zeros)(jax.ShapeDtypeStruct((), aval.dtype)))
    eqns = [eqn.replace(source_info=like.source_info, ctx=like.ctx) for eqn in jaxpr.eqns]
    return eqns, jaxpr.outvars[0]
