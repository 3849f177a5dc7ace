"""Lints of the user's own `jax.checkpoint`s: their place, their policies, and the ops that they recompute.

Read after `context`.
"""

import math
from collections.abc import Iterator

import jax
import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt._units import format_bytes
from jaxckpt.ir import Kind, Trait, kind_of, trait_of
from jaxckpt.ir.scope import TAG, TRANSPOSE
from jaxckpt.linter.context import Diagnostic, EquationSite, LintContext, equations_inside, policy_of
from jaxckpt.linter.jax_policies import ReadPolicy, primal_of_name
from jaxckpt.linter.policies import KERNELS, SAVE_KERNEL_RESULTS, on_primal
from jaxckpt.program.flat_program import Equation
from jaxckpt.program.inline import REMATS, inline
from jaxckpt.trace.sharding import aval_bytes

_CALLBACKS = frozenset({"debug_print", "debug_callback", "io_callback", "pure_callback", "outside_call"})
_HEAVY = frozenset({Kind.CONTRACTION, Kind.OPAQUE})
_BARE = frozenset({Kind.VIEW, Kind.BARRIER})
_ASKED_BY_REMAT3 = frozenset({"nothing", "names", "dots", "dots_without_batch"})


def unsplit_function(context: LintContext) -> Iterator[Diagnostic]:
    """A checkpoint around the differentiated function."""
    site, others = _last(context)
    if site is not None and not others:
        yield Diagnostic(
            where=context.location_of(site),
            text="One jax.checkpoint is around everything that is differentiated: at the start of the backward pass"
            " all of it is recomputed and stays in memory, so the peak is the same and the forward pass runs twice.",
            fix="Put the checkpoint around each layer, or jaxckpt.apply(step, policy) around the step.",
        )


def last_stage(context: LintContext) -> Iterator[Diagnostic]:
    """A checkpoint around the last stage, with which the backward pass begins."""
    site, others = _last(context)
    if site is not None and others:
        yield Diagnostic(
            where=context.location_of(site),
            text="This jax.checkpoint is around the last stage of the forward pass: what it drops is recomputed at"
            " once, when no other residual has been freed.",
            fix="Leave the last stage out of the checkpoint.",
        )


def same_scope_twice(context: LintContext) -> Iterator[Diagnostic]:
    """A checkpoint whose body is nothing but another one."""
    for site, _ in _differentiated(context):
        body = inline(site.eqn.params["jaxpr"], keep_user_remat=True).equations
        busy = [each.eqn for each in body if kind_of(each.eqn.primitive.name) not in _BARE]
        if len(busy) == 1 and busy[0].primitive.name in REMATS:
            yield Diagnostic(
                where=context.location_of(site),
                text="A jax.checkpoint directly inside another: the outer one frees nothing more, and its policy has"
                " no effect.",
                fix="Keep one of the two; with nn.scan and nn.remat, or a library that does it too, only the inner.",
            )


def save_all_stubs(context: LintContext) -> Iterator[Diagnostic]:
    """JAX's `save_anything_except_these_names`, which saves everything."""
    for site, read in context.checkpoints:
        if any(policy.kind == "stub" for policy in read):
            yield Diagnostic(
                where=context.location_of(site),
                text="save_anything_except_these_names is a stub in JAX: it saves every value, those names included.",
                fix='jaxckpt.Policy with default = "save" and a rule name = "...", decision = "recompute".',
            )


def unknown_names(context: LintContext) -> Iterator[Diagnostic]:
    """Policies of names none of which is in the step."""
    for site, policy, missing in _missing(context):
        if missing == policy.names:
            yield _missing_names(context, site, policy, "none of them")


def missing_names(context: LintContext) -> Iterator[Diagnostic]:
    """Policies of names of which some are not in the step."""
    for site, policy, missing in _missing(context):
        if missing != policy.names:
            yield _missing_names(context, site, policy, ", ".join(sorted(policy.names - missing)))


