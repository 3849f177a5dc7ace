"""Lints of a policy against a step: rules without effect, and rules whose effect is seldom meant.

Read after `context`.
"""

import re
from collections.abc import Iterator

from jaxckpt._errors import PolicyError
from jaxckpt._units import format_bytes, format_seconds
from jaxckpt.cost import strip_views
from jaxckpt.ir import Kind, Op, Phase, Recompute, Trait
from jaxckpt.linter.context import LOOPS, Diagnostic, LintContext, location_of_op
from jaxckpt.linter.finding import Location
from jaxckpt.linter.jax_policies import primal_of_name
from jaxckpt.policy import Resolved

OFFLOAD_FLOOR_BYTES = 256 * 1024
"""A smaller copy takes as long to start as to move; TPUs refuse parts of a tile altogether."""
KERNELS = frozenset({"pallas_call", "ffi_call", "custom_call", "tpu_custom_call", "triton_kernel_call"})
"""Primitives of custom kernels, known by name; `_is_kernel` also takes opaque ops without FLOPs."""
SAVE_KERNEL_RESULTS = (
    "Name what its forward rule returns for the backward (for attention the output and the log-sum-exp) and save these"
    " names together."
)
"""The fix for a kernel that runs twice."""

_NAME = re.compile(r"name = '([^']*)'")
_NAMES_SHOWN = 12


def unmatched_rules(context: LintContext) -> Iterator[Diagnostic]:
    """Rules, of the policy and of marks, that match nothing, and regions that hold nothing."""
    for problem, name, primal in _problems(context):
        if primal is None:
            yield Diagnostic(where=Location(), text=f"{problem}.", fix=_how_to_match(context, name))


def rules_on_primals(context: LintContext) -> Iterator[Diagnostic]:
    """Rules on names that only the primal function of a `jax.custom_vjp` has."""
    for _, name, primal in _problems(context):
        if primal is not None:
            yield on_primal(name, primal)


def on_primal(name: str, primal: str) -> Diagnostic:
    """The diagnostic for a name that only the primal function of a `jax.custom_vjp` has."""
    return Diagnostic(
        where=Location(source=primal),
        text=f"The name {name!r} is in the primal function {primal} and not in its forward rule, which replaces the"
        " primal function under differentiation.",
        fix=f'Put checkpoint_name(x, "{name}") into the forward rule that defvjp is given; that rule must not call the'
        " primal function for it.",
    )


def small_offloads(context: LintContext) -> Iterator[Diagnostic]:
    """Values that a rule sends to host memory one by one, though they are small."""
    for resolved, op, value in _ruled(context):
        size_bytes = resolved.forward_value.size_bytes
        if resolved.decision.on_host and size_bytes < OFFLOAD_FLOOR_BYTES:
            yield Diagnostic(
                where=location_of_op(op),
                text=f"{resolved.by} sends {value} to {resolved.decision.space}; below"
                f" {format_bytes(OFFLOAD_FLOOR_BYTES)} a copy takes longer to start than to move.",
                fix='Save it, or add min_bytes = "256KiB" to the rule.',
            )


def saved_scores(context: LintContext) -> Iterator[Diagnostic]:
    """Rules on products that save attention scores: batched products larger than their operands."""
    for resolved, op, value in _ruled(context):
        match = resolved.by.policy.rules[resolved.rule or 0].match
        saves = not isinstance(resolved.decision, Recompute) and match.primitive is not None and match.batched is None
        read_bytes = context.graph.size_bytes(op.reads)
        if saves and Trait.BATCHED in op.traits and resolved.forward_value.size_bytes > read_bytes:
            yield Diagnostic(
                where=location_of_op(op),
                text=f"{resolved.by} keeps {value}, the result of a batched product of"
                f" operands of {format_bytes(read_bytes)} together.",
                fix="Add batched = false to the rule, or name the products that are worth it.",
            )


def kernels_recomputed_by_policy(context: LintContext) -> Iterator[Diagnostic]:
    """Results of opaque kernels that no rule matches and that a default recomputes."""
    for resolved, op, value in _resolved(context):
        made = context.graph.producer[strip_views(context.graph, resolved.forward_value.id)]
        kernel = op if made is None else context.graph.ops[made]
        if resolved.rule is None and isinstance(resolved.decision, Recompute) and _is_kernel(kernel):
            yield Diagnostic(
                where=location_of_op(op),
                text=f"{resolved.by}: {value} comes from the kernel {kernel.primitive},"
                " which runs a second time for it.",
                fix=SAVE_KERNEL_RESULTS,
            )


