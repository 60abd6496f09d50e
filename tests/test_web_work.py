"""The parts of the page without a browser: job queue, sessions, images, requests, HTML fragments, the guard."""

import asyncio
import io
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from becausal.interfaces.serve.page_rules import guard_page, parse_event
from becausal.interfaces.serve.sessions import MAX_UNCLAIMED, Sessions, StoredResult
from PIL import Image

import becausal
from becausal.api import Status
from becausal.core.checks import CheckedSet
from becausal.core.contracts import Classifier
from becausal.core.errors import ImageError, InputError, ModelError, OptionError
from becausal.core.frames import Frame
from becausal.images.loading import load_image
from becausal.interfaces.cli.serve import list_sources, load_models, name_model
from becausal.interfaces.serve import panels, results
from becausal.interfaces.serve.guard import RequestRejected, strip_port
from becausal.interfaces.serve.images import EXAMPLES, Upload, clean_name, decode_image, make_examples
from becausal.interfaces.serve.job_queue import BackgroundJob, JobQueue
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.predictions import find_witness, predict_ranking, predict_top_labels
from becausal.interfaces.serve.rendering import read_static, render
from becausal.interfaces.serve.tasks import (
    CompareTask,
    ExplainTask,
    available_fills,
    available_methods,
    check_colour_model,
    find_model,
    make_request,
)
from becausal.models.loading import Loading
from becausal.scenes import make_scene

LIMITS = Limits()


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def status(calls, visible):
    return Status("x", 0, "search", calls, None, float(visible.mean()), visible)


@pytest.fixture(scope="module")
def model():
    return becausal.load_model("bundled")


@pytest.fixture(scope="module")
def scene():
    return Upload("bus.png", png(make_scene(1025, label="bus").image))


@pytest.fixture(scope="module")
def found(model, scene):
    image = decode_image(scene, LIMITS)
    return becausal.explain(image.pixels, model, grain=4)


# ---------------------------------------------------------------- jobs


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_a_job_keeps_what_its_task_returns():
    job = BackgroundJob(lambda progress: 7, LIMITS)
    job.run()
    assert (job.state, job.result, job.error) == ("done", 7, "")
    assert job.ended.is_set()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OptionError("one\n line"), "one line"),
        (KeyboardInterrupt(), "stopped before a result was found"),
        (MemoryError(), "not enough memory"),
        (ZeroDivisionError("by 0"), "unexpected ZeroDivisionError: by 0"),
    ],
)
def test_whatever_a_task_raises_becomes_a_line(error, said):
    def task(progress):
        raise error

    job = BackgroundJob(task, LIMITS)
    job.run()
    assert (job.state, job.result, job.error) == ("failed", None, said)


def test_a_stop_interrupts_the_search_once_and_its_result_is_kept():
    raised = 0

    def task(progress):
        nonlocal raised
        for calls in range(1, 6):
            try:
                progress(status(calls, np.ones((2, 2), bool)))
            except KeyboardInterrupt:
                raised += 1
            if calls == 2:
                job.stop()
        return "best so far"

    job = BackgroundJob(task, LIMITS)
    job.run()
    assert (job.result, raised) == ("best so far", 1)
    assert job.progress.calls == 5


def test_a_job_that_is_stopped_in_line_never_begins():
    begun = []
    job = BackgroundJob(begun.append, LIMITS)
    job.stop()
    job.run()
    assert (job.state, begun) == ("failed", [])


@pytest.mark.parametrize(("seconds", "unwatched", "polls"), [(50.0, 1e9, True), (1e9, 50.0, False)])
def test_a_search_that_takes_too_long_or_is_not_watched_is_stopped(seconds, unwatched, polls):
    clock = Clock()

    def task(progress):
        for calls in range(1, 100):
            clock.now += 10
            if polls:
                job.poll()
            progress(status(calls, np.ones((2, 2), bool)))

    job = BackgroundJob(task, Limits(seconds=seconds, unwatched_seconds=unwatched), clock)
    job.run()
    assert job.state == "failed"  # this task does not round off
    assert job.progress.calls == 5  # and was told to after 50 seconds


def test_the_live_map_says_how_small_a_set_each_pixel_was_part_of():
    whole, half, quarter = np.ones((2, 4), bool), np.zeros((2, 4), bool), np.zeros((2, 4), bool)
    half[0], quarter[0, :2] = True, True
    seen = []

    def task(progress):
        for calls, visible in enumerate((whole, half, half, quarter), start=1):
            progress(status(calls, visible))
            seen.append(job.progress)

    job = BackgroundJob(task, LIMITS)
    job.run()
    np.testing.assert_allclose(seen[-1].depth, [[np.log(4)] * 2 + [np.log(2)] * 2, [0.0] * 4], rtol=1e-6)
    assert job.progress.depth is None  # it is not kept for a job that has ended
    assert not seen[0].depth.any()  # what was handed out earlier stays as it was
    assert [progress.updates for progress in seen] == [1, 2, 3, 4]


