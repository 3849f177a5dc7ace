"""README.md and docs/: code runs, commands parse, links lead to files and headings."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

ROOT = Path(__file__).parents[1]
README, TRAINING, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "training.md", ROOT / "docs" / "tutorial.md"
RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.md"))
PAGES = (README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md")), *RECIPES)
BLOCK = re.compile(
    r"(?P<not_run><!-- not run: \S[^\n]*-->\n+)?^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)
LINK = re.compile(
    r"(?<!!)\[[^\]]*\]\((?P<file>[^)#:\s]*)(?:#(?P<heading>[^)\s]*))?\)|!\[[^\]]*\]\((?P<image>[^):\s]+)\)"
)


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of a language that are to run, each moved down to its own line of the page."""
    text = page.read_text()
    return [
        "\n" * text.count("\n", 0, block.start("body")) + block["body"]
        for block in BLOCK.finditer(text)
        if block["language"] == language and not block["not_run"]
    ]


def commands(page: Path) -> list[str]:
    """The commands after `$`: continued lines are joined; comments, pipes and variables before them are left out."""
    lines = [line for block in blocks(page, "console") for line in block.replace("\\\n", " ").splitlines()]
    typed = [line[2:] for line in lines if line.startswith("$ ")]
    plain = [re.split(r"\s(?:\||>|&&)\s", re.sub(r"^(?:\w+=\S*\s+)+", "", line))[0] for line in typed]
    return [shlex.join(shlex.split(line, comments=True)) for line in plain]


def shell_commands(*pages: Path) -> list[str]:
    return list(dict.fromkeys(line for page in pages for line in commands(page) if line.split()[0] == "jaxckpt"))


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them: lower case, hyphens for spaces, no punctuation."""
    titles = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.M
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [README, TRAINING, TUTORIAL], ids=lambda page: page.name)
@pytest.mark.usefixtures("no_local_search")  # pages show how to call, not the last per cent of a plan
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), names)  # the pages are ours
    assert names["plan"].footprint.total_bytes <= 3 * 2**30
    assert (tmp_path / "plan.toml").exists()


@pytest.mark.parametrize("command", shell_commands(*PAGES))
def test_commands_of_the_shell_parse(command):
    from jaxckpt.cli.app import app

    _, verb, *words = shlex.split(command)
    shown = CliRunner().invoke(app, [verb, "--help"])
    assert shown.exit_code == 0, shown.output
    typer.main.get_command(app).commands[verb].make_context(verb, words)


def test_the_main_verbs_of_the_shell_are_shown():
    assert {"analyze", "plan", "targets"} <= {command.split()[1] for command in shell_commands(README)}


def test_the_page_of_the_shell_has_every_verb():
    from jaxckpt.cli.app import VERBS

    shown = {command.split()[1] for command in shell_commands(ROOT / "docs" / "shell.md")}
    assert shown == {verb.replace("_", "-") for verb in VERBS}


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "contributing.md"], ids=lambda page: page.name)
def test_make_targets_of_the_pages_exist(page):
    makefile = (ROOT / "Makefile").read_text()
    targets = [command.split()[1] for command in commands(page) if command.split()[0] == "make"]
    assert targets
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for link in LINK.finditer(text):
        file = page.parent / (link["image"] or link["file"] or page.name)
        assert file.is_file(), f"{link[0]} leads to no file"
        assert not link["heading"] or link["heading"] in headings(file), f"{link[0]} leads to no heading of {file.name}"


def test_readme_leads_to_every_page():
    linked = {link["file"] for link in LINK.finditer(README.read_text())}
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= linked


def test_links_of_the_readme_are_absolute_on_a_package_index():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    text = README.read_text()
    for each in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    source = project["project"]["urls"]["Source"]
    assert len(links) > 25
    assert all(
        link.startswith((f"{source}/blob/v$HFPR_VERSION/", f"{source}/raw/v$HFPR_VERSION/", "#")) for link in links
    )
    assert all(address.startswith(source) for address in project["project"]["urls"].values())
