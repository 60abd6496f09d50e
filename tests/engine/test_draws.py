"""Questions on numbered random backgrounds: what is evaluated, what it costs, what is kept in memory."""

import gc
import time
import weakref
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest
from draws_toys import Sampler, asks, problem_of, random_waves, search_all, told
from hypothesis import given, settings
from hypothesis import strategies as st

import becausal
from becausal.core.contracts import Answers, Done, Question, Stop, step
from becausal.core.errors import AnswerError, ImageError
from becausal.core.targets import quantise_margin, with_floor
from becausal.engine import interrupts, running
from becausal.engine.calls import ModelCalls
from becausal.engine.engine import GRACE, Engine
from becausal.engine.pool import SearchPool
from becausal.engine.running import DrawnBackgrounds, Job, kept_count, require_memory
from becausal.images.backgrounds import RandomBackgrounds
from becausal.scenes import make_scene
from becausal.search.drive import BudgetedRun, drive
from becausal.testing import MaskClassifier
from test_engine import GRID, Model, rows
from test_speed import Bundled, Later


def view_of(seed, high=60):
    return np.random.default_rng(seed).integers(1, high, (*GRID, 1)).astype(np.float32)


def wave_of(text, *numbers):
    """The set, once on each background."""
    return Question(np.repeat(rows(text), len(numbers), axis=0), draws=numbers)


def twin(model, problem, waves, limit):
    """What a search is told, from the definition: one image composed and classified at a time."""
    known, calls, heard, asked = {}, 0, [], 0
    fills = [np.asarray(background) for background in problem.backgrounds]
    for wave in waves:
        numbers = Question.of(wave).draws
        answers, word = [], "answers"
        asked += len(wave)
        for row, visible in enumerate(np.asarray(wave)):
            grounds = fills if numbers is None else [Sampler(problem.view).draw(int(numbers[row]))]
            key = visible.tobytes(), None if numbers is None else int(numbers[row])
            if key not in known:
                if calls + len(grounds) > limit:
                    word = "budget"
                    break
                calls += len(grounds)
                images = np.stack([np.where(visible[..., None], problem.view, ground) for ground in grounds])
                judged = problem.target.judge(model.classify(images))
                holds = judged.holds.all(keepdims=True)
                margin = quantise_margin(judged.margin.min(keepdims=True), holds)
                known[key] = bool(holds[0]), float(margin[0]), float(judged.confidence.min())
            answers.append(known[key])
        columns = [list(column) for column in zip(*answers, strict=True)] or [[], [], []]
        heard.append((word, *columns, calls))
        if word == "budget":
            return "budget", calls, asked, heard
    return "finished", calls, asked, heard


@given(
    seed=st.integers(0, 10**6),
    batch_size=st.sampled_from([1, 7, 64]),
    width=st.sampled_from([1, 3]),
    fills=st.integers(1, 3),
    kept=st.sampled_from([1, 2, 64]),
    depth=st.integers(0, 3),
    limit=st.sampled_from([25, 10**6]),
)
@settings(max_examples=50, deadline=None)
def test_searches_are_told_what_one_image_at_a_time_says(seed, batch_size, width, fills, kept, depth, limit):
    problems = [problem_of(view_of([seed, i]), fills=fills) for i in range(3)]
    waves = [list(random_waves([seed, i], GRID)) for i in range(3)]
    model = Later(batch_size=64, depth=depth)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "MOST_KEPT", kept)
        work = [(problem, asks(*own)) for problem, own in zip(problems, waves, strict=True)]
        engine = Engine(model, batch_size=batch_size)
        found = {o.index: told(o) for o in engine.run_many(work, max_calls=limit, width=width)}
    wanted = {i: twin(Model(), problems[i], waves[i], limit) for i in range(3)}
    assert found == wanted
    assert sum(calls for _, calls, _, _ in wanted.values()) == len(model.rows)


