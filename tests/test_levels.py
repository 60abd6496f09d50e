"""Levels: nested sets that keep the label, half and most of its confidence, each against its definition by brute force."""

import json
import shutil
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import becausal
from becausal import Request
from becausal.core.components import count_components
from becausal.core.contracts import Answers, Finding, Question, Stop
from becausal.core.errors import OutputError
from becausal.core.metrics import iou
from becausal.core.problem import Problem
from becausal.core.regions import cells
from becausal.core.request import SHARES
from becausal.core.searches import Done, step
from becausal.core.targets import Target, quantise_margin, with_floor
from becausal.methods import make_explainer
from becausal.methods.causal.ordering import MapEffects, draw_map, measure_effects, order_map, rank_patches, rising_fit
from becausal.search import drive as driving
from becausal.search.descent.survey import Survey, balanced_halves
from becausal.search.drive import BudgetedRun, Terms
from becausal.search.minimise import settle
from becausal.search.pipeline import combine, run_pipeline
from becausal.search.removals import Neighbours
from becausal.testing import MaskClassifier

seeds = st.integers(0, 2**32 - 1)
#: Grids and grains: the first ones have few cells and no survey, the last ones have one.
PLACES = [((3, 3), 1), ((12,), 1), ((7, 5), 2), ((3, 4, 2), 1), ((10, 10), 1), ((90,), 1), ((21, 18), 2), ((5, 4, 6), 1)]


class Weighted:
    """The confidence of "yes" is a weighted sum of the visible pixels, 0.05 for none and 0.95 for all.

    Three other labels share the rest, so that "yes" is the top label from a confidence of 0.29 on. kind "positive": showing
    more never harms. "signed": some pixels speak against the label. "wild": the confidence of a set tells nothing of others.
    """

    def __init__(self, grid, seed, kind="positive"):
        rng = np.random.default_rng(seed)
        weights = rng.exponential(size=int(np.prod(grid))) ** 2
        if kind == "signed":
            weights = weights * rng.choice([-0.7, 1.0], weights.size)
            weights += max(0.0, 0.3 * np.abs(weights).mean() - weights.mean())
        self.grid, self.kind = grid, kind
        self.weights = weights / weights.sum()
        self.salt = rng.integers(1, 2**31, weights.size)
        self.asked = 0

    def __call__(self, rows):
        """(n, 4) scores; those of "yes" come second."""
        flat = rows.reshape(len(rows), self.weights.size)
        yes = np.clip(0.05 + 0.9 * (flat @ self.weights), 0.0, 1.0)
        if self.kind == "wild":
            mixed = flat @ self.salt * 2654435761 % 1000003 / 1000003
            yes = np.where(flat.all(axis=1), 0.95, np.where(flat.any(axis=1), mixed, 0.05))
        return np.stack([0.4 * (1 - yes), yes, 0.3 * (1 - yes), 0.3 * (1 - yes)], axis=1)

    def scores(self, rows):
        return self(rows).astype(np.float32)

    @property
    def whole(self):
        return float(self.scores(np.ones((1, *self.grid), bool))[0, 1])

    def keeps(self, visible, share):
        """The definition: "yes" is the top label, with at least this share of its confidence in the whole view."""
        no, yes, maybe, other = self.scores(visible[None])[0]
        return bool(yes > max(no, maybe, other) and float(yes) >= share * self.whole)

    def answers(self, rows):
        self.asked += len(rows)
        found = Target(1).judge(self.scores(rows))
        return Answers(found.holds, quantise_margin(found.margin, found.holds), found.confidence, self.asked)


def pipeline(model, method="causal", run=None, **options):
    """The whole search for a model, as a generator."""
    request = Request(method=method, **options)
    explainer = request.within(model.grid).configure(make_explainer(method, request.options))
    blank = np.zeros((*model.grid, 3), np.uint8)
    shares = request.shares
    floors = tuple(share * model.whole for share in shares) if len(shares) > 1 else ()
    target = Target(1, floor=(request.confidence or 0.0) * model.whole)
    problem = Problem(blank, (blank,), target, floors=floors)
    return run_pipeline(problem, explainer, request, run or BudgetedRun(model.grid, floor=floors[-1] if floors else 0.0))


def drive(search, model, stop_at=None, known=0.0):
    """The result of a search; at the wave `stop_at` it is stopped, with a share of the wave's answers, and from then on."""
    state, count = step(search, None), 0
    while not isinstance(state, Done):
        if stop_at is None or count < stop_at:
            message = model.answers(np.asarray(state))
        else:
            part = int(known * len(state)) if count == stop_at else 0
            message = Stop("interrupt", model.answers(np.asarray(state)[:part]))
        count += 1
        state = step(search, message)
    return state.result, count


def check_nested(levels, model):
    """Nested, and each sufficient at its share."""
    assert all(not (inner.visible & ~outer.visible).any() for inner, outer in pairwise(levels))
    for level in levels:
        assert model.keeps(level.visible, level.share), level.name
        assert level.checks.sufficient


