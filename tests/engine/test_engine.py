"""The engine: what it asks of a classifier on behalf of searches, and what the searches get to know."""

from asyncio import CancelledError
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import becausal
from becausal.api import Failure, Request
from becausal.core.contracts import Classifier, Finding, ModelInfo, Stop
from becausal.core.errors import AnswerError, BecausalError, FillError, UnstableModelError
from becausal.core.problem import Problem
from becausal.core.targets import STEP, Target
from becausal.engine.calls import ModelCalls, check_scores
from becausal.engine.engine import GRACE, Engine
from becausal.methods.causal.refinement import DcCausal
from becausal.methods.causal.search import Causal
from becausal.models import as_detector


@dataclass
class Model:
    """A classifier of arrays: class 1 where the shown pixels add up to `needed`. It notes what it was asked.

    fails: (number of the call in rows, or a test of a mutant) where it raises `error`.
    """

    needed: float = 100.0
    batch_size: int = 16
    fixed_sizes: tuple[int, ...] = ()
    output: str = "probabilities"
    error: type[BaseException] = RuntimeError
    fails_at: tuple[int, ...] = ()  # batches, from 0
    refuses: float | None = None  # a pixel value that breaks it
    answer: object = None  # what it gives in place of scores
    noise: float = 0.0
    mixed: bool = False  # whether a batch ever had views of two types
    batches: list = field(default_factory=list)
    rows: list = field(default_factory=list)  # (the mutants' bytes, how many there were in the batch)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @property
    def info(self):
        return ModelInfo("double", "test", None, None, None, self.output, "as they are")

    def stage(self, view, background):
        return view, background

    def ask(self, staged, which, visible):
        assert visible.dtype == np.bool_
        assert len(which) == len(visible) <= self.batch_size
        mutants = np.stack(
            [np.where(v[..., None], *staged[w]) for w, v in zip(which, visible, strict=True)]
        )  # (n, *grid, c)
        assert all(v.shape == staged[0][0].shape for v, _ in staged)
        self.mixed |= len({v.dtype for v, _ in staged}) > 1
        self.batches.append(len(mutants))
        self.rows += [m.tobytes() for m in mutants]
        if len(self.batches) - 1 in self.fails_at:
            raise self.error("broken")
        if self.refuses is not None and (mutants == self.refuses).any():
            raise self.error("cannot read this one")
        if self.answer is not None:
            return self.answer(mutants)
        return self.classify(mutants)

    def classify(self, pixels):
        total = pixels.reshape(len(pixels), -1).sum(axis=1, dtype=np.float64)
        share = 1 / (1 + np.exp(-np.clip((total - self.needed) / 50, -30, 30)))
        share = np.clip(share + self.noise * self.rng.normal(size=len(share)), 0.001, 0.999)
        if self.output == "labels":
            return (total >= self.needed).astype(np.int64)
        return np.stack([1 - share, share], axis=1).astype(np.float32)


def case(values, *backgrounds, dtype=np.float32):
    view = np.array(values, dtype)[..., None]
    return Problem(view, tuple(np.full_like(view, b) for b in backgrounds or (0,)), Target(1))


VALUES = [[40, 10, 5], [60, 20, 30]]
GRID = (2, 3)


def rows(*sets):
    """Visible sets from strings of pixels, as in "0 4"."""
    out = np.zeros((len(sets), 6), bool)
    for row, text in zip(out, sets, strict=True):
        row[[int(p) for p in text.split()]] = True
    return out.reshape(-1, *GRID)


def asks(*waves):
    """A search that asks these waves and returns all it was told; told to stop, it ends."""
    heard = []
    for wave in waves:
        try:
            answers = yield wave
            heard.append(("answers", answers))
        except Stop as stop:
            heard.append((stop.reason, stop.answers))
            break
    return heard


def random_waves(seed, count=4):
    rng = np.random.default_rng(seed)
    return [rng.random((rng.integers(1, 12), *GRID)) < 0.5 for _ in range(count)]


def told(outcome):
    """An outcome as plain values, without times and batches."""
    return (
        outcome.index,
        outcome.stopped_by,
        outcome.stats.calls,
        outcome.stats.asked,
        [(word, a.holds.tolist(), a.margin.tolist(), a.confidence.tolist(), a.spent) for word, a in outcome.result],
    )


def test_the_double_is_a_classifier():
    assert isinstance(Model(), Classifier)


# Answers, memo, batches


def test_answers_are_what_the_model_says_of_the_mutants():
    model = Model()
    subject = case(VALUES, 7)
    wave = rows("0 1 2 3 4 5", "", "3 5", "0")
    outcome = Engine(model).run(subject, asks(wave))
    ((_, answers),) = outcome.result
    mutants = np.where(wave[..., None], subject.view, 7.0)
    scores = model.classify(mutants)
    assert answers.holds.tolist() == (scores.argmax(axis=1) == 1).tolist()
    np.testing.assert_allclose(answers.confidence, scores[:, 1], rtol=1e-6)
    assert ((answers.margin >= 0) == answers.holds).all()
    assert answers.spent == 4
    assert outcome.stopped_by == "finished"


def test_a_question_asked_again_costs_nothing():
    model = Model()
    wave = rows("0", "1", "0", "2")
    again = rows("2", "3", "0")
    outcome = Engine(model).run(case(VALUES), asks(wave, again, wave))
    first, second, third = (a for _, a in outcome.result)
    assert len(model.rows) == 4  # "0", "1", "2", "3"
    assert outcome.stats.calls == 4
    assert outcome.stats.asked == 11
    assert (first.spent, second.spent, third.spent) == (3, 4, 4)
    assert first.margin[0] == first.margin[2] == second.margin[2] == third.margin[0]
    assert first.margin[3] == second.margin[0]
    assert first.margin.tolist() == third.margin.tolist()


