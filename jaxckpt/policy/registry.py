"""Policies by their digest, so that a mark in a trace can name one.

A trace holds text alone (name stacks), and outlives the call that made it. The digest is a function of the policy's
content: equal policies have one digest in every process. The table only ever grows, by one entry a policy.
"""

import hashlib
import itertools

from jaxckpt._errors import PolicyError
from jaxckpt.policy.policy import Policy

_COUNT = itertools.count()
_HELD: dict[str, Policy] = {}


def digest_of(policy: Policy) -> str:
    """The digest of a policy, the same for equal policies.

    Example:
      >>> digest_of(Policy(name="mine")) == digest_of(Policy(name="mine"))
      True
    """
    digest = hashlib.sha256(policy.to_toml().encode()).hexdigest()[:12]
    _HELD.setdefault(digest, policy)
    return digest


def new_mark(policy: Policy) -> str:
    """What a scope with a policy writes into a trace: the policy's digest, and a number for each time it is entered.

    Example:
      >>> policy = Policy(name="mine")
      >>> policy_of_mark(new_mark(policy)) == policy, new_mark(policy) == new_mark(policy)
      (True, False)
    """
    return f"{digest_of(policy)}.{next(_COUNT)}"


def policy_of_mark(mark: str) -> Policy:
    """The policy that a mark means.

    Raises:
      PolicyError: No scope of this process was made with it.
    """
    digest, _, _ = mark.partition(".")
    if digest not in _HELD:
        raise PolicyError(
            f"a mark in this step means the policy {digest}, which this process has not seen.",
            got=f"policies of this process: {', '.join(sorted(_HELD)) or 'none'}",
            needed="a step that was traced in this process",
            advice="trace the step here, instead of loading its trace",
        )
    return _HELD[digest]