def test_calls_of_the_methods_of_a_comparison_add_up():
    def task(progress):
        for calls in (10, 20, 5, 9):
            progress(status(calls, np.ones((2, 2), bool)))

    job = BackgroundJob(task, LIMITS)
    job.run()
    assert job.progress.calls == 29


def test_so_many_run_so_many_wait_and_the_rest_are_told():
    queue, gate = JobQueue(Limits(workers=2, waiting=3)), threading.Event()

    def task(number):
        def run(progress):
            assert gate.wait(30)
            return number

        return run

    jobs = [queue.submit(task(number)) for number in range(2)]
    while any(job.state == "waiting" for job in jobs):
        time.sleep(0.005)
    jobs += [queue.submit(task(number)) for number in range(2, 5)]
    assert [job.ahead for job in jobs[2:]] == [0, 1, 2]
    with pytest.raises(InputError, match=r"queue is full \(3 searches"):
        queue.submit(task(9))
    gate.set()
    assert all(job.ended.wait(30) for job in jobs)
    assert [job.result for job in jobs] == [0, 1, 2, 3, 4]
    queue.close()


def test_the_line_is_served_in_order():
    queue, begun = JobQueue(Limits(workers=1)), []
    jobs = [queue.submit(lambda progress, number=number: begun.append(number)) for number in range(20)]
    assert all(job.ended.wait(30) for job in jobs)
    assert begun == list(range(20))
    queue.close()


def test_closing_the_desk_stops_what_runs_and_what_waits():
    queue = JobQueue(Limits(workers=1))
    started = threading.Event()

    def endless(progress):
        started.set()
        while True:
            progress(status(1, np.ones((2, 2), bool)))
            time.sleep(0.005)

    running, waiting = queue.submit(endless), queue.submit(endless)
    assert started.wait(30)
    queue.close()
    assert (running.state, waiting.state) == ("failed", "failed")
    assert waiting.ended.is_set()


# ---------------------------------------------------------------- sessions


def test_a_page_has_its_own_things_and_no_others():
    sessions = Sessions(LIMITS)
    mine, yours = sessions.get("mine"), sessions.get("yours")
    mine.upload = Upload("a.png", b"a")
    assert yours.upload is None
    assert sessions.get("mine") is mine


def test_an_upload_is_taken_once_and_only_by_its_token():
    sessions = Sessions(LIMITS)
    token = sessions.add_upload(Upload("a.png", b"a"))
    assert sessions.claim_upload("no such token") is None
    assert sessions.claim_upload(token).name == "a.png"
    assert sessions.claim_upload(token) is None
    tokens = [sessions.add_upload(Upload(str(i), b"")) for i in range(MAX_UNCLAIMED + 1)]
    assert sessions.claim_upload(tokens[0]) is None  # the oldest had to go
    assert sessions.claim_upload(tokens[-1]) is not None


def test_old_and_closed_pages_are_forgotten_and_their_searches_stopped():
    clock = Clock()
    sessions = Sessions(Limits(idle_seconds=100, closed_seconds=10), clock)
    job = BackgroundJob(lambda progress: 1, LIMITS)
    closed, unused = sessions.get("closed"), sessions.get("unused")
    closed.job = job
    token = sessions.add_upload(Upload("a.png", b"a"))
    sessions.close("closed")
    assert job.is_stopping
    clock.now += 11
    sessions.clean_up()
    assert len(sessions) == 1
    assert sessions.get("unused") is unused
    assert sessions.claim_upload(token) is None
    clock.now += 101
    sessions.clean_up()
    assert len(sessions) == 0


def test_a_page_that_comes_back_is_not_forgotten():
    clock = Clock()
    sessions = Sessions(Limits(closed_seconds=10), clock)
    page = sessions.get("page")
    sessions.close("page")
    clock.now += 5
    assert sessions.get("page") is page
    clock.now += 11
    assert sessions.get("page") is page


def test_no_more_is_held_than_allowed():
    sessions = Sessions(Limits(sessions=3, held_bytes=100))
    for number in range(5):
        sessions.get(str(number)).upload = Upload("x", bytes(10))
    assert len(sessions) == 3
    sessions.get("4").upload = Upload("x", bytes(95))
    sessions.get("5")
    assert len(sessions) == 2  # the least recently used went, until it fitted


def test_an_answer_is_found_by_its_token_alone(found):
    sessions = Sessions(LIMITS)
    page = sessions.get("page")
    page.explanation = StoredResult.store(found)
    assert sessions.find_result(page.explanation.token) is page.explanation
    assert sessions.find_result("x" * 32) is None
    token = page.explanation.token
    page.clear()
    assert sessions.find_result(token) is None
    assert len({StoredResult.store(found).token for _ in range(100)}) == 100


