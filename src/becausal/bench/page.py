"""The figures of a run, and a page that needs nothing but itself."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from becausal.api import versions
from becausal.bench.figures import figure_files
from becausal.bench.findings import Column, Table, answered
from becausal.bench.pictures import Strip, choose_strips
from becausal.bench.runs import write_whole
from becausal.bench.statistics import Estimate
from becausal.bench.wording import best_rows, say_cell, say_command
from becausal.core.contracts import Classifier
from becausal.render.stylesheet import STYLE
from becausal.render.wording import say_count

if TYPE_CHECKING:
    from becausal.bench.running import Run

FEW = 30  # images: with fewer, the page says so


def write_page(run: "Run", classifier: Classifier) -> None:
    """Write every figure as PNG and SVG, and report.html."""
    drawings: list[tuple[str, bytes]] = []
    for plot in run.findings.plots:
        files = figure_files(plot)
        for ending, data in files.items():
            write_whole(run.folder / f"{plot.name}.{ending}", data)
        drawings.append((plot.title, files["svg"]))
    strips = choose_strips(run.bench, run.rows, run.pool.samples, classifier)
    write_whole(run.folder / "report.html", render_page(run, drawings, strips))


def render_page(run: "Run", drawings: Sequence[tuple[str, bytes]], strips: Sequence[Strip]) -> str:
    """The page as text; no script, no outside font, image or style."""
    bench, findings = run.bench, run.findings
    parts = [_head(run), *(_table(table) for table in findings.tables[:1])]
    parts += [_drawing(title, svg) for title, svg in drawings]
    parts += [_table(table) for table in findings.tables[1:]]
    parts += [_strips(strips), _left_out(run), _foot(run)]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{escape(bench.name)}: {escape(str(run.record['model']))}</title>\n"
        f"<style>{STYLE}{_MORE_STYLE}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(part for part in parts if part) + "\n</main>\n</body>\n</html>\n"
    )


_MORE_STYLE = """
main { max-width: 76rem; }
.scroll { overflow-x: auto; }
.results td, .results th { padding: 0.4rem 1.4rem 0.4rem 0; font-variant-numeric: tabular-nums; white-space: nowrap; }
.results td { text-align: right; }
.results td.text, .results th.text { text-align: left; }
.results td i { display: block; font-style: normal; font-weight: 400; color: var(--soft); font-size: 0.8em; }
.results thead th { text-align: right; font-weight: 400; color: var(--soft); font-size: 0.9rem; }
.results .best { font-weight: 700; color: var(--accent); }
.results .control > * { color: var(--soft); font-weight: 400; }
figure.plot { background: #fff; margin: 1.4rem 0; max-width: 62rem; }
.strip { margin: 1.2rem 0 1.8rem; }
.strip h3 { font-size: 0.98rem; margin: 0 0 0.5rem; font-weight: 600; overflow-wrap: anywhere; }
.strip .row { display: grid; gap: 0.6rem; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); }
.strip figcaption { padding: 0.35rem 0.5rem 0.45rem; font-size: 0.78rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1.2rem; font-size: 0.88rem; color: var(--soft); }
dt { color: var(--ink); }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 34rem) { dl { grid-template-columns: 1fr; } dd { margin-bottom: 0.4rem; } }
"""


def _head(run: "Run") -> str:
    bench, count = run.bench, len(run.pool.samples)
    few = ""
    if count < FEW:
        warning = f"Only {say_count(count, 'picture')}: the intervals are wide, and the best and worst say little."
        few = f'<p class="warning">{warning}</p>\n'
    errors = len(run.rows) - len(answered(run.rows))
    said = f"{say_count(count, 'picture')}, {say_count(len(run.rows) - errors, 'explanation')}"
    said += f", {errors:,} failed" if errors else ""
    fills = {row["fill"] for row in run.rows if row.get("fill")}
    fill = f"{len(fills)} fills" if fills else f"Fill {run.record['fill']}"
    grain = run.record["grain"]
    shared = "maps cut off where the label holds, causal minimised by itself" if grain == "default" else f"grain {grain}"
    return (
        f'<header>\n<p class="file">{escape(bench.name)} · {escape(str(run.record["model"]))}</p>\n'
        f"<h1>{escape(bench.question)}</h1>\n"
        f'<p class="lead">{said}. {escape(fill)}; {escape(shared)}. In brackets: 95 % bootstrap '
        f"intervals.</p>\n{few}<p><b>The paper.</b> {escape(bench.paper)}</p>\n</header>"
    )


def _table(table: Table) -> str:
    best = [best_rows(table, c) for c in range(len(table.columns))]
    head = "".join(f'<th scope="col"{_kind(c)}>{escape(c.name)} {_arrow(c)}</th>' for c in table.columns)
    lines = []
    for i, row in enumerate(table.rows):
        cells = []
        for c, (cell, column) in enumerate(zip(row, table.columns, strict=True)):
            said = escape(say_cell(cell, column))
            plain, bracket, rest = said.partition(" (")
            said = f"{plain}<i>{rest[:-1]}</i>" if bracket and isinstance(cell, Estimate) else said
            cells.append(f"<td{_kind(column, 'best' if i in best[c] else '')}>{said}</td>")
        control = ' class="control"' if {str(part) for part in row[:2]} & {"random", "centre"} else ""
        lines.append(f"<tr{control}>{''.join(cells)}</tr>")
    meanings = "".join(f"<dt>{escape(c.name)}</dt><dd>{escape(c.meaning)}</dd>" for c in table.columns if c.meaning)
    note = f'<p class="soft">{escape(table.note)}</p>\n' if table.note else ""
    return (
        f'<section>\n<h2>{escape(table.title)}</h2>\n{note}<div class="scroll"><table class="results"><thead><tr>{head}'
        "</tr></thead><tbody>\n" + "\n".join(lines) + f"\n</tbody></table></div>\n<dl>{meanings}</dl>\n</section>"
    )


def _kind(column: Column, more: str = "") -> str:
    names = " ".join(part for part in ("text" if column.kind == "text" else "", more) if part)
    return f' class="{names}"' if names else ""


def _arrow(column: Column) -> str:
    return {"low": "↓", "high": "↑", None: ""}[column.best]


def _drawing(title: str, svg: bytes) -> str:
    source = "data:image/svg+xml;base64," + b64encode(svg).decode("ascii")
    return f'<figure class="plot"><img src="{source}" alt="{escape(title)}"></figure>'


def _strips(strips: Sequence[Strip]) -> str:
    if not strips:
        return ""
    parts = []
    heading = ""
    for strip in strips:
        if strip.heading != heading:
            heading = strip.heading
            parts.append(f"<h2>{escape(heading)}</h2>")
            if strip.said:
                parts.append(f'<p class="soft">{escape(strip.said)}</p>')
        cards = "".join(
            f'<figure><img src="data:image/png;base64,{b64encode(card.png).decode("ascii")}" alt="{escape(card.title)}">'
            f"<figcaption><b>{escape(card.title)}</b>{escape(card.said)}</figcaption></figure>"
            for card in strip.cards
        )
        parts.append(f'<div class="strip"><h3>{escape(strip.title)}</h3><div class="row">{cards}</div></div>')
    return "<section>\n" + "\n".join(parts) + "\n</section>"


def _left_out(run: "Run") -> str:
    items = [(f"{count:,} images", reason) for reason, count in run.pool.left_out.items()]
    items += [(method, f"did not run: {why}") for method, why in run.methods_left_out.items()]
    for method, counts in run.failures.items():
        items += [(method, f"{count:,} images without an explanation: {why}") for why, count in counts.items()]
    if not items:
        return "<section>\n<h2>What was left out</h2>\n<p>Nothing.</p>\n</section>"
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(said)}</dd>" for name, said in items)
    return f"<section>\n<h2>What was left out, and why</h2>\n<dl>{listed}</dl>\n</section>"


def _foot(run: "Run") -> str:
    made = ", ".join(f"{name} {number}" for name, number in versions().items())
    return (
        f"<section>\n<h2>Again</h2>\n<pre>{escape(say_command(run.record))}</pre>\n</section>\n"
        f"<footer>Every row is in results.csv, every number of this page in summary.json. Made with {escape(made)}.</footer>"
    )
