"""`jaxckpt compare`: versions of a step, saved footprints and foreign programs side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jaxckpt._errors import ReportFileError, StepReferenceError
from jaxckpt.cli.console import All, Json, Page, Shell, TargetName, compiled_target

if TYPE_CHECKING:
    from jaxckpt.comparison import Version

_METAVAR = "[NAME=]MODULE:FUNCTION|FILE|FOLDER"
_WORDS = (
    "A function that returns (step, args); a footprint (.json); a plan or policy for the first step (.toml);"
    " XLA's dump."
)


def compare(
    versions: Annotated[list[str], typer.Argument(metavar=_METAVAR, help=_WORDS)],
    target: TargetName = "h200",
    depth: Annotated[int | None, typer.Option(min=1, help="Leave out scopes below this depth.")] = None,
    html: Page = None,
    maps: Annotated[Path | None, typer.Option(help="Where to write the memory maps of all versions, one page.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Where to write all figures, one in each row.")] = None,
    everything: All = False,
    json: Json = False,
) -> None:
    """Compare versions of a training step with the first one: totals, layers, the peak, recomputation."""
    named = _named(versions)
    from jaxckpt.comparison import compare as compare_versions
    from jaxckpt.report import comparison_data, comparison_report, save_text, to_csv
    from jaxckpt.report.picture import draw

    shell = Shell(html, maps, csv, json=json)
    if maps is not None and maps.suffix.lower() != ".html":
        raise ReportFileError(
            f"jaxckpt compare: memory maps of several versions are no {str(maps)!r}.",
            got=maps.suffix or "no suffix",
            needed=".html",
            advice=f"--maps {maps.with_suffix('.html')}",
            path=maps,
        )
    if not all(Path(word).exists() for word in named.values()):
        compiled_target(target)
    with shell.progress() as say:
        read = {name: _version(word) for name, word in named.items()}
        comparison = compare_versions(read, target=target, progress=say)
    if maps is not None:
        draw(comparison, maps)
    if csv is not None:
        save_text(to_csv(comparison), csv)
    report, title = comparison_report(comparison, depth=depth), f"jaxckpt compare {' '.join(versions)}"
    shell.show(report, comparison_data(comparison), unfold=everything, page=html, title=title)


def _named(words: list[str]) -> dict[str, str]:
    """Versions by name: the one that was given, or what the version was called with."""
    pairs = [_split(word) for word in words]
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        references = [word.removeprefix(f"{twice[0]}=") for word in words if _split(word)[0] == twice[0]]
        raise StepReferenceError(
            "jaxckpt compare: two versions have one name.",
            got=f"{', '.join(map(repr, twice))} more than once",
            needed="a name of its own for each version",
            advice=f"jaxckpt compare before={references[0]} after={references[1]}",
            reference=twice[0],
        )
    return dict(pairs)


def _split(word: str) -> tuple[str, str]:
    name, equals, rest = word.partition("=")
    if equals and rest and not Path(word).exists():
        return name, rest
    return word, word


def _version(word: str) -> "Version":
    """A file or folder by its path, anything else as a step."""
    from jaxckpt.cli.reference import load_step

    if Path(word).exists() or ":" not in word:
        return word
    return load_step(word)
