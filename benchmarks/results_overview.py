"""The overview of docs/results.md: for each benchmark one figure and one table, computed from the stored rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from becausal.lab.base import Findings
from becausal.lab.page import figure_files
from becausal.lab.tables import Cell, Column, Estimate, Table, format_cell
from becausal.methods import METHODS
from becausal.render.colours import INK, SOFT
from becausal.render.figures import new_figure, png_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#7a3e9d", "#e69f00", "#009e73", "#0072b2")
CONTROLS = ("random", "centre")
IMAGES = "images"


@dataclass(frozen=True)
class StoredRun:
    """A stored run: its name, the name of its model, None for a variant of another run, and what was found."""

    name: str
    title: str | None
    findings: Findings

    @property
    def table(self) -> Table:
        return self.findings.tables[0]

    @property
    def has_methods(self) -> bool:
        """Whether each line of the first table is a method."""
        return self.table.columns[0].name == "method" and sum(c.kind == "text" for c in self.table.columns) == 1

    def line_of(self, method: str) -> tuple[Cell, ...] | None:
        """The line of a method with these options."""
        return next((row for row in self.table.rows if row[0] == method), None)

    def column(self, name: str) -> tuple[int, Column]:
        """The place of a column, and the column."""
        return next((place, c) for place, c in enumerate(self.table.columns) if c.name == name)


def short_name(cell: Cell) -> str:
    """The name of a method without its options."""
    return str(cell).split(":")[0]


def label_of(method: str) -> str:
    """A method with its options, as it is shown: what differs from its defaults belongs beside its figures."""
    return method.replace(":", ", ")


def write_table(runs: Sequence[StoredRun], measures: Sequence[str]) -> str:
    """The measures of every method in every run; the first table as it is where its lines are not methods."""
    if not all(run.has_methods for run in runs):
        heads = [f"{run.title}, `{run.table.title.replace(',', '`,', 1)}:\n\n" if len(runs) > 1 else "" for run in runs]
        return "\n\n".join(head + _plain_table(run.table) for head, run in zip(heads, runs, strict=True))
    places = [(run, *run.column(name)) for run in runs for name in measures]
    arrows = {"low": " ↓", "high": " ↑", None: ""}
    heads = [f"{run.title}: {column.name}{arrows[column.best]}" for run, _, column in places]
    if len(runs) == 1:
        heads = [f"{column.name}{arrows[column.best]}" for _, _, column in places]
    lines = ["| method | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    methods = order_methods(runs, measures[0])
    table = [[_cell_of(run, method, place) for run, place, _ in places] for method in methods]
    for method, cells in zip(methods, table, strict=True):
        texts = []
        for number, (cell, (_, _, column)) in enumerate(zip(cells, places, strict=True)):
            text = format_cell(cell, column, interval=False)
            own = [row[number] for row, name in zip(table, methods, strict=True) if name not in CONTROLS]
            texts.append(f"**{text}**" if method not in CONTROLS and _is_best(cell, own, column) else text)
        lines.append(f"| {label_of(method)} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def order_methods(runs: Sequence[StoredRun], measure: str) -> list[str]:
    """All methods with their options, the best of the first run that has them first, the controls last."""
    usual = list(METHODS)
    known = {str(row[0]) for run in runs for row in run.table.rows if short_name(row[0]) in METHODS}

    def rank(method: str) -> tuple[bool, int, float, int]:
        for number, run in enumerate(runs):
            place, column = run.column(measure)
            cell = _cell_of(run, method, place)
            if isinstance(cell, (Estimate, float, int)):
                value = cell.mean if isinstance(cell, Estimate) else float(cell)
                return method in CONTROLS, number, value if column.best == "low" else -value, 0
        return method in CONTROLS, len(runs), 0.0, usual.index(short_name(method))

    return sorted(sorted(known, key=lambda name: (usual.index(short_name(name)), name)), key=rank)


def _cell_of(run: StoredRun, method: str, place: int) -> Cell:
    line = run.line_of(method)
    return None if line is None else line[place]


def _is_best(cell: Cell, others: Sequence[Cell], column: Column) -> bool:
    values = [round(other.mean, 6) for other in others if isinstance(other, Estimate) and other.n]
    if not isinstance(cell, Estimate) or column.best is None or len(values) < 2:
        return False
    return round(cell.mean, 6) == (min(values) if column.best == "low" else max(values))


def _plain_table(table: Table) -> str:
    """A table without intervals."""
    lines = ["| " + " | ".join(column.name for column in table.columns) + " |"]
    lines.append("|" + "|".join("---" if column.kind == "text" else "---:" for column in table.columns) + "|")
    for row in table.rows:
        cells = (format_cell(cell, column, interval=False) for cell, column in zip(row, table.columns, strict=True))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw_figure(runs: Sequence[StoredRun], measure: str, words: dict[str, Any]) -> bytes | None:
    """The first measure of every method with its interval, a colour for each run; else the first plot of the first run."""
    published = words.get("published", {})
    if not _have_methods(runs):
        plots = runs[0].findings.plots
        return figure_files(plots[0])["png"] if plots else None
    methods = order_methods(runs, measure)
    figure = new_figure(7.4, 0.9 + 0.24 * len(methods))
    axes = figure.add_subplot()
    for number, run in enumerate(runs):
        _draw_run(axes, run, methods, measure, COLOURS[number % len(COLOURS)], (number + 0.5) / len(runs) - 0.5)
    if published:
        places = [place for place, name in enumerate(methods) if short_name(name) in published]
        values = [published[short_name(methods[place])] for place in places]
        axes.plot(values, places, ls="none", marker="|", ms=13, mew=2, color=INK, label=words["published_label"])
    _format(axes, methods, runs[0].column(measure)[1])
    return png_bytes(figure)


def _have_methods(runs: Sequence[StoredRun]) -> bool:
    """Whether all runs compare methods, so that one figure can show them together."""
    return all(run.has_methods and len(run.table.rows) > 1 for run in runs)


def _draw_run(axes: "Axes", run: StoredRun, methods: Sequence[str], measure: str, colour: str, shift: float) -> None:
    place, _ = run.column(measure)
    found = [(row, cell) for row, method in enumerate(methods) if isinstance(cell := _cell_of(run, method, place), Estimate)]
    for number, (row, cell) in enumerate((row, cell) for row, cell in found if cell.n):
        errors = [[max(0.0, cell.mean - cell.low)], [max(0.0, cell.high - cell.mean)]]
        label = None if number else run.title
        axes.errorbar([cell.mean], [row + 0.5 * shift], xerr=errors, color=colour, marker="o", ms=5, lw=1.2, label=label)


def _format(axes: "Axes", methods: Sequence[str], column: Column) -> None:
    from matplotlib.ticker import PercentFormatter

    axes.set_yticks(range(len(methods)), [label_of(method) for method in methods], fontsize=8.5, color=INK)
    axes.invert_yaxis()
    better = {"low": " (lower is better)", "high": " (higher is better)", None: ""}[column.best]
    axes.set_xlabel(f"{column.name}: {column.meaning}{better}", fontsize=8.5, color=SOFT, parse_math=False)
    if column.kind == "share":
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    axes.tick_params(length=0, labelsize=8.5, labelcolor=SOFT)
    axes.grid(True, axis="x", color="#e9e6e1", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", frameon=False, fontsize=8)


def write_section(name: str, question: str, paper: str, runs: Sequence[StoredRun], words: dict[str, Any]) -> str:
    """One benchmark on the overview page."""
    lines = [f"## {name}", "", question, ""]
    if not runs:
        return "\n".join([*lines, f"*The paper:* {paper}", "", "Not measured yet.", ""])
    if (Path(__file__).parent.parent / "docs" / figure_path(name)).exists():
        lines += [f"![{question}]({figure_path(name)})", ""]
        if len(runs) > 1 and not _have_methods(runs):
            lines += [f"*Figure: {runs[0].title}.*", ""]
    if figure := words.get("figure"):
        lines += [figure.strip(), ""]
    lines += [write_table(runs, words.get("measures", ())), "", f"*The paper:* {paper}", ""]
    if answer := words.get("answer"):
        lines += [f"*Here:* {answer.strip()}", ""]
    return "\n".join([*lines, f"All tables, intervals and commands: [{name}](results/{name}.md).", ""])


def figure_path(name: str) -> str:
    """The figure of a benchmark, relative to docs/."""
    return f"{IMAGES}/results-{name}.png"
