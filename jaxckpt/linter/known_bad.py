"""Lint of programs that a compiler miscompiles (`jaxckpt.rewrite.known_bad`)."""

from collections.abc import Iterator

from jaxckpt.linter.context import Diagnostic, LintContext
from jaxckpt.rewrite.known_bad import misreads_offloaded_stacks


def miscompiled_offloads(context: LintContext) -> Iterator[Diagnostic]:
    """Offloads in a scan, for a compiler that may get their gradients wrong."""
    target = context.target
    if target is None or not misreads_offloaded_stacks(target.platform, target.compiler_version):
        return
    for site in context.sites:
        if site.goes_to_host and site.loops:
            yield Diagnostic(
                where=context.location_of(site),
                text=f"An offload in a scan: the compiler of {target.name}, {target.compiler_version}, may read the"
                " residuals of another iteration in the backward, and gradients are then wrong without any error"
                " (openxla/xla#46308).",
                fix="Use jax 0.12 or later, or save the value; as a stopgap set"
                " --xla_disable_hlo_passes=dynamic-slice-annotator in XLA_FLAGS and compare gradients.",
            )
