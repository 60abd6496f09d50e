"""Figures and the report, from hand-made explanations: any grid, any number of channels, any label."""

import dataclasses
import io
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser

import numpy as np
import pytest
from jinja2 import UndefinedError
from PIL import Image

from becausal.api.explanation import Explanation
from becausal.core.checks import Checks
from becausal.core.explanation import Origin
from becausal.core.frames import Frame
from becausal.core.request import Request
from becausal.core.stats import Stats
from becausal.core.targets import Target
from becausal.render.figures import explanation_png, plot, plot_map, png_bytes, printable
from becausal.render.pages import render_page
from becausal.render.painting import dilate, paint_explanation, paint_mutant
from becausal.render.report import render_report
from becausal.render.sheets import as_level, choose_scale, choose_slices, lay_out
from becausal.render.signals import find_intervals
from becausal.render.wording import describe_checks, describe_stop, format_command, format_confidence, format_share

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


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("channels", "dtype"), [(1, "float32"), (3, "uint8"), (5, "float64")])
def test_every_grid_is_drawn(grid: tuple[int, ...], channels: int, dtype: str) -> None:
    explanation = make(grid, channels, dtype)
    for png in (explanation_png(explanation), png_bytes(plot_map(explanation))):
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
    assert drawn.shape == (28 * scale, 56 * scale, 3)
    shown = explanation.visible.repeat(scale, 0).repeat(scale, 1)
    view = explanation.view.repeat(scale, 0).repeat(scale, 1)
    np.testing.assert_array_equal(drawn[shown], view[shown])
    ring = dilate(shown, 4)
    assert drawn[~ring].max() < 110  # the rest lies in the dark


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
    assert size_of(png_bytes(plot_map(dataclasses.replace(make((8, 8)), responsibility=values))))[0] >= 400
    assert np.isfinite(as_level(values)).all()
    assert np.abs(as_level(values)).max() <= 1


@pytest.mark.parametrize("label", ["$x_1$ and $", "\\frac", "a\nb\tc", "大熊猫 🐼", "x" * 500, "", "100 % {sure}"])
def test_any_label_can_be_a_title(label: str) -> None:
    explanation = make(label=label)
    png_bytes(plot_map(explanation))
    png_bytes(plot(explanation))
    assert len(printable(label)) <= 72


def test_the_same_explanation_gives_the_same_bytes() -> None:
    assert png_bytes(plot_map(make())) == png_bytes(plot_map(make()))
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
    assert "Why bus (0.97)? These 10 % of the pixels alone are sufficient." in words
    assert "Stopped early" not in words
    assert "becausal explain photo.jpg" in words


@pytest.mark.parametrize(
    ("stopped_by", "word"), [("budget", "The limit of 150 model calls was reached before"), ("interrupt", "interrupted")]
)
def test_an_answer_cut_short_is_marked(stopped_by: str, word: str) -> None:
    explanation = make()
    origin = dataclasses.replace(explanation.origin, request=Request(max_calls=150))
    explanation = dataclasses.replace(explanation, stopped_by=stopped_by, origin=origin)
    assert word in describe_stop(explanation)
    assert 'class="warning"' in render_report(explanation)


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
    request = dataclasses.replace(explanation.origin.request, max_calls=900, several=2)
    origin = dataclasses.replace(explanation.origin, image="my photo.jpg", request=request)
    words = format_command(dataclasses.replace(explanation, target=target, origin=origin)).replace(" \\\n    ", " ")
    assert words == (
        "becausal explain 'my photo.jpg' --model net.onnx --labels names.txt --resize 256 --method dc-causal "
        "--option partitions=50 --option strict=False --target 3 --top 5 --confidence 0.5 --fill grey --fill blur "
        "--grain 4 --seed 7 --several 2 --max-calls 900"
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
