"""The notebooks of `notebooks/`, executed; `python -m benchmarks.notebooks [NAMES]` writes their outputs.

Each runs in a fresh kernel of this interpreter, in an empty folder, with warnings as errors. Outputs are kept so that
a reader of the files sees them; they hold no times, and the versions that made them stand in the notebook's metadata.
"""

import importlib.metadata
import os
import platform
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
_PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin")
_KERNEL = {"display_name": "Python 3", "language": "python"}
_CELL_TIMEOUT_S = 3600
"""For a machine that other programs use."""
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]
"""Address of the repository, from which a hosted notebook service fetches."""
HOSTED = REPOSITORY.replace("https://github.com", "https://colab.research.google.com/github") + "/blob/main/notebooks"
"""Address at which the hosted service opens the folder's notebooks."""
_BADGE = "https://colab.research.google.com/assets/colab-badge.svg"


class _ThisInterpreter(AsyncKernelManager):
    """Starts kernels of the interpreter that asks, whatever else is called python3."""

    @property
    def kernel_spec(self) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=[*command, "--HistoryManager.enabled=False"], **_KERNEL)


class _StrictClient(NotebookClient):
    """Makes errors of the warnings of cells; the kernel warns of itself between them."""

    async def async_start_new_kernel_client(self) -> Any:
        client = await super().async_start_new_kernel_client()
        client.execute(_STRICT, silent=True, store_history=False)
        return client


_STRICT = """
def _strict(shell, warnings):
    shell.events.register("pre_run_cell", lambda info: warnings.simplefilter("error"))
    shell.events.register("post_run_cell", lambda result: warnings.resetwarnings())

_strict(get_ipython(), __import__("warnings"))
"""


def main(names: list[str]) -> None:
    for path in notebooks():
        if not names or path.stem in names:
            write(path)


def notebooks() -> list[Path]:
    """All of them, in reading order."""
    return sorted(FOLDER.glob("*.ipynb"))


def badge(path: Path) -> str:
    """A picture in Markdown that opens a notebook in a hosted service."""
    return f"[![Open in Colab]({_BADGE})]({HOSTED}/{path.name})"


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def write(path: Path) -> None:
    """Executes a notebook and keeps its outputs."""
    executed = execute(read(path))
    executed.metadata["made_with"] = made_with()
    path.write_text(nbformat.writes(executed) + "\n")
    print(f"wrote {path}")


def execute(notebook: Any) -> Any:
    """Runs a notebook's cells in order.

    Raises:
      nbclient.exceptions.CellExecutionError: A cell raised or warned.
    """
    notebook = nbformat.from_dict(notebook)
    with tempfile.TemporaryDirectory() as folder:
        client = _StrictClient(
            notebook,
            km=_ThisInterpreter(transport="ipc", connection_file=f"{folder}/kernel.json"),
            resources={"metadata": {"path": folder}},
            timeout=_CELL_TIMEOUT_S,
            record_timing=False,
            coalesce_streams=True,
        )
        client.execute(env=_environment(folder), cleanup_kc=True)
    notebook.metadata = {"kernelspec": {**_KERNEL, "name": "python3"}, "language_info": {"name": "python"}}
    return notebook


def made_with() -> dict[str, str]:
    """Versions that the figures in the outputs depend on."""
    versions = {package: importlib.metadata.version(package) for package in _PACKAGES}
    return {"python": platform.python_version(), **versions}


def _environment(folder: str) -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "JAX_PLATFORMS": "cpu",
        **os.environ,
        "IPYTHONDIR": folder,
        "MPLCONFIGDIR": folder,
        "PYTHONPATH": os.pathsep.join(paths),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
