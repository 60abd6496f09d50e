"""Cells, errors and commands of a bench as text."""

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from becausal.core.options import Option
from becausal.core.request import Request
from becausal.lab.bench.rows import Row
from becausal.lab.bench.statistics import Estimate
from becausal.lab.bench.tables import Cell, Column, Table
from becausal.models.loading import Loading

CONTROLS = {"random", "centre"}  # methods that ignore the model
ALWAYS_SHOWN = ("fills", "seed")  # options that a command states even where they are the default


def format_cell(cell: Cell, column: Column, *, interval: bool = True) -> str:
    """A cell as text, with the interval of an estimate in brackets."""
    if cell is None:
        return "–"
    if isinstance(cell, Estimate):
        if not cell.n or math.isnan(cell.mean):
            return "–"
        mean = _format_number(cell.mean, column)
        if not interval or column.kind == "count" or cell.n < 2:
            return mean
        low, high = (_format_number(bound, column, bare=True) for bound in (cell.low, cell.high))
        return f"{mean} ({low} to {high})"
    return cell if isinstance(cell, str) else _format_number(cell, column)


def _format_number(value: float, column: Column, *, bare: bool = False) -> str:
    match column.kind:
        case "share":
            percent = 100 * value
            digits = 2 if 0 < abs(percent) < 1 else 1
            return f"{percent:.{digits}f}" if bare else f"{percent:.{digits}f} %"
        case "points":
            return f"{100 * value:+.1f}"
        case "number":
            return f"{round(value, 3) + 0.0:.3f}"  # never -0.000
        case "count":
            return f"{value:,.0f}"
        case "p":
            return "<0.001" if value < 0.001 else f"{value:.3f}"
    return str(value)


def best_rows(table: Table, column: int) -> set[int]:
    """The rows with the best estimate in a column; controls are not considered."""
    wanted = table.columns[column].best
    if wanted is None or sum(c.kind == "text" for c in table.columns) > 1:
        return set()
    values: dict[int, float] = {}
    for i, row in enumerate(table.rows):
        cell = row[column]
        if isinstance(cell, Estimate) and cell.n and not {str(part) for part in row[:2]} & CONTROLS:
            values[i] = round(cell.mean, 6)
    if len(values) < 2:
        return set()
    best = min(values.values()) if wanted == "low" else max(values.values())
    return {i for i, value in values.items() if value == best}


def count_failures(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """For each method the number of images without an explanation, by reason."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        if row.get("error"):
            found.setdefault(str(row["method"]), Counter())[describe_error(str(row["error"]))] += 1
    return {method: dict(counts) for method, counts in found.items()}


def describe_error(error: str) -> str:
    """The reason behind an error, the same for all errors of a kind."""
    kind, _, text = error.partition(": ")
    known = {
        "FillError": "the fully masked image already has the label",
        "UnstableModelError": "the model gave different answers for the same input",
        "TargetError": "the label does not hold for the view",
        "ImageError": "the image cannot be read",
    }
    return known.get(kind, text or kind)


def format_command(record: Mapping[str, Any], *, folder: str = "OUT") -> str:
    """The command line that reproduces a run, on several lines."""
    lines = [["becausal", "bench", record["bench"]]]
    lines.append(["--model", record["model"], *_arguments(Loading, record["loading"])])
    if record["data"] is not None:
        lines.append(["--data", record["data"]])
    lines.append(["--methods", ",".join(record["methods"])])
    lines.append(_arguments(Request, record["request"], always=ALWAYS_SHOWN))
    if record["limit"] is not None:
        lines[-1] += ["--limit", str(record["limit"])]
    if record["bench"] == "exact" and record["side"] != 4:
        lines[-1] += ["--side", str(record["side"])]
    lines.append(["--out", folder])
    return " \\\n    ".join(shlex.join(line) for line in lines)


def _arguments(kind: type, values: Mapping[str, Any], *, always: tuple[str, ...] = ()) -> list[str]:
    """The options of a recorded `Request` or `Loading` that differ from the defaults, as the command line takes them.

    Values that cannot be written on the command line, such as a normalisation given as numbers, are left out.
    """
    words: list[str] = []
    for field in fields(kind):
        option: Option = field.metadata["option"]
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        value = values.get(field.name, default)
        flag = option.flag or f"--{field.name.replace('_', '-')}"
        if value == default and field.name not in always:
            continue
        if isinstance(value, list):
            words += [word for each in value for word in (flag, str(each)) if option.parse is tuple]
        elif value is None or isinstance(value, (str, int, float)):
            words += [flag] if value is True else [flag, "none" if value is None else str(value)]
    return words