def test_the_memo_is_of_one_view_only():
    model = Model()
    other = [[0, 0, 0], [1, 1, 1]]
    outcomes = list(Engine(model).run_many([(case(VALUES), asks(rows("0"))), (case(other), asks(rows("0")))]))
    assert len(model.rows) == 2
    assert outcomes[0].result[0][1].confidence[0] != outcomes[1].result[0][1].confidence[0]


def test_batches_are_padded_to_fixed_sizes_and_padding_is_no_call():
    model = Model(fixed_sizes=(4, 16))
    wave = np.arange(64)[:, None] >> np.arange(6) & 1
    engine = Engine(model)
    outcome = engine.run(case(VALUES), asks(wave.astype(bool).reshape(64, *GRID), rows("0")[:, ::-1]))
    assert model.batches == [16, 16, 16, 16]  # the last question was known
    model.batches.clear()
    outcome = engine.run(case(VALUES), asks(rows("0", "1", "2"), rows(*"012345"), rows("0 1")))
    assert model.batches == [4, 4, 4]  # 3 new; 3 new; 1 new
    assert outcome.stats.calls == 7
    assert engine.stats.slots == 64 + 12


@pytest.mark.parametrize("wanted", [1, 3, 16, 64])
def test_no_batch_is_larger_than_the_model_or_the_caller_allows(wanted):
    model = Model(batch_size=16)
    wave = (np.arange(64)[:, None] >> np.arange(6) & 1).astype(bool).reshape(64, *GRID)
    Engine(model, batch_size=wanted).run(case(VALUES), asks(wave))
    assert max(model.batches) == min(wanted, 16)
    assert len(model.batches) == -(-64 // min(wanted, 16))


@given(st.integers(0, 10**6), st.sampled_from([1, 7, 64]), st.sampled_from([1, 2, 5]), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_outcomes_depend_on_neither_batch_size_nor_width(seed, batch_size, width, fills):
    backgrounds = (0, 7, 11)[:fills]
    rng = np.random.default_rng(seed)
    views = [rng.integers(1, 60, GRID) for _ in range(6)]

    def outcomes(batch, side_by_side):
        items = [(case(v, *backgrounds), asks(*random_waves([seed, i]))) for i, v in enumerate(views)]
        engine = Engine(Model(batch_size=64), batch_size=batch)
        return sorted((told(o) for o in engine.run_many(items, max_calls=40, width=side_by_side)), key=lambda o: o[0])

    assert outcomes(batch_size, width) == outcomes(64, 1)


def test_several_searches_share_a_batch():
    model = Model(batch_size=16)
    items = [(case(np.add(VALUES, i)), asks(rows("0", "1", "2"))) for i in range(5)]
    list(Engine(model).run_many(items, width=5))
    assert model.batches == [15]


@pytest.mark.parametrize("explainer", [DcCausal(partitions=5), Causal()])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_methods_find_the_same_whatever_the_batches(explainer, batch_size):
    rng = np.random.default_rng(1)
    items = []
    for _ in range(3):
        subject = case(rng.integers(0, 12, (8, 8)))
        problem = subject
        items.append((subject, problem))

    def findings(batch, width):
        searches = [(s, explainer.search(p, np.random.default_rng(4))) for s, p in items]
        done = Engine(Model(needed=150.0, batch_size=64), batch_size=batch).run_many(searches, width=width)
        return sorted(done, key=lambda o: o.index)

    for one, other in zip(findings(batch_size, 1), findings(64, 3), strict=True):
        assert (one.result.saliency == other.result.saliency).all()
        assert one.stats.calls == other.stats.calls
        for a, b in zip(one.result.sets, other.result.sets, strict=True):
            assert (a == b).all()


def test_views_of_different_sizes_and_types_side_by_side():
    other = case(np.arange(8).reshape(2, 2, 2) * 20, 0)
    whole = case(np.arange(6).reshape(GRID) * 20, dtype=np.int32)  # as wide as float32, other bits
    waves = [[rows("0", "1")], [np.ones((3, 2, 2, 2), bool)], [rows("5", "4 5")], [rows("3")], [np.ones((1, 2, 2, 2), bool)]]
    cases = [case(VALUES), other, whole, case(VALUES, 3), other]
    alone = [told(Engine(Model()).run(c, asks(*w))) for c, w in zip(cases, waves, strict=True)]
    items = [(c, asks(*w)) for c, w in zip(cases, waves, strict=True)]
    model = Model()
    together = sorted((told(o) for o in Engine(model).run_many(items, width=5)), key=lambda o: o[0])
    assert [o[1:] for o in together] == [o[1:] for o in alone]
    assert not model.mixed  # a classifier stages a view in its own type, and composes a batch in that of the first


def test_a_search_that_asks_with_the_wrong_array_is_told_so():
    with pytest.raises(AnswerError, match=r"int64 \(2, 2, 3\)"):
        Engine(Model()).run(case(VALUES), asks(np.ones((2, 2, 3), np.int64)))
    with pytest.raises(AnswerError, match=r"\(2, 3, 2\)"):
        Engine(Model()).run(case(VALUES), asks(np.ones((2, 3, 2), bool)))


def test_watchers_see_calls_grow():
    seen = []
    engine = Engine(Model(batch_size=4), watch=lambda index, calls: seen.append((index, calls)))
    list(engine.run_many([(case(VALUES), asks(rows(*"012345")))] * 1, width=1))
    assert seen == [(0, 4), (0, 6)]


# Several fills


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5, 16]))
@settings(max_examples=40, deadline=None)
def test_with_several_fills_the_worst_counts(seed, batch_size):
    wave = np.random.default_rng(seed).random((9, *GRID)) < 0.5
    backgrounds = (0, 30, 9)
    model = Model(batch_size=batch_size)
    outcome = Engine(model).run(case(VALUES, *backgrounds), asks(wave))
    ((_, answers),) = outcome.result
    single = [Engine(Model()).run(case(VALUES, b), asks(wave)).result[0][1] for b in backgrounds]
    assert (answers.holds == np.logical_and.reduce([s.holds for s in single])).all()
    assert (answers.margin == np.minimum.reduce([s.margin for s in single])).all()
    assert (answers.confidence == np.minimum.reduce([s.confidence for s in single])).all()
    different = len(np.unique(wave.reshape(9, -1), axis=0))
    assert outcome.stats.calls == 3 * different == len(model.rows)


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_more_fills_than_a_batch_has_rows(batch_size):
    items = [(case(np.add(VALUES, i), 0, 30, 9), asks(rows("3", "0 3", "3 5"))) for i in range(3)]
    model = Model(batch_size=batch_size)
    outcomes = sorted((told(o) for o in Engine(model).run_many(items, width=3)), key=lambda o: o[0])
    items = [(case(np.add(VALUES, i), 0, 30, 9), asks(rows("3", "0 3", "3 5"))) for i in range(3)]
    assert outcomes == [told(o) for o in Engine(Model()).run_many(items)]


