"""The black-box methods: one contract for all, and each against its definition."""

import itertools
import json
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import becausal
from becausal.core.contracts import Answers, Done, Stop, step
from becausal.core.errors import MissingExtraError, OptionError
from becausal.core.patches import fit_ridge, superpixels
from becausal.core.problem import Problem
from becausal.core.regions import count_components
from becausal.core.targets import Target
from becausal.engine.engine import Engine
from becausal.images.fills import make_background
from becausal.methods import METHODS, list_options, make_explainer, options_of
from becausal.methods.causal.search import Causal
from becausal.methods.lime_superpixels import Lime
from becausal.methods.occlusion import Occlusion
from becausal.methods.rise import Rise
from becausal.methods.sbfl import MEASURES, Sbfl, Spectrum, SpectrumCounter
from becausal.methods.shap_partition import Shap, halve
from becausal.models import as_classifier
from becausal.scenes import NOTHING, make_scene
from becausal.search.descent import Tuning

#: Every method of this file, with options that limit its model calls, and the limit.
SMALL = {
    "sbfl": ({"mutants": 300}, 300),
    "rise": ({"masks": 300}, 300),
    "occlusion": ({"stride": 0.09}, 170),
    "lime": ({"samples": 300}, 300),
    "shap": ({"evaluations": 300}, 300),
    "greedy": ({"patches": 16}, 342),
    "phasewin": ({"patches": 16}, 342),
    "hsic": ({"samples": 300}, 300),
    "sobol": ({"designs": 12, "grid": 6}, 12 * (6**3 + 2)),
    "random": ({}, 0),
    "centre": ({}, 0),
}
ASKING = [name for name, (_, calls) in SMALL.items() if calls]
#: Sometimes worse than the control `centre`: the rest of the object compensates for a small masked window.
NOISY = {"occlusion"}


def make(name):
    if name == "shap":
        pytest.importorskip("shap", exc_type=ImportError)
    return make_explainer(name, SMALL[name][0])


# Classifiers whose answers do not depend on the batch: class 1 is bright in one box.


