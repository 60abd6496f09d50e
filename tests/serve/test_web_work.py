"""The parts of the page without a browser: job queue, kept results, images, requests, HTML fragments, the guard."""

import io
import json
import re
import threading
import time
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

import becausal
from becausal.api import Status
from becausal.core.checks import Against, CheckedSet
from becausal.core.contracts import Classifier
from becausal.core.errors import ImageError, InputError, ModelError, OptionError
from becausal.core.explanation import NamedScore
from becausal.core.frames import Frame
from becausal.core.metrics import Transfer
from becausal.images.backgrounds import RandomBackgrounds
from becausal.images.loading import load_image
from becausal.interfaces.cli.serve import load_models
from becausal.interfaces.serve import rendering, tasks
from becausal.interfaces.serve.guard import RequestRejected
from becausal.interfaces.serve.images import Upload, clean_name, decode_image
from becausal.interfaces.serve.job_queue import JobQueue
from becausal.interfaces.serve.jobs import BackgroundJob, JobProgress, ModelSource
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.page import (
    EXAMPLES,
    available_fills,
    available_methods,
    describe_image,
    find_example,
    make_examples,
    make_request,
)
from becausal.interfaces.serve.rendering import read_static, render
from becausal.interfaces.serve.tasks import (
    CompareTask,
    ExplainTask,
    Prediction,
    find_witness,
    pack_result,
    predict_image,
    predict_ranking,
    unpack_result,
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
    return becausal.explain(image.pixels, model)


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


# ---------------------------------------------------------------- results


def test_a_result_is_found_by_its_id_and_by_the_part_of_the_server_it_belongs_to(found):
    jobs = JobQueue(LIMITS)
    job = BackgroundJob(lambda progress: pack_result(found), LIMITS)
    job.run()
    name = jobs.keep(job, "page")
    assert unpack_result(jobs.find(name, "page").result)[0].pixels == found.pixels
    for wrong, owner in ((name, "api"), ("x" * 32, "page")):
        with pytest.raises(RequestRejected, match="no such job"):
            jobs.find(wrong, owner)
    assert len({jobs.keep(job, "page") for _ in range(100)}) == 100
    jobs.stop(name, "page")
    with pytest.raises(RequestRejected, match="no such job"):
        jobs.find(name, "page")


def test_a_search_that_is_not_wanted_any_more_is_stopped_and_forgotten():
    jobs = JobQueue(LIMITS)
    job = BackgroundJob(lambda progress: 1, LIMITS)
    name = jobs.keep(job, "page")
    jobs.stop(name, "page", keep=False)
    assert job.is_stopping
    assert jobs.kept == (0, 0)


def test_a_kept_job_that_has_ended_holds_no_image(model, scene):
    jobs = JobQueue(LIMITS)
    task = ExplainTask(scene, model, make_request({"calls": "60"}, model, None, LIMITS), LIMITS)
    job = BackgroundJob(task, LIMITS)
    name = jobs.keep(job, "page", model)
    assert jobs.find(name, "page").task is task
    job.run()
    assert (job.task, job.classifier) == (None, model)
    assert jobs.kept == (1, len(job.result.data))


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
    examples = make_examples("scenes")
    assert len(examples) == len(EXAMPLES)
    for example in examples:
        top, _ = predict_image(decode_image(example, LIMITS), model)
        assert f"{top[0][1]}.png" == example.name


# ---------------------------------------------------------------- questions


@pytest.mark.parametrize(
    "values",
    [
        {"method": "/etc/passwd"},
        {"method": "python:/tmp/x.py:f"},
        {"fill": "image:/etc/passwd"},
        {"fill": "#123456"},
        {"label": "x", "rank": "2"},
        {"rank": "21"},
        {"ask": "levels"},
        {"ask": "share", "share": "1.5"},
        {"ask": "share", "share": "nan"},
        {"ask": "share", "share": "most"},
        {"detail": "1"},
        {"several": "100"},
        {"several": "0"},
        {"calls": "1000000000"},
        {"calls": "-1"},
        {"calls": "9"},
        {"calls": "1e3"},
        {"calls": "½"},
    ],
    ids=str,
)
def test_what_was_not_offered_is_refused(model, values):
    with pytest.raises(OptionError):
        make_request(values, model, None, LIMITS)


def test_the_values_of_the_controls_become_a_request(model):
    def ask(**values):
        return make_request(values, model, None, LIMITS)

    assert ask() == ask(label="3", rank="1", detail="medium", calls="", ask="sets", share="0.7") == becausal.api.Request()
    request = ask(label="1", rank="2", detail="coarse", several="2", calls="500", fill="blur")
    assert request == becausal.api.Request(target=1, top=2, grain=8, several=2, max_calls=500, fills=("blur",))
    assert ask(method="rise", several="2") == becausal.api.Request(method="rise")
    assert ask(ask="smallest", share="0.7") == becausal.api.Request(smallest=True)
    assert ask(ask="share", share="0.5") == becausal.api.Request(confidence=0.5)
    assert ask(ask="share", share="") == becausal.api.Request(confidence=0.7)


def test_no_fill_that_reads_a_file_is_offered():
    assert "grey" in available_fills()
    assert not [fill for fill in available_fills() if ":" in fill]


def test_methods_that_look_inside_are_offered_only_where_one_can():
    blind = becausal.models.as_classifier(lambda batch: np.stack([batch.mean((1, 2, 3)), batch.max((1, 2, 3))], 1) / 255)
    assert "causal" in available_methods(blind)
    assert "grad-cam" not in available_methods(blind)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("/home/me/secret/net.onnx", "net.onnx"),
        ("python:/home/me/net.py:predict", "python:net.py:predict"),
        ("oip:http://host:8080/v2/models/cats", "oip:cats"),
        ("hf:google/vit-base-patch16-224", "hf:vit-base-patch16-224"),
    ],
)
def test_a_model_is_shown_without_the_folder_it_lies_in(spec, name, model, monkeypatch):
    monkeypatch.setattr(ModelSource, "open", lambda source: model)
    other = spec.replace("/home/me/", "/home/you/").replace("http:", "https:").replace("google", "me")
    models, sources = load_models([spec, other], Loading())
    assert list(models) == list(sources) == [name, f"{name} (2)", "bundled"]


