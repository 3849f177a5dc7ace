"""Which matrix products the autotuner of a device gave to cuBLAS, beside the rule that stands for it without a device.

    python -m benchmarks.attached.products FOLDER   # of the logs, STEP/VERSION.txt, that a run kept: files/autotuned

The logs name products by XLA's names. The steps are compiled without the device, where the products have the same
names, and their work is read from the module before kernels are chosen.
"""

import argparse
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from benchmarks.attached.planning import named
from benchmarks.attached.questions import group, is_marked
from benchmarks.record import RESULTS, made_with
from jaxckpt import Target
from jaxckpt.compiler import compile_step
from jaxckpt.compiler.compile_options import dump_options
from jaxckpt.compiler.product_kernels import FusedProduct, fused_products

OUT = RESULTS / "attached" / "products.json"
_KINDS = {"TRITON": "fused", "CUBLASLT_FISSION": "library", "CUBLAS_FISSION": "library"}
_PRODUCT = re.compile(r'hlo_text: "%(gemm_fusion[\w.-]*) ')
_TIME = re.compile(r"run_time \{\s*(?:seconds: (\d+)\s*)?(?:nanos: (\d+))?")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attached.products")
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    rows = [row for log in sorted(folder.glob("*/*.txt")) for row in rows_of(log)]
    OUT.write_text(json.dumps({"made_with": made_with(), "products": rows}, indent=1) + "\n")
    print(f"kept {len(rows)} products in {OUT}")


def rows_of(log: Path) -> Iterator[dict[str, Any]]:
    """The products of one version of a step, each with its work, the rule's choice, and the seconds by kernel."""
    step, version = log.parent.name, log.stem
    if not is_marked(version):
        return
    work = works(step, version)
    for name, seconds in tried(log.read_text()):
        if name in work and seconds:
            yield {"step": step, "version": version, **work[name], "seconds": seconds}
    jax.clear_caches()


def tried(text: str) -> Iterator[tuple[str, Mapping[str, float]]]:
    """The names of products in a log, and the fewest seconds that each kind of kernel took."""
    for profile in re.split(r"(?m)^instruction_profiles \{", text)[1:]:
        product = _PRODUCT.search(profile)
        if product is None:
            continue
        best: dict[str, float] = {}
        for config in profile.split("config_profiles {")[1:]:
            kind, time = re.search(r"backend: (\w+)", config), _TIME.search(config)
            if kind and time and kind[1] in _KINDS:
                seconds = int(time[1] or 0) + 1e-9 * int(time[2] or 0)
                best[_KINDS[kind[1]]] = min(seconds, best.get(_KINDS[kind[1]], seconds))
        yield product[1], best


def works(step: str, version: str) -> Mapping[str, dict[str, Any]]:
    """The work of a step's products by XLA's name, compiled without the device."""
    target, asked = Target("h200"), group(step, small=False, whole=True)
    made = asked.step(version)
    with tempfile.TemporaryDirectory() as folder, named(version):
        options = dump_options(folder)
        compile_step(made.step, *made.args, target=target, donate_argnums=made.donate_argnums, compiler_options=options)
        return {product.name: described(product, target) for product in fused_products(Path(folder))}


def described(product: FusedProduct, target: Target) -> dict[str, Any]:
    """A product's work, the ops that were fused with it, and the rule's choice."""
    work = (product.work.matmul_flops, product.work.matmul_dtype, product.work.traffic_bytes)
    return {
        **dict(zip(("flops", "dtype", "traffic_bytes"), work, strict=True)),
        "fused": sorted(product.fused),
        "waits_for": "arithmetic" if target.rates.is_library_product(*work) else "memory",
        "rule": "library" if product.is_library_product(target.rates) else "fused",
    }


if __name__ == "__main__":
    main()