def test_the_bundled_classifier_is_asked_about_the_composed_images():
    model = becausal.load_model("bundled", threads=1)
    view = make_scene(3).image
    sampler = RandomBackgrounds(view, 11)
    label = int(np.argmax(model.classify(view[None])[0]))
    problem = replace(problem_of(view, label_id=label, fills=2), sampler=sampler)
    visible = np.random.default_rng(0).random((6, 128, 128)) < np.array([0.0, 0.3, 0.6, 0.9, 0.97, 1.0])[:, None, None]
    numbers = np.arange(6 * 12) % 12
    wave = Question(np.repeat(visible, 12, axis=0), draws=numbers)
    ((_, answers),) = Engine(model).run(problem, asks(wave)).result
    grounds = np.stack([sampler.draw(int(number)) for number in numbers])
    judged = problem.target.judge(model.classify(np.where(wave.visible[..., None], view, grounds)))
    np.testing.assert_allclose(answers.confidence, judged.confidence, rtol=1e-5, atol=1e-7)
    assert answers.holds.tolist() == judged.holds.tolist()
    assert answers.holds.any()
    assert not answers.holds.all()
    assert answers.spent == 72
    assert np.array_equal(answers.margin, quantise_margin(judged.margin, judged.holds))


def test_a_model_of_labels_only():
    model = Model(output="labels", needed=60)
    problem = problem_of(np.full((*GRID, 1), 5, np.float32))
    ((_, answers),) = Engine(model).run(problem, asks(wave_of("0 1", 0, 1, 2))).result
    images = [np.where(rows("0 1")[0][..., None], problem.view, Sampler(problem.view).draw(n)) for n in range(3)]
    assert answers.holds.tolist() == (model.classify(np.stack(images)) == 1).tolist() == [False, False, True]
    assert answers.margin.tolist() == [-1, -1, 1]
    assert np.isnan(answers.confidence).all()


def test_a_set_on_a_background_is_evaluated_once_and_apart_from_the_fills():
    model = Model()
    problem = problem_of(view_of(1), fills=2)
    waves = [rows("0 1"), wave_of("0 1", 0, 1, 0), wave_of("0 1", 1, 2), rows("0 1"), wave_of("0 1", 0)]
    outcome = Engine(model).run(problem, asks(*waves))
    assert [answers.spent for _, answers in outcome.result] == [2, 4, 5, 5, 5]
    assert len(model.rows) == outcome.stats.calls == 5
    assert outcome.stats.asked == 8
    assert sorted(problem.sampler.drawn) == [0, 1, 2]


def test_a_question_without_cache_is_evaluated_again_past_the_budget():
    model = Model()
    again = Question(rows("0", "0"), draws=[4, 5], uncached=True)
    outcome = Engine(model).run(problem_of(view_of(1), fills=3), asks(wave_of("0", 4), again, again), max_calls=1)
    assert outcome.stopped_by == "finished"
    assert outcome.stats.calls == len(model.rows) == 5
    (_, first), *others = outcome.result
    assert {a.confidence[0] for _, a in others} == {first.confidence[0]}


def test_nothing_is_guessed_on_random_backgrounds():
    model = Later(batch_size=16, fixed_sizes=(16,))

    def guess(count):
        raise AssertionError

    wave = Question(rows("0"), draws=[1], lookahead=guess)
    assert Engine(model).run(problem_of(view_of(1)), asks(wave)).stats.speculative == 0


def test_the_problem_of_a_job_has_the_sampler():
    model, view = Model(), view_of(2)
    problem = problem_of(view, fills=2)
    job = Job(view, problem.backgrounds, lambda scores: (problem, asks(wave_of("0 3", 5, 6))))
    (outcome,) = Engine(model).run_many([job])
    assert outcome.stats.calls == 3
    assert told(outcome)[3][0][1:4] == twin(model, problem, [wave_of("0 3", 5, 6)], 9)[3][0][1:4]


# What goes wrong


def test_a_search_without_a_sampler_is_told_so():
    problem = replace(problem_of(view_of(0)), sampler=None)
    with pytest.raises(ValueError, match="the problem has no sampler"):
        Engine(Model()).run(problem, asks(wave_of("0", 1)))


@pytest.mark.parametrize("draws", [[], [1], [1, 2, 3], [[1, 2]]])
def test_there_is_one_draw_for_each_row(draws):
    with pytest.raises(ValueError, match="one number for each of 2 rows"):
        Question(rows("0", "1"), draws=draws)


def test_parts_of_a_question_keep_their_draws():
    wave = wave_of("0", 3, 4)
    assert wave.draws.tolist() == [3, 4]
    assert wave.draws.dtype == np.intp
    assert wave.part(slice(1, 2)).draws.tolist() == [4]
    assert wave.part(np.array([1, 0])).draws.tolist() == [4, 3]
    for plain in (np.asarray(wave), rows("0")):
        assert Question.of(plain).draws is None


