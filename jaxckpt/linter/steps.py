"""Lints of the whole step: what no policy can change, sharded values, and what the arguments tell.

Read after `context`.
"""

import re
from collections.abc import Iterator

from jaxckpt._units import format_bytes
from jaxckpt.ir import Graph, Kind, Op, Phase, Recompute, Trait
from jaxckpt.linter.context import Diagnostic, LintContext, location_of_op
from jaxckpt.linter.finding import Location
from jaxckpt.schedule import Run, schedule
from jaxckpt.solve import solve_full, unaliased_output_bytes

_LOGITS_SHARE = 0.4
"""Logits and their gradient dominate where they take so much of what is left with everything recomputed."""
_DONATION_SHARE = 0.05
_GATHERS = frozenset({"all_gather", "all_gather_invariant", "reshard", "sharding_constraint", "mesh_cast"})
_REMATTED = re.compile(r"\bCheckpoint([A-Z]\w*_\d+)\b")


def arguments_too_large(context: LintContext) -> Iterator[Diagnostic]:
    """Arguments and results that do not fit the target whatever is recomputed."""
    if context.target is None:
        return
    graph = context.graph
    output_bytes = unaliased_output_bytes(graph)
    if graph.argument_bytes + output_bytes > context.target.memory_bytes:
        yield Diagnostic(
            where=Location(),
            text=f"Arguments take {format_bytes(graph.argument_bytes)} and results that take over no argument"
            f" {format_bytes(output_bytes)}; {context.target.name} has {format_bytes(context.target.memory_bytes)}.",
            fix="No policy helps: shard the arguments over more devices, donate the state, or take a smaller model.",
        )


def dominating_logits(context: LintContext) -> Iterator[Diagnostic]:
    """Logits that, with their gradient, are most of what is left when everything is recomputed."""
    graph = context.graph
    head = _head(graph)
    if head is None:
        return
    logits = graph.values[head.writes[0]]
    smallest = solve_full(context.problem).prediction
    assert smallest is not None, "solvers predict"
    if 2 * logits.size_bytes > _LOGITS_SHARE * smallest.temp_bytes:
        yield Diagnostic(
            where=location_of_op(head),
            text=f"The logits {logits} take {format_bytes(logits.size_bytes)}, and their gradient as much; with all"
            f" else recomputed {format_bytes(smallest.temp_bytes)} of temporaries remain.",
            fix="No policy on the layers helps below that: compute the loss in chunks over the sequence or the"
            " vocabulary, each under jax.checkpoint.",
        )


def missing_donation(context: LintContext) -> Iterator[Diagnostic]:
    """New parameters and state beside the old ones, which are not donated."""
    graph = context.graph
    updated = list(_updated_in_vain(graph))
    size_bytes = sum(graph.values[v].size_bytes for v in updated)
    if size_bytes > _DONATION_SHARE * graph.argument_bytes:
        first = context.traced.paths[graph.inputs.index(updated[0])]
        yield Diagnostic(
            where=Location(),
            text=f"{len(updated)} arguments ({format_bytes(size_bytes)}, the first is {first}) come out updated and are"
            " not donated: old and new stand in memory together.",
            fix=f"donate_argnums=({', '.join(map(str, _positions(context, updated)))},) in jax.jit.",
        )


def renamed_parameters(context: LintContext) -> Iterator[Diagnostic]:
    """Modules that `nn.remat` named, among the paths of the arguments."""
    found = {match[0]: match[1] for path in context.traced.paths for match in _REMATTED.finditer(path)}
    if found:
        shown, plain = next(iter(found.items()))
        yield Diagnostic(
            where=Location(),
            text=f"{len(found)} modules among the arguments have names that nn.remat gave them, such as {shown}:"
            f" weights that were saved as {plain} do not load.",
            fix=f"Give the module a name (name={plain!r}), or put jaxckpt.scope on its class: it leaves paths alone.",
        )