def names_on_primals(context: LintContext) -> Iterator[Diagnostic]:
    """Policies of names that only the primal function of a `jax.custom_vjp` has."""
    for _, read in context.checkpoints:
        for name in sorted({name for policy in read for name in policy.names} - set(context.names)):
            if (primal := primal_of_name(name)) is not None:
                yield on_primal(name, primal)


def remat3_policies(context: LintContext) -> Iterator[Diagnostic]:
    """Policies on values that `jax_remat3` does not ask about."""
    if not getattr(jax.config, "jax_remat3", False):
        return
    for site, read in context.checkpoints:
        if any(policy.kind not in _ASKED_BY_REMAT3 for policy in read) and not _is_ours(site):
            yield Diagnostic(
                where=context.location_of(site),
                text="Under jax_remat3 a policy decides only about names, matrix products and convolutions; other"
                " values that this policy would save are recomputed, without a warning.",
                fix="Name the values and save them by name, or jax.config.update('jax_remat3', False).",
            )


def dots_saving_scores(context: LintContext) -> Iterator[Diagnostic]:
    """JAX's policy of all products, on attention."""
    for site, read in _differentiated(context):
        scores = max(map(_scores_bytes, equations_inside(context.sites, site)), default=0)
        if scores and any(policy.kind == "dots" for policy in read):
            yield Diagnostic(
                where=context.location_of(site),
                text=f"dots_saveable saves the result of every product, attention scores of {format_bytes(scores)}"
                " each included.",
                fix="jax.checkpoint_policies.dots_with_no_batch_dims_saveable, or save the names that are worth it.",
            )


def dots_all_batched(context: LintContext) -> Iterator[Diagnostic]:
    """JAX's policy of products without batch dimensions where all have some, as under `vmap`."""
    for site, read in _differentiated(context):
        products = [each for each in equations_inside(context.sites, site) if each.primitive == "dot_general"]
        unsaved = products and all(map(_is_batched, products))
        if unsaved and any(policy.kind == "dots_without_batch" for policy in read):
            yield Diagnostic(
                where=context.location_of(site),
                text=f"All {len(products)} products in this scope have batch dimensions, so that a policy of products"
                " without batch dimensions saves or offloads none of them; vmap adds a batch dimension to each.",
                fix="Name the products and save them by name: names do not change under vmap.",
            )


def repeated_callbacks(context: LintContext) -> Iterator[Diagnostic]:
    """Calls to the host inside a checkpoint."""
    for site in context.sites:
        if site.is_recomputed and site.primitive in _CALLBACKS:
            yield Diagnostic(
                where=context.location_of(site),
                text=f"{site.primitive} is inside a jax.checkpoint, and so calls the host twice a step.",
                fix="Move the call out of the checkpoint, or name its result and save that name.",
            )


def kernels_recomputed_by_checkpoint(context: LintContext) -> Iterator[Diagnostic]:
    """Opaque kernels that a checkpoint runs a second time."""
    for site in context.sites:
        if site.is_recomputed and site.primitive in KERNELS:
            yield Diagnostic(
                where=context.location_of(site),
                text=f"The kernel {site.primitive} ({format_bytes(site.written_bytes)} written) runs a second time:"
                " no policy on products or names saves its residuals.",
                fix=SAVE_KERNEL_RESULTS,
            )


def redrawn_random(context: LintContext) -> Iterator[Diagnostic]:
    """Random draws that are repeated in a step over several devices."""
    if context.device_count == 1:
        return
    for site in context.sites:
        is_draw = site.is_recomputed and trait_of(site.primitive) is Trait.RANDOM
        if is_draw and math.prod(site.eqn.outvars[0].aval.shape) > 1:
            yield Diagnostic(
                where=context.location_of(site),
                text=f"{site.primitive} is inside a jax.checkpoint in a step over {context.device_count} devices:"
                " the second draw may be partitioned in another way than the first, and then gives other bits.",
                fix="Name the mask (or the bits) and save it, or constrain its sharding where it is drawn.",
            )


