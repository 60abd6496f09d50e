"""What makes it fast changes no answer: guesses asked ahead, batches under way, images side by side, processes."""

import gc
import re
import signal
import tracemalloc
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import becausal
from becausal.api import Failure, Request, explain_numbered, jobs
from becausal.core.contracts import Answers, AsyncClassifier, Classifier, Question, Stop
from becausal.core.errors import AnswerError, ImageError
from becausal.core.problem import Problem
from becausal.core.targets import Target
from becausal.engine import running
from becausal.engine.calls import ModelCalls
from becausal.engine.engine import Engine
from becausal.engine.pool import ProcessQuestions, SearchProcess
from becausal.engine.running import require_memory
from becausal.methods.causal import refinement
from becausal.methods.causal.refinement import DcCausal
from becausal.methods.causal.search import Causal
from becausal.scenes import make_scene
from becausal.search.minimise import minimise
from test_engine import GRID, VALUES, Model, asks, case, picture, random_waves, rows, told


@dataclass
class Promise:
    scores: object
    seconds: float = 0.001

    def is_ready(self):
        return True

    def collect(self):
        if isinstance(self.scores, BaseException):
            raise self.scores
        return self.scores


@dataclass
class Later(Model):
    """The double as a device beside us: it says what it found when the batch is collected."""

    depth: int = 2
    pairs: set = field(default_factory=set)

    def submit(self, staged, which, packed, grid):
        visible = np.unpackbits(packed, axis=1, count=int(np.prod(grid))).astype(bool).reshape(-1, *grid)
        try:
            return Promise(self.ask(staged, which, visible))
        except Exception as error:
            return Promise(error)


def test_the_double_is_a_classifier_beside_us_and_the_plain_one_is_not():
    assert isinstance(Later(), Classifier)
    assert isinstance(Later(), AsyncClassifier)
    assert not isinstance(Model(), AsyncClassifier)


def test_parts_of_a_question_keep_its_hints():
    question = Question(rows("0", "1"), lookahead=lambda count: [], uncached=True, exact=True)
    part = question.part(slice(1))
    assert np.array_equal(part, rows("0"))
    assert (part.lookahead, part.uncached, part.exact, part.alone) == (question.lookahead, True, True, False)
    plain = Question.of(rows("0", "1"))
    assert np.array_equal(plain, rows("0", "1"))
    assert (plain.lookahead, plain.uncached, plain.exact, plain.draws) == (None, False, False, None)
    assert Question.of(question) is question


# Batches under way


def test_the_searches_with_the_longest_way_to_go_are_asked_first():
    def asking(text):
        yield rows(text)

    model = Model(batch_size=1)
    items = [(case(np.ones(GRID)), asking(text)) for text in ("3", "0 1 2", "4 5")]
    list(Engine(model).run_many(items, width=3))
    assert [int(np.frombuffer(row, np.float32).sum()) for row in model.rows] == [3, 2, 1]


def test_a_process_that_waits_for_a_batch_of_its_own_is_answered_first():
    """Its other searches stand still meanwhile."""
    line = SearchProcess(None, None)
    kinds = [(rows("0 1 2 3"), False), (rows(""), True), (rows("0"), False)]
    questions = [
        ProcessQuestions(line, ticket, [], np.zeros(1, np.intp), np.packbits(visible.reshape(1, -1), axis=1), GRID, alone)
        for ticket, (visible, alone) in enumerate(kinds)
    ]
    assert [one.ticket for one in sorted(questions, key=lambda one: one.rank)] == [1, 0, 2]


