"""Policies by their digest, so that a mark in a trace can name one.

A trace holds text alone (name stacks), and outlives the call that made it. The digest is a function of the policy's
content: equal policies have one digest in every process, and a policy is found as long as somebody holds it.
"""

import hashlib
import weakref

from jaxckpt._errors import PolicyError
from jaxckpt.policy.policy import Policy

_HELD: "weakref.WeakValueDictionary[str, Policy]" = weakref.WeakValueDictionary()


def digest_of(policy: Policy) -> str:
    """The digest of a policy, under which `policy_of_digest` finds it.

    Example:
      >>> policy = Policy(name="mine")
      >>> policy_of_digest(digest_of(policy)) == policy
      True
    """
    digest = hashlib.sha256(policy.to_toml().encode()).hexdigest()[:12]
    _HELD.setdefault(digest, policy)
    return digest


def policy_of_digest(digest: str) -> Policy:
    """The policy that a mark means.

    Raises:
      PolicyError: Nobody holds it any more.
    """
    policy = _HELD.get(digest)
    if policy is None:
        raise PolicyError(
            f"a mark in this step means the policy {digest}, which is gone.",
            got=f"policies that are held: {', '.join(sorted(_HELD)) or 'none'}",
            needed="the policy object that the mark was made with",
            advice="keep the policy in a variable as long as steps that were traced with it are used",
        )
    return policy
