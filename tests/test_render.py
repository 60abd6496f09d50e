"""Figures and the report, from hand-made explanations: any grid, any number of channels, any label."""

import base64
import dataclasses
import io
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from jinja2 import UndefinedError
from PIL import Image

from becausal.api.explanation import Explanation
from becausal.core.checks import CheckedSet, Checks, Level
from becausal.core.explanation import NamedScore, Origin
from becausal.core.frames import Frame
from becausal.core.request import Request
from becausal.core.stats import Stats
from becausal.core.targets import Target
from becausal.render.command import format_command
from becausal.render.figures import explanation_png, new_figure, plot, png_bytes, printable
from becausal.render.limits import describe_stop
from becausal.render.pages import render_page
from becausal.render.painting import (
    COLOURS,
    colour_of,
    dilate,
    line_of,
    paint_explanation,
    paint_image,
    paint_map,
    paint_mutant,
    rgb_of,
)
from becausal.render.report import render_report
from becausal.render.sheets import as_heat, choose_scale, choose_slices, enlarge, lay_out, lay_out_original
from becausal.render.signals import draw_curve, find_intervals
from becausal.render.thumbnails import make_thumbnail
from becausal.render.wording import (
    as_text,
    describe_checks,
    describe_extent,
    describe_level,
    describe_target,
    format_confidence,
    format_share,
    headline,
    question,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRIDS = [(400,), (1,), (32, 48), (1, 1), (4, 4), (224, 224), (700, 20), (12, 16, 16), (1, 8, 8)]


def make(grid: tuple[int, ...] = (32, 48), channels: int = 3, dtype: str = "uint8", label: str = "bus") -> Explanation:
    rng = np.random.default_rng(0)
    view = rng.integers(0, 255, (*grid, channels)).astype(dtype)
    visible = np.zeros(grid, bool)
    visible[tuple(slice(side // 3, side // 3 + max(1, side // 3)) for side in grid)] = True
    origin = Origin(
        image="photo.jpg",
        image_sha256="ab" * 32,
        model="net.onnx",
        model_sha256="cd" * 32,
        preprocess="short side to 32; tf",
        loading={"labels": "names.txt", "resize": "256"},
        method="dc-causal",
        options={"partitions": 50, "strict": False},
        request=Request(fills=("grey", "blur"), seed=7),
        grain=4,
        versions={"python": "3.11.0", "becausal": "0.1.0"},
    )
    return Explanation(
        label=label,
        label_id=3,
        confidence=0.972,
        target=Target(3),
        visible=visible,
        responsibility=rng.random(grid),
        checks=Checks(True, 0.41, True, 4, 12),
        stopped_by="finished",
        stats=Stats(calls=545, asked=600, batches=20, slots=640, model_seconds=1.0, seconds=1.5),
        origin=origin,
        view=view,
        backgrounds=(np.full_like(view, 128),),
        frame=Frame.identity(grid),
        notes=("a note",),
    )


def size_of(png: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(png)) as image:
        image.load()
        return image.size


#: Every kind of image, in every shape; in CI each shape in one kind.
DRAWN = [
    pytest.param(grid, *kind, marks=[pytest.mark.slow] if (i + k) % 3 else [])
    for i, grid in enumerate(GRIDS)
    for k, kind in enumerate([(3, "uint8"), (1, "float32"), (5, "float64")])
]


@pytest.mark.parametrize(("grid", "channels", "dtype"), DRAWN)
def test_every_grid_is_drawn(grid: tuple[int, ...], channels: int, dtype: str) -> None:
    explanation = make(grid, channels, dtype)
    for png in (explanation_png(explanation), png_bytes(plot(explanation))):
        assert size_of(png)[0] >= 400 or grid == (700, 20)
    assert "<figure>" in render_report(explanation)


@pytest.mark.parametrize("grid", [(400,), (32, 48), (12, 16, 16)])
def test_a_notebook_gets_a_picture(grid: tuple[int, ...]) -> None:
    assert size_of(png_bytes(plot(make(grid))))[0] > 1000


def test_the_explanation_shows_exactly_its_own_pixels() -> None:
    explanation = make((28, 56))
    with Image.open(io.BytesIO(explanation_png(explanation))) as image:
        drawn = np.asarray(image.convert("RGB"))
    scale = drawn.shape[1] // 56
    assert drawn.shape[1:] == (56 * scale, 3)
    drawn = drawn[: 28 * scale]  # the legend is below
    shown = explanation.visible.repeat(scale, 0).repeat(scale, 1)
    view = explanation.view.repeat(scale, 0).repeat(scale, 1)
    np.testing.assert_array_equal(drawn[shown], view[shown])
    ring = dilate(shown, 4)
    assert drawn[~ring].min() > 110  # the rest lies under a light veil


def test_a_mutant_is_painted_as_it_was_asked() -> None:
    explanation = make()
    sheet = lay_out(explanation)
    np.testing.assert_array_equal(
        paint_mutant(sheet, sheet.visible)[:: sheet.scale, :: sheet.scale], explanation.mutant(explanation.visible)
    )


def test_the_whole_view_and_nothing_can_be_painted() -> None:
    for visible in (np.ones((8, 8), bool), np.zeros((8, 8), bool)):
        explanation = dataclasses.replace(make((8, 8)), visible=visible)
        assert paint_explanation(lay_out(explanation)).shape[2] == 3
        assert render_report(explanation)


@pytest.mark.parametrize("values", [np.zeros((8, 8)), -np.ones((8, 8)), np.full((8, 8), np.nan), np.eye(8) * 1e-300])
def test_odd_maps_are_drawn(values: np.ndarray) -> None:
    assert size_of(png_bytes(plot(dataclasses.replace(make((8, 8)), responsibility=values))))[0] >= 400
    assert np.isfinite(as_heat(values)).all()
    assert np.abs(as_heat(values)).max() <= 1


@pytest.mark.parametrize("label", ["$x_1$ and $", "\\frac", "a\nb\tc", "大熊猫 🐼", "x" * 500, "", "100 % {sure}"])
def test_any_label_can_be_a_title(label: str) -> None:
    explanation = make(label=label)
    png_bytes(plot(explanation))
    png_bytes(plot(explanation))
    assert len(printable(label)) <= 72


def test_the_same_explanation_gives_the_same_bytes() -> None:
    assert png_bytes(plot(make())) == png_bytes(plot(make()))
    assert explanation_png(make()) == explanation_png(make())
    assert render_report(make()) == render_report(make())


def test_threads_may_draw_at_once() -> None:
    pages: list[str] = []
    threads = [threading.Thread(target=lambda: pages.append(render_report(make((16, 16))))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pages) == 4
    assert len(set(pages)) == 1


class Page(HTMLParser):
    """Collects the tags, addresses, alternative texts and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.alts: list[str | None] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]
        if tag == "img":
            self.alts.append(dict(attrs).get("alt"))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_nothing_that_was_given_becomes_markup() -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    explanation = make(label=evil)
    explanation = dataclasses.replace(
        explanation,
        notes=(evil,),
        origin=dataclasses.replace(
            explanation.origin,
            image=evil,
            model=evil,
            method=evil,
            preprocess=evil,
            loading={evil: evil},
            options={evil: [evil]},
            request=Request(fills=(evil,)),
            versions={evil: evil},
        ),
    )
    text = render_report(explanation)
    page = Page(text)
    assert "script" not in page.tags
    assert page.tags.count("img") == 5
    assert "<script" not in text
    assert evil in "".join(page.words)


def test_the_report_needs_nothing_but_itself() -> None:
    text = render_report(make())
    page = Page(text)
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert not re.search(r"https?:|url\(|@import|//", re.sub(r"data:image/png;base64,[^\"]*", "", text))
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert all(page.alts)
    assert page.tags.count("h1") == 1


def test_the_report_says_what_was_found() -> None:
    words = " ".join("".join(Page(render_report(make())).words).replace("\xa0", " ").split())
    assert "The model says bus (0.97). 10 % of the pixels (160) alone keep bus with a confidence of 0.41." in words
    assert "Stopped early" not in words
    assert "becausal explain photo.jpg" in words


@pytest.mark.parametrize(
    ("stopped_by", "max_calls", "text"),
    [
        ("budget", 545, "The limit of 545 model calls was reached before the search finished. This is the best"),
        ("budget", 600, "The limit of 600 model calls ended the search after 545: the rest was reserved for"),
        ("interrupt", None, "The search was interrupted. This is the best explanation found so far"),
        ("failure", None, "The model failed before the search finished. This is the best"),
    ],
)
def test_an_answer_cut_short_is_marked(stopped_by: str, max_calls: int | None, text: str) -> None:
    explanation = make()
    origin = dataclasses.replace(explanation.origin, request=Request(max_calls=max_calls))
    explanation = dataclasses.replace(explanation, stopped_by=stopped_by, origin=origin)
    assert text in describe_stop(explanation)
    assert describe_stop(explanation).count("search") == 1 or stopped_by == "budget"
    assert 'class="warning"' in render_report(explanation)


# Headlines: one sentence from the target, everywhere


COUGAR, LION = NamedScore("cougar", 286, 0.81), NamedScore("lion", 291, 0.03)


def ask_about(target: Target, score: NamedScore, **changes: object) -> Explanation:
    explanation = dataclasses.replace(
        make(label=score.label), label_id=score.label_id, confidence=score.confidence, target=target
    )
    return dataclasses.replace(explanation, **changes)


@pytest.mark.parametrize(
    ("explanation", "sentence"),
    [
        (
            ask_about(Target(291, top=5), LION, top=COUGAR),
            "The model says cougar (0.81). 10 % of the pixels (160) alone keep lion (0.03) among the top 5 labels "
            "with a confidence of 0.41.",
        ),
        (
            ask_about(Target(291, top=5), LION),
            "The model gives lion a confidence of 0.03. 10 % of the pixels (160) alone keep lion among the top 5 labels "
            "with a confidence of 0.41.",
        ),
        (
            ask_about(Target(286, against=291), COUGAR, top=COUGAR, rival=LION),
            "The model says cougar (0.81). 10 % of the pixels (160) alone keep cougar ahead of lion with a confidence "
            "of 0.41.",
        ),
        (
            ask_about(Target(286, floor=0.729), COUGAR, checks=Checks(True, float("nan"))),
            "The model says cougar (0.81). 10 % of the pixels (160) alone keep cougar with a confidence of at least 0.73.",
        ),
        (
            ask_about(Target(291, threshold=0.5), NamedScore("lion", 291, 0.6), top=COUGAR),
            "The model says lion (0.60). 10 % of the pixels (160) alone keep lion at a probability of at least 0.5 with a "
            "confidence of 0.41.",
        ),
        (
            ask_about(Target(291), NamedScore("lion", 291, float("nan")), checks=Checks(True, float("nan"))),
            "The model says lion. 10 % of the pixels (160) alone keep lion.",
        ),
        (
            ask_about(Target(286), COUGAR, checks=Checks(False, 0.2)),
            "The model says cougar (0.81). No sufficient set was found; the best candidate has 10 % of the pixels.",
        ),
    ],
)
def test_the_headline_answers_the_question(explanation: Explanation, sentence: str) -> None:
    assert as_text(headline(explanation)) == sentence
    page = Page(render_report(explanation))
    assert sentence in " ".join("".join(page.words).replace("\xa0", " ").split())
    assert str(explanation).splitlines()[0] == sentence
    assert figure_text(plot(explanation)).replace("\n", " ").startswith(sentence)


def test_a_rival_is_called_by_its_name() -> None:
    explanation = ask_about(Target(286, against=291, floor=0.5), COUGAR, rival=LION)
    assert as_text(question(explanation)) == "Why cougar (0.81) rather than lion?"
    texts = [describe_target(explanation), *(check.meaning for check in describe_checks(explanation))]
    assert texts[0] == "cougar stays ahead of lion, with a confidence of at least 0.50"
    assert "keep the lead of cougar over lion and its confidence" in texts[1]
    assert not any("class 291" in text for text in texts)
    named = dataclasses.replace(explanation.origin, request=Request(against="lion"))
    assert "class" not in describe_target(dataclasses.replace(explanation, rival=None, origin=named))


def figure_text(figure: "Figure") -> str:
    """The title of a figure, and the texts of its legend."""
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return "\n".join([figure.get_suptitle(), *legends])


def test_notes_are_shown_prominently() -> None:
    note = "imagenet normalisation assumed"
    explanation = dataclasses.replace(make(), notes=(note,))
    assert f"note: {note}" in str(explanation).splitlines()
    assert f"Note: {note}" in figure_text(plot(explanation))
    text = render_report(explanation)
    assert text.index(note) < text.index("data:image/png")  # before the images
    assert "notes" not in re.sub(r"(?s)<style>.*?</style>", "", render_report(dataclasses.replace(make(), notes=())))


def test_a_coarser_grain_says_why_and_how_to_go_on() -> None:
    explanation = make()
    options = {"effort": 1100}
    origin = dataclasses.replace(explanation.origin, grain=2, options=options)
    meaning = describe_checks(dataclasses.replace(explanation, origin=origin))[1].meaning
    assert "2 px was asked for, but the effort limit of 1,100 calls was reached" in meaning
    assert "--option effort=none" in meaning
    cut = describe_checks(dataclasses.replace(explanation, origin=origin, stopped_by="budget"))[1].meaning
    assert "2 px was asked for, but the search ended before that was proved" in cut
    assert "asked for" not in describe_checks(explanation)[1].meaning


# Levels


def make_levels(grid: tuple[int, ...] = (36, 54), *, original: bool = False) -> Explanation:
    """Three nested levels; with an original of twice the size, of which the view is the middle."""
    sides = [(side // 3, side // 3 + max(1, side // 3)) for side in grid]
    levels = []
    for number, (name, share) in enumerate((("label", 0.0), ("half", 0.5), ("most", 0.9))):
        visible = np.zeros(grid, bool)
        visible[tuple(slice(start, stop + 3 * number) for start, stop in sides)] = True
        levels.append(Level(visible, Checks(True, 0.31 + 0.3 * number, True, 4, 5 - 2 * number), name, share))
    explanation = dataclasses.replace(
        make(grid), visible=levels[-1].visible, checks=levels[-1].checks, levels=tuple(levels), target=Target(3, floor=0.87)
    )
    if not original:
        return explanation
    h, w = grid
    pixels = np.full((2 * h, 4 * w, 3), 20, np.uint8)
    frame = Frame((2 * h, 4 * w), (h, 2 * w), (0, w // 2), grid)
    return dataclasses.replace(explanation, original=pixels, frame=frame)


def test_every_sentence_names_the_level_its_pixels_and_its_confidence() -> None:
    explanation = make_levels()
    sentence = (
        "The model says bus (0.97). 22 % of the pixels (432) alone keep bus with a confidence of 0.91. 11 % (216) are "
        "enough for the label alone (confidence 0.31)."
    )
    assert as_text(headline(explanation)) == sentence
    lines = str(explanation).splitlines()
    assert lines[0] == sentence
    assert lines[1].startswith("level most: 22 % of the view: 432 pixels in 1 piece, confidence 0.91, sufficient, minimal")
    assert lines[3].startswith("level label: 11 % of the view: 216 pixels in 1 piece, confidence 0.31")
    assert describe_level(explanation.levels[1], explanation) == (
        "16 % of the view: 315 pixels in 1 piece, confidence 0.61, enough for half of the confidence"
    )
    text = figure_text(plot(explanation))
    assert "most of the confidence (90 %): 22 %" in text
    assert "the label: 11 % of the pixels (216), confidence 0.31" in text


def test_an_outer_level_is_minimal_in_what_it_adds() -> None:
    explanation = make_levels()
    sufficient, minimal, necessary = describe_checks(explanation)[:3]
    assert sufficient.meaning.endswith("keep the label and 90 % of its confidence")
    assert minimal.meaning == (
        "no cell of 4 × 4 pixels that it adds to the level inside it can be removed without losing the label or 90 % of its "
        "confidence (1 removal tested)"
    )
    assert necessary.meaning == "when these pixels are masked, the label or 90 % of its confidence is lost"
    same = dataclasses.replace(explanation, checks=dataclasses.replace(explanation.checks, cells=0))
    assert describe_checks(same)[1].meaning == "it adds nothing to the level inside it"


def test_holes_are_counted_in_words() -> None:
    visible = np.ones((9, 9), bool)
    visible[4, 4] = False
    assert describe_extent(CheckedSet(visible, Checks(True, 0.5))) == "99 % of the view: 80 pixels in 1 piece with 1 hole"
    assert describe_extent(CheckedSet(np.array([1, 0, 1], bool), Checks(True, 0.5))).endswith("2 samples in 2 pieces")


def near(drawn: np.ndarray, colour: str) -> np.ndarray:
    return np.abs(drawn.astype(float) - rgb_of(colour)).max(axis=-1) < 40


@pytest.mark.parametrize("value", [0, 255])
def test_levels_are_contour_lines_on_dark_and_light_images(value: int) -> None:
    explanation = make_levels()
    sheet = lay_out(dataclasses.replace(explanation, view=np.full((36, 54, 3), value, np.uint8)))
    for drawn in (paint_explanation(sheet), paint_map(sheet)):
        for number, level in enumerate(explanation.levels):
            inside = enlarge(level.visible, sheet.scale)
            rim = dilate(inside, 3) & dilate(~inside, 3)  # along the edge of the level
            assert near(drawn, line_of(number, 3).colour)[rim].mean() > 0.05
        assert (drawn[dilate(enlarge(explanation.visible, sheet.scale), 6)].max(axis=-1) < 70).any()  # the dark line
    outside = ~dilate(enlarge(explanation.visible, sheet.scale), 6)
    assert (paint_explanation(sheet)[outside] > 110).all()  # a light veil: a dark object stands out


def test_an_explanation_is_drawn_on_the_original_image() -> None:
    explanation = make_levels(original=True)
    sheet = lay_out_original(explanation)
    h, w = sheet.visible.shape
    assert w >= 800
    assert abs(w / h - 216 / 72) < 0.02
    assert sheet.in_view is not None
    assert 0.45 < sheet.in_view.mean() < 0.55
    assert sheet.visible.mean() == pytest.approx(explanation.visible.mean() / 2, rel=0.05)
    assert all((small <= large).all() for small, large in pairwise((*sheet.inner, sheet.visible)))
    image = paint_image(sheet)
    assert image[~dilate(sheet.in_view, 2)].min() > image[sheet.in_view].max()  # what the model does not see is faded
    assert size_of(explanation_png(explanation))[0] == w
    report = render_report(explanation)
    assert "72 × 216; the model sees the part inside the frame, as 36 × 54." in report
    with np.load(io.BytesIO(explanation.files(render=False)["arrays.npz"])) as arrays:
        assert "original" not in arrays
    assert lay_out_original(dataclasses.replace(explanation, original=None)).visible.shape == (36, 54)


@pytest.mark.parametrize("grid", [(400,), (36, 54), (12, 18, 18)])
def test_levels_are_shown_in_every_figure_and_on_the_report(grid: tuple[int, ...]) -> None:
    explanation = make_levels(grid)
    assert size_of(explanation_png(explanation))[0] >= 400
    assert "half of the confidence: " in figure_text(plot(explanation))
    text = render_report(explanation)
    page = Page(text)
    words = " ".join("".join(page.words).replace("\xa0", " ").split())
    assert page.tags.count("tr") >= 4
    for name, confidence in (("Label", "0.31"), ("Half", "0.61"), ("Most", "0.91")):
        assert re.search(rf"{name} ?(the label|half of|most of).*?{confidence}", words)
    assert "Checks of the level most" in words
    if len(grid) > 1:
        assert text.count('type="radio"') == 3  # one image for each level, without a script
        assert page.tags.count("img") == 7
        assert text.index('id="level-3" checked') > 0
    assert "script" not in page.tags


def test_spans_of_inner_levels_are_darker() -> None:
    figure = new_figure(6, 2)
    draw_curve(figure.add_subplot(), make_levels((400,)))
    colours = [span.get_facecolor()[:3] for span in figure.axes[0].patches]
    assert len(set(colours)) == 3
    assert sum(colours[-1]) < sum(colours[0])


def test_a_thumbnail_shows_the_outer_and_the_inner_level() -> None:
    explanation = dataclasses.replace(make_levels(), view=np.full((36, 54, 3), 60, np.uint8))
    content = base64.b64decode(make_thumbnail(explanation).partition(",")[2])
    with Image.open(io.BytesIO(content)) as image:
        drawn = np.asarray(image.convert("RGB")).astype(float)
    assert ((drawn[..., 2] - drawn[..., 0]) > 80).sum() > 40  # blue, around the label


# Several explanations


def make_several(grid: tuple[int, ...] = (32, 48)) -> Explanation:
    """Three explanations; the second and the third touch each other."""
    others = []
    for number, checks in enumerate((Checks(True, 0.62, False, 4, 3), Checks(True, 0.35, None, None))):
        visible = np.zeros(grid, bool)
        visible[tuple(slice(number * (side // 9), (number + 1) * (side // 9)) for side in grid)] = True
        others.append(CheckedSet(visible, checks))
    return dataclasses.replace(make(grid), others=tuple(others))


def test_every_explanation_is_drawn_in_its_colour() -> None:
    explanation = make_several((36, 54))
    with Image.open(io.BytesIO(explanation_png(explanation))) as image:
        drawn = np.asarray(image.convert("RGB"))
    scale = lay_out(explanation).scale
    assert drawn.shape[0] > 36 * scale + 60  # the legend below
    for number, found in enumerate(explanation.sets):
        shown = found.visible.repeat(scale, 0).repeat(scale, 1)
        near = dilate(shown, 4) & ~shown
        distance = np.abs(drawn[: 36 * scale, : 54 * scale] - colour_of(number)).sum(axis=-1)
        assert (distance[near] < 80).sum() > 20
    assert len(set(COLOURS)) == len(COLOURS)
    for number, found in enumerate(explanation.sets):
        alone = paint_explanation(lay_out(explanation).only(number))
        assert alone[::scale, ::scale][~dilate(found.visible, 2)].min() > 110  # the others are not shown


@pytest.mark.parametrize("grid", [(400,), (32, 48), (12, 18, 18)])
def test_every_explanation_has_its_numbers(grid: tuple[int, ...]) -> None:
    explanation = make_several(grid)
    unit = {1: "sample", 2: "px", 3: "voxel"}[len(grid)]
    for text in (figure_text(plot(explanation)), figure_text(plot(explanation)), str(explanation)):
        for confidence in ("0.41", "0.62", "0.35"):
            assert f"confidence {confidence}, sufficient" in text
        assert text.count(f"minimal at 4 {unit}") == 2
    page = Page(render_report(explanation))
    words = " ".join("".join(page.words).split())
    assert "3 explanations" in words
    for number, confidence in ((1, "0.41"), (2, "0.62"), (3, "0.35")):
        assert re.search(rf"Explanation {number}[\d.]+ % of the view: [\d,]+ \w+ in 1 piece ?confidence {confidence}", words)
    assert "2 further sets are sufficient as well" in words
    assert size_of(explanation_png(explanation))[0] >= 400


def test_slices_pass_through_every_explanation() -> None:
    explanation = make_several((12, 18, 18))
    captions = {tile.caption for tile in lay_out(explanation).tiles}
    assert {"slice 0", "slice 1"} <= captions


def test_a_further_explanation_is_named_where_it_is_asked_why() -> None:
    explanation = make_several((36, 54))
    row, column = np.argwhere(explanation.others[1].visible)[0]
    why = explanation.why(int(row), int(column))
    assert not why.part
    assert why.text.startswith("part of explanation 3, not of the first")


def test_wide_tables_scroll_in_their_own_box() -> None:
    folder = files("becausal.render") / "templates"
    for name in ("bench.html", "comparison.html", "diff.html", "macros.html", "report.html", "run.html"):
        text = (folder / name).read_text(encoding="utf-8")
        assert text.count("<table") == text.count('<div class="scroll"><table')
    assert "overflow-x: auto" in (files("becausal.render") / "static" / "page.css").read_text(encoding="utf-8")


def test_a_label_only_model_has_no_confidence() -> None:
    explanation = dataclasses.replace(make(), confidence=float("nan"), checks=Checks(True, float("nan")))
    text = render_report(explanation)
    assert "nan" not in re.sub(r"data:image/png;base64,[^\"]*", "", text)
    assert [check.answer for check in describe_checks(explanation)] == [
        "yes",
        "not established",
        "not checked",
        "unknown",
        "1",
    ]


def test_an_undefined_name_in_a_page_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="difference"):
        render_page("diff.html", names=("a", "b"))


def test_minimality_names_the_shape_of_the_cells() -> None:
    for grid, cell in (
        ((400,), "cell of 4 samples"),
        ((32, 48), "cell of 4 × 4 pixels"),
        ((12, 16, 16), "4 × 4 × 4 voxels"),
    ):
        assert cell in describe_checks(make(grid))[1].meaning


def test_drawing_libraries_are_loaded_only_to_draw() -> None:
    code = (
        "import sys, becausal.render.comparison_page, becausal.render.report, becausal.render.thumbnails\n"
        "assert not {'matplotlib', 'jinja2'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_numbers_are_said_plainly() -> None:
    assert [format_share(s) for s in (0.031, 0.00042, 0.28, 1.0, 0.0, 0.0999)] == [
        "3.1 %",
        "0.042 %",
        "28 %",
        "100 %",
        "0 %",
        "10 %",
    ]
    assert [format_confidence(c) for c in (0.97, 0.9999, 1.0, 0.0001, float("nan"))] == [
        "0.97",
        ">0.99",
        "1.00",
        "<0.01",
        "",
    ]


def test_the_command_repeats_every_option() -> None:
    explanation = make()
    target = Target(3, top=5, floor=0.486)
    request = dataclasses.replace(explanation.origin.request, max_calls=900, several=2, confidence=0.5, seeds=3)
    origin = dataclasses.replace(explanation.origin, image="my photo.jpg", request=request)
    words = format_command(dataclasses.replace(explanation, target=target, origin=origin)).replace(" \\\n    ", " ")
    assert words == (
        "becausal explain 'my photo.jpg' --model net.onnx --labels names.txt --resize 256 --top 5 --confidence 0.5 "
        "--fill grey --fill blur --several 2 --method dc-causal --option partitions=50 --option strict=False "
        "--seed 7 --seeds 3 --max-calls 900"
    )


def test_the_command_leaves_out_defaults_and_names_files_by_their_full_path() -> None:
    explanation = make()
    files = {"image": {"path": "/my photos/a.jpg", "sha256": ""}, "labels": {"path": "/names.txt", "sha256": ""}}
    loading = {"labels": ["cat", "dog"], "preprocess": {"mean": [0.0]}}
    origin = dataclasses.replace(
        explanation.origin, method="causal", options={"effort": 7}, request=Request(), files=files, loading=loading
    )
    words = format_command(dataclasses.replace(explanation, origin=origin)).replace(" \\\n    ", " ")
    assert words == "becausal explain '/my photos/a.jpg' --model net.onnx --labels /names.txt"
    levels = dataclasses.replace(explanation, origin=origin, target=Target(3, floor=0.87))  # the default keeps 0.9
    assert format_command(levels).replace(" \\\n    ", " ") == words
    smallest = dataclasses.replace(origin, request=Request(smallest=True))
    assert "--smallest" in format_command(dataclasses.replace(explanation, origin=smallest))
    asked = Request(target="dog", grain=None, options={"effort": 7}, confidence=0.9)
    origin = dataclasses.replace(origin, request=asked, files={})
    words = format_command(dataclasses.replace(explanation, origin=origin, target=Target(3, floor=0.87)))
    assert words.replace(" \\\n    ", " ") == (
        "becausal explain photo.jpg --model net.onnx --target dog --confidence 0.9 --option effort=7 --grain none"
    )


def test_slices_pass_through_the_explanation() -> None:
    visible = np.zeros((30, 4, 4), bool)
    visible[5:8] = visible[20] = True
    assert choose_slices(visible) == (5, 6, 7, 20)
    assert choose_slices(np.zeros((3, 4, 4), bool)) == (0, 1, 2)
    assert len(choose_slices(np.ones((30, 4, 4), bool))) == 6


def test_small_views_are_enlarged_and_none_out_of_hand() -> None:
    assert choose_scale((4, 4)) * 4 >= 448
    assert choose_scale((224, 224)) == 2
    assert choose_scale((3000, 3000)) == 1
    assert choose_scale((2000, 2)) == 1


def test_intervals_are_runs_of_true() -> None:
    assert find_intervals(np.array([1, 1, 0, 1, 0, 0, 1], bool)) == [(0, 2), (3, 4), (6, 7)]
    assert find_intervals(np.zeros(3, bool)) == []
