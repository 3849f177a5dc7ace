"""Memory maps as plain data and back."""

import copy
import json

import pytest
from hypothesis import given, settings, strategies as st

from jaxckpt import FootprintFileError, HloError, load_footprint
from jaxckpt.hlo import memory_from_plain, plain_from_memory


def test_what_is_kept_comes_back_equal(scanned_step):
    plain = json.loads(json.dumps(plain_from_memory(scanned_step.memory)))
    assert memory_from_plain(plain) == scanned_step.memory


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda plain: plain.pop("kernels"), "kernels"),
        (lambda plain: plain["buffers"].pop("born"), "born"),
        (lambda plain: plain["buffers"]["born"].pop(), "shorter"),
        (lambda plain: plain["buffers"]["part"].__setitem__(0, "sideways"), "sideways"),
        (lambda plain: plain["buffers"]["size_bytes"].__setitem__(0, 1.5), "1.5"),
        (lambda plain: plain["buffers"]["size_bytes"].__setitem__(0, True), "True"),
        (lambda plain: plain["buffers"]["dies"].__setitem__(0, 10**9), "lives from"),
        (lambda plain: plain["buffers"]["allocation"].__setitem__(0, 10**9), "does not exist"),
        (lambda plain: plain["buffers"]["offset_bytes"].__setitem__(0, -1), "does not lie"),
        (lambda plain: plain.update(problems=[3]), "3"),
        (lambda plain: plain["frames"]["caller"].__setitem__(0, 0), "called by none before"),
        (lambda plain: plain["frame_of"].__setitem__(0, 10**9), "frame does not exist"),
        (lambda plain: plain["frame_of"].pop(), "stacks of"),
    ],
)
def test_what_was_damaged_is_an_error_that_says_what(scanned_step, edit, said):
    plain = copy.deepcopy(plain_from_memory(scanned_step.memory))
    edit(plain)
    with pytest.raises(HloError, match=said):
        memory_from_plain(plain)


@pytest.mark.parametrize("name", ["made.json", "made.json.gz"])
def test_a_footprint_is_saved_and_loaded_with_its_map(scanned_step, tmp_path, name):
    scanned_step.save(tmp_path / name)
    loaded = load_footprint(tmp_path / name)
    assert loaded == scanned_step
    assert loaded.memory == scanned_step.memory
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_footprint_without_a_map_is_saved_too(scanned_step, tmp_path):
    scanned_step.with_memory(None).save(tmp_path / "made.json")
    assert load_footprint(tmp_path / "made.json").memory is None


def test_a_missing_folder_and_a_missing_file_are_refused(scanned_step, tmp_path):
    with pytest.raises(FootprintFileError, match="mkdir"):
        scanned_step.save(tmp_path / "nowhere" / "made.json")
    with pytest.raises(FootprintFileError, match="cannot be read"):
        load_footprint(tmp_path / "made.json")


@pytest.fixture(scope="module")
def saved(scanned_step, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "made.json"
    scanned_step.save(path)
    return path.read_bytes()


@settings(max_examples=200)
@given(data=st.data())
def test_a_cut_or_edited_file_is_no_other_footprint(saved, scanned_step, tmp_path_factory, data):
    at = data.draw(st.integers(0, len(saved) - 1))
    if data.draw(st.booleans()):
        damaged = saved[:at]
    else:
        damaged = saved[:at] + bytes([data.draw(st.integers(0, 255))]) + saved[at + 1 :]
    path = tmp_path_factory.mktemp("damaged") / "made.json"
    path.write_bytes(damaged)
    try:
        loaded = load_footprint(path)
    except FootprintFileError as error:
        assert str(path) in str(error)
    else:
        assert loaded == scanned_step and loaded.memory == scanned_step.memory
