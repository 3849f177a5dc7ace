"""XLA's dumps of a compiled program, read into plain data; no jax.

Read in this order: `memory` (the data: kernels, buffers, allocations), `schema` (XLA's messages), `program` (def-use
chains and the schedule), `origin` (where an instruction came from), `live_ranges`, `buffer_roles`, `instruction_cost`
(FLOPs and bytes moved), `host_copies` (copies between device and host), `read` (all of it put together),
`device_groups` (collectives between hosts), `seconds` (an estimate, and the overlap of copies with kernels).
"""

from jaxckpt.hlo.device_groups import spanning_collectives as spanning_collectives
from jaxckpt.hlo.memory import (
    Allocation as Allocation,
    Buffer as Buffer,
    Frame as Frame,
    Kernel as Kernel,
    MemoryMap as MemoryMap,
    Part as Part,
    Role as Role,
    ScopeMemory as ScopeMemory,
    Space as Space,
    Transfer as Transfer,
    Use as Use,
    memory_from_plain as memory_from_plain,
    plain_from_memory as plain_from_memory,
)
from jaxckpt.hlo.origin import origin_of as origin_of
from jaxckpt.hlo.read import memory_from_hlo as memory_from_hlo, parse_hlo as parse_hlo, reconcile as reconcile
from jaxckpt.hlo.seconds import (
    hiding as hiding,
    kernel_s as kernel_s,
    kernels_s as kernels_s,
    roofline_s as roofline_s,
    seconds_by_part as seconds_by_part,
    stall_s as stall_s,
    step_s as step_s,
)
