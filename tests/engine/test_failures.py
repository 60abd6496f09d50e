"""A model that fails in the middle of a search: what was found until then is kept, and nothing more is claimed."""

import json
import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from batch_toys import MODEL, write_pictures
from PIL import Image

import becausal
from becausal.api import Failure, Request, explain_numbered, find_failure
from becausal.api.explanation import Explanation
from becausal.batch.reading import BatchRun
from becausal.core.contracts import Finding, Question, Stop
from becausal.core.errors import AnswerError, NetworkError
from becausal.engine import interrupts
from becausal.engine.engine import Engine
from becausal.images.backgrounds import RandomBackgrounds
from becausal.interfaces.cli.app import main
from becausal.interfaces.serve.images import Upload
from becausal.interfaces.serve.jobs import BackgroundJob
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.rendering import render_explanation
from becausal.interfaces.serve.tasks import ExplainTask, unpack_result
from becausal.lab import run, runner
from becausal.models import as_classifier
from becausal.render.endings import describe_stop
from becausal.search.checking import removals
from becausal.search.descent import CoalitionIndex
from test_bench import bombed, bright, photos  # noqa: F401 - two are fixtures
from test_classifiers_oip import Server, corner
from test_classifiers_oip import picture as photo
from test_engine import VALUES, Model, asks, case, picture, rows
from test_speed import Later

LONG = 10**6


def dead_after(count, kind=Model, **options):
    """A model that is asked in single calls and answers so many of them; then it is gone for good."""
    return kind(needed=150.0, batch_size=1, fails_at=range(count, LONG), **options)


METHODS = {
    "causal": {"method": "causal", "grain": 1, "fills": "black"},
    "enough": {"method": "causal", "grain": 1, "fills": "black", "holds": 0.5},
    "two fills": {"method": "causal", "grain": 2, "fills": ("black", "1")},
    "dc-causal": {"method": "dc-causal", "options": {"partitions": 8}, "grain": 2, "fills": "black"},
    "rise": {"method": "rise", "options": {"masks": 60}, "grain": 1, "fills": "black"},
    "random": {"method": "random", "grain": 2, "fills": "black", "contrast": True},
}


@dataclass
class BudgetedRun:
    """An undisturbed run: how it ended, and in which stage each call was made, the first look and the last among them."""

    end: Explanation
    stages: list


@pytest.fixture(scope="module")
def courses():
    return {name: follow(options) for name, options in METHODS.items()}


def follow(options):
    stages = ["look"]

    def note(now):
        stages.extend([now.stage] * (now.calls - len(stages)))

    end = becausal.explain(picture(), Model(needed=150.0, batch_size=1), progress=note, **options)
    assert len(stages) == end.calls
    return BudgetedRun(end, stages)


def kept(explanation, background, visible, share=0.0):
    """Whether the model keeps the label, and this share of its confidence, when it is asked beside the search."""
    mutant = np.where(visible[..., None], explanation.view, background)
    scores = Model(needed=150.0).classify(mutant[None])[0]
    return scores.argmax() == 1 and scores[1] >= share * explanation.confidence