def test_the_models_stand_in_the_operators_order():
    assert list(load_models(["bundled"], Loading())[0]) == list(load_models([], Loading())[0]) == ["bundled"]
    with pytest.raises(ModelError):
        load_models(["nonsense"], Loading())


class Misfit:
    """A classifier of volumes."""

    def __init__(self, model):
        from dataclasses import replace

        self._model = model
        self.info = replace(model.info, channels=1)

    def __getattr__(self, name):
        return getattr(self._model, name)


def test_a_model_without_colour_pictures_has_no_place_on_the_page(model, monkeypatch):
    assert isinstance(Misfit(model), Classifier)
    monkeypatch.setattr(ModelSource, "open", lambda source: Misfit(model))
    with pytest.raises(OptionError, match=r"scan\.onnx does not take colour images"):
        load_models(["scan.onnx"], Loading())


def test_a_search_on_an_upload_is_what_explain_gives(model, scene, found):
    search = ExplainTask(scene, model, make_request({}, model, None, LIMITS), LIMITS)
    job = BackgroundJob(search, LIMITS)
    job.run()
    assert job.error == ""
    explanation = unpack_result(job.result)[0]
    np.testing.assert_array_equal(explanation.visible, found.visible)
    assert explanation.origin.image == "bus.png"
    assert search.view.shape == (128, 128, 3)
    assert job.progress.calls > 10


def test_a_search_that_is_stopped_keeps_its_best_so_far(model, scene):
    search = ExplainTask(scene, model, make_request({}, model, None, LIMITS), LIMITS)

    def task(progress):
        def stopping(now):
            if now.size < 0.5:
                job.stop()
            progress(now)

        return search(stopping)

    job = BackgroundJob(task, LIMITS)
    job.run()
    explanation = unpack_result(job.result)[0]
    assert explanation.stopped_by == "interrupt"
    assert explanation.checks.sufficient
    assert explanation.size < 0.5


def test_a_contest_compares_two_methods(model, scene):
    request = make_request({"calls": "300"}, model, None, LIMITS)
    comparison = unpack_result(CompareTask(scene, model, ("causal", "centre"), request, LIMITS)(lambda now: None))[0]
    assert [row.method for row in comparison.rows] == ["causal", "centre"]
    assert comparison.first.origin.image == "bus.png"
    page = rendering.render_comparison(comparison, "page/jobs/x")
    check_html(page)
    assert "causal" in page
    assert "insertion" in page