def gathered_parameters(context: LintContext) -> Iterator[Diagnostic]:
    """Parameters that are gathered in the forward pass and kept for the backward."""
    graph, derived = context.graph, context.problem.fusion.argument_derived
    decided = context.fitting.plan.decisions if context.fitting is not None else {}
    for op in graph.ops:
        if op.phase is not Phase.FORWARD or op.primitive not in _GATHERS or not op.reads or len(op.writes) != 1:
            continue
        (value,) = op.writes
        late = any(graph.ops[reader].phase is not Phase.FORWARD for reader in _seen_through(graph, value))
        grown = graph.values[value].size_bytes > sum(graph.values[v].size_bytes for v in op.reads)
        if late and grown and derived.issuperset(op.reads) and not isinstance(decided.get(value), Recompute):
            yield Diagnostic(
                where=location_of_op(op),
                text=f"{graph.values[value]} ({format_bytes(graph.values[value].size_bytes)} a device) is gathered from"
                f" {format_bytes(sum(graph.values[v].size_bytes for v in op.reads))} a device, and the backward reads"
                " it: it may be kept until then.",
                fix="Put the gather inside the layer's scope with recompute_gathered_parameters = true, or"
                " jax.checkpoint around both.",
            )


def random_planned_again(context: LintContext) -> Iterator[Diagnostic]:
    """Random draws that the policy makes again in a step over several devices, and that these divide among them."""
    if context.device_count == 1 or context.fitting is None or not context.fitting.plan.decisions:
        return
    graph = context.graph
    again = {step.op for step in schedule(graph, context.fitting.plan).steps if isinstance(step, Run) and step.is_clone}
    for op in (graph.ops[i] for i in sorted(again)):
        made = graph.values[op.writes[0]] if op.writes else None
        if Trait.RANDOM in op.traits and made is not None and made.shape and not made.local:
            yield Diagnostic(
                where=location_of_op(op),
                text=f"{op.primitive} ({made}) is drawn again in a step over"
                f" {context.device_count} devices: the second draw may be partitioned otherwise than the first.",
                fix='Save what is drawn: a rule random = true, decision = "save".',
            )


def _head(graph: Graph) -> Op | None:
    """The last product of the forward pass, if it makes much more than it reads of the layers."""
    products = [op for op in graph.ops if op.phase is Phase.FORWARD and op.kind is Kind.CONTRACTION]
    if not products or len(products[-1].writes) != 1 or len(products[-1].reads) != 2:
        return None
    head = products[-1]
    made = [graph.producer[v] for v in head.reads]
    activations = [v for v, op in zip(head.reads, made, strict=True) if op is not None]
    sizes = [graph.values[v].size_bytes for v in activations] or [0]
    return head if graph.values[head.writes[0]].size_bytes >= 2 * max(sizes) else None


def _updated_in_vain(graph: Graph) -> Iterator[int]:
    """Inputs that are not donated and of which an output of their type is a new version."""
    free = set(graph.inputs) - graph.donated
    for output in graph.outputs:
        for value in sorted(_updated_from(graph, output) & free):
            if str(graph.values[value]) == str(graph.values[output]):
                free.discard(value)
                yield value
                break


def _updated_from(graph: Graph, output: int) -> set[int]:
    """Inputs that an output is computed from by work of the update alone."""
    found: set[int] = set()
    todo, visited = [output], {output}
    while todo:
        value = todo.pop()
        made = graph.producer[value]
        if made is None:
            found.add(value)
        elif graph.ops[made].phase is Phase.UPDATE:
            fresh = [v for v in graph.ops[made].reads if v not in visited]
            visited.update(fresh)
            todo.extend(fresh)
    return found - {output}


def _positions(context: LintContext, values: list[int]) -> list[int]:
    """Positions of the step's arguments that inputs stand in."""
    paths = (context.traced.paths[context.graph.inputs.index(v)] for v in values)
    return sorted({int(match[1]) for path in paths if (match := re.match(r"\[(\d+)\]", path))})


def _seen_through(graph: Graph, value: int) -> Iterator[int]:
    """Ops that read a value or a view or cast of it in the forward pass."""
    for reader in graph.readers[value]:
        yield reader
        op = graph.ops[reader]
        if op.phase is Phase.FORWARD and op.kind in (Kind.VIEW, Kind.ELEMENTWISE) and len(op.reads) == 1:
            for written in op.writes:
                yield from _seen_through(graph, written)
