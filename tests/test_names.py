"""Names mean one thing, and sentences name their subject: what `benchmarks.counts` counts may not grow again."""

import ast

import pytest

from benchmarks.counts import attributes, banned_identifiers, files, is_banned, questions, twice, wide_classes

TWICE: dict[str, str] = {}
"""Class names that two files define, with the reason. The list may only become shorter."""

BANNED = {
    "machine/calibration_file.py: alone": "the former name of a public method, which warns",
}
"""Identifiers with a word of the old dialect, with the reason. The list may only become shorter."""

WIDE = {
    "compiler/footprint_data.py: Footprint": "public data, one figure an attribute",
    "dynamic/simulation.py: Simulation": "public data, one figure an attribute",
    "dynamic/state.py: Machine": "arrays of the compiled engine, handed to every loop",
    "hlo/memory.py: Buffer": "public data, one fact an attribute",
    "ir/graph.py: Op": "one fact an attribute; hashed and compared as a record",
    "machine/calibration_file.py: Calibration": "keys of a file",
    "machine/device_facts.py: GpuFacts": "keys of a file",
    "oom/out_of_memory.py: OutOfMemory": "public data, one fact an attribute",
    "planner/document.py: _PlanFile": "keys of a file",
}
"""Classes of more attributes than a person can hold in mind, with the reason: all are records without behaviour. The
list may only become shorter."""


def test_no_class_name_stands_for_two_things():
    assert {line.partition(":")[0] for line in twice()} == set(TWICE)


def test_no_identifier_has_a_word_of_the_old_dialect():
    assert set(banned_identifiers()) == set(BANNED)


def test_docstrings_open_with_the_thing_not_with_a_question():
    assert not list(questions())


def test_no_class_has_more_attributes_than_a_person_can_hold():
    assert {line.rpartition(" ")[0] for line in wide_classes()} == set(WIDE)


@pytest.mark.parametrize(
    ("name", "banned"),
    [("late_read", True), ("StayAway", True), ("turns", True), ("return_value", False), ("flight", False)],
)
def test_a_banned_word_is_seen_wherever_it_is_in_a_name(name, banned):
    assert is_banned(name) is banned


def test_attributes_are_counted_in_fields_and_in_methods():
    tree = ast.parse("class A:\n    x: int\n    y: int\n    def f(self):\n        self.z = 1\n        self.x = 2\n")
    assert dict(attributes(tree)) == {"A": 3}


def test_the_counts_are_of_the_package():
    assert any(path.name == "planner.py" for path in files())
