"""Cost analysis of instructions: FLOPs of matrix products, of other arithmetic, and bytes of memory traffic.

A fusion does the work of all its instructions and moves its operands and results once; of an operand that it only
slices, the slice. A collective moves what the device gets from others. Library calls carry the dimensions of their
product in their configuration. Work of a library call that cannot be read is 0, and `Kernel.is_priced` is False. Read
after `program`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from jaxckpt.hlo.memory import Kernel
from jaxckpt.hlo.program import COLLECTIVES, HloProgram
from jaxckpt.hlo.schema import TOKEN, TUPLE, Instruction, Shape, dtype_of, element_count, shape_bytes

_NO_ARITHMETIC = frozenset(
    {
        "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "broadcast", "reshape", "transpose", "slice",
        "dynamic-slice", "dynamic-update-slice", "concatenate", "pad", "iota", "copy", "gather", "scatter", "reverse",
        "opt-barrier", "copy-start", "copy-done", "async-start", "async-done", "fusion", "custom-call", "while", "call",
        "conditional", "convert", "bitcast-convert", "after-all", "partition-id", "replica-id", "rng-bit-generator",
        "rng-get-and-update-state", "infeed", "outfeed", "send", "recv", "send-done", "recv-done", "domain",
    }
)  # fmt: skip
"""Opcodes without arithmetic of their own."""
_ADDING_COLLECTIVES = frozenset({"all-reduce", "reduce-scatter"})
"""Collectives with arithmetic; of an asynchronous pair the first half has it."""
_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_ELEMENT_VIEWS = frozenset({"bitcast", "transpose", "reshape", "copy", "convert"})
"""Opcodes without arithmetic of which a loop fusion computes only the elements that are read."""
_MANY_TO_ONE = frozenset({"dot", "convolution", "reduce", "reduce-window", "select-and-scatter", "sort", "map", "fft"})
"""Opcodes with arithmetic whose results each read several elements."""
_IN_PLACE = frozenset({"dynamic-update-slice", "scatter"})
"""They take over the place of their first operand and write a part of it; a scatter reads that part too."""
_PRODUCTS = ("__cublas$", "__triton_gemm", "cublas", "__onednn$matmul")
_CONVOLUTIONS = ("__cudnn$conv", "__onednn$conv")
_FREE_CALLS = frozenset({"Sharding", "AllocateBuffer", "ConcatBitcast", "SliceToDynamic", "PadToStatic", "X64Combine"})


def with_cost(kernel: Kernel, program: HloProgram, id_: int) -> Kernel:
    """A kernel with the work of one run of its instruction."""
    instruction = program.instructions[id_]
    products = list(_products(program, instruction))
    matmul_flops = sum(flops for flops, _ in products)
    return replace(
        kernel,
        flops=matmul_flops + _vector_flops(program, instruction),
        matmul_flops=matmul_flops,
        matmul_dtype=next((dtype for flops, dtype in products if flops), ""),
        traffic_bytes=_traffic_bytes(program, instruction),
        is_priced=not _is_foreign(instruction),
    )


def _products(program: HloProgram, instruction: Instruction) -> Iterator[tuple[int, str]]:
    """FLOPs and dtype of each matrix product that an instruction does, itself or inside."""
    if instruction.opcode == "dot":
        yield _dot_flops(program, instruction, instruction.dot_dimension_numbers.lhs_contracting_dimensions)
    elif instruction.opcode == "convolution":
        yield _convolution_flops(program, instruction)
    elif instruction.opcode == "custom-call":
        if instruction.custom_call_target.startswith(_CONVOLUTIONS):
            yield _convolution_flops(program, instruction)
        elif instruction.custom_call_target.startswith(_PRODUCTS):
            yield _dot_flops(program, instruction, _configured_contraction(instruction))
    elif instruction.opcode == "fusion":
        for inner in program.inner(instruction.id):
            yield from _products(program, inner)


def _dot_flops(program: HloProgram, instruction: Instruction, dimensions: Sequence[int]) -> tuple[int, str]:
    left = program.instructions[instruction.operand_ids[0]].shape
    contracted = prod(left.dimensions[d] for d in dimensions if d < len(left.dimensions))
    return 2 * element_count(_result(instruction.shape)) * contracted, dtype_of(left)


def _configured_contraction(instruction: Instruction) -> tuple[int, ...]:
    """The contracted dimensions in the configuration of a library's product; none where it cannot be read."""
    try:
        config = json.loads(instruction.backend_config)
    except ValueError:
        return ()
    pending = [config]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            if "lhs_contracting_dimensions" in each:
                return tuple(map(int, each["lhs_contracting_dimensions"]))
            pending.extend(each.values())
    return ()