def bright_part(batch):
    """Scores of images, signals and volumes alike: how bright the second quarter of the first axis is."""
    side = batch.shape[1]
    part = batch[:, side // 4 : side // 2].reshape(len(batch), -1).astype(float).mean(axis=1)
    chance = np.round(np.clip(part / 200, 0.01, 0.99), 6)
    return np.stack([1 - chance, chance], axis=1)


def bright_label(batch):
    return (bright_part(batch)[:, 1] > 0.5).astype(int)


def pose(function, grid, *, channels=1, dtype=np.float32):
    """The engine's and the method's problem: a bright view of that grid, a dark background."""
    classifier = as_classifier(function)
    view = np.full((*grid, channels), 180, dtype)
    view[0] = 90  # two colours, so that superpixels have something to find
    case = Problem(view, (np.zeros_like(view),), Target(1))
    classifier.stage(*case.backgrounds, view)
    has_scores = classifier.info.output != "labels"
    return classifier, case, replace(case, has_scores=has_scores, model=classifier)


def run(name, function, grid, *, seed=0, batch_size=None, max_calls=None, **kind):
    classifier, case, problem = pose(function, grid, **kind)
    search = make(name).search(problem, np.random.default_rng(seed))
    return Engine(classifier, batch_size=batch_size).run(case, search, max_calls=max_calls)


def drive(search, score):
    """Answer a search from a function of (n, *grid) sets to n scores; its result and all waves."""
    asked = []
    state = step(search, None)
    while not isinstance(state, Done):
        asked.append(state)
        state = step(search, answers(score(state)))
    return state.result, asked


def answers(values):
    values = np.asarray(values, float)
    return Answers(values >= 0.5, values - 0.5, values)


def problem_of(grid, *, view=None):
    view = np.zeros((*grid, 1), np.float32) if view is None else view
    return Problem(view, (np.zeros_like(view),), Target(0))


# The contract


def test_every_method_that_only_asks_is_tested_here():
    own = {"causal", "dc-causal"}
    assert set(SMALL) == {name for name, method in METHODS.items() if method.needs not in ("gradients", "boxes")} - own


@pytest.mark.parametrize("name", SMALL)
def test_the_table_says_what_the_class_says(name):
    explainer = make_explainer(name)
    assert (explainer.name, explainer.needs) == (name, METHODS[name].needs)


@pytest.mark.parametrize("function", [bright_part, bright_label], ids=["scores", "labels"])
@pytest.mark.parametrize("grid", [(50,), (24, 20), (12, 10, 8)], ids=["signal", "image", "volume"])
@pytest.mark.parametrize("name", SMALL)
def test_a_map_of_any_dimension_that_is_finite_and_costs_what_it_says(name, grid, function):
    kind = {"channels": 3, "dtype": np.uint8} if len(grid) == 2 else {}
    outcome = run(name, function, grid, **kind)
    saliency = outcome.result.saliency
    assert saliency.shape == grid
    assert saliency.dtype == np.float64
    assert np.isfinite(saliency).all()
    assert outcome.stats.calls <= (13 ** len(grid) + 1 if name == "occlusion" else SMALL[name][1])
    assert outcome.stopped_by == "finished"
    if name == "occlusion" and function is bright_label:
        assert not saliency.any()  # no window this small takes the label away
    elif name in ASKING:
        quarter = grid[0] // 4
        inside = saliency[quarter : 2 * quarter].mean()
        assert inside > saliency[2 * quarter :].mean()


def test_occlusion_of_a_volume():
    classifier, case, problem = pose(bright_part, (12, 10, 8))
    search = Occlusion(window=0.25, stride=0.25).search(problem, np.random.default_rng(0))
    saliency = Engine(classifier).run(case, search).result.saliency
    assert saliency[3:6].min() > 0.0
    assert np.all(saliency[6:] == 0.0)


@pytest.mark.parametrize("name", SMALL)
def test_the_seed_decides_and_nothing_else(name):
    saliency = run(name, bright_part, (24, 20)).result.saliency
    again = run(name, bright_part, (24, 20), batch_size=7).result.saliency
    assert np.array_equal(saliency, again)
    if name in ("sbfl", "rise", "lime", "hsic", "sobol", "random"):
        assert not np.array_equal(saliency, run(name, bright_part, (24, 20), seed=1).result.saliency)


@pytest.mark.parametrize("budget", [1, 70, 100])
@pytest.mark.parametrize("name", ASKING)
def test_a_budget_is_kept_and_what_was_answered_is_used(name, budget):
    outcome = run(name, bright_part, (24, 20), max_calls=budget)
    assert outcome.stats.calls <= budget
    assert outcome.stopped_by == "budget"
    assert np.isfinite(outcome.result.saliency).all()
    if budget > 1:
        assert np.ptp(outcome.result.saliency) > 0.0


@pytest.mark.parametrize("name", ASKING)
def test_told_to_stop_at_once_or_in_the_middle_it_still_gives_a_map(name):
    _, _, problem = pose(bright_part, (24, 20))
    for waves, kept in itertools.product((0, 2), (0, 3)):
        search = make(name).search(problem, np.random.default_rng(0))
        state = step(search, None)
        for _ in range(waves):
            state = step(search, answers(state.mean(axis=(1, 2))))
        state = step(search, Stop("budget", answers(state.mean(axis=(1, 2))[:kept])))
        assert isinstance(state, Done)
        assert np.isfinite(state.result.saliency).all()


@pytest.mark.parametrize("name", SMALL)
def test_no_wave_is_large(name):
    _, _, problem = pose(bright_part, (24, 20))
    _, asked = drive(make(name).search(problem, np.random.default_rng(0)), lambda wave: wave.mean(axis=(1, 2)))
    assert all(len(wave) <= 128 for wave in asked)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("sbfl", {"measure": "jaccard"}), ("sbfl", {"mutants": 0}), ("sbfl", {"step": 1.5}), ("rise", {"share": 1.0}),
        ("rise", {"cells": 0}), ("occlusion", {"window": 0.0}), ("occlusion", {"window": 0.1, "stride": 0.2}),
        ("lime", {"kernel": 0.0}), ("lime", {"patches": 1}), ("shap", {"evaluations": 1}), ("centre", {"width": 1}),
        ("greedy", {"patches": 1}), ("greedy", {"candidates": 0}), ("phasewin", {"patches": 1}),
        ("phasewin", {"window": 0.0}), ("hsic", {"samples": 1}), ("hsic", {"grid": 0}),
        ("sobol", {"designs": 0}), ("sobol", {"grid": 0}),
    ],
)  # fmt: skip
def test_an_option_that_makes_no_sense_is_refused_by_name(name, option):
    with pytest.raises(OptionError, match=list(option)[-1]):
        make_explainer(name, option)


