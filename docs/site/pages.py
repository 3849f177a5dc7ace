"""Pages of the documentation site that are generated from other files, as a hook of mkdocs.

The home page is README.md, the changelog CHANGELOG.md. The reference has every public name: `jaxckpt/__init__.pyi` is
the list, and a name without a docstring, or of a module that no page has, stops the build. Files outside of docs/ to
which a page links (tests, policies, notebooks) become pages too, so that the site needs no address of a repository.
"""

import ast
import base64
import json
import posixpath
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS, SITE, RESULTS = ROOT / "docs", ROOT / "docs" / "site", ROOT / "benchmarks" / "results"
REFERENCE = {
    "planning": ("Planning", ["planner", "solve", "_step"]),
    "footprints": ("Footprints, comparisons and pictures", ["compiler", "comparison", "report"]),
    "policies": ("Policies and marks", ["policy", "annotate", "random_streams"]),
    "checks": ("Lint and verification", ["linter", "verifier"]),
    "targets": ("Targets and calibration", ["machine", "calibration"]),
    "testing": ("Memory in tests", ["testing"]),
    "dynamic": ("Dynamic rematerialisation", ["dynamic"]),
    "errors": ("Errors", ["_errors"]),
}
"""Page and title for the public names of each folder of the package."""
HOME = "---\nhide: [navigation]\n---\n"
MODULE = "::: jaxckpt.{}\n    options:\n      members: false"
LINK = re.compile(r"(?<=\]\()(?P<file>[^)#:\s]+)(?P<heading>#[^)\s]*)?(?=\))")
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
NAME = re.compile(r"(?<![\[`])`jaxckpt\.(\w+)`(?![\]`])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages, and puts pages for the patterns of the navigation."""
    texts = {"index.md": HOME + (ROOT / "README.md").read_text(), "changelog.md": (ROOT / "CHANGELOG.md").read_text()}
    texts |= {"data.md": results_page()} | reference_pages()
    texts |= {page_of(path): source_page(path) for path in linked_sources(texts)}
    for name, text in texts.items():
        files.append(File.generated(config, name, content=text))
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for name, content in notebook_files(path).items():
            files.append(File.generated(config, name, content=content))
    for path in sorted(RESULTS.rglob("*.json")):
        files.append(File.generated(config, f"data/{path.relative_to(RESULTS)}", abs_src_path=str(path)))
    for name in ("site.css", "iframe-worker.js"):
        files.append(File.generated(config, name, abs_src_path=str(SITE / name)))
    pages = {file.src_uri for file in files.documentation_pages() if not file.src_uri.startswith("source/")}
    order = [f"reference/{page}.md" for page in REFERENCE]
    free = sorted(
        pages - set(named_in(config.nav)), key=lambda page: (order.index(page) if page in order else -1, page)
    )
    config.nav = filled(config.nav, free)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Leads links to files of the repository, and public names in code, to their pages."""
    place = page.file.src_uri
    own = place if place.startswith("notebooks/") else f"docs/{place}"
    origin = {"index.md": "README.md", "changelog.md": "CHANGELOG.md"}.get(place, own)
    names = {*public_names()} - {"__version__"}

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), found["file"]))
        if not (ROOT / target).is_file():
            return found[0]
        return posixpath.relpath(page_of(target), posixpath.dirname(place) or ".") + (found["heading"] or "")

    def reference(found: re.Match[str]) -> str:
        return f"[{found[0]}][jaxckpt.{found[1]}]" if found[1] in names else found[0]

    def changed(line: str) -> str:
        return line if line.startswith(("#", ":::")) else NAME.sub(reference, LINK.sub(link, line))

    parts = FENCE.split(markdown)
    parts[::2] = ["\n".join(map(changed, part.split("\n"))) for part in parts[::2]]
    return "".join(parts)


def page_of(path: str) -> str:
    """The place in the site of a file of the repository."""
    named = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
    if path in named:
        return named[path]
    if path.startswith("docs/") and not path.endswith(".py"):
        return path.removeprefix("docs/")
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md"
    return f"source/{path}.md"


def linked_sources(generated: dict[str, str]) -> Iterator[str]:
    """Files outside of docs/ and notebooks/ to which a page links."""
    texts = [(path.parent.relative_to(ROOT).as_posix(), path.read_text()) for path in DOCS.rglob("*.md")]
    texts += [("", generated["index.md"]), ("", generated["changelog.md"])]
    links = {
        posixpath.normpath(posixpath.join(home, found["file"])) for home, text in texts for found in LINK.finditer(text)
    }
    return (link for link in sorted(links) if page_of(link).startswith("source/") and (ROOT / link).is_file())


def source_page(path: str) -> str:
    """A file's text as a page."""
    text = (ROOT / path).read_text()
    ticks = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 0) if "`" in text else "```"
    language = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml"}.get(Path(path).suffix, "text")
    return f"---\nsearch:\n  exclude: true\n---\n# {path}\n\n{ticks}{language}\n{text}\n{ticks}\n"


def public_names() -> dict[str, str]:
    """The module of each public name, from the stub that lists them."""
    body = ast.parse((ROOT / "jaxckpt" / "__init__.pyi").read_text()).body
    return {each.name: node.module or "" for node in body if isinstance(node, ast.ImportFrom) for each in node.names}


