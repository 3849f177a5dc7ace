"""Every exception that jaxckpt raises on purpose, each of them four lines of advice.

A message says, in this order: what was called, what we got, what was needed, what to do. The facts behind
the sentence are attributes of the exception, so that programs need not parse it. Each class is also the
builtin that a caller would expect (`ValueError`, `LookupError`, ...), under one root, `JaxckptError`.

`closest_names` and `did_you_mean` make the suggestions for unknown names in all messages.
"""

import difflib
from collections.abc import Iterable
from typing import Any


def closest_names(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> tuple[str, ...]:
    """The known names most like a misspelt one, best first; none of a similarity below `cutoff`, from 0 to 1.

    Example:
      >>> closest_names("min_byte", ["max_bytes", "min_bytes", "every"])
      ('min_bytes',)
    """
    return tuple(difflib.get_close_matches(name, known, n=most, cutoff=cutoff))


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """The end of a message about an unknown name: the closest known name, or "" where none is close.

    Example:
      >>> did_you_mean("min_byte", ["max_bytes", "min_bytes"]), did_you_mean("colour", ["min_bytes"])
      ("; the closest is 'min_bytes'", '')
    """
    return "".join(f"; the closest is {each!r}" for each in closest_names(name, known, cutoff=cutoff))


class JaxckptError(Exception):
    """The root of all errors that jaxckpt raises on purpose.

    Args:
      headline: The call and the reason for the error, one sentence.
      got: The given values, as the caller typed them, with units.
      needed: The values that would be right.
      advice: What to do next; if possible, text to paste.
      **facts: The facts of the message as values, stored as attributes of the exception.

    Example:
      >>> import jaxckpt
      >>> try:
      ...     jaxckpt.Target("h2000")
      ... except jaxckpt.JaxckptError as error:
      ...     print(error.got)
      'h2000'
    """

    def __init__(self, headline: str, *, got: str, needed: str, advice: str, **facts: Any):
        self.headline = headline
        self.got = got
        self.needed = needed
        self.advice = advice
        for name, fact in facts.items():
            setattr(self, name, fact)
        super().__init__(f"{headline}\n  Got:    {got}\n  Needed: {needed}\n  Try:    {advice}")


class BudgetError(JaxckptError, ValueError):
    """A budget that is no amount of memory: "6 apples", -1, 0 or NaN.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.value_and_grad(lambda x: jnp.sin(x).sum())
      >>> jaxckpt.plan(step, jnp.ones(4), target="cpu", budget="6 apples")
      Traceback (most recent call last):
      ...
      jaxckpt._errors.BudgetError: budget='6 apples': '6 apples' is no amount of memory.
      ...
    """


class InfeasibleBudgetError(JaxckptError, ValueError):
    """No plan brings the step within the budget.

    Attributes:
      budget_bytes: The budget, bytes per device.
      minimum_bytes: The smallest total that was reached, bytes per device. Measured by the compiler unless
        `minimum_measured` is False (then it is the size of the arguments alone, and nothing was compiled).
      minimum_measured: True if `minimum_bytes` is a compiled total.
      blocking: The buffers alive at the peak of that total, largest first (`jaxckpt.hlo.Buffer`).
      floor: That total by purpose, with remedies (`jaxckpt.Floor`), if it was compiled.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.value_and_grad(lambda x: jnp.sin(x).sum())
      >>> try:
      ...     jaxckpt.plan(step, jnp.ones(1024), target="cpu", budget="1KiB")
      ... except jaxckpt.InfeasibleBudgetError as error:
      ...     print(error.budget_bytes, error.minimum_bytes, error.minimum_measured)
      1024 8196 False
    """

    budget_bytes: int
    minimum_bytes: int
    minimum_measured: bool
    blocking: tuple[Any, ...]
    floor: Any = None


class NoGradientError(JaxckptError, ValueError):
    """A step without a backward pass: there is nothing to save or to recompute.

    Example:
      >>> import jax.numpy as jnp, jaxckpt
      >>> jaxckpt.plan(jnp.sin, jnp.ones(4), budget="1GiB", target="cpu")
      Traceback (most recent call last):
      ...
      jaxckpt._errors.NoGradientError: no backward pass was found in the step, ...
      ...
    """


class ArgumentError(JaxckptError, TypeError):
    """An argument that cannot be used: one of a step that is no array, or an unknown option of a function.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.value_and_grad(lambda x: jnp.sin(x).sum())
      >>> jaxckpt.plan(step, jnp.ones(4), target="cpu", budget="1GiB", allowed=("recompute",))
      Traceback (most recent call last):
      ...
      jaxckpt._errors.ArgumentError: plan has no option 'allowed'; the closest is 'allow'.
      ...
    """


class TargetError(JaxckptError, ValueError):
    """A target that cannot be used as asked.

    Example:
      >>> import jaxckpt
      >>> issubclass(jaxckpt.UnknownTargetError, jaxckpt.TargetError)
      True
      >>> try:
      ...     jaxckpt.Target("h2000")
      ... except jaxckpt.TargetError as error:
      ...     print(error.headline)
      target 'h2000' is not known.
    """


class UnknownTargetError(TargetError, LookupError):
    """A target name that is in no fact file.

    Example:
      >>> import jaxckpt
      >>> jaxckpt.Target("h2000")
      Traceback (most recent call last):
      ...
      jaxckpt._errors.UnknownTargetError: target 'h2000' is not known.
      ...
    """


class MissingPackageError(JaxckptError, ImportError):
    """An optional package that this target or function needs is not installed.

    Example:
      >>> import sys, jaxckpt
      >>> from unittest import mock
      >>> made = jaxckpt.Footprint(argument_bytes=8, output_bytes=8, alias_bytes=8, temp_bytes=64, target="h200")
      >>> with mock.patch.dict(sys.modules, pandas=None):  # as if pandas were not installed
      ...     made.to_frame()
      Traceback (most recent call last):
      ...
      jaxckpt._errors.MissingPackageError: Footprint.to_frame needs pandas, which is not installed.
      ...
    """


class VersionMismatchError(JaxckptError, ImportError):
    """A plugin whose version does not fit the installed jax.

    Example:
      >>> import jaxckpt
      >>> from unittest import mock
      >>> plugin = mock.patch("jaxckpt._compat.cuda_plugin", return_value=("xla_cuda13", None))
      >>> version = mock.patch("jaxckpt._compilers._version", return_value="0.1.0")
      >>> with plugin, version:  # as if an old plugin were installed
      ...     jaxckpt.Target("h200").require_compiler()
      Traceback (most recent call last):
      ...
      jaxckpt._errors.VersionMismatchError: target "h200" cannot be compiled for: jax-cuda13-plugin is of ...
      ...
    """


class CompileError(JaxckptError, RuntimeError):
    """The compiler failed for the step; its own exception is the cause.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> custom = lambda x: jax.ffi.ffi_call("no_such_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
      >>> jaxckpt.footprint(custom, jnp.ones(4), target="cpu")
      Traceback (most recent call last):
      ...
      jaxckpt._errors.CompileError: step "<lambda>" cannot be compiled for target "cpu": it calls a kernel that ...
      ...
    """


class UnknownStrategyError(JaxckptError, LookupError):
    """A `strategy=` that names no solver.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.value_and_grad(lambda x: jnp.sin(x).sum())
      >>> jaxckpt.plan(step, jnp.ones(4), target="cpu", budget="1GiB", strategy="best")
      Traceback (most recent call last):
      ...
      jaxckpt._errors.UnknownStrategyError: solve(strategy='best') names no solver.
      ...
    """


class TooLargeError(JaxckptError, ValueError):
    """A step of more `ops` than a solver takes (`most`)."""


class GraphError(JaxckptError, ValueError):
    """A graph that breaks its own rules (`Graph.validate`).

    Example:
      >>> from dataclasses import replace
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.value_and_grad(lambda x: jnp.sin(x).sum())
      >>> graph = jaxckpt.Planner(step, jnp.ones(4), target="cpu").graph
      >>> replace(graph, ops=graph.ops[::-1]).validate()
      Traceback (most recent call last):
      ...
      jaxckpt._errors.GraphError: Graph.validate: ... rules are broken.
      ...
    """


class PlanMismatchError(JaxckptError, ValueError):
    """A plan that was made for another step, other shapes, or another order of operations.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.value_and_grad(lambda x: jnp.sin(x).sum())
      >>> plan = jaxckpt.plan(step, jnp.ones(4), target="cpu", budget="1GiB")
      >>> plan.apply(step)(jnp.ones(8))
      Traceback (most recent call last):
      ...
      jaxckpt._errors.PlanMismatchError: apply(<lambda>): the plan was made for other arguments (1 differ).
      ...
    """


class UnsupportedDecisionError(JaxckptError, NotImplementedError):
    """A decision of a plan that cannot be carried out, or for which the installed compiler gives wrong results.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.value_and_grad(lambda x: jnp.sin(x).sum())
      >>> jaxckpt.plan(step, jnp.ones(4), target="cpu", budget="1GiB", allow=("recompute", "partition"))
      Traceback (most recent call last):
      ...
      jaxckpt._errors.UnsupportedDecisionError: plan(allow=('recompute', 'partition')) allows shards, and the ...
      ...
    """


class FootprintFileError(JaxckptError, ValueError):
    """A file (`path`) that is no footprint, damaged, of another version, or missing.

    Example:
      >>> import pathlib, tempfile, jaxckpt
      >>> path = pathlib.Path(tempfile.mkdtemp(), "footprint.json")
      >>> _ = path.write_text("[")
      >>> jaxckpt.load_footprint(path)
      Traceback (most recent call last):
      ...
      jaxckpt._errors.FootprintFileError: load_footprint('...footprint.json'): this is no footprint that we can read.
      ...
    """


class FootprintAssertionError(JaxckptError, AssertionError):
    """A test's step takes more memory than was asserted; `table` shows the bytes by layer below the message.

    Example:
      >>> import jaxckpt
      >>> from jaxckpt.testing import assert_fits
      >>> made = jaxckpt.Footprint(argument_bytes=8, output_bytes=8, alias_bytes=8, temp_bytes=64, target="h200")
      >>> assert_fits(made, budget="64B")
      Traceback (most recent call last):
      ...
      jaxckpt._errors.FootprintAssertionError: assert_fits(step, budget='64B', target='h200'): the step does ...
      ...
    """

    table: str = ""

    def __str__(self) -> str:
        return f"{super().__str__()}\n\n{self.table}" if self.table else super().__str__()


class SnapshotFileError(JaxckptError, ValueError):
    """A snapshot of a footprint (`path`) that is damaged, no snapshot, another test's, or missing.

    Example:
      >>> import pathlib, tempfile, jaxckpt
      >>> from jaxckpt.testing.check import SnapshotCheck, WriteMode
      >>> module = pathlib.Path(tempfile.mkdtemp(), "test_step.py")
      >>> made = jaxckpt.Footprint(argument_bytes=8, output_bytes=8, alias_bytes=8, temp_bytes=64, target="h200")
      >>> check = SnapshotCheck(module=module, test="test_step", mode=WriteMode.STRICT)  # as on CI
      >>> check(made)
      Traceback (most recent call last):
      ...
      jaxckpt._errors.SnapshotFileError: jaxckpt_snapshot in test_step: there is no snapshot.
      ...
    """


class PolicyError(JaxckptError, ValueError):
    """A policy that cannot be read, or that does not fit a step; `problems` are sentences.

    Example:
      >>> import jaxckpt
      >>> jaxckpt.load_policy("nosuch")
      Traceback (most recent call last):
      ...
      jaxckpt._errors.PolicyError: load_policy('nosuch'): there is no such policy.
      ...
    """


class ScopeError(JaxckptError, TypeError):
    """A scope around something that cannot have a scope, or a scope used in a wrong way.

    Example:
      >>> import jaxckpt
      >>> jaxckpt.scope(3)
      Traceback (most recent call last):
      ...
      jaxckpt._errors.ScopeError: jaxckpt.scope(int) cannot have a scope.
      ...
    """


class ChunkError(JaxckptError, ValueError):
    """A function that cannot run in chunks: no such axis, lengths that differ, results that cannot be joined.

    Example:
      >>> import jax.numpy as jnp, jaxckpt
      >>> jaxckpt.chunked(jnp.sin, chunks=0, axis=0)(jnp.ones(4))
      Traceback (most recent call last):
      ...
      jaxckpt._errors.ChunkError: jaxckpt.chunked(sin) cannot be done.
      ...
    """


class BatchError(JaxckptError, ValueError):
    """A search over batches without an answer: no positive multiples, or memory that does not grow with the batch.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> def make_step(batch):
      ...     return jax.grad(lambda w, x: jnp.tanh(x @ w).sum()), (jnp.eye(4), jnp.ones((batch, 4)))
      >>> jaxckpt.max_batch(make_step, target="cpu", budget="1MiB", multiples_of=0)
      Traceback (most recent call last):
      ...
      jaxckpt._errors.BatchError: max_batch(multiples_of=...) is no number of items.
      ...
    """


class HloError(JaxckptError, ValueError):
    """A file that is no compiled program of XLA, or a damaged one.

    Example:
      >>> import pathlib, tempfile
      >>> from jaxckpt.compiler import footprint_of_dump
      >>> footprint_of_dump(pathlib.Path(tempfile.mkdtemp()))
      Traceback (most recent call last):
      ...
      jaxckpt._errors.HloError: '...' is no dump that can be read.
      ...
    """


class PictureError(JaxckptError, ValueError):
    """A picture that cannot be drawn: no memory map, a file of another kind, or unknown colours.

    Example:
      >>> import jaxckpt
      >>> jaxckpt.draw(3, "memory.png")
      Traceback (most recent call last):
      ...
      jaxckpt._errors.PictureError: draw('memory.png'): there is no memory map to draw.
      ...
    """


class OutOfMemoryTextError(JaxckptError, ValueError):
    """A text in which XLA does not say that memory ran out."""


class PlanFileError(JaxckptError, ValueError):
    """A plan file that is damaged, no plan, or of an unknown version.

    Example:
      >>> import pathlib, tempfile, jaxckpt
      >>> path = pathlib.Path(tempfile.mkdtemp(), "plan.toml")
      >>> _ = path.write_text("[")
      >>> jaxckpt.load_plan(path)
      Traceback (most recent call last):
      ...
      jaxckpt._errors.PlanFileError: load_plan('...plan.toml'): this is no plan that can be read.
      ...
    """


class AgreementError(JaxckptError, RuntimeError):
    """Processes of one run that have different plans, or a process that does not answer.

    Attributes:
      said: The plan of each process, by process, if all answered.
      process: The process that failed or did not answer, if it is only one.

    Example:
      >>> from unittest import mock
      >>> import jaxckpt
      >>> run = mock.Mock(index=1, count=2)  # process 1 of two, and process 0 has ended
      >>> run.read.return_value = None
      >>> with mock.patch("jaxckpt._compat.distributed_run", return_value=run):
      ...     jaxckpt.plan_once(lambda: jaxckpt.load_plan("plan.toml"))
      Traceback (most recent call last):
      ...
      jaxckpt._errors.AgreementError: plan_once: process 0 of this run does not answer.
      ...
    """


class ReportFileError(JaxckptError, ValueError):
    """A report that cannot be written to its `path`.

    Example:
      >>> import jaxckpt
      >>> from jaxckpt.report import Text, save_page
      >>> save_page(Text(text="a report"), "nosuch_folder/page.html")
      Traceback (most recent call last):
      ...
      jaxckpt._errors.ReportFileError: the report 'nosuch_folder/page.html' cannot be written: its folder is ...
      ...
    """


class ComparisonError(JaxckptError, ValueError):
    """Versions that cannot be compared; all `problems` are numbered in the message.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.value_and_grad(lambda x: jnp.sin(x).sum())
      >>> jaxckpt.compare({"as written": step}, jnp.ones(4))
      Traceback (most recent call last):
      ...
      jaxckpt._errors.ComparisonError: compare({'as written'}) has versions that cannot be compared.
      ...
    """


class StepReferenceError(JaxckptError, LookupError):
    """A `module:function` of the shell that cannot be found or does not return a step.

    Example:
      >>> import jaxckpt
      >>> jaxckpt.max_batch(lambda batch: None, target="cpu", budget="1GiB")
      Traceback (most recent call last):
      ...
      jaxckpt._errors.StepReferenceError: <lambda>(1) is no step.
      ...
    """


class VerificationError(JaxckptError, AssertionError):
    """A planned step that does not compute what the step computes.

    Attributes:
      verification: All differences (`jaxckpt.verifier.Verification`), where values differ.
      differing: Paths of the results, where their structure, shapes or types differ.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.value_and_grad(lambda x: jnp.sin(x).sum())
      >>> twice = lambda x: jax.tree.map(lambda result: 2 * result, step(x))
      >>> jaxckpt.verify(step, twice, jnp.ones(4)).check()
      Traceback (most recent call last):
      ...
      jaxckpt._errors.VerificationError: verify(<lambda>): the planned step computes something else in 2 of 2 ...
      ...
    """


class UnverifiableError(JaxckptError, RuntimeError):
    """A step that cannot run on this machine, or not on generated arguments, so that it cannot be verified.

    Example:
      >>> import jax, jax.numpy as jnp, jaxckpt
      >>> step = jax.value_and_grad(lambda x: jnp.sqrt(x.sum() * 0 - 1))
      >>> jaxckpt.verify(step, jax.jit(step), jax.ShapeDtypeStruct((4,), jnp.float32))
      Traceback (most recent call last):
      ...
      jaxckpt._errors.UnverifiableError: verify(<lambda>): generated arguments tell nothing about this step.
      ...
    """
