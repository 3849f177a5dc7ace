"""The only module that touches the internals of jax; each shim names the versions that it was tested with.

Sections, one for each package that calls the shims. A shim does one thing, returns plain data or public types, and has
a canary among the tests of its caller, so that a new jax breaks a test with a name instead of a plan. Nothing here
starts a backend.
"""

import functools
import importlib
import importlib.util
import inspect
import logging
import mmap
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import jax
import jax.extend.core
from jax._src import core, distributed, sharding_impls, source_info_util, xla_bridge
from jax._src.effects import JaxprInputEffect
from jax._src.lax import windowed_reductions
from jax._src.named_sharding import UnspecifiedValue
from jax.extend.source_info_util import NameStack
from jax.interpreters import partial_eval
from jaxlib import _hlo, _jax, xla_client  # pyright: ignore[reportAttributeAccessIssue]  # compiled, no stub

### Plugins and topologies. Caller: jaxckpt.machine. Canaries: tests/machine/test_plugins.py.

Device: TypeAlias = Any
"""A `jax.Device`, for which jax has no type that a checker can read."""

CUDA_PLUGINS = ("xla_cuda13", "xla_cuda12")
"""The modules under `jax_plugins` that hold NVIDIA's compiler, newest first."""

_NVIDIA_DEVICE = pathlib.Path("/dev/nvidia0")


def backends_are_initialised() -> bool:
    """True if this process has opened its devices already. jax 0.10.2, 0.12.0.1."""
    return xla_bridge.backends_are_initialized()


def cuda_topology_devices(target_config: str, topology: str) -> tuple[Device, ...]:
    """Makes compile-only CUDA devices, with no GPU and no change to the running process. jax 0.10.2, 0.12.0.1.

    `jax.experimental.topologies` does it only where jax registered its CUDA backend, and it does not where cuDNN is
    missing, as on every laptop. So we load the plugin as `make_pjrt_tpu_topology` loads libtpu: next to the backends,
    never as one of them. `target_config` is a `GpuTargetConfigProto` in text form, `topology` is "slices x hosts x
    devices per host" ("1x64x8"). Every call gives new devices, which equal no others.
    """
    load_cuda_plugin()
    options = {"target_config": target_config, "topology": topology}
    return tuple(_jax.get_default_c_api_topology("cuda", "", options)._make_compile_only_devices())


def load_cuda_plugin() -> None:
    """Loads NVIDIA's compiler unless jax has done so. jax 0.10.2, 0.12.0.1.

    jax goes first: were we to load the library before it looks for plugins, its own registration would fail
    (ALREADY_EXISTS) and a machine with a GPU would lose it.
    """
    with _quiet_without_gpu():
        xla_bridge._discover_and_register_pjrt_plugins()
    if not xla_client.pjrt_plugin_loaded("cuda"):
        plugin = cuda_plugin()
        if plugin is None:
            raise ImportError("no module jax_plugins.xla_cuda13 or jax_plugins.xla_cuda12")
        c_api = xla_client.load_pjrt_plugin_dynamically("cuda", str(plugin[1]))
        _register_cuda_kernels(plugin[0], c_api)


def cuda_plugin() -> tuple[str, pathlib.Path] | None:
    """The installed CUDA plugin as (name, path of its library), without importing it. jax 0.10.2, 0.12.0.1."""
    if importlib.util.find_spec("jax_plugins") is None:
        return None
    for name in CUDA_PLUGINS:
        spec = importlib.util.find_spec(f"jax_plugins.{name}")
        if spec is not None and spec.origin is not None:
            return name, pathlib.Path(spec.origin).with_name("xla_cuda_plugin.so")
    return None


@functools.cache
def cuda_compiler_has_option(name: str) -> bool:
    """True if NVIDIA's compiler knows an option: its name is in the library. jax 0.10.2, 0.12.0.1.

    To ask the compiler itself would start a backend.
    """
    plugin = cuda_plugin()
    if plugin is None:
        return False
    with plugin[1].open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
        return library.find(name.encode()) >= 0