@pytest.mark.parametrize("kind", [Model, Later])
@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_a_budget_that_ends_inside_a_wave(kind, batch_size):
    problem, model = problem_of(view_of(3), fills=2), kind(batch_size=batch_size)
    waves = [rows("0", "1"), wave_of("0 4", *range(10)), wave_of("1", 0)]
    outcome = Engine(model).run(problem, asks(*waves), max_calls=11)
    assert told(outcome) == twin(Model(), problem, waves, 11)
    assert [len(answers) for _, answers in outcome.result] == [2, 7]
    assert outcome.stats.calls == len(model.rows) == 11  # a question under two fills would have left one call over


@dataclass
class Pressing(Model):
    """Ctrl-C while a background is staged, or while a batch is evaluated."""

    at_stage: int = -1
    at_batch: int = -1
    stages: int = 0

    def stage(self, view, background):
        self.stages += 1
        if self.stages == self.at_stage:
            raise KeyboardInterrupt
        return super().stage(view, background)

    def ask(self, staged, which, visible):
        if len(self.batches) == self.at_batch:
            self.at_batch = -1
            raise KeyboardInterrupt
        return super().ask(staged, which, visible)


@pytest.mark.parametrize("when", [{"at_stage": 2 + 6}, {"at_batch": 2}])
def test_an_interrupt_gives_the_answers_so_far_and_a_little_more(when, monkeypatch):
    monkeypatch.setattr("becausal.engine.engine.GRACE_SECONDS", 1e6)  # else a busy machine allows fewer calls

    def search():
        heard = []
        for start in (0, 20, 500):
            try:
                heard.append((yield wave_of("0 4", *range(start, start + (20 if start < 500 else 1000)))))
            except Stop as stop:
                heard.append((stop.reason, stop.answers))
        return heard

    problem, model = problem_of(view_of(3), fills=2), Pressing(batch_size=4, **when)
    outcome = Engine(model).run(problem, search())
    assert outcome.stopped_by == "interrupt"
    first, second, third = outcome.result
    reason, before = first
    assert (reason, len(before)) == ("interrupt", 4 if "at_stage" in when else 8)
    assert len(second) == 20
    assert third[0] == "interrupt"
    assert outcome.stats.calls == len(before) + 2 * GRACE
    wanted = twin(model, problem, [wave_of("0 4", *range(20, 40))], 20)[3][0]
    assert (second.holds.tolist(), second.margin.tolist()) == wanted[1:3]


def test_ctrl_c_while_a_background_is_drawn_is_no_hanging_model(monkeypatch):
    monkeypatch.setattr(interrupts, "HANGING_SECONDS", 0.0)
    model = Model(batch_size=4)
    engine = Engine(model)

    class Slow(Sampler):
        def draw(self, number):
            if number == 6:
                engine.interrupt()  # as Ctrl-C does
                time.sleep(0.05)
            return super().draw(number)

    problem = problem_of(view_of(3), sampler=Slow)
    outcome = engine.run(problem, asks(wave_of("0 4", *range(20))))
    assert (outcome.stopped_by, outcome.error) == ("interrupt", None)
    assert [(word, len(answers)) for word, answers in outcome.result] == [("interrupt", 4)]
    assert problem.sampler.drawn == [*range(7)]  # it is heard before the next one


@pytest.mark.parametrize("kind", [Model, Later])
def test_a_background_that_cannot_be_staged_fails_its_search_alone(kind):
    @dataclass
    class Picky(kind):
        def stage(self, view, background):
            if (background == 7).all():
                raise RuntimeError("cannot stage this one")
            return super().stage(view, background)

    waves = [[wave_of("0", 2, 3), wave_of("1", 0, 2, 1)], [wave_of("0", 2, 3), wave_of("1", 0, 2, 4)]]
    problems = [problem_of(view_of(i)) for i in range(2)]
    work = [(problem, asks(*own)) for problem, own in zip(problems, waves, strict=True)]
    bad, good = sorted(Engine(Picky()).run_many(work, width=2), key=lambda o: o.index)
    assert isinstance(bad.error, AnswerError)
    assert "cannot stage this one" in str(bad.error)
    assert [word for word, _ in bad.result] == ["answers", "failure"]
    assert told(good) == twin(Model(), problems[1], waves[1], 99)


# What is kept


class Pair:
    """What a view and its background are when they are staged; can be counted."""

    def __init__(self, view, background):
        self.pair = view, background


