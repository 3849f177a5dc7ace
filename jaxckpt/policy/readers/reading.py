"""A configuration of another system on its way to a policy: its text, its checked settings, and what became of them.

A configuration is a mapping, a file, or the text of one, in JSON or YAML. All problems are collected, so that one error
names them all.
"""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from jaxckpt._errors import MissingPackageError, PolicyError
from jaxckpt._records import Limit, RecordReader, numbered
from jaxckpt.policy.policy import Policy

if TYPE_CHECKING:
    from jaxckpt._step import Step

Source = Mapping[str, Any] | str | Path
_MOST_IGNORED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Another system's configuration, read as a policy.

    Attributes:
      system: The other system.
      policy: The policy.
      understood: How settings that can be written in several ways were read, one sentence each.
      not_carried: Settings that the policy does not contain: why, and what to do instead, one sentence each.
      strategy: The strategy of `jaxckpt.plan` that is the configuration's automatic recomputation; "" for none.
      ignored: Keys of the configuration that do not concern checkpointing. Readings that differ in these are equal.

    Example:
      >>> print(Reading(system="maxtext", policy=Policy(default="save"), ignored=("learning_rate",)))
      Read from maxtext: policy "unnamed": the rest: save
      Carried over in full.
      Of no concern to checkpointing: learning_rate
    """

    system: str
    policy: Policy
    understood: tuple[str, ...] = ()
    not_carried: tuple[str, ...] = ()
    strategy: str = ""
    ignored: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        lines = [f"Read from {self.system}: {self.policy}", *(f"Understood: {each}" for each in self.understood)]
        if self.strategy:
            lines.append(
                f'Automatic: strategy="{self.strategy}" of jaxckpt.plan; budget_bytes(step, *args) is its budget'
            )
        lines += [f"Not carried over: {each}" for each in self.not_carried] or ["Carried over in full."]
        if self.ignored:
            more = len(self.ignored) - _MOST_IGNORED
            rest = f" and {more} more, in `ignored`" if more > 0 else ""
            lines.append(f"Of no concern to checkpointing: {', '.join(self.ignored[:_MOST_IGNORED])}{rest}")
        return "\n".join(lines)

    def budget_bytes(self, step: "Callable[..., Any] | Step", *args: Any, target: str = "h200", **options: Any) -> int:
        """The budget that the thresholds of automatic recomputation mean for a step, bytes on one device.

        Thresholds say which kernels are recomputed, and not which total they lead to. This is the compiled total of the
        step with these kernels recomputed: a plan within this budget takes no more memory, and is the fastest one.

        Args:
          step: As of `jaxckpt.plan`.
          *args: Its arguments.
          target: The machine; the step is compiled once.
          **options: Of `jaxckpt.Planner`.

        Raises:
          PolicyError: The configuration has no thresholds.

        Example:
          >>> import jax, jax.numpy as jnp
          >>> reading = Reading(system="mindspore", policy=Policy(default="save"), strategy="mindspore:1MiB")
          >>> step = jax.grad(lambda w, x: jnp.sin(jnp.sin(x @ w) @ w).sum())
          >>> reading.budget_bytes(step, jnp.eye(4), jnp.ones((2, 4)), target="cpu") > 0
          True
        """
        from jaxckpt.planner import Planner
        from jaxckpt.solve import solve

        if not self.strategy:
            raise PolicyError(
                "Reading.budget_bytes: this configuration has no thresholds of automatic recomputation.",
                got=str(self.policy),
                needed="recompute_increment_threshold or recompute_peak_threshold above 0",
                advice='jaxckpt.plan(step, *args, budget="60%", target=...)',
                problems=("no thresholds",),
            )
        planner = Planner(step, *args, target=target, **options)
        return int(planner.measure(solve(planner.problem, self.strategy)).footprint.total_bytes)


class ConfigReader(RecordReader):
    """Reads settings one by one, and collects problems and the sentences of a `Reading`.

    `needed` is for the message about problems; `calls` are sentences about settings that no policy can express, but a
    call of a function.
    """

    def __init__(self, system: str, *, needed: str):
        super().__init__()
        self.system = system
        self.needed = needed
        self.understood: list[str] = []
        self.not_carried: list[str] = []
        self.strategy = ""
        self.calls: list[str] = []
        self.ignored: list[str] = []

    def reading(self, policy: Policy) -> Reading:
        """The policy with the collected sentences; warns of each setting that is a call here."""
        for call in self.calls:
            warnings.warn(f"{self.system}: {call}", stacklevel=4)
        return Reading(
            system=self.system,
            policy=policy,
            understood=tuple(self.understood),
            not_carried=(*self.not_carried, *self.calls),
            strategy=self.strategy,
            ignored=tuple(self.ignored),
        )

    def wrong(self, problem: str) -> None:
        """Adds a problem."""
        self.problems.append(problem)

    def table(self, settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        """The setting, which must be a table; empty where it is not given."""
        return self.value(dict | None, settings.get(key), key) or {}

    def done(self) -> None:
        """Raises a `PolicyError` that numbers the problems, if there are any."""
        if self.problems:
            self.refuse()

    def refuse(self, *problems: str, cause: Exception | None = None) -> NoReturn:
        """Raises a `PolicyError` with all problems and some more."""
        self.problems += problems
        raise PolicyError(
            f"policy_from_{self.system}: this configuration cannot be read.",
            got=numbered(self.problems),
            needed=self.needed,
            advice="correct what is named; the rest of the configuration can stay as it is",
            problems=tuple(self.problems),
        ) from cause

    def text(self, source: str | Path) -> str:
        """The text of a file, for a path; any other text itself."""
        try:
            if isinstance(source, Path) or os.path.isfile(source):  # False too for a text that is too long for a path
                return Path(source).read_text()
        except (OSError, UnicodeDecodeError) as error:
            self.refuse(f"{str(source)!r} cannot be read: {error}", cause=error)
        return source

    def mapping(self, source: Source, *, yaml: bool = False) -> Mapping[str, Any]:
        """The keys and values of a mapping, a file or its text: JSON, and YAML for systems that write it."""
        if isinstance(source, Mapping):
            return source
        text = self.text(source)
        no_file = f"{text[:80]!r} is neither a file nor the text of a configuration"
        try:
            found = json.loads(text, object_pairs_hook=_unique_keys)
        except (ValueError, RecursionError) as error:
            if not yaml:
                self.refuse(f"it is no JSON: {error}" if text.strip().startswith("{") else no_file, cause=error)
            found = self._yaml(text)
        if not isinstance(found, dict):
            self.refuse(no_file if isinstance(found, str) else f"it is no table of keys and values: {found!r}"[:200])
        return found

    def _yaml(self, text: str) -> Any:
        try:
            yaml = import_module("yaml")
        except ImportError as error:
            raise MissingPackageError(
                f"policy_from_{self.system}: this configuration is YAML, and no package that reads YAML is installed.",
                got="no package named yaml",
                needed="PyYAML",
                advice='pip install "jaxckpt[yaml]", or hand over the table: json.dumps of it, or a dict',
            ) from error
        try:
            return yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
            self.refuse(f"it is no YAML: {' '.join(str(error).split())}"[:300], cause=error)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table, in which no key occurs twice; `json` would silently take the last value of such a key."""
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated!r} occurs twice")
    return table


### Hints of settings


def one_of(words: Iterable[str]) -> Any:
    """The hint of a setting that is one of some words."""
    return Literal.__getitem__(tuple(words))


def several(words: Iterable[str]) -> Any:
    """The hint of a setting that is a list of some words."""
    return tuple.__class_getitem__((one_of(words), ...))


@lru_cache(maxsize=1024)
def integer(least: int, most: int = 100_000) -> Any:
    """The hint of a setting that is a whole number within limits, or not given."""
    return Annotated[int, Limit(f" of {least} to {most}", lambda value: least <= value <= most)] | None
