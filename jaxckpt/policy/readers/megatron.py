"""Megatron-LM's flags: full and selective recomputation, distributed saved activations, offloading.

Full: the input of each segment of layers is kept (`uniform`), or the first layers of each pipeline stage are computed
again (`block`). Selective: parts of a layer, first of all the core attention (scores, softmax, dropout), are computed
again and all else is kept. Flags of Megatron that say nothing of residuals are passed over; one that looks like ours
and is none is an error.

Source: Megatron-LM `training/arguments.py`, `core/transformer/transformer_config.py`; selective recomputation:
Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022), section 5.
Read after `layers` and `flags`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxckpt.ir import Decision, Offload, Partition, Recompute, Save
from jaxckpt.policy.policy import Policy, Regions
from jaxckpt.policy.readers.checks import Checks
from jaxckpt.policy.readers.flags import settings_of_flags
from jaxckpt.policy.readers.layers import inputs, recomputed, within_segments
from jaxckpt.policy.readers.reading import Reading
from jaxckpt.policy.rule import Match, Rule

CORE_ATTENTION = "core_attn"
SCOPES: Mapping[str, str] = {
    CORE_ATTENTION: "*{attn,attention,Attention}*",
    "layernorm": "*{norm,Norm,ln_}*",
    "mlp": "*{mlp,MLP,Mlp,feed_forward}*",
    "moe": "*{moe,MoE}*",
    "moe_act": "*{moe,MoE,expert}*",
    "shared_experts": "*shared_expert*",
    "mla_up_proj": "*up_proj*",
}
"""Where a part of Megatron's layers is looked for in a JAX model, unless `scopes` says otherwise."""

MODULES = (*SCOPES, "gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc")
OFFLOADED: Mapping[str, str] = {
    "attn_norm": "*{attn,attention,Attention,input}*{norm,Norm}*",
    "qkv_linear": "*qkv*",
    CORE_ATTENTION: SCOPES[CORE_ATTENTION],
    "attn_proj": "*{attn,attention,Attention}*/{out,proj,out_proj,o_proj,linear_proj}",
    "mlp_norm": "*{mlp,post_attention}*{norm,Norm}*",
    "expert_fc1": "*expert*{fc1,wi,up}*",
    "moe_act": SCOPES["moe_act"],
    "fused_group_mlp": "*expert*",
}
_SOFTMAX = "{exp,exp2,div,sub,max,reduce_max,reduce_sum,select_n,convert_element_type}"
_VALUES = ("recompute_num_layers", "num_layers", "pipeline_model_parallel_size", "tensor_model_parallel_size")
_NUMBERS = (*_VALUES, "cpu_offloading_num_layers", "min_offloaded_tensor_size")
_SWITCHES = (
    "recompute_activations",
    "distribute_saved_activations",
    "sequence_parallel",
    "cpu_offloading",
    "cpu_offloading_activations",
    "cpu_offloading_weights",
    "cpu_offloading_double_buffering",
    "fine_grained_activation_offloading",
)
_LISTS = ("recompute_modules", "offload_modules")
_WORDS = ("recompute_granularity", "recompute_method")
_ELSEWHERE: Mapping[str, str] = {
    "activation_offload_fraction": "it is a share of groups, not of bytes: say the layers in the rule (layers = ...), "
    "or give jaxckpt.plan a budget",
    "delta_offload_bytes_across_pp_ranks": "stages are programs of their own: plan each with its budget",
    "optimizer_cpu_offload": "a policy is about residuals: give the optimiser's state a sharding with "
    "memory_kind='pinned_host'",
    "optimizer_offload_fraction": "a policy is about residuals, not about the optimiser's state",
    "overlap_cpu_optimizer_d2h_h2d": "a policy is about residuals, not about the optimiser's state",
    "cpu_offloading_weights": "a policy is about residuals: give the parameters a sharding with "
    "memory_kind='pinned_host'",
    "cpu_offloading_double_buffering": "XLA places the buffers of copies itself",
}
"""Flags that no policy says, and what to do."""

_ALONE = (*_SWITCHES, "optimizer_cpu_offload", "overlap_cpu_optimizer_d2h_h2d")
"""Flags behind which nothing need stand."""

_KEYS = tuple(dict.fromkeys((*_NUMBERS, *_SWITCHES, *_LISTS, *_WORDS, *_ELSEWHERE)))
_DEFAULT_FLOOR = 1024 * 1024
_ELEMENT_BYTES = 2