def check_needed(levels, model, grain=None):
    """Every cell that a level adds to the one inside it is needed; this is what is claimed, and the cells are counted.

    grain: what has to be claimed; None for whatever is.
    """
    inner = np.zeros(model.grid, bool)
    for level in levels:
        assert grain is None or level.checks.minimal_grain == grain
        number = cells(model.grid, level.checks.minimal_grain)
        added = level.visible & ~inner
        left = np.unique(number[added])
        assert level.checks.cells == len(left)
        for c in left:
            assert not model.keeps(level.visible & ~(added & (number == c)), level.share), level.name
        inner = level.visible


def check_order(saliency, levels):
    """The pixels of the last level come before those outside of it."""
    assert np.isfinite(saliency).all()
    last = levels[-1].visible
    assert last.all() or saliency[last].min() > saliency[~last].max()


# The definition


@given(seeds, st.sampled_from(PLACES), st.sampled_from(["positive", "signed", "wild"]))
@settings(max_examples=40, deadline=None)
def test_levels_are_nested_and_every_cell_of_each_is_needed(seed, place, kind):
    grid, grain = place
    model = Weighted(grid, seed, kind)
    found, _ = drive(pipeline(model, grain=grain, seed=seed, options={"effort": "none"}), model)
    assert [(level.name, level.share) for level in found.levels] == [("label", 0.0), ("half", 0.5), ("most", 0.9)]
    check_nested(found.levels, model)
    check_needed(found.levels, model, grain)
    check_order(found.saliency, found.levels)
    assert found.visible is found.levels[-1].visible
    assert found.checks is found.levels[-1].checks
    for level in found.levels:
        assert level.checks.necessary == (not model.keeps(~level.visible, level.share))
        assert level.checks.confidence == model.scores(level.visible[None])[0, 1]


@given(seeds, st.sampled_from(PLACES[4:]), st.sampled_from(["positive", "signed", "wild"]), st.integers(0, 250))
@settings(max_examples=25, deadline=None)
def test_what_is_claimed_past_the_effort_limit_is_about_larger_cells(seed, place, kind, effort):
    grid, grain = place
    model = Weighted(grid, seed, kind)
    found, _ = drive(pipeline(model, grain=grain, seed=seed, options={"effort": str(effort)}), model)
    check_nested(found.levels, model)
    check_needed(found.levels, model)
    assert all(level.checks.minimal_grain % grain == 0 for level in found.levels)


@given(seeds, st.sampled_from([(2, 4), (3, 3), (9,), (2, 2, 2)]))
@settings(max_examples=40, deadline=None)
def test_where_showing_more_never_harms_no_subset_is_enough(seed, grid):
    """All subsets of the innermost set, and of what each further one adds."""
    model = Weighted(grid, seed)
    found, _ = drive(pipeline(model, seed=seed), model)
    inner = np.zeros(grid, bool)
    for level in found.levels:
        added = np.argwhere(level.visible & ~inner)
        for count in range(len(added)):
            for kept in combinations(added, count):
                less = inner.copy()
                less[tuple(np.array(kept, int).reshape(-1, len(grid)).T)] = True
                assert not model.keeps(less, level.share)
        inner = level.visible


@pytest.mark.parametrize(
    ("options", "share", "name"),
    [
        ({"smallest": True}, 0.0, "label"),
        ({"confidence": 0.7}, 0.7, "70%"),
        ({"confidence": 0.5}, 0.5, "half"),
        ({"several": 2}, 0.0, "label"),
        ({"contrast": True}, 0.0, "label"),
    ],
)
def test_one_level_where_one_set_is_asked_for(options, share, name):
    model = Weighted((10, 10), 3)
    explanation = explain(model, **options)
    (level,) = explanation.levels
    assert (level.name, level.share) == (name, share)
    assert level.visible is explanation.visible
    assert level.checks is explanation.checks
    assert model.keeps(level.visible, share)
    assert Request(**options).shares == (share,)


def test_a_model_that_returns_labels_has_one_level():
    model = Weighted((10, 10), 3)
    labels = MaskClassifier(lambda rows: model(rows).argmax(axis=1))
    explanation = becausal.explain(image((10, 10)), labels)
    (level,) = explanation.levels
    assert (level.name, level.share) == ("label", 0.0)
    assert all(claim.holds for claim in explanation.verify(labels))


def test_smallest_finds_smaller_sets_in_smaller_cells():
    model = Weighted((56, 56), 1)
    plain, smallest = explain(model, max_calls=400), explain(model, max_calls=400, smallest=True)
    assert (plain.origin.grain, smallest.origin.grain) == (2, 1)
    assert smallest.pixels < plain.pixels


# Through the front door


def image(grid):
    return np.full((*grid, 3), 90, np.uint8) if len(grid) == 2 else np.ones(grid, np.float32)


def explain(model, batch_size=None, **options):
    return becausal.explain(image(model.grid), classifier_of(model), batch_size=batch_size, **options)


def classifier_of(model):
    return MaskClassifier(model, labels=("no", "yes", "maybe", "other"))


@cache
def explained():
    model = Weighted((18, 18), 5)
    return model, explain(model, seed=2)


