"""Snapshots as data and as files, and what two of them mean."""

import dataclasses
import hashlib
import json
import tomllib
from pathlib import Path

import pytest
import tomlkit
from hypothesis import assume, example, given, strategies as st

from jaxckpt._errors import BudgetError, FootprintAssertionError, SnapshotFileError
from jaxckpt.testing import SnapshotCheck, load_snapshot, save_snapshot, snapshot_from_footprint
from jaxckpt.testing.change import AllowedGrowth, Change, tolerance_from
from jaxckpt.testing.check import WriteMode
from jaxckpt.testing.file import Owner, snapshot_path
from jaxckpt.testing.snapshot import ScopeBytes, Snapshot, natural_order
from tests.testing.footprints import MIB, made

OWNER = Owner(test="test_step[8]", name="eval")
SNAPSHOT = snapshot_from_footprint(made(compiler_options=(("xla_flag", True),)))
NONE = AllowedGrowth(share=0, least_bytes=0)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("written") / "a.toml"
    save_snapshot(SNAPSHOT, path, owner=OWNER)
    return path.read_bytes()


### Data


def test_a_snapshot_has_all_footprint_totals_and_live_bytes_once():
    footprint = made(constant_bytes=5, host_temp_bytes=7)
    snapshot = snapshot_from_footprint(footprint)
    assert (snapshot.total_bytes, snapshot.host_bytes) == (footprint.total_bytes, 7)
    assert snapshot.peak_bytes == footprint.memory.peak_bytes
    held = sum(b.size_bytes for b in footprint.memory.held())
    assert sum(each.held_bytes for each in snapshot.scopes) == held == 24 * MIB


@pytest.mark.parametrize("depth", [1, 2, 3, 9])
def test_no_depth_loses_bytes(depth):
    snapshot = snapshot_from_footprint(made(), depth=depth)
    assert snapshot.peak_bytes == made().memory.peak_bytes
    assert max(each.scope.count("/") for each in snapshot.scopes) < depth


def test_layers_are_in_the_order_of_their_numbers():
    scopes = [each.scope for each in SNAPSHOT.scopes]
    assert scopes == [*(f"GPT/block_{i}/mlp" for i in range(12)), "GPT/head"]
    assert sorted(["a10", "a9", "a09", "a", ""], key=natural_order) == ["", "a", "a09", "a9", "a10"]


def test_a_footprint_without_a_map_has_no_scopes_and_says_so():
    snapshot = snapshot_from_footprint(made(memory=None))
    assert not snapshot.is_mapped
    assert snapshot.scopes == ()
    assert snapshot.total_bytes == made().total_bytes


### Changes


def change(before=None, after=None, tolerance=NONE) -> Change:
    return Change(
        before=snapshot_from_footprint(made(**(before or {}))),
        after=snapshot_from_footprint(made(**(after or {}))),
        tolerance=tolerance,
    )


@pytest.mark.parametrize(
    ("tolerance", "grown_bytes", "fails"),
    [
        (NONE, 0, False),
        (NONE, 1, True),
        (AllowedGrowth(share=0.01, least_bytes=MIB), MIB, False),
        (AllowedGrowth(share=0.01, least_bytes=MIB), MIB + 1, True),
        (AllowedGrowth(share=0.5, least_bytes=1), 48 * MIB, False),
        (AllowedGrowth(share=0.5, least_bytes=1), 49 * MIB, True),
    ],
)
def test_growth_is_accepted_up_to_the_larger_of_share_and_bytes(tolerance, grown_bytes, fails):
    grown = {"temp_bytes": made().temp_bytes + grown_bytes}
    assert change(after=grown, tolerance=tolerance).is_costlier is fails


def test_less_on_the_device_does_not_pay_for_more_on_the_host():
    moved = change(after={"layer_mib": 1, "host_temp_bytes": 12 * MIB})
    assert moved.total_bytes == -12 * MIB
    assert moved.is_costlier


def test_only_changed_scopes_are_listed_and_absent_ones_are_zero():
    same = change()
    assert same.scopes == () and same.notes == ()
    renamed = change(after={"name": "layer"})
    assert {each.scope.split("_")[0]: each.peak_bytes for each in renamed.scopes} == {
        "GPT/block": -2 * MIB,
        "GPT/layer": 2 * MIB,
    }


def test_other_versions_options_and_missing_maps_are_said():
    assert "made with jax 0.11 and compiler 0.12.0; here are jax 0.12.0" in change({"jax_version": "0.11"}).notes[0]
    options = change(after={"compiler_options": (("xla_a", 1), ("xla_b", False))})
    assert "options none; here are xla_a=1, xla_b=False" in options.notes[0]
    assert "no difference by layer" in change({"memory": None}).notes[0]
    assert change({"memory": None}).scopes == ()


