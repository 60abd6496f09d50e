"""Comparison of methods: metrics against hand-computed values, methods that fail, complete files."""

import json
import math
import re
import shutil
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from becausal import load_model
from becausal.api import Request
from becausal.api.compare import choose_methods, compare_methods, save_comparison
from becausal.core.checks import Against
from becausal.core.contracts import Answers, Classifier, Done, Finding, Needs, Search, step
from becausal.core.errors import ImageError, OptionError, OutputError, TargetError
from becausal.core.explanation import Comparison
from becausal.core.metrics import area_under, overlap, prefixes
from becausal.core.problem import Problem
from becausal.images.backgrounds import RandomBackgrounds
from becausal.interfaces.cli.app import main
from becausal.methods import METHODS, Method
from becausal.render.comparison import (
    _plot_cards,
    choose_columns,
    describe_settings,
    describe_shortfall,
    describe_sizes,
    format_row,
    render_comparison,
)
from becausal.scenes import make_scene
from becausal.search.pipeline import trace_curves

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCENE = make_scene(50_000_017, cut=True)
METHODS_USED = ("causal", "random", "centre")


@cache
def bundled() -> Classifier:
    return load_model("bundled", threads=1)


@cache
def compared() -> Comparison:
    return compare_methods(SCENE.image, bundled(), METHODS_USED, truth=SCENE.occluder.astype(np.uint8) * 255)


class Broken:
    """A method whose library breaks."""

    name: ClassVar[str] = "broken"
    needs: ClassVar[Needs] = "labels"

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        yield np.ones((1, *problem.grid), bool)
        raise ZeroDivisionError("in somebody's library")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> str:
    from becausal import methods

    monkeypatch.setitem(METHODS, "broken", Method("tests", "Broken", "labels", "breaks"))
    real = methods.make_explainer

    def make(name: str, options: Any = None) -> Any:
        return Broken() if name == "broken" else real(name, options)

    monkeypatch.setattr("becausal.api.jobs.make_explainer", make)
    return "broken"


# Metrics, by hand


def test_prefixes_grow_from_nothing_to_everything_by_rank() -> None:
    saliency = np.array([[4.0, 1.0], [3.0, 2.0]])
    shown = prefixes(saliency, np.random.default_rng(0), steps=4)
    assert shown.reshape(5, 4).astype(int).tolist() == [
        [0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1], [1, 1, 1, 1],
    ]  # fmt: skip


def test_area_by_trapezes() -> None:
    assert area_under(np.array([0.0, 1.0])) == 0.5
    assert area_under(np.array([0.0, 1.0, 1.0])) == 0.75
    assert area_under(np.array([1.0, 0.0, 0.0, 0.0])) == pytest.approx(1 / 6)


def test_insertion_and_deletion_of_a_model_that_counts() -> None:
    """Its probability is the share of the two top pixels that are shown."""
    saliency = np.array([[4.0, 1.0], [3.0, 2.0]])
    search = trace_curves(saliency, np.random.default_rng(0), steps=4)
    wave = step(search, None)
    assert isinstance(wave, np.ndarray)
    assert len(wave) == 10
    share = (wave[:, 0, 0].astype(float) + wave[:, 1, 0]) / 2
    state = step(search, Answers(share > 0.5, share - 0.5, share))
    assert isinstance(state, Done)
    curves = state.result
    assert curves.insertion.tolist() == [0, 0.5, 1, 1, 1]
    assert curves.deletion.tolist() == [1, 0.5, 0, 0, 0]
    assert curves.insertion_area == 0.75
    assert curves.deletion_area == 0.25


def test_overlap() -> None:
    visible = np.array([True, True, False, False])
    assert overlap(visible, np.array([True, False, True, False])) == 0.5
    assert overlap(~visible & visible, visible) == 0.0


# The comparison


def test_rows_measure_what_each_method_found() -> None:
    rows = compared().rows
    assert [row.method for row in rows] == list(METHODS_USED)
    for row in rows:
        assert row.error is None
        assert row.explanation is not None
        assert row.curves is not None
        assert row.explanation.checks.sufficient
        assert row.overlap == overlap(row.explanation.visible, SCENE.occluder)
        assert 0 <= row.curves.deletion_area <= 1
        assert row.explanation.origin.grain is None
    by_name = {row.method: row for row in rows}
    chance, found = by_name["random"].curves, by_name["causal"].curves
    assert chance is not None
    assert found is not None
    assert found.insertion_area > chance.insertion_area


