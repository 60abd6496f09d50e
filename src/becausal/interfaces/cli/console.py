"""Output of the command line: one-line errors, tables, JSON, and the summary of an explanation."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from becausal.core.errors import OutputError
from becausal.core.text import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from becausal.api.explanation import Explanation

_LONGEST = 600  # characters of a message
_STYLES = {True: "green", False: "yellow", None: ""}


def complain(message: str, *, kind: str = "error") -> None:
    """Print a message as one line on stderr; of a very long one, as a value in it may be, the middle is left out."""
    text = one_line(message)
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
    print(f"becausal: {kind}: {text}", file=sys.stderr, flush=True)


_waiting: list[str] | None = None  # documents for stdout, while other output goes to stderr


def write_json(value: Any) -> None:
    """Print one JSON document on stdout; inside `print_documents_only`, at its end."""
    text = json.dumps(value, indent=2, allow_nan=False)
    if _waiting is None:
        print(text, flush=True)
    else:
        _waiting.append(text)


@contextmanager
def print_documents_only() -> Iterator[None]:
    """Send everything that models and libraries print to stderr, also from C and from worker processes."""
    global _waiting
    documents: list[str] = []
    _waiting = documents
    try:
        with _divert_stdout(), redirect_stdout(sys.stderr):
            yield
    finally:
        _waiting = None
        for text in documents:
            print(text, flush=True)


@contextmanager
def _divert_stdout() -> Iterator[None]:
    """Let the file descriptor of stdout stand for stderr, if stdout is a file, a pipe or a terminal."""
    kept = None
    with suppress(OSError, ValueError, AttributeError):  # stdout may be closed, or replaced by an object without a file
        if sys.stdout.fileno() == 1:
            sys.stdout.flush()
            kept = os.dup(1)
            os.dup2(sys.stderr.fileno(), 1)
    try:
        yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


def open_console(*, stderr: bool = False) -> "Console":
    """Make a console that uses colours on a terminal and writes plain text everywhere else."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True, markup=False)


def print_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a plain table with a bold first column; cells are printed as they are, without markup."""
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
        console.width = max(console.width, 160)  # lines in a file or a pipe need not be wrapped
    console.print(table)


def print_facts(console: "Console", facts: "list[tuple[str, str | Text]]") -> None:
    """Print indented lines of a name and a text."""
    from rich.text import Text

    width = max(len(name) for name, _ in facts)
    for name, text in facts:
        line = Text(f"  {name:<{width}}  ", style="dim")
        line.append_text(text if isinstance(text, Text) else Text(one_line(text), style="not dim"))
        console.print(line)


def print_summary(explanation: "Explanation", folder: Path) -> None:
    """Print what was found, its levels, the checks of the (first) explanation, the cost, and where the files are."""
    from rich.text import Text

    from becausal.render.limits import describe_price, describe_stop
    from becausal.render.wording import (
        describe_box,
        describe_checks,
        describe_extent,
        describe_level,
        describe_set,
        format_confidence,
        format_count,
        headline,
        is_plain,
    )

    console = open_console()
    origin = explanation.origin
    if is_plain(explanation) or explanation.target.box is not None:
        head = Text(one_line(explanation.label), style="bold magenta")
        place = f"{format_confidence(explanation.confidence)} {describe_box(explanation)}"
        head.append(f" {place}".rstrip(), style="not bold")
        head.append(f"  {one_line(origin.image)}", style="not bold default")
    else:
        head = Text(f"{one_line(origin.image)}: ")
        for span in headline(explanation):
            head.append(one_line(span.text) if span.is_label else span.text, style="bold magenta" if span.is_label else "")
    console.print(head)
    facts: list[tuple[str, str | Text]] = [("explanation", describe_extent(explanation))]
    if len(explanation.levels) > 1:
        facts = [(f"level {level.name}", describe_level(level, explanation)) for level in reversed(explanation.levels)]
    checks = [check for check in describe_checks(explanation) if check.name != "pieces"]
    width = max(len(check.answer) for check in checks)
    for check in checks:
        answer = Text(f"{check.answer:<{width}}", style=f"not dim {_STYLES[check.holds]}".strip())
        facts.append((check.name, answer.append(f"  {check.meaning}", style="dim default")))
    facts += [(f"explanation {number}", describe_set(found)) for number, found in enumerate(explanation.others, start=2)]
    spent = [format_count(explanation.calls, "call"), describe_price(explanation), f"{explanation.seconds:.1f} s"]
    cost = ", ".join([*filter(None, spent), f"method {origin.method}"])
    facts += [("cost", cost), ("files", f"{folder}/  (open report.html)")]
    facts += [("note", note) for note in explanation.notes]
    if stopped := describe_stop(explanation):
        facts.append(("cut short", Text(stopped, style="not dim bold yellow")))
    print_facts(console, facts)
    console.print()


def check_writable(out: Path) -> None:
    """Check that a folder exists or can be made, before any model call; nothing is written.

    Raises:
        OutputError: It cannot be written to.
    """
    place = out.absolute()
    while not os.path.lexists(place):
        place = place.parent
    if not place.is_dir():
        raise OutputError(f"cannot write to {out}: {place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write to {out}: no permission in {place}")
