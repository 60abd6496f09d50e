"""The survey: patches that follow the image, their contributions, and the lattice restricted to them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import becausal
from becausal.core.contracts import Answers, Done, step
from becausal.core.errors import OptionError
from becausal.core.patches import superpixels
from becausal.core.problem import Problem
from becausal.core.targets import Target
from becausal.methods.causal.ordering import order_map
from becausal.methods.causal.search import Causal
from becausal.render.report import format_command
from becausal.search.descent import CoalitionIndex, Lattice, RemovalCost, Tuning
from becausal.search.survey import Survey, balanced_halves, run_survey


def rng(seed=0):
    return np.random.default_rng(seed)


def two_halves(side=40):
    view = np.zeros((side, side, 3), np.uint8)
    view[:, side // 2 - 3 :] = (200, 180, 40)
    return view


def ask(search, score, limit=None):
    """Drive a search with margins from `score`, (n, *grid) to (n,); the result and all questions."""
    asked = []
    state = step(search, None)
    while not isinstance(state, Done):
        asked.append(np.asarray(state))
        margin = score(asked[-1])
        state = step(search, Answers(margin >= 0, margin, np.full(len(margin), np.nan), sum(map(len, asked))))
    return state.result, np.concatenate(asked)


# Patches


@pytest.mark.parametrize("shape", [(300, 1), (40, 36, 3), (12, 14, 10, 2)])
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_superpixels_are_numbered_without_gaps_in_any_dimension(shape, kind):
    view = (rng(4).random(shape) * 255).astype(kind)
    patch = superpixels(view, 20, compactness=2.0)
    assert patch.shape == shape[:-1]
    assert np.bincount(patch.ravel()).min() > 0
    assert 8 <= patch.max() + 1 <= 40
    assert np.array_equal(patch, superpixels(view.copy(), 20, compactness=2.0))


def test_superpixels_end_at_edges():
    view = two_halves(120)
    patch = superpixels(view, 30)
    for number in range(patch.max() + 1):
        assert len(np.unique(view[patch == number], axis=0)) == 1


def test_superpixels_are_what_their_definition_says():
    """Every pixel is in the patch whose mean it is nearest to, once nothing moves any more."""
    view = two_halves(24)
    patch = superpixels(view, 9)
    width = (24 * 24 / 9) ** 0.5
    features = np.concatenate([np.indices((24, 24)).reshape(2, -1).T / width, view.reshape(-1, 3) / 255 / 0.2], axis=1)
    means = np.stack([features[patch.ravel() == k].mean(axis=0) for k in range(patch.max() + 1)])
    distance = ((features[:, None] - means) ** 2).sum(axis=2)
    own = distance[np.arange(24 * 24), patch.ravel()]
    assert (own <= distance.min(axis=1) + 0.05).all()


# The survey


def test_a_survey_estimates_the_contribution_of_each_patch():
    view = rng(1).integers(0, 256, (32, 30, 3)).astype(np.uint8)
    patch = superpixels(view, 12)
    contribution = rng(2).normal(0, 1, patch.max() + 1)
    first = [tuple(np.argwhere(patch == k)[0]) for k in range(len(contribution))]

    def score(wave):
        return np.stack([wave[(slice(None), *at)] for at in first], axis=1) @ contribution - 0.3

    found, asked = ask(run_survey(view, samples=400, patches=12, rng=rng()), score)
    assert len(asked) == 400
    assert found.contribution == pytest.approx(contribution, abs=0.25)  # the ridge shrinks it
    assert np.corrcoef(found.contribution, contribution)[0, 1] > 0.99
    assert np.array_equal(found.patch, patch)
    best = np.argsort(-found.contribution)[:3]
    assert np.array_equal(found.best(3), np.isin(patch, best))
    assert found.best(len(contribution)).all()
    assert not found.best(0).any()


def test_the_contribution_of_a_patch_is_shared_among_its_pixels():
    found = Survey(np.array([[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 2, 2]]), np.array([4.0, -2.0, 1.0]))
    assert found.removal_cost(Lattice((3, 4), 2)).tolist() == [[4.0, -2.0], [0.5, 0.5]]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_restricted_lattice_shows_its_cells_and_nothing_outside(height, width, grain, seed):
    grid = (height, width)
    within = rng(seed).random(grid) < 0.5
    lattice, cells = Lattice(grid, grain).restrict(within)
    assert np.array_equal(lattice.show(cells), within)
    values = rng(seed + 1).random(grid)
    collected = lattice.sum_cells(values)
    for at in np.ndindex(lattice.shape):
        one = np.zeros(lattice.shape, bool)
        one[at] = True
        pixels = Lattice(grid, grain).show(one)
        assert collected[at] == pytest.approx(values[pixels].sum())
        assert cells[at] == within[pixels].any()
        assert np.array_equal(lattice.show(one), pixels & within)


def test_a_prior_counts_as_trials_that_do_not_decay():
    cost = RemovalCost((2,), np.array([1.0, 3.0]), 2.0)
    assert cost.estimate().tolist() == [1.0, 3.0]
    cost.observe(np.array([[True, False]]), np.array([7.0]))
    assert cost.estimate().tolist() == [3.0, 3.0]  # (7 + 2 * 1) / (1 + 2)
    for _ in range(200):
        cost.decay(0.5)
    assert cost.estimate() == pytest.approx([1.0, 3.0])


# In the search


def problem_of(view, budget=None):
    return Problem(view, (np.zeros_like(view),), Target(0), has_scores=False, budget=budget)


def needs_right_half(wave):
    """The target holds while half of the bright part's first rows can be seen; the rest does not matter."""
    seen = wave[:, :10, 20:].mean(axis=(1, 2))
    return (seen - 0.5) * 8


