"""Programs that we never compiled: XLA's dumps as folders, as binary files and as text."""

import pytest
from hypothesis import given, settings, strategies as st

from jaxckpt import HloError
from jaxckpt.compiler import compile_step, footprint, footprint_of_dump
from jaxckpt.hlo import Role
from tests.hlo.conftest import BATCH, STACKED, scan_step

AS_TEXT = "xla_dump_hlo_as_text"
AS_PROTO = "xla_dump_hlo_as_proto"


@pytest.fixture(scope="module")
def folders(h200, tmp_path_factory):
    """One step dumped in binary and as text, and its own footprint."""
    made = {}
    for option in (AS_PROTO, AS_TEXT):
        folder = tmp_path_factory.mktemp("dump")
        options = (("xla_dump_to", str(folder)), (AS_PROTO, option == AS_PROTO), (AS_TEXT, option == AS_TEXT))
        compile_step(scan_step, STACKED, BATCH, target=h200, donate_argnums=0, compiler_options=options)
        made[option] = folder
    return made


@pytest.fixture(scope="module")
def own(h200):
    return footprint(scan_step, STACKED, BATCH, target=h200, donate_argnums=0)


@pytest.mark.parametrize("option", [AS_PROTO, AS_TEXT])
def test_a_dumped_program_takes_what_the_compiled_one_takes(folders, own, option):
    made = footprint_of_dump(folders[option], target="h200")
    for figure in ("argument_bytes", "alias_bytes", "temp_bytes", "step_s"):
        assert getattr(made, figure) == getattr(own, figure)
    assert abs(made.memory.peak_bytes - own.memory.peak_bytes) <= 64  # text does not say when a loop's counter is freed
    assert made.memory.problems == ()
    assert "held against no statistics" in made.caveats[0]


def test_text_and_binary_dumps_give_the_same_large_buffers(folders):
    def large(option):
        buffers = footprint_of_dump(folders[option]).memory.buffers
        return {
            (b.name, b.shape, b.offset_bytes, b.born, b.dies, b.role)
            for b in buffers
            if b.size_bytes >= 2**20 and b.role is not Role.INPUT
        }

    binary, text = large(AS_PROTO), large(AS_TEXT)
    assert binary
    assert len(binary ^ text) <= 0.1 * len(binary)


def test_one_file_of_a_folder_is_read(folders):
    (file,) = folders[AS_TEXT].glob("*after_optimizations.txt")
    assert footprint_of_dump(file).temp_bytes == footprint_of_dump(folders[AS_TEXT]).temp_bytes


def test_a_folder_without_dumps_says_how_to_get_some(tmp_path):
    with pytest.raises(HloError, match="xla_dump_to"):
        footprint_of_dump(tmp_path)
    with pytest.raises(HloError, match="cannot be read"):
        footprint_of_dump(tmp_path / "missing.hlo.pb")


def test_a_text_without_its_assignment_names_the_missing_file(folders, tmp_path):
    (file,) = folders[AS_TEXT].glob("*after_optimizations.txt")
    alone = tmp_path / file.name
    alone.write_bytes(file.read_bytes())
    with pytest.raises(HloError, match=r"without .* beside it"):
        footprint_of_dump(alone)


def test_a_text_that_is_no_hlo_is_refused_by_xlas_parser(folders, tmp_path):
    (file,) = folders[AS_TEXT].glob("*after_optimizations.txt")
    (assignment,) = folders[AS_TEXT].glob("*after_optimizations-buffer-assignment.txt")
    (tmp_path / file.name).write_text("HloModule nonsense, is_scheduled=perhaps")
    (tmp_path / assignment.name).write_bytes(assignment.read_bytes())
    with pytest.raises(HloError, match="XLA's parser refuses"):
        footprint_of_dump(tmp_path)


@settings(max_examples=40)
@given(data=st.data())
def test_a_damaged_assignment_is_refused_or_consistent(folders, tmp_path_factory, data):
    (file,) = folders[AS_TEXT].glob("*after_optimizations.txt")
    (assignment,) = folders[AS_TEXT].glob("*after_optimizations-buffer-assignment.txt")
    lines = assignment.read_text().splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    if data.draw(st.booleans()):
        lines[at] = lines[at].replace(data.draw(st.sampled_from("0123456789:,= ")), data.draw(st.sampled_from("x9 ")))
    else:
        del lines[at]
    tmp_path = tmp_path_factory.mktemp("edited")
    (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / assignment.name).write_text("\n".join(lines))
    try:
        made = footprint_of_dump(tmp_path)
    except HloError as error:
        assert "Got:" in str(error)
    else:
        assert made.memory.peak_bytes <= made.temp_bytes
        # One figure off may still be a possible size: whatever was read lies within what XLA allocates.
        sizes = made.memory.by_index
        assert all(b.offset_bytes + b.size_bytes <= sizes[b.allocation].size_bytes for b in made.memory.temporaries)