@pytest.mark.parametrize("method", ["causal", "rise", "dc-causal"])
@pytest.mark.parametrize("kind", ["positive", "signed"])
def test_every_budget_gives_nested_sufficient_levels(method, kind):
    model = Weighted((16, 16), 8, kind)
    for max_calls in (*range(10, 60, 7), *range(60, 400, 55)):
        classifier = classifier_of(model)
        explanation = becausal.explain(image((16, 16)), classifier, method=method, max_calls=max_calls, grain=2)
        assert len(classifier.asked) == explanation.calls <= max_calls
        check_nested(explanation.levels, model)
        if explanation.checks.minimal_grain is not None and explanation.levels[0].checks.minimal_grain is not None:
            assert explanation.size < 1
        elif not explanation.size < 1:
            assert explanation.checks.minimal_grain is None  # the whole view is not called minimal for lack of questions


@pytest.mark.parametrize("known", [0.0, 0.5])
@pytest.mark.parametrize(
    "options",
    [
        {"method": "causal"},
        {"method": "causal", "seeds": 2},
        {"method": "rise", "options": {"masks": 20}},
        {"method": "rise", "options": {"masks": 20}, "grain": 2},
    ],
)
@pytest.mark.parametrize("kind", ["signed", "wild"])
def test_stopped_at_any_question_the_levels_are_nested_and_sufficient(kind, options, known):
    grid = (9, 9) if options == {"method": "causal"} else (6, 5)
    model = Weighted(grid, 4, kind)
    whole, count = drive(pipeline(model, **options), model)
    sizes = []
    for stop_at in range(1, count + 1):
        found, _ = drive(pipeline(model, **options), model, stop_at, known)
        check_nested(found.levels, model)
        assert len(found.levels) == 3
        if any(level.checks.minimal_grain for level in found.levels):
            assert found.levels[0].checks.minimal_grain  # no claim about cells around a set that may have too many
        sizes.append(found.visible.sum())
    assert sizes[-1] == whole.visible.sum() < sizes[0]


def test_the_answer_does_not_depend_on_the_batch_size_or_the_width():
    model, one = explained()

    def facts(found):
        return [level.visible.tobytes() for level in found.levels], found.responsibility.tobytes(), found.calls

    assert facts(explain(model, seed=2, batch_size=1)) == facts(one)
    assert facts(explain(model, seed=2, batch_size=7)) == facts(one)
    images = [image((18, 18))] * 3
    for width in (1, 3):
        for found in becausal.explain_many(images, classifier_of(model), request=Request(seed=2), width=width):
            assert facts(found) == facts(one)
    assert facts(explain(model, seed=3)) != facts(one)


def test_why_proves_a_pixel_at_the_smallest_level_that_has_it():
    model, explanation = explained()
    inner, texts = np.zeros((18, 18), bool), []
    for level in explanation.levels:
        for place in np.argwhere(level.visible & ~inner)[:5]:
            why = explanation.why(*place)
            assert why.part
            assert why.cell[tuple(place)]
            assert not (why.cell & (inner | ~level.visible)).any()
            assert not model.keeps(level.visible & ~why.cell, level.share)
            assert (why.shown == explanation.mutant(level.visible)).all()
            assert (why.without == explanation.mutant(level.visible & ~why.cell)).all()
            texts.append((level.name, why.text))
        inner = level.visible
    assert all("the label is yes; without it" in text for name, text in texts if name == "label")
    assert all("keeps 50% of its confidence" in text for name, text in texts if name == "half")
    assert all("keeps 90% of its confidence" in text for name, text in texts if name == "most")
    assert {name for name, _ in texts} == {"label", "half", "most"}
    assert not explanation.why(*np.argwhere(~explanation.visible)[0]).part


# Other targets


def shown_of(batch, view):
    return (batch == view).all(axis=-1)


def colours(grid, seed=0):
    return np.random.default_rng(seed).integers(30, 220, (*grid, 3)).astype(np.uint8)


def by_hand(explanation, model, rule):
    """Levels against the definition, mutant by mutant, under every fill. rule: whether the target holds, by (n, classes)."""

    def keeps(visible, share):
        mutants = np.stack([np.where(visible[..., None], explanation.view, fill) for fill in explanation.backgrounds])
        scores = np.asarray(model(mutants), np.float32)
        enough = scores[:, explanation.label_id].astype(float) >= share * explanation.confidence
        return bool((rule(scores) & enough).all())

    grid, inner = explanation.visible.shape, np.zeros(explanation.visible.shape, bool)
    assert [level.share for level in explanation.levels] == list(SHARES)
    for level in explanation.levels:
        assert not (inner & ~level.visible).any()
        assert keeps(level.visible, level.share)
        number, added = cells(grid, level.checks.minimal_grain), level.visible & ~inner
        for c in np.unique(number[added]):
            assert not keeps(level.visible & ~(added & (number == c)), level.share)
        inner = level.visible
    check_order(explanation.responsibility, explanation.levels)
    assert all(claim.holds for claim in explanation.verify(model))