def _convolution_flops(program: HloProgram, instruction: Instruction) -> tuple[int, str]:
    """Each element of the convolution's output sums over the kernel's window and its input features.

    The three calls of cuDNN have the dimension numbers of one convolution: the gradient of its input is a result whose
    first operand is the output, and the gradient of its kernel is a result whose second operand is the output.
    """
    numbers = instruction.convolution_dimension_numbers
    first, second = (program.instructions[operand].shape for operand in instruction.operand_ids[:2])
    output, kernel = _result(instruction.shape), second
    match instruction.custom_call_target:
        case "__cudnn$convBackwardInput":
            output = first
        case "__cudnn$convBackwardFilter":
            output, kernel = second, _result(instruction.shape)
    window = prod(dimension.size for dimension in instruction.window.dimensions)
    features = 1
    if numbers.kernel_input_feature_dimension < len(kernel.dimensions):
        features = kernel.dimensions[numbers.kernel_input_feature_dimension]
    return 2 * element_count(output) * window * features, dtype_of(second)


def _vector_flops(program: HloProgram, instruction: Instruction) -> int:
    """One FLOP for each element calculated; of reductions for each element read."""
    if instruction.opcode == "fusion":
        return sum(_vector_flops(program, inner) for inner in program.inner(instruction.id))
    opcode = instruction.opcode
    if opcode in _NO_ARITHMETIC or opcode in ("dot", "convolution"):
        return 0
    is_collective = opcode.removesuffix("-start").removesuffix("-done") in COLLECTIVES
    if is_collective and opcode.removesuffix("-start") not in _ADDING_COLLECTIVES:
        return 0
    if opcode in ("reduce", "reduce-window"):
        return max((element_count(program.instructions[o].shape) for o in instruction.operand_ids), default=0)
    return element_count(_result(instruction.shape))


def _traffic_bytes(program: HloProgram, instruction: Instruction) -> int:
    if instruction.opcode in ("copy-done", "async-done", "copy-start", "async-start"):
        return 0
    if instruction.opcode == "fusion" and instruction.called_computation_ids:
        return _fusion_bytes(program, instruction)
    read = [program.instructions[operand].shape for operand in dict.fromkeys(instruction.operand_ids)]
    if instruction.opcode in _SLICES:
        read = [instruction.shape]
    if instruction.opcode in _IN_PLACE:
        extra_bytes = sum(map(_array_bytes, read[1:])) if instruction.opcode == "scatter" else 0
        return 2 * _updated_bytes(program, instruction) + extra_bytes
    read_bytes, written_bytes = sum(map(_array_bytes, read)), _result_bytes(instruction)
    if instruction.opcode in ("all-gather-start", "collective-permute-start"):  # operand and result in one tuple
        written_bytes = shape_bytes(instruction.shape.tuple_shapes[1])
    if (collective := instruction.opcode.removesuffix("-start")) in COLLECTIVES:
        return _received_bytes(collective, read_bytes, written_bytes)
    return read_bytes + written_bytes


def _received_bytes(collective: str, read_bytes: int, written_bytes: int) -> int:
    """Bytes that a device gets from others. Of an all-reduce, in a large group: its part of each sum, and the sums."""
    if collective == "all-gather":
        return written_bytes - read_bytes
    if collective == "reduce-scatter":
        return read_bytes - written_bytes
    return read_bytes + written_bytes if collective == "all-reduce" else written_bytes


def _fusion_bytes(program: HloProgram, fusion: Instruction) -> int:
    fused = program.computations[fusion.called_computation_ids[0]]
    read_bytes = sum(_read_bytes(program, i) for i in fused.instructions if i.opcode == "parameter")
    root = program.instructions[fused.root_id]
    written = [program.instructions[o] for o in root.operand_ids] if root.opcode == "tuple" else [root]
    return read_bytes + sum(_written_bytes(program, each) for each in written)


