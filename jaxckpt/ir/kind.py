"""Families of primitives, by the part that they can take in a fused kernel, and further traits.

Compilers do not run primitives one by one: chains of elementwise ops become one kernel that reads its sources and
writes its results. A primitive that is not in the table is `OPAQUE`: it is a kernel of its own, and its operands and
results are in memory.
"""

import enum


class Kind(enum.StrEnum):
    """The part that a primitive takes in a fused kernel."""

    VIEW = enum.auto()
    """Moves no bytes of its own: reshapes, broadcasts, slices, transposes read through."""
    ELEMENTWISE = enum.auto()
    """One output element from one element of each operand; fuses into its readers."""
    GATHER = enum.auto()
    """Picks elements of its first operand; fuses with its producers and its readers."""
    REDUCTION = enum.auto()
    """Producers fuse into it; its result is written to memory."""
    CONTRACTION = enum.auto()
    """Matrix products and convolutions: operands and results in memory."""
    SCATTER = enum.auto()
    """Updates part of its first operand, in place where that operand dies."""
    BARRIER = enum.auto()
    """Passes its operands on unchanged and orders the work around it."""
    OPAQUE = enum.auto()
    """Everything else: loops, branches, sorts, custom kernels. Never fuses."""


class Trait(enum.StrEnum):
    """Further properties: those that policies match on, also of ops in the bodies of loops and calls, and relu."""

    BATCHED = enum.auto()
    """A matrix product with batch dimensions, such as attention scores."""
    RANDOM = enum.auto()
    """It draws random bits."""
    COLLECTIVE = enum.auto()
    """Devices exchange data in it."""
    RELU = enum.auto()
    """The maximum of an array and a literal, also as a call. Libraries of matrix products apply it to the result."""
    REUSES_ARRAY = enum.auto()
    """A call with a derivative of its own, of whose body several equations read one array. No matrix product applies it
    to what it loads or writes: a softplus is `max(x, 0) + log1p(exp(-abs(x)))`."""


POOLING_GRADIENT = "select_and_scatter_add"
"""The gradient of a maximum over windows. XLA for GPUs makes several kernels of it: one finds the places of the maxima,
one writes zeros, one scatters into them."""
_MEMBERS = {
    Kind.VIEW: """broadcast_in_dim reshape squeeze expand_dims slice rev transpose iota copy copy_p
        stop_gradient name pvary pbroadcast reduce_precision split unstack real imag loop_slice
        to_shards from_shards axis_index""",
    Kind.ELEMENTWISE: """abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e
        cbrt ceil clamp conj convert_element_type cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1
        floor ge gt integer_pow is_finite le lgamma log log1p log2 logistic lt max min mul mulhi ne neg nextafter
        not one_minus_square or polygamma polynomial population_count pow rem round rsqrt select_and_gather_add select_n
        shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square sub tan tanh xor
        complex igamma igammac zeta clz bitcast_convert_type eq_to le_to lt_to mul_add
        concatenate stack pad sharding_constraint mesh_cast random_wrap random_unwrap""",
    Kind.GATHER: "gather dynamic_slice",
    Kind.REDUCTION: """reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax
        argmin reduce reduce_window_sum reduce_window_max reduce_window_min reduce_window
        select_and_scatter_add select_and_scatter""",
    Kind.CONTRACTION: "dot_general conv_general_dilated ragged_dot ragged_dot_general scaled_matmul_wrapper",
    Kind.SCATTER: """scatter scatter-add scatter_add scatter_mul scatter_min scatter_max scatter-mul scatter-min
        scatter-max scatter-sub scatter_sub dynamic_update_slice""",
    Kind.BARRIER: "optimization_barrier",
}
_TRAITS = {
    Trait.RANDOM: """random_bits random_split random_fold_in random_gamma random_clone threefry2x32 rng_bit_generator
        rng_uniform""",
    Trait.COLLECTIVE: """psum psum2 psum_invariant pmax pmin all_gather all_gather_invariant all_gather_reduced
        all_to_all ragged_all_to_all ppermute psend precv reduce_scatter unreduced_psum unreduced_reduce_scatter
        reshard pgather collective_permute""",
}
_TRAIT = {primitive: trait for trait, names in _TRAITS.items() for primitive in names.split()}
_KIND = {primitive: kind for kind, names in _MEMBERS.items() for primitive in names.split()}


def kind_of(primitive: str) -> Kind:
    """The kind of a primitive by its name; `Kind.OPAQUE` where the table does not know it.

    Example:
      >>> kind_of("dot_general"), kind_of("somebody_elses_kernel")
      (<Kind.CONTRACTION: 'contraction'>, <Kind.OPAQUE: 'opaque'>)
    """
    return _KIND.get(primitive, Kind.OPAQUE)


def trait_of(primitive: str) -> Trait | None:
    """The trait of a primitive by its name; None where it has none.

    Example:
      >>> trait_of("threefry2x32"), trait_of("add")
      (<Trait.RANDOM: 'random'>, None)
    """
    return _TRAIT.get(primitive)
