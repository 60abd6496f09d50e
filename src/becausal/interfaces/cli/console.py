"""What the command line writes: errors in one line, tables, JSON, and the summary of an explanation."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from becausal.api.explanation import Explanation

_STYLES = {True: "green", False: "yellow", None: ""}


def complain(message: str, *, kind: str = "error") -> None:
    """One line on stderr, whatever the message holds."""
    print(f"becausal: {kind}: {one_line(message)}", file=sys.stderr, flush=True)


def one_line(text: str) -> str:
    """The text without line breaks, control characters and runs of blanks."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def write_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, allow_nan=False), flush=True)


def open_console(*, stderr: bool = False) -> "Console":
    """A console that colours words on a terminal and writes plain text everywhere else."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True, markup=False)


def print_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """A plain table, first column bold; whatever a cell holds is written as it is."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0, style="bold" if number == 0 else "")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = max(console.width, 160)  # in a file or a pipe nothing need be folded
    console.print(table)


def print_facts(console: "Console", facts: "list[tuple[str, str | Text]]") -> None:
    """Indented lines of a name and what there is to say."""
    from rich.text import Text

    width = max(len(name) for name, _ in facts)
    for name, said in facts:
        line = Text(f"  {name:<{width}}  ", style="dim")
        line.append_text(said if isinstance(said, Text) else Text(one_line(said), style="not dim"))
        console.print(line)


def print_summary(explanation: "Explanation", folder: Path) -> None:
    """What was found, checked and spent, and where the files are; the checks are those of the first explanation."""
    from rich.text import Text

    from becausal.render.wording import (
        say_checks,
        say_confidence,
        say_count,
        say_extent,
        say_further,
        say_money,
        say_stopped,
    )

    console = open_console()
    origin = explanation.origin
    head = Text(one_line(explanation.label), style="bold magenta")
    head.append(f" {say_confidence(explanation.confidence)}".rstrip(), style="not bold")
    head.append(f"  {one_line(origin.image)}", style="not bold default")
    console.print(head)
    facts: list[tuple[str, str | Text]] = [("explanation", say_extent(explanation))]
    checks = [check for check in say_checks(explanation) if check.name != "pieces"]
    width = max(len(check.answer) for check in checks)
    for check in checks:
        said = Text(f"{check.answer:<{width}}", style=f"not dim {_STYLES[check.holds]}".strip())
        facts.append((check.name, said.append(f"  {check.meaning}", style="dim default")))
    facts += [(f"explanation {number}", said) for number, said in enumerate(say_further(explanation), start=2)]
    spent = [say_count(explanation.calls, "call"), say_money(explanation), f"{explanation.seconds:.1f} s"]
    cost = ", ".join([*filter(None, spent), f"method {origin.method}"])
    facts += [("cost", cost), ("files", f"{folder}/  (open report.html)")]
    facts += [("note", note) for note in explanation.notes]
    if stopped := say_stopped(explanation):
        facts.append(("cut short", Text(stopped, style="not dim bold yellow")))
    print_facts(console, facts)
    console.print()