# ---------------------------------------------------------------- images


def test_an_upload_is_read_as_a_file_would_be(scene, tmp_path):
    (tmp_path / "bus.png").write_bytes(scene.data)
    mine, file = decode_image(scene, LIMITS), load_image(tmp_path / "bus.png")
    assert (mine.name, mine.sha256) == (file.name, file.sha256)
    np.testing.assert_array_equal(mine.pixels, file.pixels)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no image at all",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        b"\x89PNG\r\n\x1a\n",
        b"\x93NUMPY\x01\x00",
    ],
    ids=["empty", "text", "postscript", "png without a body", "npy"],
)
def test_what_is_no_picture_is_refused(data):
    with pytest.raises(ImageError, match=r"x\.png is not an image"):
        decode_image(Upload("x.png", data), LIMITS)


def test_a_damaged_picture_is_refused():
    data = png(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    with pytest.raises(ImageError, match=r"x\.png cannot be decoded"):
        decode_image(Upload("x.png", data[: len(data) // 2]), LIMITS)


def test_a_picture_with_too_many_pixels_is_refused_before_it_is_decoded():
    buffer = io.BytesIO()
    Image.new("1", (7000, 6000)).save(buffer, "PNG")
    assert len(buffer.getvalue()) < 20_000
    with pytest.raises(ImageError, match="the limit is 40 million"):
        decode_image(Upload("bomb.png", buffer.getvalue()), LIMITS)


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("bus.png", "bus.png"),
        ("../../etc/passwd", "passwd"),
        ("C:\\pictures\\a.jpg", "a.jpg"),
        ("a\nb\x00.png", "a b .png"),
        ("", "image"),
        ("x" * 100 + ".png", "x" * 40 + "…" + "x" * 12 + ".png"),
    ],
)
def test_a_name_is_only_something_to_show(name, clean):
    assert clean_name(name) == clean


def test_the_examples_are_what_they_are_called(model):
    examples = make_examples()
    assert len(examples) == len(EXAMPLES)
    for example in examples:
        top = predict_top_labels(decode_image(example, LIMITS), model)
        assert f"{top[0][1]}.png" == example.name


# ---------------------------------------------------------------- questions


TOP_LABELS = ((3, "fish", 0.9), (1, "sailboat", 0.1))


@pytest.mark.parametrize(
    "values",
    [
        {"method": "/etc/passwd"},
        {"fill": "image:/etc/passwd"},
        {"fill": "#123456"},
        {"label": 77},
        {"share": 0.123},
        {"cells": 1},
        {"several": 100},
        {"several": 0},
        {"max_calls": 10**9},
        {"max_calls": 0},
    ],
    ids=str,
)
def test_what_was_not_offered_is_refused(model, values):
    with pytest.raises(OptionError):
        make_request(TOP_LABELS, model, 128, LIMITS, **values)


def test_the_values_of_the_controls_become_a_request(model):
    request = make_request(TOP_LABELS, model, 128, LIMITS, label=1, share=0.9, cells=16, several=2, max_calls=500)
    assert (request.target, request.top, request.confidence, request.grain) == (1, 2, 0.9, 8)
    assert (request.several, request.max_calls, request.fills) == (2, 500, ("grey",))
    assert make_request(TOP_LABELS, model, 128, LIMITS, method="rise", several=2).several == 1
    assert make_request(TOP_LABELS, model, 128, LIMITS) == becausal.api.Request(grain=4, max_calls=2000)
    assert make_request(TOP_LABELS, model, 128, LIMITS).shares == (0.0, 0.5, 0.9)
    assert make_request(TOP_LABELS, model, 128, LIMITS, share=0.0).smallest
    on_any = make_request(TOP_LABELS, model, 128, LIMITS, share="any")
    assert (on_any.holds, on_any.shares) == (0.9, (0.0, 0.5, 0.9))
    assert make_request(TOP_LABELS, model, 128, LIMITS, share="any", several=2).holds is None


def test_any_option_of_a_request_can_get_a_control(model):
    request = make_request(TOP_LABELS, model, 128, LIMITS, contrast=True, seed=3)
    assert (request.contrast, request.seed) == (True, 3)


def test_no_fill_that_reads_a_file_is_offered():
    assert "grey" in available_fills()
    assert not [fill for fill in available_fills() if ":" in fill]


def test_methods_that_look_inside_are_offered_only_where_one_can():
    blind = becausal.models.as_classifier(lambda batch: np.stack([batch.mean((1, 2, 3)), batch.max((1, 2, 3))], 1) / 255)
    assert "causal" in available_methods(blind)
    assert "grad-cam" not in available_methods(blind)


def test_a_model_is_one_of_the_operators(model):
    assert find_model({"bundled": model}, "bundled") is model
    with pytest.raises(OptionError):
        find_model({"bundled": model}, "python:evil.py:predict")


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("/home/me/secret/net.onnx", "net.onnx"),
        ("python:/home/me/net.py:predict", "python:net.py:predict"),
        ("oip:http://host:8080/v2/models/cats", "oip:cats"),
        ("hf:google/vit-base-patch16-224", "hf:vit-base-patch16-224"),
    ],
)
def test_a_model_is_shown_without_the_folder_it_lies_in(spec, name):
    assert name_model(spec, {}) == name
    assert name_model(spec, {name: None}) == f"{name} (2)"


