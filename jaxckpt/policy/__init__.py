"""Policies: rules written by people that give decisions on any step.

Read in this order: `rule` (match and decision), `policy` (ordered rules), `toml` (their files), `edit` (edits that keep
comments), `model_layers` and `regions` (parts that are recomputed as a whole), `resolve` (decisions for a graph),
`library` (policies by name and by digest), `readers` (other systems' configurations).
"""

from jaxckpt.policy.library import (
    as_policy as as_policy,
    digest_of as digest_of,
    load_policy as load_policy,
    new_mark as new_mark,
    policies as policies,
    policy_of_mark as policy_of_mark,
)
from jaxckpt.policy.model_layers import layers_of_model as layers_of_model
from jaxckpt.policy.policy import Policy as Policy, Regions as Regions
from jaxckpt.policy.regions import (
    Region as Region,
    excluded_ops as excluded_ops,
    find_layers as find_layers,
    find_regions as find_regions,
    is_read_after_forward as is_read_after_forward,
    region_inputs as region_inputs,
    region_outputs as region_outputs,
)
from jaxckpt.policy.resolve import (
    Resolved as Resolved,
    Ruling as Ruling,
    forward_values as forward_values,
    resolve as resolve,
)
from jaxckpt.policy.rule import ForwardValue as ForwardValue, Match as Match, Rule as Rule
from jaxckpt.policy.toml import policy_from_toml as policy_from_toml, toml_from_policy as toml_from_policy
