"""The traffic of instructions, counted by hand: what a fusion slices or updates in place is not all of its operand."""

import pytest

from jaxckpt import _compat
from jaxckpt.hlo import Kernel
from jaxckpt.hlo.instruction_cost import with_cost
from jaxckpt.hlo.program import HloProgram
from jaxckpt.hlo.schema import HloModule

ALL_ITERATIONS, ROWS, COLUMNS = 6, 2, 8
STACK_BYTES = ALL_ITERATIONS * ROWS * COLUMNS * 2
SLICE_BYTES = STACK_BYTES // ALL_ITERATIONS
NUMBER_BYTES = 4


def traffic_bytes(fused: str, *, result: str) -> int:
    """Of a fusion of a number, a slice and a stack of slices, whose instructions are given."""
    text = f"""
        HloModule module, is_scheduled=true
        sum (x: bf16[], y: bf16[]) -> bf16[] {{
          x = bf16[] parameter(0)
          y = bf16[] parameter(1)
          ROOT both = bf16[] add(x, y)
        }}
        fused (at: s32[], slice: bf16[{ROWS},{COLUMNS}], stack: bf16[{ALL_ITERATIONS},{ROWS},{COLUMNS}]) -> {result} {{
          at = s32[] parameter(0)
          slice = bf16[{ROWS},{COLUMNS}] parameter(1)
          stack = bf16[{ALL_ITERATIONS},{ROWS},{COLUMNS}] parameter(2)
          zero = s32[] constant(0)
          {fused}
        }}
        ENTRY main (a: s32[], b: bf16[{ROWS},{COLUMNS}], c: bf16[{ALL_ITERATIONS},{ROWS},{COLUMNS}]) -> {result} {{
          a = s32[] parameter(0)
          b = bf16[{ROWS},{COLUMNS}] parameter(1)
          c = bf16[{ALL_ITERATIONS},{ROWS},{COLUMNS}] parameter(2)
          ROOT made = {result} fusion(a, b, c), kind=kLoop, calls=fused
        }}"""
    program = HloProgram(HloModule.FromString(_compat.hlo_module_from_text(text)))
    made = next(id_ for id_, instruction in program.instructions.items() if instruction.name == "made")
    return with_cost(Kernel(name="made", opcode="fusion"), program, made).traffic_bytes


UPDATED = f"""
    one = bf16[1,{ROWS},{COLUMNS}] bitcast(slice)
    ROOT all = bf16[{ALL_ITERATIONS},{ROWS},{COLUMNS}] dynamic-update-slice(stack, one, at, zero, zero)"""
BEHIND_BITCASTS = f"""
    turned = bf16[{COLUMNS},{ALL_ITERATIONS},{ROWS}] bitcast(stack)
    one = bf16[{COLUMNS},1,{ROWS}] bitcast(slice)
    ROOT all = bf16[{COLUMNS},{ALL_ITERATIONS},{ROWS}] dynamic-update-slice(turned, one, zero, at, zero)"""


@pytest.mark.parametrize(
    ("fused", "result"),
    [
        (UPDATED, f"bf16[{ALL_ITERATIONS},{ROWS},{COLUMNS}]"),
        (BEHIND_BITCASTS, f"bf16[{COLUMNS},{ALL_ITERATIONS},{ROWS}]"),
    ],
    ids=["as it lies", "behind bitcasts"],
)
def test_a_stack_whose_slice_an_iteration_writes_is_not_read(fused, result):
    assert traffic_bytes(fused, result=result) == NUMBER_BYTES + 2 * SLICE_BYTES


def test_a_stack_that_is_also_read_counts_in_full():
    shape = f"bf16[{COLUMNS},{ALL_ITERATIONS},{ROWS}]"
    fused = f"""{BEHIND_BITCASTS.replace("ROOT ", "")}
        ROOT sum = {shape} add(turned, all)"""
    assert traffic_bytes(fused, result=shape) == NUMBER_BYTES + SLICE_BYTES + 2 * STACK_BYTES