def test_the_ranking_is_revealed_from_a_few_pixels_to_all(model, found):
    reveal = predict_ranking(found, model)
    counts = reveal.counts
    assert list(counts) == sorted(set(counts))
    assert counts[-1] == 128 * 128
    assert counts[reveal.stops[-1]] == found.pixels
    assert reveal.predictions[reveal.stops[-1]].holds == found.checks.sufficient
    assert reveal.predictions[-1].confidence == pytest.approx(found.confidence, abs=1e-4)
    for number, count in enumerate(counts):
        shown = reveal.entry <= number
        assert np.count_nonzero(shown) == count
        assert (shown >= found.visible).all() or (shown <= found.visible).all()  # the explanation comes first
        levels = np.sum([level.visible for level in found.levels], axis=0)
        for among in (levels == n for n in np.unique(levels)):  # and each part in the order of the map
            there, later = found.responsibility[shown & among], found.responsibility[~shown & among]
            assert there.min(initial=np.inf) >= later.max(initial=-np.inf)


def test_the_slider_stops_at_every_level(model, found):
    reveal = predict_ranking(found, model)
    assert [level.name for level in found.levels] == ["core", "enough"]
    for stop, level in zip(reveal.stops, found.levels, strict=True):
        np.testing.assert_array_equal(reveal.entry <= stop, level.visible)
        assert reveal.predictions[stop].confidence == pytest.approx(level.checks.confidence, abs=1e-4)
        assert reveal.predictions[stop].holds  # the label, whatever its confidence
    page = rendering.render_ranking(found, reveal)
    check_html(page)
    assert "The dashed lines mark core and enough." in page
    for stop, name in zip(reveal.stops, ("core", "enough"), strict=True):
        assert re.search(rf'data-stop="{stop}"[^>]*>{name}<', page)


def test_a_witness_is_about_the_set_of_its_pixel(model, found):
    """Of the core in the plain fill; of enough on one of its recorded backgrounds, where that shows it."""
    core, enough = found.levels
    row, column = map(int, np.argwhere(core.visible)[0])
    (_, image, shown), (_, _, without) = find_witness(found, model, row, column).images
    assert shown.confidence == pytest.approx(core.checks.confidence, abs=1e-4)
    assert (shown.holds, without.holds) == (True, False)
    np.testing.assert_array_equal(image[~core.visible], found.backgrounds[0][~core.visible])
    sampler = RandomBackgrounds(found.view, found.origin.request.seed)
    drawn = []
    for row, column in np.argwhere(enough.visible & ~core.visible):
        witness = find_witness(found, model, int(row), int(column))
        (_, image, shown), (_, _, without) = witness.images
        assert (shown.holds, without.holds) == (True, False)
        if "without it, not on this one" in witness.text:
            drawn.append(image)
            break
    assert any(np.array_equal(drawn[0][~enough.visible], sampler.draw(n)[~enough.visible]) for n in enough.panel)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("panel", "not on this one"),
        ("share", "less than 90 % of the confidence is left with everything else in the plain fill"),
        ("fill", "the label is lost with everything else in the plain fill"),
        (
            "nowhere",
            "the label is lost on one of them, or with everything else in the plain fill, or less than 90 % of the "
            "confidence is left there",
        ),
    ],
)
def test_a_witness_says_where_the_label_is_lost_and_shows_it(model, found, monkeypatch, case, said):
    """Of a cell of enough: on the second background of its panel, or in the plain fill only, or for the confidence only."""
    core, enough = found.levels
    place = map(int, np.argwhere(enough.visible & ~core.visible)[0])
    second = RandomBackgrounds(found.view, found.origin.request.seed).draw(enough.panel[1])
    plain = found.backgrounds[0]

    def predict(explanation, classifier, visible, background, floor):
        is_plain = np.array_equal(background, plain)
        lost = {
            "panel": np.array_equal(background, second), "share": is_plain and floor > 0, "fill": is_plain, "nowhere": False,
        }[case]  # fmt: skip
        holds = [bool(one.sum() == enough.pixels or not lost) for one in visible]
        return [Prediction("bus", 0.9, 0.9, one) for one in holds]

    monkeypatch.setattr(tasks, "predict_masked", predict)
    witness = find_witness(found, model, *place)
    side = enough.checks.minimal_grain
    assert witness.text == f"with this cell of {side} px the label is bus on all recorded backgrounds; without it, {said}"
    shown = second if case == "panel" else plain
    np.testing.assert_array_equal(witness.images[0][1][~enough.visible], shown[~enough.visible])