def four(batch):
    """Four classes, each with weights of its own; those that gain most from the pixels are last without them."""
    weights = np.random.default_rng(3).exponential(size=(81, 4)) ** 2
    weights *= np.array([3.2, 2.6, 2.0, 0.5]) / weights.sum(axis=0)
    logits = shown_of(batch, colours((9, 9))).reshape(len(batch), -1) @ weights + np.array([0.0, 0.2, 0.4, 0.6])
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def test_levels_of_a_label_in_the_top_k_and_against_another():
    view = colours((9, 9))
    explanation = becausal.explain(view, four, target=1, against=2, fill="black")
    by_hand(explanation, four, lambda scores: scores[:, 1] > scores[:, 2])
    explanation = becausal.explain(view, four, target=1, top=2, fill="black")
    by_hand(explanation, four, lambda scores: (scores > scores[:, [1]]).sum(axis=1) < 2)


def test_levels_hold_under_every_fill():
    view = colours((10, 8))
    weights = np.random.default_rng(1).exponential(size=80) ** 2

    def model(batch):
        share = shown_of(batch, view).reshape(len(batch), -1) @ (weights / weights.sum())
        dark = (batch == 0).all(axis=-1).mean(axis=(1, 2))
        yes = np.clip(0.02 + 0.95 * share - 0.1 * dark, 0, 1)
        return np.stack([1 - yes, yes], axis=1)

    explanation = becausal.explain(view, model, fill=("white", "black"))
    assert len(explanation.backgrounds) == 2
    by_hand(explanation, model, lambda scores: scores[:, 1] > scores[:, 0])


def test_levels_of_independent_labels():
    view = colours((8, 10))
    weights = np.random.default_rng(2).exponential(size=(80, 2)) ** 2

    def model(batch):
        return np.clip(shown_of(batch, view).reshape(len(batch), -1) @ (weights / weights.sum(axis=0)) * 0.97, 0, 1)

    model.output = "multilabel"
    for label in (0, 1):
        explanation = becausal.explain(view, model, target=label, fill="black")
        assert explanation.target.threshold == 0.5
        by_hand(explanation, model, lambda scores, label=label: scores[:, label] >= 0.5)


# Methods that make a map


@pytest.mark.parametrize("kind", ["positive", "signed"])
def test_a_map_gives_nested_prefixes_of_its_ranking(kind):
    model = Weighted((14, 14), 6, kind)
    explanation = explain(model, method="rise", options={"masks": 150})
    check_nested(explanation.levels, model)
    assert [level.checks.minimal_grain for level in explanation.levels] == [None] * 3
    for level in explanation.levels:
        assert explanation.responsibility[level.visible].min() >= explanation.responsibility[~level.visible].max()
    sizes = [level.pixels for level in explanation.levels]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    smallest = explain(model, method="rise", options={"masks": 150}, smallest=True)
    assert np.array_equal(smallest.visible, explanation.levels[0].visible)


@pytest.mark.parametrize("kind", ["positive", "signed"])
def test_a_grain_minimises_every_level_of_a_map(kind):
    model = Weighted((14, 14), 6, kind)
    explanation = explain(model, method="rise", options={"masks": 150}, grain=2)
    check_nested(explanation.levels, model)
    check_needed(explanation.levels, model, 2)
    assert all(claim.holds for claim in explanation.verify(classifier_of(model)))


@dataclass(frozen=True)
class OneSet:
    """A method that knows nothing of levels; it finds one set, or is interrupted before it does."""

    is_interrupted: bool = False
    name: ClassVar[str] = "one-set"
    needs: ClassVar[str] = "labels"

    def search(self, problem, rng):
        visible = np.ones(problem.grid, bool)
        visible[0] = False
        yield visible[None]
        if self.is_interrupted:
            raise KeyboardInterrupt
        return Finding(visible.astype(float), (visible,))


def test_a_method_that_finds_one_set_gets_levels_by_its_map():
    model = Weighted((9, 9), 4)
    explanation = explain(model, method=OneSet())
    check_nested(explanation.levels, model)
    assert len(explanation.levels) == 3
    assert explain(model, method=OneSet(), smallest=True).pixels == 72


@pytest.mark.parametrize("is_label", [False, True])
def test_a_method_that_is_interrupted_leaves_one_level(is_label):
    model = Weighted((9, 9), 4)
    model.weights[:9] = 0.0
    classifier = MaskClassifier(lambda rows: model(rows).argmax(axis=1)) if is_label else classifier_of(model)
    explanation = becausal.explain(image((9, 9)), classifier, method=OneSet(is_interrupted=True))
    (level,) = explanation.levels
    assert (explanation.stopped_by, level.share) == ("interrupt", 0.0 if is_label else 0.9)
    assert explanation.pixels == 72
    assert all(claim.holds for claim in explanation.verify(classifier))


def test_the_last_checks_of_all_levels_are_one_batch():
    stages = []
    explain(Weighted((18, 18), 5), seed=2, progress=lambda status: stages.append(status.stage))
    assert stages.count("verify") == 3  # the checks, and the explanation once more: alone, and in company


# Several seeds