def saved_argument_derived(context: LintContext) -> Iterator[Diagnostic]:
    """Rules that save masks, broadcasts and casts, which cost nothing to recompute."""
    for resolved, op, value in _ruled(context):
        if (
            not isinstance(resolved.decision, Recompute)
            and resolved.forward_value.id in context.problem.fusion.argument_derived
        ):
            yield Diagnostic(
                where=location_of_op(op),
                text=f"{resolved.by} keeps {value}, which views and elementwise work make of arguments and constants.",
                fix="Take it out of the rule: readers recompute it at no cost.",
            )


def no_memory_saved(context: LintContext) -> Iterator[Diagnostic]:
    """A policy that recomputes, or would in a loop, without lowering the peak."""
    if context.fitting is None or context.fitting.plan.prediction is None:
        return
    planned, unplanned = context.fitting.plan.prediction, context.problem.plan({}, (0,), "none").prediction
    assert unplanned is not None, "solvers predict"
    asks = any(isinstance(each.decision, Recompute) for each in context.fitting.resolved)
    repeats = planned.recompute_s > 0 or (asks and _in_loop(context))
    if repeats and planned.temp_bytes >= unplanned.temp_bytes:
        yield Diagnostic(
            where=Location(),
            text=f"{format_seconds(planned.recompute_s)} of work is recomputed, and {format_bytes(planned.temp_bytes)}"
            f" of temporaries are expected, {format_bytes(unplanned.temp_bytes)} without the policy. Causes: the saved"
            " values are as large as the recomputed ones, one scope or region is all of the forward pass or its last"
            " stage, or the layers are in a loop.",
            fix=_in_loop(context)
            or 'Recompute layer by layer: a scope for each ("*/block_*"), or no scope, and stages are found.',
        )


def _is_kernel(op: Op) -> bool:
    """True for a custom kernel, whose body is not known."""
    if op.primitive in LOOPS or op.primitive == "cond" or op.effects:
        return False
    return op.primitive in KERNELS or (op.kind is Kind.OPAQUE and op.flops is None)


def _problems(context: LintContext) -> Iterator[tuple[str, str, str | None]]:
    """Problems of policies that do not fit the step: each with the name in it, and the primal that has the name."""
    plan = context.policy_plan
    if not isinstance(plan, PolicyError):
        return
    for problem in getattr(plan, "problems", ()) or (str(plan),):
        found = _NAME.search(problem)
        name = found[1] if found else ""
        yield problem, name, primal_of_name(name) if name else None


def _how_to_match(context: LintContext, name: str) -> str:
    site = context.named(name) if name else None
    if site is not None and site.loops:
        return (
            f"The name stands inside a {site.loops[0].primitive.name} ({context.location_of(site)}), of which only"
            " the whole is decided about here: put jaxckpt.scope with this policy on the loop's body."
        )
    if name and context.names:
        return f"Names of this step: {', '.join(sorted(context.names)[:_NAMES_SHOWN])}."
    if name:
        return 'Name the value where it is made: x = jaxckpt.name(x, "...").'
    return "Correct the rule or take it out; jaxckpt.analyze(step, ...) lists scopes and names."


def _in_loop(context: LintContext) -> str:
    """The fix where the forward pass has a loop; "" where it has none."""
    loop = next((op for op in context.graph.ops if op.phase is Phase.FORWARD and op.primitive in LOOPS), None)
    if loop is None:
        return ""
    return f"Put jaxckpt.scope with this policy on the body of the {loop.primitive} at {location_of_op(loop)}."


def _ruled(context: LintContext) -> Iterator[tuple[Resolved, Op, str]]:
    """The decisions of rules."""
    return (each for each in _resolved(context) if each[0].rule is not None)


def _resolved(context: LintContext) -> Iterator[tuple[Resolved, Op, str]]:
    """The decisions of the policy, each with the op that writes the value, and with the value in words."""
    graph = context.graph
    for resolved in () if context.fitting is None else context.fitting.resolved:
        value, producer = graph.values[resolved.forward_value.id], graph.producer[resolved.forward_value.id]
        assert producer is not None, "ops write forward values"
        op = graph.ops[producer]
        yield resolved, op, f"{value} ({format_bytes(value.size_bytes)}) {value.name or op.primitive}"
