"""A policy: ordered rules that give a decision for the values of any step, and a default for all other residuals.

The first rule that matches decides. A rule that matches no value of a step is an error when the policy is resolved for
that step. `toml` reads and writes policies; `resolve` decides about the values of a graph.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from jaxckpt._shown import Shown
from jaxckpt.policy.rule import Rule, layers_of_ranges

if TYPE_CHECKING:
    from jaxckpt._step import Step

Default = Literal["save", "recompute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """Whole parts of the forward pass that are computed again, but for what is excluded from them.

    A region is a connected part of the forward ops of a scope on one mesh. What crosses into it is saved, what
    lies in it is recomputed. An excluded op splits the region that it stands in: what it makes is saved.

    Attributes:
      scope: Glob on the scopes whose ops are computed again; "" for the blocks that are found by structure, or, if
        `segment` or `layers` is given, for the layers of the model: scopes whose names differ in a number alone, else
        a run of ops that repeats, else the bodies of loops, else those blocks.
      segment: So many consecutive layers are one region, of whose inputs the first alone is saved. None without
        `layers`: every scope is a region.
      layers: Numbers of the layers that are recomputed, "0-3,7", counted from 0 through the forward pass; None for all.
      exclude: Globs on primitives, names and scopes whose ops are not.
      recompute_random: Whether random draws are made again, of the same key.
      recompute_collectives: Whether devices exchange data again (MindSpore's `mp_comm_recompute`).
      recompute_gathered_parameters: Whether parameters sharded over devices are gathered again (MindSpore's
        `parallel_optimizer_comm_recompute`).
      output_recompute: Whether what crosses from one region to the next is computed again too; neighbours then merge.
    """

    scope: str = "*"
    segment: int | None = None
    layers: str | None = None
    exclude: tuple[str, ...] = ()
    recompute_random: bool = True
    recompute_collectives: bool = True
    recompute_gathered_parameters: bool = False
    output_recompute: bool = False

    def __post_init__(self) -> None:
        if self.segment is not None and self.segment < 1:
            raise ValueError(f"segment = {self.segment} is no number of layers")
        if self.layers is not None:
            layers_of_ranges(self.layers)

    def __str__(self) -> str:
        if not self.of_layers:
            return self.scope or "of each block"
        number = f"layers {self.layers}" if self.layers else "layers"
        size = f" in segments of {self.segment}" if (self.segment or 1) > 1 else ""
        return f"of {number}{size}" + (f" in {self.scope}" if self.scope else "")

    @property
    def of_layers(self) -> bool:
        """True if regions consist of layers."""
        return self.segment is not None or self.layers is not None

    @property
    def chosen_layers(self) -> frozenset[int] | None:
        """Numbers of the layers that are recomputed; None for all."""
        return None if self.layers is None else layers_of_ranges(self.layers)


@dataclass(frozen=True, kw_only=True)
class Policy(Shown):
    r"""Rules that decide about residuals, written by people.

    Attributes:
      name: Its name in lists and plans.
      rules: In order; the first rule that matches a value decides.
      default: The decision for residuals that no rule matches.
      models: The models for which it is intended, free text ("for" in files).
      about: The values that it saves and the cost, free text.
      regions: Parts of a model that are recomputed; rules override regions, regions override the default.

    Example:
      >>> policy = Policy.from_toml('default = "recompute"\n[[rule]]\nname = "qkv"\ndecision = "save"')
      >>> print(policy)
      policy "unnamed": (1) name = 'qkv': save; the rest: recompute
    """

    _report: ClassVar[str] = "jaxckpt.report.plan:policy_report"

    name: str = "unnamed"
    rules: tuple[Rule, ...] = ()
    default: Default = "recompute"
    models: str = ""
    about: str = ""
    regions: Regions | None = None

    def __str__(self) -> str:
        rules = "".join(f"({number}) {rule}; " for number, rule in enumerate(self.rules, 1))
        regions = "" if self.regions is None else f"regions {self.regions}: recompute; "
        return f'policy "{self.name}": {rules}{regions}the rest: {self.default}'

    @classmethod
    def from_toml(cls, text: str) -> "Policy":
        """Reads a policy from the text of a TOML file.

        Raises:
          PolicyError: The text is no TOML, or has keys or values that a policy cannot have; all problems are numbered.
        """
        from jaxckpt.policy.toml import policy_from_toml

        return policy_from_toml(text)

    def explain(self, step: "Callable[..., Any] | Step", *args: Any, **options: Any) -> Any:
        """The rule that decides about each residual of a step, and the rules overruled; see `jaxckpt.explain`."""
        from jaxckpt.planner import explain

        return explain(step, *args, policy=self, **options)

    def as_jax(self) -> Callable[..., Any]:
        """The policy as a callable for your own `jax.checkpoint(f, policy=...)`; see `jaxckpt.annotate.as_jax`."""
        from jaxckpt.annotate import as_jax

        return as_jax(self)

    def to_toml(self) -> str:
        """The policy as the text of a TOML file, from which `from_toml` reads an equal policy."""
        from jaxckpt.policy.toml import toml_from_policy

        return toml_from_policy(self)

    def save(self, path: str | Path) -> None:
        """Writes the policy as a TOML file, atomically.

        In an existing file only differing entries are changed; comments elsewhere are kept.

        Raises:
          PolicyError: The path takes no file.
        """
        from jaxckpt._errors import PolicyError
        from jaxckpt._files import write_to_place
        from jaxckpt.policy.edit import edited

        path, called = Path(path), f"Policy.save({str(path)!r})"
        try:
            text = edited(path.read_text(), self) if path.is_file() else self.to_toml()
        except UnicodeDecodeError as error:
            raise PolicyError(
                f"{called}: the file there is no text.",
                got=str(error),
                needed="a path without a file, or of a TOML file, which is changed",
                advice="choose another path, or remove the file",
            ) from error
        write_to_place(path, text.encode(), called=called, error=PolicyError)
