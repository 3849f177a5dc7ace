"""Registry of policies by digest, so that a mark in a name stack can name a policy.

A trace holds text alone (name stacks), and outlives the call that traced it. The digest is a function of the policy's
content: equal policies have one digest in every process. The registry only grows, by one entry for each policy.
"""

import hashlib
import itertools

from jaxckpt._errors import PolicyError
from jaxckpt.policy.policy import Policy

_COUNT = itertools.count()
_BY_DIGEST: dict[str, Policy] = {}


def digest_of(policy: Policy) -> str:
    """The digest of a policy, the same for equal policies."""
    digest = hashlib.sha256(policy.to_toml().encode()).hexdigest()[:12]
    _BY_DIGEST.setdefault(digest, policy)
    return digest


def new_mark(policy: Policy) -> str:
    """The mark that a scope with a policy writes into a trace: the policy's digest, and a number for each entry.

    Example:
      >>> policy = Policy(name="mine")
      >>> policy_of_mark(new_mark(policy)) == policy, new_mark(policy) == new_mark(policy)
      (True, False)
    """
    return f"{digest_of(policy)}.{next(_COUNT)}"


def policy_of_mark(mark: str) -> Policy:
    """The policy of a mark.

    Raises:
      PolicyError: No scope of this process was made with it.
    """
    digest, _, _ = mark.partition(".")
    if digest not in _BY_DIGEST:
        raise PolicyError(
            f"a mark in this step names the policy {digest}, which this process does not know.",
            got=f"policies of this process: {', '.join(sorted(_BY_DIGEST)) or 'none'}",
            needed="a step that was traced in this process",
            advice="trace the step here, instead of loading its trace",
        )
    return _BY_DIGEST[digest]