def _read_bytes(program: HloProgram, parameter: Instruction) -> int:
    """Of an operand that is only sliced, the slices; of one that is only updated in place, what is updated."""
    array_bytes = _array_bytes(parameter.shape)
    if (sliced := _sliced_elements(program, parameter.id)) is not None:
        return sliced * array_bytes // max(1, element_count(parameter.shape))
    replaced_bytes = _replaced_bytes(program, parameter.id)
    return array_bytes if replaced_bytes is None else replaced_bytes


def _replaced_bytes(program: HloProgram, id_: int) -> int | None:
    """Bytes read of an array that a fusion only updates in place, behind bitcasts too; None if it does more with it."""
    total_bytes = 0
    for user in (program.instructions[user] for user in program.users[id_]):
        if user.opcode == "bitcast" and (inner_bytes := _replaced_bytes(program, user.id)) is not None:
            total_bytes += inner_bytes
        elif user.opcode in _IN_PLACE and user.operand_ids[0] == id_:
            total_bytes += _updated_bytes(program, user) if user.opcode == "scatter" else 0
        else:
            return None
    return total_bytes if program.users[id_] else None


def _sliced_elements(program: HloProgram, id_: int) -> int | None:
    """Elements that all slices of an array need, or of what a fusion computes of it by element and by reductions.

    A kernel of which a slice is the result computes the elements of the slice, each with the complete sum behind it:
    the parts of a product, added up by what reads a gate. None if the fusion uses more.
    """
    needed: dict[int, int] = {}
    seen, pending = {id_}, [(id_, 1)]
    while pending:
        operand, elements_each = pending.pop()
        for each in program.users[operand]:
            user = program.instructions[each]
            if user.opcode in _SLICES and user.operand_ids[0] == operand:
                needed[user.id] = elements_each * element_count(user.shape)
            elif not (_is_by_element(user) or user.opcode == "reduce") or not program.users[user.id]:
                return None
            elif user.id not in seen:
                seen.add(user.id)
                read = element_count(program.instructions[operand].shape)
                summed = max(1, read // max(1, element_count(user.shape))) if user.opcode == "reduce" else 1
                pending.append((user.id, elements_each * summed))
    return sum(needed.values()) or None


def _is_by_element(instruction: Instruction) -> bool:
    """True if each element of the result is computed of one element of each operand: a view, or arithmetic."""
    return instruction.opcode in _ELEMENT_VIEWS or instruction.opcode not in _NO_ARITHMETIC | _MANY_TO_ONE


def _written_bytes(program: HloProgram, root: Instruction) -> int:
    while root.opcode == "bitcast" and root.operand_ids:
        root = program.instructions[root.operand_ids[0]]
    if root.opcode in _IN_PLACE:
        return _updated_bytes(program, root)
    return 0 if root.opcode == "parameter" else _result_bytes(root)


def _updated_bytes(program: HloProgram, instruction: Instruction) -> int:
    """Bytes of the part that an update in place writes."""
    operand = instruction.operand_ids[1 if instruction.opcode == "dynamic-update-slice" else -1]
    return shape_bytes(program.instructions[operand].shape)


def _array_bytes(shape: Shape) -> int:
    """Bytes of an operand; of a tuple none: its reader reads its parts."""
    return 0 if shape.element_type in (TUPLE, TOKEN) else shape_bytes(shape)


def _result_bytes(instruction: Instruction) -> int:
    """Bytes of all results, such as those of a collective of several arrays; of a library call without its scratch."""
    is_call = instruction.opcode == "custom-call"
    return shape_bytes(_result(instruction.shape) if is_call else instruction.shape)


def _result(shape: Shape) -> Shape:
    """The first array of a result: library calls return their scratch too."""
    while shape.element_type == TUPLE and shape.tuple_shapes:
        shape = shape.tuple_shapes[0]
    return shape


def _is_foreign(instruction: Instruction) -> bool:
    if instruction.opcode != "custom-call":
        return False
    target = instruction.custom_call_target
    return target not in _FREE_CALLS and not target.startswith((*_PRODUCTS, *_CONVOLUTIONS))
