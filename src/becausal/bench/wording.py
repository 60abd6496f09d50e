"""Cells and commands of a bench in words."""

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from typing import Any

from becausal.bench.findings import Cell, Column, Row, Table
from becausal.bench.statistics import Estimate


def say_cell(cell: Cell, column: Column, *, interval: bool = True) -> str:
    """A cell as text, with its interval in brackets where it is an estimate."""
    if cell is None:
        return "–"
    if isinstance(cell, Estimate):
        if not cell.n or math.isnan(cell.mean):
            return "–"
        said = _say(cell.mean, column)
        if not interval or column.kind == "count" or cell.n < 2:
            return said
        return f"{said} ({_say(cell.low, column, bare=True)} to {_say(cell.high, column, bare=True)})"
    if isinstance(cell, str):
        return cell
    return _say(cell, column)


def _say(value: float, column: Column, *, bare: bool = False) -> str:
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


def best_rows(table: Table, column: int, controls: tuple[str, ...] = ("random", "centre")) -> set[int]:
    """The lines whose estimate in a column is best; controls do not take part."""
    wanted = table.columns[column].best
    if wanted is None or sum(c.kind == "text" for c in table.columns) > 1:
        return set()
    values: dict[int, float] = {}
    for i, row in enumerate(table.rows):
        cell = row[column]
        if isinstance(cell, Estimate) and cell.n and not {str(part) for part in row[:2]} & set(controls):
            values[i] = round(cell.mean, 6)
    if len(values) < 2:
        return set()
    best = min(values.values()) if wanted == "low" else max(values.values())
    return {i for i, value in values.items() if value == best}


def count_failures(rows: Sequence[Row]) -> dict[str, dict[str, int]]:
    """By method, how many images got no explanation, by the kind of error."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        if row.get("error"):
            found.setdefault(str(row["method"]), Counter())[say_error(str(row["error"]))] += 1
    return {method: dict(counts) for method, counts in found.items()}


def say_error(error: str) -> str:
    """The kind of an error in words."""
    kind, _, text = error.partition(": ")
    known = {
        "FillError": "the empty image has the label already",
        "UnstableModelError": "the model answered the same question in two ways",
        "TargetError": "the label does not hold on the view",
        "ImageError": "the image cannot be read",
    }
    return known.get(kind, text or kind)


def say_command(record: dict[str, Any], *, folder: str = "OUT") -> str:
    """The command line that gives this run again, over several lines."""
    lines = [["becausal", "bench", record["bench"]], ["--model", record["model"]]]
    for key, value in record["loading"].items():
        flag = f"--{key.replace('_', '-')}"
        if value is True:
            lines[-1].append(flag)
        elif value not in (None, False):
            lines[-1] += [flag, str(value)]
    if record["data"] is not None:
        lines.append(["--data", record["data"]])
    lines.append(["--methods", ",".join(record["methods"])])
    last = [["--seed", record["seed"]], ["--fill", record["fill"]]]
    last += [["--limit", record["limit"]]] if record["limit"] is not None else []
    last += [["--grain", "none" if record["grain"] is None else record["grain"]]] if record["grain"] != "default" else []
    last += [["--max-calls", record["max_calls"]]] if record["max_calls"] is not None else []
    last += [["--side", record["side"]]] if record["bench"] == "exact" and record["side"] != 4 else []
    lines.append([str(word) for pair in last for word in pair])
    lines.append(["--out", folder])
    return " \\\n    ".join(shlex.join(line) for line in lines)