def test_checks_name_the_controls_of_the_page(found):
    core = found.levels[0]
    checks = replace(core.checks, minimal_grain=2 * found.origin.grain)
    page = rendering.render_explanation(replace(found, checks=checks, levels=(core,)), "page/jobs/x")
    assert "smaller cells can be asked for with the level of detail “fine”" in read_text(page)
    assert "--grain" not in page
    origin, checks = replace(found.origin, grain=None), replace(core.checks, minimal_grain=None)
    page = rendering.render_explanation(replace(found, origin=origin, checks=checks, levels=(core,)), "page/jobs/x")
    assert "with the level of detail “fine” or “coarse”, what is not needed is removed" in read_text(page)
    assert "--grain" not in page


def with_against(found):
    corner = np.zeros_like(found.visible)
    corner[-16:, -16:] = True
    return replace(found, confidence=0.5, against=Against(corner, 0.75, 0.25, 2))


def test_what_speaks_against_the_label_is_shown_and_has_a_witness(model, found):
    page = rendering.render_explanation(with_against(found), "page/jobs/x")
    check_html(page)
    assert "against: masking these 1.6 % of the pixels raises the confidence from 0.50 to 0.75" in read_text(page)
    assert re.findall(r'name="shown" value="(\w+)"', page) == ["enough", "core", "against"]
    assert re.findall(r'data-shown="(\w+)"', page) == ["core", "against"]
    witness = find_witness(with_against(found), model, 127, 127)
    (title, whole, _), (_, masked, _) = witness.images
    assert (title, witness.is_part, "it speaks against bus" in witness.text) == ("The whole image", False, True)
    np.testing.assert_array_equal(whole, found.view)
    np.testing.assert_array_equal(masked[-16:, -16:], found.backgrounds[0][-16:, -16:])
    assert 'value="against"' not in rendering.render_explanation(replace(found, against=None), "page/jobs/x")
    row, column = map(int, np.argwhere(found.levels[0].visible)[0])
    both = replace(with_against(found), against=Against(found.visible, 0.75, 0.25, 2))  # of enough, and against
    rises = "; yet masking it, among others, in the whole image raises the confidence to 0.75"
    assert find_witness(both, model, row, column).text.endswith(rises)
    assert both.why(row, column).text.endswith(rises)
    assert "yet" not in found.why(row, column).text


def test_how_far_each_set_holds_and_a_close_rival_are_said(found):
    few, many = Transfer(3, 40, 0.01, 0.2), Transfer(30, 40, 0.6, 0.9)
    core = replace(found.levels[0], checks=replace(found.levels[0].checks, transfer=few))
    shown = replace(found, levels=(core, found.level))
    text = read_text(rendering.render_explanation(shown, "page/jobs/x"))
    assert "keeps the label on 3 of 40 fresh ones" in text
    assert text.count("this set depends on the fill") == 1
    assert f"{found.level.certificate.kept} of {found.level.certificate.asked} fresh ones" in text
    sets = [replace(found.checks, transfer=one) for one in (few, many)]
    several = replace(found, others=tuple(CheckedSet(found.visible, checks) for checks in sets))
    assert read_text(rendering.render_others(several)).count("this set depends on the fill") == 1
    rival = NamedScore("lorry", 3, 0.4)
    text = read_text(rendering.render_explanation(replace(found, confidence=0.45, runner_up=rival), "page/jobs/x"))
    assert "To ask about lorry, select it under Predicted labels." in text
    assert "lorry" not in read_text(rendering.render_explanation(found, "page/jobs/x"))


def test_the_zones_of_the_map_are_named_and_other_maps_have_a_scale(found):
    page = rendering.render_explanation(found, "page/jobs/x")
    assert all(f"{name}: " in page for name in ("core", "rest of enough", "context"))
    assert "<i>low</i>" not in page
    page = rendering.render_explanation(replace(found, zones=None), "page/jobs/x")
    check_html(page)
    assert "<i>low</i>" in page
    assert "context: " not in page


def test_a_pixel_is_selected_on_the_original_image(found):
    wide = Frame((128, 512), (128, 512), (0, 192), (128, 128))
    shown = replace(found, original=np.zeros((128, 512, 3), np.uint8), frame=wide)
    assert 'data-view="0.000000 1.000000 0.375000 0.250000"' in rendering.render_explanation(shown, "page/jobs/x")
    assert 'data-view="0.000000 1.000000 0.000000 1.000000"' in rendering.render_explanation(
        replace(found, original=None), "page/jobs/x"
    )


