"""Write docs/results.md, the pages in docs/results and their figures from the rows in benchmarks/results.

    python benchmarks/results_tables.py                       write the pages and the figures
    python benchmarks/results_tables.py --add RUN NAME        store a finished run of `becausal bench`; if NAME exists, the
                                                              methods of RUN are added to it or replaced in it
    python benchmarks/results_tables.py --check               fail if the pages do not match the rows

A stored run is `bench-NAME.csv`, the rows as the benchmark wrote them, and `bench-NAME.json`, the settings and what was
excluded. NAME starts with the benchmark, e.g. photobombing-mobilenet-grey. Paths are shortened to file names. Every number
in the document is computed from the rows; the text around the tables is in results_words.toml.
"""

import argparse
import csv
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

from results_overview import StoredRun, draw_figure, figure_path, write_section

from becausal.api import Request
from becausal.lab import BENCHES, load_bench
from becausal.lab.base import Findings, format_command
from becausal.lab.rows import read_table, successful
from becausal.lab.tables import Table, best_rows, format_cell
from becausal.methods import METHODS

HERE = Path(__file__).parent
KEPT = HERE / "results"
DOCUMENT = HERE.parent / "docs" / "results.md"
FOLDER = HERE.parent / "docs" / "results"
WORDS = HERE / "results_words.toml"
PUBLISHED = "-published"  # ending of the names of runs at the settings of the papers
MAX_ROWS = 20  # longer tables stay in the CSV files
# Reasons that older runs recorded, in today's words.
REASONS = {
    "the empty picture has the label already": "the fully masked image already has the label",
    "the model gives another label": "the predicted label is not the true label",
}


def keep(run: Path, name: str) -> None:
    """Store a finished run."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    if not name.startswith(f"{summary['bench']}-"):
        raise SystemExit(f"this is a run of {summary['bench']}: name it {summary['bench']}-MODEL, not {name}")
    settings = {key: _without_folders(value) for key, value in summary["settings"].items()}
    chosen = {
        "bench": summary["bench"],
        "settings": settings,
        "command": format_command(settings),
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
        new = {*settings["methods"], *(row["method"] for row in rows)}  # a bench may add a control of its own
        rows = [row for row in _rows(table) if row["method"] not in new] + rows
        chosen = _merged(old, chosen)
        order = {method: place for place, method in enumerate(chosen["settings"]["methods"])}
        rows.sort(key=lambda row: order.get(row["method"], len(order)))
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    about.write_text(json.dumps(chosen, indent=2) + "\n", encoding="utf-8")


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The record of two runs of one benchmark that differ in their methods, and perhaps in device and precision, only."""
    usual = Request().record()

    def fixed(about: dict[str, Any]) -> dict[str, Any]:
        free = ("methods", "device", "loading", "becausal", "data", "model_sha256")
        loading = {k: v for k, v in about["settings"]["loading"].items() if k not in ("device", "half")}
        given = {k: v for k, v in about["settings"]["request"].items() if v != usual.get(k)}  # older runs lack some fields
        settings = {k: v for k, v in about["settings"].items() if k not in free}
        return settings | loading | {"request": given, "n": about["pictures"]}

    if fixed(old) != fixed(new):
        raise SystemExit("the stored run of this name has other settings")
    names = [name for name in old["settings"]["methods"] if name not in new["settings"]["methods"]]
    names = sorted(names + new["settings"]["methods"], key=lambda name: list(METHODS).index(name.split(":")[0]))
    settings = old["settings"] | {"methods": names}  # with the device of the first rows
    kept = {name: why for name, why in old["failures"].items() if name not in new["settings"]["methods"]}
    return old | {"settings": settings, "command": format_command(settings), "failures": kept | new["failures"]}


def _without_folders(value: Any) -> Any:
    """A setting with every path shortened to its file name; model specs keep their kind and what follows the file."""
    if isinstance(value, dict):
        return {key: _without_folders(each) for key, each in value.items()}
    if isinstance(value, str) and "/" in value and not re.fullmatch(r"(squash:)?[\dx]+/[\dx]+", value):  # 256/224 is a crop
        return ":".join(part.rsplit("/", 1)[-1] for part in value.split(":"))
    return value


def read_runs(words: dict[str, Any]) -> list[tuple[Path, dict[str, Any], list[dict[str, Any]], StoredRun]]:
    """All stored runs, those at published settings first: the file, the record, the rows, and what was found."""
    runs, order = [], [*words["short_titles"], ""]
    for path in sorted(KEPT.glob("bench-*.csv")):
        about, rows = json.loads(path.with_suffix(".json").read_text(encoding="utf-8")), read_table(path)
        name = path.stem.removeprefix("bench-")
        model = name.removeprefix(f"{about['bench']}-").removesuffix(PUBLISHED)
        findings = load_bench(about["bench"]).summarise(rows)
        run = StoredRun(name, words["short_titles"].get(model), findings)
        place = order.index(model if run.title else "")
        runs.append((not name.endswith(PUBLISHED), place, name, (path, about, rows, run)))
    return [stored for *_, stored in sorted(runs, key=lambda each: each[:3])]


