"""What the README says runs."""

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks("python"):
        exec(compile(block, str(README), "exec"), names)  # the README is ours
    assert names["plan"].footprint.total_bytes <= 2 * 2**30
    assert (tmp_path / "plan.toml").exists()


def test_commands_of_the_shell_exist():
    from jaxckpt.cli import app

    commands = [line[2:] for block in blocks("console") for line in block.splitlines() if line[:2] == "$ "]
    verbs = [shlex.split(command, comments=True)[1] for command in commands if command.startswith("jaxckpt ")]
    assert {"analyze", "plan", "targets"} <= set(verbs)
    for verb in verbs:
        assert CliRunner().invoke(app, [verb, "--help"]).exit_code == 0


def test_make_targets_of_the_readme_exist():
    makefile = (README.parent / "Makefile").read_text()
    targets = re.findall(r"\$ make (\w+)", README.read_text())
    assert targets
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)
