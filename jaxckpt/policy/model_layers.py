"""The layers of a model, found in its graph: by their names, as a run of ops that repeats itself, or as loop bodies.

By name: scopes that differ in one number alone ("GPT/block_0", "GPT/block_1", ...), the outermost ones of the model.
Patterns whose scopes interleave ("attn_0", "mlp_0", "attn_1", ...) are parts of the same layers.

By structure: the longest tandem repeat of the forward pass, a period p such that op i + p computes the same as op i.
It is cut where fewest bytes cross, the first time in the repeat: a period alone does not say where a layer begins. The
same layers elsewhere, as behind a solver between two stacks, are stacks of their own.

By loops: the body of each outermost loop whose gradient is another loop is one layer: all iterations have one body.

Names and repeats count if as many residuals and as many products are inside the layers as outside of all layers: two
norms of one block differ in a number alone too.

Read after `rule`. Complexity: linear in ops for names; for a repeat, ops times ops in comparisons of numbers.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

from jaxckpt.ir import Graph, Kind, Phase
from jaxckpt.ir.layers import Layers, fold_layers, layer_ranges
from jaxckpt.ir.regions import CARRY
from jaxckpt.policy.rule import outermost
from jaxckpt.schedule.argument_derived import argument_derived_values

_Ops = frozenset[int]
_ALIKE = 0.6
"""A layer at an end of a repeat has at least this share of the ops of the others. Not benchmarked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLayers:
    """The layers of a model in the order of the forward pass.

    Attributes:
      found_by: Words for the property by which the layers were found.
      stacks: The forward ops of each layer; layers of one stack have one pattern of names.
      are_loop_bodies: True if each is the body of a loop: all iterations are one layer.
    """

    found_by: str
    stacks: tuple[tuple[_Ops, ...], ...]
    are_loop_bodies: bool = False

    def __str__(self) -> str:
        return f"{self.count} layer{'s' * (self.count != 1)}: {self.found_by}"

    @property
    def count(self) -> int:
        """The number of layers."""
        return sum(map(len, self.stacks))

    def segments(self, size: int, chosen: frozenset[int] | None) -> Iterator[_Ops]:
        """The ops of each `size` consecutive layers of a stack; `chosen` are the numbers of layers, None for all.

        Layers count from 0 through all stacks. What lies between two layers of a segment belongs to the segment.
        """
        owned = frozenset(chain.from_iterable(chain.from_iterable(self.stacks)))
        first = 0
        for stack in self.stacks:
            for start in range(0, len(stack), size):
                numbers = range(first + start, first + min(start + size, len(stack)))
                ops = [stack[number - first] for number in numbers if chosen is None or number in chosen]
                if ops:
                    layers = frozenset().union(*ops)
                    between = range(min(layers), max(layers) + 1) if len(ops) > 1 else ()
                    yield layers | {op for op in between if op not in owned}
            first += len(stack)


