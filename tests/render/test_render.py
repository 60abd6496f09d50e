"""Figures and the report, from hand-made explanations: any grid, any number of channels, any label."""

import base64
import dataclasses
import io
import re
import subprocess
import sys
import threading
import types
from html.parser import HTMLParser
from importlib.resources import files
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from jinja2 import UndefinedError
from PIL import Image

from becausal.api.explanation import Explanation
from becausal.core.checks import Against, Certificate, CheckedSet, Checks, Level
from becausal.core.contracts import Zone
from becausal.core.explanation import NamedScore, Origin
from becausal.core.frames import Frame
from becausal.core.metrics import Transfer
from becausal.core.request import Request
from becausal.core.stats import Stats
from becausal.core.targets import Target
from becausal.render.colours import AGAINST, COLOURS, ZONES, line_of, rgb_of
from becausal.render.endings import describe_stop
from becausal.render.figures import draw_curve, explanation_png, find_intervals, new_figure, plot, png_bytes, printable
from becausal.render.numbers import format_confidence, format_share
from becausal.render.pages import render_page
from becausal.render.painting import (
    dilate,
    make_thumbnail,
    paint_explanation,
    paint_image,
    paint_map,
    paint_mutant,
)
from becausal.render.report import format_command, render_report
from becausal.render.sheets import as_heat, choose_scale, enlarge, lay_out, lay_out_original, slices_of
from becausal.render.wording import (
    Check,
    as_text,
    describe_against,
    describe_checks,
    describe_extent,
    describe_target,
    headline,
    list_zones,
    question,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRIDS = [(400,), (1,), (32, 48), (1, 1), (700, 20), (12, 16, 16), (1, 8, 8)]


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
    assert size_of(explanation_png(explanation))[0] >= 400 or grid == (700, 20)
    assert size_of(png_bytes(plot(explanation)))[0] > 1000  # as in a notebook
    assert "<figure>" in render_report(explanation)


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


@pytest.mark.parametrize("label", ["$x_1$ and $ \\frac 100 % {sure}", "a\nb\tc 大熊猫 🐼", "x" * 500, ""])
def test_any_label_can_be_a_title(label: str) -> None:
    explanation = make(label=label)
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
    assert "The model says bus (0.97). 10 % of the pixels, the core, keep the confidence (0.41 of 0.97) with" in words
    assert "Stopped early" not in words
    assert "becausal explain photo.jpg" in words
    plain = dataclasses.replace(make(), origin=asking(Request(fills=("grey",))))
    words = " ".join("".join(Page(render_report(plain)).words).replace("\xa0", " ").split())
    assert "Masked pixels are in the plain fill." in words
    assert words.count("grey") == words.count("the plain fill (mid-grey)") + words.count("--fill grey") == 2


@pytest.mark.parametrize(
    ("stopped_by", "max_calls", "text"),
    [
        ("budget", 545, "The limit of 545 model calls was reached before the search finished. This is the best"),
        ("budget", 600, "The limit of 600 model calls ended the search after 545: the rest was too little to go on."),
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


def asking(request: Request) -> Origin:
    return dataclasses.replace(make().origin, request=request)


COUGAR, LION = NamedScore("cougar", 286, 0.81), NamedScore("lion", 291, 0.03)


def ask_about(target: Target, score: NamedScore, **changes: object) -> Explanation:
    explanation = dataclasses.replace(
        make(label=score.label), label_id=score.label_id, confidence=score.confidence, target=target
    )
    return dataclasses.replace(explanation, **changes)


REST = "with everything else replaced by grey and by blur."


@pytest.mark.parametrize(
    ("explanation", "sentence"),
    [
        (
            ask_about(Target(291, top=5), LION, top=COUGAR),
            "The model says cougar (0.81). 10 % of the pixels, the core, keep lion (0.03) among the top 5 labels and the "
            f"confidence (0.41, and 0.03 with the whole image) {REST}",
        ),
        (
            ask_about(Target(291, top=5), LION),
            "The model gives lion a confidence of 0.03. 10 % of the pixels, the core, keep lion among the top 5 labels and "
            f"the confidence (0.41, and 0.03 with the whole image) {REST}",
        ),
        (
            ask_about(Target(286, against=291), COUGAR, top=COUGAR, rival=LION),
            "The model says cougar (0.81). 10 % of the pixels, the core, keep cougar ahead of lion and the confidence (0.41 "
            f"of 0.81) {REST}",
        ),
        (
            ask_about(Target(291, threshold=0.5), NamedScore("lion", 291, 0.6), top=COUGAR),
            "The model says lion (0.60). 10 % of the pixels, the core, keep lion at a confidence of at least 0.5 and the "
            f"confidence (0.41 of 0.60) {REST}",
        ),
        (
            ask_about(Target(291), NamedScore("lion", 291, float("nan")), checks=Checks(True, float("nan"))),
            f"The model says lion. 10 % of the pixels, the core, keep the confidence {REST}",
        ),
        (
            ask_about(Target(286), COUGAR, checks=Checks(False, 0.2)),
            "The model says cougar (0.81). No set was found that is enough; the best candidate has 10 % of the pixels.",
        ),
        (
            dataclasses.replace(ask_about(Target(286), COUGAR), origin=asking(Request(smallest=True)), levels=()),
            "The model says cougar (0.81). 10 % of the pixels keep cougar (confidence 0.41) with everything else in the "
            "plain fill.",
        ),
        (
            dataclasses.replace(ask_about(Target(286), COUGAR), origin=asking(Request(contrast=True)), levels=()),
            "The model says cougar (0.81). 10 % of the pixels keep cougar (confidence 0.41) with everything else in the "
            "plain fill, and when they are masked, the label is lost.",
        ),
    ],
)
def test_the_headline_answers_the_question(explanation: Explanation, sentence: str) -> None:
    assert as_text(headline(explanation)) == sentence
    page = Page(render_report(explanation))
    assert sentence in " ".join(" ".join("".join(page.words).replace("\xa0", " ").split()).split())
    assert str(explanation).splitlines()[0] == sentence
    assert figure_text(plot(explanation)).replace("\n", " ").startswith(sentence)


def test_a_model_that_is_not_sure_is_said_to_be():
    sure, multilabel = make(), Target(0, threshold=0.1)
    low = dataclasses.replace(sure, confidence=0.22, top=NamedScore(sure.label, sure.label_id, 0.22))
    assert "It is not sure: its confidence is below one half." in as_text(headline(low))
    for one in (sure, dataclasses.replace(low, target=multilabel)):  # of several labels each has its own score
        assert "not sure" not in as_text(headline(one))
    unknown = dataclasses.replace(low, confidence=np.nan, top=NamedScore(sure.label, sure.label_id, np.nan))
    assert "not sure" not in as_text(headline(unknown))


def test_a_close_rival_is_named_with_the_command_that_asks_about_it() -> None:
    close = dataclasses.replace(make(), confidence=0.55, runner_up=NamedScore("tram car", 9, 0.3))
    assert "It is not sure: tram car (0.30) is close." in as_text(headline(close))
    assert "--target &#39;tram car&#39;" in render_report(close)
    far = dataclasses.replace(close, runner_up=NamedScore("tram car", 9, 0.27))  # less than half of it
    several = dataclasses.replace(close, target=Target(3, threshold=0.5))  # labels that do not exclude each other
    for other in (far, several, dataclasses.replace(close, runner_up=None)):
        assert "tram" not in as_text(headline(other))
        assert "tram" not in render_report(other)


def test_a_rival_is_called_by_its_name() -> None:
    explanation = ask_about(Target(286, against=291, floor=0.5), COUGAR, rival=LION)
    assert as_text(question(explanation)) == "Why cougar (0.81) rather than lion?"
    texts = [describe_target(explanation), *(check.meaning for check in describe_checks(explanation))]
    assert texts[0] == "cougar stays ahead of lion, with a confidence of at least 0.50"
    assert "keep the lead of cougar over lion and 90 % of its confidence" in texts[1]
    assert not any("class 291" in text for text in texts)
    named = dataclasses.replace(explanation.origin, request=Request(against="lion"))
    assert "class" not in describe_target(dataclasses.replace(explanation, rival=None, origin=named))


LABELLED = {
    "the label": ask_about(Target(286, floor=0.5), COUGAR),
    "the box": ask_about(Target(286, floor=0.5, box=(1.0, 1.0, 9.0, 9.0)), COUGAR),
}
IN_PLACE = {
    "is no longer among the top 5 labels": ask_about(Target(291, top=5, floor=0.01), LION),
    "is no longer ahead of cougar": ask_about(Target(291, against=286, floor=0.01), LION, rival=COUGAR),
}


def necessity(explanation: Explanation, necessary: bool | None) -> str:
    checks = dataclasses.replace(explanation.checks, necessary=necessary)
    return describe_checks(dataclasses.replace(explanation, checks=checks))[-1].meaning


@pytest.mark.parametrize("subject", LABELLED)
def test_what_is_lost_is_said_with_how_much_is_left(subject: str) -> None:
    explanation = LABELLED[subject]
    own = "score" if subject == "the box" else "confidence"
    lost = f"{subject} is lost, or less than 90 % of its {own} is left"
    assert f"needed: without it, {lost} (12 removals tested)" in minimality(explanation).meaning
    assert necessity(explanation, True) == f"when these pixels are masked, {lost}"
    assert necessity(explanation, None) == f"whether {lost} when these pixels are masked"
    stays = f"{subject} stays, with 90 % of its {own} or more: other regions are enough too"
    assert necessity(explanation, False) == f"when these pixels are masked, {stays}"
    alone = dataclasses.replace(explanation, origin=asking(Request(smallest=True)), levels=())
    assert necessity(alone, True) == f"when these pixels are masked, {subject} is lost"
    assert necessity(alone, False) == f"when these pixels are masked, {subject} stays: other regions are enough too"


@pytest.mark.parametrize("lost", IN_PLACE)
def test_a_place_among_other_labels_is_lost_as_such(lost: str) -> None:
    explanation = IN_PLACE[lost]
    end = "or less than 90 % of its confidence is left"
    assert f"without it, lion {lost}, {end} (12" in minimality(explanation).meaning
    assert necessity(explanation, True) == f"when these pixels are masked, lion {lost}, {end}"
    stays = f"lion {lost.replace('is no longer', 'stays')}, with 90 % of its confidence or more"
    assert necessity(explanation, False) == f"when these pixels are masked, {stays}: other regions are enough too"


def test_a_cell_of_a_contrast_is_needed_for_one_of_two_things() -> None:
    explanation = dataclasses.replace(ask_about(Target(286), COUGAR), origin=asking(Request(contrast=True)), levels=())
    assert "without it, the label is lost, or the set is no longer necessary (12" in minimality(explanation).meaning


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


def test_a_coarser_grain_says_how_to_go_on() -> None:
    explanation = make()
    origin = dataclasses.replace(explanation.origin, grain=2)
    assert minimality(dataclasses.replace(explanation, origin=origin)).meaning.endswith("asked for with --grain 2")
    cut = minimality(dataclasses.replace(explanation, origin=origin, stopped_by="budget")).meaning
    assert cut.endswith("the search ended before cells of 2 px were tried")
    assert "--grain" not in minimality(explanation).meaning


def minimality(explanation: Explanation) -> Check:
    return next(check for check in describe_checks(explanation) if check.name == "minimal")


# Two sets

CERTIFICATE = Certificate(0.9, 51, 0, 0.9, 0.95, 1_000_000, {"kind": "becausal", "version": 1, "seed": 0})
ZONE_NAMES = ("core", "rest of enough", "backup", "context", "lowers it")


def make_two(grid: tuple[int, ...] = (36, 54), *, original: bool = False) -> Explanation:
    """A core inside enough, with zones and with what is against; with an original of which the view is the middle."""
    sides = [(side // 3, side // 3 + max(1, side // 3)) for side in grid]
    sets = []
    for more in (0, 6):
        visible = np.zeros(grid, bool)
        visible[tuple(slice(start, stop + more) for start, stop in sides)] = True
        sets.append(visible)
    zones = np.full(grid, Zone.CONTEXT, np.uint8)
    zones[: grid[0] // 6] = Zone.AGAINST
    zones[-grid[0] // 9 :] = Zone.BACKUP
    zones[sets[1]], zones[sets[0]] = Zone.ENOUGH, Zone.CORE
    core = Level(sets[0], Checks(True, 0.9, True, 4, 12, Transfer(7, 40, 0.073, 0.328)), "core", 0.9)
    checks = Checks(True, 0.96, False, 9, 5, Transfer(51, 51, 0.93, 1.0))
    explanation = dataclasses.replace(
        make(grid),
        visible=sets[1],
        checks=checks,
        levels=(core, Level(sets[1], checks, "enough", 0.9, CERTIFICATE, (3, 8, 20))),
        target=Target(3, floor=0.87),
        zones=zones,
        responsibility=zones / 4 + 0.0,
        against=Against(zones == Zone.AGAINST, 0.99, 0.018, 2),
        origin=asking(Request(holds=0.9, fills=("grey",))),
    )
    if not original:
        return explanation
    h, w = grid
    pixels = np.full((2 * h, 4 * w, 3), 20, np.uint8)
    frame = Frame((2 * h, 4 * w), (h, 2 * w), (0, w // 2), grid)
    return dataclasses.replace(explanation, original=pixels, frame=frame)


def test_two_sentences_tell_the_answer() -> None:
    explanation = make_two()
    enough, core = (format_share(level.size) for level in reversed(explanation.levels))
    sentence = (
        f"The model says bus (0.97). {enough} of the pixels are enough: they keep bus on at least 90 % of random "
        f"backgrounds (shown on 51 of 51 fresh ones). Among them, {core} of all pixels, the core, keep the confidence (0.90 "
        "of 0.97) with everything else in the plain fill."
    )
    assert as_text(headline(explanation)) == sentence
    lines = str(explanation).splitlines()
    assert lines[0] == sentence
    assert lines[1].startswith(f"enough: {enough} of the view")
    assert lines[2].startswith(f"core: {core} of the view: 216 pixels in 1 piece, confidence 0.90")
    assert figure_text(plot(explanation)).replace("\n", " ").startswith(sentence)


def test_the_checks_are_about_the_set_that_is_shown() -> None:
    explanation = make_two()
    sufficient, backgrounds, minimal, necessary = describe_checks(explanation)
    assert sufficient.meaning == (
        "these pixels keep the label and 90 % of its confidence with everything else in the plain fill"
    )
    assert backgrounds.meaning == (
        "keeps the label on 51 of 51 fresh ones, so on at least 90 % of random backgrounds (sure at 95 %)"
    )
    assert minimal.answer == "at 9 px"
    assert minimal.meaning == (
        "every cell of 9 × 9 pixels in it is needed: without it, the label is lost on at least one of 3 recorded "
        "backgrounds, or with everything else in the plain fill, or less than 90 % of its confidence is left there (5 "
        "removals tested)"
    )
    assert necessary.meaning == (
        "when these pixels are masked, the label stays, with 90 % of its confidence or more: other regions are enough too"
    )
    sufficient, backgrounds, minimal, necessary = describe_checks(explanation, explanation.levels[0])
    assert sufficient.meaning.startswith("these pixels keep the label and 90 % of its confidence")
    assert backgrounds.answer == "18 %"
    assert backgrounds.meaning == (
        "keeps the label on 7 of 40 fresh ones, so on 7 to 33 % of all (sure at 95 %): this set depends on the fill"
    )
    assert minimal.meaning.endswith(
        "needed: without it, the label is lost, or less than 90 % of its confidence is left (12 removals tested)"
    )
    assert necessary.meaning == (
        "when these pixels are masked, the label is lost, or less than 90 % of its confidence is left"
    )
    texts = [check.meaning for level in explanation.levels for check in describe_checks(explanation, level)]
    assert not [text for text in texts if "level" in text or "grey" in text or "95 % confidence" in text]


def test_a_set_that_depends_on_the_fill_is_said_to() -> None:
    transfers = (Transfer(kept, 40, 0.1, 0.9) for kept in (20, 19))
    held, lost = (dataclasses.replace(make(), checks=Checks(True, 0.9, transfer=each)) for each in transfers)
    assert "This set depends on the fill: it keeps the label on 19 of 40 random backgrounds." in as_text(headline(lost))
    assert "depends" not in as_text(headline(held))
    assert "depends on the fill" in render_report(lost)
    assert "on 19 of 40 random backgrounds" in str(lost)


def test_what_is_against_is_told_with_what_was_measured() -> None:
    explanation = make_two()
    size = format_share(float(explanation.against.visible.mean()))
    sentence = f"{size} of the pixels raises the confidence from 0.97 to 0.99"
    assert describe_against(explanation) == f"masking {sentence}"
    assert f"against: masking these {sentence}" in figure_text(plot(explanation)).replace("\n", " ")
    assert sentence in " ".join(Page(render_report(explanation)).words)
    without = dataclasses.replace(explanation, against=None)
    assert describe_against(without) == ""
    assert "masking these" not in render_report(without)


def test_holes_are_counted_in_words() -> None:
    visible = np.ones((9, 9), bool)
    visible[4, 4] = False
    assert describe_extent(CheckedSet(visible, Checks(True, 0.5))) == "99 % of the view: 80 pixels in 1 piece with 1 hole"
    assert describe_extent(CheckedSet(np.array([1, 0, 1], bool), Checks(True, 0.5))).endswith("2 samples in 2 pieces")


def near(drawn: np.ndarray, colour: str) -> np.ndarray:
    return np.abs(drawn.astype(float) - rgb_of(colour)).max(axis=-1) < 40


@pytest.mark.parametrize("value", [0, 255])
def test_both_sets_are_contour_lines_on_dark_and_light_images(value: int) -> None:
    explanation = dataclasses.replace(make_two(), zones=None)
    sheet = lay_out(dataclasses.replace(explanation, view=np.full((36, 54, 3), value, np.uint8)))
    for drawn in (paint_explanation(sheet), paint_map(sheet)):
        for number, level in enumerate(explanation.levels):
            inside = enlarge(level.visible, sheet.scale)
            rim = dilate(inside, 3) & dilate(~inside, 3)  # along the edge of the set
            assert near(drawn, line_of(number, 2).colour)[rim].mean() > 0.05
        assert (drawn[dilate(enlarge(explanation.visible, sheet.scale), 6)].max(axis=-1) < 70).any()  # the dark line
    assert np.abs(rgb_of(line_of(0, 2).colour) - rgb_of(line_of(1, 2).colour)).max() > 150
    outside = ~dilate(enlarge(explanation.visible | explanation.against.visible, sheet.scale), 6)
    assert (paint_explanation(sheet)[outside] > 110).all()  # a light veil: a dark object stands out


def test_what_is_against_is_striped_in_its_own_colour() -> None:
    explanation = dataclasses.replace(make_two(), view=np.full((36, 54, 3), 120, np.uint8))
    sheet = lay_out(explanation)
    drawn, plain = paint_explanation(sheet), paint_explanation(dataclasses.replace(sheet, against=None))
    where = enlarge(explanation.against.visible & ~dilate(explanation.visible, 4), sheet.scale)
    assert (drawn != plain).any(axis=-1)[where].all()
    assert len(np.unique(drawn[where], axis=0)) == 2  # stripes and a tint
    assert (drawn == plain)[~dilate(enlarge(explanation.against.visible, sheet.scale), 1)].all()


def test_the_map_has_a_colour_for_each_zone_and_the_photo_shines_through() -> None:
    explanation = make_two()
    flat = dataclasses.replace(explanation, view=np.full((36, 54, 3), 150, np.uint8))
    drawn = paint_map(lay_out(flat))
    scale, zones = lay_out(flat).scale, flat.zones
    means = {}
    for zone in Zone:
        own = zones == zone
        means[zone] = drawn[enlarge(own & ~dilate(~own, 1), scale)].mean(axis=0)
    for a, b in combinations(Zone, 2):
        assert np.abs(means[a] - means[b]).max() > 20, (a, b)
    assert np.ptp(means[Zone.CORE]) > 80  # colourful
    assert np.ptp(means[Zone.CONTEXT]) < 30  # the photo
    photo = paint_map(lay_out(explanation))[enlarge(zones == Zone.CORE, scale)]
    assert photo.std(axis=0).max() > 15  # of noise under the colour of the core


@pytest.mark.parametrize("grid", [(64, 64), (6, 48, 48)])
def test_a_small_core_keeps_its_colour(grid: tuple[int, ...]) -> None:
    """A single cell of 1/28 of the side, also on a sheet of many slices."""
    zones = np.full(grid, Zone.CONTEXT, np.uint8)
    zones[..., 20:22, 30:32] = Zone.CORE
    explanation = dataclasses.replace(make_two(grid), view=np.full((*grid, 3), 150, np.uint8), zones=zones)
    sheet = lay_out(explanation)
    assert sheet.side == grid[-1]
    drawn = paint_map(sheet)[enlarge(sheet.zones == Zone.CORE, sheet.scale)].astype(float)
    assert (drawn[:, 0] - drawn[:, 2]).min() > 60  # red minus blue


@pytest.mark.parametrize("grid", [(400,), (36, 54), (12, 18, 18)])
def test_the_zones_are_named_in_words(grid: tuple[int, ...]) -> None:
    explanation = make_two(grid)
    figure = plot(explanation)
    assert ZONES[Zone.AGAINST][0] != AGAINST  # the set `against` is another one
    named = {text.get_text() for axes in figure.axes if axes.get_legend() for text in axes.get_legend().get_texts()}
    assert named == set(ZONE_NAMES)
    words = " ".join(" ".join(Page(render_report(explanation)).words).split())
    for name in ZONE_NAMES:
        assert f"{name}: " in words
    assert [name for _, name, _ in list_zones(dataclasses.replace(explanation, zones=explanation.zones.clip(2)))] == [
        "core", "rest of enough", "backup",
    ]  # fmt: skip
    assert list_zones(make(grid)) == []


def test_an_explanation_is_drawn_on_the_original_image() -> None:
    explanation = make_two(original=True)
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
def test_both_sets_are_in_every_figure_and_on_the_report(grid: tuple[int, ...]) -> None:
    explanation = make_two(grid)
    assert size_of(explanation_png(explanation))[0] >= 400
    unit = {1: "samples", 2: "pixels", 3: "voxels"}[len(grid)]
    texts = figure_text(plot(explanation)).replace("\n", " ")
    for level in explanation.levels:
        assert f"{level.name}: {format_share(level.size)} of the {unit} keep " in texts
    text = render_report(explanation)
    page = Page(text)
    words = " ".join("".join(page.words).replace("\xa0", " ").split())
    for name, confidence in (("Enough", "0.96"), ("Core", "0.90")):
        assert re.search(rf"{name}: [\d.]+ % of the view: [\d,]+ {unit} in 1 piece, confidence {confidence}", words)
    assert words.count("Random backgrounds") == 2
    if len(grid) > 1:
        assert page.tags.count("img") == 6
    assert "script" not in page.tags


def test_spans_of_the_core_are_darker_and_those_against_are_hatched() -> None:
    figure = new_figure(6, 2)
    draw_curve(figure.add_subplot(), make_two((400,)))
    spans = figure.axes[0].patches
    plain = [span.get_facecolor()[:3] for span in spans if not span.get_hatch()]
    assert len(set(plain)) == 2
    assert sum(plain[-1]) < sum(plain[0])
    assert [span.get_hatch() for span in spans if span.get_hatch()] == ["////"]


def test_a_thumbnail_shows_enough_and_the_core() -> None:
    explanation = dataclasses.replace(make_two(), view=np.full((36, 54, 3), 60, np.uint8))
    content = base64.b64decode(make_thumbnail(explanation).partition(",")[2])
    with Image.open(io.BytesIO(content)) as image:
        drawn = np.asarray(image.convert("RGB")).astype(float)
    assert ((drawn[..., 0] - drawn[..., 2]) > 80).sum() > 40  # red, around the core
    assert (drawn.min(axis=-1) > 220).sum() > 40  # white, around enough


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
        distance = np.abs(drawn[: 36 * scale, : 54 * scale] - rgb_of(COLOURS[number])).sum(axis=-1)
        assert (distance[near] < 80).sum() > 20
    assert len(set(COLOURS)) == len(COLOURS)
    for number, found in enumerate(explanation.sets):
        alone = paint_explanation(lay_out(explanation).only(number))
        assert alone[::scale, ::scale][~dilate(found.visible, 2)].min() > 110  # the others are not shown


@pytest.mark.parametrize("grid", [(400,), (32, 48), (12, 18, 18)])
def test_every_explanation_has_its_numbers(grid: tuple[int, ...]) -> None:
    explanation = make_several(grid)
    unit = {1: "sample", 2: "px", 3: "voxel"}[len(grid)]
    for text in (figure_text(plot(explanation)), str(explanation)):
        for confidence in ("0.41", "0.62", "0.35"):
            assert f"confidence {confidence}, sufficient" in text.replace("\n", " ")
        assert text.replace("\n", " ").count(f"minimal at 4 {unit}") == 2
    page = Page(render_report(explanation))
    words = " ".join("".join(page.words).split())
    assert "3 explanations" in words
    for number, confidence in ((1, "0.41"), (2, "0.62"), (3, "0.35")):
        assert re.search(rf"Explanation {number}[\d.]+ % of the view: [\d,]+ \w+ in 1 piece ?confidence {confidence}", words)
    assert "2 further sets are enough as well" in words
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
        "not shown",
        "not checked",
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
        assert cell in minimality(make(grid)).meaning


def test_drawing_libraries_are_loaded_only_to_draw() -> None:
    code = (
        "import sys, becausal.render.comparison, becausal.render.report, becausal.render.painting\n"
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
        explanation.origin, method="causal", options={"walks": 7}, request=Request(), files=files, loading=loading
    )
    words = format_command(dataclasses.replace(explanation, origin=origin)).replace(" \\\n    ", " ")
    assert words == "becausal explain '/my photos/a.jpg' --model net.onnx --labels /names.txt"
    levels = dataclasses.replace(explanation, origin=origin, target=Target(3, floor=0.87))  # the default keeps 0.9
    assert format_command(levels).replace(" \\\n    ", " ") == words
    smallest = dataclasses.replace(origin, request=Request(smallest=True))
    assert "--smallest" in format_command(dataclasses.replace(explanation, origin=smallest))
    asked = Request(target="dog", grain=None, options={"walks": 7}, confidence=0.9)
    origin = dataclasses.replace(origin, request=asked, files={})
    words = format_command(dataclasses.replace(explanation, origin=origin, target=Target(3, floor=0.87)))
    assert words.replace(" \\\n    ", " ") == (
        "becausal explain photo.jpg --model net.onnx --labels cat,dog --target dog --confidence 0.9 --option "
        "walks=7 --grain none"
    )


def test_slices_pass_through_the_explanation() -> None:
    def slices(visible: np.ndarray) -> tuple[int, ...]:
        return slices_of(types.SimpleNamespace(sets=[types.SimpleNamespace(visible=visible)]))  # type: ignore[arg-type]

    visible = np.zeros((30, 4, 4), bool)
    visible[5:8] = visible[20] = True
    assert slices(visible) == (5, 6, 7, 20)
    assert slices(np.zeros((3, 4, 4), bool)) == (0, 1, 2)
    assert len(slices(np.ones((30, 4, 4), bool))) == 6


def test_small_views_are_enlarged_and_none_out_of_hand() -> None:
    assert choose_scale((4, 4)) * 4 >= 448
    assert choose_scale((224, 224)) == 2
    assert choose_scale((3000, 3000)) == 1
    assert choose_scale((2000, 2)) == 1


def test_intervals_are_runs_of_true() -> None:
    assert find_intervals(np.array([1, 1, 0, 1, 0, 0, 1], bool)) == [(0, 2), (3, 4), (6, 7)]
    assert find_intervals(np.zeros(3, bool)) == []