def test_several_seeds_average_the_maps_and_keep_the_most_typical_set():
    model = Weighted((12, 12), 9)
    single = [explain(model, seed=4 + i) for i in range(3)]
    classifier = classifier_of(model)
    found = becausal.explain(image((12, 12)), classifier, seed=4, seeds=3)
    assert found.responsibility == pytest.approx(np.mean([one.responsibility for one in single], axis=0))
    overlap = [sum(iou(one.visible, other.visible) for other in single) for one in single]
    typical = single[int(np.argmax(overlap))]
    assert [level.visible.tolist() for level in found.levels] == [level.visible.tolist() for level in typical.levels]
    mean = np.mean([iou(a.visible, b.visible) for a, b in combinations(single, 2)])
    assert f"3 searches: the mean overlap (IoU) of their explanations is {mean:.2f}" in found.notes
    assert max(one.calls for one in single) < found.calls == len(classifier.asked) <= sum(one.calls for one in single)
    check_nested(found.levels, model)
    again = becausal.explain(image((12, 12)), classifier_of(model), seed=4, seeds=3, batch_size=5)
    assert again.responsibility.tobytes() == found.responsibility.tobytes()
    assert (again.visible.tobytes(), again.calls) == (found.visible.tobytes(), found.calls)


@pytest.mark.parametrize("max_calls", [10, 40, 150, 333])
@pytest.mark.parametrize("method", ["causal", "rise"])
def test_several_seeds_share_a_budget(method, max_calls):
    model = Weighted((12, 12), 9)
    found = explain(model, seeds=3, max_calls=max_calls, method=method)
    assert found.calls <= max_calls
    check_nested(found.levels, model)


def test_a_mean_of_maps_has_sets_where_one_search_has():
    lone = Finding(np.array([0.0, 2.0]), (np.array([False, True]),), (1,))
    none = Finding(np.array([4.0, 0.0]), notes=("a note",))
    both = combine([none, lone])
    assert both.saliency.tolist() == [0.5, 0.5]
    assert both.sets == lone.sets
    assert combine([none, none]).sets == ()
    assert combine([none, none]).notes == ("a note",)
    assert np.isfinite(combine([replace(none, saliency=np.zeros(2)), lone]).saliency).all()


# Verified, saved and read back


def broken(explanation, model):
    return {claim.name for claim in explanation.verify(classifier_of(model)) if not claim.holds}


def test_verify_asks_every_claim_of_every_level():
    model, explanation = explained()
    claims = explanation.verify(classifier_of(model))
    names = ("sufficient", "minimal", "necessary", "confidence")
    assert [c.name for c in claims] == [f"{of}{name}" for of in ("level label: ", "level half: ", "") for name in names]
    assert all(claim.holds for claim in claims)
    label, half, most = explanation.levels

    def with_levels(*levels):
        return replace(explanation, levels=levels)

    gone = np.argwhere(label.visible)[0]
    assert "level label: sufficient" in broken(
        with_levels(replace(label, visible=cut(label.visible, gone)), half, most), model
    )
    extra = np.argwhere(most.visible & ~half.visible)[0]
    assert "level half: minimal" in broken(with_levels(label, replace(half, visible=half.visible | at(extra)), most), model)
    boast = replace(half, checks=replace(half.checks, confidence=half.checks.confidence + 0.01))
    assert broken(with_levels(label, boast, most), model) == {"level half: confidence"}
    assert "level half: sufficient" in broken(with_levels(label, replace(half, share=0.95), most), model)
    less = replace(explanation, visible=cut(most.visible, extra))
    assert "sufficient" in broken(less, model)
    assert np.array_equal(less.level.visible, less.visible)  # the last level is the explanation, whatever is replaced


def at(place):
    one = np.zeros((18, 18), bool)
    one[tuple(place)] = True
    return one


def cut(visible, place):
    return visible & ~at(place)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return explained()[1].save(tmp_path_factory.mktemp("levels") / "it")


@pytest.fixture
def saved(original, tmp_path):
    return shutil.copytree(original, tmp_path / "it")


def rewrite(folder, change_record=None, change_arrays=None):
    record = json.loads((folder / "explanation.json").read_text())
    with np.load(folder / "arrays.npz") as file:
        arrays = dict(file)
    if change_record:
        change_record(record)
    if change_arrays:
        change_arrays(arrays)
    (folder / "explanation.json").write_text(json.dumps(record))
    np.savez_compressed(folder / "arrays.npz", **arrays)


def test_saved_levels_are_read_back(saved):
    _, explanation = explained()
    loaded = becausal.Explanation.load(saved)
    for one, other in zip(loaded.levels, explanation.levels, strict=True):
        assert (one.name, one.share, one.checks) == (other.name, other.share, other.checks)
        assert np.array_equal(one.visible, other.visible)
    record = json.loads((saved / "explanation.json").read_text())
    assert record["level"] == "most"
    assert [level["name"] for level in record["levels"]] == ["label", "half", "most"]
    assert [level["pixels"] for level in record["levels"]] == [level.pixels for level in explanation.levels]


def swap_sets(arrays):
    arrays["levels"] = arrays["levels"][[1, 0, 2]]


def reverse_sets(arrays):
    arrays["levels"] = arrays["levels"][::-1]


def drop_set(arrays):
    arrays["levels"] = arrays["levels"][1:]


def drop_sets(arrays):
    del arrays["levels"]


def crop_sets(arrays):
    arrays["levels"] = arrays["levels"][:, :17]


