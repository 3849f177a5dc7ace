"""Errors of compilers, explained for users without the device.

Each failure has texts of which the compiler's message holds one, a meaning and an advice. The first failure that
matches is taken. The compiler's own exception stays the cause of ours.
"""

import re
from dataclasses import dataclass

from jaxckpt._errors import CompileError
from jaxckpt.machine import Target

# "... HLO temporaries (20.02G) exceeds available HBM (15.75G)"
_EXCEEDED = re.compile(r"\(([0-9.]+)([KMGT])\) exceeds available \w+ \(([0-9.]+)([KMGT])\)")
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFailure:
    """A way in which compiling fails; the message holds one of the signs, and the meaning follows "because"."""

    signs: tuple[str, ...]
    meaning: str
    needed: str
    advice: str


COMPILE_FAILURES = (
    CompileFailure(
        signs=("RESOURCE_EXHAUSTED", "Ran out of memory"),
        meaning="it does not fit",
        needed="a step that the compiler can lay out in the memory of one device",
        advice="jaxckpt.plan(step, ..., budget=...), a smaller batch, or more devices",
    ),
    CompileFailure(
        signs=("Unknown backend", "host_callbacks"),
        meaning="it calls back to Python, which does not compile without the device",
        needed="no jax.debug.print, pure_callback, io_callback or eqx.error_if in the step",
        advice="without prints and debug callbacks, which take no device memory, compile it for any target; a step that"
        ' reads what a callback returns compiles for target="attached"',
    ),
    CompileFailure(
        signs=("No such compile option", "While setting option"),
        meaning="an XLA option is unknown or has a wrong value",
        needed="options of this compiler, each of the right type",
        advice="leave the option out; its name is in the message above",
    ),
    CompileFailure(
        signs=("Received incompatible devices", "incompatible devices for jitted", "context mesh"),
        meaning="the step names devices of its own besides those of the target",
        needed="a mesh of the target, or of devices of its kind, wherever the step names one (with_sharding_constraint,"
        " shard_map, set_mesh)",
        advice="trace the step with the mesh of jaxckpt.Target(...).mesh(shape, axis_names)",
    ),
    CompileFailure(
        signs=("Mesh for all inputs should be equal",),
        meaning="the types of an explicit mesh name other devices than those of the target",
        needed="arguments over a mesh of the target: types over Explicit axes name the kind of device",
        advice="jax.ShapeDtypeStructs with shardings over jaxckpt.Target(...).mesh(shape, axis_names, axis_types=...),"
        " or axes of type Auto",
    ),
    CompileFailure(
        signs=("No supported GPU devices found", "abstract GPU device"),
        meaning="its Pallas kernel asks which GPU is attached",
        needed="a mesh that tells it, set while the step is traced",
        advice='with jax.set_mesh(jaxckpt.Target("h200").mesh((1,), ("device",))): around this call',
    ),
    CompileFailure(
        signs=("No FFI handler registered",),
        meaning="it calls a kernel that was never registered for this platform",
        needed="jax.ffi.register_ffi_target for that kernel and platform",
        advice="import the library that brings the kernel before compiling",
    ),
)
"""All failures that we can explain."""

_UNEXPLAINED = CompileFailure(
    signs=(),
    meaning="the compiler refuses it",
    needed="a step that this compiler takes",
    advice="see the cause below; does jax.jit(step).lower(...).compile() work on the machine itself?",
)


def compile_error(error: Exception, *, name: str, target: Target) -> CompileError:
    """Explains why a step could not be compiled; raise it from the exception of jax or XLA.

    `resource_exhausted` tells whether memory was what lacked; then `needed_bytes` and `available_bytes` hold the
    compiler's figures where it gave them (rounded as it printed them), else None.
    """
    message = str(error)
    failure = failure_of(message)
    needed_bytes, available_bytes = None, None
    if found := _EXCEEDED.search(message):
        needed_bytes = int(float(found[1]) * _BINARY[found[2]])
        available_bytes = int(float(found[3]) * _BINARY[found[4]])
    return CompileError(
        f'step "{name}" cannot be compiled for target "{target.name}": {failure.meaning}.',
        got=message.strip().partition("\n")[0][:400] or type(error).__name__,
        needed=failure.needed,
        advice=failure.advice,
        target=target.name,
        resource_exhausted=failure is COMPILE_FAILURES[0],
        needed_bytes=needed_bytes,
        available_bytes=available_bytes,
    )


def no_figures_error(*, name: str, target: Target) -> CompileError:
    """A compiler that gives no memory figures proves nothing; never read them as zero."""
    return CompileError(
        f'step "{name}" was compiled for target "{target.name}", but its compiler gives no memory figures.',
        got="0 bytes of arguments, outputs and temporaries for a step that has some",
        needed="a compiler that analyses memory",
        advice='another target, such as "h200" or "v5e", or another version of the plugin',
        target=target.name,
        resource_exhausted=False,
        needed_bytes=None,
        available_bytes=None,
    )


def failure_of(message: str) -> CompileFailure:
    """The failure that matches a compiler's message."""
    for failure in COMPILE_FAILURES:
        if any(sign in message for sign in failure.signs):
            return failure
    return _UNEXPLAINED
