"""Every public name has a docstring with an example that runs; pytest's doctests run those of functions and classes."""

import ast
import doctest
import inspect
import sys
from itertools import pairwise

import pytest

import jaxckpt
import jaxckpt.dynamic
import jaxckpt.testing


def public_names() -> dict[str, object]:
    """Every public name of the package and of its public modules, as the reference shows them."""
    modules = {"": jaxckpt, "dynamic.": jaxckpt.dynamic, "testing.": jaxckpt.testing}
    return {
        prefix + name: getattr(module, name)
        for prefix, module in modules.items()
        for name in module.__all__
        if not name.startswith("__") and not inspect.ismodule(getattr(module, name))
    }


def is_constant(thing: object) -> bool:
    """True if a public name is neither a class nor a function: its docstring is the text below its assignment."""
    return not (inspect.isclass(thing) or callable(thing))


def constant_docstring(name: str, thing: object) -> str:
    """The text below the assignment of a constant in the module that defines it; "" if there is none."""
    for module in [each for path, each in sys.modules.items() if path.startswith("jaxckpt.")]:
        if vars(module).get(name) is thing:
            for statement, below in pairwise(ast.parse(inspect.getsource(module)).body):
                match statement, below:
                    case ast.Assign(targets=[ast.Name(id=assigned)]), ast.Expr(ast.Constant(str(text))):
                        if assigned == name:
                            return text
    return ""


def docstring_of(name: str, thing: object) -> str:
    return constant_docstring(name.rpartition(".")[2], thing) if is_constant(thing) else thing.__doc__ or ""


def examples_of(docstring: str) -> list[doctest.Example]:
    return doctest.DocTestParser().get_examples(docstring)


@pytest.mark.parametrize("name", public_names())
def test_public_name_has_an_example(name):
    assert examples_of(docstring_of(name, public_names()[name])), "add an example to the docstring"


@pytest.mark.parametrize("name", [name for name, thing in public_names().items() if is_constant(thing)])
def test_example_of_a_constant_runs(name):
    """Doctest itself does not read the text below an assignment."""
    docstring = docstring_of(name, public_names()[name])
    test = doctest.DocTestParser().get_doctest(docstring, {}, name, None, 0)
    said: list[str] = []
    results = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert results.attempted and not results.failed, "".join(said)


def test_examples_are_counted_only_where_they_are():
    def without():
        """No example."""

    assert not examples_of(docstring_of("without", without))
    assert not docstring_of("nosuch", {"a": 1})
    assert examples_of(docstring_of("BudgetError", jaxckpt.BudgetError))