def reference_pages() -> dict[str, str]:
    """The reference: a page for each group of names, and an index of all names."""
    package = griffe.load("jaxckpt", search_paths=[str(ROOT)], docstring_parser="google")
    homes = {home: page for page, (_, folders) in REFERENCE.items() for home in folders}
    names: dict[str, list[str]] = {page: [] for page in REFERENCE}
    for name, module in public_names().items():
        home = name if module == "jaxckpt" else module.split(".")[1]
        if name == "__version__":
            continue
        if home not in homes:
            raise PluginError(f"jaxckpt.{name} of {module} has no page: add its folder to REFERENCE in {__file__}")
        names[homes[home]] += names_of_module(package[name]) if package[name].is_module else [name]
    for page, every in names.items():
        names[page] = sorted(every, key=lambda name: not package[name].is_function)
    missing = [f"jaxckpt.{name}" for every in names.values() for name in every for name in undocumented(package, name)]
    if missing:
        raise PluginError(f"no docstring: {', '.join(missing)}")
    modules = {name for name, module in public_names().items() if module == "jaxckpt"}
    return {"reference/index.md": index_of(package, names)} | {
        f"reference/{page}.md": "\n\n".join(
            [f"# {title}", *[MODULE.format(page)] * (page in modules), *[f"::: jaxckpt.{name}" for name in names[page]]]
        )
        for page, (title, _) in REFERENCE.items()
    }


def names_of_module(module: Any) -> list[str]:
    """The public names of a public module, which are in `__all__` or are imported under their own name."""
    return [
        f"{module.name}.{each.name}"
        for each in module.members.values()
        if not each.name.startswith("_")
        and not (each.is_alias and not each.target_path.startswith("jaxckpt."))
        and not each.is_module
    ]


def undocumented(package: Any, name: str) -> Iterator[str]:
    """The names among a public one and its public methods that have no docstring."""
    thing = package[name]
    if not thing.has_docstring:
        yield name
    if thing.is_class:
        for member in thing.members.values():
            if member.is_function and not member.name.startswith("_") and not member.has_docstring:
                yield f"{name}.{member.name}"


def index_of(package: Any, names: dict[str, list[str]]) -> str:
    """All public names with the first sentences of their docstrings."""
    parts = [
        "# Reference\n\nEvery public name of jaxckpt. `jaxckpt.__version__` is the version of the package, a string."
        " The verbs of the shell are in [the shell](../shell.md)."
    ]
    for page, (title, _) in REFERENCE.items():
        rows = [
            f"| [`{name}`][jaxckpt.{name}] | {first_line(package[name]).replace('|', chr(92) + '|')} |"
            for name in names[page]
        ]
        parts.append("\n".join([f"## [{title}]({page}.md)\n\n| name | |\n|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def first_line(thing: Any) -> str:
    """The first paragraph of a docstring on one line."""
    return " ".join(thing.docstring.value.split("\n\n")[0].split())


def results_page() -> str:
    """Files of the benchmarks, with the date and the versions of each."""
    rows = []
    for path in sorted(RESULTS.rglob("*.json")):
        made = json.loads(path.read_text()).get("made_with", {})
        versions = made.get("versions", {})
        name = path.relative_to(RESULTS)
        rows.append(
            f"| [{name}](data/{name}) | {made.get('date', '')} | {made.get('python', '')} | {versions.get('jax', '')} |"
        )
    return (
        "# Data of the benchmarks\n\nEvery table and picture of these pages is made from one of these files. A file is"
        " written by the benchmark of its name, `python -m benchmarks.NAME`, and holds the date, the machine and the"
        " versions that it was made with.\n\n| file | date | Python | jax |\n|---|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def notebook_files(path: Path) -> dict[str, str | bytes]:
    """A notebook as a page with its outputs and pictures."""
    name = path.stem
    files: dict[str, str | bytes] = {f"notebooks/{path.name}": path.read_bytes()}
    parts = []
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for place, output in enumerate(cell.get("outputs", [])):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}_{number}_{place}.png"
                files[f"notebooks/{picture}"] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({picture})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                text = re.sub(r"\x1b\[[0-9;]*m", "", text)
                parts.append("```text\n" + text.rstrip() + "\n```")
    parts.insert(1, f"[Download this notebook]({path.name})")
    files[f"notebooks/{name}.md"] = "\n\n".join(parts) + "\n"
    return files


def named_in(nav: Any) -> Iterator[str]:
    """The pages that the navigation names, patterns left out."""
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from named_in(each)


def filled(nav: list[Any], free: list[str]) -> list[Any]:
    """The navigation with pages in place of patterns; a part without pages is left out."""
    found: list[Any] = []
    for item in nav:
        if isinstance(item, str) and "*" in item:
            found += [page for page in free if fnmatch(page, item) and page.count("/") == item.count("/")]
        elif isinstance(item, dict):
            parts = {title: filled(part, free) if isinstance(part, list) else part for title, part in item.items()}
            if all(parts.values()):
                found.append(parts)
        else:
            found.append(item)
    return found
