"""Memory maps made by hand: a model of equal blocks, and any map at all for hypothesis."""

from dataclasses import replace

from hypothesis import strategies as st

from jaxckpt.hlo import Allocation, Buffer, Kernel, MemoryMap, Part, Role, Use

MIB = 2**20
SCOPES = ("", "net", "net/block_0/a", "net/block_1/a", "net/block_2", "net/block_10/a/b", "net/head", "<script>$x_1$&")


def blocks(count: int, *, small: int = 0, prefix: str = "net/block_", head: str = "net/head") -> MemoryMap:
    """Blocks that keep one large residual and some small ones each, then a head with logits, then all backwards."""
    each = small + 1
    forward, buffers, address = count * each, [], 0
    length = 2 * forward + 3
    for at in range(forward):
        block, inner = divmod(at, each)
        size_bytes = 4096 if inner else 64 * MIB
        scope = f"{prefix}{block}" + (f"/norm_{inner}" if inner else "/attention")
        facts = {"name": f"fusion.{at}", "op": "dot_general", "scope": scope, "source": "/home/me/model.py:31"}
        buffers.append(_buffer(at, size_bytes, address, at, length - 1 - at, Role.RESIDUAL, Part.FORWARD, facts))
        address += size_bytes
    facts = {"name": "logits_fusion", "op": "mul", "scope": head, "source": "/home/me/model.py:77"}
    buffers.append(_buffer(forward, 300 * MIB, address, forward, forward + 1, Role.LOGITS, Part.FORWARD, facts))
    parts = [Part.FORWARD] * (forward + 1) + [Part.BACKWARD] * (forward + 1) + [Part.UPDATE]
    scopes = [b.scope for b in buffers]
    kernels = tuple(
        Kernel(name=f"fusion.{at}", opcode="fusion", scope=scope, part=part, source="/home/me/model.py:31")
        for at, (scope, part) in enumerate(zip([*scopes, *scopes[::-1], ""], parts, strict=True))
    )
    allocations = (
        Allocation(index=0, size_bytes=7 * MIB, use=Use.ARGUMENT),
        Allocation(index=1, size_bytes=address + 310 * MIB, use=Use.TEMPORARY),
    )
    return MemoryMap(program="jit_step", kernels=kernels, buffers=tuple(buffers), allocations=allocations)


def _buffer(at, size_bytes, offset_bytes, born, dies, role, part, facts):
    place = {"size_bytes": size_bytes, "offset_bytes": offset_bytes, "allocation": 1, "born": born, "dies": dies}
    return Buffer(
        id=at, **place, dtype="bfloat16", shape=(size_bytes // 2,), layout=(0,), role=role, part=part, **facts
    )


@st.composite
def memory_maps(draw) -> MemoryMap:
    """Any map: buffers anywhere, in several allocations, of any use, even on one another."""
    length = draw(st.integers(1, 40))
    uses = [Use.TEMPORARY, *draw(st.lists(st.sampled_from((Use.TEMPORARY, Use.ARGUMENT)), max_size=2))]
    allocations = tuple(Allocation(index=7 * at, size_bytes=2000, use=use) for at, use in enumerate(uses))
    parts = draw(st.lists(st.sampled_from(list(Part)), min_size=length, max_size=length))
    kernels = tuple(Kernel(name=f"kernel.{at}", opcode="fusion", part=part) for at, part in enumerate(parts))
    buffers = draw(st.lists(_buffers(length, allocations), max_size=40))
    numbered = tuple(replace(b, id=at, name=f"fusion.{at}") for at, b in enumerate(buffers))
    return MemoryMap(program="any", kernels=kernels, buffers=numbered, allocations=allocations)


def _buffers(length, allocations):
    times = st.tuples(st.integers(0, length - 1), st.integers(0, length - 1)).map(sorted)
    place = st.tuples(st.sampled_from((0, 1, 2, 3, 40, 700)), st.integers(0, 1300))
    return st.builds(
        lambda time, place, allocation, **kind: Buffer(
            id=0,
            born=time[0],
            dies=time[1],
            size_bytes=place[0],
            offset_bytes=place[1],
            allocation=allocation.index,
            dtype="float32",
            shape=(place[0],),
            **kind,
        ),
        times,
        place,
        st.sampled_from(allocations),
        scope=st.sampled_from(SCOPES),
        role=st.sampled_from(list(Role)),
        part=st.sampled_from(list(Part)),
    )
