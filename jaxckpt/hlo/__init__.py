"""What XLA wrote about a compiled program, read into plain data; no jax.

Read in this order: `memory` (the data: kernels, buffers, allocations), `schema` (XLA's messages).
"""

from jaxckpt.hlo.memory import Allocation, Buffer, Kernel, MemoryMap, Part, Role, ScopeMemory, Space, Use, is_below

__all__ = ["Allocation", "Buffer", "Kernel", "MemoryMap", "Part", "Role", "ScopeMemory", "Space", "Use", "is_below"]