def test_ask_afresh_knows_no_memo_and_counts_the_worst():
    model = Model()
    engine = Engine(model)
    subject = case(VALUES, 0, 30)
    outcome = engine.run(subject, asks(rows("3", "0 3")))
    afresh = engine.ask_uncached(subject, rows("3", "0 3"))
    assert len(model.rows) == 8
    assert np.abs(afresh.margin - outcome.result[0][1].margin).max() <= STEP / 2  # searches are told steps


def test_ask_afresh_asks_no_more_at_once_than_the_model_takes():
    model = Model(batch_size=2)
    answers = Engine(model).ask_uncached(case(VALUES), rows("3", "0 3", "3 5"))
    assert len(answers) == 3
    assert max(model.batches) <= 2


# Budget


@given(st.integers(0, 10**6), st.integers(0, 40), st.sampled_from([1, 7, 64]), st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_the_budget_is_never_exceeded(seed, budget, batch_size, fills, width):
    rng = np.random.default_rng(seed)
    views = [rng.integers(1, 60, GRID) for _ in range(4)]
    model = Model(batch_size=64)
    items = [(case(v, *(0, 7, 11)[:fills]), asks(*random_waves([seed, i]))) for i, v in enumerate(views)]
    for outcome in Engine(model, batch_size=batch_size).run_many(items, max_calls=budget, width=width):
        assert outcome.stats.calls <= budget
        waves = random_waves([seed, outcome.index])
        known: set[bytes] = set()
        for (word, answers), wave in zip(outcome.result, waves, strict=False):
            new = list(dict.fromkeys(k for k in (row.tobytes() for row in wave) if k not in known))
            if (len(known) + len(new)) * fills <= budget:
                assert word == "answers"
                assert len(answers) == len(wave)
                known |= set(new)
                continue
            # What fits was asked, in order, and the search heard the answers up to the first that did not fit.
            fit = set(new[: budget // fills - len(known)])
            reach = next(i for i, row in enumerate(wave) if row.tobytes() not in known | fit)
            assert word == "budget"
            assert len(answers) == reach
            assert outcome.stopped_by == "budget"
            assert outcome.stats.calls == (len(known) + len(fit)) * fills
            break
        else:
            assert outcome.stopped_by == "finished"
    assert len(model.rows) <= 4 * budget


def test_a_search_that_asks_on_after_the_end_is_told_again():
    words = []

    def stubborn():
        for _ in range(3):
            try:
                yield rows("0", "1")
            except Stop as stop:
                words.append((stop.reason, len(stop.answers)))
        return (yield rows("0"))  # this one is known, so it can still be answered

    model = Model()
    outcome = Engine(model).run(case(VALUES), stubborn(), max_calls=1)
    assert words == [("budget", 1)] * 3
    assert len(model.rows) == 1
    assert outcome.stopped_by == "budget"
    assert outcome.result.holds.shape == (1,)


# Interrupts


def test_an_interrupt_gives_the_best_so_far():
    model = Model(batch_size=2, fails_at=(1,), error=KeyboardInterrupt)
    outcome = Engine(model).run(case(VALUES), asks(rows("0", "1", "2", "3"), rows("4")))
    assert outcome.stopped_by == "interrupt"
    assert [(word, len(a)) for word, a in outcome.result] == [("interrupt", 2)]
    assert outcome.stats.calls == 2  # the batch that was interrupted gave no answer


def test_after_an_interrupt_a_search_may_round_off_and_no_new_one_begins():
    reasons = []

    def rounding():
        total = 0
        try:
            yield rows("0")
        except Stop as stop:
            reasons.append(stop.reason)
        rng = np.random.default_rng(0)
        try:
            while True:
                total += len((yield rng.random((10, 6, 6)) < 0.5))
        except Stop as stop:
            return total + len(stop.answers)

    model = Model(fails_at=(0,), error=KeyboardInterrupt)
    big = Problem(np.ones((6, 6, 1), np.float32), (np.zeros((6, 6, 1), np.float32),), Target(1))
    first = np.ones((1, 6, 6), bool)

    def start():
        search = rounding()
        next(search)
        state = first
        while True:  # the first question, on a larger grid
            try:
                answers = yield state
                state = search.send(answers)
            except Stop as stop:
                try:
                    state = search.throw(stop)
                except StopIteration as end:
                    return end.value

    outcomes = list(Engine(model).run_many([(big, start()), (big, start())]))
    assert len(outcomes) == 1
    assert reasons == ["interrupt"]
    assert outcomes[0].stopped_by == "interrupt"
    assert outcomes[0].result == GRACE == outcomes[0].stats.calls


def test_an_interrupt_never_lifts_the_budget():
    model = Model(batch_size=1, fails_at=(2,), error=KeyboardInterrupt)

    def insistent():
        for wave in (rows("0"), rows("1"), rows("2"), rows("3"), rows("4"), rows("5")):
            try:
                yield wave
            except Stop:
                continue

    outcome = Engine(model).run(case(VALUES), insistent(), max_calls=4)
    assert outcome.stats.calls == 4
    assert outcome.stopped_by == "interrupt"


def test_a_second_interrupt_is_raised():
    def insistent():
        for wave in (rows("0"), rows("1"), rows("2")):
            try:
                yield wave
            except Stop:
                continue

    model = Model(fails_at=(0, 1), error=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        Engine(model).run(case(VALUES), insistent())


def test_an_interrupt_stops_all_searches_under_way():
    model = Model(batch_size=4, fails_at=(1,), error=KeyboardInterrupt)
    items = [(case(np.add(VALUES, i)), asks(rows("0"), rows("1"))) for i in range(3)]
    outcomes = list(Engine(model).run_many(items, width=3))
    assert [o.stopped_by for o in outcomes] == ["interrupt"] * 3
    assert all(word == "interrupt" for o in outcomes for word, _ in o.result[-1:])


def test_an_interrupt_between_two_fills_forgets_neither():
    # One row to a batch: the interrupt comes when the first fill of the question has been answered, the second has not.
    def again():
        try:
            return (yield rows("3"))
        except Stop:
            return (yield rows("3"))

    subject = case(VALUES, 0, 90)  # 60 alone under 0 is not enough, under 90 it is
    for fills in ((0, 90), (90, 0)):
        subject = case(VALUES, *fills)
        model = Model(batch_size=1, fails_at=(1,), error=KeyboardInterrupt)
        answers = Engine(model).run(subject, again()).result
        assert not answers.holds[0]
        assert answers.margin[0] == Engine(Model()).run(subject, asks(rows("3"))).result[0][1].margin[0]


# Models that break


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda m: np.full((len(m), 2), np.nan), "NaN or infinite"),
        (lambda m: np.full((len(m), 2), np.inf), "NaN or infinite"),
        (lambda m: np.zeros((len(m), 1)), "expected"),
        (lambda m: np.zeros((len(m) + 1, 2)), "expected"),
        (lambda m: np.zeros(len(m)), "expected"),
        (lambda m: np.zeros((len(m), 2, 2)), "expected"),
        (lambda m: np.full((len(m), 2), 0.5 + 0.5j), "complex128 scores; expected real"),
        (lambda m: np.full((len(m), 2), "a", object), "object scores; expected real"),
    ],
)
def test_output_that_is_no_score_vector_is_an_answer_error(answer, message):
    with pytest.raises(AnswerError, match=message):
        Engine(Model(answer=answer)).run(case(VALUES), asks(rows("0", "1", "2")))


def test_labels_must_be_whole_numbers_one_for_each():
    good = np.array([0, 1, 1])
    assert check_scores(good, 3, "labels") is good
    for bad in (good[:2], good.astype(float), good[:, None]):
        with pytest.raises(AnswerError, match="integer labels"):
            check_scores(bad, 3, "labels")


class Changing(Model):
    """From the fourth batch on it gives scores of another width, or of another type."""

    change = staticmethod(lambda scores: np.pad(scores, ((0, 0), (0, 601))))

    def ask(self, staged, which, visible):
        scores = super().ask(staged, which, visible)
        return self.change(scores) if len(self.batches) > 3 else scores


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (Changing.change, "603 scores for an image, after 2 in its first answer"),
        (lambda scores: scores[:, :1].repeat(3, axis=1), "3 scores for an image, after 2"),
        (lambda scores: scores.astype(np.float64), "float64 scores, after float32"),
    ],
)
def test_the_number_and_type_of_scores_is_fixed_by_the_first_answer(change, message):
    model = Changing(needed=150.0)
    model.change = change
    waves = [rows("0"), rows("1"), rows("2"), rows("3"), rows("4")]
    with pytest.raises(AnswerError, match=message):
        Engine(model).run(case(VALUES), asks(*waves))