def test_the_same_again() -> None:
    again = compare_methods(SCENE.image, bundled(), ("centre",), truth=SCENE.occluder.astype(np.uint8) * 255)
    mine = again.rows[0].record() | {"seconds": 0}
    assert mine == compared().rows[2].record() | {"seconds": 0}


def test_the_sizes_of_the_explanation_and_of_its_core_are_shown() -> None:
    page = render_comparison(compared())
    assert {"core size", "core backgrounds"} <= set(choose_columns(compared()))
    for row in compared().rows:
        if row.explanation is not None:
            sizes = describe_sizes(row.explanation)
            assert sizes == f"{format_row(row)['size']} (core {format_row(row)['core size']})"
            assert f"{sizes} of the view" in page
    first = compared().first
    single = replace(compared().rows[0], explanation=replace(first, levels=(first.level,)))
    assert not {"core size", "core backgrounds"} & set(choose_columns(Comparison((single,))))


def test_a_grain_is_kept_by_all() -> None:
    found = compare_methods(SCENE.image, bundled(), ("random", "centre"), request=Request(grain=16))
    for row in found.rows:
        assert row.explanation is not None
        core, enough = row.explanation.levels
        assert core.checks.minimal_grain == 16
        assert enough.certificate is not None
        assert not row.is_coarser


@cache
def cut_short() -> Comparison:
    return compare_methods(SCENE.image, bundled(), ("centre", "random"), request=Request(grain=8, max_calls=100))


def test_rows_that_ran_out_of_budget_are_flagged(tmp_path: Path) -> None:
    centre, random = cut_short().rows
    assert random.explanation is not None
    assert random.explanation.checks.minimal_grain is None
    assert (centre.is_coarser, random.is_coarser) == (False, True)
    assert (describe_shortfall(centre), describe_shortfall(random)) == ("out of budget", "out of budget, not minimal")
    assert "minimal" in choose_columns(cut_short())
    assert (format_row(centre)["minimal"], format_row(random)["minimal"]) == ("8 px", "no")
    assert describe_settings(cut_short()) == "fill grey, minimised to 8 px (not reached by random)"
    page = render_comparison(cut_short())
    assert '<td class="flag">no</td>' in page
    assert page.count('class="flag"') == 1
    assert "Methods that ended early" in page
    assert "<dt>random</dt><dd>out of budget, not minimal</dd>" in page
    figure = _plot_cards(cut_short())
    assert [text.get_text() for text in figure.texts].count("out of budget, not minimal") == 1


def test_without_a_shortfall_or_a_grain_nothing_is_flagged() -> None:
    assert "minimal" not in choose_columns(compared())
    assert describe_settings(compared()) == "fill grey"
    page = render_comparison(compared())
    assert "ended early" not in page
    assert 'class="flag"' not in page


def test_a_coarser_grain_is_a_shortfall() -> None:
    row = cut_short().rows[0]
    assert row.explanation is not None
    checks = replace(row.explanation.checks, minimal_grain=16)
    coarser = replace(row.explanation, checks=checks, stopped_by="finished")
    assert describe_shortfall(replace(row, explanation=coarser)) == "minimal at 16 px only"


