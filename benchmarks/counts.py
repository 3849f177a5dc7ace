"""Counts what makes the code hard to read, over all of `jaxckpt/` or one room of it.

    python -m benchmarks.counts            # one line a count
    python -m benchmarks.counts cost       # those of one room, with every place

Docstrings that open with "What" or "Whether", identifiers with words of the old dialect, class names defined twice,
lines, blocks of cyclomatic complexity C (11) or worse, classes of more than 14 attributes, files that open the door to
`Any`, and the modules that carrying out a plan loads.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1] / "jaxckpt"
BANNED = ("turn", "late", "again", "there", "away", "light", "whole", "beside", "alone", "guest")
"""Words that no identifier has as one of its parts, singular or plural."""
MOST_ATTRIBUTES = 14


def files(room: str | None = None) -> list[Path]:
    """The Python files of the package, or of one room."""
    return sorted((ROOT / room if room else ROOT).rglob("*.py"))


def definitions(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name that a file defines: functions, classes, arguments, attributes, variables, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.arg(arg=name):
                yield name, node.lineno
            case ast.Name(id=name, ctx=ast.Store()):
                yield name, node.lineno
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, node.lineno


def is_banned(name: str) -> bool:
    """True if one of the words between the underscores, or one of CamelCase, is of the old dialect.

    Example:
      >>> [is_banned(name) for name in ("late_read", "StayAway", "turns", "return_value", "lately")]
      [True, True, True, False, False]
    """
    words = re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())
    return any(word.removesuffix("s") in BANNED for word in words)


def banned_identifiers(room: str | None = None) -> Iterator[str]:
    """Identifiers with a banned word, each once a file."""
    for path in files(room):
        found = sorted({name for name, _ in definitions(ast.parse(path.read_text())) if is_banned(name)})
        yield from (f"{path.relative_to(ROOT)}: {name}" for name in found)


def questions(room: str | None = None) -> Iterator[str]:
    """Docstrings that open with a question word."""
    for path in files(room):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            for each in body if isinstance(body, list) else ():
                match each:
                    case ast.Expr(value=ast.Constant(value=str(text))) if re.match(r"\s*(What|Whether)\b", text):
                        yield f"{path.relative_to(ROOT)}:{each.lineno}: {text.strip().splitlines()[0]}"


def twice() -> Iterator[str]:
    """Names of classes and type aliases that several files define at their top level."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in files():
        for node in ast.parse(path.read_text()).body:
            match node:
                case ast.ClassDef(name=name):
                    places[name].append(str(path.relative_to(ROOT)))
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp(op=ast.BitOr())) if (
                    name[0].isupper() and not name.isupper()
                ):
                    places[name].append(str(path.relative_to(ROOT)))
    for name, where in sorted(places.items()):
        if len(where) > 1:
            yield f"{name}: {', '.join(where)}"


def knots(room: str | None = None) -> list[str]:
    """Functions and classes of complexity C or worse, by radon."""
    from radon.complexity import cc_rank, cc_visit

    found = []
    for path in files(room):
        for block in cc_visit(path.read_text()):
            if block.complexity > 10:
                rank = cc_rank(block.complexity)
                found.append(f"{path.relative_to(ROOT)}:{block.lineno}: {block.fullname} {rank} ({block.complexity})")
    return found


def code_lines(path: Path) -> int:
    """Lines of a file that are neither blank nor of a docstring."""
    text = path.read_text()
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return sum(bool(line.strip()) and i not in documented for i, line in enumerate(text.splitlines(), 1))


def attributes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Classes of a file with how many attributes their instances have: fields, and what methods assign to self."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or any("Enum" in ast.unparse(base) for base in node.bases):
            continue
        names = {
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign)
            and isinstance(each.target, ast.Name)
            and "ClassVar" not in ast.unparse(each.annotation)
        }
        for each in ast.walk(node):
            match each:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    names.add(name)
        yield node.name, len(names)


def wide_classes(room: str | None = None) -> Iterator[str]:
    """Classes with more attributes than a person can hold in mind."""
    for path in files(room):
        for name, count in attributes(ast.parse(path.read_text())):
            if count > MOST_ATTRIBUTES:
                yield f"{path.relative_to(ROOT)}: {name} ({count})"


def untyped(room: str | None = None) -> Iterator[str]:
    """Parameters annotated as `Any`."""
    for path in files(room):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.arg(arg=name, annotation=ast.Name(id="Any")):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}: {name}"


def loaded_by_apply() -> list[str]:
    """Modules of jaxckpt that are loaded with `jaxckpt.rewrite.apply`, in a process of its own."""
    code = "import sys, jaxckpt.rewrite.apply; print(*sorted(m for m in sys.modules if m.split('.')[0] == 'jaxckpt'))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("room", nargs="?", help="a folder of jaxckpt/: shows every place in it")
    room = parser.parse_args().room
    lines = sum(len(path.read_text().splitlines()) for path in files(room))
    code = sum(code_lines(path) for path in files(room))
    counts = {
        "docstrings that open with What or Whether": list(questions(room)),
        "identifiers with banned words": list(banned_identifiers(room)),
        "class names defined twice": [each for each in twice() if room is None or f"{room}/" in each],
        "blocks of complexity C or worse": knots(room),
        f"classes of more than {MOST_ATTRIBUTES} attributes": list(wide_classes(room)),
        "parameters annotated as Any": list(untyped(room)),
    }
    for what, places in counts.items():
        print(f"{len(places):6,} {what}")
        if room:
            print(*(f"         {place}" for place in places), sep="\n")
    rate = 1000 * len(counts["blocks of complexity C or worse"]) / code
    print(f"{lines:6,} lines, {code:,} of them code; {rate:.1f} blocks of complexity C or worse a thousand of these")
    if room is None:
        print(f"{len(loaded_by_apply()):6,} modules loaded by carrying out a plan")


if __name__ == "__main__":
    main()