@pytest.mark.parametrize("share", [-0.1, 1, 2.5, float("nan"), "1%", None, True])
def test_what_is_no_tolerance_is_refused(share):
    with pytest.raises(BudgetError, match="no share"):
        tolerance_from(share, "1MiB")


def test_a_tolerance_may_be_nothing():
    assert tolerance_from(0, 0) == NONE
    with pytest.raises(BudgetError):
        tolerance_from(0, "many")


### Files


def test_a_file_reads_back_equal_and_equal_layers_are_one_line(written):
    text = written.decode()
    assert '{scope = "GPT/block_*/mlp", layers = "0-11", held_bytes = 2097152, peak_bytes = 2097152}' in text
    assert "# held 2 MiB, peak 2 MiB" in text
    assert "total_bytes = 101711872 # 97 MiB" in text
    assert len(text.splitlines()) < 30


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
scopes = st.lists(st.sampled_from(["", "a", "a/0", "a/1", "a/2", "b_01", "b_1", "a/*", "0/1", "1/1", "ü\x7f\n'\"#"]))
bytes_ = st.integers(0, 2**50)


@given(names, scopes, st.lists(st.tuples(bytes_, bytes_), min_size=11, max_size=11), names)
def test_every_snapshot_reads_back_equal(tmp_path_factory, target, paths, sizes, option):
    rows = {s: ScopeBytes(scope=s, held_bytes=h, peak_bytes=p) for s, (h, p) in zip(paths, sizes, strict=False)}
    snapshot = Snapshot(
        target=target,
        argument_bytes=sizes[0][0],
        output_bytes=sizes[1][0],
        alias_bytes=0,
        temp_bytes=sizes[2][0],
        compiler_options=((option, target),),
        is_mapped=True,
        scopes=tuple(sorted(rows.values(), key=lambda each: natural_order(each.scope))),
    )
    path = tmp_path_factory.mktemp("any") / "deep" / "a.toml"
    save_snapshot(snapshot, path, owner=OWNER)
    assert load_snapshot(path, owner=OWNER) == snapshot
    assert [each.name for each in path.parent.iterdir()] == ["a.toml"]


def test_what_no_file_can_hold_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(SnapshotFileError, match="cannot be written"):
        save_snapshot(dataclasses.replace(SNAPSHOT, target="\ud800"), tmp_path / "a.toml", owner=OWNER)
    with pytest.raises(SnapshotFileError, match="at least 0"):
        save_snapshot(dataclasses.replace(SNAPSHOT, temp_bytes=-1), tmp_path / "a.toml", owner=OWNER)
    assert not list(tmp_path.iterdir())


def read(data: bytes, folder: Path) -> Snapshot:
    path = folder / "a.toml"
    path.write_bytes(data)
    return load_snapshot(path, owner=OWNER)


@given(st.data())
def test_a_file_that_was_cut_off_is_refused(tmp_path_factory, written, data):
    end = data.draw(st.integers(0, len(written.rstrip()) - 1))
    with pytest.raises(SnapshotFileError, match="no snapshot that can be compared"):
        read(written[:end], tmp_path_factory.mktemp("cut"))


@given(st.data())
def test_an_edited_byte_is_refused_or_changes_nothing(tmp_path_factory, written, data):
    at = data.draw(st.integers(0, len(written) - 1))
    edited = written[:at] + bytes([data.draw(st.integers(0, 255))]) + written[at + 1 :]
    try:
        found = read(edited, tmp_path_factory.mktemp("edited"))
    except SnapshotFileError as error:
        assert "Try:" in str(error)
    else:
        assert found == SNAPSHOT  # white space and comments


@given(st.data())
def test_an_edited_line_is_refused_or_changes_nothing(tmp_path_factory, written, data):
    lines = written.decode().splitlines()
    first, second = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
    how = data.draw(st.sampled_from(["swap", "drop", "double", "digit"]))
    match how:
        case "swap":
            lines[first], lines[second] = lines[second], lines[first]
        case "drop":
            del lines[first]
        case "double":
            lines.insert(second, lines[first])
        case "digit":
            lines[first] = lines[first].replace("2", "9")
    try:
        found = read("\n".join(lines).encode(), tmp_path_factory.mktemp("lines"))
    except SnapshotFileError:
        pass
    else:
        assert found == SNAPSHOT


FOREIGN = [
    b"",
    b"\xff\xfe",
    b"{}",
    b'format = "jaxckpt plan"\nversion = 1\n',
    b'format = "jaxckpt snapshot"\nversion = 2\n',
    b'format = "jaxckpt snapshot"\nversion = 1\n',
    b'format = "jaxckpt snapshot"\nversion = 2024-01-01\n',
    b"a = " + b"[" * 100_000,
    b"a = " + b"9" * 10_000,
]


@given(st.binary(max_size=200))
@example(FOREIGN[0])
def test_a_foreign_file_is_refused(tmp_path_factory, data):
    with pytest.raises(SnapshotFileError):
        read(data, tmp_path_factory.mktemp("foreign"))