def test_the_models_stand_in_the_operators_order():
    given = load_models(list_sources(["bundled"], Loading()))
    assert list(given) == ["bundled"]
    assert list(load_models(list_sources([], Loading()))) == ["bundled"]
    with pytest.raises(ModelError):
        load_models(list_sources(["nonsense"], Loading()))


class Misfit:
    """A classifier of volumes."""

    def __init__(self, model):
        from dataclasses import replace

        self._model = model
        self.info = replace(model.info, channels=1)

    def __getattr__(self, name):
        return getattr(self._model, name)


def test_a_model_without_colour_pictures_has_no_place_on_the_page(model):
    check_colour_model(model, "bundled")
    assert isinstance(Misfit(model), Classifier)
    with pytest.raises(OptionError, match="does not take colour images"):
        check_colour_model(Misfit(model), "scan.onnx")


def test_a_search_on_an_upload_is_what_explain_gives(model, scene, found):
    top = predict_top_labels(decode_image(scene, LIMITS), model)
    search = ExplainTask(scene, model, make_request(top, model, 128, LIMITS, share=0.9), LIMITS)
    job = BackgroundJob(search, LIMITS)
    job.run()
    assert job.error == ""
    explanation = job.result.explanation
    np.testing.assert_array_equal(explanation.visible, found.visible)
    assert explanation.origin.image == "bus.png"
    assert search.view.shape == (128, 128, 3)
    assert job.progress.calls > 10


def test_a_search_that_is_stopped_keeps_its_best_so_far(model, scene):
    top = predict_top_labels(decode_image(scene, LIMITS), model)
    search = ExplainTask(scene, model, make_request(top, model, 128, LIMITS, share=0.9), LIMITS)

    def task(progress):
        def stopping(now):
            if now.size < 0.5:
                job.stop()
            progress(now)

        return search(stopping)

    job = BackgroundJob(task, LIMITS)
    job.run()
    explanation = job.result.explanation
    assert explanation.stopped_by == "interrupt"
    assert explanation.checks.sufficient
    assert explanation.size < 0.5


def test_a_contest_compares_two_methods(model, scene):
    top = predict_top_labels(decode_image(scene, LIMITS), model)
    request = make_request(top, model, 128, LIMITS, max_calls=300)
    comparison = CompareTask(scene, model, ("causal", "centre"), request, LIMITS)(lambda now: None).content
    assert [row.method for row in comparison.rows] == ["causal", "centre"]
    assert comparison.first.origin.image == "bus.png"
    page = results.render_comparison(comparison, "t" * 32)
    check_html(page)
    assert "causal" in page
    assert "insertion" in page


def test_the_ranking_is_revealed_from_a_few_pixels_to_all(model, found):
    reveal = predict_ranking(found, model)
    counts = [step.pixels for step in reveal.steps]
    assert counts == sorted(set(counts))
    assert (counts[-1], reveal.steps[-1].share) == (128 * 128, 1.0)
    assert counts[reveal.start] == found.pixels
    assert reveal.steps[reveal.start].prediction.holds == found.checks.sufficient
    assert reveal.steps[-1].prediction.confidence == pytest.approx(found.confidence, abs=1e-4)
    for number, step in enumerate(reveal.steps):
        shown = reveal.entry <= number
        assert np.count_nonzero(shown) == step.pixels
        assert (shown >= found.visible).all() or (shown <= found.visible).all()  # the explanation comes first
        levels = np.sum([level.visible for level in found.levels], axis=0)
        for among in (levels == n for n in np.unique(levels)):  # and each part in the order of the map
            there, later = found.responsibility[shown & among], found.responsibility[~shown & among]
            assert there.min(initial=np.inf) >= later.max(initial=-np.inf)


def test_the_slider_stops_at_every_level(model, found):
    reveal = predict_ranking(found, model)
    assert [level.name for level in found.levels] == ["label", "half", "most"]
    for stop, level in zip(reveal.stops, found.levels, strict=True):
        np.testing.assert_array_equal(reveal.entry <= stop, level.visible)
        assert reveal.steps[stop].prediction.confidence == pytest.approx(level.checks.confidence, abs=1e-4)
        assert reveal.steps[stop].prediction.holds  # the label, whatever its confidence
    page = results.render_ranking(found, reveal)
    check_html(page)
    for stop, name in zip(reveal.stops, ("label", "half", "most"), strict=True):
        assert re.search(rf'data-stop="{stop}"[^>]*>{name}<', page)