def test_only_the_slice_of_a_bitcast_stack_counts():
    sizes = f"{COLUMNS},1,{ROWS}"
    fused = f"""
        turned = bf16[{COLUMNS},{ALL_ITERATIONS},{ROWS}] bitcast(stack)
        ROOT one = bf16[{sizes}] dynamic-slice(turned, zero, at, zero), dynamic_slice_sizes={{{sizes}}}"""
    found = traffic_bytes(fused, result=f"bf16[{sizes}]")
    assert found == NUMBER_BYTES + SLICE_BYTES + 2 * SLICE_BYTES  # the other slice is an operand too


@pytest.mark.parametrize(
    "fused",
    ["all = {stack} negate(stack)", "less = {stack} negate(stack)\n all = {stack} add(less, stack)"],
    ids=["one path", "two paths"],
)
def test_of_arithmetic_by_element_only_what_is_sliced_is_read(fused):
    sizes = f"1,{ROWS},{COLUMNS}"
    fused = f"""
        {fused.format(stack=f"bf16[{ALL_ITERATIONS},{ROWS},{COLUMNS}]")}
        ROOT one = bf16[{sizes}] dynamic-slice(all, at, zero, zero), dynamic_slice_sizes={{{sizes}}}"""
    found = traffic_bytes(fused, result=f"bf16[{sizes}]")
    assert found == NUMBER_BYTES + SLICE_BYTES + 2 * SLICE_BYTES


def test_of_a_converted_slice_the_bytes_before_the_conversion_are_read():
    sizes = f"1,{ROWS},{COLUMNS}"
    fused = f"""
        all = f32[{ALL_ITERATIONS},{ROWS},{COLUMNS}] convert(stack)
        ROOT one = f32[{sizes}] dynamic-slice(all, at, zero, zero), dynamic_slice_sizes={{{sizes}}}"""
    found = traffic_bytes(fused, result=f"f32[{sizes}]")
    assert found == NUMBER_BYTES + SLICE_BYTES + SLICE_BYTES + 2 * SLICE_BYTES


@pytest.mark.parametrize(
    ("instruction", "adds"),
    [
        ("all-gather(a), dimensions={0}, replica_groups={{0,1}}", False),
        ("collective-permute(a), source_target_pairs={{0,1},{1,0}}", False),
        ("all-reduce(a), to_apply=sum, replica_groups={{0,1}}", True),
    ],
)
def test_only_collectives_that_add_have_arithmetic(instruction, adds):
    rows = 2 if "gather" in instruction else 1
    text = f"""
        HloModule module, is_scheduled=true
        sum (x: f32[], y: f32[]) -> f32[] {{
          x = f32[] parameter(0)
          y = f32[] parameter(1)
          ROOT both = f32[] add(x, y)
        }}
        ENTRY main (a: f32[1,1000]) -> f32[{rows},1000] {{
          a = f32[1,1000] parameter(0)
          ROOT made = f32[{rows},1000] {instruction}
        }}"""
    program = HloProgram(HloModule.FromString(_compat.hlo_module_from_text(text)))
    made = next(id_ for id_, instruction in program.instructions.items() if instruction.name == "made")
    found = with_cost(Kernel(name="made", opcode=program.instructions[made].opcode), program, made)
    assert found.flops == (1000 if adds else 0)


@pytest.mark.parametrize(
    ("call", "operands", "result"),
    [
        ("Forward", ("input", "kernel"), "output"),
        ("BackwardInput", ("output", "kernel"), "input"),
        ("BackwardFilter", ("input", "output"), "kernel"),
    ],
)
def test_the_three_convolutions_of_cudnn_have_the_flops_of_the_first(call, operands, result):
    batch, size, window, inputs, outputs = 2, 8, 3, 4, 16
    shapes = {
        "input": f"f32[{batch},{size},{size},{inputs}]",
        "kernel": f"f32[{window},{window},{inputs},{outputs}]",
        "output": f"f32[{batch},{size},{size},{outputs}]",
    }
    first, second = (shapes[operand] for operand in operands)
    text = f"""
        HloModule module, is_scheduled=true
        ENTRY main (a: {first}, b: {second}) -> ({shapes[result]}, u8[0]) {{
          a = {first} parameter(0)
          b = {second} parameter(1)
          ROOT made = ({shapes[result]}, u8[0]) custom-call(a, b), window={{size={window}x{window} pad=1_1x1_1}},
            dim_labels=b01f_01io->b01f, custom_call_target="__cudnn$conv{call}"
        }}"""
    program = HloProgram(HloModule.FromString(_compat.hlo_module_from_text(text)))
    made = next(id_ for id_, instruction in program.instructions.items() if instruction.name == "made")
    found = with_cost(Kernel(name="made", opcode="custom-call"), program, made)
    assert found.matmul_flops == 2 * batch * size * size * outputs * window * window * inputs
    assert found.matmul_dtype == "float32"


