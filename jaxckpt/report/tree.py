"""A report is a tree of sections, tables, sentences, scatters and charts: data that does not know how it is shown.

Builders make such trees from plans, analyses, footprints and comparisons; `text` lowers them for a terminal, `html`
for a notebook or a page. So what the shell prints, what a test compares and what a notebook shows are the same thing.
Trees are compact first: a folded section and the rows beyond `Table.compact_rows` are there, and shown when asked for.
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
      compact_rows: So many rows are shown at first; None shows all.
      rest: What the other rows are, one line ("and 12 more, 3 MiB"); their number where it is "".
    """

    title: str = ""
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    compact_rows: int | None = None
    rest: str = ""

    @property
    def shown(self) -> tuple[tuple[str, ...], ...]:
        """The rows that are shown at first."""
        return self.rows[: self.compact_rows]

    @property
    def hidden(self) -> tuple[tuple[str, ...], ...]:
        """The rows that are shown when asked for."""
        return self.rows[len(self.shown) :]

    @property
    def rest_line(self) -> str:
        """Name of the hidden rows; "" where no row is hidden."""
        return (self.rest or f"and {len(self.hidden)} more") if self.hidden else ""

    def __post_init__(self) -> None:
        wrong = [row for row in self.rows if len(row) != len(self.columns)]
        if wrong:
            raise ValueError(f"table {self.title!r}: {len(self.columns)} columns, but a row {wrong[0]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A sentence or a few."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of a scatter, at finite numbers and with their texts for people; without a name it is small.

    On the frontier is what no other point is at most as large as both ways.
    """

    name: str
    x: float
    y: float
    x_text: str
    y_text: str
    on_frontier: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Points over two axes of which less is better, with the frontier of those that nothing beats both ways.

    Units are "bytes", "seconds" or "": how ticks are written.
    """

    title: str
    x_heading: str
    y_heading: str
    points: tuple[Point, ...]
    x_unit: str = ""
    y_unit: str = ""

    @property
    def frontier(self) -> tuple[Point, ...]:
        """The points that nothing beats, from left to right."""
        return tuple(sorted((p for p in self.points if p.on_frontier), key=lambda p: (p.x, p.y)))

    def place(self, point: Point) -> tuple[float, float]:
        """How far a point is between the least and the most, 0 to 1 both ways; 0.5 where all are the same."""
        return share(point.x, [p.x for p in self.points]), share(point.y, [p.y for p in self.points])


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart: (x, y) of finite numbers, joined in the order of x."""

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Lines over one axis. A terminal leaves it out: the numbers are in a table beside it.

    With `log`, what goes up is drawn by its logarithm, and what is not positive is left out.
    """

    title: str
    x_heading: str
    y_heading: str
    lines: tuple[Line, ...]
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A title over parts of a report; of a folded one a page shows the title at first, a terminal all."""

    title: str
    parts: tuple["Element", ...]
    folded: bool = False


Element = Section | Table | Text | Scatter | Chart


def share(value: float, values: list[float]) -> float:
    """Position of a value between the least and the most of some, 0 to 1; 0.5 where all are the same."""
    least, most = min(values), max(values)
    return (value - least) / (most - least) if most > least else 0.5


def columns(*headings: str) -> tuple[Column, ...]:
    """Columns by heading; one that starts with ">" holds figures.

    Example:
      >>> columns("scope", ">bytes")[1]
      Column(heading='bytes', figures=True)
    """
    return tuple(Column(heading=h.removeprefix(">"), figures=h.startswith(">")) for h in headings)
