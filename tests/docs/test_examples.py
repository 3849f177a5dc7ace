"""Every public name has a docstring with an example that runs, but for a list that may only become shorter."""

import doctest
import inspect

import pytest

import jaxckpt
import jaxckpt.dynamic
import jaxckpt.testing

WITHOUT = {
    "AgreementError",
    "ArgumentError",
    "BatchError",
    "BatchSearch",
    "Comparison",
    "ComparisonError",
    "CompileError",
    "Explanation",
    "Finding",
    "Findings",
    "Floor",
    "FootprintAssertionError",
    "Frontier",
    "GraphError",
    "HloError",
    "InfeasibleBudgetError",
    "MissingPackageError",
    "Plan",
    "PlanMismatchError",
    "Planner",
    "ReportFileError",
    "SnapshotFileError",
    "StepReferenceError",
    "UnsupportedDecisionError",
    "UnverifiableError",
    "Verdicts",
    "Verification",
    "VerificationError",
    "VersionMismatchError",
    "analyze",
    "dynamic.AddressMap",
    "dynamic.Call",
    "dynamic.EVICTORS",
    "dynamic.EagerRun",
    "dynamic.Event",
    "dynamic.EvictionOptions",
    "dynamic.EvictionRow",
    "dynamic.Evictions",
    "dynamic.MEMORIES",
    "dynamic.PoolError",
    "dynamic.Program",
    "dynamic.ProgramError",
    "dynamic.Refusal",
    "dynamic.Residence",
    "dynamic.ScopeSeconds",
    "dynamic.Simulation",
    "dynamic.Task",
    "dynamic.TrainingOptions",
    "dynamic.eager_report",
    "dynamic.eager_seconds",
    "dynamic.evictions_report",
    "dynamic.program_from_graph",
    "dynamic.program_of_kernels",
    "dynamic.read_log",
    "dynamic.simulation_report",
    "dynamic.stepper_page",
    "dynamic.training_of_kernels",
    "dynamic.write_log",
    "load_footprint",
    "load_plan",
    "max_batch",
    "pareto",
    "plan",
    "testing.Snapshot",
    "testing.SnapshotCheck",
    "testing.load_snapshot",
    "testing.save_snapshot",
}
"""Public names whose docstrings have no example yet."""


def public_names() -> dict[str, object]:
    """Every public name of the package and of its public modules, as the reference shows them."""
    modules = {"": jaxckpt, "dynamic.": jaxckpt.dynamic, "testing.": jaxckpt.testing}
    return {
        prefix + name: getattr(module, name)
        for prefix, module in modules.items()
        for name in module.__all__
        if not name.startswith("__") and not inspect.ismodule(getattr(module, name))
    }


def examples_of(thing: object) -> list[doctest.Example]:
    """Examples in the docstring of a name itself; that of a constant is the docstring of its type."""
    own = thing.__doc__ if inspect.isclass(thing) or callable(thing) else None
    return doctest.DocTestParser().get_examples(own or "")


@pytest.mark.parametrize("name", public_names())
def test_public_name_has_an_example(name):
    has_example = bool(examples_of(public_names()[name]))
    assert has_example != (name in WITHOUT), "add an example, or remove the name from the list"


def test_names_without_an_example_are_public():
    assert set(public_names()) >= WITHOUT


def test_examples_are_counted_only_where_they_are():
    def without():
        """No example."""

    assert not examples_of(without)
    assert not examples_of({"a": 1})
    assert examples_of(jaxckpt.BudgetError)