def test_a_witness_keeps_the_target_with_the_pixel_and_loses_it_without(model, found):
    row, column = map(int, np.argwhere(found.visible)[0])
    witness = find_witness(found, model, row, column)
    assert (witness.is_part, [made.holds for *_, made in witness.images]) == (True, [True, False])
    page = rendering.render_witness(found, witness, row, column)
    check_html(page)
    assert "With it: " in page
    witness = find_witness(found, model, 0, 0)
    assert (witness.is_part, len(witness.images)) == (False, 1)
    with pytest.raises(OptionError):
        find_witness(found, model, 10**6, 0)


def test_a_witness_is_shown_from_near_and_its_pixel_is_in_sight():
    rng = np.random.default_rng(5)
    for _ in range(200):
        h, w = rng.integers(4, 60, 2)
        visible = rng.random((h, w)) < rng.choice([0.002, 0.02, 0.5])
        row, column = int(rng.integers(h)), int(rng.integers(w))
        top, left, side = rendering.crop_square(visible, row, column)
        assert 1 <= side <= min(h, w)
        assert 0 <= top <= h - side
        assert 0 <= left <= w - side
        if np.ptp(np.append(np.nonzero(visible)[0], row)) < side > np.ptp(np.append(np.nonzero(visible)[1], column)):
            assert top <= row < top + side
            assert left <= column < left + side
    small = np.zeros((100, 100), bool)
    small[50:54, 60:64] = True
    assert rendering.crop_square(small, 51, 61) == (39, 49, 25)


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
        assert not [name for name in given if name.startswith("on") or name == "style"]
        source = given.get("src") or given.get("href") or "data:image/"
        assert source.startswith(("data:image/", "page/jobs/")), source
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


def test_every_piece_is_whole(model, scene, found):
    from dataclasses import replace

    corner = np.zeros_like(found.visible)
    corner[:4, :4] = True
    further = CheckedSet(corner, replace(found.checks, confidence=0.625, minimal_grain=None))
    several = replace(found, others=(further,), stopped_by="interrupt", notes=("a note",))
    task = ExplainTask(scene, model, becausal.Request(max_calls=100), LIMITS)
    contest = CompareTask(scene, model, ("causal", "rise"), becausal.Request(), LIMITS)
    job, shrinking, comparing = (BackgroundJob(each, LIMITS) for each in (task, task, contest))
    job.state = shrinking.state = comparing.state = "running"
    shrinking.is_stopping = True
    shrinking.progress = JobProgress(1, 10, status(10, found.visible), np.zeros(found.visible.shape, np.float32))
    pages = [
        render("image", family="scenes", examples=make_examples("scenes"), upload=None, uri="", model="a"),
        render("image", family="", examples=(), upload=Upload("<b>.png", b""), uri="data:image/png;base64,", model='"'),
        render("welcome"),
        render("labels", labels=((1, "<b>", 0.5),), is_detector=False),
        render("waiting", ahead=0),
        render("waiting", ahead=1),
        render("waiting", ahead=5),
        rendering.render_progress(job),
        rendering.render_progress(shrinking),
        rendering.render_explanation(several, "page/jobs/x"),
        rendering.render_others(several),
        rendering.render_ranking(found, predict_ranking(found, model)),
        rendering.render_progress(comparing),
        render("compare_intro"),
    ]
    for page in pages:
        check_html(page)
    assert "1 search is ahead of yours" in pages[5]
    assert "5 searches are ahead of yours" in pages[6]
    assert "Stopped early" in pages[9]
    assert check_html(pages[10]).images == 2
    assert rendering.render_others(found) == ""
    assert "Each of these sets is enough on its own" in pages[10]
    listed = read_text(pages[10])
    first = f"{found.pixels:,} pixels in"
    assert listed.index(first) < listed.index("16 pixels in 1 piece") < listed.index("confidence 0.62, sufficient")
    assert re.findall(r"background: (#\w+)", pages[10]) == ["#ffffff", "#00d5ff"]  # each in its colour
    assert "1 further set is enough as well" in read_text(pages[9])
    failed = replace(several, others=(CheckedSet(corner, replace(found.checks, sufficient=False)),))
    assert "Not all of them" in rendering.render_others(failed)


def test_a_label_or_a_name_cannot_be_markup(found):
    from dataclasses import replace

    evil = '<img src=x onerror="alert(1)">"\''
    named = replace(found, label=evil, origin=replace(found.origin, image=evil), notes=(evil,), others=found.sets)
    for page in (rendering.render_explanation(named, "page/jobs/x"), rendering.render_others(named)):
        check_html(page)
        assert evil not in page
    alt = "Explanation 1 for &lt;img src=x onerror=&#34;alert(1)&#34;&gt;&#34;&#39;"
    assert f'alt="{alt}"' in rendering.render_others(named)  # escaped once, not twice
    said = json.loads(read_result(rendering.render_explanation(named, "page/jobs/x")))
    assert (said["label"], said["image"]) == (evil, evil)


