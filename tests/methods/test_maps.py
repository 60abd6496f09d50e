"""The maps of `causal`: by zones, and by the survey or the sets where there are no zones."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import becausal
from becausal.api.compare import compare_methods
from becausal.core.contracts import Answers, Done, Stop, Zone, step
from becausal.core.patches import superpixels
from becausal.core.problem import Problem
from becausal.core.targets import Target
from becausal.methods.causal.ordering import draw_map, order_map, rising_fit
from becausal.methods.causal.zones import BANDS, LEFT, draw_zones, order_patches
from becausal.search.survey import Survey
from test_explain import bundled, needs_bundled, scene

seeds = st.integers(0, 2**32 - 1)
COUNT = 12  # patches


# Without zones


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


@given(seeds, st.sampled_from([(12, 14), (40,), (5, 6, 5)]))
@settings(max_examples=40, deadline=None)
def test_a_map_shows_the_sets_first_and_patches_by_what_they_add(seed, grid):
    rng = np.random.default_rng(seed)
    patch = rng.integers(0, 6, grid)
    patch.ravel()[:6] = range(6)
    survey = Survey(patch, rng.normal(size=6))
    inner = rng.random(grid) < 0.2
    outer = inner | (rng.random(grid) < 0.2)
    found = draw_map(survey, (inner, outer))
    gain = (survey.contribution / np.bincount(patch.ravel()))[patch]
    assert found.min() >= 0
    assert found.max() <= 1
    if outer.any():
        assert found.max() == 1
        assert found[outer].min() > found[~outer].max(initial=0)
    outside = [(gain[place], found[place]) for place in zip(*np.nonzero(~outer), strict=True)]
    for (one, high), (other, low) in combinations(sorted(outside), 2):
        assert (one < other) == (high < low)  # the order of the patches
    if inner.any() and (outer & ~inner).any():
        assert found[inner].min() > found[outer & ~inner].max()


def test_patches_that_add_nothing_are_dark_however_many_there_are():
    patch = np.repeat(np.arange(20), 5)
    contribution = np.full(20, -1.0)
    contribution[7] = 1.0
    found = draw_map(Survey(patch, contribution), ())
    assert (found[patch == 7] == 1).all()
    assert found[patch != 7].max() < 0.05


# Zones, on a classifier that adds up patches


class Sum:
    """The confidence is what the shown patches add up to, from 0 to 1."""

    def __init__(self, seed, grid=(36, 30), harmful=0.3):
        rng = np.random.default_rng(seed)
        self.view = rng.integers(0, 256, (*grid, 3)).astype(np.uint8)
        self.patch = superpixels(self.view, COUNT)
        self.count = int(self.patch.max()) + 1
        self.weights = rng.exponential(size=self.count) * np.where(rng.random(self.count) < harmful, -0.5, 1.0)
        self.scale = np.abs(self.weights).sum()

    def __call__(self, visible):
        areas = np.bincount(self.patch.ravel())
        shown = np.stack([np.bincount(self.patch.ravel(), one.ravel(), self.count) / areas for one in visible])
        return np.clip(0.5 + 0.5 * (shown @ self.weights) / self.scale, 0, 1)

    def core(self):
        """The patches with the largest weights."""
        return np.isin(self.patch, np.argsort(-self.weights)[:3])


def answer(search, model, limit=None):
    waves, state = 0, step(search, None)
    while not isinstance(state, Done):
        confidence = model(np.asarray(state))
        waves += 1
        answers = Answers(confidence >= 0.5, confidence - 0.5, confidence, 0)
        state = step(search, answers if limit is None or waves <= limit else Stop("budget"))
    return state.result


def order_of(model, core, enough):
    problem = Problem(model.view, (np.zeros_like(model.view),), Target(0), floor=0.1)
    return answer(order_patches(problem, core, enough, np.zeros(core.shape), COUNT), model)


def around(core, seed):
    """A set that has the core and a tenth of the other pixels."""
    return core | (np.random.default_rng(seed).random(core.shape) < 0.1)


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_every_patch_of_the_rest_has_one_zone(seed):
    model = Sum(seed)
    core = model.core()
    enough = around(core, seed)
    order = order_of(model, core, enough)
    assert np.array_equal(order.patch == -1, core)
    left = np.unique(order.patch[order.patch >= 0])
    assert sorted((*order.enough, *order.backup, *order.context, *order.against)) == left.tolist()
    assert enough[np.isin(order.patch, order.enough)].all()
    assert not enough[np.isin(order.patch, (*order.context, *order.against))].any()


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from([0.0, 0.3, 0.6]))
def test_what_speaks_against_the_label_comes_last(seed, harmful):
    """Where effects add up, it is what has a negative effect; rounds take several patches, so one may have none."""
    model = Sum(seed, harmful=harmful)
    order = order_of(model, model.core(), model.core())
    if not harmful:
        assert order.against == ()
    if order.against:
        worst = max(model.weights[list(order.against)])
        assert worst < np.abs(model.weights).max() / 2
        assert model.weights[list(order.against)].mean() < 0
    lost = model(~model.core()[None])[0] / model(np.ones((1, *model.core().shape), bool))[0]
    assert bool(order.backup) == (lost >= LEFT)


@settings(max_examples=20, deadline=None)
@given(seeds)
def test_values_have_bands_of_their_own(seed):
    model, rng = Sum(seed), np.random.default_rng(seed)
    core = model.core()
    enough = around(core, seed)
    order = order_of(model, core, enough)
    found, zones = draw_zones(core, enough, rng.random(core.shape), order)
    assert np.array_equal(zones == Zone.CORE, core)
    assert np.array_equal(zones >= Zone.ENOUGH, enough)
    assert found.max() == 1
    assert found.min() >= 0
    falling = [core, *(np.isin(order.patch, some) for some in (order.backup, order.enough, order.context, order.against))]
    for high, low in pairwise([pixels for pixels in falling if pixels.any()]):
        assert found[low].max() < found[high].min()
    for (_, high), (low, _) in pairwise(sorted(BANDS.values())):
        assert high < low


def test_on_its_way_the_search_gives_the_map_up_and_nothing_else():
    model = Sum(1)
    problem = Problem(model.view, (np.zeros_like(model.view),), Target(0), floor=0.1)
    with pytest.raises(Stop):
        answer(order_patches(problem, model.core(), model.core(), np.zeros(model.core().shape), COUNT), model, limit=1)


# Zones, through the front door


@needs_bundled
def test_the_map_of_the_bundled_classifier_has_zones_that_fit_its_sets(tmp_path, without_figures):
    explanation = becausal.explain(scene(0).image, bundled())
    zones, found = explanation.zones, explanation.responsibility
    assert zones.shape == explanation.visible.shape
    assert np.array_equal(zones == Zone.CORE, explanation.levels[0].visible)
    assert np.array_equal(zones >= Zone.ENOUGH, explanation.visible)
    for low in np.unique(zones[zones < Zone.CORE]):  # of the rest of `enough`, some is backup
        assert found[zones == low].max() < found[zones == Zone.CORE].min()
        assert low > Zone.CONTEXT or found[zones == low].max() < found[zones == Zone.ENOUGH].min()
    loaded = becausal.Explanation.load(explanation.save(tmp_path / "it"))
    assert np.array_equal(loaded.zones, zones)
    assert loaded.zones.dtype == np.uint8


@needs_bundled
def test_insertion_and_deletion_of_a_map_in_zones():
    """With the pixels in its order the confidence rises at once, and is lost at once; in the opposite order it is not."""
    (row,) = compare_methods(scene(0).image, bundled(), ["causal"]).rows
    curves = row.curves
    assert curves.insertion_area > 0.6
    assert curves.deletion_area < 0.4
    assert curves.insertion_area > curves.deletion_area + 0.3


@needs_bundled
@pytest.mark.parametrize("options", [{"smallest": True}, {"method": "occlusion"}, {"max_calls": 150}])
def test_maps_without_zones(options):
    explanation = becausal.explain(scene(0).image, bundled(), **options)
    assert explanation.zones is None
    outside = explanation.responsibility[~explanation.visible].max()
    assert explanation.responsibility[explanation.visible].min() >= outside


@needs_bundled
def test_one_set_that_keeps_most_of_the_confidence_has_zones_without_enough():
    explanation = becausal.explain(scene(0).image, bundled(), confidence=0.9)
    assert np.array_equal(explanation.zones == Zone.CORE, explanation.visible)
    assert not (explanation.zones == Zone.ENOUGH).any()


def test_where_no_set_is_certified_there_is_no_zone_for_it():
    """Only the whole view keeps the label on all backgrounds: the zones know one set."""

    def model(batch):
        batch = np.asarray(batch, float)
        share = (np.abs(batch - 200) < 1).all(axis=-1)[:, :20, :20].mean(axis=(1, 2))
        dark = (batch < 60).all(axis=-1) | (np.abs(batch - 200) < 1).all(axis=-1)
        yes = np.where(dark.all(axis=(1, 2)), share, 0.2 * share)
        return np.stack([1 - yes, yes], axis=1)

    image = np.random.default_rng(0).integers(0, 60, (56, 56, 3)).astype(np.uint8)
    image[:20, :20] = 200
    explanation = becausal.explain(image, model, fills="black", holds=0.9)
    assert [level.name for level in explanation.levels] == ["core"]
    assert explanation.zones is not None
    assert np.array_equal(explanation.zones == Zone.CORE, explanation.visible)
    assert not (explanation.zones == Zone.ENOUGH).any()
