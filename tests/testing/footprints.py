"""Footprints made by hand, so that tests of tests need no compiler."""

from jaxckpt.compiler import Footprint
from jaxckpt.hlo import Allocation, Buffer, Kernel, MemoryMap, Part, Role, Use

MIB = 2**20


def made(
    *, layers: int = 12, layer_mib: int = 2, head_mib: int = 8, name: str = "block", gap_mib: int = 1, **changes
) -> Footprint:
    """A model of equal layers and a head, each with one buffer: layers hold theirs for the backward."""
    scopes = [f"GPT/{name}_{layer}/mlp/up" for layer in range(layers)]
    kernels = [Kernel(name=f"forward.{i}", opcode="fusion", scope=s, part=Part.FORWARD) for i, s in enumerate(scopes)]
    kernels.append(Kernel(name="head", opcode="fusion", op="dot_general", scope="GPT/head", part=Part.FORWARD))
    kernels += [
        Kernel(name=f"backward.{i}", opcode="fusion", scope=s, part=Part.BACKWARD, flops=100, traffic_bytes=50)
        for i, s in reversed(list(enumerate(scopes)))
    ]
    sizes = [*[layer_mib * MIB] * layers, head_mib * MIB]
    buffers = tuple(
        Buffer(
            id=i,
            size_bytes=size_bytes,
            offset_bytes=sum(sizes[:i]),
            allocation=1,
            born=i,
            dies=2 * layers - i,
            dtype="float32",
            shape=(8, size_bytes // 32),
            name=kernels[i].name,
            op="dot_general",
            scope=kernels[i].scope,
            part=Part.FORWARD,
            role=Role.RESIDUAL,
            source="/models/gpt.py:31",
        )
        for i, size_bytes in enumerate(sizes)
    )
    temp_bytes = sum(sizes) + gap_mib * MIB
    memory = MemoryMap(
        program="jit_step",
        kernels=tuple(kernels),
        buffers=buffers,
        allocations=(
            Allocation(index=0, size_bytes=64 * MIB, use=Use.ARGUMENT),
            Allocation(index=1, size_bytes=temp_bytes, use=Use.TEMPORARY),
        ),
    )
    known = {
        "argument_bytes": 64 * MIB,
        "output_bytes": 40 * MIB,
        "alias_bytes": 40 * MIB,
        "temp_bytes": temp_bytes,
        "target": "h200",
        "jax_version": "0.12.0",
        "plugin_version": "0.12.0",
        "memory": memory,
    }
    return Footprint(**(known | changes))
