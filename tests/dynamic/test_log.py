"""Programs are written in DTR's log format and read back; others' logs are read as DTR's simulator reads them."""

import json
from pathlib import Path

import pytest
from hypothesis import given

from jaxckpt.dynamic import (
    ProgramError,
    log_from_program,
    program_from_log,
    read_log,
    simulate,
    unit_chain,
    unlimited_bytes,
    write_log,
)
from jaxckpt.dynamic.program import Get, Keep, Note, Release, RunCall
from tests.dynamic.programs import programs


def line(instruction, **fields):
    return json.dumps({"INSTRUCTION": instruction, **fields})


def made(name, *, size=8, alias=-1):
    return [line("MEMORY", NAME=name, MEMORY=str(size)), line("ALIAS", NAME=name, ALIAS=str(alias))]


LOG = [
    line("CALL", NAME="before", RESULT=[], ARGS=[], TIME="1"),
    line("ANNOTATE", ANNOTATION="START"),
    line("CONSTANT", NAME="w"),
    line("MEMORY", NAME="w", MEMORY="16"),
    line("CALL", NAME="split", RESULT=["a", "b"], ARGS=["w"], TIME="700"),
    *made("a"),
    *made("b"),
    line("CALL", NAME="view", RESULT=["v"], ARGS=["a"], TIME="10"),
    *made("v", size=8, alias=0),
    line("COPY", DST="c", SRC="b"),
    line("RELEASE", NAME="b"),
    line("ANNOTATE", ANNOTATION="BACKWARD"),
    line("MUTATE", NAME="add_", ARGS=["a", "c"], MUTATE=[0], TIME="30"),
    line("COPY_FROM", DST="v", SRC="c"),
    line("RELEASE", NAME="nobody"),
    line("RELEASE", NAME="c"),
]


def test_every_instruction_is_read():
    program = program_from_log(LOG)
    program.validate()
    assert [call.name for call in program.calls] == ["split", "view", "add_"]
    assert [call.price for call in program.calls] == [700, 10, 30]
    assert program.tensors[3].view_of == 1 and program.tensors[3].size_bytes == 0
    assert program.calls[2].replaces == (1,) and program.tensors[4].size_bytes == 8
    kinds = [type(each).__name__ for each in program.statements]
    assert kinds == [
        *[
            "Constant",
            "RunCall",
            "RunCall",
            "Get",
            "Release",
            "Note",
            "RunCall",
            "Release",
            "Release",
            "Get",
            "Release",
        ],
        *["Keep"] * 3,
    ]
    assert {each.tensor for each in program.statements if isinstance(each, Keep)} == {0, 2, 4}


def test_what_stands_before_the_start_can_be_read_too():
    assert len(program_from_log(LOG, start=False).calls) == 4


def test_a_log_runs(tmp_path):
    path = tmp_path / "log"
    path.write_text("\n".join(LOG))
    found = simulate(read_log(path), budget=48, evictor="dtr_eq")
    assert found.ok and found.base_price == 740


@given(programs())
def test_what_is_written_is_read_back(program):
    again = program_from_log(log_from_program(program))
    assert [(c.price, c.reads, c.writes) for c in again.calls] == [(c.price, c.reads, c.writes) for c in program.calls]
    assert [t.size_bytes for t in again.tensors] == [t.size_bytes for t in program.tensors]
    assert [t.view_of for t in again.tensors] == [t.view_of for t in program.tensors]
    wanted = [each for each in program.statements if isinstance(each, (RunCall, Get, Release))]
    assert [each for each in again.statements if isinstance(each, (RunCall, Get, Release))] == wanted


def test_the_unit_chain_counts_the_same_from_a_file(tmp_path):
    write_log(unit_chain(16), tmp_path / "chain.log")
    chain = read_log(tmp_path / "chain.log")
    without_results = tuple(each for each in chain.statements if not isinstance(each, (Keep, Note)))
    assert (
        simulate(
            type(chain)(tensors=chain.tensors, calls=chain.calls, statements=without_results), budget=8, evictor="dtr"
        ).operations
        == 41
    )


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        (["{"], 1),
        (["[]"], 1),
        ([line("JUMP", NAME="x")], 1),
        ([line("CONSTANT", NAME="x"), line("MEMORY", NAME="y", MEMORY="1")], 2),
        ([line("CONSTANT", NAME="x")], 1),
        ([line("MEMORY", NAME="x", MEMORY="1")], 1),
        (["", line("CALL", NAME="f", RESULT=["y"], ARGS=["x"], TIME="1")], 2),
        ([line("COPY", DST="y", SRC="x")], 1),
        ([line("CALL", NAME="f", RESULT=[], ARGS=[], TIME="soon")], 1),
        ([line("CALL", NAME="f", RESULT=[], ARGS=[])], 1),
    ],
)
def test_what_cannot_be_read_is_named_by_its_line(lines, number):
    with pytest.raises(ProgramError, match=f"line {number} of the log"):
        program_from_log(lines)


RESIDUAL = Path(__file__).parent / "residual.log"
"""Nine layers of a convolution, a normalisation of three results, a mutation and a view, with a skip connection every
third layer, forward and backward: all instructions of the format."""

RULES = ("dtr", "dtr_eq", "local", "lru", "size", "msps")
GOLDEN = {
    800: (31384, 31384, 31384, 32869, 33395, 31387),
    700: (31823, 31823, 31743, 34076, 34415, 31625),
    600: (73488, 39373, 32765, 85892, 37755, 32765),
    550: (74575, 39375, 34907, 98863, 41256, 37087),
    500: (87145, 97458, 36071, 115380, 43515, 36339),
    475: (97665, 98678, 100808, 115844, 46667, 40889),
    450: (None, 115673, 113477, 126980, 51661, 45968),
    425: (None, None, None, None, 53147, 45964),
    400: (None, None, None, None, 68531, 64243),
}
"""For each budget the nanoseconds of all calls, from one on, that DTR's own simulator counts under the rules above
(dtr-prototype at eff53cc4, RuntimeV2EagerOptimized); None where it runs out of memory."""


@pytest.mark.parametrize("budget", GOLDEN)
def test_a_log_takes_as_long_as_in_dtrs_simulator(budget):
    program = read_log(RESIDUAL)
    for rule, golden in zip(RULES, GOLDEN[budget], strict=True):
        found = simulate(program, budget=budget, evictor=rule, limit=20)
        counted = 1 + found.base_price + found.recompute_price if found.ok else None
        assert (rule, counted) == (rule, golden)
        assert found.ok or found.status == "out of memory"


def test_the_log_takes_as_much_memory_as_in_dtrs_simulator():
    program = read_log(RESIDUAL)
    assert (program.base_price, program.constant_bytes, unlimited_bytes(program)) == (30916, 157, 921)
