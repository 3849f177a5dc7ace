"""A policy: ordered rules that give a decision for the values of any step, and what happens to the rest.

The first rule that matches decides. A rule that matches nothing anywhere is an error when the policy meets a step, not
before. How a policy is written as TOML is in `toml`; how it meets a graph, in `resolve`.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxckpt._shown import Shown
from jaxckpt.policy.rule import Rule

Default = Literal["save", "recompute"]


@dataclass(frozen=True, kw_only=True)
class Policy(Shown):
    r"""Rules, written by people.

    Attributes:
      name: What lists and plans call it.
      rules: In order; the first one that matches a value decides about it.
      default: What happens to residuals that no rule matches.
      models: For which models it is meant, free text ("for" in files).
      about: What it keeps and what that costs, free text.

    Example:
      >>> policy = Policy.from_toml('default = "recompute"\n[[rule]]\nname = "qkv"\ndecision = "save"')
      >>> print(policy)
      policy "unnamed": (1) name = 'qkv': save; the rest: recompute
    """

    name: str = "unnamed"
    rules: tuple[Rule, ...] = ()
    default: Default = "recompute"
    models: str = ""
    about: str = ""

    def __str__(self) -> str:
        rules = "".join(f"({number}) {rule}; " for number, rule in enumerate(self.rules, 1))
        return f'policy "{self.name}": {rules}the rest: {self.default}'

    @classmethod
    def from_toml(cls, text: str) -> "Policy":
        """Reads a policy from the text of a TOML file.

        Raises:
          PolicyError: The text is no TOML, or says what no policy can; all that is wrong is numbered.
        """
        from jaxckpt.policy.toml import policy_from_toml

        return policy_from_toml(text)

    def to_toml(self) -> str:
        """The policy as the text of a TOML file, from which `from_toml` reads an equal policy."""
        from jaxckpt.policy.toml import toml_from_policy

        return toml_from_policy(self)

    def save(self, path: str | Path) -> None:
        """Writes the policy as a TOML file, whole or not at all."""
        from jaxckpt._files import write_whole

        write_whole(Path(path), self.to_toml().encode())
