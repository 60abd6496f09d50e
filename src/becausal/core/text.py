"""Text for one line of a message."""

import errno

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
    words = "".join(c if c.isprintable() else " " for c in str(text)).split()
    return " ".join(words)[:limit]


def reason_of(error: BaseException) -> str:
    """Why something failed, in one line: what the system says in our words, without the names of exceptions."""
    if isinstance(error, UnicodeError):
        return "it is not text in UTF-8"
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0) or one_line(error.strerror or error, 200)
    return one_line(error, 200)
