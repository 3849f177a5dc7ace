"""Lints of the full step: memory that no policy can save, sharded values, and arguments.

Read after `context`.
"""

import re
from collections.abc import Iterator

from jaxckpt._units import format_bytes
from jaxckpt.ir import Graph, GraphPlan, Kind, Op, Phase, Recompute, Trait
from jaxckpt.linter.context import Diagnostic, LintContext, location_of_op
from jaxckpt.linter.finding import Location
from jaxckpt.schedule import Run, schedule
from jaxckpt.solve import solve_full, unaliased_output_bytes

_LOGITS_SHARE = 0.4
"""Logits and their gradient dominate where they take this share of the temporaries under full recomputation."""
_HEAD_WIDENING = 2
"""A head's result has at least so many times the bytes of its activation. XLA's roles ask for four times the elements
(`jaxckpt.hlo.buffer_roles`); two suffice here, since `_LOGITS_SHARE` has to be reached as well."""
_DONATION_SHARE = 0.05
_GATHERS = frozenset({"all_gather", "all_gather_invariant", "reshard", "sharding_constraint", "mesh_cast"})
_REMATTED = re.compile(r"\bCheckpoint([A-Z]\w*_\d+)\b")


def arguments_too_large(context: LintContext) -> Iterator[Diagnostic]:
    """Arguments and results that do not fit the target under any plan."""
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
    """Logits that, with their gradient, take most of the temporaries under full recomputation."""
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
            fix="No policy on the layers can save more: compute the loss in chunks over the sequence or the"
            " vocabulary, each under jax.checkpoint.",
        )


def missing_donation(context: LintContext) -> Iterator[Diagnostic]:
    """Updated parameters and state next to the old ones, which are not donated."""
    graph = context.graph
    updated = list(_undonated_updates(graph))
    size_bytes = graph.size_bytes(updated)
    if size_bytes > _DONATION_SHARE * graph.argument_bytes:
        first = context.traced.paths[graph.inputs.index(updated[0])]
        yield Diagnostic(
            where=Location(),
            text=f"{len(updated)} arguments ({format_bytes(size_bytes)}, the first is {first}) are returned updated"
            " and are not donated: old and new arrays are in memory at the same time.",
            fix=_donating(context, updated),
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
            fix=f"Give the module a name (name={plain!r}), or put jaxckpt.scope on its class: a scope keeps paths.",
        )


def gathered_parameters(context: LintContext) -> Iterator[Diagnostic]:
    """Parameters that are gathered in the forward pass and kept for the backward."""
    graph = context.graph
    decided = context.fitting.plan.decisions if context.fitting is not None else {}
    for op in graph.ops:
        if not _gathers_parameter(context, op):
            continue
        (value,) = op.writes
        read_bytes = graph.size_bytes(op.reads)
        is_read_after_forward = any(graph.ops[r].phase is not Phase.FORWARD for r in _readers_of_views(graph, value))
        is_larger = graph.values[value].size_bytes > read_bytes
        if is_read_after_forward and is_larger and not isinstance(decided.get(value), Recompute):
            yield Diagnostic(
                where=location_of_op(op),
                text=f"{graph.values[value]} ({format_bytes(graph.values[value].size_bytes)} a device) is gathered from"
                f" {format_bytes(read_bytes)} a device, and the backward reads it: it may be in memory until then.",
                fix="Put the gather inside the layer's scope with recompute_gathered_parameters = true, or"
                " jax.checkpoint around both.",
            )


def _gathers_parameter(context: LintContext, op: Op) -> bool:
    """True for a gather or resharding, in the forward pass, of one argument-derived value."""
    is_gather = op.phase is Phase.FORWARD and op.primitive in _GATHERS and len(op.writes) == 1
    return is_gather and bool(op.reads) and context.problem.fusion.argument_derived.issuperset(op.reads)


def planned_redraws(context: LintContext) -> Iterator[Diagnostic]:
    """Random draws that the policy recomputes in a step over several devices, partitioned over these devices."""
    if context.device_count == 1 or context.fitting is None or not context.fitting.plan.decisions:
        return
    graph = context.graph
    for op in _recomputed_ops(graph, context.fitting.plan):
        if Trait.RANDOM not in op.traits or not op.writes:
            continue
        bits = graph.values[op.writes[0]]
        if bits.shape and not bits.local:  # XLA may partition it over devices
            yield Diagnostic(
                where=location_of_op(op),
                text=f"{op.primitive} ({bits}) is drawn twice in a step over {context.device_count} devices: the second"
                " draw may be partitioned in another way than the first.",
                fix='Save what is drawn: a rule random = true, decision = "save".',
            )


def _recomputed_ops(graph: Graph, plan: GraphPlan) -> list[Op]:
    clones = {step.op for step in schedule(graph, plan).steps if isinstance(step, Run) and step.is_clone}
    return [graph.ops[i] for i in sorted(clones)]


def _head(graph: Graph) -> Op | None:
    """The last product of the forward pass, if it widens its largest activation by `_HEAD_WIDENING`."""
    products = [op for op in graph.ops if op.phase is Phase.FORWARD and op.kind is Kind.CONTRACTION]
    if not products or len(products[-1].writes) != 1 or len(products[-1].reads) != 2:
        return None
    head = products[-1]
    activation_bytes = [graph.values[v].size_bytes for v in head.reads if graph.producer[v] is not None]
    logits_bytes = graph.values[head.writes[0]].size_bytes
    return head if logits_bytes >= _HEAD_WIDENING * max(activation_bytes, default=0) else None


def _undonated_updates(graph: Graph) -> Iterator[int]:
    """Inputs that are not donated and that an output of the same type updates."""
    free = set(graph.inputs) - graph.donated
    for output in graph.outputs:
        for value in sorted(_updated_from(graph, output) & free):
            if str(graph.values[value]) == str(graph.values[output]):
                free.discard(value)
                yield value
                break


def _updated_from(graph: Graph, output: int) -> set[int]:
    """Inputs from which ops of the update alone compute an output."""
    found: set[int] = set()
    todo, visited = [output], {output}
    while todo:
        value = todo.pop()
        producer = graph.producer[value]
        if producer is None:
            found.add(value)
        elif graph.ops[producer].phase is Phase.UPDATE:
            fresh = [v for v in graph.ops[producer].reads if v not in visited]
            visited.update(fresh)
            todo.extend(fresh)
    return found - {output}


def _donating(context: LintContext, values: list[int]) -> str:
    """How the step's jit donates the arguments that hold some inputs."""
    found = {context.traced.positions[context.graph.inputs.index(value)] for value in values}
    if found == {None}:
        return "Pass what the step itself binds as arguments, and donate them."
    if context.traced.jit == "equinox":
        return 'donate="all-except-first" in its filter_jit, and the batch as the first argument.'
    positions = tuple(sorted(key for key in found if isinstance(key, int)))
    names = tuple(sorted(key for key in found if isinstance(key, str)))
    options = {"donate_argnums": positions, "donate_argnames": names}
    return f"{', '.join(f'{name}={keys}' for name, keys in options.items() if keys)} in its jit."


def _readers_of_views(graph: Graph, value: int) -> Iterator[int]:
    """Ops that read a value, or a view or cast of it in the forward pass."""
    for reader in graph.readers[value]:
        yield reader
        op = graph.ops[reader]
        if op.phase is Phase.FORWARD and op.kind in (Kind.VIEW, Kind.ELEMENTWISE) and len(op.reads) == 1:
            for written in op.writes:
                yield from _readers_of_views(graph, written)