def check_honest(explanation, model):
    """Every claim is true of the model, and everything it rests on was answered before it was gone."""
    asked = set(model.rows[: sum(model.batches[: min(model.fails_at, default=LONG)])])
    seed, is_contrast = explanation.origin.request.seed, explanation.origin.request.contrast
    sampler = RandomBackgrounds(explanation.view, seed)

    def was_asked(visible, backgrounds=explanation.backgrounds):
        return all(np.where(visible[..., None], explanation.view, b).tobytes() in asked for b in backgrounds)

    inner = np.zeros_like(explanation.visible)
    for level in explanation.levels:
        checks, panel = level.checks, [sampler.draw(number) for number in level.panel]

        def holds(visible, share=level.share, panel=()):
            in_fills = all(kept(explanation, b, visible, share) for b in explanation.backgrounds)
            return in_fills and all(kept(explanation, b, visible) for b in panel)

        assert not (inner & ~level.visible).any()
        assert was_asked(level.visible)
        assert checks.sufficient
        assert holds(level.visible, panel=panel)
        assert not np.isnan(checks.confidence)
        if checks.necessary is not None:
            assert was_asked(~level.visible)
            assert checks.necessary == (not holds(~level.visible))
        if checks.minimal_grain is not None and level.visible.any():
            for less in removals(level.visible, checks.minimal_grain):
                assert was_asked(less) or any(was_asked(less, [b]) for b in panel)
                assert not holds(less, panel=panel) or (is_contrast and holds(~less))
        if level.certificate is not None:
            first, certificate = level.certificate.first, level.certificate
            fresh = [sampler.draw(number) for number in range(first, first + certificate.asked)]
            assert was_asked(level.visible, fresh)
            assert sum(kept(explanation, b, level.visible) for b in fresh) == certificate.kept
            assert certificate.holds
            assert was_asked(level.visible, panel)
        if checks.transfer is not None:
            assert checks.transfer.asked > 0
        inner = level.visible
    assert inner is explanation.visible


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("causal", {"search", "verify"}),
        ("enough", {"search", "verify", "against"}),
        ("two fills", {"search", "verify"}),
        ("dc-causal", {"search", "extract", "minimise", "verify"}),
        ("rise", {"search", "extract", "minimise", "verify"}),
        ("random", {"extract", "minimise", "verify"}),  # before that nothing is known
    ],
)
def test_whenever_the_model_dies_the_best_so_far_comes_back_with_honest_checks(courses, name, stages):
    options, course = METHODS[name], courses[name]
    total = course.end.calls
    sizes, seen = [64], set()
    begins = [course.stages.index(stage) for stage in dict.fromkeys(course.stages)]
    ends = [begin - 1 for begin in begins[1:]]
    for count in sorted({*range(1, 8), *begins[1:], *ends, *range(8, total, max(1, total // 8)), total - 2, total - 1}):
        model = dead_after(count)
        explanation = explain_or_none(model, options)
        assert len(model.batches) == count + 1  # nothing is asked of it any more
        if explanation is None:
            assert sizes == [64]  # what was known once is never lost
            continue
        assert explanation.stopped_by == "failure"
        assert find_failure(explanation) == explanation.notes[-1]
        assert "RuntimeError: broken" in explanation.notes[-1]
        assert count - len(explanation.backgrounds) < explanation.calls <= count  # whole questions
        assert explanation.pixels < 64
        check_honest(explanation, model)
        sizes.append(explanation.levels[0].pixels)
        seen.add(course.stages[count])
    assert seen == stages
    assert sizes[-1] == course.end.levels[0].pixels
    if options["method"] == "causal":
        assert sizes == sorted(sizes, reverse=True)


def explain_or_none(model, options):
    """The explanation; None where nothing was known, and the model's own failure was raised."""
    try:
        return becausal.explain(picture(), model, **options)
    except AnswerError as error:
        failure = error
    assert "RuntimeError: broken" in str(failure)
    assert isinstance(failure.__cause__, RuntimeError)
    return None


def take_all(answers, found):
    for number, answer in answers:
        found[number] = answer


def test_a_model_that_dies_at_the_very_last_question_leaves_all_checks(courses):
    """It is the one that asks for the explanation once more; what was checked before stays checked."""
    end = courses["causal"].end
    explanation = becausal.explain(picture(), dead_after(end.calls - 1), **METHODS["causal"])
    assert explanation.stopped_by == "failure"
    assert (explanation.visible == end.visible).all()
    assert explanation.checks == end.checks
    assert find_failure(end) is None


@dataclass(frozen=True)
class Misled:
    """A method that sees a part to be enough, and then makes a map that ranks the pixel that counts last."""

    name = "misled"
    needs = "labels"

    def search(self, problem, rng):
        half = np.arange(64).reshape(8, 8) % 8 < 4
        yield half[None]
        return Finding(np.arange(64.0).reshape(8, 8))


def test_what_was_seen_on_the_way_is_kept_where_the_map_leads_back_to_the_whole_view():
    calls, patience = [], [LONG]

    def pixel(batch):
        calls.append(len(batch))
        if len(calls) > patience[0]:
            raise RuntimeError("broken")
        share = np.where(batch[:, 0, 0, 0] > 100, 0.9, 0.1)
        return np.stack([1 - share, share], axis=1)

    view = np.full((8, 8, 3), 200, np.uint8)
    whole = becausal.explain(view, pixel, method=Misled(), fills="black", grain=None, batch_size=1)
    assert whole.pixels == 64
    total = len(calls)
    for count in range(total - 4, total):
        calls.clear()
        patience[0] = count
        explanation = becausal.explain(view, pixel, method=Misled(), fills="black", grain=None, batch_size=1)
        assert (explanation.pixels, explanation.stopped_by) == (32, "failure")
        assert explanation.checks.sufficient
        assert explanation.checks.necessary is None
        assert explanation.checks.confidence == pytest.approx(0.9)


@pytest.mark.parametrize("error", [AnswerError, NetworkError])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_where_nothing_is_known_yet_the_failure_is_raised_as_it_is(error, count):
    with pytest.raises(error, match=r"^broken$"):
        becausal.explain(picture(), dead_after(count, error=error), fills="black")


def test_a_failure_goes_before_the_budget():
    options = {"method": "dc-causal", "fills": "black", "max_calls": 60}
    spent = becausal.explain(picture(), Model(needed=150.0, batch_size=1), **options)
    assert spent.stopped_by == "budget"
    failed = becausal.explain(picture(), dead_after(spent.calls - 1), **options)
    assert failed.stopped_by == "failure"
    assert (failed.visible == spent.visible).all()


@pytest.mark.parametrize("inside", [False, True])
def test_a_model_that_dies_after_an_interrupt_leaves_the_best_so_far(inside, monkeypatch):
    """The search is told to round off, or is interrupted inside a method, and the model is gone before it can."""
    model = dead_after(LONG) if inside else dead_after(40, Pressed)
    add = CoalitionIndex.add

    def press(self, *words):
        if len(model.batches) > 40:
            model.fails_at = range(len(model.batches), LONG)
            raise KeyboardInterrupt
        return add(self, *words)

    if inside:
        monkeypatch.setattr(CoalitionIndex, "add", press)
    explanation = becausal.explain(picture(), model, fills="black", grain=1)
    assert explanation.stopped_by == "failure"
    assert any("interrupted inside a method" in note for note in explanation.notes) == inside
    check_honest(explanation, model)


class Pressed(Model):
    """Ctrl-C comes with the first call that is not answered."""

    def ask(self, staged, which, visible):
        self.error = KeyboardInterrupt if len(self.batches) == self.fails_at[0] else RuntimeError
        return super().ask(staged, which, visible)


# Side by side


class Shy(Later):
    """It breaks where few pixels of a marked image are shown, with the mark among them."""

    def ask(self, staged, which, visible):
        for w, shown in zip(which, visible, strict=True):
            if 2 < shown.sum() < 30 and (np.where(shown[..., None], *staged[w]) == 99).any():
                raise RuntimeError("too dark to see")
        return super().ask(staged, which, visible)


@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_picture_that_breaks_the_model_on_the_way_gives_its_best_and_the_others_go_on(width):
    pictures = [picture(i) for i in range(3)]
    pictures[1][2, 3] = 99
    request = Request(fills=("black",), grain=1)
    model = Shy(needed=150.0)
    found = dict(explain_numbered(pictures, model, request=request, width=width))
    assert [found[i].stopped_by for i in range(3)] == ["finished", "failure", "finished"]
    assert 0 < found[1].pixels < 64
    assert "too dark to see" in found[1].notes[-1]
    check_honest(found[1], model)
    for i in (0, 2):
        alone = becausal.explain(pictures[i], Model(needed=150.0), fills="black", grain=1)
        assert (found[i].visible == alone.visible).all()
        assert (found[i].calls, found[i].checks) == (alone.calls, alone.checks)


@pytest.mark.parametrize(("kind", "width"), [(Model, 1), (Model, 2), (Later, 2), (Later, 3)])
def test_a_model_that_is_out_of_reach_ends_all_and_loses_nothing(kind, width):
    taken, found = [], {}

    def source():
        for number in range(1000):
            taken.append(number)
            yield picture(number)

    model = kind(needed=150.0, batch_size=8, fails_at=range(45, LONG), error=NetworkError)
    request = Request(fills=("black",), grain=1)
    answers = explain_numbered(source(), model, request=request, width=width, workers=0)
    with pytest.raises(NetworkError, match=r"^broken$"):
        take_all(answers, found)
    assert len(model.batches) <= 45 + 3  # those that were under way; no image waits for it anew
    assert len(taken) < 30
    cut = [answer for answer in found.values() if isinstance(answer, Failure) or answer.stopped_by == "failure"]
    assert 1 <= len(cut) <= width
    kept = [answer for answer in cut if not isinstance(answer, Failure)]
    assert kept
    for answer in kept:
        assert answer.pixels < 64
        check_honest(answer, model)
    for answer in cut:
        error = answer.error if isinstance(answer, Failure) else answer.notes[-1]
        assert str(error) == "broken"


def test_what_could_not_be_read_is_said_before_the_network_error():
    answers = explain_numbered([np.zeros((0, 4)), picture()], dead_after(0, error=NetworkError))
    number, failure = next(answers)
    assert number == 0
    assert isinstance(failure, Failure)
    with pytest.raises(NetworkError):
        next(answers)


def test_pictures_that_were_to_be_looked_at_together_do_not_wait_for_it_one_by_one():
    model = Later(fails_at=range(LONG), error=NetworkError)
    with pytest.raises(NetworkError, match=r"^broken$"):
        next(explain_numbered([picture(i) for i in range(20)], model, workers=0))
    assert len(model.batches) <= 2


# The engine


def test_an_outcome_has_the_error_and_the_answers_there_were():
    model = Model(fails_at=(1,))
    (outcome,) = Engine(model, batch_size=2).run_many([(case(VALUES), asks(rows("0", "1", "2", "3"), rows("4")))])
    ((word, answers),) = outcome.result
    assert (word, len(answers), outcome.stopped_by, outcome.stats.calls) == ("failure", 2, "failure", 2)
    assert isinstance(outcome.error, AnswerError)


def stubborn(heard):
    """It goes on asking whatever it is told: something new, something known, and past the memo."""
    for wave in (rows(*"012345"), rows("0"), rows("5"), Question(rows("0"), uncached=True)):
        try:
            heard.append(len((yield wave)))
        except Stop as told:
            heard.append((told.reason, str(told.cause), len(told.answers)))
    return heard


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("fails_at", [(2,), (2, 3), (2, 3, 4, 5, 6, 7)])
def test_nothing_is_asked_after_a_failure_also_where_more_is_under_way(depth, fails_at):
    model = Later(batch_size=1, depth=depth, fails_at=fails_at)
    (outcome,) = Engine(model).run_many([(case(VALUES), stubborn([]))])
    told = ("failure", "the model failed: RuntimeError: broken")
    assert outcome.result == [(*told, 2), 1, (*told, 0), (*told, 0)]
    assert len(model.batches) <= 2 + depth


@pytest.mark.parametrize("fails_at", [(0,), (0, 1), (0, 1, 2), (0, 2)])
def test_batches_still_under_way_do_not_disturb_a_search_that_has_ended(fails_at):
    waves = [rows("0", "1", "2"), rows("3", "4")]
    heard = []
    engine = Engine(Later(batch_size=1, depth=3, fails_at=fails_at), watch=lambda index, calls: heard.append(index))
    items = [(case(VALUES), asks(*waves)), (case(VALUES), asks(*waves))]
    first, second = engine.run_many(items, width=2)
    assert [(word, len(answers)) for word, answers in first.result] == [("failure", 0)]
    assert [word for word, _ in second.result] == ["answers", "answers"]
    assert set(heard) == {1}


@pytest.mark.parametrize("error", [RuntimeError, NetworkError])
def test_a_search_that_knows_no_stop_ends_with_what_the_model_failed_with(error):
    def deaf():
        return (yield rows("0", "1"))

    with pytest.raises((AnswerError, NetworkError), match="broken"):
        Engine(Model(fails_at=(0,), error=error)).run(case(VALUES), deaf())


def test_checking_an_answer_again_with_a_model_that_is_gone_says_so():
    explanation = becausal.explain(picture(), Model(needed=150.0), fills="black", grain=2)
    for error in (RuntimeError, NetworkError):
        with pytest.raises((AnswerError, NetworkError), match="broken"):
            explanation.verify(dead_after(3, error=error))


# Processes that search for a model here


@pytest.mark.process
def test_processes_are_told_that_the_model_is_gone_and_serve_the_next():
    pictures = [picture(i) for i in range(6)]
    request = Request(fills=("black",), grain=1, smallest=True)
    found = {}
    model = Later(needed=150.0, batch_size=4, fails_at=range(60, LONG), error=NetworkError)
    answers = explain_numbered(iter(pictures), model, request=request, width=2, workers=2)
    with pytest.raises(NetworkError, match=r"^broken$"):
        take_all(answers, found)
    assert len(model.batches) <= 60 + model.depth
    kept = [e for e in found.values() if not isinstance(e, Failure) and e.stopped_by == "failure"]
    assert kept
    for explanation in kept:
        assert explanation.notes[-1] == "broken"
        check_honest(explanation, model)
    well = Later(needed=150.0, batch_size=4)
    again = dict(explain_numbered(pictures[:2], well, request=request, width=2, workers=2))
    for number, explanation in again.items():
        alone = becausal.explain(pictures[number], Model(needed=150.0), fills="black", grain=1, smallest=True)
        assert (explanation.visible == alone.visible).all()


def label_and_process(answer):
    return answer.label, os.getpid()


def test_a_function_of_the_answers_is_called_where_the_search_ran():
    pictures = [picture(i) for i in range(3)]
    request = Request(fills=("black",), max_calls=60)
    labels = {i: e.label for i, e in explain_numbered(pictures, Model(needed=150.0), request=request)}
    for workers in (0, 2):
        model = Later(needed=150.0, batch_size=4)
        found = dict(
            explain_numbered(pictures, model, request=request, width=2, workers=workers, function=label_and_process)
        )
        assert {i: label for i, (label, _) in found.items()} == labels
        processes = {process for _, process in found.values()}
        assert (os.getpid() in processes) == (workers == 0)


@pytest.mark.process
def test_a_picture_that_breaks_the_model_in_front_of_processes_gives_its_best():
    pictures = [picture(i) for i in range(3)]
    pictures[1][2, 3] = 99
    request = Request(fills=("black",), grain=1)
    model = Shy(needed=150.0)
    found = dict(explain_numbered(pictures, model, request=request, width=2, workers=2))
    assert [found[i].stopped_by for i in range(3)] == ["finished", "failure", "finished"]
    assert "too dark to see" in found[1].notes[-1]
    check_honest(found[1], model)


# Files, commands, pages


def test_the_words_and_the_page_say_that_the_model_failed(tmp_path):
    calls = []

    def fragile(batch):
        calls.append(len(batch))
        if len(calls) > 40:
            raise RuntimeError("it is gone")
        return corner(batch)

    Image.fromarray(photo()).save(tmp_path / "photo.png")
    model = as_classifier(fragile, resize="16/16x16", batch_size=1)
    upload = Upload("photo.png", (tmp_path / "photo.png").read_bytes())
    job = BackgroundJob(ExplainTask(upload, model, Request(fills=("black",), grain=1, smallest=True), Limits()), Limits())
    job.run()
    assert job.state == "done", job.error
    assert len(calls) == 41
    explanation, ranking = unpack_result(job.result)
    assert ranking is None
    words = "The model failed before the search finished. This is the best explanation found so far"
    assert describe_stop(explanation).startswith(words)
    page = render_explanation(explanation, "page/jobs/x")
    assert words in page
    assert "it is gone" in page
    files = explanation.files()
    assert words in files["report.html"].decode()
    assert Explanation.load(explanation.save(tmp_path / "out")).notes[-1].endswith("RuntimeError: it is gone")


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Begins servers of the protocol, one after the other, in a working directory with three images for `toy`."""
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        pixels = photo()
        pixels[8:] = number
        Image.fromarray(pixels).save(f"{number}.png")
    begun = []

    def begin(*arguments):
        begun.append(Server(*arguments))
        return begun[-1]

    yield begin
    for server in begun:
        server.stop()


OPTIONS = ["--fill", "black", "--grain", "4", "--batch-size", "2", "--endpoint", "cache=none", "--endpoint", "retries=0"]


def count_batches(server, capsys):
    """How many batches it takes to begin, and to explain the first image."""
    assert main(["explain", "0.png", "--model", server.spec(), *OPTIONS, "--out", "whole"]) == 0
    capsys.readouterr()
    return len(server.seen()["batches"])


@pytest.mark.usefixtures("without_figures")
def test_an_endpoint_that_goes_away_leaves_what_was_found_and_one_line(serve, capsys):
    server = serve()
    server.set([None] * (count_batches(server, capsys) - 3) + [{"exit": True}])
    assert main(["explain", "0.png", "--model", server.spec(), *OPTIONS]) == 2
    out, err = capsys.readouterr()
    assert re.search("cut short +The model failed before the search finished. This is the best", out)
    assert err.count("\n") == 1
    assert err.startswith(f"becausal: error: the request to http://127.0.0.1:{server.port}/v2/models/toy failed: ")
    kept = Explanation.load("becausal-out/0")
    assert kept.stopped_by == "failure"
    assert kept.notes[-1] in err
    assert kept.pixels < 256
    assert corner(kept.mutant(kept.visible)[None])[0].argmax() == 1
    assert Path("becausal-out/0/report.html").exists()


@pytest.mark.parametrize(
    ("later", "ends", "said"),
    [
        (0, ["finished"], ["2 of 3 images not started: 1.png, 2.png: "]),
        (1, ["finished", None], ["1.png: ", "1 of 3 images not started: 2.png: "]),
        (12, ["finished", "failure"], ["1.png: ", "1 of 3 images not started: 2.png: "]),
    ],
)
@pytest.mark.usefixtures("without_figures")
def test_an_endpoint_that_goes_away_keeps_the_pictures_that_are_done(serve, capsys, later, ends, said):
    server = serve()
    server.set([None] * (count_batches(server, capsys) + later) + [{"exit": True}])
    assert main(["explain", "0.png", "1.png", "2.png", "--model", server.spec(), *OPTIONS, "--json"]) == 2
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [entry.get("stopped_by") for entry in found] == ends
    assert ["error" in entry for entry in found] == [end != "finished" for end in ends]
    assert [Explanation.load(entry["folder"]).stopped_by for entry in found if "folder" in entry] == [*filter(None, ends)]
    for line, word in zip(err.splitlines(), said, strict=True):
        assert line.startswith(f"becausal: error: {word}the request to http://127.0.0.1:{server.port}/")


def test_a_batch_fails_what_an_endpoint_did_not_answer_and_asks_it_again(serve, capsys):
    server = serve()
    server.set([None] * (count_batches(server, capsys) + 12) + [{"exit": True}])
    words = ["batch", "0.png", "1.png", "2.png", "--model", server.spec(), *OPTIONS, "--out", "run"]
    assert main(words) == 3
    rows = read_rows("run")
    assert [row["state"] for row in rows] == ["done", "failed", "failed"]
    assert all(row["error"].startswith("the request to http://127.0.0.1") for row in rows[1:])
    server.stop()
    serve("--port", str(server.port))
    assert main([*words, "--retry", "1"]) == 0
    assert [(row["state"], row["stopped_by"]) for row in read_rows("run")] == [("done", "finished")] * 3
    assert [row["tries"] for row in read_rows("run")] == [1, 2, 2]


def read_rows(run):
    with BatchRun(run) as opened:
        return list(opened.rows())


HALFWAY_ONCE = """
asked = 0

def halfway_once(batch):
    global asked
    if is_marked(batch, 201):
        asked += 1
        if asked > 30 and not Path("seen").exists():
            Path("seen").touch()
            raise RuntimeError("not today")
    return predict(batch)
"""


def test_a_batch_takes_no_answer_that_a_failure_cut_short(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL + HALFWAY_ONCE)
    write_pictures(Path("shots"), 3, {1: 201})
    words = ["batch", "shots", "--model", "python:net.py:halfway_once", "--batch-size", "1", "--out", "run"]
    assert main(words) == 3
    row = read_rows("run")[1]
    assert (row["state"], row["size"], row["error"]) == ("failed", None, "the model failed: RuntimeError: not today")
    assert main([*words, "--retry", "1"]) == 0
    rows = read_rows("run")
    assert [(row["stopped_by"], row["tries"]) for row in rows] == [("finished", 1), ("finished", 2), ("finished", 1)]


@pytest.fixture
def bench(bombed, tmp_path):  # noqa: F811
    """A bench of two images, and a model for it whose calls may be made to fail, the last but seven or all from there."""
    calls = []

    def fragile(batch):
        calls.append(len(batch))
        if len(calls) in failing:
            raise error("it is gone")
        return bright(batch)

    def perform(*, fails_with=None, for_good=False, folder="run", **options):
        nonlocal failing, error
        failing = range(total - 7, LONG if for_good else total - 6) if fails_with else range(0)
        error = fails_with
        calls.clear()
        done = run(
            "photobombing", fragile, data=bombed, methods="causal", limit=2, width=1, out=tmp_path / folder, **options
        )
        return [row.get("error") for row in done.rows]

    failing, error, total = range(0), None, 0
    assert perform(folder="well") == [None, None]
    total = len(calls)
    return perform


def test_a_bench_has_a_row_for_what_broke_the_model(bench):
    first, second = bench(fails_with=RuntimeError)
    assert first is None
    assert second == "AnswerError: the model failed: RuntimeError: it is gone"


@pytest.mark.parametrize("is_early", [False, True])
def test_a_bench_has_no_row_for_a_model_out_of_reach_and_asks_again(bench, monkeypatch, is_early):
    """It goes away when a part is known to be enough, or before."""

    def fail_early(pictures, *words, **options):
        next(iter(pictures))
        yield 0, Failure("0.png", NetworkError("it is gone"))
        raise NetworkError("it is gone")

    with monkeypatch.context() as patch:
        if is_early:
            patch.setattr(runner, "explain_numbered", fail_early)
        with pytest.raises(NetworkError, match="it is gone"):
            bench(fails_with=NetworkError, for_good=True)
    assert bench(resume=True) == [None, None]


# Models that hang, until Ctrl-C


class Hanging(Model):
    """From its batch `after` on it never answers; it notes how often it was called then."""

    after = 0
    hung = 0

    def ask(self, staged, which, visible):
        if len(self.batches) < self.after:
            return super().ask(staged, which, visible)
        self.hung += 1
        while True:
            time.sleep(0.01)


@pytest.fixture
def python_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press_later(seconds):
    threading.Timer(seconds, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)).start()


def hanging(after):
    model = Hanging(needed=150.0)
    model.after = after
    return model


@pytest.mark.usefixtures("python_handler")
@pytest.mark.parametrize("method", ["causal", "dc-causal"])
def test_the_first_ctrl_c_ends_a_call_that_hangs_and_gives_the_best_so_far(monkeypatch, method):
    monkeypatch.setattr(interrupts, "HANGING_SECONDS", 0.2)
    model = hanging(20)
    press_later(1.5)
    explanation = becausal.explain(picture(), model, method=method, fills="black")
    assert model.hung == 1  # it was not called again
    assert explanation.stopped_by == "interrupt"
    assert explanation.size < 1
    assert explanation.checks.sufficient
    assert re.fullmatch(r"the model had not answered for \d s when the search was interrupted", explanation.notes[-1])


@pytest.mark.usefixtures("python_handler")
@pytest.mark.parametrize("after", [0, 1])
def test_the_first_ctrl_c_ends_a_call_that_hangs_before_anything_was_found(monkeypatch, after):
    monkeypatch.setattr(interrupts, "HANGING_SECONDS", 0.2)
    model = hanging(after)
    press_later(0.6)
    with pytest.raises(KeyboardInterrupt):
        becausal.explain(picture(), model, fills="black")
    assert model.hung == 1


@pytest.mark.usefixtures("python_handler")
def test_the_first_ctrl_c_ends_a_model_that_hangs_while_a_view_is_staged():
    def predict(batch):
        while True:
            time.sleep(0.01)

    press_later(0.4)
    with pytest.raises(KeyboardInterrupt):
        becausal.explain(np.zeros((8, 8, 3), np.uint8), predict, fills="black")


@pytest.mark.usefixtures("python_handler")
def test_verifying_with_a_model_that_hangs_is_interrupted_at_once(monkeypatch):
    monkeypatch.setattr(interrupts, "HANGING_SECONDS", 0.2)
    explanation = becausal.explain(picture(), Model(needed=150.0), fills="black")
    model = hanging(0)
    press_later(0.6)
    with pytest.raises(KeyboardInterrupt):
        explanation.verify(model)
    assert model.hung == 1


@pytest.mark.process
def test_on_the_command_line_too_one_ctrl_c_is_enough(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(interrupts, "HANGING_SECONDS", 0.2)
    Image.fromarray(np.full((32, 32, 3), 220, np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "hang.py").write_text(
        "import time\nimport numpy as np\ncalls = []\ndef f(batch):\n    calls.append(1)\n    while len(calls) > 20:\n"
        "        time.sleep(0.01)\n    m = batch.reshape(len(batch), -1).mean(axis=1) / 255\n"
        "    return np.stack([1 - m, m], 1)\n"
    )
    press_later(3.0)
    words = ["explain", str(tmp_path / "a.png"), "--model", f"python:{tmp_path / 'hang.py'}:f", "--fill", "black"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 130
    assert (tmp_path / "out" / "a" / "explanation.json").is_file()  # the best so far
    assert "had not answered" in capsys.readouterr().out


@pytest.mark.parametrize("error", [GeneratorExit, SystemExit, type("Odd", (BaseException,), {})])
def test_a_model_that_raises_what_is_no_exception_fails_like_any_other(error):
    explanation = becausal.explain(picture(), Model(needed=150.0, fails_at=(30,), error=error), fills="black")
    assert find_failure(explanation) == f"the model failed: {error.__name__}: broken"