def _register_cuda_kernels(plugin_name: str, c_api: Any) -> None:
    """Tells the compiler about jaxlib's kernels (cholesky, qr, eigh, ...), as the plugin's `initialize` would.

    Without it a step that calls one does not compile: "No FFI handler registered for cusolver_potrf_ffi".
    """
    package = plugin_name.replace("xla_", "jax_") + "_plugin"
    kernels = importlib.import_module(f"{package}.cuda_plugin_extension")
    xla_client.register_custom_type_handler("CUDA", functools.partial(kernels.register_custom_type, c_api))
    xla_client.register_custom_call_handler("CUDA", functools.partial(kernels.register_custom_call_target, c_api))
    for name, type_id in kernels.ffi_types().items():
        xla_client.register_custom_type(name, type_id, platform="CUDA")
    for name, kernel in kernels.ffi_handlers().items():
        xla_client.register_custom_call_target(name, kernel, platform="CUDA", api_version=1)
    if hasattr(kernels, "compile_triton_to_asm"):  # 0.10.2; gone in 0.12.0.1
        triton = importlib.import_module("jax._src.lib.triton")
        triton.register_compilation_handler("CUDA", functools.partial(kernels.compile_triton_to_asm, c_api))


@contextmanager
def _quiet_without_gpu() -> Iterator[None]:
    """Holds back jax's traceback "cuDNN not found" on a machine without an NVIDIA device."""

    def keep(record: logging.LogRecord) -> bool:
        return "jax_plugins.xla_cuda" not in record.getMessage()

    logger = logging.getLogger("jax._src.xla_bridge")
    if not _NVIDIA_DEVICE.exists():
        logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def is_compile_only(device: Device) -> bool:
    """True if a device exists only for the compiler. jax 0.10.2, 0.12.0.1."""
    return type(device.client).__name__ == "CompileOnlyPyClient"


### Traced steps. Caller: jaxckpt.compiler. Canaries: tests/compiler/test_flat_step.py.


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedLeaves:
    """The facts of `jax.stages.Traced` about each array of a step, in the order of its jaxpr.

    `call` is the step over flat arrays. Shardings are those of the caller's arrays or of the jit, or None.
    """

    call: Callable[..., Sequence[Any]]
    avals: tuple[Any, ...]
    arg_shardings: tuple[Any, ...]
    out_shardings: tuple[Any, ...]
    donated: tuple[bool, ...]
    compiler_options: tuple[tuple[str, Any], ...]
    name: str


def traced_leaves(traced: jax.stages.Traced) -> TracedLeaves:
    """Reads a traced step without rebuilding its arguments. jax 0.10.2, 0.12.0.1.

    The public `args_info` unflattens the caller's pytrees with placeholders for leaves, and classes that check
    their leaves then crash.
    """
    params = traced._params
    captured = captured_arrays(traced)
    call = functools.partial(jax.extend.core.jaxpr_as_fun(traced.jaxpr), *captured)
    types = traced._meta_tys_flat[len(captured) :]
    return TracedLeaves(
        call=call,
        avals=tuple(type_.aval for type_ in types),
        arg_shardings=tuple(
            type_.sharding if asked is None else asked
            for type_, asked in zip(types, jit_in_shardings(traced), strict=True)
        ),
        out_shardings=_specified(params["out_shardings"]),
        donated=tuple(params["donated_invars"][len(captured) :]),
        compiler_options=tuple(params["compiler_options_kvs"]),
        name=params["name"],
    )


def hlo_module_from_text(text: str) -> bytes:
    """Parses a text of HLO with XLA's own parser, and serialises the module. jax 0.10.2, 0.12.0.1."""
    return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


def canonical_hlo_text(module: bytes) -> str:
    """A serialised module's entry computation in the form by which XLA's autotuner knows it. jax 0.10.2, 0.12.0.1."""
    options = _hlo.HloPrintOptions.canonical()
    options.print_operand_shape = True
    options.print_ids = False
    options.canonicalize_computations = True
    text = _hlo.HloModule.from_serialized_hlo_module_proto(module).to_string(options)
    return _CONSTANT.sub(_essential_constant, text[text.index("{", text.index("ENTRY")) :].strip())


_CONSTANT = re.compile(r"= (\w+)(\[\S*) constant\((.*)\)")
_ESSENTIAL = {"0": "0", "1": "1", "-0": "0", "false": "0", "true": "1"}


