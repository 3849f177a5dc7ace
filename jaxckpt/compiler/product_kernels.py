"""The kernels of matrix products, as a device's autotuner would choose them, told to a compiler without a device.

On an NVIDIA GPU XLA fuses each matrix product with the elementwise ops around it into one Triton kernel. The autotuner
then times this kernel against cuBLAS, where the elementwise ops have kernels of their own and their results are in
memory. Without a device every product keeps its Triton kernel, so that a step may take more memory on the device than
was compiled for it.

The rule (`FusedProduct.is_library_product`): a product goes to cuBLAS if its arithmetic takes longer than its memory
traffic, or if nothing is fused with it but a bias of its result, which cuBLAS adds (docs/measured.md). Then it must not
transpose large operands either: cuBLAS reads them once a kernel of their own has copied them.

XLA looks for earlier choices in a folder (`xla_gpu_per_fusion_autotune_cache_dir`) that has a file for each product.
The file's name is a hash of the device, of the product as text, and of a version number that no header says. XLA adds
the number to choices that it loads from a file, once in a process, and writes all that it loaded into each dump: there
it is read. A step whose dump shows products that cuBLAS should have, but has not, is compiled again. Plans of a step
have the same products, so that most compile once.

Read after `compile_options`. Source: xla/service/gpu/autotuning/autotune_cache_key.cc, autotuner_cache.cc.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jaxckpt import _compat
from jaxckpt._files import write_atomically
from jaxckpt.compiler.compile_options import is_gpu_without_device, kernels_folder
from jaxckpt.cost import Rates
from jaxckpt.hlo.instruction_cost import with_cost
from jaxckpt.hlo.memory import Kernel
from jaxckpt.hlo.program import HloProgram
from jaxckpt.hlo.schema import Computation, Hlo, HloModule, shape_bytes
from jaxckpt.machine import GpuFacts, Target, autotuner_device_name, rates_from_facts

_FOLDER = "xla_gpu_per_fusion_autotune_cache_dir"
_LOADED = "xla_gpu_load_autotune_results_from"
_NEW_FORM = "xla_gpu_use_new_autotune_cache_format"
"""A form with other hashes, which jax 0.12.0.1 has and uses unless told otherwise; jax 0.10.2 has none."""
_MODULES = ("*.after_autotuner.*.hlo.pb", "*.before_config_assignment.hlo.pb")
"""Dumps of the module with its products fused: jax 0.10.2 where it is asked for, 0.12.0.1 always."""
_RESULTS = "*autotune_results.pbtxt"
_NO_ARITHMETIC = frozenset({"parameter", "constant", "bitcast", "reshape", "transpose", "broadcast", "dot"})
_BIAS = frozenset({"add"})
"""Opcodes that need no kernel beside cuBLAS's."""
_COPIED_SHARE = 0.25
"""Of a product's traffic, the traffic of copies up to which cuBLAS takes it.

On an H200 copies of a fifth and less cost cuBLAS little. The product of `llama` whose traffic is nearly all an operand
to transpose took 833 us with cuBLAS, the same product without the transposition 265, and Triton's kernel 256
(benchmarks/results/attached/products.json)."""
_TRITON = b'"__triton_gemm"'
_CUBLAS = "gemm { algorithm: -1 }"
"""A choice: cuBLAS by its own heuristics."""
_MARK = "jaxckpt"
_VERSION = re.compile(rf'device: "{_MARK}".*?version: (\d+)', re.DOTALL)


def product_options(target: Target) -> tuple[tuple[str, object], ...]:
    """XLA options by which a compile without a device finds the choices; none for a target that chooses by itself."""
    if not is_gpu_without_device(target):
        return ()
    is_new = _compat.cuda_compiler_has_option(_NEW_FORM)
    by_version = (_NEW_FORM, False) if is_new else ("xla_dump_hlo_pass_re", "autotuner")
    return ((_FOLDER, str(kernels_folder())), (_LOADED, str(_marked_file())), by_version)


def choose_products(dump: str | Path, target: Target) -> bool:
    """Writes the choices that a dumped step's products lack; True if there were any, and the step must compile again.

    False also where XLA did not dump what tells how to write them.
    """
    facts, version = target.facts, _version(Path(dump)) if is_gpu_without_device(target) else None
    if version is None or not isinstance(facts, GpuFacts):
        return False
    device, rates = autotuner_device_name(facts), rates_from_facts(target.name, facts)
    products = (product for product in fused_products(Path(dump)) if product.is_library_product(rates))
    files = {kernels_folder() / choice_name(product.text, device, version) for product in products}
    missing = sorted(file for file in files if not file.exists())
    for file in missing:
        write_atomically(file, _CUBLAS.encode())
    return bool(missing)