@pytest.mark.parametrize("data", FOREIGN, ids=range(len(FOREIGN)))
def test_known_foreign_files_are_refused(tmp_path, data):
    with pytest.raises(SnapshotFileError):
        read(data, tmp_path)


def forged(document: dict, **changes) -> bytes:
    """A file with other contents and the digest that belongs to them."""
    contents = {key: value for key, value in (document | changes).items() if key != "digest"}
    text = json.dumps(contents, sort_keys=True, separators=(",", ":"), default=str)
    return tomlkit.dumps(contents | {"digest": hashlib.sha256(text.encode()).hexdigest()[:16]}).encode()


values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["scope", "layers"]), inner),
)


@given(st.sampled_from(["target", "scopes", "temp_bytes", "is_mapped", "compiler_options", "test"]), values)
def test_wrong_values_are_refused_even_with_a_fitting_digest(tmp_path_factory, written, key, value):
    assume(type(value) not in {"target": [str], "is_mapped": [bool]}.get(key, []) and value != [])
    with pytest.raises(SnapshotFileError):
        read(forged(tomllib.loads(written.decode()), **{key: value}), tmp_path_factory.mktemp("forged"))


def test_a_layer_list_without_end_is_refused_at_once(tmp_path, written):
    rows = [{"scope": "a_*", "layers": "0-99999999999", "held_bytes": 1, "peak_bytes": 1}]
    with pytest.raises(SnapshotFileError, match="does not name"):
        read(forged(tomllib.loads(written.decode()), scopes=rows), tmp_path)


def test_the_snapshot_of_another_test_is_refused(tmp_path):
    save_snapshot(SNAPSHOT, tmp_path / "a.toml", owner=OWNER)
    with pytest.raises(SnapshotFileError, match="it is the snapshot of test_step"):
        load_snapshot(tmp_path / "a.toml", owner=Owner(test="test_other"))


odd = st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=8) | st.text("a[-]:./", max_size=8)


@given(odd, odd, odd, odd)
@example("test[a", "n]", "test[a--n]", "")
@example("a::b", "", "a.b", "")
@example("a", "b--c", "a--b", "c")
def test_no_two_snapshots_share_a_file(test, name, other_test, other_name):
    one, other = Owner(test=test, name=name), Owner(test=other_test, name=other_name)
    module = Path("tests/test_a.py")
    paths = snapshot_path(module, one), snapshot_path(module, other)
    assert (one == other) == (paths[0] == paths[1])
    assert all(path.parent == Path("tests/__footprints__/test_a") and path.suffix == ".toml" for path in paths)


def test_long_names_stay_within_what_file_systems_take():
    path = snapshot_path(Path("test_a.py"), Owner(test="t" * 500, name="n" * 500))
    assert len(path.name) < 120


### The check


def check(folder, **more) -> SnapshotCheck:
    return SnapshotCheck(module=folder / "test_a.py", test="test_step", **{"say": lambda sentence: None, **more})


def test_an_unchanged_snapshot_is_not_written_again(tmp_path):
    check(tmp_path)(made())
    (path,) = tmp_path.rglob("*.toml")
    before = path.stat().st_mtime_ns, path.stat().st_ino
    said = []
    check(tmp_path, mode=WriteMode.UPDATE, say=said.append)(made())
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before
    assert said == []


def test_a_snapshot_is_compared_at_its_own_depth(tmp_path):
    check(tmp_path)(made(), depth=2)
    with pytest.raises(FootprintAssertionError) as raised:
        check(tmp_path)(made(layer_mib=4), depth=5)
    assert [each.scope for each in raised.value.change.scopes][:2] == ["GPT/block_0", "GPT/block_1"]


def test_a_wrong_file_is_reported_before_anything_is_compiled(tmp_path):
    def never(x):
        raise RuntimeError("traced")

    with pytest.raises(SnapshotFileError, match="there is no snapshot"):
        check(tmp_path, mode=WriteMode.STRICT)(never, 1.0)


def test_the_difference_folds_layers_that_changed_alike(tmp_path):
    check(tmp_path)(made())
    with pytest.raises(FootprintAssertionError) as raised:
        check(tmp_path)(made(layer_mib=4))
    text = " ".join(str(raised.value).split())
    assert "121 MiB on h200, +24 MiB (+24.7%)" in text
    assert "GPT/block_*/mlp 0-11 2 MiB 4 MiB +24 MiB 2 MiB 4 MiB +24 MiB" in text
    assert "total 97 MiB 121 MiB +24 MiB" in text
    assert "GPT/head" not in text


def test_growth_of_host_memory_is_named(tmp_path):
    check(tmp_path)(made())
    with pytest.raises(FootprintAssertionError, match=r"as before; host memory 12 MiB, \+12 MiB"):
        check(tmp_path)(made(host_temp_bytes=12 * MIB))