def _essential_constant(constant: re.Match[str]) -> str:
    """A constant as XLA prints it with `print_only_essential_constants`, an option that Python has not."""
    dtype, shape, text = constant.groups()
    is_integer = dtype[0] in "su" and dtype[1:].isdigit()
    return f"= {dtype}{shape} constant({text if is_integer else _ESSENTIAL.get(text, '{...}')})"


def read_arguments(traced: jax.stages.Traced) -> tuple[bool, ...]:
    """For each argument, True if the step reads it; jit drops the others. jax 0.10.2, 0.12.0.1."""
    jaxpr = getattr(traced.jaxpr, "jaxpr", traced.jaxpr)
    _, used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return tuple(used)


def set_argument_memories(lowered: jax.stages.Lowered, memory_kinds: Sequence[str | None]) -> None:
    """Writes memory kinds of a lowered step's arguments where XLA reads them; None stands for the device's own.

    jax leaves them out for devices that know no memories, as compile-only ones. jax 0.10.2, 0.12.0.1.
    """
    from jaxlib.mlir import ir

    module: Any = lowered.compiler_ir("stablehlo")
    with module.context:
        main = _main_function(module)
        named = [{each.name: each.attr for each in ir.DictAttr(one)} for one in main.attributes["arg_attrs"]]
        for attributes, kind in zip(named, memory_kinds, strict=True):
            if kind is not None:
                attributes["mhlo.memory_kind"] = ir.StringAttr.get(kind)
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(list(map(ir.DictAttr.get, named)))


def _main_function(module: Any) -> Any:
    """The function that a lowered step begins with."""
    (main,) = (op for op in module.body.operations if str(op.attributes["sym_name"]) == '"main"')
    return main


### Tracing and rewriting. Callers: jaxckpt.program, outline, trace, rewrite. Canaries: tests/trace/test_internals.py.


def captured_arrays(traced: jax.stages.Traced) -> tuple[jax.Array, ...]:
    """Arrays that a step closes over, which jax puts first; mostly tracers of an outer trace. jax 0.10.2, 0.12.0.1."""
    return tuple(traced._consts)


def jit_in_shardings(traced: jax.stages.Traced) -> tuple[Any, ...]:
    """The sharding that a step's jit asks of each argument, or None. jax 0.10.2, 0.12.0.1."""
    return _specified(traced._params["in_shardings"][len(traced._consts) :])