@given(st.integers(0, 10**6), st.sampled_from([1, 7, 64]), st.sampled_from([1, 2, 5]), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_outcomes_do_not_depend_on_how_many_batches_are_under_way(seed, batch_size, width, fills, depth):
    rng = np.random.default_rng(seed)
    views = [rng.integers(1, 60, GRID) for _ in range(6)]

    def outcomes(model, batch, side_by_side):
        items = [(case(v, *(0, 7, 11)[:fills]), asks(*random_waves([seed, i]))) for i, v in enumerate(views)]
        done = Engine(model, batch_size=batch).run_many(items, max_calls=40, width=side_by_side)
        return sorted((told(o) for o in done), key=lambda o: o[0])

    later = Later(batch_size=64, depth=depth, fixed_sizes=(8, 64))
    assert outcomes(later, batch_size, width) == outcomes(Model(batch_size=64), 64, 1)


@pytest.mark.parametrize("width", [1, 2, None])
def test_a_picture_that_breaks_a_device_fails_alone(width):
    pictures = [picture(i) for i in range(5)]
    pictures[2][2, 3] = 99
    request = Request(fills=("black",), max_calls=80)
    found = dict(explain_numbered(pictures, Later(needed=150.0, refuses=99), request=request, width=width))
    assert [isinstance(found[i], Failure) for i in range(5)] == [False, False, True, False, False]
    for i in (0, 1, 3, 4):
        alone = becausal.explain(pictures[i], Model(needed=150.0), fills="black", max_calls=80)
        assert (found[i].visible == alone.visible).all()
        assert found[i].calls == alone.calls


# Guesses


def explained(model, seed, *, max_calls=None, width=1, fills=("black",), method="causal"):
    request = Request(fills=fills, max_calls=max_calls, seed=seed, method=method, grain=1)
    pictures = [picture(seed + i, 10) for i in range(3)]
    return {
        i: (e.visible.tobytes(), e.responsibility.tobytes(), e.calls, e.stats.asked, e.stopped_by, e.checks)
        for i, e in explain_numbered(pictures, model, request=request, width=width)
    }


@given(
    st.integers(0, 10**4),
    st.sampled_from([1, 7, 40]),
    st.sampled_from([None, 60, 150]),
    st.sampled_from([1, 3]),
    st.sampled_from([("black",), ("black", "3")]),
    st.sampled_from(["causal", "dc-causal"]),
)
@settings(max_examples=8, deadline=None)
def test_guesses_change_no_explanation_and_no_count(seed, ahead, max_calls, width, fills, method):
    options = {"max_calls": max_calls, "fills": fills, "method": method}
    plain = explained(Model(needed=150.0, batch_size=64), seed, **options)
    guessing = Later(needed=150.0, batch_size=64, fixed_sizes=(ahead, 64))
    assert explained(guessing, seed, width=width, **options) == plain


def minimising(model, seed):
    subject = case(np.random.default_rng(seed).integers(0, 12, (8, 8)))
    outcome = Engine(model).run(subject, minimise(np.ones((8, 8), bool), np.zeros((8, 8)), finest=1))
    return outcome.result.visible.tobytes(), outcome.stats


@pytest.mark.parametrize("seed", range(3))
def test_guesses_save_batches_and_are_counted_apart(seed):
    found, stats = minimising(Later(needed=150.0), seed)
    model = Later(needed=150.0, batch_size=16, fixed_sizes=(16,))
    same, fewer = minimising(model, seed)
    assert same == found
    assert fewer.calls == stats.calls
    assert fewer.batches < stats.batches * 2 / 3
    assert stats.speculative == 0
    assert fewer.speculative > 0
    assert set(model.batches) == {16}
    assert len(model.rows) == fewer.slots
    assert fewer.fill_rate == fewer.calls / fewer.slots < 1


def test_a_guess_that_breaks_the_model_is_as_if_it_had_not_been_made():
    def guessing():
        answers = yield Question(rows("0 3"), lookahead=lambda count: [rows("5")[0]])
        return answers, (yield rows("3"))

    model = Later(fails_at=(0,), fixed_sizes=(2,))
    outcome = Engine(model).run(case(VALUES), guessing())
    assert len(model.batches) == 3  # the second one without the guess
    assert [len(a) for a in outcome.result] == [1, 1]
    assert outcome.stats.calls == 2
    assert outcome.stats.speculative == 0


def test_a_guess_that_is_known_already_is_not_asked():
    def guessing():
        yield rows("0", "1")
        yield Question(rows("2", "5", "0 1"), lookahead=lambda count: [*rows("0", "2", "3", "3", "4")][:count])
        yield rows("3")

    model = Later(fixed_sizes=(2, 6))
    outcome = Engine(model).run(case(VALUES), guessing())
    assert model.batches == [2, 6]  # of the guesses, "3" is new
    assert outcome.stats.calls == 6
    assert outcome.stats.speculative == 0


def test_the_budget_counts_no_guess_and_an_answer_beyond_it_is_not_told():
    def guessing():
        try:
            yield Question(rows("0"), lookahead=lambda count: [*rows("1", "2", "3")])
            yield rows("1", "2", "3")
        except Stop as stop:
            return stop.answers

    model = Later(fixed_sizes=(4,))
    outcome = Engine(model).run(case(VALUES), guessing(), max_calls=3)
    assert len(model.rows) == 4
    assert (outcome.stats.calls, outcome.stats.speculative) == (3, 1)
    assert outcome.stopped_by == "budget"
    assert len(outcome.result) == 2


class Bundled(Later):
    """The bundled classifier as if it were a device beside us."""

    def __init__(self, **options):
        super().__init__(**options)
        self.model = becausal.load_model("bundled", threads=1)

    @property
    def info(self):
        return self.model.info

    def stage(self, view, background):
        return self.model.stage(view, background)

    def ask(self, staged, which, visible):
        return self.model.ask(staged, which, visible)


def test_the_bundled_classifier_gives_the_same_beside_us_side_by_side_and_guessing():
    pictures = [make_scene(seed).image for seed in range(2)]
    request = Request(options={"grain": "14"}, smallest=True)  # so that it comes to its end, where guesses are made

    def answers(model, width):
        found = explain_numbered(pictures, model, request=request, width=width)
        return {
            i: (e.label, e.visible.tobytes(), e.responsibility.tobytes(), e.calls, e.stats.speculative > 0) for i, e in found
        }

    plain = answers(becausal.load_model("bundled", threads=1), 1)
    assert len(plain) == 2
    for sizes, depth, width in [((16, 32), 2, 1), ((8,), 1, 1), ((), 3, 3)]:
        found = answers(Bundled(batch_size=max(sizes, default=64), depth=depth, fixed_sizes=sizes), width)
        assert {i: e[:4] for i, e in found.items()} == {i: e[:4] for i, e in plain.items()}
        assert all(e[4] == bool(sizes) for e in found.values())


# Many images


def test_pictures_are_taken_as_they_are_needed():
    taken = []

    def source():
        for i in range(60):
            taken.append(i)
            yield picture(i)

    request = Request(fills=("black",), max_calls=40)
    for width, model in [(1, Model(needed=150.0)), (4, Later(needed=150.0))]:
        taken.clear()
        found = list(islice(becausal.explain_many(source(), model, request=request, width=width, workers=0), 3))
        assert len(found) == 3
        assert len(taken) <= 3 + width


@pytest.mark.parametrize("options", [{"width": 0}, {"width": -1}, {"width": 1.5}, {"workers": -2}, {"workers": True}])
def test_widths_that_make_no_sense_are_refused(options):
    with pytest.raises(becausal.BecausalError, match=f"{next(iter(options))} must be "):
        becausal.explain_many([picture()], Model(), **options)


def test_numbers_belong_to_pictures_also_where_some_fail():
    pictures = [picture(0), np.zeros((0, 3)), picture(1), "nowhere.png", picture(2)]
    for model in (Model(needed=150.0), Later(needed=150.0)):
        request = Request(fills=("black",), max_calls=40)
        indices: set[int] = set()
        watch = lambda status, seen=indices: seen.add(status.index)  # noqa: E731
        found = dict(explain_numbered(pictures, model, request=request, width=4, progress=watch))
        assert [isinstance(found[i], Failure) for i in range(5)] == [False, True, False, True, False]
        assert indices == {0, 2, 4}


@pytest.mark.parametrize("count", [24, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", [Model, Later])
def test_memory_does_not_grow_with_the_number_of_pictures(kind, count):
    class Forgetful(kind):
        """It keeps no note of what it was asked, and counts the pairs that are held."""

        def ask(self, staged, which, visible):
            answer = super().ask(staged, which, visible)
            self.rows.clear()
            self.batches.clear()
            return answer

    request = Request(fills=("black",), max_calls=12)
    shared = (
        np.random.default_rng(0).integers(0, 12, (10, 64, 64)).astype(np.float32)
    )  # 16 kB each, and some 100 kB on the way

    def held_after(count):
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in becausal.explain_many(
            (shared[i % 10] for i in range(count)), Forgetful(needed=150.0), request=request, width=4
        ):
            pass
        gc.collect()
        now, peak = tracemalloc.get_traced_memory()
        return now - before, peak - before

    tracemalloc.start()
    try:
        held_after(10)  # caches of other tests in this process are full or empty by then
        few, many = held_after(8), held_after(count)
    finally:
        tracemalloc.stop()
    assert many[0] < few[0] + 100_000
    assert many[1] < few[1] + 500_000


# Ctrl-C


@pytest.fixture
def python_handler():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


class Pressing:
    """Causal, with Ctrl-C pressed inside the search, `times` times, as the wave `at` is thought of."""

    name, needs, finds_sets = "pressing", "labels", True

    def __init__(self, at, press, times=1):
        self.at, self.press, self.times = at, press, times

    def search(self, problem: Problem, rng):
        search = Causal().search(problem, rng)
        wave, count = next(search), 0
        while True:
            count += 1
            if count == self.at:
                for _ in range(self.times):
                    self.press()
            try:
                answers = yield wave
                wave = search.send(answers)
            except Stop as stop:
                try:
                    wave = search.throw(stop)
                except StopIteration as end:
                    return end.value
            except StopIteration as end:
                return end.value


def is_broken_off(explanation):
    return any("interrupted inside" in note for note in explanation.notes)


def press():
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("model", [Model(needed=150.0), Later(needed=150.0)])
@pytest.mark.parametrize("at", [3, 12])
@pytest.mark.usefixtures("python_handler")
def test_ctrl_c_inside_a_search_loses_nothing(model, at):
    explanation = becausal.explain(picture(), model, method=Pressing(at, press), fills="black")
    assert explanation.stopped_by == "interrupt"
    assert explanation.checks.sufficient
    assert explanation.size < 1
    assert not is_broken_off(explanation)  # the search itself came back, with its map


@pytest.mark.usefixtures("python_handler")
def test_ctrl_c_twice_inside_a_search_ends_everything():
    with pytest.raises(KeyboardInterrupt):
        becausal.explain(picture(), Model(needed=150.0), method=Pressing(5, press, times=2), fills="black")


def broken_off_once():
    """What raises KeyboardInterrupt, in the first search that comes to it."""
    left = [KeyboardInterrupt]

    def press():
        if left:
            raise left.pop()

    return press


@pytest.mark.parametrize("width", [1, 3])
def test_a_search_that_is_broken_off_inside_still_gives_its_smallest_set(width):
    request = Request(method=Pressing(16, broken_off_once()), fills=("black",))
    model = Model(needed=150.0)
    found = list(becausal.explain_many([picture(i) for i in range(6)], model, request=request, width=width))
    assert len(found) == width  # those under way; none was begun after it
    assert sum(is_broken_off(explanation) for explanation in found) == 1  # the others round off by themselves
    for explanation in found:
        assert explanation.stopped_by == "interrupt"
        assert explanation.checks.sufficient
        assert explanation.size < 1
        mutant = np.where(explanation.visible[..., None], explanation.view, explanation.backgrounds[0])
        assert model.classify(mutant[None])[0].argmax() == 1


def test_a_search_that_is_broken_off_before_it_found_anything_is_an_interrupt():
    with pytest.raises(KeyboardInterrupt):
        becausal.explain(picture(), Model(needed=150.0), method=Pressing(1, broken_off_once()), fills="black")


@pytest.mark.usefixtures("python_handler")
def test_a_handler_of_the_users_own_is_left_alone():
    heard = []
    signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    explanation = becausal.explain(picture(), Model(needed=150.0), method=Pressing(5, press), fills="black")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert heard == [1]
    assert explanation.stopped_by == "finished"


class DependentLater(Later):
    """A device whose confidence depends on whether it is asked an odd or an even number together."""

    def ask(self, staged, which, visible):
        scores = super().ask(staged, which, visible)
        return scores + np.float32([-0.004, 0.004]) * (len(visible) % 2) * (scores[:, 1:] > 0.5)


@pytest.mark.parametrize("workers", [0, 2])
def test_rounding_that_depends_on_the_batch_is_told_from_randomness_many_at_a_time_too(workers):
    request = Request(fills=("black",))
    model = DependentLater(needed=150.0)
    found = dict(explain_numbered([picture(i) for i in range(4)], model, request=request, width=4, workers=workers))
    assert not any(isinstance(explanation, Failure) for explanation in found.values())
    noted = [e for e in found.values() if any("depend on the batch" in note for note in e.notes)]
    assert noted  # each in a batch of its own, whatever else is being evaluated


# Memory


def finding_of(grid, options, values, stop_after=10**9):
    """What dc-causal finds where the sum of the visible values must reach half of it; and the sizes of its waves.

    stop_after: it is stopped when this many mutants have been evaluated.
    """
    problem = Problem(values[..., None], (values[..., None],), Target(1))
    search = DcCausal(**options).search(problem, np.random.default_rng(3))
    wave, sizes = next(search), []
    try:
        while True:
            left = stop_after - sum(sizes)
            sizes.append(len(wave))
            holds = ((wave * values).reshape(len(wave), -1).sum(axis=1) >= values.sum() / 2)[: max(0, left)]
            answers = Answers(holds, np.where(holds, 1.0, -1.0), np.full(len(holds), np.nan))
            wave = search.send(answers) if left > len(wave) else search.throw(Stop("budget", answers))
    except StopIteration as end:
        return end.value.saliency, sizes


@pytest.mark.parametrize("options", [{}, {"parts": 5, "redraw": 1}, {"parts": 2, "smallest": 0.02}])
@pytest.mark.parametrize("grid", [(20, 24), (60,), (8, 9, 7)])
def test_dc_causal_finds_the_same_in_waves_of_any_size(monkeypatch, options, grid):
    values = np.random.default_rng(1).random(grid) ** 4
    whole, sizes = finding_of(grid, {"partitions": 12, **options}, values)
    most = 7
    monkeypatch.setattr(refinement, "MAX_BYTES", most * values.size)
    parts, small = finding_of(grid, {"partitions": 12, **options}, values)
    assert (parts == whole).all()
    assert max(small) <= most < max(sizes)
    assert sum(small) == sum(sizes)


@pytest.mark.parametrize("stop_after", [0, 1, 16, 50, 192, 200, 333, 500, 700])
def test_dc_causal_that_is_stopped_finds_the_same_in_waves_of_any_size(monkeypatch, stop_after):
    grid = (20, 24)
    values = np.random.default_rng(1).random(grid) ** 4
    found = []
    for limit in (10**6, 7, 16, 1):
        monkeypatch.setattr(refinement, "MAX_BYTES", limit * values.size)
        found.append(finding_of(grid, {"partitions": 12}, values, stop_after)[0].tolist())
    assert found[1:] == found[:1] * 3


def test_the_memory_of_dc_causal_does_not_grow_with_its_partitions(monkeypatch):
    grid = (64, 64)
    values = np.random.default_rng(1).random(grid) ** 4
    monkeypatch.setattr(refinement, "MAX_BYTES", 2**20)
    tracemalloc.start()
    finding_of(grid, {"partitions": 400, "smallest": 0.4}, values)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 25 * 2**20  # all mutants of the first step alone are 26 MB; with a copy of those, 0.13 MB a partition


def test_a_view_that_would_take_too_much_memory_is_refused_before_anything_is_allocated(monkeypatch, tmp_path):
    calls = ModelCalls(Model(batch_size=32))
    with pytest.raises(ImageError) as caught:
        require_memory("photo.jpg", (9000, 12000, 3), 1, calls)
    message = str(caught.value)
    assert "photo.jpg is seen by the model at a size of 12000x9000" in message
    assert re.search(r"about 2\d GB of memory", message)
    assert "--resize 512" in message
    require_memory("photo.jpg", (3000, 4000, 3), 1, calls)
    require_memory("volume.npy", (256, 256, 256, 1), 4, calls)
    with pytest.raises(ImageError, match=r"800x800x800: .* make it smaller first$"):
        require_memory("volume.npy", (800, 800, 800, 1), 4, calls)
    monkeypatch.setattr(running, "MAX_BYTES", 10_000)
    with pytest.raises(ImageError, match="GB of memory with a batch size of 16"):
        becausal.explain(np.zeros((50, 60, 3), np.uint8), Model())
    Image.new("RGB", (50, 60)).save(tmp_path / "photo.png")
    monkeypatch.setattr(jobs, "load_image", None)  # it is not even decoded
    with pytest.raises(ImageError, match=r"photo\.png is seen by the model at a size of 50x60"):
        becausal.explain(str(tmp_path / "photo.png"), Model())
    monkeypatch.undo()
    monkeypatch.setattr(running, "total_memory", lambda: 1000)
    with pytest.raises(ImageError, match="memory"):
        becausal.explain(np.zeros((50, 60, 3), np.uint8), Model())


# The target's short way


@given(st.integers(0, 10**6), st.integers(1, 6), st.booleans())
@settings(max_examples=80, deadline=None)
def test_the_short_way_to_the_lead_is_the_long_way(seed, classes, has_ties):
    rng = np.random.default_rng(seed)
    scores = rng.random((5, classes + 1)).astype(np.float32)
    if has_ties:
        scores = scores.round(1)
    label = int(rng.integers(classes + 1))
    judged = Target(label).judge(scores)
    others = np.delete(scores, label, axis=1)
    ahead = [(o[:label] < s[label]).all() and (o[label:] <= s[label]).all() for o, s in zip(others, scores, strict=True)]
    assert judged.holds.tolist() == ahead
    ratio = np.log(np.maximum(scores[:, label].astype(float), 1e-30)) - np.log(
        np.maximum(others.max(axis=1).astype(float), 1e-30)
    )
    np.testing.assert_allclose(np.abs(judged.margin), np.abs(ratio), atol=1e-12)


def test_what_a_model_says_when_a_batch_is_collected_is_checked_too():
    with pytest.raises(AnswerError, match="NaN or infinite"):
        Engine(Later(answer=lambda m: np.full((len(m), 2), np.nan))).run(case(VALUES), asks(rows("0")))