def read_result(page):
    from html import unescape

    return unescape(page.split('data-result="')[1].split('"')[0])


def test_a_second_label_is_explained_as_a_second_label(model, scene):
    top, _ = predict_image(decode_image(scene, LIMITS), model)
    request = make_request({"label": str(top[1][0]), "rank": "2", "calls": "400"}, model, None, LIMITS)
    explanation = unpack_result(ExplainTask(scene, model, request, LIMITS)(lambda now: None))[0]
    page = read_text(rendering.render_explanation(explanation, "page/jobs/x"))
    assert f"The model says {top[1][1]}" not in page
    if explanation.checks.sufficient:
        assert f"keep {top[1][1]} (&lt;0.01) among the top 2 labels" in page


def read_text(page):
    return " ".join(re.sub(r"<[^>]*>", "", page).split())


def test_a_small_confidence_is_not_said_to_be_none(found):
    for alone, said in ((0.9, "0.90"), (0.01, "0.01"), (0.0021, "&lt;0.01"), (float("nan"), "")):
        level = replace(found.level, checks=replace(found.checks, confidence=alone))
        page = rendering.render_explanation(replace(found, levels=(level,), checks=level.checks), "page/jobs/x")
        assert re.search(r"pieces?(.*?) ✓", read_text(page))[1] == (f", confidence {said}" if said else "")


def test_a_template_is_given_every_value_it_names():
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        render("waiting")


def test_the_script_and_the_style_name_no_other_server():
    assert "http" not in read_static("page.js") + read_static("page.css")


# ---------------------------------------------------------------- the image and the model


@pytest.fixture(scope="module")
def detector():
    return becausal.load_model("bundled:detector")


def test_an_image_is_shown_with_its_labels(model, scene):
    shown = describe_image(scene, model, {"model": "bundled"}, LIMITS)
    for name in ("image", "labels", "welcome"):
        check_html(shown[name])
    assert re.search(r'data-rank="1" checked>\s*<span>bus &gt;0.99', shown["labels"])
    assert shown["labels"].count("<input") == 5
    assert (shown["methods"][0], shown["compared"]) == ("causal", "rise")


def test_an_upload_is_shown_to_a_detector_once(detector, monkeypatch):
    rows, plain = [], detector.ask

    def count(staged, which, visible):
        rows.append(len(visible))
        return plain(staged, which, visible)

    monkeypatch.setattr(detector, "ask", count)
    describe_image(find_example(detector, ""), detector, {}, LIMITS)
    assert rows == [1]


def test_a_detector_has_boxes_to_choose_from_and_examples_of_its_own(model, detector):
    shown = describe_image(find_example(detector, "scenes/3"), detector, {"model": "boxes"}, LIMITS)
    assert "bus, key, traffic light.png" in shown["image"]
    assert shown["image"].count('data-example="groups/') == 8
    boxes = re.findall(r'value="(\d)" data-rank="(\d)".*?<span>(.*?)</span>', shown["labels"], re.DOTALL)
    assert boxes == [("1", "1", "1: traffic light 0.82"), ("2", "2", "2: bus 0.75"), ("3", "3", "3: key 0.65")]
    assert "Select the box to explain." in shown["labels"]
    assert "d-rise" in shown["methods"]
    assert "ig" not in shown["methods"]
    assert shown["compared"] == "d-rise"
    assert "enough for the box?" in shown["welcome"]
    asked = make_request({"label": "2", "rank": "2"}, detector, None, LIMITS)
    assert (asked.box, asked.target, asked.top) == (2, None, 1)


def test_examples_are_those_of_the_model(model, detector):
    blind = becausal.models.as_classifier(lambda batch: np.stack([batch.mean((1, 2, 3)), batch.max((1, 2, 3))], 1) / 255)
    assert [find_example(model, name).name for name in ("scenes/2", "", "groups/2", "scenes/99", "scenes/x")] == [
        "sailboat.png",
        *["bus.png"] * 4,
    ]
    assert find_example(detector, "scenes/2") is find_example(detector, "")
    assert find_example(blind, "scenes/2") is None
    shown = describe_image(None, blind, {}, LIMITS)
    assert "Drop an image here" in shown["image"]
    assert "data-example" not in shown["image"]