def test_the_page_asks_the_question_that_was_asked() -> None:
    explanation = compared().first
    target = replace(explanation.target, top=3)
    rows = (replace(compared().rows[0], explanation=replace(explanation, target=target)),)
    page = render_comparison(Comparison(rows))
    assert f"Why is <em>{SCENE.label}</em> (&gt;0.99) among the top 3 labels?" in page


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH")
def test_the_page_has_no_tiny_maps_and_no_voids(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    path = save_comparison(cut_short(), tmp_path) / "comparison.html"
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        for width, least in ((390, 150), (1200, 250)):
            page = browser.new_page(viewport={"width": width, "height": 900})
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            images = page.evaluate("[...document.querySelectorAll('.cards img')].map(i => i.getBoundingClientRect().width)")
            shares = page.evaluate(
                "[...document.querySelectorAll('.cards figure')].map(f => Math.max(...[...f.querySelectorAll('img')]"
                ".map(i => i.getBoundingClientRect().height)) / f.getBoundingClientRect().height)"
            )
            assert len(images) == 5
            assert min(images) >= least
            assert min(shares) > 0.65
        browser.close()


def test_methods_the_model_cannot_run_are_rows_that_say_why() -> None:
    def predict(batch: Any) -> Any:
        share = batch[:, 4:8, 4:8].mean((1, 2, 3)) / 255
        return np.stack([1 - share, share], 1)

    picture = np.zeros((16, 16, 3), np.uint8)
    picture[4:8, 4:8] = 255
    found = compare_methods(picture, predict, ("centre", "grad-cam"), request=Request(fills=("black",)))
    assert found.rows[0].explanation is not None
    assert found.rows[1].explanation is None
    assert re.search("grad-cam needs (gradients|torch)", found.rows[1].error or "")


def test_a_method_that_breaks_does_not_cost_the_others(broken: str, tmp_path: Path) -> None:
    found = compare_methods(SCENE.image, bundled(), (broken, "centre"))
    assert found.rows[0].error == "unexpected ZeroDivisionError: in somebody's library"
    assert found.rows[1].explanation is not None
    save_comparison(found, tmp_path)
    assert "somebody&#39;s library" in (tmp_path / "comparison.html").read_text()


def test_where_none_can_run_it_is_an_error(broken: str) -> None:
    with pytest.raises(OptionError, match="none of the methods could run: broken: unexpected ZeroDivisionError"):
        compare_methods(SCENE.image, bundled(), (broken,))


def test_what_is_wrong_for_all_is_raised() -> None:
    with pytest.raises(TargetError):
        compare_methods(SCENE.image, bundled(), ("centre",), request=Request(target="no such label"))
    with pytest.raises(ImageError, match="the truth has shape"):
        compare_methods(SCENE.image, bundled(), ("centre",), truth=np.zeros((9, 9), np.uint8))
    with pytest.raises(ImageError):
        compare_methods("nowhere.png", bundled(), ("centre",))


def test_label_only_models_have_no_curves(tmp_path: Path) -> None:
    def predict(batch: Any) -> Any:
        return (batch[:, 4:8, 4:8].mean((1, 2, 3)) > 100).astype(int)

    picture = np.zeros((16, 16, 3), np.uint8)
    picture[4:8, 4:8] = 255
    found = compare_methods(picture, predict, ("centre",), request=Request(fills=("#00000A",)))
    assert found.rows[0].curves is None
    save_comparison(found, tmp_path)
    assert "All use fill #00000A." in (tmp_path / "comparison.html").read_text(encoding="utf-8")
    record = json.loads((tmp_path / "comparison.json").read_text())
    assert record["rows"][0]["insertion"] is None
    assert 0 <= record["rows"][0]["backgrounds"] <= 1
    assert record["confidence"] is None


def test_backgrounds_are_held_out_and_are_not_among_the_calls() -> None:
    """The set of each method, counted by hand on the random backgrounds from 2,000,000 on."""
    for row in compared().rows:
        found = row.explanation
        assert found is not None
        sampler = RandomBackgrounds(found.view, found.origin.request.seed)
        grounds = np.stack([sampler.draw(2_000_000 + k) for k in range(40)])
        labels = bundled().classify(np.where(found.visible[..., None], found.view, grounds)).argmax(axis=1)
        assert row.transfer is not None
        assert (row.transfer.kept, row.transfer.asked) == (int((labels == found.label_id).sum()), 40)
        assert row.record()["backgrounds"] == row.transfer.share
        assert row.record()["calls"] == found.calls


def test_choosing_methods() -> None:
    assert choose_methods("all") == tuple(name for name in METHODS if METHODS[name].needs != "boxes")
    assert choose_methods(" centre, random,centre ") == ("centre", "random")
    with pytest.raises(OptionError, match="unknown method nope: take all, or some of causal"):
        choose_methods("centre,nope")
    with pytest.raises(OptionError):
        choose_methods(" , ")


# Files


class PageElements(HTMLParser):
    """Collects the tags of a page and the addresses they refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for key, value in attributes if key in ("src", "href")]


def test_files(tmp_path: Path) -> None:
    folder = save_comparison(compared(), tmp_path / "deep" / "er")
    assert sorted(path.name for path in folder.iterdir()) == ["comparison.html", "comparison.json", "comparison.png"]
    record = json.loads((folder / "comparison.json").read_text())
    assert record["schema"] == "becausal/comparison/1"
    assert record["label"] == SCENE.label
    assert record["truth_pixels"] == int(SCENE.occluder.sum())
    assert [row["method"] for row in record["rows"]] == list(METHODS_USED)
    keys = ("size", "overlap", "insertion", "deletion", "backgrounds")
    assert all(math.isfinite(row[key]) for row in record["rows"] for key in keys)
    image = Image.open(BytesIO((folder / "comparison.png").read_bytes()))
    assert min(image.size) > 400
    page = PageElements()
    page.feed((folder / "comparison.html").read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert page.tags.count("figure") == 1 + len(METHODS_USED)
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)


def test_the_page_says_what_its_images_show(tmp_path: Path) -> None:
    """Maps with zones have no outline; stripes are in the legend where there are any."""

    def legend(comparison: Comparison) -> str:
        text = (save_comparison(comparison, tmp_path) / "comparison.html").read_text(encoding="utf-8")
        return " ".join(re.sub(r"<[^>]+>", "", text[text.index("<h2>Maps and") :]).split())

    found = compared()
    rows = [row for row in found.rows if row.explanation is not None]
    zoned = next(row for row in rows if row.explanation is not None and row.explanation.zones is not None)
    plain = next(row for row in rows if row.explanation is not None and row.explanation.zones is None)
    own = zoned.explanation
    assert own is not None
    corner = np.zeros_like(own.visible)
    corner[:8, :8] = True
    striped = replace(zoned, explanation=replace(own, against=Against(corner, 0.9, 0.1, 1)))
    clean = replace(zoned, explanation=replace(own, against=None))
    mixed = legend(replace(found, rows=(clean, plain)))
    assert "Left: the map, with the explanation outlined where the map has no zones. Right:" in mixed
    assert "against: what speaks against the label" not in mixed
    assert "percentile of the map" in mixed
    alone = legend(replace(found, rows=(striped,)))
    assert "Left: the map. Right: the explanation, enough on its own" in alone
    assert "against: what speaks against the label; the confidence rises when it is masked." in alone
    assert "percentile of the map" not in alone
    assert "Left: the map, with the explanation outlined. Right:" in legend(replace(found, rows=(plain,)))


def test_nothing_is_left_behind_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OutputError, match="No space left"):
        save_comparison(compared(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [1, 7])
def test_the_figure_holds_any_number_of_methods(count: int) -> None:
    from becausal.render.comparison import comparison_png

    rows = compared().rows
    many = Comparison(tuple(rows[i % 3] for i in range(count)), compared().truth)
    assert Image.open(BytesIO(comparison_png(many))).width > 500


def test_signals_are_compared_as_curves(tmp_path: Path) -> None:
    def loud(batch: Any) -> Any:
        level = np.clip(batch[:, 10:20, 0].mean(1), 0, 1)
        return np.stack([1 - level, level], 1)

    signal = np.zeros((64, 1))
    signal[10:20] = 1.0
    found = compare_methods(signal, loud, ("causal", "random"), request=Request(fills=("black",)))
    save_comparison(found, tmp_path)
    assert (tmp_path / "comparison.png").stat().st_size > 1000


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, truth = tmp_path / "scene.png", tmp_path / "truth.png"
    Image.fromarray(SCENE.image).save(picture)
    Image.fromarray(SCENE.occluder.astype(np.uint8) * 255).save(truth)
    words = ["compare", str(picture), "--model", "bundled", "--methods", "centre,random", "--truth", str(truth)]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "insertion" in said
    assert "overlap" in said
    assert "centre" in said
    assert main([*words, "--out", str(tmp_path / "out"), "--json"]) == 0
    assert [row["method"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["centre", "random"]
    assert main([*words[:5], "nope"]) == 2
    assert "unknown method nope" in capsys.readouterr().err