def test_a_function_that_returns_other_classes_midway_is_refused():
    calls = []

    def predict(batch):
        calls.append(len(batch))
        share = batch.reshape(len(batch), -1).mean(axis=1, dtype=float) / 255
        scores = np.stack([1 - share, share / 2, share / 2], axis=1)
        return np.pad(scores, ((0, 0), (0, 600))) if len(calls) > 3 else scores

    image = np.full((16, 16, 3), 200, np.uint8)
    with pytest.raises(AnswerError, match="603 scores for an image, after 3"):
        becausal.explain(image, predict, fills="black")


def test_complex_scores_of_a_function_are_refused():
    with pytest.raises(BecausalError, match="complex numbers; expected real"):
        becausal.explain(
            np.zeros((16, 16, 3), np.uint8), lambda batch: np.tile([0.2 + 1j, 0.8 + 0j], (len(batch), 1)), fills="black"
        )


class Unusual(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [RuntimeError, ZeroDivisionError, SystemExit, MemoryError, GeneratorExit, Unusual, CancelledError]
)
def test_whatever_a_model_raises_becomes_an_answer_error(error):
    with pytest.raises(AnswerError, match=f"{error.__name__}: broken") as caught:
        Engine(Model(fails_at=(0,), error=error)).run(case(VALUES), asks(rows("0")))
    assert isinstance(caught.value.__cause__, error)