def test_a_witness_is_about_the_level_of_its_pixel(model, found):
    for number, level in enumerate(found.levels):
        added = level.visible & ~found.levels[number - 1].visible if number else level.visible
        for row, column in np.argwhere(added)[:1]:
            witness = find_witness(found, model, int(row), int(column))
            assert witness.shown.confidence == pytest.approx(level.checks.confidence, abs=1e-4)
            assert (witness.shown.holds, witness.without.holds) == (True, False)


def test_a_pixel_is_selected_on_the_original_image(found):
    wide = Frame((128, 512), (128, 512), (0, 192), (128, 128))
    shown = replace(found, original=np.zeros((128, 512, 3), np.uint8), frame=wide)
    assert 'data-view="0.000000 1.000000 0.375000 0.250000"' in results.render_explanation(shown, "t" * 32)
    assert 'data-view="0.000000 1.000000 0.000000 1.000000"' in results.render_explanation(
        replace(found, original=None), "t" * 32
    )
    page = results.render_explanation(found, "t" * 32)
    assert "Inner line: enough for the label" in page
    for level in found.levels:
        assert f">{level.name}<" in page


def test_a_witness_keeps_the_target_with_the_pixel_and_loses_it_without(model, found):
    row, column = results.central_pixel(found)
    witness = find_witness(found, model, row, column)
    assert (witness.why.part, witness.shown.holds, witness.without.holds) == (True, True, False)
    page = results.render_witness(found, witness, row, column)
    check_html(page)
    assert "With it: " in page
    outside = find_witness(found, model, 0, 0)
    assert (outside.why.part, outside.without) == (False, None)
    with pytest.raises(OptionError):
        find_witness(found, model, 10**6, 0)


def test_a_witness_is_shown_from_near_and_its_pixel_is_in_sight():
    rng = np.random.default_rng(5)
    for _ in range(200):
        h, w = rng.integers(4, 60, 2)
        visible = rng.random((h, w)) < rng.choice([0.002, 0.02, 0.5])
        row, column = int(rng.integers(h)), int(rng.integers(w))
        top, left, side = results.crop_square(visible, row, column)
        assert 1 <= side <= min(h, w)
        assert 0 <= top <= h - side
        assert 0 <= left <= w - side
        if np.ptp(np.append(np.nonzero(visible)[0], row)) < side > np.ptp(np.append(np.nonzero(visible)[1], column)):
            assert top <= row < top + side
            assert left <= column < left + side
    small = np.zeros((100, 100), bool)
    small[50:54, 60:64] = True
    assert results.crop_square(small, 51, 61) == (39, 49, 25)


# ---------------------------------------------------------------- pieces of HTML


class Nesting(HTMLParser):
    """Checks that tags are balanced and that no resource is loaded from elsewhere."""

    VOID = frozenset({"img", "input", "polyline", "line", "br"})

    def __init__(self):
        super().__init__()
        self.open = []
        self.images = 0

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        assert tag not in ("script", "iframe", "link")
        assert not [name for name in given if name.startswith("on")]
        source = given.get("src") or given.get("href") or "data:image/"
        assert source.startswith(("data:image/", "download/", "shown/")), source
        self.images += tag == "img"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def check_html(page):
    parser = Nesting()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def test_every_piece_is_whole(model, found):
    from dataclasses import replace

    corner = np.zeros_like(found.visible)
    corner[:4, :4] = True
    further = CheckedSet(corner, replace(found.checks, confidence=0.625, minimal_grain=None))
    several = replace(found, others=(further,), stopped_by="interrupt", notes=("a note",))
    shot = panels.SearchSnapshot(found.view, found.visible, np.zeros(found.visible.shape))
    pages = [
        panels.render_image(make_examples(64), LIMITS, None, ""),
        panels.render_image((), LIMITS, Upload("<b>.png", b""), "data:image/png;base64,", error="no <image>"),
        render("welcome"),
        render("error", message="it <went> wrong"),
        render("waiting", ahead=0),
        render("waiting", ahead=1),
        render("waiting", ahead=5),
        panels.render_running(None, calls=0, max_calls=None, stage="search", is_stopping=False),
        panels.render_running(shot, calls=10, max_calls=100, stage="verify", is_stopping=True),
        results.render_explanation(several, "t" * 32),
        results.render_others(several),
        results.render_ranking(found, predict_ranking(found, model)),
        panels.render_comparing(("causal", "rise"), calls=5, is_stopping=False),
        render("hint"),
        render("compare_intro"),
    ]
    for page in pages:
        check_html(page)
    assert "1 search is ahead of yours" in pages[5]
    assert "5 searches are ahead of yours" in pages[6]
    assert "Stopped early" in pages[9]
    assert check_html(pages[10]).images == 2
    assert results.render_others(found) == ""
    assert "Each of these sets is enough on its own" in pages[10]
    listed = read_text(pages[10])
    first = f"{found.pixels} pixels in"
    assert listed.index(first) < listed.index("16 pixels in 1 piece") < listed.index("confidence 0.62, sufficient")
    assert re.findall(r"background: (#\w+)", pages[10]) == ["#ffffff", "#00d5ff"]  # each in its colour
    assert "1 further set is sufficient as well" in read_text(pages[9])
    failed = replace(several, others=(CheckedSet(corner, replace(found.checks, sufficient=False)),))
    assert "Not all of them" in results.render_others(failed)