def _specified(shardings: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(each if is_specified_sharding(each) else None for each in shardings)


@dataclass(frozen=True, slots=True, kw_only=True)
class JitOptions:
    """Positions and names of arguments that a jit does not trace, and of those that it donates."""

    static: frozenset[int | str] = frozenset()
    donated: frozenset[int | str] = frozenset()


def jit_options(step: Any) -> JitOptions | None:
    """The options of a function under `jax.jit`; None for anything else. jax 0.10.2, 0.12.0.1.

    `jax.stages.Wrapped` is a protocol that wrappers of other libraries meet too, and `functools.wraps` copies the
    attributes of a jitted function.
    """
    if not isinstance(step, _jax.PjitFunction):
        return None
    info = getattr(step, "_jit_info", None)
    if info is None:
        return JitOptions()
    return JitOptions(
        static=frozenset((*info.static_argnums, *info.static_argnames)),
        donated=frozenset((*info.donate_argnums, *info.donate_argnames)),
    )


def name_stack_marks(name_stack: NameStack) -> tuple[tuple[str, bool], ...]:
    """The entries of an equation's name stack, outermost first, as (name, True if a transformation added it).

    The text "jvp(net)/block" does not tell a transformation from a scope of that name. jax 0.10.2, 0.12.0.1.
    """
    return tuple((entry.name, type(entry).__name__ == "Transform") for entry in name_stack.stack)


def name_stack_without(name_stack: NameStack, drop: frozenset[int]) -> NameStack:
    """A name stack without the entries at some positions. jax 0.10.2, 0.12.0.1."""
    return NameStack(tuple(entry for position, entry in enumerate(name_stack.stack) if position not in drop))


def has_user_frame(eqn: jax.extend.core.JaxprEqn) -> bool:
    """True if an equation's traceback has a line of the user's code: that of a function which jax caches has none."""
    traceback = eqn.source_info.traceback
    return traceback is not None and source_info_util.user_frame(traceback) is not None


def retarget_effects(effects: Any, variable: Callable[[Any], Any]) -> Any:
    """Effects on references (read, write), renamed to the references' new variables. jax 0.10.2, 0.12.0.1."""
    if not any(isinstance(effect, JaxprInputEffect) for effect in effects):
        return effects
    return {
        effect.replace(variable(effect.input)) if isinstance(effect, JaxprInputEffect) else effect for effect in effects
    }


def lasting_effects(effects: Any) -> Any:
    """Effects without the note that an equation names an axis of its mesh, which does nothing. jax 0.10.2, 0.12.0.1."""
    return {effect for effect in effects if not isinstance(effect, core.NamedAxisEffect)}


def per_device_spec(aval: core.AbstractValue, mesh: Any, *, check_vma: bool) -> jax.sharding.PartitionSpec:
    """The spec of values, with a dimension or more, that `shard_map`s pass on by device. jax 0.10.2, 0.12.0.1."""
    return aval.nospec(mesh, check_vma, tuple(mesh.axis_names))


def unsharded_aval(
    aval: core.AbstractValue, spec: jax.sharding.PartitionSpec, mesh: Any, *, check_vma: bool
) -> core.AbstractValue:
    """The type of the array that all devices' shards make up. jax 0.10.2, 0.12.0.1."""
    return core.unshard_aval(mesh, check_vma, spec, aval)


def is_specified_sharding(sharding: object) -> bool:
    """True if a nested jit asks for a sharding, rather than leaving it open. jax 0.10.2, 0.12.0.1."""
    return sharding is not None and not isinstance(sharding, UnspecifiedValue)


def common_names(first: NameStack, second: NameStack) -> int:
    """The number of outer entries that two name stacks have in common. jax 0.10.2, 0.12.0.1."""
    pairs = zip(first.stack, second.stack, strict=False)
    return next((i for i, (one, other) in enumerate(pairs) if one != other), min(len(first.stack), len(second.stack)))


def stacked_aval(length: int, aval: core.AbstractValue) -> core.AbstractValue:
    """The type of a value that a scan of this length stacks. jax 0.10.2, 0.12.0.1."""
    if hasattr(core, "unmapped_leading_aval"):
        return core.unmapped_leading_aval(length, aval)
    return core.unmapped_aval(length, 0, aval)


def is_high(eqn: jax.extend.core.JaxprEqn) -> bool:
    """True for an equation that `jax.jit` replaces before it lowers a jaxpr, if the jaxpr around says that it has one.

    Example: the linear map that `jax.lax.custom_root` hands to a solver, in the body of the solver's loop.
    """
    return bool(eqn.primitive.is_high(*(atom.aval for atom in eqn.invars), **eqn.params))


def scan_params(params: Any, jaxpr: Any, constants: int, carried: int, sliced: int, stacked: int) -> dict[str, Any]:
    """A scan's parameters with another body and other numbers of operands and results. jax 0.10.2, 0.12.0.1."""
    if "ft_in" not in params:
        return dict(params, jaxpr=jaxpr, num_consts=constants, num_carry=carried)
    from jax._src import flattree  # 0.12

    nones = flattree.nones
    return dict(
        params,
        jaxpr=jaxpr,
        ft_in=flattree.pack((nones(constants), nones(carried), nones(sliced))),
        ft_out=flattree.pack((nones(carried), nones(stacked))),
    )


def propagated_splits(
    lowered: jax.stages.Lowered, arguments: int, results: int
) -> tuple[list[tuple[tuple[str, ...], ...]], list[tuple[tuple[str, ...], ...]]]:
    """Shardy's shardings of a lowered function's last arguments and results: axes by dimension. jax 0.10.2, 0.12.0.1.

    Part of an axis is written "axis/4". () means replicated.
    """
    from jaxlib.mlir import ir, passmanager  # slow to import, and only meshes need it
    from jaxlib.mlir.dialects import sdy

    def axis(attribute: Any) -> str:
        reference = sdy.AxisRefAttr(attribute)
        part = reference.sub_axis_info
        return reference.name if part is None else f"{reference.name}/{sdy.SubAxisInfoAttr(part).size}"

    def split(attributes: Any) -> tuple[tuple[str, ...], ...]:
        named = ir.DictAttr(attributes)
        if "sdy.sharding" not in named:
            return ()
        dimensions = sdy.TensorShardingAttr(named["sdy.sharding"]).dimension_shardings
        found = tuple(tuple(map(axis, sdy.DimensionShardingAttr(each).axes)) for each in dimensions)
        return found if any(found) else ()

    module: Any = lowered.compiler_ir("stablehlo")
    with module.context:
        passmanager.PassManager.parse("builtin.module(sdy-propagation-pipeline)").run(module.operation)
        main = _main_function(module)
        of_arguments, of_results = (list(map(split, main.attributes[f"{kind}_attrs"])) for kind in ("arg", "res"))
    return of_arguments[len(of_arguments) - arguments :], of_results[len(of_results) - results :]


def lowered_argument_shardings(context: Any, operands: Sequence[Any]) -> tuple[jax.sharding.NamedSharding | None, ...]:
    """Shardings of the operands of a lowering rule that are arguments of the lowered function, else None.

    They are those of the caller's arrays or of `in_shardings`, over a mesh without devices. A function that a jit
    within a jit becomes has none; there the types say which mesh there is, and values count as replicated.
    jax 0.10.2, 0.12.0.1.
    """
    shapes = (aval.shape for aval in context.avals_in)
    found = tuple(_argument_sharding(operand, len(shape)) for operand, shape in zip(operands, shapes, strict=True))
    meshes = (getattr(getattr(aval, "sharding", None), "mesh", None) for aval in context.avals_in)
    mesh = next((mesh for mesh in meshes if mesh is not None and not mesh.empty), None)
    if any(found) or mesh is None:
        return found
    return (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()),) * len(found)