def policy_from_megatron(
    flags: Sequence[str] | Mapping[str, Any],
    *,
    num_layers: int | None = None,
    model_axis: str = "model",
    dim: int = 1,
    prefetch: int | None = None,
    scopes: Mapping[str, str] | None = None,
    layer_scope: str | None = None,
) -> Reading:
    """Reads Megatron's recomputation and offloading.

    Args:
      flags: Of the command line, one text each (as `sys.argv`) or all in one; or names and values, with or without
        dashes.
      num_layers: Of the model, where the flags do not say it and the meaning needs it.
      model_axis: The mesh axis of tensor parallelism, over which `--distribute-saved-activations` cuts.
      dim: The dimension that is cut. Megatron cuts the flattened value.
      prefetch: How many layers ahead offloaded values are fetched back; None: chosen from bandwidths.
      scopes: For names of `--recompute-modules` and `--offload-modules`, globs on the scopes that they are here.
      layer_scope: Glob on the scopes of layers; None for layers as they are found by structure.

    Returns:
      The policy and what it does not carry.

    Raises:
      PolicyError: A flag is unknown, or flags contradict each other as in Megatron.

    Example:
      >>> flags = "--recompute-granularity full --recompute-method block --recompute-num-layers 2 --num-layers 12"
      >>> print(policy_from_megatron(flags.split()).policy)
      policy "megatron-full-block": (1) boundary = 'input': save; (2) layers = '0-1': recompute; the rest: save
    """
    checks = Checks("policy_from_megatron", needed=f"flags such as {', '.join(_dashed(key) for key in _KEYS)}")
    settings = settings_of_flags(flags, keys=_KEYS, switches=_ALONE, lists=_LISTS, numbers=_NUMBERS, checks=checks)
    if num_layers is not None:
        settings["num_layers"] = num_layers
    _check_kinds(settings, checks)
    checks.done()
    if settings.get("recompute_activations") and "recompute_granularity" not in settings:
        settings["recompute_granularity"] = "selective"
    _validate(settings, checks)
    checks.done()
    where = {**SCOPES, **(scopes or {})}
    notes = [f"{_dashed(key)}: {why}." for key, why in _ELSEWHERE.items() if settings.get(key) not in (None, False)]
    rules = list(_offloading(settings, {**OFFLOADED, **(scopes or {})}, prefetch, notes))
    match settings.get("recompute_granularity"):
        case "full":
            policy = _full(settings, rules, Partition(axis=model_axis, dim=dim), layer_scope, notes)
        case "selective":
            modules = tuple(settings.get("recompute_modules") or (CORE_ATTENTION,))
            policy = _selective(modules, rules, where, notes)
        case _:
            policy = Policy(name="megatron", rules=tuple(rules), default="save")
    return Reading(system="megatron", policy=policy, not_carried=tuple(notes))


