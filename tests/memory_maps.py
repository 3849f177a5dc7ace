"""Memory maps made by hand: three blocks and a head, small enough to be counted on fingers."""

from jaxckpt.compiler import Footprint
from jaxckpt.hlo import Allocation, Buffer, Kernel, MemoryMap, Part, Role, Use

MIB = 2**20


def kernel(name: str, scope: str = "", part: Part = Part.FORWARD, **changes) -> Kernel:
    known = {"opcode": "fusion", "op": "dot_general", "flops": 10**9, "traffic_bytes": MIB, "source": "models/gpt.py:7"}
    return Kernel(name=name, scope=scope, part=part, **(known | changes))


def buffer(number: int, scope: str, born: int, dies: int, size_bytes: int = MIB, **changes) -> Buffer:
    known = {
        "offset_bytes": number * MIB,
        "allocation": 1,
        "dtype": "float32",
        "shape": (size_bytes // 4,),
        "op": "dot_general",
        "part": Part.FORWARD,
        "role": Role.RESIDUAL,
        "source": "models/gpt.py:7",
    }
    return Buffer(id=number, scope=scope, born=born, dies=dies, size_bytes=size_bytes, **(known | changes))


def memory_map(*, recomputed: int = 0, **changes) -> MemoryMap:
    """Three blocks that hold 1 MiB each, of which some are computed again, and a head of 4 MiB."""
    blocks = range(3)
    kernels = [kernel(f"block.{i}", f"GPT/block_{i}") for i in blocks] + [kernel("head", "GPT/head")]
    kernels += [kernel("loss", "GPT/head", Part.BACKWARD)]
    kernels += [kernel(f"again.{i}", f"GPT/block_{i}", Part.RECOMPUTE) for i in range(recomputed)]
    last = len(kernels)
    kernels += [kernel("update", "", Part.UPDATE, op="sub", flops=0)]
    held = [buffer(i, f"GPT/block_{i}", i, i if i < recomputed else last) for i in blocks]
    logits = buffer(3, "GPT/head", 3, 4, 4 * MIB, role=Role.LOGITS)
    weight = buffer(4, "", 0, last, 8 * MIB, allocation=0, role=Role.PARAMETER, name="[0]['w']", offset_bytes=0)
    known = {
        "program": "jit_step",
        "kernels": tuple(kernels),
        "buffers": (*held, logits, weight),
        "allocations": (
            Allocation(index=0, size_bytes=8 * MIB, use=Use.ARGUMENT),
            Allocation(index=1, size_bytes=8 * MIB, use=Use.TEMPORARY),
        ),
    }
    return MemoryMap(**(known | changes))


def made_footprint(memory: MemoryMap | None, **changes) -> Footprint:
    known = {
        "argument_bytes": 8 * MIB,
        "output_bytes": 0,
        "alias_bytes": 0,
        "temp_bytes": 8 * MIB,
        "target": "h200",
        "step_s": 0.002,
        "memory": memory,
    }
    return Footprint(**(known | changes))
