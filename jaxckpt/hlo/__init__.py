"""XLA's dumps of a compiled program, read into plain data; no jax.

Read in this order: `memory` (the data: kernels, buffers, allocations), `schema` (XLA's messages), `program` (def-use
chains and the schedule), `origin` (where an instruction came from), `live_ranges`, `buffer_roles`, `instruction_cost`
(FLOPs and bytes moved), `host_copies` (copies between device and host), `read` (all of it put together), `seconds` (an
estimate, and the overlap of copies with kernels).
"""

from jaxckpt.hlo.memory import (
    Allocation,
    Buffer,
    Kernel,
    MemoryMap,
    Part,
    Role,
    ScopeMemory,
    Space,
    Transfer,
    Use,
    memory_from_plain,
    plain_from_memory,
)
from jaxckpt.hlo.origin import origin_of
from jaxckpt.hlo.read import memory_from_hlo, parse_hlo, reconcile
from jaxckpt.hlo.seconds import CLASSES, class_of, hiding, kernel_s, roofline_s, seconds_by_part, stall_s, step_s

__all__ = [
    "CLASSES",
    "Allocation",
    "Buffer",
    "Kernel",
    "MemoryMap",
    "Part",
    "Role",
    "ScopeMemory",
    "Space",
    "Transfer",
    "Use",
    "class_of",
    "hiding",
    "kernel_s",
    "memory_from_hlo",
    "memory_from_plain",
    "origin_of",
    "parse_hlo",
    "plain_from_memory",
    "reconcile",
    "roofline_s",
    "seconds_by_part",
    "stall_s",
    "step_s",
]
