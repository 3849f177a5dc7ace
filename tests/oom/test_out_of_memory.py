"""XLA's out-of-memory messages: every form is read, damage ends in None or a clear error, advice follows from facts."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from jaxckpt._errors import JaxckptError, OutOfMemoryTextError
from jaxckpt.hlo.memory import Part
from jaxckpt.oom.buffers import OomBuffer
from jaxckpt.oom.figures import Figures
from jaxckpt.oom.lines import clean_lines
from jaxckpt.oom.message_patterns import Moment, Platform
from jaxckpt.oom.out_of_memory import OutOfMemory, read_out_of_memory
from jaxckpt.oom.remedies import BufferKind, Cause, classify_buffers, diagnoses, program_budget_bytes, remedies
from jaxckpt.report import oom_report, render_text

GIB, MIB = 2**30, 2**20
FOLDER = Path(__file__).parent / "logs"
TEXTS = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.txt"))}


def tpu(gibibytes: float) -> int:
    """As a TPU prints it, "15.48G"."""
    return int(gibibytes * GIB)


PATTERNS = {
    # The processor's client, of this jax: one sentence.
    "cpu_run": {"moment": "run", "platform": "cpu", "requested_bytes": 4398046511104},
    # LLVM gives up while XLA compiles for the processor.
    "cpu_llvm": {"moment": "compile", "platform": "cpu", "requested_bytes": None, "space": "host"},
    # BFC's own dump, the error in the log, buffers, and all of it again from Python.
    "gpu_bfc": {
        "moment": "run",
        "platform": "gpu",
        "device": "GPU_0_bfc",
        "allocator": "bfc",
        "requested_bytes": 10608442112,
        "limit_bytes": 11811160064,
        "in_use_bytes": 2007891968,
        "largest_free_bytes": None,
        "repeats": 1,
        "others": 0,
    },
    # The newer sentence with a unit, and a rematerialisation that aims below zero.
    "gpu_new": {"moment": "run", "platform": "gpu", "requested_bytes": int(31.44 * GIB), "limit_bytes": None},
    # CUDA's own asynchronous allocator.
    "gpu_async": {
        "allocator": "cuda_async",
        "requested_bytes": 20971520000,
        "free_bytes": 2621440000,
        "device_bytes": 85899345920,
        "limit_bytes": 60 * GIB,
    },
    # The driver refuses even the first piece: somebody else has the device.
    "gpu_taken": {"platform": "gpu", "requested_bytes": 32 * MIB, "refused_bytes": 7100536832, "others": 0},
    # BFC with a longest free block, in units.
    "gpu_fragmented": {"requested_bytes": 2 * GIB, "largest_free_bytes": int(1.25 * GIB), "limit_bytes": 60 * GIB},
    # The driver has no memory for CUDA graphs.
    "gpu_graph": {"platform": "gpu", "allocator": "driver", "requested_bytes": None},
    # Pinned host memory for offloading.
    "host_pinned": {"space": "host", "requested_bytes": 8 * GIB},
    # libtpu's report while compiling, with the list of allocations.
    "tpu_compile": {
        "moment": "compile",
        "platform": "tpu",
        "space": "hbm",
        "requested_bytes": tpu(20.03),
        "limit_bytes": tpu(15.48),
    },
    # The same before 2020, with sizes that it did not know.
    "tpu_old": {"requested_bytes": tpu(41.74), "unread": ("argument: unknown size", "output: unknown")},
    # libtpu of today, inside jaxckpt's own refusal.
    "tpu_new": {"program": "jit_step", "target": "v5e:1x1", "requested_bytes": tpu(20.02), "limit_bytes": tpu(15.75)},
    # Both kinds of cores of a TPU added up.
    "tpu_sparse": {"requested_bytes": tpu(34.82) + tpu(174.10), "limit_bytes": tpu(95.74)},
    # Scratch of one kernel on the chip.
    "tpu_vmem": {"space": "vmem", "requested_bytes": 134217728, "limit_bytes": 67108864},
    # libtpu's allocator while running: too little, in too small pieces, and for the program itself.
    "tpu_run": {"moment": "run", "requested_bytes": tpu(4.39), "free_bytes": tpu(2.30), "device": "0x0x0_HBM0"},
    "tpu_fragmented": {"free_bytes": int(58.64 * MIB), "largest_free_bytes": int(30.56 * MIB)},
    "tpu_load": {"program": "jit_step", "requested_bytes": tpu(29.49), "free_bytes": int(147.64 * MIB)},
}
CAUSES = {
    "cpu_run": {Cause.HOST},
    "cpu_llvm": {Cause.HOST},
    "gpu_bfc": {Cause.NEED},
    "gpu_new": {Cause.ARGUMENTS},
    "gpu_async": {Cause.OTHERS},
    "gpu_taken": {Cause.OTHERS},
    "gpu_fragmented": {Cause.FRAGMENTATION},
    "gpu_graph": {Cause.OTHERS},
    "host_pinned": {Cause.HOST},
    "tpu_compile": {Cause.NEED},
    "tpu_old": {Cause.NEED},
    "tpu_new": {Cause.NEED},
    "tpu_sparse": {Cause.NEED},
    "tpu_vmem": {Cause.KERNEL},
    "tpu_run": {Cause.UNKNOWN},
    "tpu_fragmented": {Cause.FRAGMENTATION},
    "tpu_load": {Cause.UNKNOWN},
}


def test_every_text_of_the_corpus_has_its_facts_and_causes():
    assert set(TEXTS) == set(PATTERNS) == set(CAUSES)


@pytest.mark.parametrize("name", TEXTS)
def test_every_form_is_read(name):
    data = read_out_of_memory(TEXTS[name])
    assert {key: getattr(data, key) for key in PATTERNS[name]} == PATTERNS[name]


@pytest.mark.parametrize("name", TEXTS)
def test_causes_are_distinguished(name):
    assert {diagnosis.cause for diagnosis in diagnoses(read_out_of_memory(TEXTS[name]))} == CAUSES[name]


@pytest.mark.parametrize("name", TEXTS)
def test_every_form_has_a_report(name):
    text = render_text(oom_report(read_out_of_memory(TEXTS[name])), width=160)
    assert "requested" in text and "Why" in text


def test_figures_of_a_gpu_are_those_of_its_table():
    figures = read_out_of_memory(TEXTS["gpu_bfc"]).figures
    assert figures.argument_bytes == figures.output_bytes == int(1.87 * GIB)
    assert figures.temp_bytes == int(9.88 * GIB)
    assert figures.remat_target_bytes == 7977943040
    assert figures.remat_reached_bytes == 12616466432


def test_the_exact_bytes_of_a_rematerialisation_are_read():
    text = TEXTS["gpu_bfc"].replace("(12616466432 bytes)", "(12616466431 bytes)")
    assert read_out_of_memory(text).figures.remat_reached_bytes == 12616466431


def test_reserved_memory_is_the_systems_not_the_programs():
    figures = read_out_of_memory(TEXTS["tpu_compile"]).figures
    assert figures.reserved_bytes == 530 * MIB
    assert (figures.total_bytes, figures.alias_bytes) == (tpu(20.55), tpu(1.5))
    assert (figures.temp_bytes, figures.unpadded_bytes) == (tpu(18.02), tpu(13.05))


def test_buffers_of_a_gpu_have_exact_sizes_scopes_and_parts():
    first, second, *_, parameter, unnamed = read_out_of_memory(TEXTS["gpu_bfc"]).buffers
    assert first.size_bytes == 8 * 1024 * 50257 * 4
    assert (first.scope, first.op, first.part) == ("GPT/head", "convert_element_type", Part.FORWARD)
    assert second.part is Part.BACKWARD and second.source == "/home/user/train.py:42"
    assert parameter.is_argument and parameter.shape == (50257, 768)
    assert unnamed.scope == "" and unnamed.part is None
    assert "Size: 1.53GiB" in first.lines


def test_tpu_buffers_have_padding_and_scopes():
    buffers = read_out_of_memory(TEXTS["tpu_compile"]).buffers
    assert [buffer.padding_bytes for buffer in buffers[:2]] == [0, tpu(3.75)]
    assert (buffers[1].scope, buffers[1].op) == ("Decoder/layers/attn", "dot_general")
    assert buffers[4].size_bytes == 124 * MIB  # what is padded by one percent is not made "exact"
    assert buffers[4].kind == "global"


def test_the_first_error_is_read_and_others_are_counted():
    data = read_out_of_memory(TEXTS["tpu_run"] + TEXTS["tpu_run"] + TEXTS["cpu_run"] + TEXTS["gpu_bfc"])
    assert (data.requested_bytes, data.repeats, data.others) == (tpu(4.39), 1, 2)
    assert not data.buffers and data.limit_bytes is None


def test_a_warning_that_is_no_failure_is_no_error():
    warning = next(line for line in TEXTS["gpu_bfc"].splitlines() if "not a failure" in line)
    with pytest.raises(OutOfMemoryTextError, match="holds no out-of-memory message"):
        read_out_of_memory(warning)


@pytest.mark.parametrize("text", ["", "all is well\n", "RESOURCE_EXHAUSTED: Quota exceeded for requests\n", "\0\xff"])
def test_a_text_without_a_message_is_refused_in_four_lines(text):
    with pytest.raises(JaxckptError) as caught:
        read_out_of_memory(text)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value).splitlines()) == 4


@pytest.mark.parametrize("name", TEXTS)
def test_line_ends_colours_quotes_and_time_stamps_change_nothing(name):
    text, plain = TEXTS[name], read_out_of_memory(TEXTS[name])
    stamp = "2026-01-01 10:00:00.123456: E external/xla/a.cc:7] "
    coloured = "".join(f"\x1b[31m{line}\x1b[0m\n" for line in text.splitlines())
    for changed in (text.replace("\n", "\r\n"), coloured, "".join(f"> {line}\n" for line in text.splitlines())):
        assert without_words(read_out_of_memory(changed)) == without_words(plain)
    stamped = "".join(line if ".cc:" in line else f"{stamp}{line}" for line in text.splitlines(keepends=True))
    assert without_words(read_out_of_memory(stamped)) == without_words(plain)


def test_line_ends_written_as_backslash_n_are_line_ends():
    text = TEXTS["tpu_compile"]
    escaped = text.replace('"', '\\"').replace("\n", "\\n")
    assert without_words(read_out_of_memory(escaped + "\n")) == without_words(read_out_of_memory(text))


def without_words(data: OutOfMemory) -> OutOfMemory:
    """Without XLA's own words, in which quotes and colours may stay."""
    buffers = tuple(dataclasses.replace(buffer, lines=()) for buffer in data.buffers)
    return dataclasses.replace(data, message="", buffers=buffers)


