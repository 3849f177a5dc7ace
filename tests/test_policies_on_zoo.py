"""Every ready policy on one transformer in four dialects: the same numbers, and the work repeated that the plan says.

Numbers are compared in the plain dialect and in one other, repeated work in all four. Both steps are run one operation
at a time, where nothing rounds otherwise, so every bit must be equal. A policy file that is added to `policies/` is
tested by being there.
"""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache, cached_property
from itertools import cycle
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt import Policy, PolicyError, Target, UnsupportedDecisionError, load_policy
from jaxckpt.ir import Graph, Kind, Partition, Phase
from jaxckpt.schedule import schedule
from jaxckpt.solve import Problem, plan_from_policy
from jaxckpt.trace import trace_step
from jaxckpt.verifier import Tolerance, difference, run_one_by_one
from tests.zoo import Case, named
from tests.zoo.case import as_numpy, is_key
from tests.zoo.dialects import DIALECTS, NAMES, dialect
from tests.zoo.dialects.shared import DEPTH

RATES = Target("h200").rates
EXACT = Tolerance(relative=0.0, absolute=0.0)
PRODUCTS = 6 * DEPTH + 1
"""Of the forward pass: six a block, and the head."""
AGAIN = {"everything": 0, "dots": 0, "nothing": 4 * DEPTH}
"""Products that run a second time, by hand: of a block projections, scores, mixing and the first of the feed-forward
part; what the other two make goes through dropout into a sum, and the backward pass reads neither. Not the
head: its backward follows at once."""

policies = pytest.mark.parametrize("policy", jaxckpt.policies())
dialects = pytest.mark.parametrize("name", DIALECTS)
LIBRARIES = [name for name in DIALECTS if name != "plain"]
pairs = pytest.mark.parametrize(
    ("name", "policy"),
    [
        (name, policy)
        for policy, library in zip(jaxckpt.policies(), cycle(LIBRARIES), strict=False)
        for name in ("plain", library)
    ],
)
"""Each policy on the plain model and on one in a library, in turn: to run a step op by op takes ten seconds."""


@pytest.fixture(scope="module", autouse=True)
def _little_effort():
    """Compilers optimise nothing here: single operations need none, and all are treated alike."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A step that runs one operation at a time, when its results are asked for.

    Attributes:
      traced: What JAX traced.
      args: Its arguments.
    """

    traced: Any
    args: tuple[Any, ...]

    @cached_property
    def results(self) -> list[Any]:
        """Its flat results."""
        with mesh_of(self.args):
            return run_one_by_one(self.traced.jaxpr, *jax.tree.leaves(self.args))

    @property
    def tree(self) -> Any:
        """The results as the step returns them: state, loss, gradients."""
        return jax.tree.unflatten(jax.tree.structure(self.traced.out_info), self.results)


@cache
def case_of(name: str) -> Case:
    if DIALECTS[name] is not None:
        pytest.importorskip(DIALECTS[name])
    return dialect(name)


@cache
def graph_of(name: str) -> Graph:
    case = case_of(name)
    return trace_step(case.step, *case.args).graph


@cache
def problem_of(name: str) -> Problem:
    return Problem(graph=graph_of(name), rates=RATES)


@cache
def as_written(name: str, axis: str | None = None) -> Ran:
    return ran(case_of(name).step, arguments(name, axis))


@cache
def applied(name: str, policy: str) -> Ran:
    """The step under a policy; the test is left where policy and step cannot meet, and that is right."""
    chosen = load_policy(policy)
    try:
        return ran(jaxckpt.apply(case_of(name).step, chosen), arguments(name, mesh_axis(chosen)))
    except PolicyError as error:
        assert_does_not_fit(error, chosen, name)
        pytest.skip(f"rules that match nothing here, as the error says: {error.got}")
    except UnsupportedDecisionError as error:
        if mesh_axis(chosen) is None:
            raise
        pytest.skip(f"{error.headline} {error.got}")


def ran(step: Any, args: tuple[Any, ...]) -> Ran:
    with mesh_of(args):
        return Ran(traced=jax.jit(step).trace(*args), args=args)


def mesh_of(args: tuple[Any, ...]) -> AbstractContextManager[Any]:
    """A mesh in the context keeps a step with shards from being one op, rewritten when lowered."""
    sharding = jax.tree.leaves(args)[0].sharding
    return jax.set_mesh(sharding.mesh) if isinstance(sharding, NamedSharding) else nullcontext()


def arguments(name: str, axis: str | None) -> tuple[Any, ...]:
    """The case's arguments, on a mesh of two devices where a policy needs one."""
    args = case_of(name).args
    if axis is None:
        return args
    everywhere = NamedSharding(Mesh(jax.devices()[:2], (axis,)), PartitionSpec())
    return jax.device_put(args, everywhere)


def mesh_axis(policy: Policy) -> str | None:
    return next((rule.decision.axis for rule in policy.rules if isinstance(rule.decision, Partition)), None)