@pytest.mark.parametrize("name", METHODS)
def test_every_option_has_a_description(name):
    for option in list_options(name):
        assert len(option.meaning) > 10, option


def test_the_tuning_of_causal_is_for_python_only():
    assert [option.name for option in list_options("causal")] == ["grain", "several", "smallest", "overlap"]
    for option in ({"tuning": "survey=0"}, {"survey": "0"}):
        with pytest.raises(OptionError, match=r"has no option.*it has grain, several, smallest, overlap$"):
            make_explainer("causal", option)
    with pytest.raises(OptionError, match="tuning of causal"):
        make_explainer("causal", {"tuning": {"magic": 1}})


def test_recorded_options_are_json_and_make_the_same_method():
    plain = {"grain": 2, "several": 1, "smallest": False, "overlap": 0.0}
    assert options_of(Causal(grain=2)) == plain
    tuned = Causal(several=2, tuning=Tuning(survey=0, reheat=(0.2,)))
    record = json.loads(json.dumps(options_of(tuned)))
    assert record["tuning"] == {"survey": 0, "reheat": [0.2]}
    assert make_explainer("causal", record) == tuned
    assert make_explainer("causal", {"tuning": Tuning(survey=3)}) == Causal(tuning=Tuning(survey=3))


def test_without_the_shap_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[shap\]"):
        step(Shap().search(problem_of((8, 8)), np.random.default_rng(0)), None)


# DC-SBFL


def test_sbfl_counts_by_hand_on_four_by_four():
    visible = np.ones((4, 4, 4), bool)
    visible[0, :2] = False  # the upper half masked: kept
    visible[1, :, :2] = False  # the left half masked: lost
    visible[2, 3, 3] = False  # the last pixel masked: kept
    visible[3, 1:3, 1:3] = False  # the middle masked: lost
    counter = SpectrumCounter((4, 4))
    counter.add(visible[:3], np.array([True, False, True]))
    counter.add(visible[3:], np.array([False]))
    a = counter.spectrum()
    assert a.ef.tolist() == [[1, 1, 0, 0], [1, 2, 1, 0], [1, 2, 1, 0], [1, 1, 0, 0]]
    assert a.nf.tolist() == [[1, 1, 2, 2], [1, 0, 1, 2], [1, 0, 1, 2], [1, 1, 2, 2]]
    assert a.ep.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]]
    assert a.np.tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [2, 2, 2, 2], [2, 2, 2, 1]]


#: (ef, nf, ep, np) of five pixels in 10 failing and 20 passing mutants, and each measure worked out by hand.
TABLE = [(8, 2, 2, 18), (10, 0, 0, 20), (0, 10, 5, 15), (5, 5, 10, 10), (0, 10, 0, 20)]
BY_HAND = {
    "ochiai": [8 / (10 * 10) ** 0.5, 1.0, 0.0, 5 / (10 * 15) ** 0.5, 0.0],
    "tarantula": [0.8 / (0.8 + 0.1), 1.0, 0.0, 0.5 / (0.5 + 0.5), 0.0],
    "zoltar": [8 / (8 + 2 + 2 + 10000 * 2 * 2 / 8), 1.0, 0.0, 5 / (5 + 5 + 10 + 10000 * 5 * 10 / 5), 0.0],
    "wong-ii": [6, 10, -5, -5, 0],
}


@pytest.mark.parametrize("measure", BY_HAND)
def test_each_measure_is_its_formula(measure):
    spectrum = Spectrum(*np.array(TABLE, float).T)
    assert MEASURES[measure](spectrum) == pytest.approx(np.array(BY_HAND[measure], float))


def slow_ochiai(asked, holds):
    """From the definition, pixel by pixel and mutant by mutant."""
    saliency = np.zeros(asked.shape[1:])
    for pixel in np.ndindex(saliency.shape):
        ef = sum(not visible[pixel] and not kept for visible, kept in zip(asked, holds, strict=True))
        nf = sum(bool(visible[pixel]) and not kept for visible, kept in zip(asked, holds, strict=True))
        ep = sum(not visible[pixel] and bool(kept) for visible, kept in zip(asked, holds, strict=True))
        saliency[pixel] = ef / ((ef + nf) * (ef + ep)) ** 0.5 if ef else 0.0
    return saliency


