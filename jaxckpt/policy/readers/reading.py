"""The result of a reader: the policy, how settings were understood, and settings that the policy leaves out."""

from dataclasses import dataclass

from jaxckpt.policy.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Another system's configuration, read as a policy.

    Attributes:
      system: The other system.
      policy: The policy.
      understood: How settings that can be written in several ways were read, one sentence each.
      not_carried: Settings that the policy does not contain: why, and what to do instead, one sentence each.

    Example:
      >>> print(Reading(system="maxtext", policy=Policy(default="save")))
      Read from maxtext: policy "unnamed": the rest: save
      Carried over in full.
    """

    system: str
    policy: Policy
    understood: tuple[str, ...] = ()
    not_carried: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"Read from {self.system}: {self.policy}", *(f"Understood: {each}" for each in self.understood)]
        lines += [f"Not carried over: {each}" for each in self.not_carried] or ["Carried over in full."]
        return "\n".join(lines)
