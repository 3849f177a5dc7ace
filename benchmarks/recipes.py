"""The recipes of docs/recipes, run; `python -m benchmarks.recipes [NAMES]` keeps their outputs and writes the pages.

Each script is copied into an empty folder and run there. A page holds its script, what the script printed, and the
versions, between marks. Without names, recipes whose libraries are not installed are passed over. `--pages` writes the
pages from the kept outputs and runs nothing.
"""

import ast
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "recipes"
KEPT = RESULTS / "recipes-py312.json"
_COMMANDS = {"plan_in_ci": ("python plan_in_ci.py", "pytest -q plan_in_ci.py", "pytest -q plan_in_ci.py")}
_PATIENCE_S = 3600
"""For a machine that other programs use."""
_NOTICES = re.compile(r"^\[(Gloo|NO-OP)\].*\n", flags=re.MULTILINE)
"""Lines that a page leaves out: Gloo's on connected processes, MaxText's on optional packages."""


def main(words: list[str]) -> None:
    names = [word for word in words if word != "--pages"]
    if "--pages" not in words:
        for name in names or [name for name in recipes() if not missing_packages(name)]:
            keep(name, run(name))
    for name in recipes():
        page = FOLDER / f"{name}.md"
        page.write_text(filled(page.read_text(), name))


def recipes() -> list[str]:
    """Names of all recipes."""
    return sorted(script.stem for script in FOLDER.glob("*.py"))


def script_of(name: str) -> str:
    return (FOLDER / f"{name}.py").read_text()


def imported(name: str) -> list[str]:
    """The packages that a script imports, without those of Python."""
    found = set()
    for node in ast.walk(ast.parse(script_of(name))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return sorted(found - set(sys.stdlib_module_names) - {"jaxckpt"})


def missing_packages(name: str) -> list[str]:
    """The packages that a script imports and this interpreter lacks."""
    return [package for package in imported(name) if importlib.util.find_spec(package) is None]


def run(name: str) -> dict[str, Any]:
    """Runs a recipe at the sizes of its script.

    Raises:
      subprocess.CalledProcessError: The script failed.
    """
    commands = _COMMANDS.get(name, (f"python {name}.py",))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{name}.py").write_text(script_of(name))
        started, used_s = time.monotonic(), _children_s()
        output = [f"$ {command}\n{_printed(command, folder)}" for command in commands]
        wall_s, cpu_s = time.monotonic() - started, _children_s() - used_s
    seconds = {"wall_s": round(wall_s, 1), "cpu_s": round(cpu_s, 1)}
    return {"output": "".join(output), **seconds, "made_with": _made_with(name)}


def _children_s() -> float:
    """Seconds of processors that the ended child processes used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _printed(command: str, folder: str) -> str:
    tool, *words = command.split()
    made = subprocess.run(
        [sys.executable, *(("-m", "pytest") if tool == "pytest" else ()), *words],
        cwd=folder,
        env={"JAX_PLATFORMS": "cpu", **os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "110"},
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
    )
    if made.returncode:
        sys.stderr.write(made.stdout + made.stderr)
        made.check_returncode()
    return made.stdout


def _made_with(name: str) -> dict[str, Any]:
    of = importlib.metadata.packages_distributions()
    packages = sorted({of[package][0] for package in imported(name)})
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "versions": {package: importlib.metadata.version(package) for package in packages},
    }


def kept() -> dict[str, Any]:
    """The kept outputs by name."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def keep(name: str, found: dict[str, Any]) -> None:
    KEPT.write_text(json.dumps(dict(sorted({**kept(), name: found}.items())), indent=1) + "\n")
    print(f"kept {name}: {found['wall_s']} s", flush=True)


def filled(page: str, name: str) -> str:
    """A page with its script and its output."""
    page = _between(page, "script", f"```python\n{script_of(name)}```\n")
    found = kept()[name]
    made = found["made_with"]
    versions = ", ".join(f"{package} {version}" for package, version in made["versions"].items())
    # Seconds of processors are the same on a machine that other programs use; older records have no such figure.
    seconds = f"{found['cpu_s']:.0f} s of processor time" if "cpu_s" in found else f"{found['wall_s']:.0f} s"
    footer = f"Python {made['python']}, {versions}; {made['date']}, {seconds} on {made['cores']} cores without a GPU."
    return _between(page, "output", f"```text\n{_NOTICES.sub('', found['output'])}```\n\n{footer}\n")


def _between(page: str, mark: str, text: str) -> str:
    marks = rf"(<!-- {mark} -->\n).*?(<!-- end of {mark} -->)"
    page, count = re.subn(marks, lambda found: found[1] + text + found[2], page, flags=re.DOTALL)
    assert count == 1, f"the page has {count} places for the {mark}"
    return page


if __name__ == "__main__":
    main(sys.argv[1:])