def test_sbfl_is_its_definition_from_end_to_end():
    def score(wave):
        return (wave[:, 1, 1] | wave[:, 2, 3]).astype(float)

    finding, asked = drive(Sbfl(mutants=60, chains=7, blocks=4).search(problem_of((4, 5)), rng()), score)
    mutants = np.concatenate(asked)
    assert len(mutants) == 60
    assert finding.saliency == pytest.approx(slow_ochiai(mutants, score(mutants) > 0.5))
    assert sorted(np.argsort(finding.saliency.ravel())[-2:]) == [1 * 5 + 1, 2 * 5 + 3]


def rng(seed=0):
    return np.random.default_rng(seed)


def test_sbfl_masks_more_after_a_pass_and_less_after_a_failure_so_that_both_are_balanced():
    sbfl = Sbfl(mutants=400, chains=20)
    _, asked = drive(sbfl.search(problem_of((32, 32)), rng()), lambda wave: np.ones(len(wave)))
    masked = [1 - wave.mean() for wave in asked]
    assert masked[0] == pytest.approx(sbfl.share, abs=0.05)
    assert masked[-1] > 0.9
    assert all(wave.any(axis=(1, 2)).all() for wave in asked)
    _, asked = drive(sbfl.search(problem_of((32, 32)), rng()), lambda wave: np.zeros(len(wave)))
    assert asked[-1].mean() > 0.95
    assert not any(wave.all(axis=(1, 2)).any() for wave in asked)
    passed = []

    def score(wave):
        passed.append(wave[:, 10:20, 10:20].mean(axis=(1, 2)) > 0.7)
        return passed[-1].astype(float)

    drive(sbfl.search(problem_of((32, 32)), rng()), score)
    assert np.concatenate(passed[3:]).mean() == pytest.approx(0.5, abs=0.1)


# RISE


def exact_expectation(rise, grid, score):
    """E[score | pixel visible] and P(pixel visible), by every coarse grid, every shift and every level."""
    shape = (rise.cells + 2,) * len(grid)
    size = int(np.prod(shape))
    sums, chance = np.zeros(grid), np.zeros(grid)
    shifts = list(itertools.product(*(range(rise.length(side)) for side in grid)))
    for bits in itertools.product((False, True), repeat=size):
        ones = sum(bits)
        odds = rise.share**ones * (1 - rise.share) ** (size - ones) / len(shifts)
        for shift in shifts:
            soft = rise.field(grid, np.array(bits).reshape(shape), shift)
            levels = np.unique(np.concatenate([[0.0, 1.0], np.clip(soft.ravel(), 0, 1)]))
            for low, high in itertools.pairwise(levels):
                visible = soft > (low + high) / 2
                sums += odds * (high - low) * float(score(visible[None])[0]) * visible
                chance += odds * (high - low) * visible
    return sums / chance, chance


@pytest.mark.parametrize(
    ("grid", "cells", "share"), [((5,), 3, 0.5), ((5,), 2, 0.3), ((3, 2), 1, 0.5)], ids=["half", "third", "plane"]
)
def test_rise_converges_to_the_exact_expectation(grid, cells, share):
    def score(wave):
        flat = wave.reshape(len(wave), -1)
        return 0.1 + 0.5 * (flat[:, 1] & flat[:, 2]) + 0.3 * (flat[:, 4] & ~flat[:, 0])

    rise = Rise(masks=12_000, cells=cells, share=share)
    exact, chance = exact_expectation(rise, grid, score)
    assert chance == pytest.approx(np.full(grid, share))  # every pixel alike, at the edge as in the middle
    finding, _ = drive(rise.search(problem_of(grid), rng()), score)
    assert finding.saliency == pytest.approx(exact, abs=0.02)


def test_rise_is_unbiased_however_few_the_masks():
    rise = Rise(masks=6, cells=2)

    def score(wave):
        return (wave[:, 1] & wave[:, 2]).astype(float)

    exact, _ = exact_expectation(rise, (4,), score)
    runs, seen = np.zeros(4), np.zeros(4)
    for seed in range(1500):
        finding, asked = drive(rise.search(problem_of((4,)), rng(seed)), score)
        visible = np.concatenate(asked).any(axis=0)  # there is no estimate for a pixel that was never shown
        runs += np.where(visible, finding.saliency, 0.0)
        seen += visible
    assert runs / seen == pytest.approx(exact, abs=0.03)


