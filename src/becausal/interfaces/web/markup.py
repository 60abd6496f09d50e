"""Small pieces of HTML that the larger ones are made of; images are data URIs, and no text is left unescaped."""

from collections.abc import Sequence
from html import escape

from becausal.core.explanation import ExplanationRecord
from becausal.render.comparison import clipped
from becausal.render.sheets import Sheet, lay_out
from becausal.render.wording import say_checks, say_share

NBSP = "\N{NO-BREAK SPACE}"


def write_share(share: float) -> str:
    """A share in per cent that no line break parts from its sign."""
    return say_share(share).replace(" ", NBSP)


def draw_pictures(*figures: str) -> str:
    """Figures side by side."""
    return f'<div class="bc-pictures">{"".join(figures)}</div>'


def draw_figure(uri: str, title: str, text: str, alt: str, *, inner: str = "", extra: str = "") -> str:
    """An image with its title and a line of text beneath; title and text are HTML already."""
    return (
        f"<figure><div {extra}>"
        f'<img src="{uri}" alt="{escape(alt)}" draggable="false">{inner}</div>'
        f"<figcaption><b>{title}</b>{text}</figcaption></figure>"
    )


def draw_figures(items: Sequence[tuple[str, str]]) -> str:
    """Numbers with their names."""
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in items)
    return f'<dl class="bc-figures">{cells}</dl>'


def draw_bar(share: float | None, doing: str) -> str:
    """How far it is; a wave where nobody knows."""
    if share is None:
        return f'<div class="bc-bar bc-wave" role="progressbar" aria-label="{escape(doing)}"><i></i></div>'
    percent = round(100 * min(1.0, share))
    return (
        f'<div class="bc-bar" role="progressbar" aria-label="calls of the budget" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{percent}"><i style="width: {percent}%"></i></div>'
    )


def draw_checks(explanation: ExplanationRecord) -> str:
    """What was checked, and how it went."""
    marks = {True: ("yes", "✓"), False: ("no", "✗"), None: ("flat", "–")}
    items = []
    for check in say_checks(explanation):
        if check.name in ("sufficient", "minimal", "necessary"):
            kind, sign = marks[check.holds]
            items.append(
                f'<li class="bc-{kind}"><b><i aria-hidden="true">{sign}</i> {check.name}: {escape(check.answer)}</b>'
                f"<span>{escape(check.meaning)}</span></li>"
            )
    return f'<ul class="bc-checks">{"".join(items)}</ul>'


def draw_download(token: str, title: str, text: str) -> str:
    """A way to the files."""
    return f'<p class="bc-get"><a class="bc-button" href="download/{token}" download>{title}</a><span>{text}</span></p>'


def lay_answer(explanation: ExplanationRecord) -> Sheet:
    """The answer laid out; the maps of other methods, which crowd at one end of their range, spread for the eye."""
    return lay_out(explanation if explanation.origin.method == "causal" else clipped(explanation))