def test_a_label_or_a_name_cannot_be_markup(found):
    from dataclasses import replace

    evil = '<img src=x onerror="alert(1)">"\''
    named = replace(found, label=evil, origin=replace(found.origin, image=evil), notes=(evil,), others=found.sets)
    for page in (results.render_explanation(named, "t" * 32), results.render_others(named)):
        check_html(page)
        assert evil not in page
    alt = "Explanation 1 for &lt;img src=x onerror=&#34;alert(1)&#34;&gt;&#34;&#39;"
    assert f'alt="{alt}"' in results.render_others(named)  # escaped once, not twice
    said = json.loads(read_result(results.render_explanation(named, "t" * 32)))
    assert (said["label"], said["image"]) == (evil, evil)


def read_result(page):
    from html import unescape

    return unescape(page.split('data-result="')[1].split('"')[0])


def test_a_second_label_is_explained_as_a_second_label(model, scene):
    top = predict_top_labels(decode_image(scene, LIMITS), model)
    request = make_request(top, model, 128, LIMITS, label=top[1][0], max_calls=400)
    result = ExplainTask(scene, model, request, LIMITS)(lambda now: None)
    page = read_text(results.render_explanation(result.explanation, "t" * 32))
    assert f"The model says {top[1][1]}" not in page
    if result.explanation.checks.sufficient:
        assert f"alone keep {top[1][1]}" in page
        assert "among the top 2 labels with a confidence of" in page


def read_text(page):
    return " ".join(re.sub(r"<[^>]*>", "", page).split())


def test_a_small_confidence_is_not_said_to_be_none(found):
    for alone, said in ((0.9, "0.90"), (0.01, "0.01"), (0.0021, "&lt;0.01")):
        page = results.render_explanation(replace(found, checks=replace(found.checks, confidence=alone)), "t" * 32)
        assert f"alone keep bus with a confidence of {said}." in read_text(page)
    unknown = replace(found, checks=replace(found.checks, confidence=float("nan")))
    for floor, said in ((0.9, "0.90"), (0.01, "0.01"), (0.0021, "0.002")):
        page = results.render_explanation(replace(unknown, target=replace(found.target, floor=floor)), "t" * 32)
        assert f"alone keep bus with a confidence of at least {said}." in read_text(page)
    page = results.render_explanation(replace(unknown, target=replace(found.target, floor=0.0)), "t" * 32)
    assert "alone keep bus." in read_text(page)


def test_a_template_is_given_every_value_it_names():
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        render("error")


def test_the_script_can_stand_in_the_head_of_the_page():
    assert "</script" not in read_static("page.js").lower()
    assert ".gradio-container" in read_static("page.css")


# ---------------------------------------------------------------- choices and looks in a hurry


@pytest.fixture
def page(model):
    pytest.importorskip("gradio", reason="gradio is not installed: pip install 'becausal[web]'")
    from becausal.interfaces.serve.page import Page

    queue = JobQueue(LIMITS)
    yield Page({"bundled": model}, Sessions(LIMITS), queue, make_examples(), LIMITS)
    queue.close()


def event(**data):
    return SimpleNamespace(_data=data)


def hold_first(monkeypatch, name, is_first):
    """Block the first matching call of a function; returns the events `it is blocked` and `continue`."""
    from becausal.interfaces.serve import page

    begun, go_on, function = threading.Event(), threading.Event(), getattr(page, name)

    def slow(*arguments):
        if is_first(*arguments):
            begun.set()
            assert go_on.wait(60)
        return function(*arguments)

    monkeypatch.setattr(page, name, slow)
    return begun, go_on


def is_as_it_was(update):
    return isinstance(update, dict) and set(update) == {"__type__"}


def test_an_upload_is_shown_to_a_detector_once(page, monkeypatch):
    model = page.models["boxes"] = becausal.load_model("bundled:detector")
    rows, plain = [], model.ask

    def count(staged, which, visible):
        rows.append(len(visible))
        return plain(staged, which, visible)

    monkeypatch.setattr(model, "ask", count)
    page.choose_model("boxes", SimpleNamespace(session_hash="mine"))
    assert rows == [1]


