"""Lowers a step over flat arrays, compiles it for a target and reads its memory figures: the proof of a plan.

The arrays are flat because jax rebuilds a step's pytrees with placeholders when it lowers them, and classes that check
their leaves crash then. Nothing runs. `Compilation` keeps the executable for other readers.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxckpt import _compat
from jaxckpt._errors import TargetError
from jaxckpt.compiler.compile_options import quick_options
from jaxckpt.compiler.dump_folder import dump_options, dumped_program
from jaxckpt.compiler.failures import compile_error, no_figures_error
from jaxckpt.compiler.footprint import Footprint
from jaxckpt.compiler.hlo_constants import chooses_convolutions, constant_bytes
from jaxckpt.compiler.placement import mesh_of_target, place, place_sharding, place_with_meshes
from jaxckpt.compiler.xla_remat import audit
from jaxckpt.hlo import MemoryMap, Use, memory_from_hlo, reconcile, step_s
from jaxckpt.machine import Target

CPU_CAVEATS = (
    "XLA's CPU backend undoes rematerialisation: these figures do not verify a plan.",
    "XLA's CPU backend leaves temporaries out of its reported peak.",
)
CONVOLUTION_CAVEAT = "cuDNN's convolutions were chosen without the device: their workspaces are counted as 0 bytes."
HOST_ARGUMENT_CAVEAT = (
    "Arguments in host memory are counted as device memory: compile-only devices have no memory kinds in jax."
)
UNUSED_CAVEAT = "Arguments that the step never reads are not counted; see unused_argument_bytes."

_HOST_KINDS = ("pinned_host", "unpinned_host")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """A compiled step and its memory figures.

    Attributes:
      executable: jax's compiled step over flat arrays, for readers of its HLO; on compile-only targets it cannot
        be called.
      program: A serialised `HloProto` with schedule and buffer assignment, in the form that XProf's memory viewer
        opens as `*.hlo.pb`; None where the compiler wrote none.
    """

    footprint: Footprint
    executable: jax.stages.Compiled
    program: bytes | None = None


def compile_flat(
    function: Callable[..., Sequence[Any]],
    specs: Sequence[jax.ShapeDtypeStruct],
    *,
    target: Target,
    donated: frozenset[int] = frozenset(),
    compiler_options: Sequence[tuple[str, Any]] = (),
    out_shardings: Sequence[jax.sharding.Sharding | None] | None = None,
    name: str | None = None,
    argument_paths: Sequence[str] = (),
) -> Compilation:
    """Compiles a function of flat arrays for a target and reads its memory figures.

    Shardings on other devices are moved to the target; `donated` are indices of arguments whose memory the step may
    reuse. `out_shardings` has one for each result, None where the compiler may choose. `argument_paths` says where each
    argument stands among the step's.

    Raises:
      CompileError: Lowering or compiling failed, or the compiler gave no figures. `resource_exhausted` tells
        whether memory was what lacked.
      TargetError: A sharding does not fit the target.
    """
    called = str(name or getattr(function, "__name__", "step"))
    started_s = time.perf_counter()
    placed = place(specs, target)
    jitted = _jit_flat(function, target, donated, out_shardings, called)
    temporary = tempfile.TemporaryDirectory(prefix="jaxckpt-", ignore_cleanup_errors=True)
    with mesh_of_target(target), temporary as folder, quick_options(target) as quick:
        options = dict(dump_options(folder)) | quick | dict(compiler_options)
        traced, executable = _traced_and_compiled(jitted, specs, options, name=called, target=target)
        compile_s = time.perf_counter() - started_s
        program = dumped_program(folder)
    is_read = _compat.read_arguments(traced)  # jit drops those that nobody reads
    memory, problems, seconds = None, (), 0.0
    figures = _reported_figures(executable)
    if not any(figures.values()) and any(leaf.size for leaf in jax.tree.leaves(traced.out_info)):
        raise no_figures_error(name=called, target=target)
    if program is not None:
        paths = itertools.compress(argument_paths, is_read)
        memory = memory_from_hlo(program, platform=target.platform, argument_paths=tuple(paths))
        problems = (*memory.problems, *reconcile(memory, figures), *audit(memory))
        seconds = step_s(memory, target.rates)
    text = "" if figures["generated_code_bytes"] > 0 else executable.as_text() or ""
    figures["constant_bytes"] = constant_bytes(text)
    unused = (spec for spec, read in zip(placed, is_read, strict=True) if not read)
    figures["unused_argument_bytes"] = sum(map(_bytes_per_device, unused))
    footprint = Footprint(
        **figures,
        target=target.name,
        compile_s=compile_s,
        jax_version=jax.__version__,
        plugin_version=target.compiler_version,
        compiler_options=tuple(compiler_options),
        caveats=(*_caveats(text, target, specs, figures), *problems),
        undonated=tuple(_undonated(memory, argument_paths, donated)),
        step_s=seconds,
        memory=memory,
    )
    return Compilation(footprint=footprint, executable=executable, program=program)


def _jit_flat(
    function: Callable[..., Sequence[Any]],
    target: Target,
    donated: frozenset[int],
    out_shardings: Sequence[jax.sharding.Sharding | None] | None,
    name: str,
) -> jax.stages.Wrapped:
    def flat_step(*leaves):
        return tuple(function(*leaves))

    flat_step.__name__ = flat_step.__qualname__ = name  # XLA names the program after it
    options: dict[str, Any] = {"donate_argnums": tuple(sorted(donated))}
    if out_shardings is not None and any(sharding is not None for sharding in out_shardings):
        options["out_shardings"] = tuple(place_sharding(each, target) for each in out_shardings)
    return jax.jit(flat_step, **options)


def _traced_and_compiled(
    jitted: jax.stages.Wrapped,
    specs: Sequence[jax.ShapeDtypeStruct],
    options: dict[str, Any],
    *,
    name: str,
    target: Target,
) -> tuple[jax.stages.Traced, jax.stages.Compiled]:
    try:
        placed = place(specs, target)
        traced = jitted.trace(*placed)
        own = place_with_meshes(specs, target, traced.jaxpr)
        if own != placed:
            traced = jitted.trace(*own)
        return traced, traced.lower().compile(compiler_options=options)
    except (Warning, TargetError):  # a warning that the caller made an error is theirs
        raise
    except Exception as error:
        raise compile_error(error, name=name, target=target) from error


def _reported_figures(executable: jax.stages.Compiled) -> dict[str, int]:
    """XLA's memory statistics under our names."""
    statistics = executable.memory_analysis()
    figures = {
        f"{space}{kind}_bytes": getattr(statistics, f"{space}{kind}_size_in_bytes", 0)
        for space in ("", "host_")
        for kind in ("argument", "output", "alias", "temp")
    }
    code_bytes = getattr(statistics, "generated_code_size_in_bytes", 0)
    figures["generated_code_bytes"] = max(code_bytes, 0)  # XLA says -1 where it does not know
    figures["reported_peak_bytes"] = getattr(statistics, "peak_memory_in_bytes", 0)
    return figures