def choice_name(text: str, device: str, version: int) -> str:
    """The name of the file in which XLA looks for the choice of a product.

    Example:
      >>> choice_name("{ }", "CUDA: 9.0", 45)
      'JhQvN5ctoDaOCpY3V2w37CwO1z1FW-DE8XWT3p-hKzA.textproto'
    """
    key = f"<key model='{device}', hlo='{text}', version={version}>"
    return base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest()).decode().rstrip("=") + ".textproto"


class FusedProduct(NamedTuple):
    """A matrix product with the elementwise ops that XLA fused with it, before its kernel is chosen.

    Attributes:
      name: XLA's, unique in its module.
      work: FLOPs and traffic of the fused kernel.
      computation: The fused instructions.
    """

    name: str
    work: Kernel
    computation: Computation

    @property
    def fused(self) -> frozenset[str]:
        """Opcodes of what is computed beside the product and besides moving values about."""
        return frozenset(instruction.opcode for instruction in self.computation.instructions) - _NO_ARITHMETIC

    def is_library_product(self, rates: Rates) -> bool:
        """True if cuBLAS takes it: for its arithmetic, or as nothing is fused but its bias and small transpositions."""
        work = self.work
        if rates.is_library_product(work.matmul_flops, work.matmul_dtype, work.traffic_bytes):
            return True
        has_copies = 2 * self.transposed_bytes > _COPIED_SHARE * work.traffic_bytes
        return self.fused <= _BIAS and not self.applied and not has_copies

    @property
    def applied(self) -> frozenset[str]:
        """Opcodes of what is computed of the operands, in front of the product: cuBLAS adds a bias to the result."""
        instructions = {each.id: each for each in self.computation.instructions}
        pending = [i for each in instructions.values() if each.opcode == "dot" for i in each.operand_ids]
        seen: set[int] = set()
        while pending:
            if (number := pending.pop()) not in seen:
                seen.add(number)
                pending.extend(instructions[number].operand_ids)
        return frozenset(instructions[number].opcode for number in seen) - _NO_ARITHMETIC

    @property
    def transposed_bytes(self) -> int:
        """Bytes of transposed operands that get another last axis."""
        transposed = (each for each in self.computation.instructions if each.opcode == "transpose")
        return sum(shape_bytes(each.shape) for each in transposed if each.dimensions[-1] != len(each.dimensions) - 1)

    @property
    def text(self) -> str:
        """The fused computation without names, which XLA hashes."""
        computation = self.computation
        module = HloModule(
            name=computation.name,
            computations=[computation],
            entry_computation_id=computation.id,
            host_program_shape=computation.program_shape,
        )
        for instruction in module.computations[0].instructions:
            instruction.ClearField("metadata")  # else XLA warns that it refers to stack frames of another module
        return _compat.canonical_hlo_text(module.SerializeToString())


def fused_products(dump: Path) -> Iterator[FusedProduct]:
    """The products of a dumped step that have Triton kernels, or wait for a choice."""
    for file in (file for pattern in _MODULES for file in dump.glob(pattern)):
        program = HloProgram(Hlo.FromString(file.read_bytes()).hlo_module)
        for instruction in program.instructions.values():
            if instruction.opcode == "fusion" and _TRITON in instruction.backend_config:
                kernel = Kernel(name=instruction.name, opcode=instruction.opcode)
                computation = program.computations[instruction.called_computation_ids[0]]
                yield FusedProduct(instruction.name, with_cost(kernel, program, instruction.id), computation)


@functools.cache
def _marked_file() -> Path:
    """A choice for a device that does not exist: what XLA makes of it shows the version."""
    file = kernels_folder() / "marked.txt"
    file.write_text(f'version: 3\nresults {{ device: "{_MARK}" hlo: "" result {{ {_CUBLAS} }} }}\n')
    return file


def _version(dump: Path) -> int | None:
    """XLA's number for the form of its choices, as a dump shows it; None where the dump does not."""
    found = (_VERSION.search(file.read_text()) for file in dump.glob(_RESULTS))
    return next((int(match[1]) for match in found if match), None)