def test_a_detector_has_boxes_to_choose_from_and_examples_of_its_own(page):
    page.models["boxes"] = becausal.load_model("bundled:detector")
    request = SimpleNamespace(session_hash="mine")
    assert "bus.png" in page.load(request)[0]
    image, _, boxes, methods, other, stage, *_ = page.choose_model("boxes", request)
    assert "bus, key, traffic light.png" in image
    assert image.count("data-example") == 8
    assert boxes["choices"] == [("1: traffic light 0.82", 1), ("2: bus 0.75", 2), ("3: key 0.65", 3)]
    assert (boxes["label"], boxes["info"]) == ("Boxes", "Select the box to explain.")
    assert "d-rise" in methods["choices"]
    assert "ig" not in methods["choices"]
    assert other["value"] == "d-rise"
    assert "enough for the box?" in stage
    session = page.sessions.get("mine")
    asked = make_request(session.top_labels, page.models["boxes"], session.side, LIMITS, label=2)
    assert (asked.box, asked.target) == (2, None)
    back = page.choose_model("bundled", request)
    assert "bus.png" in back[0]
    assert (back[2]["label"], back[4]["value"]) == ("Predicted labels", "rise")


def test_of_two_pictures_the_one_chosen_last_stays_though_it_is_read_first(page, monkeypatch):
    request = SimpleNamespace(session_hash="mine")
    begun, go_on = hold_first(monkeypatch, "predict_top_labels", lambda image, _: image.name == "house.png")
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(page.choose_example, "bundled", event(example=1), request)
        assert begun.wait(60)
        late = page.choose_example("bundled", event(example=2), request)
        go_on.set()
        assert all(is_as_it_was(update) for update in early.result(60))
    assert "sailboat.png" in late[0]
    assert page.sessions.get("mine").upload.name == "sailboat.png"
    assert len(late) == len(early.result())


def test_of_two_pictures_the_one_chosen_last_stays_though_its_request_comes_first(page):
    request = SimpleNamespace(session_hash="mine")
    token = page.sessions.add_upload(Upload("late.png", page.examples[3].data))
    assert "sailboat.png" in page.choose_example("bundled", event(example=2, turn=2), request)[0]
    assert all(is_as_it_was(update) for update in page.choose_example("bundled", event(example=1, turn=1), request))
    assert all(is_as_it_was(update) for update in page.choose_upload("bundled", event(token=token, turn=1), request))
    assert page.sessions.get("mine").upload.name == "sailboat.png"
    assert page.sessions.claim_upload(token) is None  # it is not kept either
    assert "house.png" in page.choose_example("bundled", event(example=1, turn=3), request)[0]


def test_of_two_pixels_the_one_chosen_last_is_shown(page, found, monkeypatch):
    request = SimpleNamespace(session_hash="mine")
    page.load(request)
    page.sessions.get("mine").explanation = StoredResult.store(found)
    begun, go_on = hold_first(monkeypatch, "find_witness", lambda *arguments: arguments[2] == 5)
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(page.show_witness, event(row=5, column=5), request)
        assert begun.wait(60)
        late = page.show_witness(event(row=6, column=6), request)
        go_on.set()
        assert is_as_it_was(early.result(60))
    assert "row 6, column 6" in late


def test_the_same_model_again_forgets_nothing(page, found):
    request = SimpleNamespace(session_hash="mine")
    page.load(request)
    session = page.sessions.get("mine")
    session.explanation = StoredResult.store(found)
    assert all(is_as_it_was(update) for update in page.choose_model("bundled", request))
    assert session.explanation is not None


def test_back_to_the_model_before_while_another_is_still_asked(page, monkeypatch):
    request = SimpleNamespace(session_hash="mine")
    page.models["slow"] = another = becausal.load_model("bundled")
    page.load(request)
    begun, go_on = hold_first(monkeypatch, "predict_top_labels", lambda _, classifier: classifier is another)
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(page.choose_model, "slow", request)
        assert begun.wait(60)
        late = page.choose_model("bundled", request)
        go_on.set()
        assert all(is_as_it_was(update) for update in early.result(60))
    assert late[1] == page.sessions.get("mine").model == "bundled"


# ---------------------------------------------------------------- the guard


