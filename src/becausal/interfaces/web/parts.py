"""The page before and while it searches: the image, the welcome, the line, the explanation as it shrinks."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from becausal.core.contracts import Pixels, Saliency, Visible
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.markup import draw_bar, draw_figure, draw_figures, draw_pictures, write_share
from becausal.interfaces.web.pictures import Upload, array_uri, thumbnail
from becausal.render.painting import paint_explanation, paint_map
from becausal.render.sheets import Sheet, as_rgb, choose_scale, span

STAGES = {
    "search": "hiding parts, asking again",
    "extract": "taking the best pixels of the map",
    "minimise": "leaving out what is not needed",
    "verify": "checking once more",
}


def draw_start(
    examples: Sequence[Upload], limits: Limits, upload: Upload | None, uri: str, *, model: str = "", note: str = ""
) -> str:
    """The image that was chosen, the place to drop another, and the examples; model: the one it was shown to."""
    named = escape(upload.name) if upload is not None else ""
    shown = (
        f'<img src="{uri}" alt="The image {named}">'
        if upload is not None
        else '<div class="bc-empty" aria-hidden="true"></div>'
    )
    small = "".join(
        f'<button type="button" data-example="{number}" title="{escape(example.name[:-4])}" '
        f'aria-label="Example: {escape(example.name[:-4])}" aria-pressed="{"true" if upload is example else "false"}">'
        f'<img src="{thumbnail(example)}" alt=""></button>'
        for number, example in enumerate(examples)
    )
    error = f'<p class="bc-error" role="alert"{"" if note else " hidden"}>{escape(note)}</p>'
    return (
        f'<div class="bc-picture" data-limit="{limits.upload_bytes}" data-model="{escape(model)}">'
        f'<div class="bc-drop">{shown}<p class="bc-name">{named}</p></div>{error}'
        '<div class="bc-choose"><label class="bc-button"><input type="file" accept="image/*">Choose an image…</label>'
        f'<span title="up to {limits.upload_bytes / 1e6:.0f} MB">or drop or paste one</span></div>'
        f'<p class="bc-small" id="bc-examples">Or take an example:</p>'
        f'<div class="bc-examples" role="group" aria-labelledby="bc-examples">{small}</div></div>'
    )


def draw_hint() -> str:
    """The line beneath the buttons, which the page's script fills while an image is on its way."""
    return '<p class="bc-hint" role="status"></p>'


def draw_welcome() -> str:
    """What the page shows before anything was asked."""
    steps = (
        ("Choose an image", "Your own, or one of the examples. Something may stand in front of the object."),
        ("Press Explain", "Parts of the image are hidden, and the classifier is asked again and again."),
        ("Look", "What is left in the light is enough for the label: nothing else is needed."),
    )
    items = "".join(f"<li><b>{title}</b><span>{text}</span></li>" for title, text in steps)
    return (
        f'<section class="bc-stage bc-welcome"><h2>Which pixels make the classifier say that?</h2><ol>{items}</ol></section>'
    )


def draw_invitation() -> str:
    """What stands on the other tab before two methods were compared."""
    return (
        '<section class="bc-stage"><p class="bc-small">Both methods explain the label that is chosen on the left. Their '
        "maps, sets and figures are put side by side.</p></section>"
    )


def draw_error(message: str) -> str:
    """What went wrong, in a sentence."""
    return f'<section class="bc-stage"><p class="bc-error" role="alert">{escape(message)}</p></section>'


def draw_waiting(before: int) -> str:
    """In line."""
    said = "You are next." if before == 0 else f"{before} {'search is' if before == 1 else 'searches are'} before yours."
    return (
        '<section class="bc-stage" data-state="waiting"><h2 class="bc-say" role="status">Waiting for a free place. '
        f"{said}</h2>{draw_bar(None, 'waiting')}</section>"
    )


@dataclass(frozen=True)
class Shot:
    """An image of a running search: the view, the smallest sufficient set so far, the map as far as it is known."""

    view: Pixels
    visible: Visible
    depth: Saliency

    def sheet(self) -> Sheet:
        h, w = self.visible.shape
        low, high = span(self.view)
        picture = as_rgb(self.view, low, high)
        level = self.depth / max(float(self.depth.max()), 1e-12)
        scale = min(2, choose_scale((h, w)))
        return Sheet(picture, picture, self.visible, level, np.ones((h, w), bool), (), scale)


def draw_live(shot: Shot | None, *, calls: int, max_calls: int | None, stage: str, stopping: bool) -> str:
    """The explanation while it shrinks."""
    size = float(shot.visible.mean()) if shot is not None else 1.0
    doing = "rounding off the best so far" if stopping else STAGES.get(stage, stage)
    if shot is None or size >= 1:
        say = f"Searching: {doing}…"
    else:
        say = f"{write_share(size)} of the pixels are enough so far. Smaller still?"
    pictures = ""
    if shot is not None:
        sheet = shot.sheet()
        lit, heat = array_uri(paint_explanation(sheet), "JPEG"), array_uri(paint_map(sheet), "JPEG")
        pictures = draw_pictures(
            draw_figure(lit, "What is enough so far", "", f"What is enough so far: {write_share(size)} of the pixels"),
            draw_figure(heat, "The map so far", "", "The map so far: brighter where a pixel was needed longer"),
        )
    figures = draw_figures([("calls", f"{calls:,}"), ("size", write_share(size)), ("doing", doing)])
    bar = draw_bar(calls / max_calls if max_calls else None, doing)
    return (
        f'<section class="bc-stage" data-state="running" data-size="{size:.6f}" data-calls="{calls}">'
        f'<h2 class="bc-say">{say}</h2>{bar}{pictures}{figures}</section>'
    )


def draw_comparing(methods: tuple[str, str], *, calls: int, stopping: bool) -> str:
    """While two methods run, one after the other."""
    doing = "stopping" if stopping else "asking the classifier"
    first, second = (f"<em>{escape(method)}</em>" for method in methods)
    return (
        f'<section class="bc-stage" data-state="running" data-calls="{calls}"><h2 class="bc-say">Comparing {first} and '
        f"{second}…</h2>{draw_bar(None, doing)}{draw_figures([('calls', f'{calls:,}'), ('doing', doing)])}</section>"
    )
