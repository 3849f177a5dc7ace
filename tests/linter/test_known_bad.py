"""Compilers that are known to be wrong are named where a step asks for what they get wrong."""

import dataclasses
from types import SimpleNamespace

import pytest

from jaxckpt.linter.context import LintContext
from jaxckpt.linter.loops import miscompiled_offloads
from jaxckpt.rewrite.known_bad import misreads_offloaded_stacks
from jaxckpt.trace import trace_step
from tests.linter.test_loops import LARGE, OFFLOAD, SAVE, trained


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.10.1", False), ("0.10.2", True), ("0.11.0", True), ("0.12.0", False), ("0.12.0.1", False)],
)
def test_only_the_versions_of_the_window_are_bad(version, expected):
    assert misreads_offloaded_stacks("cuda", version) is expected
    assert not misreads_offloaded_stacks("tpu", version)


@pytest.mark.parametrize(
    ("policy", "version", "expected"), [(OFFLOAD, "0.11.0", True), (OFFLOAD, "0.12.0", False), (SAVE, "0.11.0", False)]
)
def test_an_offload_in_a_scan_is_refused_for_bad_compilers(policy, version, expected):
    traced = trace_step(trained(policy, name_input=True), *LARGE)
    target = SimpleNamespace(platform="cuda", compiler_version=version, name="h200")
    diagnostics = list(miscompiled_offloads(dataclasses.replace(LintContext(traced=traced), target=target)))
    assert bool(diagnostics) == expected
    assert all("openxla/xla#46308" in diagnostic.text and "jax 0.12" in diagnostic.fix for diagnostic in diagnostics)