REFUSED = {7889485824, 7100536832}
"""What the driver refuses in "gpu_taken": each is a true answer where the lines with the others are lost."""


def is_same(found: int | None, whole: int | None) -> bool:
    """Whether a figure is unknown, or that of the whole text; its exact form may be lost, XLA's rounding is not."""
    return found is None or (whole is not None and abs(found - whole) <= 0.005 * abs(whole)) or found in REFUSED


def is_part_of(found: OutOfMemory, whole: OutOfMemory) -> bool:
    """Whether each figure is unknown or that of the whole text."""
    sizes = [field.name for field in dataclasses.fields(whole) if field.name.endswith("_bytes")]
    figures = [field.name for field in dataclasses.fields(whole.figures)]
    return (
        all(is_same(getattr(found, name), getattr(whole, name)) for name in sizes)
        and all(is_same(getattr(found.figures, name), getattr(whole.figures, name)) for name in figures)
        and all(any(is_part_of_buffer(each, other) for other in whole.buffers) for each in found.buffers)
    )


def is_part_of_buffer(found: OomBuffer, whole: OomBuffer) -> bool:
    names = ("unpadded_bytes", "shape", "dtype", "op_name", "scope", "part", "label", "kind", "source")
    same = all(getattr(found, name) in (None, "", getattr(whole, name)) for name in names)
    return same and is_same(found.size_bytes, whole.size_bytes)


