"""What the README says runs."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text() if README.exists() else ""
BLOCK = re.compile(
    r"(?P<not_run><!-- not run: \S[^\n]*-->\n+)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)

pytestmark = pytest.mark.skipif(not TEXT, reason="there is no README yet")


def blocks(language: str) -> list[str]:
    """The blocks of a language that are to run, each moved down to its own line of the README."""
    return [
        "\n" * TEXT.count("\n", 0, block.start("body")) + block["body"]
        for block in BLOCK.finditer(TEXT)
        if block["language"] == language and not block["not_run"]
    ]


def commands() -> list[str]:
    """What is typed after `$`, continued lines joined, comments, pipes and variables set before it left out."""
    lines = [line for block in blocks("console") for line in block.replace("\\\n", " ").splitlines()]
    typed = [line[2:] for line in lines if line.startswith("$ ")]
    plain = [re.split(r"\s(?:\||>|&&)\s", re.sub(r"^(?:\w+=\S*\s+)+", "", line))[0] for line in typed]
    return [shlex.join(shlex.split(line, comments=True)) for line in plain]


def shell_commands() -> list[str]:
    return [command for command in commands() if command.split()[0] == "jaxckpt"]


def test_python_blocks_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    for block in blocks("python"):
        exec(compile(block, str(README), "exec"), names)  # the README is ours
    assert names["plan"].footprint.total_bytes <= 3 * 2**30
    assert (tmp_path / "plan.toml").exists()


@pytest.mark.parametrize("command", shell_commands())
def test_commands_of_the_shell_parse(command):
    from jaxckpt.cli.app import app

    _, verb, *words = shlex.split(command)
    shown = CliRunner().invoke(app, [verb, "--help"])
    assert shown.exit_code == 0, shown.output
    typer.main.get_command(app).commands[verb].make_context(verb, words)


def test_the_main_verbs_of_the_shell_are_shown():
    assert {"analyze", "plan", "targets"} <= {command.split()[1] for command in shell_commands()}


def test_make_targets_of_the_readme_exist():
    makefile = (README.parent / "Makefile").read_text()
    targets = [command.split()[1] for command in commands() if command.split()[0] == "make"]
    assert targets
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)