# LIME


def patch_scores(patch, weights, intercept):
    first = [tuple(np.argwhere(patch == k)[0]) for k in range(len(weights))]
    return lambda wave: intercept + np.stack([wave[(slice(None), *at)] for at in first], axis=1) @ weights


def test_lime_recovers_the_weights_of_a_linear_classifier():
    view = rng(1).integers(0, 256, (16, 18, 3)).astype(np.uint8)
    lime = Lime(samples=400, patches=12, ridge=0.0)
    patch = superpixels(view, lime.patches)
    weights = rng(2).normal(0, 0.05, patch.max() + 1)
    score = patch_scores(patch, weights, 0.4)
    finding, asked = drive(lime.search(problem_of((16, 18), view=view), rng()), score)
    assert finding.saliency == pytest.approx(weights[patch])
    assert sum(map(len, asked)) == 400
    assert asked[0][0].all()  # the view itself is the first sample
    shrunk, _ = drive(Lime(samples=400, patches=12).search(problem_of((16, 18), view=view), rng()), score)
    assert np.corrcoef(shrunk.saliency.ravel(), weights[patch].ravel())[0, 1] > 0.99


@pytest.mark.parametrize("samples", [10, 80])
def test_the_ridge_is_its_definition(samples):
    """The gradient of the penalised, weighted sum of squares is zero, whichever system was solved."""
    numbers = rng(samples)
    shown = numbers.random((samples, 30)) < 0.5
    values, weight = numbers.random(samples), numbers.random(samples)
    found = fit_ridge(shown, values, weight, 0.7)
    rest = values - shown @ found
    rest -= (weight @ rest) / weight.sum()  # the best intercept
    assert shown.T @ (weight * rest) == pytest.approx(0.7 * found)


