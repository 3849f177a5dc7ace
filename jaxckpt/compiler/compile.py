"""Lowers a step over flat arrays, compiles it for a target and reads its memory figures: the proof of a plan.

The arrays are flat because jax rebuilds a step's pytrees with placeholders when it lowers them, and classes that check
their leaves crash then. Nothing runs. `Compilation` keeps the executable for other readers.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxckpt import _compat
from jaxckpt._errors import JaxckptError
from jaxckpt.compiler.caveats import audit, caveats_of, constant_bytes
from jaxckpt.compiler.compile_options import (
    AUTOTUNER,
    dump_options,
    dumped_program,
    is_gpu_without_device,
    lacks_kernels,
    quick_options,
    require_autotuner,
)
from jaxckpt.compiler.failures import compile_error, no_figures_error
from jaxckpt.compiler.footprint_data import Footprint
from jaxckpt.compiler.placement import memory_kind, mesh_of_target, place, place_sharding, target_mesh_of_step
from jaxckpt.compiler.product_kernels import choose_products, product_options
from jaxckpt.hlo import MemoryMap, Use, memory_from_hlo, parse_hlo, reconcile, spanning_collectives, stall_s, step_s
from jaxckpt.hlo.program import HloProgram
from jaxckpt.machine import Target


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredStep:
    """A step over flat arrays, lowered for a target; other threads may compile it.

    Attributes:
      traced: As jax traced it.
      lowered: As jax lowered it.
      lower_s: Seconds that both took.
      placed: The arguments on the target.
      donated: Indices of arguments whose memory the step may reuse.
    """

    name: str
    target: Target
    traced: jax.stages.Traced
    lowered: jax.stages.Lowered
    lower_s: float
    placed: tuple[jax.ShapeDtypeStruct, ...]
    donated: frozenset[int]
    compiler_options: tuple[tuple[str, Any], ...]
    argument_paths: tuple[str, ...]

    def compile(self) -> Compilation:
        """Compiles, and reads the memory figures.

        Raises:
          CompileError: Compiling failed, or the compiler gave no figures.
        """
        started_s = time.perf_counter()
        temporary = tempfile.TemporaryDirectory(prefix=f"jaxckpt-{os.getpid()}-", ignore_cleanup_errors=True)
        with temporary as folder, quick_options(self.target, self.name) as quick, _explained(self.name, self.target):
            options, own = quick | dict(product_options(self.target)), dict(self.compiler_options)
            # Choices are read from a dump of ours: a step with a folder of its own is compiled for that afterwards.
            chooses = is_gpu_without_device(self.target)
            first = {name: value for name, value in own.items() if not (chooses and name.startswith("xla_dump_"))}
            dump = f"{folder}/first"
            executable = self._executable(options | dict(dump_options(dump)), first)
            if choose_products(dump, self.target) or first != own:
                dump = f"{folder}/second"
                executable = self._executable(options | dict(dump_options(dump)), own)
            compile_s = self.lower_s + time.perf_counter() - started_s
            program = dumped_program(dump)
        return Compilation(
            footprint=self._footprint(executable, program, compile_s), executable=executable, program=program
        )

    def _executable(self, options: dict[str, Any], own: dict[str, Any]) -> jax.stages.Compiled:
        """The step compiled with options, overridden by its own; with the autotuner where a kernel asks for it."""
        try:
            return self.lowered.compile(compiler_options=options | own)
        except jax.errors.JaxRuntimeError as error:
            if AUTOTUNER not in options or not lacks_kernels(str(error)):
                raise
        require_autotuner(self.target, self.name)
        del options[AUTOTUNER]
        return self.lowered.compile(compiler_options=options | own)

    def _footprint(self, executable: jax.stages.Compiled, program: bytes | None, compile_s: float) -> Footprint:
        target, is_read = self.target, _compat.read_arguments(self.traced)  # jit drops those that nobody reads
        memory, seconds, waits_s = None, 0.0, 0.0
        problems: tuple[str, ...] = ()
        undonated: tuple[tuple[str, int], ...] = ()
        figures = _reported_figures(executable)
        if not any(figures.values()) and any(leaf.size for leaf in jax.tree.leaves(self.traced.out_info)):
            raise no_figures_error(name=self.name, target=target)
        if program is not None:
            paths = itertools.compress(self.argument_paths, is_read)
            memory = memory_from_hlo(program, platform=target.platform, argument_paths=tuple(paths))
            if devices_per_host := target.rates.devices_per_host:
                module = HloProgram(parse_hlo(program).hlo_module)
                spanning = spanning_collectives(module, executable.as_text() or "", devices_per_host)
                memory = replace(memory, spanning=tuple(spanning))
            problems = (*memory.problems, *reconcile(memory, figures), *audit(memory))
            seconds, waits_s = step_s(memory, target.rates), stall_s(memory, target.rates)
            undonated = tuple(_undonated(memory, self.argument_paths, self.donated))
        text = "" if figures["generated_code_bytes"] > 0 else executable.as_text() or ""
        figures["constant_bytes"] = constant_bytes(text)
        unused = (spec for spec, read in zip(self.placed, is_read, strict=True) if not read)
        figures["unused_argument_bytes"] = sum(map(_bytes_per_device, unused))
        return Footprint(
            **figures,
            target=target.name,
            compile_s=compile_s,
            jax_version=jax.__version__,
            plugin_version=target.compiler_version,
            compiler_options=self.compiler_options,
            caveats=(*caveats_of(text, target, figures), *problems),
            undonated=undonated,
            step_s=seconds,
            stall_s=waits_s,
            memory=memory,
        )


def lower_flat(
    function: Callable[..., Sequence[Any]],
    specs: Sequence[jax.ShapeDtypeStruct],
    *,
    target: Target,
    donated: frozenset[int] = frozenset(),
    compiler_options: Sequence[tuple[str, Any]] = (),
    out_shardings: Sequence[jax.sharding.Sharding | None] | None = None,
    name: str | None = None,
    argument_paths: Sequence[str] = (),
) -> LoweredStep:
    """Lowers a function of flat arrays for a target.

    Shardings on other devices are moved to the target; `donated` are indices of arguments whose memory the step may
    reuse. `out_shardings` has one for each result, None where the compiler may choose. `argument_paths` says where each
    argument stands among the step's.

    Raises:
      CompileError: Lowering failed.
      TargetError: A sharding does not fit the target.
    """
    called = str(name or getattr(function, "__name__", "step"))
    started_s = time.perf_counter()
    with mesh_of_target(target), _explained(called, target):
        placed = place(specs, target)
        kinds = [memory_kind(spec.sharding) if target.compile_only else None for spec in specs]
        jitted = _jit_flat(_in_memories(function, kinds), target, donated, out_shardings, called)
        traced = jitted.trace(*placed)
        on_own_mesh = place(specs, target, own=target_mesh_of_step(traced.jaxpr, target))
        if on_own_mesh != placed:
            placed, traced = on_own_mesh, jitted.trace(*on_own_mesh)
        lowered = traced.lower()
        if any(kinds):
            _compat.set_argument_memories(lowered, list(itertools.compress(kinds, _compat.read_arguments(traced))))
    return LoweredStep(
        name=called,
        target=target,
        traced=traced,
        lowered=lowered,
        lower_s=time.perf_counter() - started_s,
        placed=placed,
        donated=donated,
        compiler_options=tuple(compiler_options),
        argument_paths=tuple(argument_paths),
    )


def _in_memories(function: Callable[..., Sequence[Any]], kinds: Sequence[str | None]) -> Callable[..., Sequence[Any]]:
    """The function for arguments in memories of these kinds; None stands for the device's own.

    jax drops the kind from shardings over devices that know no memories. The types of arguments would not say that they
    are on the host, and jax would leave out the copies from there.
    """
    if not any(kinds):
        return function

    def on_host(leaf: Any, kind: str | None) -> Any:
        return leaf if kind is None else jax.device_put(leaf, jax.memory.Space.Host)

    return lambda *leaves: function(*map(on_host, leaves, kinds))


def _jit_flat(
    function: Callable[..., Sequence[Any]],
    target: Target,
    donated: frozenset[int],
    out_shardings: Sequence[jax.sharding.Sharding | None] | None,
    name: str,
) -> jax.stages.Wrapped:
    def flat_step(*leaves: Any) -> tuple[Any, ...]:
        return tuple(function(*leaves))

    flat_step.__name__ = flat_step.__qualname__ = name  # XLA names the program after it
    options: dict[str, Any] = {"donate_argnums": tuple(sorted(donated))}
    if out_shardings is not None and any(sharding is not None for sharding in out_shardings):
        options["out_shardings"] = tuple(place_sharding(each, target) for each in out_shardings)
    return jax.jit(flat_step, **options)


@contextmanager
def _explained(name: str, target: Target) -> Iterator[None]:
    """Raises errors of jax and XLA as `CompileError`s; warnings made errors and our own errors are left alone."""
    try:
        yield
    except (Warning, JaxckptError):
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


def _undonated(memory: MemoryMap, paths: Sequence[str], donated: frozenset[int]) -> Iterator[tuple[str, int]]:
    """Arguments that could have been taken over by a result, and were not; largest first."""
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