@dataclass
class Counting(Model):
    """It counts the staged pairs that are alive."""

    alive: weakref.WeakSet = field(default_factory=weakref.WeakSet)
    most: int = 0
    staged: int = 0

    def stage(self, view, background):
        pair = Pair(view, background)
        self.alive.add(pair)
        self.staged += 1
        self.most = max(self.most, len(self.alive))
        return pair

    def ask(self, staged, which, visible):
        return super().ask([pair.pair for pair in staged], which, visible)


@dataclass
class CountingLater(Counting, Later):
    pass


@pytest.mark.parametrize("kind", [Counting, CountingLater])
@pytest.mark.parametrize("batch_size", [8, 256])
def test_the_backgrounds_in_memory_are_few(kind, batch_size):
    model = kind(batch_size=batch_size)
    panel = [wave_of(str(i % 6), *range(10)) for i in range(20)]
    waves = [*panel, wave_of("0", *range(1000, 1300)), *panel[:2], wave_of("1 2", *range(10))]
    problems = [problem_of(view_of(i), fills=2) for i in range(4)]
    work = ((problem, asks(*waves)) for problem in problems)
    outcomes = list(Engine(model).run_many(work, width=2))
    assert all(o.stopped_by == "finished" and o.stats.calls == 6 * 10 + 300 + 10 for o in outcomes)
    for problem in problems:  # those of the panel once, and once more after 300 others
        assert sorted(problem.sampler.drawn) == sorted([*range(10), *range(10), *range(1000, 1300)])
    assert model.most <= 2 * (2 + 64)
    assert model.staged == 4 * (2 + 320)
    del outcomes, work
    gc.collect()
    assert not model.alive


def test_a_search_that_ends_early_keeps_nothing():
    model = Counting(batch_size=8)
    problem = problem_of(view_of(0))
    Engine(model).run(problem, asks(wave_of("0", *range(40))), max_calls=11)
    gc.collect()
    assert not model.alive
    assert len(problem.sampler.drawn) == 11


@given(st.lists(st.sets(st.integers(0, 9), min_size=1, max_size=4), max_size=30))
@settings(deadline=None)
def test_the_ones_not_used_for_longest_go_first(requests):
    view = view_of(0)
    sampler = Sampler(view)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "MOST_KEPT", 4)
        kept = DrawnBackgrounds(view, sampler, lambda _, background: background)
    touched, wanted = [], []

    def is_kept(number):
        """Fewer than four others were used since."""
        return number in touched and len({*touched[len(touched) - touched[::-1].index(number) :]}) < 4

    for numbers in requests:
        missing = [number for number in sorted(numbers) if not is_kept(number)]
        wanted += missing
        touched += [*(number for number in sorted(numbers) if number not in missing), *missing]
        pairs = kept.staged(sorted(numbers))
        assert [pair.max() for pair in pairs] == [number * 7 % 23 for number in sorted(numbers)]
    assert sampler.drawn == wanted


def test_fewer_backgrounds_of_large_views_are_kept():
    assert kept_count(128 * 128 * 3) == 64
    assert 16 < kept_count(224 * 224 * 3) < 32
    assert kept_count(4000 * 3000 * 3) == 16
    assert kept_count(0) == 64


def test_the_memory_of_random_backgrounds_is_part_of_the_estimate():
    shape = (2000, 2500, 3)
    require_memory("photo.jpg", shape, 1, ModelCalls(Model(batch_size=32)))
    with pytest.raises(ImageError, match="--resize 512"):
        require_memory("photo.jpg", (4000, 5000, 3), 1, ModelCalls(Model(batch_size=32)), has_draws=True)
    require_memory("photo.jpg", shape, 1, ModelCalls(Model(batch_size=32)), has_draws=True)
    require_memory("photo.jpg", (4000, 5000, 3), 1, ModelCalls(Later(batch_size=32)), has_draws=True)  # on the device


def test_the_tensors_of_a_device_are_used_again():
    torch = pytest.importorskip("torch")
    from becausal.models import as_classifier
    from test_speed_torch import beside, small

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = beside(as_classifier(small(), preprocess="tf", resize="12/12x10"), (8, 16))
        view = np.random.default_rng(0).integers(0, 256, (12, 10, 3)).astype(np.uint8)
        problem = problem_of(view, sampler=lambda v: RandomBackgrounds(v, 2))
        visible = np.random.default_rng(1).random((300, 12, 10)) < 0.5
        ((_, answers),) = Engine(model).run(problem, asks(Question(visible, draws=np.arange(300)))).result
        grounds = np.stack([problem.sampler.draw(number) for number in range(300)])
        scores = model.classify(np.where(visible[..., None], view, grounds))
    finally:
        torch.set_num_threads(before)
    np.testing.assert_allclose(answers.confidence, scores[:, 1], atol=1e-6)
    (pool,) = model._composer._pools.values()
    assert len(pool.pairs) == 128  # 64, a fill and the last one evaluated alone


