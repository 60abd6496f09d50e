"""Tables of estimates, made from the rows of a bench."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from becausal.lab.bench.rows import Row, by_method, finite_values, group_rows
from becausal.lab.bench.statistics import Estimate, compare_paired, estimate, estimate_share, holm_adjust

Cell = str | int | float | Estimate | None
Kind = Literal["text", "share", "points", "number", "count", "p"]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: Its heading.
        kind: How its cells are formatted: a share in per cent, points for a difference of shares, and so on.
        best: Whether low or high values are better, None where neither is.
        meaning: Its definition.
    """

    name: str
    kind: Kind = "text"
    best: Literal["low", "high"] | None = None
    meaning: str = ""


@dataclass(frozen=True)
class Table:
    """A table with a title and a note."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Measure:
    """A column with the mean of a value of the rows or, for a flag, the share of rows in which it is true.

    Attributes:
        key: The value, by its name in the rows. The others are those of the `Column`.
    """

    key: str
    name: str
    kind: Kind
    best: Literal["low", "high"] | None = None
    meaning: str = ""
    is_flag: bool = False

    @property
    def column(self) -> Column:
        return Column(self.name, self.kind, self.best, self.meaning)

    def estimate(self, rows: Sequence[Row]) -> Estimate:
        """The estimate over rows; rows without the value are skipped."""
        values = finite_values(rows, self.key)
        return estimate_share(values) if self.is_flag else estimate(values)


SIZE = Measure("size", "size", "share", "low", "share of the pixels of the view in the explanation")
CALLS = Measure("calls", "calls", "count", None, "model calls per image, including extraction")


def measure_table(
    name: str,
    title: str,
    rows: Sequence[Row],
    measures: Sequence[Measure],
    *,
    by: Mapping[str, str] | None = None,
    note: str = "",
    order: Callable[[tuple[Any, ...]], Any] | None = None,
) -> Table:
    """A table with a line for each group: the number of rows and the estimate of each measure.

    `by` has the keys that make groups, with the headings of their columns; by default the method.
    """
    by = by or {"method": "method"}
    found = group_rows(rows, *by)
    keys = sorted(found, key=order) if order is not None else list(found)
    lines = [(*(_plain(k) for k in key), len(found[key]), *(m.estimate(found[key]) for m in measures)) for key in keys]
    columns = (*(Column(name) for name in by.values()), Column("n", "count", None, "images"), *(m.column for m in measures))
    return Table(name, title, columns, tuple(lines), note)


def paired_table(rows: Sequence[Row], measure: Measure) -> Table | None:
    """Every method compared with the first on the images that both explained; None for one method."""
    found = {method: mean_by_name(group, measure.key) for method, group in by_method(rows)}
    if len(found) < 2:
        return None
    first, *others = found
    compared = [compare_paired(found[first], found[method]) for method in others]
    ps = holm_adjust([c.p for c in compared])
    lines = [
        (method, c.difference.n, c.difference, c.lower, c.higher, c.equal, p)
        for method, c, p in zip(others, compared, ps, strict=True)
    ]
    kind: Kind = "points" if measure.kind == "share" else "number"
    columns = (
        Column("compared with"),
        Column("pairs", "count", None, "images explained by both methods"),
        Column(
            "difference, points" if kind == "points" else "difference", kind, None, f"mean of {first} minus the other method"
        ),
        Column("lower", "count", None, f"images on which {first} is lower"),
        Column("higher", "count", None, f"images on which {first} is higher"),
        Column("equal", "count"),
        Column("p", "p", None, "sign-flip test of the mean difference, Holm-corrected within this table"),
    )
    name = measure.name
    title = f"{name[0].upper()}{name[1:]}: {first} compared with each other method, paired by image"
    return Table(f"paired-{measure.key}", title, columns, tuple(lines))


def mean_by_name(rows: Sequence[Row], key: str) -> dict[str, float]:
    """The value of each image, averaged over its rows."""
    out: dict[str, list[float]] = {}
    for row in rows:
        for value in finite_values([row], key):
            out.setdefault(str(row["name"]), []).append(value)
    return {name: sum(values) / len(values) for name, values in out.items()}


def _plain(value: Any) -> Cell:
    return value if isinstance(value, (int, float, str)) else str(value)