def test_our_own_errors_pass_as_they_are():
    with pytest.raises(UnstableModelError, match=r"^broken$"):
        Engine(Model(fails_at=(0,), error=UnstableModelError)).run(case(VALUES), asks(rows("0")))


@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_picture_that_breaks_the_model_fails_alone(width):
    waves = [rows("0 3", "1"), rows("2 3", "5"), rows("3")]

    def items(bad):
        for i in range(5):
            values = np.add(VALUES, i)
            if i == 2 and bad:
                values[1, 2] = 999  # shown by the second wave
            yield case(values), asks(*waves)

    outcomes = {o.index: o for o in Engine(Model(refuses=999)).run_many(items(True), width=width)}
    wanted = {o.index: o for o in Engine(Model()).run_many(items(False), width=width)}
    assert sorted(outcomes) == list(range(5))
    assert "cannot read this one" in str(outcomes[2].error)
    assert [word for word, _ in outcomes[2].result] == ["answers", "failure"]
    for i in (0, 1, 3, 4):
        assert outcomes[i].error is None
        assert told(outcomes[i])[4] == told(wanted[i])[4]


# The same through the front door


def picture(seed=0, side=8, value=12):
    return np.random.default_rng(seed).integers(0, value, (side, side)).astype(np.float32)


@pytest.mark.parametrize("output", ["probabilities", "labels"])
def test_explain_detects_a_model_that_answers_in_two_ways(output):
    class Moody(Model):
        """It needs more each time it is asked."""

        def ask(self, staged, which, visible):
            if len(self.batches) > 4:  # once the search is under way
                self.needed += 2.0
            return super().ask(staged, which, visible)

    with pytest.raises(UnstableModelError, match="two ways"):
        becausal.explain(picture(), Moody(needed=150.0, output=output), fills="black")


class BatchDependent(Model):
    """Its confidence depends on whether it is asked an odd or an even number together, from rows of class 1 on."""

    inputs = "float32"
    effect = 0.0
    lasting = False  # whether other rows than those of class 1 are affected as well

    @property
    def info(self):
        return replace(super().info, inputs=f"{self.inputs} [N,8,8]")

    def ask(self, staged, which, visible):
        scores = super().ask(staged, which, visible)
        if scores.ndim == 1:
            return scores * (len(visible) % 2 == 0) if self.effect else scores
        is_odd, affected = len(visible) % 2, (scores[:, 1:] > 0.5) | self.lasting
        return np.clip(scores + np.float32([-self.effect, self.effect]) * is_odd * affected, 0, 1)


def batch_dependent(**attributes):
    model = BatchDependent(needed=150.0, output=attributes.pop("output", "probabilities"))
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


@pytest.mark.parametrize(
    ("inputs", "effect", "is_noted"),
    [("float32", 0.0, False), ("float32", 0.004, True), ("float16", 0.004, False), ("FP16", 0.004, False)],
)
def test_rounding_that_depends_on_the_batch_is_a_note_and_no_refusal(inputs, effect, is_noted):
    model = batch_dependent(inputs=inputs, effect=effect)
    explanation = becausal.explain(picture(), model, fills="black", smallest=True)
    notes = [note for note in explanation.notes if "depend on the batch" in note]
    assert bool(notes) == is_noted
    assert explanation.checks.sufficient
    assert explanation.checks.minimal_grain == 1
    assert explanation.stopped_by == "finished"
    assert explanation.stats.calls == len(model.rows)  # what it took to find out is counted
    if is_noted:
        assert "differs by up to 0.0040" in notes[0]
        assert "--batch-size 1" in notes[0]
        assert all(claim.holds for claim in explanation.verify(model) if claim.name == "confidence")


def test_rounding_does_not_take_a_level_away_that_is_at_its_limit():
    """A set that keeps just 90 % of the confidence has a little less in another batch."""
    found = []
    for seed in range(4):
        model = batch_dependent(inputs="float16", effect=0.004)
        explanation = becausal.explain(picture(), model, fills="black", seed=seed)
        assert (explanation.stopped_by, explanation.checks.sufficient) == ("finished", True)
        found.append(explanation.checks.confidence - 0.004 < 0.9 * explanation.confidence)
    assert any(found)


def test_the_confidence_of_the_whole_view_may_depend_on_the_batch_too():
    model = batch_dependent(effect=0.004)
    model.needed = 10.0  # the explanation is a tiny set; only the whole view is affected
    model.ask = lambda staged, which, visible: _only_whole(model, staged, which, visible)
    explanation = becausal.explain(picture(), model, fills="black")
    assert "differs by up to 0.2000" in explanation.notes[-1]
    assert explanation.checks.sufficient


def _only_whole(model, staged, which, visible):
    scores = Model.ask(model, staged, which, visible)
    lost = 0.2 * visible.all(axis=(1, 2)) * (len(visible) % 2)
    return (scores + np.stack([lost, -lost], axis=1)).astype(np.float32)