# Search processes


def in_processes(model, views, **options):
    pool = SearchPool(ModelCalls(model), count=2, width=4, convert=lambda image: image)
    return dict(pool.explain(iter(views), partial(search_all, **options), None))


def test_search_processes_are_told_the_same():
    views = [view_of(seed) for seed in range(9)]
    alone = dict(search_all(views, Later(batch_size=16), width=1, progress=None))
    assert in_processes(Later(batch_size=16), views) == alone
    assert {word for word, *_ in alone.values()} == {"finished", "budget"}
    other = dict(search_all(views, Model(batch_size=5), width=2, progress=None, fills=1))
    assert in_processes(Later(batch_size=16), views, fills=1) == other


def test_search_processes_share_the_bundled_classifier():
    views = [make_scene(seed).image for seed in range(3)]
    alone = dict(search_all(views, Bundled(batch_size=16), width=1, progress=None, is_random=True))
    found = in_processes(Bundled(batch_size=16), views, is_random=True)
    assert found == alone


def test_the_process_of_the_model_lets_backgrounds_go():
    model = CountingLater(batch_size=16)
    views = [view_of(seed) for seed in range(12)]
    in_processes(model, views)
    gc.collect()
    assert not model.alive
    assert model.most < 4 * 70 + 200  # 4 searches with up to 64 each, and those of batches on their way


# Searches put together


def confident(values, spent=0):
    values = np.array(values, float)
    return Answers(values >= 0.5, values - 0.5, values, spent)


def test_what_holds_on_one_background_is_no_sufficient_set():
    run = BudgetedRun(GRID)
    run.note(wave_of("0", 1, 2), confident([1, 1], spent=9))
    assert (run.pixels, run.spent) == (6, 9)
    run.note(Question(rows("0 1")), confident([1], spent=8))
    assert (run.pixels, run.spent) == (2, 9)


def test_a_limit_counts_one_call_for_each_row_and_a_part_keeps_its_draws():
    run = BudgetedRun(GRID, price=3)
    inner = asks(rows("0", "1"), wave_of("0", 5, 6, 7, 8), rows("2"))
    search = drive(inner, run=run, limit=9)
    assert len(step(search, None)) == 2
    part = step(search, confident([1, 1], spent=6))
    assert isinstance(part, Question)
    assert part.draws.tolist() == [5, 6, 7]
    assert np.array_equal(part, np.repeat(rows("0"), 3, axis=0))
    done = step(search, confident([0, 1, 0], spent=9))
    assert isinstance(done, Done)
    assert [(word, len(answers)) for word, answers in done.result] == [("answers", 2), ("budget", 3)]
    assert (run.stopped_by, run.spent, run.pixels) == ("budget", 9, 1)


def test_a_limit_that_is_not_reached_passes_the_wave_on_as_it_is():
    wave = wave_of("0", 5, 6)
    assert step(drive(asks(wave), run=BudgetedRun(GRID, price=3), limit=2), None) is wave


def test_a_floor_counts_in_the_fills_only():
    """On random backgrounds the label alone is asked for."""
    plain, drawn = rows("0", "1"), wave_of("0", 3, 4)
    search = drive(asks(plain, drawn), floor=0.8)
    step(search, None)
    wave = step(search, confident([0.9, 0.6]))
    assert Question.of(wave).draws.tolist() == [3, 4]
    done = step(search, confident([0.9, 0.6]))
    assert isinstance(done, Done)
    (_, first), (_, second) = done.result
    assert first.holds.tolist() == with_floor(confident([0.9, 0.6]), 0.8).holds.tolist() == [True, False]
    assert second.holds.tolist() == [True, True]


def test_a_contrastive_search_refuses_draws():
    with pytest.raises(ValueError, match="cannot use random backgrounds"):
        step(drive(asks(wave_of("0", 1)), contrast=True), None)


def test_the_public_double_takes_draws():
    model = MaskClassifier(lambda visible: visible[:, 0, 0].astype(float), depth=2, fixed_sizes=(4, 8))
    ((_, answers),) = (
        Engine(model)
        .run(
            problem_of(view_of(0)),
            asks(
                wave_of("0", 1, 2, 3),
            ),
        )
        .result
    )
    assert answers.holds.all()
    assert model.batches == [4]
