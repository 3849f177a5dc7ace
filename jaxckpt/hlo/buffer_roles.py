"""Roles of buffers, classified by producer and consumers.

Nothing is guessed from names: a parameter is a donated argument that the forward pass reads; a residual is made by the
forward pass and read after it. Read after `origin`.
"""

from collections.abc import Collection

from jaxckpt.hlo.memory import AFTER_FORWARD, Allocation, Part, Role, Space, Use
from jaxckpt.hlo.origin import Provenances
from jaxckpt.hlo.program import COLLECTIVES, HloProgram, ValueId
from jaxckpt.hlo.schema import HOST_SPACE, Message, element_count

_BEFORE_UPDATE = frozenset({Part.FORWARD, Part.BACKWARD, Part.RECOMPUTE})
_LOGITS_WIDENING = 4
"""The last product of the forward pass makes logits if its result has at least so many times its operand's elements."""
_ROLES = {Use.CONSTANT: Role.CONSTANT, Use.OUTPUT: Role.OUTPUT}


def role_of(
    program: HloProgram,
    value: ValueId,
    *,
    allocation: Allocation,
    part: Part,
    read_by: frozenset[Part],
    is_returned: bool,
    elements: int,
    logits: Collection[int],
    is_after_forward: bool,
) -> Role:
    """The role of a buffer that these parts of the step read."""
    if allocation.use in _ROLES:
        return _ROLES[allocation.use]
    if allocation.use is Use.ARGUMENT:
        return _argument_role(allocation, read_by)
    id_, index = value
    instruction = program.instructions[id_]
    if _is_host_copy(program, id_, allocation):
        return Role.HOST_COPY
    if instruction.opcode.startswith(COLLECTIVES):
        return Role.COLLECTIVE
    if instruction.opcode == "custom-call" and any(index) and not read_by:
        return Role.WORKSPACE
    if elements in logits and part in _BEFORE_UPDATE:
        return Role.LOGITS
    return _by_part(part, read_by, is_returned, is_after_forward)


def _argument_role(allocation: Allocation, read_by: frozenset[Part]) -> Role:
    if not allocation.donated:
        return Role.INPUT
    return Role.PARAMETER if read_by & _BEFORE_UPDATE else Role.OPTIMIZER_STATE


def _is_host_copy(program: HloProgram, id_: int, allocation: Allocation) -> bool:
    """True for host memory, and if an instruction copies to it or from it; a TPU copies to its chip in the same way."""
    instruction = program.instructions[id_]
    if allocation.space is Space.HOST or instruction.opcode not in ("copy", "copy-start"):
        return allocation.space is Space.HOST
    shapes = [instruction.shape, *instruction.shape.tuple_shapes]
    shapes += [program.instructions[operand].shape for operand in instruction.operand_ids]
    return any(shape.layout.memory_space == HOST_SPACE for shape in shapes)


def _by_part(part: Part, read_by: frozenset[Part], is_returned: bool, is_after_forward: bool) -> Role:
    if part is Part.FORWARD:
        return Role.RESIDUAL if read_by & AFTER_FORWARD and not is_after_forward else Role.ACTIVATION
    if part is Part.BACKWARD:
        return Role.GRADIENT if is_returned or Part.UPDATE in read_by else Role.COTANGENT
    return {Part.RECOMPUTE: Role.ACTIVATION, Part.UPDATE: Role.UPDATE}.get(part, Role.OTHER)


def logits_elements(program: HloProgram, provenances: Provenances) -> frozenset[int]:
    """The element count of the logits: results of the last product of the forward pass, if it widens its operand.

    At most one count: a last product that does not widen, or that multiplies no parameter, makes no logits.
    """
    for id_ in reversed(program.kernels):
        product = _product_elements(program, id_) if provenances.of(id_).part is Part.FORWARD else None
        if product is not None:
            result, operand = product
            widens = result >= _LOGITS_WIDENING * operand
            return frozenset({result}) if widens and _reads_parameter(program, id_) else frozenset()
    return frozenset()


def _product_elements(program: HloProgram, id_: int) -> tuple[int, int] | None:
    """Elements of the result and of the left operand of the first matrix product in a kernel; None without one."""
    for instruction in (program.instructions[id_], *program.inner(id_)):
        if instruction.opcode in ("dot", "custom-call") and instruction.operand_ids:
            result = instruction.shape.tuple_shapes[0] if instruction.shape.tuple_shapes else instruction.shape
            left = program.instructions[instruction.operand_ids[0]].shape
            if result.dimensions and left.dimensions:
                return element_count(result), element_count(left)
    return None


def _reads_parameter(program: HloProgram, id_: int) -> bool:
    """True if a kernel reads an argument of the program, perhaps converted or copied: scores of attention do not."""
    for operand in program.instructions[id_].operand_ids:
        while len(program.instructions[operand].operand_ids) == 1:
            (operand,) = program.instructions[operand].operand_ids
        if program.instructions[operand].opcode == "parameter":
            return True
    return False


def use_of(allocation: Message) -> Use:
    """The use of an allocation by XLA's flags; a donated argument is an argument."""
    if allocation.is_entry_computation_parameter:
        return Use.ARGUMENT
    if allocation.is_constant:
        return Use.CONSTANT
    if allocation.is_thread_local:
        return Use.LOCAL
    return Use.OUTPUT if allocation.maybe_live_out else Use.TEMPORARY