def ask_guard(path, *, method="GET", headers=None, body=b"", query=b"", hosts=frozenset({"localhost"}), limits=LIMITS):
    """The response status, 299 if the request reached the app, and the bodies the app received."""
    seen, sent = [], []

    async def app(scope, receive, send):
        seen.append((await receive())["body"] if method == "POST" else b"")
        await send({"type": "http.response.start", "status": 299, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    given = {b"host": b"localhost:7860", b"content-length": str(len(body)).encode()} | (headers or {})
    scope = {"type": "http", "path": path, "method": method, "query_string": query, "headers": list(given.items())}
    asyncio.run(guard_page(app, limits=limits, hosts=hosts)(scope, receive, send))
    names = [name for name, _ in sent[0]["headers"]]
    assert b"content-security-policy" in names
    return sent[0]["status"], seen


@pytest.mark.parametrize(
    "path",
    ["/", "/config", "/theme.css", "/assets/index-Dph.js", "/gradio_api/heartbeat/qzvwidl3ki", "/download/" + "a" * 32],
)
def test_what_the_page_needs_comes_through(path):
    assert ask_guard(path)[0] == 299


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/file=/etc/passwd",
        "/gradio_api/file/etc/passwd",
        "/gradio_api/proxy=http://example.org",
        "/assets/../../etc/passwd",
        "/assets/..\\..\\secret",
        "/assets/a\x00b",
        "/static//../x",
        "/download/../config",
        "/download/short",
        "/gradio_api/info",
        "/gradio_api/runs",
        "/monitoring",
        "/gradio_api/upload_progress",
        "/gradio_api/stream/a/b/1/playlist.m3u8",
        "/docs",
        "/openapi.json",
        "/image",
    ],
)
def test_everything_else_is_not_there(path):
    assert ask_guard(path) == (404, [])


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/upload",
        "/gradio_api/run/explain",
        "/gradio_api/component_server",
        "/gradio_api/vibe-edit",
        "/login",
        "/",
    ],
)
def test_no_other_door_takes_anything(path):
    assert ask_guard(path, method="POST", body=b"{}") == (404, [])
    assert ask_guard(path, method="DELETE")[0] == 405


def test_a_stored_page_is_not_read_by_a_name_from_outside():
    assert ask_guard("/", query=b"deep_link=../../x") == (404, [])


def test_another_name_or_another_site_is_refused():
    assert ask_guard("/", headers={b"host": b"evil.example"})[0] == 421
    assert ask_guard("/", headers={b"host": b"evil.example"}, hosts=None)[0] == 299
    event = json.dumps({"session_hash": "abcdefgh", "fn_index": 0, "data": []}).encode()
    for path in ("/image", "/gradio_api/queue/join"):
        assert ask_guard(path, method="POST", body=event, headers={b"origin": b"http://evil.example"})[0] == 403
        assert ask_guard(path, method="POST", body=event, headers={b"origin": b"http://localhost:7860"})[0] == 299


@pytest.mark.parametrize(("host", "name"), [("localhost:1", "localhost"), ("[::1]:80", "::1"), ("A.b", "a.b"), ("", "")])
def test_the_name_of_a_host(host, name):
    assert strip_port(host) == name


@pytest.mark.parametrize("declared", [True, False])
def test_what_is_too_large_is_refused(declared):
    small = Limits(upload_bytes=1000, body_bytes=100)
    for path, size in (("/image", 1001), ("/gradio_api/queue/join", 101)):
        headers = {} if declared else {b"content-length": b"0"}
        assert ask_guard(path, method="POST", body=bytes(size), headers=headers, limits=small) == (413, [])
    assert ask_guard("/image", method="POST", body=bytes(1000), limits=small)[0] == 299


def test_a_websocket_is_closed():
    sent = []

    async def send(message):
        sent.append(message)

    guard = guard_page(None, limits=LIMITS, hosts=None)
    asyncio.run(guard({"type": "websocket", "path": "/"}, None, send))
    assert [message["type"] for message in sent] == ["websocket.close"]


FILE = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
GOOD = {
    "session_hash": "abcdefgh",
    "fn_index": 3,
    "data": ["a", 1, 0.5, None, True],
    "event_data": {"row": 1},
    "trigger_id": 2,
}


def test_an_event_is_passed_on_with_plain_values_only():
    more = GOOD | {"oauth_token": "x", "simple_format": True, "batched": True, "event_id": "x"}
    assert parse_event(json.dumps(more).encode()) == GOOD
    status, seen = ask_guard("/gradio_api/queue/join", method="POST", body=json.dumps(more).encode())
    assert (status, json.loads(seen[0])) == (299, GOOD)


@pytest.mark.parametrize(
    "change",
    [
        {"data": [FILE]},
        {"data": [[FILE]]},
        {"data": {"0": 1}},
        {"data": None},
        {"data": ["x" * 1000]},
        {"data": [1] * 100},
        {"event_data": FILE},
        {"event_data": [1]},
        {"session_hash": None},
        {"session_hash": "../../x"},
        {"fn_index": "0"},
        {"fn_index": True},
        {"fn_index": -1},
    ],
    ids=str,
)
def test_an_event_that_holds_anything_else_is_refused(change):
    with pytest.raises(RequestRejected) as refused:
        parse_event(json.dumps(GOOD | change).encode())
    assert refused.value.status == 400


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b"1", b"[" * 60_000], ids=lambda body: repr(body[:8]))
def test_what_is_no_event_is_refused(body):
    assert ask_guard("/gradio_api/queue/join", method="POST", body=body) == (400, [])