def _argument_sharding(operand: Any, dimensions: int) -> jax.sharding.NamedSharding | None:
    """The sharding of an argument's first dimensions: random keys are lowered with dimensions of their own."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    if not isinstance(operand, ir.BlockArgument):
        return None
    of_function = operand.owner.owner.attributes
    named = of_function["arg_attrs"][operand.arg_number] if "arg_attrs" in of_function else {}
    if "sdy.sharding" not in named:
        return None
    sharding = sdy.TensorShardingAttr(named["sdy.sharding"])
    axes = list(map(sdy.MeshAxisAttr, sdy.MeshAttr(sharding.mesh_or_ref).axes))
    sizes, names = tuple(axis.size for axis in axes), tuple(axis.name for axis in axes)
    mesh = jax.sharding.AbstractMesh(sizes, names, axis_types=(jax.sharding.AxisType.Auto,) * len(axes))
    of_dimensions = map(sdy.DimensionShardingAttr, list(sharding.dimension_shardings)[:dimensions])
    spec = (tuple(sdy.AxisRefAttr(axis).name for axis in each.axes) for each in of_dimensions)
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))


def register_step_lowering(primitive: jax.extend.core.Primitive, rule: Callable[..., Callable[..., Any]]) -> None:
    """Lowers a primitive as the function that `rule` makes of its operands' shardings. jax 0.10.2, 0.12.0.1.

    Rules are called once for each equation: by default jax lowers equal equations as one function, whose arguments
    have no shardings.
    """
    from jax.interpreters import mlir

    def lowered(context: Any, *operands: Any, **params: Any) -> Any:
        function = rule(lowered_argument_shardings(context, operands), **params)
        return mlir.lower_fun(function, multiple_results=True)(context, *operands)

    mlir.register_lowering(primitive, lowered, cacheable=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedRun:
    """This process among those of `jax.distributed`, and the key-value store that they share."""

    index: int
    count: int
    client: Any

    def write(self, key: str, text: str) -> None:
        """Puts a text into the store; a key is written once."""
        self.client.key_value_set(key, text)

    def read(self, key: str, *, patience_s: float) -> str | None:
        """The text of a key, as soon as a process writes it; None if none does in time."""
        try:
            return str(self.client.blocking_key_value_get(key, int(1000 * patience_s)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise


def distributed_run() -> DistributedRun | None:
    """The run that `jax.distributed.initialize` has joined; None for a single process. jax 0.10.2, 0.12.0.1."""
    state = distributed.global_state
    if state.client is None or state.num_processes < 2:
        return None
    return DistributedRun(index=state.process_id, count=state.num_processes, client=state.client)


### Operands of scans. Callers: jaxckpt.trace, jaxckpt.verifier. Canaries: tests/verifier/test_interpret.py.


def scan_operands(params: Any, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """A scan's operands as constants, carry, and arrays that it slices. jax 0.10.2, 0.12.0.1."""
    if "ft_in" in params:  # 0.12
        constants, carry, stacked = params["ft_in"].update(operands).unpack()
        return list(constants), list(carry), list(stacked)
    constants_end = params["num_consts"]
    carry_end = constants_end + params["num_carry"]
    return list(operands[:constants_end]), list(operands[constants_end:carry_end]), list(operands[carry_end:])