def flatten_sets(arrays):
    arrays["levels"] = arrays["levels"][0]


def widen_set(arrays):
    arrays["levels"][0] = True


def cast_sets(arrays):
    arrays["levels"] = arrays["levels"].astype(np.uint8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swap_sets, "the levels are not nested"),
        (reverse_sets, "the last of the levels is not the explanation"),
        (drop_set, "levels has 3 entries, and the array levels 2 sets"),
        (drop_sets, "levels has 3 entries, and the array levels 0 sets"),
        (crop_sets, "the array levels has shape"),
        (flatten_sets, "the array levels has shape"),
        (widen_set, "the levels are not nested"),
        (cast_sets, "the array levels has type uint8"),
    ],
)
def test_levels_that_do_not_fit_are_refused(saved, change, message):
    rewrite(saved, change_arrays=change)
    with pytest.raises(OutputError, match=message) as caught:
        becausal.Explanation.load(saved)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("share", 1.5, r"levels\[0\].share is 1.5"),
        ("share", -0.1, r"levels\[0\].share is -0.1"),
        ("share", "half", r"levels\[0\].share"),
        ("share", None, r"levels\[0\].share"),
        ("share", float("nan"), r"levels\[0\].share"),
        ("minimal_grain", 0, r"levels\[0\].minimal_grain"),
        ("confidence", "high", r"levels\[0\].confidence"),
        ("sufficient", 1, r"levels\[0\].sufficient"),
        ("cells", -1.5, r"levels\[0\].cells"),
    ],
)
def test_records_of_levels_that_make_no_sense_are_refused(saved, key, value, message):
    rewrite(saved, lambda record: record["levels"][0].__setitem__(key, value))
    with pytest.raises(OutputError, match=message):
        becausal.Explanation.load(saved)


def swap_shares(record):
    record["levels"][0]["share"], record["levels"][2]["share"] = 0.9, 0.0


def boast_of_level(record):
    record["levels"][1]["confidence"] = 0.123


def boast(record):
    record["checks"]["confidence"] = 0.123


def empty_level(arrays):
    arrays["levels"][0] = False


def fill_level(arrays):
    arrays["levels"][1] = arrays["levels"][2]


@pytest.mark.parametrize(
    ("change_record", "change_arrays", "names"),
    [
        (swap_shares, None, {"level most: sufficient", "minimal"}),
        (boast_of_level, None, {"level half: confidence"}),
        (boast, None, {"confidence"}),
        (None, empty_level, {"level label: sufficient"}),
        (None, fill_level, {"level half: minimal"}),
    ],
)
def test_a_changed_level_that_can_be_read_fails_a_claim(saved, change_record, change_arrays, names):
    rewrite(saved, change_record, change_arrays)
    assert names <= broken(becausal.Explanation.load(saved), explained()[0])


def test_a_file_from_before_there_were_levels_still_loads(saved):
    model, _ = explained()
    smallest = explain(model, smallest=True)
    folder = smallest.save(saved.parent / "old")

    def strip(record):
        del record["levels"], record["level"]
        for key in ("smallest", "seeds"):
            del record["origin"]["request"][key]

    rewrite(folder, strip, drop_sets)
    loaded = becausal.Explanation.load(folder)
    (level,) = loaded.levels
    assert (level.name, level.share, level.checks) == ("label", 0.0, smallest.checks)
    assert level.visible is loaded.visible
    assert not broken(loaded, model)
    kept = explain(model, confidence=0.7).save(saved.parent / "kept")
    rewrite(kept, strip, drop_sets)
    loaded = becausal.Explanation.load(kept)
    assert [(level.name, level.share) for level in loaded.levels] == [("70%", 0.7)]
    assert not broken(loaded, model)


# The map


