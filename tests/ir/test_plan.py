"""Plans are data: ordered, frozen, comparable."""

import copy
import pickle

import pytest

from jaxckpt.ir import GraphPlan, Offload, Recompute, Save


def test_equal_decisions_make_equal_plans_with_equal_hashes():
    first = GraphPlan(fingerprint="f", decisions={2: Save(), 1: Recompute()})
    second = GraphPlan(fingerprint="f", decisions={1: Recompute(), 2: Save()})
    assert first == second and hash(first) == hash(second)
    assert list(first.decisions) == [1, 2]


def test_another_decision_makes_another_plan():
    assert GraphPlan(fingerprint="f", decisions={1: Save()}) != GraphPlan(fingerprint="f", decisions={1: Offload()})


def test_decisions_cannot_be_changed():
    with pytest.raises(TypeError):
        GraphPlan(fingerprint="f", decisions={1: Save()}).decisions[1] = Recompute()


def test_a_plan_can_be_sent_to_another_process():
    plan = GraphPlan(fingerprint="step", decisions={3: Save(), 1: Recompute()}, strategy="by hand")
    for copied in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert copied == plan
        assert (copied.strategy, list(copied.decisions)) == ("by hand", [1, 3])
