"""What speaks against the label: it is measured, every patch of it matters, and none where nothing is gained."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import becausal
from becausal.core.contracts import Answers, Done, Question, Stop, step
from becausal.core.patches import superpixels
from becausal.core.problem import Problem
from becausal.core.targets import Target
from becausal.search.against import LEAST_GAIN, PATCHES, ROOM, STEPS, check_against, find_against

SIDE = 40
seeds = st.integers(0, 10**6)


def view_of(seed=0, side=SIDE):
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3)).astype(np.uint8)


def problem_of(view):
    return Problem(view, (np.zeros_like(view),), Target(0))


def nothing(model):
    """A core without pixels."""
    return np.zeros(model.view.shape[:2], bool)


def test_the_core_is_never_part_of_it():
    found = 0
    for seed in range(12):
        model = Patchwork(seed)
        core = model.patch == int(np.argmin(model.weights))  # what speaks most against the label
        against, log = answer(find_against(problem_of(model.view), core, model.whole), model)
        assert all(visible[core].all() for question in log for visible in question)
        if against is not None:
            found += 1
            assert not (against.visible & core).any()
            assert answer(check_against(against.visible, problem_of(model.view), core, model.whole, 1e-9), model)[0][2] == ""
    assert found


def answer(search, confidence_of, *, limit=None):
    """The result of a search, and the questions. confidence_of: of a set, (*grid,). limit: on the waves."""
    log, state = [], step(search, None)
    while not isinstance(state, Done):
        question = Question.of(state)
        log.append(question)
        confidence = np.array([confidence_of(visible) for visible in question.visible])
        answers = Answers(confidence >= 0.5, confidence - 0.5, confidence, len(log))
        state = step(search, answers if limit is None or len(log) <= limit else Stop("budget"))
    return state.result, log


class Patchwork:
    """The confidence is a sum over the shown patches, squeezed to 0..1; with pairs of patches that act together."""

    def __init__(self, seed, share=0.3):
        rng = np.random.default_rng(seed)
        self.view = view_of(seed)
        self.patch = superpixels(self.view, PATCHES)
        count = int(self.patch.max()) + 1
        self.weights = rng.exponential(size=count) * np.where(rng.random(count) < share, -1.0, 1.0)
        self.pairs = [(*rng.choice(count, 2, replace=False), rng.normal()) for _ in range(5)]

    def __call__(self, visible):
        shown = np.bincount(self.patch.ravel(), visible.ravel()) / np.bincount(self.patch.ravel())
        total = shown @ self.weights + sum(shown[a] * shown[b] * weight for a, b, weight in self.pairs)
        return float(1 / (1 + np.exp(-(total - self.weights.sum()) / 4)))

    def without(self, numbers):
        return self(~np.isin(self.patch, list(numbers)))

    @property
    def whole(self):
        return self.without([])


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_what_is_said_is_measured_and_every_patch_matters(seed):
    model = Patchwork(seed)
    found, log = answer(find_against(problem_of(model.view), nothing(model), model.whole), model)
    if found is None:
        return
    numbers = np.unique(model.patch[found.visible])
    assert np.array_equal(found.visible, np.isin(model.patch, numbers))
    assert (len(numbers), found.gain) == (found.patches, found.confidence - model.whole)
    assert 1 <= found.patches <= STEPS
    assert found.confidence == model(~found.visible)
    assert found.gain >= ROOM
    for number in numbers:
        assert found.confidence - model.without(set(numbers) - {number}) >= LEAST_GAIN * found.gain
    assert log[-1].exact  # of the model itself, not of a twin
    assert any(np.array_equal(visible, ~found.visible) for visible in log[-1].visible)
    asked = {visible.tobytes() for question in log[:-1] for visible in question.visible}
    for visible in log[-1].visible:
        assert visible.all() or visible.tobytes() in asked  # known: without a twin it costs nothing
    masked, count, fault = answer(
        check_against(found.visible, problem_of(model.view), nothing(model), model.whole, 1e-9), model
    )[0]
    assert (masked, count, fault) == (found.confidence, found.patches, "")


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_the_best_single_patch_is_never_better(seed):
    """By brute force; and a patch is found wherever one of them alone gains enough."""
    model = Patchwork(seed)
    model.pairs = []
    best = max(model.without([number]) for number in range(len(model.weights)))
    found, _ = answer(find_against(problem_of(model.view), nothing(model), model.whole), model)
    if best - model.whole >= ROOM:
        assert found is not None
        assert found.confidence >= best - LEAST_GAIN * (best - model.whole)
        assert (model.weights[np.unique(model.patch[found.visible])] < 0).all()  # where effects add up, no other patch helps
    elif best - model.whole < LEAST_GAIN * ROOM:
        assert found is None


def test_none_where_nothing_is_gained_or_there_is_no_room_or_no_confidence():
    model = Patchwork(1, share=0.0)
    model.pairs = []
    assert answer(find_against(problem_of(model.view), nothing(model), model.whole), model)[0] is None
    for confidence in (1.0, 0.985, float("nan")):
        found, log = answer(find_against(problem_of(model.view), nothing(model), confidence), model)
        assert (found, log) == (None, [])


@pytest.mark.parametrize("limit", range(4))
def test_cut_short_nothing_is_claimed(limit):
    model = Patchwork(3)
    whole, log = answer(find_against(problem_of(model.view), nothing(model), model.whole), model)
    assert whole is not None
    assert limit < len(log)
    assert answer(find_against(problem_of(model.view), nothing(model), model.whole), model, limit=limit)[0] is None


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            lambda visible, patch: visible & (np.arange(visible.size).reshape(visible.shape) % 2 == 0),
            ", not of whole patches",
        ),
        (lambda visible, patch: np.zeros_like(visible), ", not of whole patches"),
        (lambda visible, patch: visible | (patch == np.setdiff1d(patch, patch[visible])[0]), ", and less would do"),
    ],
)
def test_a_changed_set_has_a_fault(change, fault):
    model = Patchwork(3)
    model.pairs = []
    found, _ = answer(find_against(problem_of(model.view), nothing(model), model.whole), model)
    other = change(found.visible, model.patch)
    assert answer(check_against(other, problem_of(model.view), nothing(model), model.whole, 1e-9), model)[0][2] == fault


# Through the front door


def picture():
    made = np.random.default_rng(0).integers(0, 60, (SIDE, SIDE, 3)).astype(np.uint8)
    made[4:16, 4:16] = (200, 30, 30)
    made[26:38, 26:38] = (30, 200, 30)
    return made


def inhibited(batch):
    """Red speaks for the label, and green against it."""
    red = (np.asarray(batch) == (200, 30, 30)).all(axis=-1).mean(axis=(1, 2)) * SIDE**2 / 144
    green = (np.asarray(batch) == (30, 200, 30)).all(axis=-1).mean(axis=(1, 2)) * SIDE**2 / 144
    yes = 1 / (1 + np.exp(-(6 * red - 3 * green - 2)))
    return np.stack([1 - yes, yes], axis=1)


def test_a_known_inhibitor_is_found_measured_and_verified(tmp_path, without_figures):
    explanation = becausal.explain(picture(), inhibited)
    found = explanation.against
    green = (picture() == (30, 200, 30)).all(axis=-1)
    assert (found.visible & green).sum() > 0.8 * green.sum()
    assert not (found.visible & explanation.levels[0].visible).any()
    mutant = np.where(found.visible[..., None], explanation.backgrounds[0], explanation.view)
    assert found.confidence == pytest.approx(float(inhibited(mutant[None])[0, 1]), abs=1e-6)
    assert found.gain == pytest.approx(found.confidence - explanation.confidence, abs=1e-6)
    why = explanation.why(*np.argwhere(found.visible & ~explanation.visible)[0])
    assert "speaks against" in why.text
    claims = explanation.verify(inhibited)
    assert claims.holds
    (claim,) = [one for one in claims if "against" in one.name]
    assert claim.stated == claim.found == f"{found.confidence:.4f}"
    loaded = becausal.Explanation.load(explanation.save(tmp_path / "it"))
    assert loaded.against.record() == found.record()
    assert np.array_equal(loaded.against.visible, found.visible)
    assert loaded.verify(inhibited).holds


def test_verify_forgives_rounding_of_what_is_gained():
    """Another backend has other last digits."""
    explanation = becausal.explain(picture(), inhibited)

    def rounded(batch):
        return np.asarray(inhibited(batch)) + np.array([-2e-5, 2e-5]) * (np.asarray(batch).sum(axis=(1, 2, 3)) % 2)[:, None]

    assert explanation.against is not None
    assert not [claim for claim in explanation.verify(rounded) if not claim.holds]