@pytest.mark.parametrize("output", ["probabilities", "labels"])
def test_a_label_that_depends_on_the_batch_is_kept_and_marked(output):
    model = batch_dependent(effect=0.3, output=output)
    model.ask = lambda staged, which, visible: _loses(model, staged, which, visible)
    explanation = becausal.explain(picture(), model, fills="black")
    assert explanation.stopped_by == "failure"
    assert explanation.size < 1
    assert not explanation.checks.sufficient
    assert explanation.checks.minimal_grain is None
    assert "in some batches only: use --batch-size 1" in explanation.notes[-1]
    alone = becausal.explain(picture(), model, fills="black", batch_size=1)
    assert alone.stopped_by == "finished"
    assert alone.checks.minimal_grain == 1
    assert "batch" not in " ".join(alone.notes)


def _loses(model, staged, which, visible):
    """Asked alone, small sets need more."""
    model.needed = 190.0 if len(visible) == 1 and visible.sum() < 60 else 150.0
    return Model.ask(model, staged, which, visible)


def test_a_model_that_is_random_is_refused_also_where_the_batch_matters():
    model = batch_dependent(effect=0.05)
    model.noise = 0.03
    with pytest.raises(UnstableModelError, match="dropout"):
        becausal.explain(picture(), model, fills="black", seed=1)


def test_to_find_out_why_an_answer_changed_takes_few_calls(monkeypatch):
    evaluate, counts = ModelCalls.evaluate, []

    def counted(self, view, background, visible, read):
        counts.append(len(visible))
        return evaluate(self, view, background, visible, read)

    monkeypatch.setattr(ModelCalls, "evaluate", counted)
    becausal.explain(picture(), batch_dependent(), fills="black")
    assert not counts  # none where the answer is the same
    becausal.explain(picture(), batch_dependent(effect=0.004), fills="black")
    assert 0 < sum(counts) <= 42


def test_interrupted_while_it_finds_out_it_refuses(monkeypatch):
    def interrupted(self, *args):
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelCalls, "evaluate", interrupted)
    found = next(becausal.explain_many([picture()], batch_dependent(effect=0.004), request=Request(fills=("black",))))
    assert isinstance(found, Failure)
    assert isinstance(found.error, UnstableModelError)


def test_explain_detects_a_model_that_changed_its_mind_about_the_whole_view():
    class Hasty(Model):
        """Its very first answer is another one; from then on it is steady."""

        def classify(self, pixels):
            scores = super().classify(pixels)
            return scores if len(self.batches) > 1 else scores * np.float32([1.1, 0.9])

    with pytest.raises(UnstableModelError, match="two ways"):
        becausal.explain(picture(), Hasty(needed=150.0), fills="black", max_calls=60)


class Fickle(Model):
    """Scores that are others on each call: 0.6 for the label, then 0.4 for the same image."""

    asked = 0

    def classify(self, pixels):
        return self.change(len(pixels))

    def ask(self, staged, which, visible):
        return self.change(len(visible))

    def change(self, count):
        self.asked += 1
        score = 0.6 if self.asked % 2 else 0.4
        return np.tile(np.float32([1 - score, score]), (count, 1))


def test_two_answers_to_the_whole_view_are_said_to_be_two_answers():
    for target in (None, 1):
        with pytest.raises(UnstableModelError) as caught:
            becausal.explain(picture(), Fickle(needed=150.0), fills="black", target=target)
        assert str(caught.value) == (
            "the model gave two different answers to the same image (confidence 0.600, then 0.400): is dropout still on, or "
            "is there randomness in it? If not, use --batch-size 1"
        )


def test_explain_detects_dropout():
    with pytest.raises(UnstableModelError, match="two ways"):
        becausal.explain(picture(), Model(needed=150.0, noise=0.03), fills="black", seed=1)


def on_grey(name_of_masked="kite"):
    """A function: `kite` where the image's mean is near grey, else `bird`."""

    def predict(batch):
        rows.append(len(batch))
        mean = batch.reshape(len(batch), -1).mean(axis=1, dtype=float)
        near = np.clip(1 - np.abs(mean - 128) / 40, 0.1, 0.9)
        return np.stack([near, 1 - near], axis=1).astype(np.float32)

    rows = []
    predict.labels = [name_of_masked, "bird"]
    predict.rows = rows
    return predict


def test_a_fill_that_has_the_label_already_is_refused_with_the_fills_that_would_work():
    grey = np.random.default_rng(0).integers(100, 156, (16, 16, 3)).astype(np.uint8)
    model = on_grey()
    with pytest.raises(FillError) as caught:
        becausal.explain(grey, model, fills="grey")
    assert str(caught.value) == (
        "the fully masked image already has this label: under the fill grey it is kite (confidence 0.90), so there is "
        "nothing to explain; use --fill black or --fill white"
    )
    before = 1 + 1 + 2  # to detect the output, the whole view, then the whole view and the fully masked image
    assert len(model.rows) <= before + 7
    with pytest.raises(FillError, match=r"under the fill #828282 it is kite .* use --fill black or --fill white$"):
        becausal.explain(grey, on_grey(), fills="#828282")
    with pytest.raises(FillError, match=r"already meets the target: under the fill grey it is kite .* in every other"):
        becausal.explain(grey, on_grey(), fills="grey", target="bird", top=2)
    with pytest.raises(FillError, match=r"use another fill$"):
        becausal.explain(grey, on_grey(), fills=("grey", "mean"))