@given(seeds, st.sampled_from([(6, 7), (20,), (3, 4, 3)]), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_the_map_orders_the_pixels_by_level_and_then_by_their_own_values(seed, grid, count):
    rng = np.random.default_rng(seed)
    rest = rng.integers(0, 5, grid).astype(float)
    depth = rng.integers(0, count + 1, grid)
    levels = [depth > i for i in range(count)][::-1]
    found = order_map(rest, levels)
    keys = [(int(d), float(r)) for d, r in zip(depth.ravel(), rest.ravel(), strict=True)]
    values = found.ravel()
    for i, j in combinations(range(len(keys)), 2):
        assert (values[i] > values[j]) == (keys[i] > keys[j])
        assert (values[i] == values[j]) == (keys[i] == keys[j])
    assert found.max() == 1
    assert found.min() > 0


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
def test_the_nearest_rising_values_are_those_of_the_max_min_formula(values):
    """By definition: the highest, over all beginnings, of the lowest mean up to any end."""
    count = len(values)
    expected = [max(min(np.mean(values[a : b + 1]) for b in range(i, count)) for a in range(i + 1)) for i in range(count)]
    assert rising_fit(np.array(values, float)) == pytest.approx(np.array(expected))


@given(seeds, st.sampled_from([(12, 14), (40,), (5, 6, 5)]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_map_shows_the_explanation_first_and_patches_by_what_they_add(seed, grid, is_measured):
    rng = np.random.default_rng(seed)
    patch = rng.integers(0, 6, grid)
    patch.ravel()[:6] = range(6)
    survey = Survey(patch, rng.normal(size=6))
    inner = rng.random(grid) < 0.2
    outer = inner | (rng.random(grid) < 0.2)
    effects = MapEffects(rng.normal(size=6), np.where(outer, rng.random(grid), 0.0)) if is_measured else None
    found = draw_map(survey, effects, (inner, outer))
    ranks = rank_patches(survey, effects)[patch]
    assert found.min() >= 0
    assert found.max() <= 1
    if outer.any():
        assert found.max() == 1
        assert found[outer].min() > found[~outer].max()
    outside = [(ranks[place], found[place]) for place in zip(*np.nonzero(~outer), strict=True)]
    for (one, high), (other, low) in combinations(sorted(outside), 2):
        assert (one < other) == (high < low)  # the order of the patches
    if is_measured:
        assert np.array_equal(np.argsort(found[outer], kind="stable"), np.argsort(effects.inside[outer], kind="stable"))
    elif inner.any() and (outer & ~inner).any():
        assert found[inner].min() > found[outer & ~inner].max()


def test_patches_that_add_nothing_are_dark_however_many_there_are():
    patch = np.repeat(np.arange(20), 5)
    contribution = np.full(20, -1.0)
    contribution[7] = 1.0
    found = draw_map(Survey(patch, contribution), None, ())
    assert (found[patch == 7] == 1).all()
    assert found[patch != 7].max() < 0.05


# The survey's design


@given(st.integers(2, 60), st.integers(10, 200))
@settings(max_examples=80, deadline=None)
def test_halves_are_an_orthogonal_design_where_the_samples_allow_it(count, samples):
    shown = balanced_halves(count, samples, np.random.default_rng(0))
    assert shown.dtype == np.bool_
    assert shown.shape[1] == count
    assert samples / 2 < len(shown) <= samples  # 8 of 15 are the fewest
    orders = [p + 1 for p in range(3, samples) if p % 4 == 3 and all(p % d for d in range(2, p))]
    if any(count < order for order in orders):
        signs = np.where(shown, 1, -1)
        assert np.array_equal(signs.T @ signs, len(shown) * np.eye(count))  # every two columns agree in half of the rows
    if any(count < order <= samples // 2 for order in orders):
        assert np.array_equal(shown[: len(shown) // 2], ~shown[len(shown) // 2 :])


def test_halves_are_random_with_their_complements_where_there_are_few_samples():
    shown = balanced_halves(40, 21, np.random.default_rng(1))
    assert shown.shape == (21, 40)
    assert np.array_equal(shown[:10], ~shown[11:])
    assert 0.4 < shown[:11].mean() < 0.6
    assert not np.array_equal(shown, balanced_halves(40, 21, np.random.default_rng(2)))
    designed = balanced_halves(40, 120, np.random.default_rng(1))
    assert np.array_equal(designed, balanced_halves(40, 120, np.random.default_rng(2)))  # no chance in it
    designed[:] = False
    assert balanced_halves(40, 120, np.random.default_rng(1)).any()


# Settling


@given(seeds, st.sampled_from([(6, 5), (11,), (4, 3, 5)]), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_neighbours_are_counted_as_one_by_one(seed, grid, grain):
    rng = np.random.default_rng(seed)
    cell = cells(grid, grain)
    shape = tuple(-(-side // grain) for side in grid)
    alive, always = rng.random(int(np.prod(shape))) < 0.5, rng.random(grid) < 0.1
    shown = alive.copy()
    shown[np.unique(cell[always])] = True
    wanted = []
    for place in np.ndindex(shape):
        near = 0
        for axis in range(len(shape)):
            for by in (-1, 1):
                other = list(place)
                other[axis] += by
                if 0 <= other[axis] < shape[axis]:
                    near += int(shown[np.ravel_multi_index(other, shape)])
        wanted.append(near)
    some = rng.permutation(len(alive))[: int(rng.integers(1, len(alive) + 1))]
    assert Neighbours(cell, always).count(alive, some).tolist() == [wanted[i] for i in some]


@given(seeds, st.sampled_from(PLACES[:6]), st.booleans(), st.booleans(), st.integers(0, 60))
@settings(max_examples=80, deadline=None)
def test_settling_never_removes_what_stays_always(seed, place, solid, once, room):
    grid, grain = place
    model, rng = Weighted(grid, seed, "signed"), np.random.default_rng(seed)
    always = rng.random(grid) < 0.2
    number = cells(grid, grain)
    search = settle(np.ones(grid, bool), number, rng.random(int(number.max()) + 1), always=always, solid=solid, once=once)
    state, asked = step(search, None), 0
    while not isinstance(state, Done):
        assert (np.asarray(state) & always == always).all()
        asked += 1
        state = step(search, model.answers(np.asarray(state)) if asked <= room else Stop("budget"))
    found = state.result
    assert not (always & ~found.visible).any()
    assert model.keeps(found.visible, 0.0)
    if found.finished:
        added = found.visible & ~always
        for c in np.unique(number[added]):
            assert not model.keeps(found.visible & ~(added & (number == c)), 0.0)
    assert not (once and found.finished)


def test_solid_sets_have_fewer_pieces():
    """Any third of the cells is enough, so nothing but the order decides which ones stay."""

    def pieces(seed, solid):
        importance = np.random.default_rng(seed).random(144)
        search, asked = settle(np.ones((12, 12), bool), cells((12, 12), 1), importance, solid=solid), 0
        state = step(search, None)
        while not isinstance(state, Done):
            asked += len(state)
            margin = np.asarray(state).mean(axis=(1, 2)) - 1 / 3
            state = step(search, Answers(margin >= 0, margin, margin, asked))
        assert state.result.visible.sum() == 48
        return count_components(state.result.visible)

    assert sum(pieces(seed, True) for seed in range(6)) < 0.5 * sum(pieces(seed, False) for seed in range(6))


# Wrappers


def collect(waves, heard):
    for wave in waves:
        try:
            heard.append((yield wave))
        except Stop as stop:
            heard.append(stop)
    return "done"


@given(seeds, st.floats(0.0, 1.0))
@settings(max_examples=60, deadline=None)
def test_keeping_a_floor_is_the_same_as_a_target_with_it(seed, floor):
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.full(4, 0.5), 30).astype(np.float32)
    scores[:5, 2] = np.float32(floor)
    direct = Target(2, floor=floor).judge(scores)
    plain = Target(2).judge(scores)
    answers = Answers(plain.holds, quantise_margin(plain.margin, plain.holds), plain.confidence, 30)
    heard = []
    search = driving.drive(collect([np.ones((30, 4), bool)] * 2, heard), Terms(floor=floor))
    step(search, None)
    step(search, answers)
    assert step(search, Stop("budget", answers.part(slice(0, 9)))) == Done("done")
    assert isinstance(heard[1], Stop)
    assert heard[1].reason == "budget"
    for count, found in ((30, heard[0]), (9, heard[1].answers)):
        assert found.holds.tolist() == direct.holds[:count].tolist()
        assert found.margin == pytest.approx(quantise_margin(direct.margin, direct.holds)[:count])
        assert found.confidence.tolist() == direct.confidence[:count].tolist()
        assert found.spent == 30
        assert ((found.margin >= 0) == found.holds).all()
    assert with_floor(answers, 0.0) is answers


def test_showing_adds_pixels_to_every_question_and_every_guess():
    always = np.array([True, False, False, False])
    waves = np.random.default_rng(0).random((2, 5, 4)) < 0.5
    ahead = Question(waves[0], lookahead=lambda count: list(waves[1][:count]))
    heard = []
    search = driving.drive(collect([ahead, waves[1]], heard), Terms(always=always))
    asked = step(search, None)
    assert np.array_equal(asked, waves[0] | always)
    assert np.array_equal(np.stack(asked.lookahead(3)), waves[1][:3] | always)
    answers = Answers(np.ones(5, bool), np.ones(5), np.ones(5), 5)
    assert np.array_equal(step(search, answers), waves[1] | always)
    stop = Stop("interrupt", answers.part(slice(0, 2)))
    assert step(search, stop) == Done("done")
    assert heard == [answers, stop]


def test_the_best_set_on_the_way_keeps_the_floor():
    run = BudgetedRun((4,), floor=0.6)
    wave = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]], bool)
    run.note(
        Question(wave), Answers(np.array([True, True, False]), np.array([1.0, 1.0, -1.0]), np.array([0.7, 0.5, 0.9]), 3)
    )
    assert run.pixels == 3
    assert run.spent == 3


def test_effects_inside_and_beside_an_explanation_are_those_of_an_additive_model():
    """Where the confidence is a sum over pixels, a fit to balanced halves finds the order of the weights."""
    rng = np.random.default_rng(4)
    weights = rng.permutation(64).reshape(8, 8) / 64 / 64
    explanation = np.zeros((8, 8), bool)
    explanation[2:6, 2:6] = True
    survey = Survey(cells((8, 8), 2), np.zeros(16))  # sixteen patches, each a cell of 2 pixels
    search = measure_effects(survey, explanation, 2, context=40, inside=12, rng=rng)
    waves, state = [], step(search, None)
    while not isinstance(state, Done):
        waves.append(np.asarray(state))
        confidence = (state * weights).sum(axis=(1, 2))
        state = step(search, Answers(np.ones(len(state), bool), np.zeros(len(state)), confidence, 0))
    (wave,) = waves  # both at once
    beside, inside = np.split(wave, [len(balanced_halves(16, 40, rng))])
    assert len(inside) == 12
    assert beside[:, explanation].all()
    assert inside[:, ~explanation].all()
    worth = np.bincount(survey.patch.ravel(), (weights * ~explanation).ravel())
    free = worth > 0
    assert np.argsort(state.result.beside[free]).tolist() == np.argsort(worth[free]).tolist()
    assert (state.result.inside[~explanation] == 0).all()
    own = np.unique(survey.patch[explanation])
    found = [state.result.inside[survey.patch == patch].max() for patch in own]
    assert np.argsort(found).tolist() == np.argsort([weights[survey.patch == patch].sum() for patch in own]).tolist()