def for_overview(runs: list[Any], bench: str) -> list[StoredRun]:
    """The runs of a benchmark that the overview shows: one for each model, at published settings where there is one."""
    own = [run for _, record, _, run in runs if record["bench"] == bench and run.title]
    names = {run.name for run in own}
    return [run for run in own if run.name + PUBLISHED not in names]


def write_pages() -> dict[Path, str]:
    """The overview and the page of each benchmark, by path."""
    words = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    runs = read_runs(words)
    overview, pages = [words["opening"].lstrip()], {}
    for name in BENCHES:
        bench, own = load_bench(name), [each for each in runs if each[1]["bench"] == name]
        about = words["overview"].get(name, {})
        overview.append(write_section(name, bench.question, bench.paper, for_overview(runs, name), about))
        if not own:
            continue
        parts = [f"# Results: {name}\n\n{bench.question}\n\n*The paper:* {bench.paper}\n\n{words['details'].strip()}\n"]
        if figure := about.get("figure"):  # written for the overview, which is in the folder above
            parts.append(figure.strip().replace("](images/", "](../images/") + "\n")
        for path, record, rows, run in own:
            parts.append(_section(path, record, rows, run.findings, words["titles"].get(run.name)))
            if remark := words["remarks"].get(run.name):
                parts.append(remark + "\n")
        if remark := words["remarks"].get(name):
            parts.append(remark + "\n")
        pages[FOLDER / f"{name}.md"] = _joined(parts)
    return {DOCUMENT: _joined([*overview, words["closing"].lstrip()]), **pages}


def _joined(parts: list[str]) -> str:
    return "\n".join(part.rstrip() + "\n" for part in parts)


def draw_figures() -> None:
    """The figure of each benchmark."""
    words = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    runs = read_runs(words)
    for name in BENCHES:
        own, about = for_overview(runs, name), words["overview"].get(name, {})
        if not own or not (measure := next(iter(about.get("measures", ())), None)):
            continue
        drawn = draw_figure(own, measure, about)
        if drawn is not None:
            (DOCUMENT.parent / figure_path(name)).write_bytes(drawn)


def _section(path: Path, about: dict[str, Any], rows: list[dict[str, Any]], findings: Findings, title: str | None) -> str:
    failed = len(rows) - len(successful(rows))
    counts = [f"n = {about['pictures']:,} images"]
    counts += [f"{count:,} excluded: {REASONS.get(reason, reason)}" for reason, count in about["left_out"].items()]
    if failed:
        counts.append(f"{failed:,} of {len(rows):,} explanations failed (not part of the means)")
    lines = [f"### {title or path.stem.removeprefix('bench-')}", "", "; ".join(counts) + "."]
    lines += ["", "```bash", about["command"], "```", ""]
    for table in findings.tables:
        if len(table.rows) <= MAX_ROWS:
            lines += [_markdown(table), ""]
    if about["methods_left_out"]:
        lines += ["Not run: " + "; ".join(f"`{m}`: {why}" for m, why in about["methods_left_out"].items()) + ".", ""]
    if about["failures"]:
        lines += [f"Images without an explanation: {_failures(about)}.", ""]
    return "\n".join([*lines, f"Rows: [{path.name}](../../benchmarks/results/{path.name})."]) + "\n"


def _failures(about: dict[str, Any]) -> str:
    """How many images failed and why, by method; once where it is the same for all methods."""
    by_method = {
        method: f"{sum(reasons.values())} ({'; '.join(REASONS.get(reason, reason) for reason in reasons)})"
        for method, reasons in about["failures"].items()
    }
    if set(by_method) == set(about["settings"]["methods"]) and len(set(by_method.values())) == 1:
        return next(iter(by_method.values())) + ", the same for every method" * (len(by_method) > 1)
    return ", ".join(f"`{method}` {text}" for method, text in by_method.items())


def _markdown(table: Table) -> str:
    best = [best_rows(table, column) for column in range(len(table.columns))]
    arrows = {"low": " ↓", "high": " ↑", None: ""}
    lines = [f"**{table.title}**", "", "| " + " | ".join(c.name + arrows[c.best] for c in table.columns) + " |"]
    lines.append("|" + "|".join("---" if c.kind == "text" else "---:" for c in table.columns) + "|")
    for i, row in enumerate(table.rows):
        cells = [format_cell(cell, column) for cell, column in zip(row, table.columns, strict=True)]
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
    if not options.check:
        draw_figures()
    pages = write_pages()
    if options.check:
        wrong = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        sys.exit(f"{wrong[0].name} does not match the rows: run this without --check" if wrong else 0)
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
