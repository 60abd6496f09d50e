"""Text made safe for one line of a message."""


def one_line(text: object, limit: int | None = None) -> str:
    """The text without line breaks, control characters and repeated spaces, cut after `limit` characters."""
    words = "".join(c if c.isprintable() else " " for c in str(text)).split()
    return " ".join(words)[:limit]
