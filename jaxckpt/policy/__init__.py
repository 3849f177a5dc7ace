"""Policies: rules written by people that give decisions on any step.

Read in this order: `rule` (what matches, and what happens), `policy` (ordered rules), `toml` (how they are written),
`resolve` (what they decide about a graph), `interned` (policies by their digest).
"""

from jaxckpt.policy.interned import digest_of, policy_of_digest
from jaxckpt.policy.policy import Policy, Regions
from jaxckpt.policy.resolve import Resolved, candidates, resolve
from jaxckpt.policy.rule import Candidate, Match, Rule
from jaxckpt.policy.toml import policy_from_toml, toml_from_policy

__all__ = [
    "Candidate",
    "Match",
    "Policy",
    "Regions",
    "Resolved",
    "Rule",
    "candidates",
    "digest_of",
    "policy_from_toml",
    "policy_of_digest",
    "resolve",
    "toml_from_policy",
]