@pytest.mark.parametrize("max_calls", [None, 30, 60])
def test_where_no_fill_was_named_the_first_that_works_is_taken(max_calls):
    grey = np.random.default_rng(0).integers(100, 156, (16, 16, 3)).astype(np.uint8)
    model = on_grey()
    explanation = becausal.explain(grey, model, max_calls=max_calls)
    assert explanation.checks.sufficient
    assert explanation.origin.request.fills == ("black",)
    assert not explanation.backgrounds[0].any()
    said = "one plain colour has this label already, so masked pixels become black instead: set another fill with --fill"
    assert said in explanation.notes
    assert explanation.calls == sum(model.rows[1:])  # the output is detected with the first
    assert max_calls is None or explanation.calls <= max_calls
    assert all(claim.holds for claim in explanation.verify(on_grey()))
    named = becausal.explain(grey, on_grey(), fills="black", holds=explanation.origin.request.share_held)
    assert max_calls is not None or np.array_equal(named.visible, explanation.visible)
    assert said not in named.notes


def test_another_fill_is_not_taken_where_too_few_calls_are_left():
    grey = np.random.default_rng(0).integers(100, 156, (16, 16, 3)).astype(np.uint8)
    with pytest.raises(FillError, match=r"use --fill black or --fill white$"):
        becausal.explain(grey, on_grey(), max_calls=15)


def test_images_choose_their_fills_one_by_one():
    rng = np.random.default_rng(0)
    grey = rng.integers(100, 156, (16, 16, 3)).astype(np.uint8)
    bright = rng.integers(200, 256, (16, 16, 3)).astype(np.uint8)  # bird, and kite on grey
    for width in (1, 2):
        found = list(becausal.explain_many([grey, bright, grey], on_grey(), width=width))
        fills = {(one.label, one.origin.request.fills) for one in found}
        assert fills == {("kite", ("black",)), ("bird", ("grey",))}
        assert len(found) == 3


def test_boxes_choose_their_fills_one_by_one():
    """One box is found wherever its place is bright, the other one where it is not grey."""
    pixels = np.full((16, 32, 3), 128, np.uint8)
    pixels[4:12, 4:12], pixels[4:12, 20:28] = 128, 255

    def find(batch):
        places = [batch[:, 4:12, left : left + 8].mean(axis=(1, 2, 3)) / 255 for left in (4, 20)]
        scores = np.stack([0.5 * places[0] + 0.4, np.abs(places[1] - 0.5) + 0.4], axis=1)
        corners = np.float32([[4, 4, 12, 12], [20, 4, 28, 12]])
        return [(corners, score, np.array([0, 1])) for score in scores]

    model = as_detector(find, labels=["lamp", "kite"])
    found = dict(becausal.explain_boxes(pixels, model))
    fills = {one.label: one.origin.request.fills for one in found.values()}
    assert fills == {"kite": ("grey",), "lamp": ("black",)}
    for one in found.values():
        assert one.checks.sufficient
        assert all(claim.holds for claim in one.verify(model))
    (lamp,) = [one for one in found.values() if one.label == "lamp"]
    said = "one plain colour has this box already, so masked pixels become black instead: set another fill with --fill"
    assert said in lamp.notes


def test_where_no_fill_works_the_message_says_what_can_be_asked():
    pixels = np.full((16, 16, 3), 250, np.uint8)

    def dull(batch):
        """One label that is always present, more so where the image is bright."""
        mean = batch.reshape(len(batch), -1).mean(axis=1, dtype=float) / 255
        return np.stack([0.6 + strength * mean, 0.1 * mean], axis=1)

    dull.returns, dull.labels = "multilabel", ["kite", "bird"]
    strength = 0.3
    with pytest.raises(
        FillError, match=r"an image without content has this label: ask for most .* --confidence 0\.9, or for another label"
    ):
        becausal.explain(pixels, dull)
    explanation = becausal.explain(pixels, dull, confidence=0.9)  # as the message says
    assert explanation.checks.sufficient
    assert explanation.origin.request.fills == ("grey",)
    strength = 0.0
    with pytest.raises(FillError, match=r"this label: ask for another label with --target, or see `becausal inspect`"):
        becausal.explain(pixels, dull)
    with pytest.raises(FillError, match="the confidence hardly depends on the pixels of this image: see `becausal inspect`"):
        becausal.explain(pixels, lambda batch: np.tile(np.float32([0.9, 0.1]), (len(batch), 1)))


def test_a_fill_is_refused_plainly_where_the_model_fails_or_is_interrupted_on_the_others():
    grey = np.random.default_rng(0).integers(100, 156, (16, 16, 3)).astype(np.uint8)
    for error in (RuntimeError, KeyboardInterrupt):

        def model(batch, error=error):
            mean = batch.reshape(len(batch), -1).mean(axis=1, dtype=float)
            if (mean < 1).any():
                raise error("black")
            return np.tile(np.float32([0.9, 0.1]), (len(batch), 1))

        model.labels = ["kite", "bird"]
        found = becausal.explain_many([grey, grey + 1], model, request=Request(fills=("grey",)))
        first = next(found)
        assert isinstance(first.error, FillError)
        assert str(first.error).endswith("use another fill")
        if error is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                next(found)
        else:
            assert isinstance(next(found).error, FillError)


@pytest.mark.parametrize("fill", ["black", ("black", "5", "mean")])
@pytest.mark.parametrize("method", ["causal", "dc-causal"])
@pytest.mark.parametrize("max_calls", [10, 11, 25, 90, 200])
def test_the_front_door_keeps_the_budget_and_counts_every_call(fill, method, max_calls):
    model = Model(needed=250.0)
    explanation = becausal.explain(picture(), model, method=method, fills=fill, max_calls=max_calls)
    assert len(model.rows) <= max_calls
    assert explanation.calls == len(model.rows)
    assert explanation.checks.sufficient
    assert explanation.stopped_by in ("budget", "finished")
    scores = [
        model.classify(np.where(explanation.visible[..., None], explanation.view, b)[None]) for b in explanation.backgrounds
    ]
    assert all(s[0].argmax() == 1 for s in scores)


