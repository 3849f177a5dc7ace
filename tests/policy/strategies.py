"""Random policies in which every key occurs, and texts that are nearly policies."""

from hypothesis import strategies as st

from jaxckpt.ir import Offload, Partition, Recompute, Save
from jaxckpt.policy import Match, Policy, Regions, Rule

texts = st.text(max_size=20)
globs = st.sampled_from(["*", "net/*", "*/block_{0,1}", "dot*", "q[kv]*", "", "contraction", "{a,b}{c,d}"]) | texts


def _optional(strategy):
    return st.none() | strategy


matches = st.builds(
    Match,
    scope=_optional(globs),
    name=_optional(globs),
    primitive=_optional(globs),
    dtype=_optional(globs),
    layers=_optional(st.sampled_from(["0", "0-3,7", "5,2"])),
    every=_optional(st.integers(1, 9)),
    min_bytes=_optional(st.integers(0, 2**50)),
    max_bytes=_optional(st.integers(0, 2**50)),
    min_flops=_optional(st.integers(0, 2**60)),
    batched=_optional(st.booleans()),
    between_batched=_optional(st.booleans()),
    random=_optional(st.booleans()),
    collective=_optional(st.booleans()),
    boundary=_optional(st.sampled_from(["input", "output"])),
)
decisions = st.one_of(
    st.just(Save()),
    st.just(Recompute()),
    st.builds(Offload, space=texts, prefetch=st.integers(0, 9)),
    st.builds(Partition, axis=texts, dim=st.integers(0, 5)),
)
strengths = st.sampled_from(["must", "prefer"])
rules = st.builds(Rule, match=matches, decision=decisions, strength=strengths, optional=st.booleans(), note=texts)
regions = st.builds(
    Regions,
    scope=globs,
    segment=_optional(st.integers(1, 9)),
    layers=_optional(st.sampled_from(["0", "0-3,7", "5,2"])),
    exclude=st.lists(globs, max_size=3).map(tuple),
    recompute_random=st.booleans(),
    recompute_collectives=st.booleans(),
    recompute_gathered_parameters=st.booleans(),
    output_recompute=st.booleans(),
)
policies = st.builds(
    Policy,
    name=texts.filter(bool),
    models=texts,
    about=st.text(max_size=60),
    default=st.sampled_from(["save", "recompute"]),
    rules=st.lists(rules, max_size=4).map(tuple),
    regions=_optional(regions),
)

_LINES = """
name = "transformer"
about = '''two
lines'''  # why
default = "recompute"
default = "keep"
[regions]  # blocks
scope = "*/block_*"
segment = 4
segment = 0
exclude = ["batch_norm", "*norm*"]
exclude = "batch_norm"
recompute_random = false
[[rule]]  # first match decides
[rule]
decision = "save"
decision = "offload"
decision = "partition"
space = "pinned_host"
prefetch = 2
prefetch = 1.0
axis = "model"
dim = 1
layers = "0-11"
layers = 3
layers = "3-1"
every = 2
every = 0
min_bytes = "8MiB"
min_bytes = 8.0
min_bytes = "1e999"
min_bytes = -1
batched = true
between_batched = false
boundary = "input"
strength = "prefer"
optional = true
nmae = "x"
rule = [{decision = "save"}, {decision = "recompute", name = "x"}]
""".strip().splitlines()
texts_like_policies = (
    st.lists(st.sampled_from(_LINES), max_size=14).map("\n".join)
    | policies.map(Policy.to_toml)
    | st.tuples(policies.map(Policy.to_toml), st.integers(0, 400), texts).map(
        lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :]
    )
    | st.text(max_size=80)
)