def test_the_scratch_of_a_library_call_in_a_fusion_is_not_written():
    product, scratch = "bf16[128,64]", "s8[33554432]"
    text = f"""
        HloModule module, is_scheduled=true
        fused (l: {product}, r: bf16[64,64]) -> ({product}, {scratch}) {{
          l = {product} parameter(0)
          r = bf16[64,64] parameter(1)
          ROOT call = ({product}, {scratch}) custom-call(l, r), custom_call_target="__cublas$lt$matmul"
        }}
        ENTRY main (a: {product}, b: bf16[64,64]) -> ({product}, {scratch}) {{
          a = {product} parameter(0)
          b = bf16[64,64] parameter(1)
          ROOT made = ({product}, {scratch}) fusion(a, b), kind=kCustom, calls=fused
        }}"""
    program = HloProgram(HloModule.FromString(_compat.hlo_module_from_text(text)))
    made = next(id_ for id_, instruction in program.instructions.items() if instruction.name == "made")
    found = with_cost(Kernel(name="made", opcode="fusion"), program, made)
    assert found.traffic_bytes == 2 * (128 * 64 + 64 * 64 + 128 * 64)


@pytest.mark.parametrize(
    ("call", "operand", "result", "bytes_"),
    [
        ("all-reduce(a, b), to_apply=add", 1000, 1000, 4 * 1000 * 4),
        ("all-gather(a, b), dimensions={0}", 1000, 8000, 2 * 7 * 1000 * 4),
        ("reduce-scatter(a, b), dimensions={0}, to_apply=add", 8000, 1000, 2 * 7 * 1000 * 4),
        ("sort(a, b), dimensions={0}, to_apply=less", 1000, 1000, 4 * 1000 * 4),
    ],
    ids=lambda each: each.partition("(")[0] if isinstance(each, str) else "",
)
def test_all_results_of_an_instruction_count(call, operand, result, bytes_):
    text = f"""
        HloModule module, is_scheduled=true
        add (x: f32[], y: f32[]) -> f32[] {{
          x = f32[] parameter(0)
          y = f32[] parameter(1)
          ROOT sum = f32[] add(x, y)
        }}
        less (p: f32[], q: f32[], r: f32[], s: f32[]) -> pred[] {{
          p = f32[] parameter(0)
          q = f32[] parameter(1)
          r = f32[] parameter(2)
          s = f32[] parameter(3)
          ROOT is_less = pred[] compare(p, q), direction=LT
        }}
        ENTRY main (a: f32[{operand}], b: f32[{operand}]) -> (f32[{result}], f32[{result}]) {{
          a = f32[{operand}] parameter(0)
          b = f32[{operand}] parameter(1)
          ROOT made = (f32[{result}], f32[{result}]) {call}
        }}"""
    program = HloProgram(HloModule.FromString(_compat.hlo_module_from_text(text)))
    made = next(id_ for id_, instruction in program.instructions.items() if instruction.name == "made")
    opcode = program.instructions[made].opcode
    assert with_cost(Kernel(name="made", opcode=opcode), program, made).traffic_bytes == bytes_


def test_of_a_sum_that_is_only_sliced_the_sums_of_the_slice_are_read():
    """As of the parts of a product, which whoever reads one gate of a recurrent cell adds up for that gate alone."""
    fused = f"""
        one = bf16[] constant(0)
        all = bf16[{ROWS},{COLUMNS}] reduce(stack, one), dimensions={{0}}, to_apply=sum
        ROOT part = bf16[{ROWS},1] slice(all), slice={{[0:{ROWS}], [2:3]}}"""
    found = traffic_bytes(fused, result=f"bf16[{ROWS},1]")
    assert found == NUMBER_BYTES + SLICE_BYTES + STACK_BYTES // COLUMNS + 2 * ROWS
