"""docs/results.md from the tables kept beside this file.

    python benchmarks/results_tables.py                       write docs/results.md again
    python benchmarks/results_tables.py --add RUN NAME        keep a finished run of `becausal bench`; where NAME is
                                                              kept already, RUN's methods come to it or replace theirs
    python benchmarks/results_tables.py --check               fail where docs/results.md is not what the tables give

A kept run is `bench-NAME.csv`, the rows as the bench wrote them, and `bench-NAME.json`, the settings and what was left out;
NAME begins with the bench: photobombing-mobilenet-grey. Paths are cut down to file names. Every number in the document is
counted again here from the rows; the words around them are in results_words.toml.
"""

import argparse
import csv
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from becausal.bench import BENCHES, load_bench
from becausal.bench.findings import Findings, Table, answered
from becausal.bench.runs import read_table
from becausal.bench.wording import best_rows, say_cell, say_command
from becausal.methods import METHODS

HERE = Path(__file__).parent
KEPT = HERE / "results"
DOCUMENT = HERE.parent / "docs" / "results.md"
WORDS = HERE / "results_words.toml"
MOST = 20  # lines of a table: longer ones stay in the CSV files


def keep(run: Path, name: str) -> None:
    """Copy a finished run into the kept ones."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    if not name.startswith(f"{summary['bench']}-"):
        raise SystemExit(f"the run is of the bench {summary['bench']}: name it {summary['bench']}-MODEL or so, not {name}")
    settings = {key: _without_folders(value) for key, value in summary["settings"].items()}
    chosen = {
        "bench": summary["bench"],
        "settings": settings,
        "command": say_command(settings),
        "pictures": summary["pictures"],
        "left_out": summary["left_out"],
        "methods_left_out": summary["methods_left_out"],
        "failures": summary["failures"],
        "versions": summary["versions"],
    }
    table, about = KEPT / f"bench-{name}.csv", KEPT / f"bench-{name}.json"
    rows = _rows(run / "results.csv")
    if about.exists():
        old = json.loads(about.read_text(encoding="utf-8"))
        rows = [row for row in _rows(table) if row["method"] not in settings["methods"]] + rows
        chosen = _merged(old, chosen)
        order = chosen["settings"]["methods"]
        rows.sort(key=lambda row: order.index(row["method"]))
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    about.write_text(json.dumps(chosen, indent=2) + "\n", encoding="utf-8")


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """What is said of two runs of one bench that differ in their methods, and perhaps in the device, alone."""

    def fixed(about: dict[str, Any]) -> dict[str, Any]:
        free = ("methods", "device", "loading", "becausal", "data", "model_sha256")
        loading = {k: v for k, v in about["settings"]["loading"].items() if k != "device"}
        return {k: v for k, v in about["settings"].items() if k not in free} | loading | {"n": about["pictures"]}

    if fixed(old) != fixed(new):
        raise SystemExit("the run that is kept has other settings")
    names = [name for name in old["settings"]["methods"] if name not in new["settings"]["methods"]]
    names = sorted(names + new["settings"]["methods"], key=lambda name: list(METHODS).index(name.split(":")[0]))
    settings = old["settings"] | {"methods": names}
    kept = {name: why for name, why in old["failures"].items() if name not in new["settings"]["methods"]}
    return old | {"settings": settings, "command": say_command(settings), "failures": kept | new["failures"]}


def _without_folders(value: Any) -> Any:
    """Every path in a setting cut down to its file name; specs keep their kind and what follows the file."""
    if isinstance(value, dict):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, str) and "/" in value and not re.fullmatch(r"(squash:)?[\dx]+/[\dx]+", value):  # a crop is no path
        return ":".join(part.rsplit("/", 1)[-1] for part in value.split(":"))
    return value


def write_document() -> str:
    """The whole document."""
    runs = []
    for path in sorted(KEPT.glob("bench-*.csv")):
        about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        runs.append((path, about, read_table(path)))
    words = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    parts = [words["opening"].lstrip()]
    for name in BENCHES:
        own = [each for each in runs if each[1]["bench"] == name]
        bench = load_bench(name)
        parts.append(f"## {name}\n\n{bench.question}\n\n*The paper:* {bench.paper}\n")
        if not own:
            parts.append("Not measured yet.\n")
        for path, about, rows in own:
            parts.append(
                _section(path, about, rows, bench.summarise(rows), words["titles"].get(path.stem.removeprefix("bench-")))
            )
            if said := words["remarks"].get(path.stem.removeprefix("bench-")):
                parts.append(said + "\n")
        if own and (said := words["remarks"].get(name)):
            parts.append(said + "\n")
    parts.append(words["closing"].lstrip())
    return "\n".join(part.rstrip() + "\n" for part in parts)


def _section(path: Path, about: dict[str, Any], rows: list[dict[str, Any]], findings: Findings, title: str | None) -> str:
    failed = len(rows) - len(answered(rows))
    said = [f"n = {about['pictures']:,} images"]
    said += [f"{count:,} left out: {reason}" for reason, count in about["left_out"].items()]
    if failed:
        said.append(f"{failed:,} of {len(rows):,} explanations failed (counted out of the means)")
    lines = [f"### {title or path.stem.removeprefix('bench-')}", "", "; ".join(said) + "."]
    lines += ["", "```bash", about["command"], "```", ""]
    for table in findings.tables:
        if len(table.rows) <= MOST:
            lines += [_markdown(table), ""]
    if about["methods_left_out"]:
        lines += ["Did not run: " + "; ".join(f"`{m}`: {why}" for m, why in about["methods_left_out"].items()) + ".", ""]
    if about["failures"]:
        counts = [f"`{m}` {sum(whys.values())} ({'; '.join(whys)})" for m, whys in about["failures"].items()]
        lines += ["Images without an explanation: " + ", ".join(counts) + ".", ""]
    return "\n".join([*lines, f"Rows: [{path.name}](../benchmarks/results/{path.name})."]) + "\n"


def _markdown(table: Table) -> str:
    best = [best_rows(table, column) for column in range(len(table.columns))]
    arrows = {"low": " ↓", "high": " ↑", None: ""}
    lines = [f"**{table.title}**", "", "| " + " | ".join(c.name + arrows[c.best] for c in table.columns) + " |"]
    lines.append("|" + "|".join("---" if c.kind == "text" else "---:" for c in table.columns) + "|")
    for i, row in enumerate(table.rows):
        cells = [say_cell(cell, column) for cell, column in zip(row, table.columns, strict=True)]
        lines.append("| " + " | ".join(f"**{c}**" if i in best[k] else c for k, c in enumerate(cells)) + " |")
    meanings = "; ".join(f"*{c.name}*: {c.meaning}" for c in table.columns if c.meaning and c.name != "n")
    return "\n".join([*lines, "", *([table.note, ""] if table.note else []), *([f"{meanings}."] if meanings else [])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", nargs=2, metavar=("RUN", "NAME"))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.add:
        keep(Path(options.add[0]), options.add[1])
    text = write_document()
    if options.check:
        sys.exit(0 if DOCUMENT.read_text(encoding="utf-8") == text else "docs/results.md is not what the tables give")
    DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
