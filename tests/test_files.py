"""Files are written completely or not at all; a path that takes none is an error that says why."""

import pytest

import jaxckpt
from jaxckpt._errors import FootprintFileError, PictureError, PolicyError, TargetError
from jaxckpt.compiler import Footprint
from jaxckpt.hlo import MemoryMap
from jaxckpt.machine.calibration_file import Calibration
from jaxckpt.report.trace_events import save_trace

MEMORY = MemoryMap(program="step", kernels=(), buffers=(), allocations=())
FOOTPRINT = Footprint(argument_bytes=3, output_bytes=2, alias_bytes=1, temp_bytes=7, memory=MEMORY)
CALIBRATION = Calibration(device_kind="H200", platform="cuda", driver="580", date="2026-11-24", source="one H200")

WRITERS = {
    "a footprint": (FootprintFileError, "made.json", FOOTPRINT.save),
    "a trace": (FootprintFileError, "made.json", lambda path: save_trace(FOOTPRINT, path)),
    "a policy": (PolicyError, "made.toml", jaxckpt.load_policy("dots").save),
    "a calibration": (TargetError, "made.toml", CALIBRATION.save),
    "a page": (PictureError, "made.html", lambda path: jaxckpt.draw(MEMORY, path)),
    "a figure": (PictureError, "made.svg", lambda path: jaxckpt.draw(MEMORY, path)),
}
written = pytest.mark.parametrize(("error", "name", "write"), WRITERS.values(), ids=WRITERS)


@written
def test_a_folder_that_is_not_there_is_named(error, name, write, tmp_path):
    with pytest.raises(error, match="its folder is not there") as caught:
        write(tmp_path / "absent" / name)
    assert str(tmp_path / "absent") in caught.value.advice


@written
def test_a_folder_is_no_file(error, name, write, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(error, match="it is a folder"):
        write(tmp_path / name)


@written
def test_a_path_that_takes_a_file_gets_one(error, name, write, tmp_path):
    write(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]
