"""Groups of devices that take part in a collective, as XLA prints them, and how many of a group are in one host.

XLA prints groups in four forms: as lists, `{{0,1},{2,3}}`; as a transposed and divided range, `[8,64]<=[64,8]T(1,0)`;
along axes of a mesh, `mesh['data'=64,'model'=8] {'data'}`; and as pairs of a source and a target. Devices are numbered
host by host. Of an asynchronous collective XLA prints the groups with the instruction that starts it.

Read after `program`.
"""

import re
from collections.abc import Iterator
from math import prod

import numpy as np

from jaxckpt.hlo.program import HloProgram

_COLLECTIVE = re.compile(r"^\s*(?:ROOT )?%?(\S+) = .*?\b(replica_groups|source_target_pairs)=(.*)$", re.MULTILINE)
_LISTS = re.compile(r"\{(\{[\d,{}]*\})\}")
_RANGE = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"mesh\[([^\]]*)\] \{([^}]*)\}")
_AXIS = re.compile(r"'([^']*)'=(\d+)")
_PART = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")


def spanning_collectives(program: HloProgram, text: str, devices_per_host: int) -> Iterator[tuple[str, int]]:
    """The names of a program's collectives between hosts, each with the number of devices of a group in one host.

    Args:
      program: A compiled module.
      text: The same module, as XLA prints it.
      devices_per_host: How many devices each host has.
    """
    called = {i.name: i.called_computation_ids[0] for i in program.instructions.values() if i.opcode == "async-start"}
    for name, form, printed in _COLLECTIVE.findall(text):
        groups = groups_of(printed)
        hosts = [np.unique(np.asarray(group) // devices_per_host, return_counts=True) for group in groups]
        in_host = [int(counts.min()) for _, counts in hosts if len(counts) > 1]
        if in_host:
            collective = (
                program.instructions[program.computations[called[name]].root_id].name if name in called else name
            )
            yield collective, 1 if form == "source_target_pairs" else min(in_host)


def groups_of(printed: str) -> list[list[int]]:
    """Ids of the devices of each group, of a text that begins with one of the four forms; no groups for another form.

    Example:
      >>> groups_of("{{0,1},{2,3}}"), groups_of("[2,2]<=[2,2]T(1,0), dimensions={0}")
      ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
      >>> groups_of("mesh['a'=2,'b'=4] {'b':(2)2}")
      [[0, 1], [2, 3], [4, 5], [6, 7]]
    """
    if lists := _LISTS.match(printed):
        return [list(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", lists[0])]
    if ranged := _RANGE.match(printed):
        shape, dims = (tuple(map(int, ranged[i].split(","))) for i in (1, 2))
        axes = tuple(map(int, ranged[3].split(","))) if ranged[3] else tuple(range(len(dims)))
        groups: list[list[int]] = np.arange(prod(dims)).reshape(dims).transpose(axes).reshape(shape).tolist()
        return groups
    if mesh := _MESH.match(printed):
        return _along_axes({name: int(size) for name, size in _AXIS.findall(mesh[1])}, _PART.findall(mesh[2]))
    return []


def _along_axes(mesh: dict[str, int], grouped: list[tuple[str, str, str]]) -> list[list[int]]:
    """Groups along axes of a mesh, each with the length of the part of the axis before, and that of the part itself."""
    parts: list[int] = []
    places: dict[str, int] = {}
    for name, size in mesh.items():
        own = [(before, length) for axis, before, length in grouped if axis == name]
        before, length = (int(own[0][0] or 1), int(own[0][1] or size)) if own else (size, 1)
        if own:
            places[name] = len(parts) + 1
        parts += [before, length, size // (before * length)]
    ids = np.arange(prod(parts)).reshape(parts)
    moved = [places[name] for name, _, _ in grouped]
    size = prod(parts[place] for place in moved)
    groups: list[list[int]] = np.moveaxis(ids, moved, range(-len(moved), 0)).reshape(-1, size).tolist()
    return groups
