"""The zoo: one table of training steps as their users write them, with what sets each apart.

Every family has a file; it is imported when one of its cases is made, so that the table itself needs no more than jax.
Each case runs anywhere: arrays are concrete, sizes tiny unless asked, and `numbers` gives what the step computes.

    for entry in ZOO:
        if "second_order" in entry.traits:
            expected = numbers(entry.make())

Traits are of a closed set, `TRAITS`; `test_zoo.py` holds those that can be read off a jaxpr against it, both ways.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import MappingProxyType

from tests.zoo.case import SIZES, Case, numbers

__all__ = ["LIBRARIES", "SIZES", "TRAITS", "ZOO", "Case", "Entry", "entries", "named", "numbers"]

LIBRARIES = MappingProxyType({"linen": "flax", "nnx": "flax", "equinox": "equinox", "optax": "optax"})
"""By trait, the package that a family imports."""

TRAITS = MappingProxyType(
    {
        "linen": "the model is Flax Linen's",
        "nnx": "the model is Flax NNX's",
        "equinox": "the model is Equinox's",
        "optax": "the update is optax's",
        # How the step is built.
        "unrolled": "the same block several times, one after the other",
        "scan": "a `scan` in the step",
        "while": "a `while` in the step",
        "cond": "a `cond` in the step",
        "conv": "a convolution in the step",
        "gather": "a `gather` in the step, and a `scatter-add` of its gradient",
        "nested_jit": "the author's own jit inside the step",
        "constants": "closes over large arrays",
        "bf16": "computes in bfloat16",
        # How it is differentiated.
        "aux": "the loss returns more than a number",
        "several_grads": "more than one gradient is taken",
        "second_order": "a gradient of a gradient",
        "grad_in_loop": "the backward pass is inside a loop's body",
        "vmapped_grad": "a gradient is taken under `vmap`",
        "custom_vjp": "a part has a backward pass of its own",
        "custom_jvp": "a part has a derivative of its own",
        "user_remat": "the author recomputes already, with `jax.checkpoint`",
        "no_grad": "no backward pass",
        # What is in the name stack.
        "no_names": "nothing marks what is forward and what is backward",
        "module_paths": "names of modules are there",
        "named_values": "`checkpoint_name` is on some values",
        # What goes in and out.
        "donated": "arguments are donated",
        "jitted": "the step is jitted already, with donation or static arguments of its own",
        "static_args": "some arguments are static",
        "python_scalars": "some arguments are Python numbers",
        "other_leaves": "integers, booleans or None come out, beside the f32",
        "batch_norm": "statistics in the state move with the forward pass",
        "prng_keys": "typed key arrays come in",
        "keys_in_state": "typed key arrays come in and go out",
        # What happens on the way.
        "rng": "random bits are drawn",
        "effects": "something besides the results happens, and must happen once",
        "callback": "the host is called",
    }
)
"""Every trait and what it says of a step."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One step of the zoo.

    Attributes:
      name: Its name, which is also its id in tests.
      make: Gives the case, by default the `tiny` one; `SIZES` has the others.
      traits: What sets it apart, of `TRAITS`.
    """

    name: str
    make: Callable[..., Case]
    traits: frozenset[str]

    def __post_init__(self):
        unknown = self.traits - TRAITS.keys()
        if unknown:
            raise ValueError(f"{self.name} has traits that TRAITS lacks: {sorted(unknown)}")

    def __str__(self) -> str:
        return self.name

    @property
    def missing(self) -> tuple[str, ...]:
        """The packages that it needs and that are not installed."""
        needed = {LIBRARIES[trait] for trait in self.traits & LIBRARIES.keys()}
        return tuple(sorted(package for package in needed if importlib.util.find_spec(package) is None))


def _entry(name: str, place: str, traits: str) -> Entry:
    return Entry(name, partial(_make, *place.split(".")), frozenset(traits.split()))


def _make(module: str, function: str, size: str = "tiny") -> Case:
    return getattr(import_module(f"tests.zoo.{module}"), function)(size)


_GPT = "linen optax bf16 gather module_paths named_values donated other_leaves"
_NNX = "nnx optax unrolled gather rng prng_keys keys_in_state other_leaves aux donated"

ZOO: tuple[Entry, ...] = (
    # Libraries.
    _entry("linen_gpt", "linen_gpt.gpt", f"{_GPT} unrolled"),
    _entry("linen_gpt_scan", "linen_gpt.gpt_scan", f"{_GPT} scan"),
    _entry("linen_gpt_remat", "linen_gpt.gpt_remat", f"{_GPT} unrolled user_remat"),
    _entry("linen_gpt_scan_remat", "linen_gpt.gpt_scan_remat", f"{_GPT} scan user_remat"),
    _entry(
        "linen_dropout_batch_norm",
        "linen_norms.dropout_and_batch_norm",
        "linen optax unrolled batch_norm rng prng_keys keys_in_state gather aux module_paths donated other_leaves",
    ),
    _entry("nnx_split", "nnx_transformer.split", _NNX),
    _entry("nnx_merged", "nnx_transformer.merged", _NNX),
    _entry("equinox_mlp", "equinox_models.mlp", "equinox optax unrolled donated other_leaves"),
    _entry("equinox_transformer", "equinox_models.transformer", "equinox optax unrolled aux gather other_leaves"),
    # Architectures in plain JAX.
    _entry("plain_transformer", "plain_transformer.transformer", "unrolled gather donated"),
    _entry("plain_transformer_scan", "plain_transformer.transformer_scan", "scan gather donated"),
    _entry("tied_transformer", "plain_transformer.tied_transformer", "unrolled gather"),
    _entry("encoder_decoder", "encoder_decoder.translator", "unrolled gather donated"),
    _entry("resnet", "resnet.build", "unrolled conv batch_norm aux gather donated"),
    _entry("unet", "unet.denoiser", "conv gather donated"),
    _entry("lstm", "lstm.lstm", "scan gather donated"),
    _entry("state_space", "lstm.state_space", "unrolled donated"),
    _entry("mixture_of_experts", "experts.mixture", "unrolled gather aux donated"),
    _entry("deep_equilibrium", "fixed_point.deep_equilibrium", "while custom_vjp donated"),
    _entry("flash_attention", "flash_attention.flash", "unrolled scan custom_vjp named_values donated"),
    # Ways to differentiate.
    _entry("manual_backward", "manual_backward.mlp", "unrolled no_names donated"),
    _entry("aux_losses", "losses.aux", "unrolled aux donated"),
    _entry("per_example_gradients", "losses.per_example", "unrolled vmapped_grad donated"),
    _entry("gan", "gan.gan", "several_grads donated"),
    _entry("gradient_penalty", "second_order.gradient_penalty", "unrolled second_order vmapped_grad donated"),
    _entry("forces", "second_order.forces", "unrolled second_order gather aux donated"),
    _entry("meta_learning", "second_order.meta_learning", "unrolled second_order several_grads donated"),
    _entry("curvature", "second_order.curvature", "unrolled second_order"),
    _entry("custom_jvp", "activations.custom_jvp", "unrolled custom_jvp donated"),
    _entry("nested_jit", "activations.nested_jit", "unrolled nested_jit donated"),
    _entry("remat_policies", "user_remat.policies", "unrolled user_remat named_values gather donated"),
    _entry("remat_nested_scan", "user_remat.nested_scan", "scan user_remat donated"),
    # Ways to update.
    _entry("accumulation_scan", "accumulation.scan", "scan grad_in_loop unrolled donated"),
    _entry("multi_steps", "accumulation.multi_steps", "optax cond unrolled donated other_leaves"),
    _entry("clipped_by_global_norm", "clipping.global_norm", "optax unrolled donated"),
    _entry("skipped_if_not_finite", "clipping.skipped_if_not_finite", "unrolled donated"),
    # What goes in.
    _entry("closed_over_constants", "constants.closure", "unrolled constants nested_jit donated"),
    _entry("random_forward", "keys.random_forward", "unrolled rng prng_keys donated"),
    _entry("keys_in_state", "keys.keys_in_state", "scan rng prng_keys keys_in_state donated"),
    _entry("other_leaves", "arguments.other_leaves", "unrolled other_leaves donated"),
    _entry("python_scalars", "arguments.python_scalars", "unrolled python_scalars other_leaves donated"),
    _entry("static_arguments", "arguments.static", "unrolled static_args donated"),
    _entry("jitted_and_donated", "arguments.jitted", "unrolled jitted"),
    # What happens on the way.
    _entry("debug_print", "effects.debug_print", "unrolled effects callback donated"),
    _entry("pure_callback", "effects.pure_callback", "unrolled callback custom_jvp donated"),
    _entry("ordered_callback", "effects.ordered_callback", "unrolled effects callback donated"),
    # Nothing to plan.
    _entry("evaluation", "degenerate.evaluation", "unrolled no_grad no_names"),
    _entry("forward_gradient", "degenerate.forward_gradient", "unrolled no_grad"),
    _entry("identity", "degenerate.identity", "no_grad no_names donated"),
)
"""All of it, the table that every battery of tests goes through."""


def entries(*, having: str = "", lacking: str = "") -> tuple[Entry, ...]:
    """The entries that have all of some traits and none of others, each a string of words."""
    wanted, unwanted = frozenset(having.split()), frozenset(lacking.split())
    unknown = (wanted | unwanted) - TRAITS.keys()
    if unknown:
        raise ValueError(f"no such traits: {sorted(unknown)}")
    return tuple(e for e in ZOO if wanted <= e.traits and not unwanted & e.traits)


def named(name: str) -> Entry:
    """The entry of a name."""
    return next(entry for entry in ZOO if entry.name == name)