def assert_does_not_fit(error: PolicyError, policy: Policy, name: str) -> None:
    """The rules that match nothing ask for what the model does not have, and the error says what it has."""
    for problem in error.problems:
        (number,) = re.findall(r"rule (\d+)", problem)[:1]
        match = policy.rules[int(number) - 1].match
        named_elsewhere = match.name is not None and not any(fnmatch(each, match.name) for each in NAMES)
        placed = name != "linen" and (match.scope or match.layers or match.every)
        sized = match.min_bytes or match.min_flops or match.dtype or match.collective or match.primitive
        assert named_elsewhere or placed or sized, f"{problem}: the {name} model has what it asks for"
    assert "matches nothing" in error.got
    assert error.advice


def products(traced: Any) -> int:
    return sum(eqn.primitive.name == "dot_general" for eqn in equations(traced.jaxpr))


def equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for param in eqn.params.values():
            for inner in param if isinstance(param, tuple | list) else (param,):
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def planned_again(name: str, policy: str) -> int:
    """How many products the plan of a policy runs again; the plan is made anew, by its own way."""
    graph = graph_of(name)
    plan = plan_from_policy(problem_of(name), load_policy(policy)).plan
    again = [graph.ops[step.op] for step in schedule(graph, plan).steps if getattr(step, "is_clone", False)]
    casts = {Kind.ELEMENTWISE, Kind.VIEW}  # of cotangents, behind the barriers that pass the smaller ones
    assert all(op.phase is Phase.FORWARD or op.kind in casts for op in again)
    products = [op.id for op in again if op.primitive == "dot_general"]
    assert len(set(products)) == len(products), "twice, not three times"
    return len(products)


@dialects
def test_the_dialects_are_one_transformer(name):
    graph = graph_of(name)
    forward = [op for op in graph.ops if op.phase is Phase.FORWARD]
    assert sum(op.primitive == "dot_general" for op in forward) == PRODUCTS
    assert {value.name for value in graph.values} - {None} == set(NAMES)
    state, loss, _ = as_written(name).tree
    before = case_of(name).args[0]
    assert 2 < loss < 6
    assert changed(before["params"], state["params"])
    assert changed(before["statistics"], state["statistics"])


@pairs
def test_loss_gradients_and_state_are_equal_bit_for_bit(name, policy):
    found = applied(name, policy)
    expected = as_written(name, mesh_axis(load_policy(policy)))
    paths = jax.tree_util.tree_flatten_with_path(expected.traced.out_info)[0]
    leaves = zip(paths, expected.results, found.results, strict=True)
    wrong = [jax.tree_util.keystr(path) for (path, _), *two in leaves if not difference("", *two, EXACT).bit_equal]
    assert not wrong


@pairs
def test_parameter_trees_are_unchanged_and_statistics_move_once(name, policy):
    before = case_of(name).args[0]
    state, _, gradients = applied(name, policy).tree
    assert jax.tree.structure(state) == jax.tree.structure(before)
    assert jax.tree.structure(gradients) == jax.tree.structure(before["params"])
    once = as_written(name).tree[0]["statistics"]
    for one, other in zip(jax.tree.leaves(once), jax.tree.leaves(state["statistics"]), strict=True):
        np.testing.assert_array_equal(as_numpy(one), as_numpy(other))


@policies
@dialects
def test_products_run_again_exactly_where_the_plan_says(name, policy):
    found = products(applied(name, policy).traced) - products(as_written(name).traced)
    assert found == planned_again(name, policy)
    assert found == AGAIN.get(policy, found)
    assert found < PRODUCTS


@policies
def test_dialects_repeat_the_same_products(policy):
    chosen = load_policy(policy)
    if any(rule.match.scope or rule.match.layers or rule.match.every for rule in chosen.rules):
        pytest.skip("places have paths in Linen alone")
    counts = {name: products(applied(name, policy).traced) for name in DIALECTS}
    assert len(set(counts.values())) == 1, counts


def by_name() -> list[str]:
    return [p for p in jaxckpt.policies() if any(rule.match.name for rule in load_policy(p).rules)]


@pytest.mark.parametrize("policy", by_name())
def test_names_that_are_not_there_are_refused_with_what_is_there(policy):
    case = named("plain_transformer").make()
    with pytest.raises(PolicyError, match="nothing here has a name") as caught:
        jax.eval_shape(jaxckpt.apply(case.step, policy), *case.args)
    assert len(caught.value.problems) >= sum(bool(rule.match.name) for rule in load_policy(policy).rules)


def test_the_compiled_step_is_within_rounding():
    case = case_of("plain")
    jaxckpt.verify(case.step, jaxckpt.apply(case.step, "nothing"), *case.args).check()


def changed(before: Any, after: Any) -> bool:
    """Whether every float array has moved."""
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    floats = ((a, b) for a, b in pairs if not is_key(a) and np.issubdtype(as_numpy(a).dtype, np.floating))
    return all(not np.array_equal(as_numpy(one), as_numpy(other)) for one, other in floats)