def _caveats(
    text: str, target: Target, specs: Sequence[jax.ShapeDtypeStruct], figures: dict[str, int]
) -> tuple[str, ...]:
    on_host = any(getattr(spec.sharding, "memory_kind", None) in _HOST_KINDS for spec in specs)
    guessed = target.platform == "cuda" and target.compile_only and chooses_convolutions(text)
    return (
        *(CPU_CAVEATS if target.platform == "cpu" else ()),
        *((CONVOLUTION_CAVEAT,) if guessed else ()),
        *((HOST_ARGUMENT_CAVEAT,) if on_host and not figures["host_argument_bytes"] else ()),
        *((UNUSED_CAVEAT,) if figures["unused_argument_bytes"] else ()),
    )


def _undonated(memory: MemoryMap | None, paths: Sequence[str], donated: frozenset[int]) -> Iterator[tuple[str, int]]:
    """Arguments that could have been taken over by a result, and were not; largest first."""
    if memory is None:
        return
    asked = {path for i, path in enumerate(paths) if i in donated}
    for buffer in sorted(memory.buffers, key=lambda b: -b.size_bytes):
        allocation = memory.by_index[buffer.allocation]
        if allocation.use is Use.ARGUMENT and not allocation.donated and buffer.name in asked:
            yield buffer.name, buffer.size_bytes


def _bytes_per_device(spec: jax.ShapeDtypeStruct) -> int:
    shape = spec.shape if spec.sharding is None else spec.sharding.shard_shape(spec.shape)
    part = jax.ShapeDtypeStruct(shape, spec.dtype)
    if jax.numpy.issubdtype(spec.dtype, jax.dtypes.prng_key):
        part = jax.eval_shape(jax.random.key_data, part)
    return part.size * part.dtype.itemsize