@pytest.mark.parametrize("budget", [None, 200, 40])
def test_a_survey_takes_at_most_a_fifth_of_the_budget(budget):
    _, asked = ask(Causal(grain=2).search(problem_of(two_halves(), budget), rng()), needs_right_half)
    halves = [row.mean() for row in asked[:64]]
    patchy = sum(0.2 < mean < 0.8 for mean in halves[: 64 if budget is None else budget // 5])
    assert patchy >= (50 if budget is None else 0.7 * (budget // 5) if budget >= 50 else 0)
    if budget == 40:
        assert asked[0].all()  # too small for a survey: it starts from the whole view


@pytest.mark.parametrize("seed", range(4))
def test_the_search_stays_with_the_patches_that_matter(seed):
    found, _ = ask(Causal(grain=2).search(problem_of(two_halves()), rng(seed)), needs_right_half)
    (visible,) = found.sets
    assert needs_right_half(visible[None])[0] >= 0
    assert visible[:10, 20:].mean() == pytest.approx(0.5, abs=0.06)
    assert visible.sum() <= 120
    assert found.grain == 2
    inside = found.saliency[:10, 20:].mean()
    assert inside > np.quantile(found.saliency[20:], 0.95)


def test_without_a_survey_the_map_is_the_index_of_the_sufficient_sets():
    lattice = Lattice((8, 8), 2)
    index = CoalitionIndex(lattice)
    sets = np.zeros((3, 4, 4), bool)
    sets[0, 0, 0] = sets[1, 0, :2] = sets[2] = True
    index.add(sets, Answers(np.array([True, True, False]), np.zeros(3), np.array([0.8, np.nan, 0.9]), 3))
    assert index.saliency[:2, :2] == pytest.approx(0.8 + 0.5)  # confidence over size; without a confidence it counts as 1
    assert index.saliency[:2, 2:4] == pytest.approx(0.5)
    assert not index.saliency[2:].any()
    assert not index.saliency[:, 4:].any()


def test_the_explanation_is_on_top_of_a_map_that_knows_nothing_else():
    found = np.zeros((8, 8), bool)
    found[2:4, 4:6] = True
    (high, low) = np.unique(order_map(np.zeros((8, 8)), (found,)))[::-1]
    assert np.array_equal(order_map(np.zeros((8, 8)), (found,)), np.where(found, high, low))
    assert high == 1
    assert (order_map(np.zeros((8, 8)), ()) == 1).all()


def test_every_further_explanation_stays_in_what_the_others_leave():
    def needs_a_third(wave):
        return needs_right_half(wave) + 8 / 6

    found, _ = ask(Causal(grain=2, several=2).search(problem_of(two_halves()), rng()), needs_a_third)
    first, second = found.sets
    assert not (first & second).any()
    assert needs_a_third(second[None])[0] >= 0


def test_without_a_survey_it_starts_from_the_whole_view():
    search = Causal(grain=2, tuning=Tuning(survey=0)).search(problem_of(two_halves()), rng())
    _, asked = ask(search, needs_right_half)
    assert asked[0].all()


@pytest.mark.parametrize("options", [{"survey": -1}, {"patches": 1}, {"prior": 0.0}])
def test_bad_options_are_refused(options):
    with pytest.raises(OptionError, match="survey must be"):
        Tuning(**options)


def test_the_tuning_is_recorded_with_the_explanation(tmp_path, without_figures):
    def model(batch):
        bright = (batch[:, :10, 20:] > 100).any(axis=-1).mean(axis=(1, 2))
        return np.stack([bright, 1.2 - bright], axis=1)

    method = Causal(grain=4, tuning=Tuning(survey=0, reheat=(0.2,)))
    explanation = becausal.explain(two_halves(), model, fills="black", method=method)
    explanation.save(tmp_path / "out")
    loaded = becausal.Explanation.load(tmp_path / "out")
    assert loaded.origin.options["tuning"] == {"survey": 0, "reheat": [0.2]}
    again = becausal.explain(two_halves(), model, fills="black", method="causal", options=loaded.origin.request.options)
    assert again.visible.tobytes() == explanation.visible.tobytes()
    assert again.calls == explanation.calls
    assert "tuning" not in format_command(loaded)


def test_the_result_does_not_depend_on_the_batch_size():
    view = two_halves()

    def model(batch):
        bright = (batch[:, :10, 20:] > 100).any(axis=-1).mean(axis=(1, 2))
        return np.stack([bright, 1.2 - bright], axis=1)

    one = becausal.explain(view, model, fills="black", grain=2, seed=3)
    two = becausal.explain(view, model, fills="black", grain=2, seed=3, batch_size=5)
    assert one.visible.tobytes() == two.visible.tobytes()
    assert one.checks.minimal_grain == 2
    assert not one.visible[:, :17].any()


# The design of the survey


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