@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_a_text_that_is_cut_off_never_gives_a_wrong_number(name, data):
    text = TEXTS[name]
    start = data.draw(st.integers(0, len(text) // 3))
    stop = data.draw(st.integers(start, len(text)))
    try:
        found = read_out_of_memory(text[start:stop])
    except OutOfMemoryTextError:
        return
    assert is_part_of(found, read_out_of_memory(text))


@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_lost_lines_never_give_a_wrong_number(name, data):
    lines = TEXTS[name].splitlines(keepends=True)
    lost = data.draw(st.sets(st.integers(0, len(lines) - 1), max_size=3))
    try:
        found = read_out_of_memory("".join(line for at, line in enumerate(lines) if at not in lost))
    except OutOfMemoryTextError:
        return
    assert is_part_of(found, read_out_of_memory(TEXTS[name]))


@given(st.sampled_from(sorted(TEXTS)), st.data())
def test_edited_texts_end_in_data_or_in_our_error(name, data):
    text = TEXTS[name]
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.text(max_size=8) | st.sampled_from(['"', "[", "9" * 5000])) + text[at + 3 :]
    try:
        found = read_out_of_memory(text)
    except OutOfMemoryTextError:
        return
    assert render_text(oom_report(found))


def test_a_size_that_contradicts_its_shape_is_not_believed():
    text = TEXTS["gpu_bfc"].replace("Size: 48.00MiB", "Size: 49.00MiB", 1)
    (doubtful,) = [b for b in read_out_of_memory(text).buffers if b.scope == "GPT/block_0/mlp" and b.size_bytes is None]
    assert doubtful.shape == (8, 1024, 3072)


def test_buffer_kinds_follow_from_shape_and_origin():
    kinds = dict.fromkeys(classify_buffers(read_out_of_memory(TEXTS["gpu_bfc"]).buffers))
    assert list(kinds) == [
        BufferKind.LOGITS,
        BufferKind.ATTENTION,
        BufferKind.FORWARD,
        BufferKind.ARGUMENT,
        BufferKind.OTHER,
    ]
    tpu_kinds = classify_buffers(read_out_of_memory(TEXTS["tpu_compile"]).buffers)
    assert tpu_kinds == (
        BufferKind.STACKED,
        BufferKind.FORWARD,
        BufferKind.STACKED,
        BufferKind.LOGITS,
        BufferKind.OTHER,
    )


def test_a_wide_layer_is_not_taken_for_logits():
    wide = [
        OomBuffer(shape=(8, 512, 49152), dtype="bfloat16", scope=f"block_{i}/mlp", part=Part.FORWARD) for i in range(3)
    ]
    assert set(classify_buffers(wide)) == {BufferKind.FORWARD}


def helping(name: str):
    return {remedy.title: remedy for remedy in remedies(read_out_of_memory(TEXTS[name]))}


def test_a_chunked_loss_saves_all_logits_but_one_chunk():
    logits = 2 * 8 * 1024 * 50257 * 4
    assert helping("gpu_bfc")["a chunked loss"].saves_bytes == logits * 7 // 8


def test_recomputing_in_a_scan_saves_all_stacks_but_the_largest():
    assert helping("tpu_compile")["recompute inside the scan"].saves_bytes == tpu(1.5) - tpu(1.5) // 24


def test_padding_has_the_bytes_of_the_list():
    padding = helping("tpu_compile")["axes that fill tiles"]
    assert padding.saves_bytes == tpu(3.75) + int(1.5 * MIB)
    assert "Decoder/layers/attn" in padding.how


def test_the_proposed_plan_has_a_budget_and_a_known_target():
    assert helping("tpu_new")["a plan for this budget"].command == (
        "jaxckpt plan MODULE:FUNCTION --target v5e:1x1 --budget 15.75GiB"
    )


def test_what_others_hold_is_not_in_the_budget():
    data = OutOfMemory(
        message="",
        moment=Moment.RUN,
        platform=Platform.GPU,
        requested_bytes=6 * GIB,
        limit_bytes=10 * GIB,
        in_use_bytes=5 * GIB,
        figures=Figures(argument_bytes=2 * GIB, total_bytes=8 * GIB),
    )
    assert program_budget_bytes(data) == 7 * GIB
    (diagnosis,) = diagnoses(data)
    assert diagnosis.cause is Cause.OTHERS and "3.00 GiB beside its arguments" in diagnosis.because


def test_arguments_that_exceed_all_leave_no_plan_to_make():
    titles = helping("gpu_new")
    assert "smaller arguments" in titles and "a plan for this budget" not in titles


def test_donation_is_advised_only_for_results_without_alias():
    figures = Figures(argument_bytes=4 * GIB, output_bytes=4 * GIB, temp_bytes=8 * GIB, constant_bytes=0)
    data = OutOfMemory(message="", platform=Platform.GPU, figures=dataclasses.replace(figures, total_bytes=16 * GIB))
    (donate,) = remedies(data)
    assert (donate.title, donate.saves_bytes, donate.is_bound_below) == ("donate arguments", 4 * GIB, False)
    shared = dataclasses.replace(data, figures=dataclasses.replace(figures, total_bytes=12 * GIB))
    assert remedies(shared) == ()
    assert remedies(dataclasses.replace(data, figures=dataclasses.replace(figures, temp_bytes=None))) == ()


def test_a_larger_share_is_advised_only_where_it_is_enough():
    assert "a larger share of the device" in helping("gpu_bfc")
    assert "a larger share of the device" not in helping("gpu_async")


def test_equal_layers_are_folded_in_the_report():
    text = render_text(oom_report(read_out_of_memory(TEXTS["gpu_bfc"])), width=160)
    (row,) = [line for line in text.splitlines() if "GPT/block_*/attn" in line]
    assert "0-3" in row and "384 MiB" in row and "1.50 GiB" in row


def test_a_line_end_that_is_missing_is_seen():
    assert clean_lines("a\r\nb") == ["a\n", "b"]


DEVICE_IS_FULL = """\
W external/xla/gpu_cudamallocasync_allocator.cc:312] cuMemAllocAsync failed to allocate 9663676416 bytes: out of memory\
 (CUDA_ERROR_OUT_OF_MEMORY)
 Reported by CUDA: Free memory/Total memory: {free_bytes}/85017493504
E gpu_cudamallocasync_allocator.cc:330] Stats:
Limit:                     63763120128
InUse:                      1073741824
MaxInUse:                   1073741824

RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9663676416 bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:    1.00GiB
              constant allocation:         0B
        maybe_live_out allocation:    1.00GiB
     preallocated temp allocation:    9.00GiB
                 total allocation:   10.00GiB
"""


@pytest.mark.parametrize("free_bytes", [2 * GIB, 0])
def test_where_others_fill_the_device_neither_a_larger_share_nor_a_plan_of_the_limit_is_advised(free_bytes):
    data = read_out_of_memory(DEVICE_IS_FULL.format(free_bytes=free_bytes))
    assert {diagnosis.cause for diagnosis in diagnoses(data)} == {Cause.OTHERS}
    commands = " ".join(remedy.command for remedy in remedies(data))
    assert "MEM_FRACTION" not in commands
    assert program_budget_bytes(data) == free_bytes + GIB
    assert "--budget" in commands
    assert "59.38GiB" not in commands


@pytest.mark.parametrize("name", ["tpu_run", "tpu_load"])
def test_where_free_bytes_are_known_the_text_does_not_deny_it(name):
    (diagnosis,) = diagnoses(read_out_of_memory(TEXTS[name]))
    assert "were free" in diagnosis.because
    assert "how much the program takes" in diagnosis.because