def _missing(context: LintContext) -> Iterator[tuple[EquationSite, ReadPolicy, frozenset[str]]]:
    """Policies of names with those that are nowhere in the step."""
    for site, read in context.checkpoints:
        for policy in read:
            missing = policy.names - context.names.keys()
            if missing and not any(map(primal_of_name, missing)):
                yield site, policy, missing


def _missing_names(context: LintContext, site: EquationSite, policy: ReadPolicy, found: str) -> Diagnostic:
    known = ", ".join(sorted(context.names)) or "none"
    return Diagnostic(
        where=context.location_of(site),
        text=f"The policy names {', '.join(sorted(policy.names))}; in the step: {found}. The step's names: {known}.",
        fix="Correct the names, or name the values: x = jaxckpt.name(x, ...) where they are computed.",
    )


def _is_ours(site: EquationSite) -> bool:
    return type(policy_of(site)).__module__.startswith("jaxckpt.")


def _differentiated(context: LintContext) -> Iterator[tuple[EquationSite, tuple[ReadPolicy, ...]]]:
    return ((site, read) for site, read in context.checkpoints if site.eqn.params.get("differentiated"))


def _is_batched(site: EquationSite) -> bool:
    return bool(site.eqn.params["dimension_numbers"][1][0])


def _scores_bytes(site: EquationSite) -> int:
    """Bytes of the largest array of a batched product, if larger than the other two together; else 0."""
    if site.primitive != "dot_general" or not _is_batched(site):
        return 0
    *smaller, largest = sorted(aval_bytes(v.aval) for v in (*site.eqn.invars, *site.eqn.outvars))
    return largest if largest > sum(smaller) else 0


def _last(context: LintContext) -> tuple[EquationSite | None, bool]:
    """The checkpoint that the backward pass begins with, if it saves nothing; and True if more backward work follows.

    No product, loop or other checkpoint of the backward pass comes before it. Of two such checkpoints neither is last.
    """
    equations = context.raw.equations
    dependent: set[jex.Var] = set()
    first: list[jex.JaxprEqn] = []
    heavy = 0
    for each in equations:
        follows = not dependent.isdisjoint(each.variables())
        if _is_heavy_backward(each):
            heavy += 1
            if not follows and each.eqn.primitive.name in REMATS:
                first.append(each.eqn)
            elif not follows and heavy == 1:
                return None, True  # the backward begins outside of any checkpoint
            follows = True
        if follows:
            dependent.update(each.eqn.outvars)
    if len(first) != 1:
        return None, True
    return _site_of(context, first[0]), heavy > 1


def _site_of(context: LintContext, eqn: jex.JaxprEqn) -> EquationSite | None:
    """The checkpoint of an inlined equation, if it saves nothing and recomputes a product or an opaque op."""
    for site, read in _differentiated(context):
        same = site.eqn.params["jaxpr"] is eqn.params["jaxpr"] and not site.loops
        if same and _saves_nothing(context, site, read):
            recomputed = (each for each in equations_inside(context.sites, site) if each.is_recomputed)
            return site if any(kind_of(each.primitive) in _HEAVY for each in recomputed) else None
    return None


def _saves_nothing(context: LintContext, site: EquationSite, read: tuple[ReadPolicy, ...]) -> bool:
    """True if a checkpoint saves nothing inside it; our own scopes save the values that they tag."""
    if _is_ours(site):
        return not any(name.startswith(TAG) for name in context.names)
    return all(policy.kind == "nothing" for policy in read)


def _is_heavy_backward(each: Equation) -> bool:
    marks = _compat.name_stack_marks(each.eqn.source_info.name_stack)
    return TRANSPOSE in marks and kind_of(each.eqn.primitive.name) in _HEAVY