def gradient_of_max_pooling(params: Any, cotangent: jax.Array, pooled: jax.Array, zero: jax.Array) -> jax.Array:
    """The result of `select_and_scatter_add` of some parameters, with a zero of one's own. jax 0.10.2, 0.12.0.1."""
    return windowed_reductions._select_and_scatter(
        pooled,
        params["select_prim"].bind,
        params["window_dimensions"],
        params["window_strides"],
        params["padding"],
        cotangent,
        zero,
        jax.lax.add,
    )


### Jits of other libraries. Caller: jaxckpt.calling. Canaries: tests/calling/test_wrappers.py.


@dataclass(frozen=True, slots=True, kw_only=True)
class NnxJit:
    """The function under `flax.nnx.jit`; `bound` are the variables of `nnx.jit_partial`."""

    function: Callable[..., Any]
    bound: tuple[Any, ...]
    options: JitOptions
    has_shardings: bool


def nnx_jit(step: Any) -> NnxJit | None:
    """The parts of a function under `flax.nnx.jit`; None for anything else. flax 0.12.8, 0.12.12."""
    if not type(step).__module__.startswith("flax.nnx.transforms") or not hasattr(step, "jitted_fn"):
        return None
    options = jit_options(step.jitted_fn) or JitOptions()
    bound = getattr(step, "partial_args", ())
    return NnxJit(
        function=step.fun,
        bound=(bound,) if isinstance(bound, list) else tuple(bound),
        options=options,
        has_shardings=step.in_shardings is not None or step.out_shardings is not None,
    )


def nnx_cached_partial(step: Any) -> functools.partial[Any] | None:
    """A function of `flax.nnx.cached_partial` as a plain partial; None for anything else. flax 0.12.8, 0.12.12."""
    is_cached = getattr(getattr(step, "__code__", None), "co_name", "") == "cache_args_wrapper"
    if not is_cached or step.__globals__["__name__"] != "flax.nnx.graphlib":
        return None
    closed_over = inspect.getclosurevars(step).nonlocals
    return functools.partial(closed_over["f"], *closed_over["cached_args"])


@dataclass(frozen=True, slots=True, kw_only=True)
class EquinoxJit:
    """The function under `equinox.filter_jit`, and which of its arguments are donated."""

    function: Callable[..., Any]
    donates_first: bool
    donates_rest: bool


def equinox_jit(step: Any) -> EquinoxJit | None:
    """The parts of a function under `equinox.filter_jit`; None for anything else. equinox 0.13.8."""
    if type(step).__module__ != "equinox._jit" or not hasattr(step, "donate_first"):
        return None
    return EquinoxJit(function=step.__wrapped__, donates_first=step.donate_first, donates_rest=step.donate_rest)


### Work outside of a trace. Caller: jaxckpt.planner.planned_step. Canary: tests/planner/test_planned_step.py.

_Result = TypeVar("_Result")


def is_differentiated() -> bool:
    """True if the code that runs is being differentiated, in however many traces. jax 0.10.2, 0.12.0.1.

    A jitted function inside a gradient is traced within the trace of the gradient; if it was traced before, its code
    does not run.
    """
    trace: Any = core.trace_ctx.trace
    while trace is not None:
        if type(trace).__name__ in ("JVPTrace", "LinearizeTrace"):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


def outside_of_traces(work: Callable[[], _Result]) -> _Result:
    """Does work as if no trace were under way, with the mesh of the context. jax 0.10.2, 0.12.0.1.

    Traces belong to a thread, and so a thread of its own does the work where one is under way.
    """
    if core.trace_state_clean():
        return work()
    mesh = sharding_impls.get_concrete_mesh()

    def within_mesh() -> _Result:
        with nullcontext() if mesh.empty else jax.set_mesh(mesh):
            return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(within_mesh).result()
