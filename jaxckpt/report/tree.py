"""A report is a tree of sections, tables and sentences: data that does not know how it is shown.

Builders make such trees from plans, analyses and footprints; `text` lowers them for a terminal. So what the shell
prints, what a test compares and what a notebook shows are the same thing.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table: its heading, and whether it holds figures (shown to the right)."""

    heading: str
    figures: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of texts under columns.

    Attributes:
      title: What the table shows, one line; "" for none.
      columns: Its columns.
      rows: For each row a text a column.
      notes: Sentences below.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        wrong = [row for row in self.rows if len(row) != len(self.columns)]
        if wrong:
            raise ValueError(f"table {self.title!r}: {len(self.columns)} columns, but a row {wrong[0]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A sentence or a few."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A title over parts of a report."""

    title: str
    parts: tuple["Part", ...]


Part = Section | Table | Text


def columns(*headings: str) -> tuple[Column, ...]:
    """Columns by heading; one that starts with ">" holds figures.

    Example:
      >>> columns("scope", ">bytes")[1]
      Column(heading='bytes', figures=True)
    """
    return tuple(Column(heading=h.removeprefix(">"), figures=h.startswith(">")) for h in headings)