def _dashed(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _check_kinds(settings: Mapping[str, Any], checks: Checks) -> None:
    for key in _NUMBERS:
        checks.number(
            settings, key, least=0 if key in ("cpu_offloading_num_layers", "min_offloaded_tensor_size") else 1
        )
    for key in _SWITCHES:
        checks.flag(settings, key, default=False)
    checks.one_of(settings, "recompute_granularity", ("full", "selective"), default="full")
    checks.one_of(settings, "recompute_method", ("uniform", "block"), default="uniform")
    checks.known(checks.texts(settings, "recompute_modules"), MODULES, what="module to recompute")
    checks.known(checks.texts(settings, "offload_modules"), OFFLOADED, what="module to offload")


def _validate(settings: Mapping[str, Any], checks: Checks) -> None:
    """What Megatron refuses; a setting that it would ignore is refused as well."""
    granularity, method = settings.get("recompute_granularity"), settings.get("recompute_method")
    count, layers = settings.get("recompute_num_layers"), settings.get("num_layers")
    stages = settings.get("pipeline_model_parallel_size") or 1
    if granularity == "full":
        if method is None:
            checks.wrong("--recompute-granularity full needs --recompute-method uniform or block")
        if count is None:
            checks.wrong("--recompute-granularity full needs --recompute-num-layers")
        elif ((count > 1 and method == "uniform") or (stages > 1 and method == "block")) and layers is None:
            checks.wrong("--num-layers is needed to say which layers are meant")
        if layers is not None and layers % stages:
            checks.wrong(f"--num-layers {layers} does not divide by --pipeline-model-parallel-size {stages}")
        elif layers is not None and count is not None and count > layers // stages:
            checks.wrong(f"--recompute-num-layers {count} is more than the {layers // stages} layers of a stage")
    else:
        for key in ("recompute_method", "recompute_num_layers"):
            if settings.get(key) is not None:
                checks.wrong(f"{_dashed(key)} is for --recompute-granularity full, and this is {granularity or 'none'}")
    if settings.get("recompute_modules") and granularity != "selective":
        checks.wrong(
            f"--recompute-modules is for --recompute-granularity selective, and this is {granularity or 'none'}"
        )
    if settings.get("distribute_saved_activations"):
        if granularity != "full":
            checks.wrong("--distribute-saved-activations is for --recompute-granularity full alone")
        if settings.get("sequence_parallel"):
            checks.wrong("--distribute-saved-activations must be off with --sequence-parallel")
        if settings.get("tensor_model_parallel_size") == 1:
            checks.wrong("--distribute-saved-activations needs --tensor-model-parallel-size above 1")
    if settings.get("offload_modules") and not settings.get("fine_grained_activation_offloading"):
        checks.wrong("--offload-modules is for --fine-grained-activation-offloading, which is off")
    if settings.get("fine_grained_activation_offloading") and not settings.get("offload_modules"):
        checks.wrong("--fine-grained-activation-offloading needs --offload-modules")
    if settings.get("cpu_offloading"):
        _validate_offloading(settings, granularity, stages, checks)


def _validate_offloading(settings: Mapping[str, Any], granularity: str | None, stages: int, checks: Checks) -> None:
    count, layers = settings.get("cpu_offloading_num_layers"), settings.get("num_layers")
    if count is None:
        checks.wrong("--cpu-offloading needs --cpu-offloading-num-layers")
    elif layers is not None and count >= layers:
        checks.wrong(f"--cpu-offloading-num-layers {count} must be below the {layers} layers of the model")
    if stages > 1:
        checks.wrong("--cpu-offloading has no support for pipeline parallelism")
    if granularity is not None:
        checks.wrong("--cpu-offloading does not work with recomputation")


def _full(
    settings: Mapping[str, Any], before: list[Rule], cut: Partition, layer_scope: str | None, notes: list[str]
) -> Policy:
    count, layers = settings["recompute_num_layers"], settings.get("num_layers")
    saved: Decision = Save()
    if settings.get("distribute_saved_activations"):
        saved = cut
        notes.append(
            f"--distribute-saved-activations cuts the flattened value, here dimension {cut.dim} is cut: it must divide "
            "by the axis; say dim=... for another one."
        )
    starts = inputs(saved, scope=layer_scope, note="what layers read")
    if settings["recompute_method"] == "block":
        again = recomputed(_first_of_stages(count, layers, settings.get("pipeline_model_parallel_size") or 1))
        return Policy(name="megatron-full-block", rules=(*before, *starts, again), default="save")
    segments = within_segments(count, num_layers=layers, scope=layer_scope) if layers is not None else ()
    rules = (*before, *segments, *starts)
    if layer_scope is None:
        return Policy(name="megatron-full-uniform", rules=rules, default="recompute")
    return Policy(name="megatron-full-uniform", rules=rules, regions=Regions(scope=layer_scope), default="save")


def _first_of_stages(count: int, layers: int | None, stages: int) -> list[int]:
    size = (layers or count) // stages
    return [stage * size + layer for stage in range(stages) for layer in range(count)]


def _selective(modules: tuple[str, ...], before: list[Rule], where: Mapping[str, str], notes: list[str]) -> Policy:
    rules = list(before)
    for module in modules:
        if module not in where:
            notes.append(
                f"--recompute-modules {module}: nobody knows what it is called in this model; say scopes={{{module!r}: "
                "'*/glob'}."
            )
            continue
        rules += _module(module, where[module])
    if CORE_ATTENTION in modules:
        notes.append(
            "core_attn under a fused attention kernel: the kernel is one op whose scores are never in memory, and its "
            "rules match nothing there, which is an error; take them out (policy flash_attention says what to keep)."
        )
    return Policy(name="megatron-selective", rules=tuple(rules), default="save")


def _module(module: str, scope: str) -> Iterator[Rule]:
    if module == CORE_ATTENTION:
        note = "scores, softmax and what is weighted by it"
        yield Rule(match=Match(scope=scope, batched=True), decision=Recompute(), note=note)
        yield Rule(match=Match(scope=scope, primitive=_SOFTMAX), decision=Recompute(), note=note)
    elif module == "moe_act":
        yield Rule(match=Match(scope=scope, primitive="elementwise"), decision=Recompute(), note="moe_act")
    else:
        yield Rule(match=Match(scope=scope, boundary="input"), decision=Save(), note=f"what {module} reads")
        yield Rule(match=Match(scope=scope), decision=Recompute(), note=module)


def _offloading(
    settings: Mapping[str, Any], where: Mapping[str, str], prefetch: int | None, notes: list[str]
) -> Iterator[Rule]:
    moved = Offload(prefetch=prefetch)
    count = settings.get("cpu_offloading_num_layers", 0) if settings.get("cpu_offloading") else 0
    if count and settings.get("cpu_offloading_activations", True):
        yield Rule(match=Match(layers=f"0-{count - 1}"), decision=moved, note="--cpu-offloading")
    floor = settings.get("min_offloaded_tensor_size", _DEFAULT_FLOOR)
    for module in settings.get("offload_modules") or ():
        match = Match(scope=where[module], boundary="input", min_bytes=floor * _ELEMENT_BYTES)
        yield Rule(match=match, decision=moved, note=f"what {module} reads")
    if settings.get("offload_modules"):
        notes.append(
            f"--min-offloaded-tensor-size counts elements, here bytes count: {floor} elements of {_ELEMENT_BYTES} "
            "bytes; change min_bytes in the rules for float32."
        )
        notes.append(
            "--fine-grained-activation-offloading keeps the last group on the device: here all are offloaded; put a "
            'rule with the last layer and decision = "save" first if its copy costs time.'
        )