def layers_in_scopes(graph: Graph, scope: str) -> ModelLayers:
    """The layers that a glob on scopes names: one for each outermost scope that matches."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for op in graph.forward:
        if (home := outermost(scope, graph.ops[op].scope)) is not None:
            found[home].add(op)
    return ModelLayers(found_by=f'scopes "{scope}"', stacks=(tuple(map(frozenset, found.values())),) if found else ())


def layers_of_model(graph: Graph) -> ModelLayers | None:
    """The layers of a model by name, else by structure, else by its loops; None where it has none of these."""
    return graph.once(_found_layers)


def _found_layers(graph: Graph) -> ModelLayers | None:
    for layers in (_named(graph), *_repeated(graph)):
        if layers is not None and _hold_most(graph, layers):
            return layers
    return _loop_bodies(graph)


def _pattern(group: Layers[str]) -> str:
    return group.scope.replace("*", "[0-9]*")


def _outermost_groups(graph: Graph) -> list[Layers[str]]:
    """The outermost scopes of the forward pass that differ in one number alone, in order.

    A Linen model of twelve blocks with two experts each has "GPT/block_0" and so on; the experts are inside these.
    """
    scopes = dict.fromkeys(graph.ops[op].scope for op in graph.forward)
    around = dict.fromkeys(path for scope in scopes for path in accumulate(scope.split("/"), "{}/{}".format) if path)
    found: list[Layers[str]] = []
    for group in fold_layers(around, scope=str, alike=lambda path: path.count("/")):
        is_inside = any(outermost(_pattern(outer), group.items[0]) for outer in found)
        if len(group.layers) > 1 and not is_inside:
            found.append(group)
    return found


### By name


def _named(graph: Graph) -> ModelLayers | None:
    """Layers by name; None where their ops are not one run after another."""
    derived = argument_derived_values(graph)
    stacks: list[tuple[list[str], dict[int, set[int]]]] = []
    """The patterns of a stack, and the ops of each number."""
    for group in _outermost_groups(graph):
        layer_of = dict(zip(map(str, chain.from_iterable(group.members)), group.layers, strict=False))
        ops: dict[int, set[int]] = {layer: set() for layer in group.layers}
        pattern = _pattern(group)
        for op in graph.forward:
            if (home := outermost(pattern, graph.ops[op].scope)) in layer_of:
                ops[layer_of[home]].add(op)
        _add_stack(stacks, pattern, ops)
    layers = [tuple(map(frozenset, ops.values())) for _, ops in stacks]
    computing = [[op for op in sorted(ops) if not derived.issuperset(graph.ops[op].writes)] for ops in chain(*layers)]
    runs = sorted((ops[0], ops[-1]) for ops in computing if ops)
    if not runs or any(stop > start for (_, stop), (start, _) in pairwise(runs)):
        return None
    patterns = ", ".join(dict.fromkeys(chain.from_iterable(names for names, _ in stacks)))
    return ModelLayers(found_by=f"scopes {patterns}", stacks=tuple(layers))


def _add_stack(stacks: list[tuple[list[str], dict[int, set[int]]]], pattern: str, ops: dict[int, set[int]]) -> None:
    """Adds the layers of a pattern: to a stack with the same numbers whose ops they interleave, else as a new one."""
    first, last = min(chain(*ops.values())), max(chain(*ops.values()))
    for names, known in stacks:
        if known.keys() == ops.keys() and first < max(chain(*known.values())) and min(chain(*known.values())) < last:
            names.append(pattern)
            for layer, more in ops.items():
                known[layer] |= more
            return
    stacks.append(([pattern], ops))


### By structure


def _repeated(graph: Graph) -> Iterator[ModelLayers]:
    """The layers of the longest tandem repeat of the forward pass, if there is one, and equal layers elsewhere."""
    ops = _computing(graph)
    signatures = _signatures(graph, ops)
    if (found := _longest_repeat(signatures)) is None:
        return
    period = found[2]
    stacks = _cut(signatures, *found, _crossing_bytes(graph, ops))
    layers = [_layers_between(graph, ops, bounds) for bounds in sorted(stacks)]
    if sum(map(len, layers)) > 1:
        yield ModelLayers(found_by=f"runs of {period} equal ops", stacks=tuple(layers))


def _layers_between(graph: Graph, ops: Sequence[int], bounds: Sequence[int]) -> tuple[_Ops, ...]:
    starts = [*(ops[begin] for begin in bounds[:-1]), ops[bounds[-1] - 1] + 1]
    forward = frozenset(graph.forward)
    return tuple(forward.intersection(range(begin, end)) for begin, end in pairwise(starts))


def _cut(signatures: Sequence[int], start: int, stop: int, period: int, crossing: Sequence[int]) -> list[list[int]]:
    """Where layers begin, and the last one ends, in the first phase of a repeat with as few crossing bytes as any.

    A pre-norm layer has two such phases; a later one begins in the middle of the first layer. The first stack is that
    of the repeat; the others are runs of equal layers before and behind, with other work in between.
    """
    phase = min(range(start, start + period), key=lambda begin: crossing[min(begin + period, stop)])
    bounds = list(range(phase, stop + 1, period))
    layer = signatures[phase : phase + period]
    before = _equal_layers(signatures, layer, 0, phase)
    behind = _equal_layers(signatures, layer, bounds[-1], len(signatures))
    first, last = max(0, phase - period), min(bounds[-1] + period, len(signatures))
    if _is_alike(Counter(layer), signatures[first:phase]) and all(run[-1] <= first for run in before):
        bounds.insert(0, first)
    if _is_alike(Counter(layer), signatures[bounds[-1] : last]) and all(run[0] >= last for run in behind):
        bounds.append(last)
    return [bounds, *before, *behind]


def _equal_layers(signatures: Sequence[int], layer: Sequence[int], at: int, stop: int) -> list[list[int]]:
    """Runs of equal layers between two positions, each as the positions where its layers begin, and its end."""
    runs: list[list[int]] = []
    while at + len(layer) <= stop:
        if signatures[at : at + len(layer)] != layer:
            at += 1
            continue
        if not runs or runs[-1][-1] != at:
            runs.append([at])
        at += len(layer)
        runs[-1].append(at)
    return runs


def _is_alike(usual: Counter[int], signatures: Sequence[int]) -> bool:
    """True if ops are nearly those of a layer: one at an end lacks what only a gradient by its input needs."""
    return (usual & Counter(signatures)).total() >= _ALIKE * usual.total()


def _computing(graph: Graph) -> list[int]:
    """The forward ops that every layer has: without those of constants alone, which are shared, and views of arguments.

    A layer that reads its weights from stacked ones slices them at a place of its own.
    """
    constant = set(graph.constants)
    derived = argument_derived_values(graph)
    found = []
    for op in graph.ops:
        if not op.effects and constant.issuperset(op.reads):
            constant.update(op.writes)
        elif op.kind is Kind.VIEW and derived.issuperset(op.writes):
            continue
        elif op.phase is Phase.FORWARD:
            found.append(op.id)
    return found


def _signatures(graph: Graph, ops: Sequence[int]) -> list[int]:
    """For each op a number, the same for ops that compute the same to results of the same shapes."""
    known: dict[tuple[object, ...], int] = {}
    keys = (
        (op.primitive, op.detail, len(graph.path(op.loop)), *(graph.value_signatures[v] for v in op.writes))
        for op in map(graph.ops.__getitem__, ops)
    )
    return [known.setdefault(key, len(known)) for key in keys]


def _longest_repeat(signatures: Sequence[int]) -> tuple[int, int, int] | None:
    """Start, stop and period of the tandem repeat whose full periods cover most; of equal ones the shortest period."""
    import numpy as np  # policies without layers by structure need none

    numbers = np.asarray(signatures)
    best: tuple[int, int, int, int] | None = None
    for period in range(1, len(numbers) // 2 + 1):
        differs = np.flatnonzero(numbers[:-period] != numbers[period:])
        bounds = np.concatenate(([-1], differs, [len(numbers) - period]))
        longest = int(np.diff(bounds).argmax())
        start, stop = int(bounds[longest]) + 1, int(bounds[longest + 1]) + period
        covered = (stop - start) // period * period
        if covered >= 2 * period and (best is None or covered > best[0]):
            best = covered, start, stop, period
    return None if best is None else best[1:]


def _crossing_bytes(graph: Graph, ops: Sequence[int]) -> list[int]:
    """For each of some forward ops, and the end, the bytes that it and later ones read of what earlier ones wrote."""
    position = {op: number for number, op in enumerate(ops)}
    change = [0] * (len(ops) + 2)
    for op in ops:
        for value in graph.ops[op].writes:
            last = max((position[reader] for reader in graph.readers[value] if reader in position), default=None)
            if last is not None:
                change[position[op] + 1] += graph.values[value].size_bytes
                change[last + 1] -= graph.values[value].size_bytes
    return list(accumulate(change))


def _hold_most(graph: Graph, layers: ModelLayers) -> bool:
    """True if at least as many products and residuals are inside the layers as outside of all layers.

    A residual that leaves its layer is neither.
    """
    home = {op: number for number, ops in enumerate(chain(*layers.stacks)) for op in ops}
    inside = outside = 0
    for value in graph.read_after_forward - argument_derived_values(graph):
        maker = graph.producer[value]
        if maker not in home:
            outside += 1
        elif all(home.get(reader) == home[maker] for reader in _forward_readers(graph, value)):
            inside += 1
    products = [op.id in home for op in map(graph.ops.__getitem__, graph.forward) if op.kind is Kind.CONTRACTION]
    return inside > 0 and inside >= outside and 2 * sum(products) >= len(products)


def _forward_readers(graph: Graph, value: int) -> Iterable[int]:
    return (reader for reader in graph.readers[value] if graph.ops[reader].phase is Phase.FORWARD)


### By loops


def _loop_bodies(graph: Graph) -> ModelLayers | None:
    """The body of each outermost loop, without the carry, which an iteration is given.

    A loop with a backward in its body, over parts of a batch, is none of them.
    """
    ops = graph.ops
    skipped = {loop for op in ops if op.phase is Phase.BACKWARD for loop in graph.path(op.loop)}
    skipped.update(loop.id for loop in graph.loops if loop.branch is not None)
    bodies: defaultdict[int, set[int]] = defaultdict(set)
    for op in map(ops.__getitem__, graph.forward):
        around = next((loop for loop in graph.path(op.loop) if loop not in skipped), None)
        if around is not None and not (op.primitive == CARRY and op.loop == around):
            bodies[around].add(op.id)
    if not bodies:
        return None
    layers = tuple(map(frozenset, bodies.values()))
    return ModelLayers(found_by="bodies of loops", stacks=(layers,), are_loop_bodies=True)


### By stages


def layers_from_stages(graph: Graph, stages: Sequence[int]) -> ModelLayers:
    """The layers of a model without any: the stages of its forward pass, by the first op of each."""
    bounds = pairwise((*stages, len(graph.ops)))
    ops = tuple(frozenset(op for op in graph.forward if start <= op < stop) for start, stop in bounds)
    return ModelLayers(found_by="stages of the forward pass, cut where few bytes cross", stacks=(ops,))


def missing_layers(layers: ModelLayers, chosen: frozenset[int] | None) -> str:
    """The numbers of chosen layers that a model does not have, as text; "" if there are none."""
    return layer_ranges(sorted(number for number in chosen or () if number >= layers.count))
