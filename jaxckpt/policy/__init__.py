"""Policies: rules written by people that give decisions on any step.

Read in this order: `rule` (match and decision), `policy` (ordered rules), `toml` (their files), `edit` (edits that keep
comments), `regions` (parts that are recomputed as a whole), `resolve` (decisions for a graph), `library` (policies by
name and by digest), `readers` (other systems' configurations).
"""

from jaxckpt.policy.library import digest_of, load_policy, new_mark, policies, policy_of_mark
from jaxckpt.policy.policy import Policy, Regions
from jaxckpt.policy.regions import (
    Region,
    excluded_ops,
    find_regions,
    is_read_after_forward,
    region_inputs,
    region_outputs,
)
from jaxckpt.policy.resolve import Resolved, Ruling, forward_values, resolve
from jaxckpt.policy.rule import ForwardValue, Match, Rule
from jaxckpt.policy.toml import policy_from_toml, toml_from_policy

__all__ = [
    "ForwardValue",
    "Match",
    "Policy",
    "Region",
    "Regions",
    "Resolved",
    "Rule",
    "Ruling",
    "digest_of",
    "excluded_ops",
    "find_regions",
    "forward_values",
    "is_read_after_forward",
    "load_policy",
    "new_mark",
    "policies",
    "policy_from_toml",
    "policy_of_mark",
    "region_inputs",
    "region_outputs",
    "resolve",
    "toml_from_policy",
]
