"""Text made safe: for one line of a message, for files, and for spreadsheets."""

import errno
import re
from typing import Any

_SURROGATES = re.compile("[\ud800-\udfff]")
_FORMULA = re.compile(r"'*[=+\-@\t\r]")  # what a spreadsheet may run, whatever stands before it by now
_REASONS = {
    errno.ENOTDIR: "a part of its path is a file, not a folder",
    errno.EISDIR: "it is a folder",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.ENOENT: "it does not exist",
    errno.ENAMETOOLONG: "its name is too long",
    errno.ELOOP: "it is a link to itself",
    errno.ENOSPC: "the disk is full",
}


def one_line(text: object, limit: int | None = None) -> str:
    """The text without line breaks, control characters and repeated spaces, cut after `limit` characters."""
    whole = str(text)
    if limit is not None:
        whole = whole[: 8 * limit]  # more than a line needs, unless it is mostly spaces; a label may have any length
    if not whole.isprintable():
        whole = "".join(c if c.isprintable() else " " for c in whole)
    return " ".join(whole.split())[:limit]


def reason_of(error: BaseException) -> str:
    """Why something failed, in one line: what the system says in our words, without the names of exceptions."""
    if isinstance(error, UnicodeError):
        return "it is not text in UTF-8"
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0) or one_line(error.strerror or error, 200)
    return one_line(error, 200)


def replace_surrogates(text: str) -> str:
    """The text as UTF-8 can hold it: surrogates, which JSON and damaged metadata may contain, become U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


def to_cell(value: Any) -> Any:
    """A value for a CSV file: text that a spreadsheet would take as a formula gets a `'`; numbers stay as they are."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def from_cell(text: str) -> str:
    """The text of a cell as it was before `to_cell`."""
    return text[1:] if text.startswith("'") and _FORMULA.match(text) else text


def format_cost(cost: float) -> str:
    """An amount of money with two decimals, four where it is small: 12.50, 0.0030."""
    return f"{cost:,.{2 if cost >= 0.1 else 4}f}"