@pytest.mark.parametrize("shape", [(60, 1), (40, 36, 3), (12, 14, 10, 1)])
def test_superpixels_are_in_one_piece_and_no_crumbs(shape):
    view = np.repeat(rng(4).random((-(-shape[0] // 3), *shape[1:])), 3, axis=0)[: shape[0]]
    patch = superpixels(view, 20, compactness=0.02)  # colour over all: pieces everywhere
    assert patch.shape == shape[:-1]
    sizes = np.bincount(patch.ravel())
    assert sizes.min() >= np.prod(shape[:-1]) / 20 / 8
    assert all(count_components(patch == k) == 1 for k in range(len(sizes)))
    assert np.array_equal(patch, superpixels(view, 20, compactness=0.02))


def test_superpixels_follow_edges_and_leave_no_gap():
    view = np.zeros((40, 40, 3), np.uint8)
    view[:, 17:] = (200, 180, 40)
    patch = superpixels(view, 25)
    assert patch.shape == (40, 40)
    assert sorted(np.unique(patch)) == list(range(patch.max() + 1))
    assert 15 <= patch.max() + 1 <= 35
    for k in range(patch.max() + 1):
        assert len(np.unique(view[patch == k], axis=0)) == 1


# SHAP


def test_shap_of_an_additive_game_is_the_additive_values():
    pytest.importorskip("shap", exc_type=ImportError)
    weights = rng(3).normal(0, 0.1, (4, 4))
    finding, asked = drive(
        Shap(evaluations=1000, cells=4).search(problem_of((4, 4)), rng()),
        lambda wave: 0.2 + wave.reshape(-1, 16) @ weights.ravel(),
    )
    assert finding.saliency == pytest.approx(weights)
    assert sum(map(len, asked)) <= 1000


def test_shap_adds_up_to_the_whole_less_nothing_and_gives_like_pixels_alike():
    pytest.importorskip("shap", exc_type=ImportError)

    def score(wave):
        return 0.1 + 0.8 * (wave[:, 0] & wave[:, 3]) + 0.0 * wave[:, 1]

    finding, _ = drive(Shap(evaluations=200, cells=4).search(problem_of((4,)), rng()), score)
    assert finding.saliency == pytest.approx([0.4, 0.0, 0.0, 0.4])
    coarse, asked = drive(Shap(evaluations=7, cells=4).search(problem_of((4,)), rng()), score)
    assert sum(map(len, asked)) <= 7
    assert coarse.saliency.sum() == pytest.approx(0.8)


@pytest.mark.parametrize("budget", [3, 4, 70, 120, 131])
def test_shap_told_to_stop_is_shap_with_as_many_evaluations(budget):
    pytest.importorskip("shap", exc_type=ImportError)
    classifier, case, problem = pose(bright_part, (24, 20))
    stopped = Engine(classifier).run(case, Shap(evaluations=300).search(problem, rng()), max_calls=budget).result
    assert stopped.notes == (f"shap was stopped after {budget} of 300 mutants",)
    if budget < 4:
        assert not stopped.saliency.any()
    else:
        modest = Engine(classifier).run(case, Shap(evaluations=budget).search(problem, rng())).result
        assert np.array_equal(stopped.saliency, modest.saliency)
        assert not modest.notes


@pytest.mark.parametrize("grid", [(7,), (6, 5), (5, 4, 3)])
def test_the_boxes_of_the_hierarchy_join_into_the_whole(grid):
    tree = halve(grid, 1)
    assert sorted(tree.cell.ravel()) == list(range(int(np.prod(grid))))
    members = [{k} for k in range(tree.count)]
    for left, right, _, size in tree.linkage:
        members.append(members[int(left)] | members[int(right)])
        assert len(members[-1]) == size
    assert members[-1] == set(range(tree.count))


# Occlusion


def test_occlusion_is_the_mean_drop_over_the_windows_that_cover_a_pixel():
    occlusion = Occlusion(window=0.5, stride=0.25)
    windows = [(0, 2), (0, 4), (2, 6), (4, 8), (6, 8)]  # of 4 pixels, 2 apart, the outer ones sticking out
    assert [(w.start[0], w.stop[0]) for w in occlusion.windows((8,))] == windows

    def score(wave):
        return 0.9 * wave[:, 3]

    finding, _ = drive(occlusion.search(problem_of((8,)), rng()), score)
    drop = [0.0, 0.9, 0.9, 0.0, 0.0]
    by_hand = [np.mean([d for d, (a, b) in zip(drop, windows, strict=True) if a <= x < b]) for x in range(8)]
    assert finding.saliency == pytest.approx(by_hand)


# Do they find the object?


@cache
def bundled():
    return becausal.load_model("bundled")


def find_scenes(count, first=1000):
    """Scenes the bundled classifier names, each with its case and problem."""
    classifier = bundled()
    found = []
    for seed in itertools.count(first):
        scene = make_scene(seed)
        if scene.label == NOTHING or not scene.visible.any():
            continue
        background = make_background("grey", scene.image, rng=rng(), read_image=None)
        scores = classifier.classify(np.stack([scene.image, background]))
        label = classifier.info.labels.index(scene.label)
        if np.argmax(scores[0]) != label or np.argmax(scores[1]) == label:
            continue
        case = Problem(scene.image, (background,), Target(label))
        found.append((scene, case, replace(case, model=classifier)))
        if len(found) == count:
            return found


def share_inside(saliency, truth):
    """The share of the top-k pixels, k the truth's area, that lie in the truth; ties in a random order."""
    order = np.lexsort((rng().random(saliency.size), -saliency.ravel()))
    return float(truth.ravel()[order[: np.count_nonzero(truth)]].mean())


def mean_share(explainer, scenes):
    engine = Engine(bundled())
    maps = [engine.run(case, explainer.search(problem, rng())).result.saliency for _, case, problem in scenes]
    return np.mean([share_inside(m, scene.visible) for m, (scene, _, _) in zip(maps, scenes, strict=True)])


def compare_with_controls(scenes, make_one):
    found = {name: mean_share(make_one(name), scenes) for name in SMALL}
    for name in ASKING:
        assert found[name] > found["random"] + 0.1, found
        if name not in NOISY:
            assert found[name] > found["centre"] + 0.05, found
    return found


def test_each_method_finds_the_object_better_than_the_controls():
    """The reduced form: two scenes, a sixth of the calls."""
    pytest.importorskip("shap", exc_type=ImportError)
    compare_with_controls(find_scenes(2, first=1002), make)


@pytest.mark.slow
def test_each_method_finds_the_object_better_than_the_controls_on_thirty_scenes():
    pytest.importorskip("shap", exc_type=ImportError)
    print(compare_with_controls(find_scenes(30), make_explainer))
