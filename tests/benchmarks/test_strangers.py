"""The battery of strangers: every step traces and wraps its blocks, and findings say what is wrong with a plan."""

import jax
import pytest

from benchmarks import asking
from benchmarks.strangers import SMALL, STRANGERS, findings, questions, running, table

MIB = 2**20


def test_the_battery_is_wide():
    assert len(STRANGERS) >= 60
    assert len({stranger.family for stranger in STRANGERS.values()}) >= 15
    assert len(set(SMALL)) == 12
    assert set(SMALL) <= STRANGERS.keys()


def test_no_name_hides_another_and_no_step_is_drawn_twice():
    assert len(list(table._strangers())) == len(STRANGERS)
    drawn = [(stranger.recipe.build, sorted(stranger.sizes.items())) for stranger in STRANGERS.values()]
    assert all(drawn.count(each) == 1 for each in drawn if each[1])


def test_draws_are_the_same_on_every_machine():
    first = {"width": 1536, "rows": 65536, "layers": 8, "dtype": "bfloat16", "activation": "gelu"}
    assert STRANGERS["plain-mlp-1"].sizes == first


@pytest.mark.parametrize("name", STRANGERS)
def test_small_steps_trace_with_their_blocks_wrapped(name):
    calls = []

    def wrap(block, *, in_loop=False):
        def counted(*args):
            calls.append(in_loop)
            return block(*args)

        return counted

    step = STRANGERS[name].small(wrap)
    results = jax.eval_shape(step.function, *step.args)
    assert calls
    for position in (step.donate_argnums,) if isinstance(step.donate_argnums, int) else step.donate_argnums:
        shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(step.args[position])]
        assert shapes == [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(results[position])]


def answer(mib, seconds, **more):
    return {"total_bytes": mib * MIB, "step_s": seconds, **more}


def record(plans=()):
    rules = {"rule full": answer(400, 1.2), "rule sqrt": answer(600, 1.1), "rule every:2": answer(1000, 1.0)}
    budgets = {f"budget {mib * MIB}": plan for mib, plan in dict(plans).items()}
    return {"family": "mlp", "answers": {"as written": answer(1000, 1.0), **rules, **budgets}}


def test_budgets_are_the_totals_of_rules_that_lower_it():
    assert questions.budgets(record()["answers"]) == [600 * MIB, 400 * MIB]


def test_a_good_plan_has_no_finding():
    steps = {"good": record({600: answer(590, 1.05), 400: answer(390, 1.15)})}
    compared = findings.comparisons(steps)
    assert [each.finding for each in compared] == [None, None]
    assert sorted(each.ratio for each in compared) == pytest.approx([0.5, 0.75])
    assert findings.worst(steps["good"]["answers"], compared) == ""


def test_the_worst_finding_is_a_refusal_before_a_slower_plan():
    refusal = {"refused": True, "minimum_bytes": 500 * MIB}
    steps = {"bad": record({600: answer(600, 1.2), 400: refusal})}
    compared = findings.comparisons(steps)
    assert findings.worst(steps["bad"]["answers"], compared) == "refused at `full`, 400 MiB: at least 500 MiB"
    assert findings.too_large(steps["bad"]["answers"]) == pytest.approx(0.25)
    text = findings.tables(steps)
    assert "| refused where a rule fits | 1 |" in text
    assert "| smallest total at or below every rule's | 0 of 1 |" in text
    assert "+9.1% slower at `sqrt`" in text


def test_plans_for_budgets_alone_say_nothing_of_the_smallest_total():
    answers = record({600: answer(600, 1.1)})["answers"]
    assert findings.smallest_bytes(answers) is None
    assert findings.too_large(answers) == 0
    asked = {**answers, questions.SMALLEST: answer(500, 1.3)}
    assert findings.smallest_bytes(asked) == 500 * MIB
    assert findings.too_large(asked) == pytest.approx(0.25)


def test_a_larger_budget_whose_plan_is_slower_is_counted():
    assert findings.slower_with_more(record({600: answer(600, 1.1), 400: answer(400, 1.2)})["answers"]) == 0
    assert findings.slower_with_more(record({600: answer(600, 1.3), 400: answer(400, 1.2)})["answers"]) == 1


def test_a_failure_is_listed_with_its_question():
    steps = {"broken": {"family": "mlp", "answers": {"as written": {"error": "ValueError: no", "wall_s": 1.0}}}}
    assert "- broken, as written: ValueError: no" in findings.tables(steps)


def test_a_process_that_ends_early_is_an_answer(monkeypatch):
    monkeypatch.setattr(asking.sys, "executable", "false")
    ((question, failure),) = asking.ask(running.MODULE, "readme-tanh", {}, seconds=60)
    assert (question, failure["error"]) == (asking.START, "the process ended with code 1")


def test_answers_hold_for_the_same_sizes_and_versions():
    asked = {"family": "mlp", "sizes": {"width": 8}, "versions": {"jax": "1"}}
    answers = {"as written": {}, "rule full": {}, "rule sqrt": {"error": "no"}, "budget 5": {}}

    def known(record, asked=asked, again=None):
        return asking.known_answers(record, asked, again=again, by_hand=running.BY_HAND)

    record = {**asked, "answers": answers}
    assert [len(known(record, again=again)) for again in (None, *asking.AGAIN)] == [4, 3, 2, 0]
    assert not known(record, {**asked, "sizes": {}})
    assert not known({}, asked)