def test_a_budget_that_not_even_the_opening_fits_in_is_refused_in_words():
    fills = [str(level) for level in range(9)]
    with pytest.raises(BecausalError):
        becausal.explain(picture(), Model(needed=250.0), fills=fills, max_calls=10)


@pytest.mark.parametrize("at", [2, 5, 12])
@pytest.mark.parametrize("method", ["causal", "dc-causal"])
def test_explain_returns_the_best_so_far_when_interrupted(at, method):
    model = Model(needed=150.0, batch_size=8, fails_at=(at,), error=KeyboardInterrupt)
    explanation = becausal.explain(picture(), model, method=method, fills="black")
    assert explanation.stopped_by == "interrupt"
    assert explanation.checks.sufficient
    mutant = np.where(explanation.visible[..., None], explanation.view, explanation.backgrounds[0])
    assert model.classify(mutant[None])[0].argmax() == 1
    assert explanation.calls <= 8 * (at + 1) + GRACE + 2


@pytest.mark.parametrize("at", [0, 1])
def test_an_interrupt_before_there_is_anything_is_an_interrupt(at):
    # 0: the first look at the image; 1: the opening of the search
    with pytest.raises((KeyboardInterrupt, BecausalError)):
        becausal.explain(picture(), Model(needed=150.0, fails_at=(at,), error=KeyboardInterrupt), fills="black")


def test_explain_pads_all_its_questions_to_the_fixed_sizes():
    model = Model(needed=150.0, fixed_sizes=(4, 16))
    becausal.explain(picture(), model, fills="black", max_calls=60)
    assert set(model.batches) <= {4, 16}


@pytest.mark.parametrize("width", [1, 3])
def test_explain_many_goes_on_after_a_picture_that_breaks_the_model(width):
    pictures = [picture(i) for i in range(4)]
    pictures[1][2, 3] = 99
    request = Request(fills=("black",), max_calls=80)
    found = list(becausal.explain_many(pictures, Model(needed=150.0, refuses=99), request=request, width=width))
    assert sum(isinstance(f, Failure) for f in found) == 1
    alone = [becausal.explain(p, Model(needed=150.0), fills="black", max_calls=80) for i, p in enumerate(pictures) if i != 1]
    sets = sorted(e.visible.tobytes() for e in found if not isinstance(e, Failure))
    assert sets == sorted(e.visible.tobytes() for e in alone)


@pytest.mark.parametrize("batch_size", [1, 7])
def test_explain_many_does_not_depend_on_width_or_batch_size(batch_size):
    pictures = [picture(i, side) for i, side in enumerate((8, 6, 8, 5, 6))]
    request = Request(fills=("black", "mean"), max_calls=150)

    def answers(batch, width):
        found = becausal.explain_many(pictures, Model(needed=70.0), request=request, batch_size=batch, width=width)
        return {e.origin.image_sha256: (e.visible.tobytes(), e.responsibility.tobytes(), e.calls) for e in found}

    assert answers(batch_size, 5) == answers(16, 1)


def test_progress_is_reported_in_order():
    seen = []
    explanation = becausal.explain(picture(), Model(needed=150.0), fills="black", max_calls=100, progress=seen.append)
    assert all(a.calls <= b.calls for a, b in pairwise(seen))
    assert all(a.size >= b.size for a, b in pairwise(seen))
    assert seen[-1].calls <= explanation.calls
    assert {s.stage for s in seen} <= {"search", "extract", "minimise", "verify"}
    assert seen[0].max_calls == 100


def test_a_search_that_needs_no_call_is_done_at_once():
    def silent():
        return Finding(np.zeros(GRID))
        yield

    model = Model()
    outcomes = list(Engine(model).run_many([(case(VALUES), silent()), (case(VALUES), silent())], width=2))
    assert [o.index for o in outcomes] == [0, 1]
    assert not model.rows
    assert replace(outcomes[0].stats, seconds=0.0).calls == 0


class Turns(Model):
    """Another class from some batch size on."""

    size = 0

    def ask(self, staged, which, visible):
        scores = super().ask(staged, which, visible)
        return scores[:, ::-1].copy() if len(visible) >= self.size else scores


@pytest.mark.parametrize("size", [2, 4, 9, 16])
def test_a_label_that_depends_on_the_size_of_the_batch_is_refused(size):
    model = Turns(needed=1500.0)
    model.size = size
    with pytest.raises(BecausalError, match=r"depends on the batch|in two ways|two different answers"):
        becausal.explain(picture(side=24), model, fills="black")


@pytest.mark.parametrize("size", [17, 30])
def test_answers_of_the_largest_batches_are_compared_too(size):
    model = Turns(needed=1500.0, batch_size=32)
    model.size = size
    found = becausal.explain(picture(side=24), model, fills="black")
    assert max(model.batches) >= size
    assert [note for note in found.notes if "depend on the batch" in note]
    assert found.checks.minimal_grain is None


def test_answers_that_are_random_now_and_then_are_mostly_noticed():
    """Three of a hundred: sixteen sets are evaluated twice, and each of the two answers may be a wrong one."""

    class Errs(Model):
        rng = np.random.default_rng(0)

        def ask(self, staged, which, visible):
            scores = super().ask(staged, which, visible)
            return np.where(self.rng.random((len(scores), 1)) < 0.03, scores[:, ::-1], scores)

    noticed = 0
    for seed in range(20):
        try:
            found = becausal.explain(picture(seed), Errs(needed=150.0), fills="black")
            noticed += any("batch" in note for note in found.notes)
        except BecausalError:
            noticed += 1
    assert noticed >= 10
