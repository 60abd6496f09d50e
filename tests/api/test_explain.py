"""From an image to a certified explanation and back from disk, with the bundled classifier and with small functions."""

import json
import math
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import becausal
import becausal.models.bundled
from becausal.api import Failure, Request
from becausal.api.explanation import FILES, Explanation
from becausal.core.errors import AnswerError, BecausalError, FillError, OptionError, OutputError, TargetError
from becausal.core.explanation import SCHEMA, NamedScore
from becausal.core.metrics import HELD_OUT_COUNT
from becausal.core.regions import cells
from becausal.images.backgrounds import RandomBackgrounds
from becausal.methods.causal.search import Causal
from becausal.models import as_classifier, read_labels
from becausal.render.wording import as_text, headline
from becausal.scenes import make_scene
from becausal.search.budget import LAST_CALLS
from becausal.search.descent import Tuning

FOLDER = Path(becausal.models.bundled.__file__).parent
SHARED = Path(__file__).parents[3] / "shared"
#: Scenes that no training has seen, each with something in it.
SCENES = [50_000_000 + k for k in (0, 1, 3, 4, 6)]

needs_bundled = pytest.mark.skipif(
    not (FOLDER / "scenes.onnx").is_file(), reason="the bundled classifier is not trained yet: run training/train.py"
)


@cache
def bundled():
    return becausal.load_model("bundled", threads=1)


@cache
def scene(number):
    return make_scene(SCENES[number], cover=(0.1, 0.4))


@cache
def explained(number=0):
    """One explanation of the bundled classifier, without limits."""
    return becausal.explain(scene(number).image, bundled(), seed=3)


def label_of(pixels, model=None):
    return int((model or bundled()).classify(pixels[None])[0].argmax())


# By hand


@needs_bundled
@pytest.mark.parametrize("number", [0, 2])
def test_every_claim_holds_when_it_is_asked_by_hand(number):
    explanation = explained(number)
    picture, visible = scene(number).image, explanation.visible
    assert explanation.label == scene(number).label
    assert explanation.label_id == scene(number).label_index == label_of(picture)
    assert math.isclose(explanation.confidence, bundled().classify(picture[None])[0, explanation.label_id], abs_tol=1e-6)

    def hidden(shown):
        return np.where(shown[..., None], picture, np.uint8(128))

    assert explanation.stopped_by == "finished"
    assert explanation.checks.sufficient
    alone = bundled().classify(hidden(visible)[None])[0]
    assert alone.argmax() == explanation.label_id
    assert math.isclose(explanation.checks.confidence, alone[explanation.label_id], abs_tol=1e-5)
    assert explanation.checks.necessary == (label_of(hidden(~visible)) != explanation.label_id)
    core, enough = explanation.levels
    assert (core.name, enough.name) == ("core", "enough")
    assert not (core.visible & ~enough.visible).any()
    assert enough.visible is visible
    sampler = RandomBackgrounds(picture, 3)

    def keeps(shown, numbers=()):
        """Whether a set keeps 0.9 of the confidence in the plain fill, and the label on these backgrounds."""
        scores = bundled().classify(hidden(shown)[None])[0]
        others = [label_of(np.where(shown[..., None], picture, sampler.draw(number))) for number in numbers]
        is_confident = scores[explanation.label_id] >= 0.9 * explanation.confidence
        return is_confident and {scores.argmax(), *others} == {explanation.label_id}

    for level in explanation.levels:
        assert keeps(level.visible, level.panel)
        number_of = cells(visible.shape, level.checks.minimal_grain)
        left = np.unique(number_of[level.visible])
        assert level.checks.cells == len(left)
        assert not any(keeps(level.visible & (number_of != c), level.panel) for c in left)
    assert core.checks.minimal_grain == 5
    assert enough.panel
    certificate, transfer = enough.certificate, enough.checks.transfer
    fresh = range(certificate.first, certificate.first + certificate.asked)
    assert not set(fresh) & set(enough.panel)
    labels = [label_of(np.where(visible[..., None], picture, sampler.draw(number))) for number in fresh]
    assert labels.count(explanation.label_id) == certificate.kept == transfer.kept
    assert certificate.holds
    assert certificate.share == 0.9
    assert explanation.pixels == visible.sum()
    assert explanation.size == visible.mean() < 0.05
    assert (visible & scene(number).object).sum() / visible.sum() > 0.5  # it lies on the object


@needs_bundled
def test_the_map_lies_over_the_view_and_the_explanation_is_on_top_of_it():
    explanation = explained()
    assert explanation.responsibility.shape == explanation.visible.shape == (128, 128)
    assert explanation.responsibility.dtype == np.float64
    assert np.isfinite(explanation.responsibility).all()
    assert explanation.responsibility.min() >= 0
    core = explanation.levels[0].visible
    assert explanation.responsibility[core].min() > explanation.responsibility[~core].max() > 0


@needs_bundled
@pytest.mark.parametrize("options", [{"method": "causal"}, {"method": "dc-causal", "options": {"partitions": 3}}])
def test_the_same_seed_gives_the_same_arrays_whatever_the_batch_size(options):
    def ask(**more):
        given = {"seed": 5, "max_calls": 130, **options, **more}
        found = becausal.explain(scene(1).image, bundled(), **given)
        return found.visible.tobytes(), found.responsibility.tobytes(), found.calls, found.checks

    wanted = ask()
    for batch_size in (1, 7, 64):
        assert ask(batch_size=batch_size) == wanted
    assert ask(seed=6)[1] != wanted[1]


@needs_bundled
def test_files_arrays_and_pillow_images_are_the_same_picture(tmp_path):
    picture = scene(0).image
    Image.fromarray(picture).save(tmp_path / "scene.png")
    found = [
        becausal.explain(given, bundled(), max_calls=60)
        for given in (picture, Image.fromarray(picture), tmp_path / "scene.png", str(tmp_path / "scene.png"))
    ]
    assert len({e.visible.tobytes() for e in found}) == 1
    assert [e.origin.image for e in found][2:] == ["scene.png"] * 2


# More than one answer


@needs_bundled
def test_several_explanations_are_disjoint_and_each_is_sufficient(tmp_path):
    picture = scene(0).image
    explanation = becausal.explain(picture, bundled(), several=3, grain=4)
    sets = explanation.sets
    assert len(sets) == 3
    assert np.sum([found.visible for found in sets], axis=0).max() == 1
    for found in sets:
        alone = bundled().classify(np.where(found.visible[..., None], picture, np.uint8(128))[None])[0]
        assert alone.argmax() == explanation.label_id
        assert math.isclose(found.checks.confidence, alone[explanation.label_id], abs_tol=1e-5)
        rest = label_of(np.where(found.visible[..., None], np.uint8(128), picture))
        assert found.checks.necessary == (rest != explanation.label_id)
        number = cells((128, 128), found.checks.minimal_grain)
        for c in np.unique(number[found.visible]):
            less = found.visible & (number != c)
            assert label_of(np.where(less[..., None], picture, np.uint8(128))) != explanation.label_id
    loaded = Explanation.load(explanation.save(tmp_path / "it"))
    same(loaded, explanation)
    record = strict_json((tmp_path / "it" / "explanation.json").read_text())
    assert [entry["confidence"] for entry in record["further"]] == [other.checks.confidence for other in loaded.others]
    assert set(record["further"][0]) == set(record["explanation"])
    for visible in (found.visible for found in sets[1:]):
        assert (paint_difference(explanation, tmp_path / "it")[visible] > 0).any()  # drawn, unlike what is masked


@needs_bundled
def test_verify_repeats_every_claim_of_every_explanation():
    explanation = becausal.explain(scene(0).image, bundled(), several=3, grain=4)
    claims = explanation.verify(bundled())
    assert len(claims) == 15
    assert all(claim.holds for claim in claims)
    assert {claim.name for claim in claims[5:10]} == {
        f"explanation 2: {name}" for name in ("sufficient", "minimal", "necessary", "confidence", "random backgrounds")
    }
    emptied = replace(explanation.others[0], visible=np.zeros((128, 128), bool))
    assert "explanation 2: sufficient" in broken(replace(explanation, others=(emptied, explanation.others[1])))
    boast = replace(explanation.others[1], checks=replace(explanation.others[1].checks, confidence=0.99))
    assert broken(replace(explanation, others=(explanation.others[0], boast))) == {"explanation 3: confidence"}


@needs_bundled
def test_checking_further_explanations_costs_few_calls_and_stays_in_the_budget():
    picture = scene(0).image
    explanation = becausal.explain(picture, bundled(), several=3, grain=4)
    finding = search_alone(picture, explanation)
    assert list(finding.grains) == [found.checks.minimal_grain for found in explanation.sets]
    for max_calls in (10, 60, explanation.calls // 2):
        cut = becausal.explain(picture, bundled(), several=3, grain=4, max_calls=max_calls)
        assert cut.calls <= max_calls
        assert cut.stopped_by == "budget"
        assert all(found.checks.sufficient and not math.isnan(found.checks.confidence) for found in cut.sets)


def search_alone(picture, explanation):
    """The finding of the method behind an explanation, without the pipeline."""
    from becausal.core.problem import Problem
    from becausal.engine.engine import Engine

    problem = Problem(picture, explanation.backgrounds, explanation.target)
    rng = np.random.default_rng(explanation.origin.request.seed).spawn(2)[0]
    outcome = Engine(bundled()).run(problem, Causal(grain=4, several=3).search(problem, rng))
    # The whole view twice (to find the label, and the same again is free), the fully masked image, two checks of each
    # set, its fresh backgrounds, and the last confirmation, alone and in company; what the search has seen already is free.
    assert 0 < explanation.calls - outcome.stats.calls <= 3 + LAST_CALLS + (2 + HELD_OUT_COUNT) * len(explanation.sets)
    return outcome.result


def paint_difference(explanation, folder):
    """How far the saved figure is from one of the darkened image, per pixel of the view."""
    from becausal.render.painting import paint_explanation
    from becausal.render.sheets import lay_out

    sheet = lay_out(explanation)
    nothing = replace(sheet, visible=np.zeros_like(sheet.visible), others=())
    dark = paint_explanation(nothing)[:: sheet.scale, :: sheet.scale]
    with Image.open(folder / "explanation.png") as image:
        drawn = np.asarray(image.convert("RGB"))[: 128 * sheet.scale : sheet.scale, : 128 * sheet.scale : sheet.scale]
    return np.abs(drawn.astype(int) - dark).max(axis=-1)


def test_where_there_is_but_one_explanation_several_says_so():
    explanation = becausal.explain(square(), labels_only, fills="black", several=2)
    assert not explanation.others
    assert any("1 of 2" in note for note in explanation.notes)
    with pytest.raises(OptionError, match="several"):
        becausal.explain(square(), labels_only, several=2, method="dc-causal")


@needs_bundled
@pytest.mark.parametrize("method", ["causal", "dc-causal"])
def test_a_contrast_is_sufficient_and_necessary_at_once(method):
    picture = scene(1).image
    options = {"partitions": 3} if method == "dc-causal" else None
    explanation = becausal.explain(picture, bundled(), contrast=True, grain=8, method=method, options=options)
    assert explanation.checks.sufficient
    assert explanation.checks.necessary
    visible = explanation.visible

    def label(shown):
        return label_of(np.where(shown[..., None], picture, np.uint8(128)))

    assert label(visible) == explanation.label_id != label(~visible)
    assert explanation.checks.minimal_grain == 8
    number = cells((128, 128), 8)
    for c in np.unique(number[visible]):
        less = visible & (number != c)
        assert label(less) != explanation.label_id or label(~less) == explanation.label_id
    assert all(claim.holds for claim in explanation.verify(bundled()))


@needs_bundled
def test_why_of_a_contrast_claims_no_more_than_is_so():
    # A cell may be in it because what is hidden would have the label without it.
    explanation = becausal.explain(scene(1).image, bundled(), contrast=True, grain=8)
    for row, column in np.argwhere(explanation.visible)[::16]:
        why = explanation.why(row, column)
        if "it is lost" in why.text:
            assert why.without is not None
            assert label_of(why.without) != explanation.label_id


# Saved and read back


def strict_json(text):
    def refuse(constant):
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def same(one, other):
    """All that is saved of two explanations is the same."""
    assert (one.visible == other.visible).all()
    assert (one.responsibility == other.responsibility).all()
    assert [(a.name, a.panel) for a in one.levels] == [(b.name, b.panel) for b in other.levels]
    assert all((a.visible == b.visible).all() for a, b in zip(one.levels, other.levels, strict=True))
    assert np.array_equal(one.zones, other.zones)
    assert (one.view == other.view).all()
    assert one.view.dtype == other.view.dtype
    assert len(one.backgrounds) == len(other.backgrounds)
    assert all((a == b).all() for a, b in zip(one.backgrounds, other.backgrounds, strict=True))
    assert len(one.others) == len(other.others)
    assert (one.label, one.label_id, one.target, one.stopped_by, one.notes, one.frame) == (
        other.label, other.label_id, other.target, other.stopped_by, other.notes, other.frame,
    )  # fmt: skip
    assert repr(one.checks) == repr(other.checks)  # NaN equals itself here
    assert repr(one.confidence) == repr(other.confidence)
    assert one.stats == other.stats
    assert json.dumps(one.record()) == json.dumps(other.record())


@needs_bundled
def test_saved_and_loaded_it_is_the_same(tmp_path):
    explanation = explained()
    folder = explanation.save(tmp_path / "deep" / "er")
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert list(folder.parent.iterdir()) == [folder]  # nothing half-written is left
    same(Explanation.load(folder), explanation)
    with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
        assert arrays["visible"].dtype == np.bool_
        assert arrays["visible"].shape == arrays["responsibility"].shape == (128, 128)
        assert arrays["responsibility"].dtype == np.float64
        assert (arrays["zones"] == explanation.zones).all()
        assert arrays["zones"].dtype == np.uint8
    record = strict_json((folder / "explanation.json").read_text())
    assert record["schema"] == SCHEMA
    assert {"image", "label", "label_id", "confidence", "method", "calls", "seconds", "stopped_by"} <= set(record)
    wanted = {"size", "pixels", "confidence", "sufficient", "necessary", "minimal_grain"}
    assert wanted <= set(record["explanation"])
    origin = record["origin"]
    assert len(origin["image_sha256"]) == len(origin["model_sha256"]) == 64
    assert origin["request"]["seed"] == 3
    assert origin["options"] == {"grain": None, "several": 1, "smallest": False, "overlap": 0.0}
    assert {"numpy", "onnxruntime", "pillow", "python"} <= set(origin["versions"])
    assert "<html" in (folder / "report.html").read_text()
    assert explanation.save(folder) == folder  # over itself
    same(Explanation.load(folder), explanation)


def test_a_label_only_explanation_has_no_number_where_there_is_none(tmp_path):
    explanation = becausal.explain(square(), labels_only)
    assert math.isnan(explanation.confidence)
    explanation.save(tmp_path / "it")
    record = strict_json((tmp_path / "it" / "explanation.json").read_text())
    assert record["confidence"] is None
    assert record["explanation"]["confidence"] is None
    same(Explanation.load(tmp_path / "it"), explanation)


@pytest.mark.usefixtures("without_figures")
def test_what_cannot_be_read_back_says_so(tmp_path):
    explanation = becausal.explain(square(), bright_square, max_calls=40)
    with pytest.raises(OutputError, match="missing"):
        Explanation.load(tmp_path)
    for name, spoil in {
        "explanation.json": lambda p: p.write_text("{"),
        "arrays.npz": lambda p: p.write_bytes(b"no archive"),
    }.items():
        folder = explanation.save(tmp_path / name)
        spoil(folder / name)
        with pytest.raises(OutputError, match="readable"):
            Explanation.load(folder)
    folder = explanation.save(tmp_path / "schema")
    text = (folder / "explanation.json").read_text().replace(SCHEMA, "becausal/explanation/99")
    (folder / "explanation.json").write_text(text)
    with pytest.raises(OutputError, match="99"):
        Explanation.load(folder)


@pytest.mark.parametrize("keep", [0, 20, 0.5, -1])
@pytest.mark.usefixtures("without_figures")
def test_arrays_cut_short_are_an_output_error(tmp_path, keep):
    folder = becausal.explain(square(), bright_square, max_calls=40).save(tmp_path / "it")
    data = (folder / "arrays.npz").read_bytes()
    (folder / "arrays.npz").write_bytes(data[: keep if isinstance(keep, int) else int(keep * len(data))])
    with pytest.raises(OutputError):
        Explanation.load(folder)


@pytest.mark.usefixtures("without_figures")
def test_a_folder_that_cannot_be_written_is_an_output_error(tmp_path):
    explanation = becausal.explain(square(), bright_square, max_calls=40)
    (tmp_path / "file").write_text("in the way")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match="cannot write"):
            explanation.save(place)
    assert (tmp_path / "file").read_text() == "in the way"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


# Verified again, and found out


def broken(explanation, model=None):
    return {claim.name for claim in explanation.verify(model or bundled()) if not claim.holds}


@needs_bundled
@pytest.mark.usefixtures("without_figures")
def test_verify_repeats_every_claim(tmp_path):
    explanation = explained()
    claims = explanation.verify(bundled())
    core = ("sufficient", "minimal", "necessary", "confidence", "random backgrounds")
    enough = ("sufficient", "necessary", "confidence", "random backgrounds", "minimal")
    assert [claim.name for claim in claims] == [*(f"core: {name}" for name in core), *enough]
    assert all(claim.holds for claim in claims)
    loaded = Explanation.load(explanation.save(tmp_path / "it"))
    assert becausal.verify(loaded, "bundled") == claims


@needs_bundled
def test_verify_finds_out_what_was_tampered_with():
    explanation = explained()
    core, enough = explanation.levels
    number = cells((128, 128), explanation.checks.minimal_grain)
    for first in np.unique(number[explanation.visible]):  # it fails in the plain fill, or on one of the panel
        less = replace(explanation, visible=explanation.visible & (number != first))
        assert "minimal" in broken(less)
        assert "random backgrounds" in broken(less)
    assert "random backgrounds" in broken(replace(explanation, visible=core.visible))
    small = cells((128, 128), core.checks.minimal_grain)
    less = replace(core, visible=core.visible & (small != small[core.visible][0]))
    assert "core: sufficient" in broken(replace(explanation, levels=(less, enough)))
    more = replace(explanation, visible=explanation.visible | (number == number[~explanation.visible][0]))
    assert "minimal" in broken(more)
    coarse = replace(explanation.checks, minimal_grain=64)
    everything = replace(explanation, visible=np.ones((128, 128), bool), checks=coarse)
    assert {"minimal", "confidence"} <= broken(everything)
    other = replace(explanation, view=scene(1).image)
    assert "sufficient" in broken(other)
    filled = replace(explanation, backgrounds=(np.zeros_like(explanation.view),))
    assert broken(filled)
    boast = replace(explanation, checks=replace(explanation.checks, confidence=0.5))
    assert broken(boast) == {"confidence"}
    claim = replace(explanation, checks=replace(explanation.checks, necessary=not explanation.checks.necessary))
    assert broken(claim) == {"necessary"}


@needs_bundled
def test_verify_of_an_emptied_explanation_is_a_claim_that_fails():
    assert "sufficient" in broken(replace(explained(), visible=np.zeros((128, 128), bool)))


# The proof for one pixel


@needs_bundled
def test_why_shows_for_every_cell_two_pictures_that_prove_it():
    explanation = explained()
    picture, sampler, inner = scene(0).image, RandomBackgrounds(scene(0).image, 3), np.zeros((128, 128), bool)

    def label_on(number, visible):
        return label_of(np.where(visible[..., None], picture, sampler.draw(number)))

    for level in explanation.levels:
        number = cells((128, 128), level.checks.minimal_grain)
        is_core, floor = level.certificate is None, level.share * explanation.confidence

        def keeps(pixels, floor=floor):
            scores = bundled().classify(pixels[None])[0]
            return scores.argmax() == explanation.label_id and scores[explanation.label_id] >= floor

        seen = set()
        for row, column in np.argwhere(level.visible & ~inner):  # a pixel of both is told of the core
            if number[row, column] in seen:
                continue
            seen.add(number[row, column])
            why = explanation.why(row, column)
            assert why.part
            assert why.cell[row, column]
            assert (why.cell == level.visible & (number == number[row, column])).all()
            assert keeps(why.shown)
            lost = [label_on(k, level.visible & ~why.cell) != explanation.label_id for k in level.panel]
            assert not keeps(why.without) or any(lost)
            differ = (why.shown != why.without).any(axis=-1)
            assert not (differ & ~why.cell).any()
            assert f"cell of {level.checks.minimal_grain} px" in why.text
            assert ("keeps 90 %" if is_core else "; without it, the label is lost on one of them, or with") in why.text
        assert seen
        assert not is_core or len(seen) == level.checks.cells
        inner = level.visible


@needs_bundled
def test_why_of_a_pixel_outside_and_of_places_that_are_none():
    explanation = explained()
    row, column = np.argwhere(~explanation.visible)[0]
    why = explanation.why(row, column)
    assert not why.part
    assert why.without is None
    assert label_of(why.shown) == explanation.label_id
    for place in ((0,), (0, 128), (-1, 0), (0, 0, 0)):
        with pytest.raises(OptionError, match="position"):
            explanation.why(*place)


def test_why_of_a_cell_of_which_only_a_part_is_in_the_explanation():
    # A prefix of a ranking does not come in cells.
    options = {"partitions": 6}
    explanation = becausal.explain(square(), bright_square, method="dc-causal", options=options, grain=3, smallest=True)
    number = cells((12, 16), 3)
    partly = [p for p in np.argwhere(explanation.visible) if not explanation.visible[number == number[tuple(p)]].all()]
    assert partly, "every cell is whole: the test shows nothing"
    for place in partly:
        why = explanation.why(*place)
        assert (why.cell == explanation.visible & (number == number[tuple(place)])).all()
        assert bright_square(why.shown[None])[0].argmax() == 1
        assert bright_square(why.without[None])[0].argmax() == 0


def test_why_without_a_certificate_claims_nothing():
    explanation = becausal.explain(square(), bright_square, grain=None, method="dc-causal", options={"partitions": 2})
    assert explanation.checks.minimal_grain is None
    why = explanation.why(*np.argwhere(explanation.visible)[0])
    assert why.part
    assert why.without is None


# The way back to the original image


@needs_bundled
@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("scale", [1, 2])
def test_arrays_are_mapped_back_onto_a_picture_that_is_not_square(turn, scale):
    wide = np.full((128 * scale, 200 * scale, 3), 90, np.uint8)
    inner = np.kron(scene(1).image, np.ones((scale, scale, 1), np.uint8))
    left = 36 * scale
    wide[:, left : left + 128 * scale] = inner
    picture = wide.transpose(1, 0, 2).copy() if turn else wide
    explanation = becausal.explain(picture, bundled(), max_calls=150)
    back = explanation.on_original(explanation.visible)
    assert back.dtype == np.bool_
    assert back.shape == picture.shape[:2]
    if turn:
        back = back.T
    shown = explanation.visible.T if turn else explanation.visible
    assert not back[:, :left].any()
    assert not back[:, left + 128 * scale :].any()
    assert (back[:, left : left + 128 * scale] == np.kron(shown, np.ones((scale, scale), bool))).all()
    map_back = explanation.on_original(explanation.responsibility)
    assert map_back.shape == picture.shape[:2]
    if scale == 1:
        assert (map_back.T if turn else map_back)[:, left : left + 128].tolist() == (
            explanation.responsibility.T if turn else explanation.responsibility
        ).tolist()


# Small functions as models

PLACE = (slice(5, 9), slice(3, 7))


def square():
    """A dark image with a bright square, (12, 16, 3)."""
    picture = np.full((12, 16, 3), 20, np.uint8)
    picture[PLACE] = 240
    return picture


def brightness(batch):
    """(n,) from 0 to 1: how bright it is in the square's place."""
    return batch[:, *PLACE].reshape(len(batch), -1).mean(axis=1) / 255


def bright_square(batch):
    share = 1 / (1 + np.exp(-20 * (brightness(batch) - 0.6)))
    return np.stack([1 - share, share], axis=1)


def labels_only(batch):
    return (brightness(batch) > 0.6).astype(int)


def named_labels(batch):
    return ["lamp" if b > 0.6 else "dark" for b in brightness(batch)]


def one_logit(batch):
    return 20 * (brightness(batch) - 0.6)[:, None]


def inside(explanation):
    """Whether the explanation lies in the square's place."""
    truth = np.zeros(explanation.visible.shape, bool)
    truth[PLACE] = True
    return not (explanation.visible & ~truth).any()


def test_a_model_that_gives_labels_only():
    for model, label in ((labels_only, "class 1"), (named_labels, "lamp")):
        explanation = becausal.explain(square(), model, fills="black")
        assert explanation.label == label
        assert explanation.checks.sufficient
        assert explanation.checks.minimal_grain == 1
        assert explanation.pixels == 11  # of 16 at 240/255: more than 0.6 on average
        assert inside(explanation)
        assert math.isnan(explanation.checks.confidence)
        assert all(claim.holds for claim in explanation.verify(model))


@pytest.mark.parametrize("options", [{"confidence": 0.5}, {"top": 2}, {"against": 0}])
def test_a_model_that_gives_labels_only_cannot_be_asked_for_scores(options):
    with pytest.raises(TargetError, match="labels only"):
        becausal.explain(square(), labels_only, **options)


def test_a_model_with_one_logit_has_two_classes():
    explanation = becausal.explain(square(), one_logit, fills="black", smallest=True)
    assert (explanation.label_id, explanation.label) == (1, "positive")
    assert explanation.checks.sufficient
    assert explanation.pixels == 11
    assert inside(explanation)
    dark = np.full((12, 16, 3), 20, np.uint8)
    explanation = becausal.explain(dark, one_logit, fills="white")
    assert (explanation.label_id, explanation.label) == (0, "not positive")
    assert explanation.checks.sufficient


def two_things(batch):
    """Independent labels: left half bright, right half bright."""
    halves = [batch[:, :, :8], batch[:, :, 8:]]
    return np.stack([np.clip(h.reshape(len(h), -1).mean(axis=1) / 100, 0, 1) for h in halves], axis=1)


two_things.output = "multilabel"
two_things.labels = ["left", "right"]


def test_a_model_of_independent_labels_is_asked_for_each_by_its_threshold():
    picture = np.full((8, 16, 3), 100, np.uint8)
    for label, half in (("left", slice(0, 8)), ("right", slice(8, 16))):
        explanation = becausal.explain(picture, two_things, target=label, fills="black", smallest=True)
        assert explanation.label == label
        assert explanation.target.threshold == 0.5
        assert explanation.checks.sufficient
        outside = np.ones((8, 16), bool)
        outside[:, half] = False
        assert not (explanation.visible & outside).any()
        assert explanation.pixels == 32  # half of the half
        assert explanation.checks.necessary == bool(
            two_things(explanation.mutant(~explanation.visible)[None])[0].min() < 0.5
        )


def four_corners(batch):
    """Four classes, one for the brightness of each corner's box of 3x3 pixels."""
    corners = [batch[:, :3, :3], batch[:, :3, -3:], batch[:, -3:, :3], batch[:, -3:, -3:]]
    logits = np.stack([c.reshape(len(c), -1).mean(axis=1) / 20 for c in corners], axis=1)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


four_corners.labels = ["one", "two", "three", "four"]


def corners(*levels):
    picture = np.zeros((10, 10, 3), np.uint8)
    picture[:3, :3], picture[:3, -3:], picture[-3:, :3], picture[-3:, -3:] = levels
    return picture


def judged(explanation, model, rule):
    """Whether the rule holds of what the model says of the explanation, and of it less each cell."""
    alone = model(explanation.mutant(explanation.visible)[None])[0]
    cells_left = np.argwhere(explanation.visible)
    assert explanation.checks.minimal_grain == 1
    assert rule(alone)
    for place in cells_left:
        less = explanation.visible.copy()
        less[tuple(place)] = False
        assert not rule(model(explanation.mutant(less)[None])[0])


def test_the_target_may_be_a_label_in_the_top_k():
    picture = corners(200, 100, 150, 50)
    with pytest.raises(TargetError) as caught:
        becausal.explain(picture, four_corners, target="three", fills="black")
    said = (
        "the model does not say three here: its top label is one (0.92), three has rank 2 (0.08): ask with --top 2 (top=2)"
    )
    assert str(caught.value) == said
    explanation = becausal.explain(picture, four_corners, target="three", top=2, fills="black")
    assert explanation.label_id == 2

    def second(scores):
        return sorted(range(4), key=lambda i: (-np.float32(scores[i]), i)).index(2) < 2

    judged(explanation, four_corners, second)


@pytest.mark.parametrize(("label", "advice"), [(9, ": ask with --top 10 (top=10)"), (10, ""), (29, "")])
def test_a_label_far_behind_is_not_asked_about(label, advice):
    scores = np.linspace(0.05, 0.01, 30)
    model = as_classifier(lambda images: np.repeat(scores[None], len(images), axis=0), returns="probabilities")
    with pytest.raises(TargetError) as caught:
        becausal.explain(square(), model, target=label)
    place = "comes last" if label == 29 else f"has rank {label + 1}"
    said = f"class {label} here: its top label is class 0 (0.05), class {label} {place} ({scores[label]:.2f}){advice}"
    assert str(caught.value) == f"the model does not say {said}"


def test_the_target_may_be_held_against_one_rival():
    picture = corners(200, 100, 150, 50)
    explanation = becausal.explain(picture, four_corners, target="three", against="two", fills="black")
    assert explanation.target.against == 1
    judged(explanation, four_corners, lambda scores: np.float32(scores[2]) > np.float32(scores[1]))
    with pytest.raises(TargetError, match="same"):
        becausal.explain(picture, four_corners, target=1, against="two")
    with pytest.raises(TargetError, match="five"):
        becausal.explain(picture, four_corners, target="five")


@pytest.mark.usefixtures("without_figures")
def test_headlines_follow_the_target(tmp_path):
    picture = corners(200, 100, 150, 50)
    explanation = becausal.explain(picture, four_corners, target="three", against="two", fills="black")
    sentence = as_text(headline(explanation))
    whole = four_corners(picture[None])[0]
    assert sentence.startswith(f"The model says one ({whole[0]:.2f}). 1.0 % of the pixels, the core, keep ")
    more = f"{explanation.checks.confidence:.2f}, and {whole[2]:.2f} with the whole image"
    assert f"keep three ({whole[2]:.2f}) ahead of two and the confidence ({more})" in sentence
    assert sentence.endswith(" with everything else in the plain fill.")
    by_id = becausal.explain(picture, four_corners, target=2, against=1, fills="black")
    assert as_text(headline(by_id)) == sentence
    assert by_id.top == NamedScore("one", 0, float(np.float32(whole[0])))
    explanation = becausal.explain(picture, four_corners, target="three", top=2, fills="black")
    sentence = as_text(headline(explanation))
    assert sentence.startswith(f"The model says one ({whole[0]:.2f}). ")
    assert f" keep three ({whole[2]:.2f}) among the top 2 labels and the confidence (" in sentence
    loaded = Explanation.load(explanation.save(tmp_path / "it"))
    assert (loaded.top, loaded.rival) == (explanation.top, None)
    alone = becausal.explain(square(), labels_only)
    sentence = as_text(headline(alone))
    assert sentence.startswith(
        f"The model says {alone.label}. 4.7 % of the pixels are enough: they keep {alone.label} on at "
    )
    assert sentence.endswith(f" 2.1 % of all pixels keep {alone.label} with everything else in the plain fill.")
    assert alone.top is not None
    assert alone.top.label == alone.label


@needs_bundled
def test_a_stated_grain_is_reached_whatever_it_takes():
    from becausal.render.wording import describe_checks

    hurried = Causal(tuning=Tuning(effort=1))
    found = becausal.explain(scene(0).image, bundled(), grain=1, confidence=0.9, method=hurried)
    assert found.stopped_by == "finished"
    assert found.checks.minimal_grain == 1
    coarse = becausal.explain(scene(0).image, bundled(), confidence=0.9, method=hurried)
    assert coarse.stopped_by == "finished"
    assert coarse.checks.minimal_grain > coarse.origin.grain == 5
    (minimal,) = [check for check in describe_checks(coarse) if check.name == "minimal"]
    assert minimal.answer == f"at {coarse.checks.minimal_grain} px"


@needs_bundled
def test_a_limit_that_was_not_used_up_is_explained():
    explanation = becausal.explain(scene(0).image, bundled(), method="rise", max_calls=300)
    assert explanation.stopped_by == "budget"
    assert explanation.calls < 300
    assert f"The limit of 300 model calls ended the search after {explanation.calls}: the rest was" in str(explanation)


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_the_target_may_keep_a_share_of_the_confidence(share):
    picture = corners(0, 60, 10, 20)
    plain = becausal.explain(picture, four_corners, fills="black", smallest=True)
    explanation = becausal.explain(picture, four_corners, confidence=share, fills="black")
    floor = share * float(np.float32(four_corners(picture[None])[0, 1]))
    assert math.isclose(explanation.target.floor, floor, rel_tol=1e-6)
    assert explanation.checks.confidence >= floor * (1 - 1e-6)
    assert explanation.pixels > plain.pixels
    judged(explanation, four_corners, lambda s: s.argmax() == 1 and np.float32(s[1]) >= explanation.target.floor)


@needs_bundled
def test_the_whole_confidence_can_be_asked_of_a_network():
    # The whole view is asked alone first, and in company later; the last digits may move.
    for number in (0, 3):
        explanation = becausal.explain(scene(number).image, bundled(), confidence=1.0, max_calls=60)
        assert explanation.checks.confidence >= explanation.confidence - 1e-4


def test_several_fills_must_all_keep_the_target():
    explanation = becausal.explain(square(), bright_square, fills=("black", "#505050"))
    assert explanation.origin.request.fills == ("black", "#505050")
    for background in explanation.backgrounds:
        mutant = np.where(explanation.visible[..., None], explanation.view, background)
        assert bright_square(mutant[None])[0].argmax() == 1
    assert explanation.pixels == becausal.explain(square(), bright_square, fills="black").pixels  # black is the harder one
    assert all(claim.holds for claim in explanation.verify(bright_square))


def test_what_cannot_be_explained_is_refused_in_words():
    with pytest.raises(FillError, match="fully masked image already has this label"):
        becausal.explain(square(), bright_square, fills="white")
    with pytest.raises(
        TargetError, match=r"does not say .* here: its top label is .* comes last .*: ask what its confidence"
    ):
        becausal.explain(square(), bright_square, target=0)
    with pytest.raises(TargetError, match="no class 7"):
        becausal.explain(square(), bright_square, target=7)
    with pytest.raises(OptionError, match="unknown method"):
        becausal.explain(square(), bright_square, method="magic")
    for options in ({"max_calls": 5}, {"confidence": 0.0}, {"confidence": 1.1}, {"grain": 0}, {"fills": ()}):
        with pytest.raises(OptionError):
            becausal.explain(square(), bright_square, **options)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_function_that_raises_is_an_answer_error(at):
    calls = []

    def fragile(batch):
        calls.append(len(batch))
        if len(calls) > at:
            raise ValueError("no memory left")
        return bright_square(batch)

    with pytest.raises(AnswerError, match="no memory left"):
        becausal.explain(square(), fragile)


@pytest.mark.parametrize("max_calls", [10, 12, 30, 60])
@pytest.mark.parametrize("method", ["causal", "dc-causal", "random"])
def test_a_small_budget_gives_the_best_so_far(max_calls, method):
    explanation = becausal.explain(square(), bright_square, method=method, max_calls=max_calls, fills="black")
    assert explanation.calls <= max_calls
    assert explanation.checks.sufficient
    assert bright_square(explanation.mutant(explanation.visible)[None])[0].argmax() == 1
    assert explanation.stopped_by == "budget" or (max_calls == 60 and method in ("causal", "random"))  # no more to do
    assert explanation.origin.request.max_calls == max_calls
    assert repr(explanation).endswith(f"calls: {explanation.calls}, {explanation.stopped_by}>")


def test_a_larger_budget_never_gives_a_larger_explanation_here():
    for smallest, least in ((True, 11), (False, 13)):
        found = [
            becausal.explain(square(), bright_square, max_calls=n, fills="black", smallest=smallest)
            for n in (10, 40, 80, 400)
        ]
        sizes = [explanation.pixels for explanation in found]
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] <= least


@pytest.mark.usefixtures("without_figures")
def test_an_interrupt_gives_the_best_so_far_and_says_so(tmp_path):
    calls = []

    def impatient(batch):
        calls.append(len(batch))
        if len(calls) == 6:
            raise KeyboardInterrupt
        return bright_square(batch)

    explanation = becausal.explain(square(), impatient, fills="black")
    assert explanation.stopped_by == "interrupt"
    assert explanation.checks.sufficient
    assert explanation.size < 1
    assert Explanation.load(explanation.save(tmp_path / "it")).stopped_by == "interrupt"


def test_explain_many_names_what_failed_and_goes_on(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"nothing")
    dark = np.full((12, 16, 3), 20, np.uint8)
    images = [square(), tmp_path / "bad.png", dark, tmp_path / "none.png", square()[:, ::1]]
    found = list(becausal.explain_many(images, bright_square, request=Request(max_calls=60, target=1), width=2))
    failures = [f for f in found if isinstance(f, Failure)]
    assert len(found) == 5
    assert len(failures) == 3
    assert all(isinstance(f.error, BecausalError) for f in failures)
    assert {Path(f.image).name for f in failures} == {"bad.png", "array", "none.png"}


def test_classify_names_the_first_labels():
    found = becausal.classify(corners(200, 150, 100, 50), four_corners, top=3)
    assert [(i, name) for i, name, _ in found] == [(0, "one"), (1, "two"), (2, "three")]
    assert found[0][2] > found[1][2] > found[2][2]
    assert math.isnan(becausal.classify(square(), labels_only)[0][2])


# Signals and volumes, whose truth is known


@pytest.mark.parametrize("method", ["causal", "dc-causal"])
def test_a_signal_is_explained_by_its_bump(method):
    time = np.arange(200)
    signal = (np.exp(-(((time - 120) / 6.0) ** 2)) + 0.02 * np.sin(time)).astype(np.float32)

    def has_bump(batch):
        assert batch.shape[1:] == (200,)
        share = 1 / (1 + np.exp(-(batch[:, 100:140].sum(axis=1) - 5.0)))
        return np.stack([1 - share, share], axis=1)

    explanation = becausal.explain(signal, has_bump, method=method, fills="0", grain=2)
    assert explanation.label_id == 1
    assert explanation.visible.shape == (200,)
    assert explanation.checks.sufficient
    assert explanation.checks.minimal_grain == 2
    assert set(np.flatnonzero(explanation.visible)) <= set(range(100, 140))
    assert 2 <= explanation.pixels <= 12
    assert all(claim.holds for claim in explanation.verify(has_bump))
    assert explanation.on_original(explanation.visible).shape == (200,)
    assert explanation.why(int(np.flatnonzero(explanation.visible)[0])).part


@pytest.mark.parametrize("method", ["causal", "dc-causal"])
def test_a_volume_is_explained_by_its_ball(method, tmp_path):
    distance = np.sqrt(((np.indices((12, 14, 16)) - np.array([6, 5, 10]).reshape(3, 1, 1, 1)) ** 2).sum(axis=0))
    ball = distance <= 3
    volume = np.where(ball, 1.0, 0.1).astype(np.float32)

    def has_ball(batch):
        assert batch.shape[1:] == (12, 14, 16)
        share = 1 / (1 + np.exp(-(batch[:, ball].sum(axis=1) - 60) / 5))
        return np.stack([1 - share, share], axis=1)

    options = {"partitions": 8} if method == "dc-causal" else None
    explanation = becausal.explain(volume, has_ball, method=method, options=options, fills="black", grain=1)
    assert explanation.visible.shape == (12, 14, 16)
    assert explanation.checks.sufficient
    assert explanation.checks.minimal_grain == 1
    assert not (explanation.visible & ~ball).any()
    loaded = Explanation.load(explanation.save(tmp_path / "it"))
    same(loaded, explanation)
    assert all(claim.holds for claim in loaded.verify(has_ball))


# Two backends, and networks of the outside world


@needs_bundled
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("number", [0, 1, *(pytest.param(k, marks=pytest.mark.slow) for k in (2, 3, 4))])
def test_two_backends_of_one_network_give_the_same_explanation(number):
    from becausal.scenes.network import load_network

    other = as_classifier(load_network(), preprocess="tf", resize=128, labels=bundled().info.labels)
    picture = scene(number).image
    one = becausal.explain(picture, bundled(), max_calls=160)
    two = becausal.explain(picture, other, max_calls=160)
    assert two.origin.model != one.origin.model
    assert (one.label, one.label_id, one.calls) == (two.label, two.label_id, two.calls)
    assert math.isclose(one.confidence, two.confidence, abs_tol=1e-5)
    assert (one.visible == two.visible).all()
    np.testing.assert_allclose(one.responsibility, two.responsibility, atol=1e-3)
    assert all(claim.holds for claim in one.verify(other))


@cache
def outside(name):
    path = SHARED / "models" / f"{name}.onnx"
    labels = read_labels(SHARED / "models" / "imagenet_labels.txt")
    if name == "mobilenet_v2":
        return becausal.load_model(path, labels=labels, preprocess="tf", resize=256)
    return becausal.load_model(path, labels=labels, preprocess="caffe", resize="squash:256")


#: Photos that the networks know, and calls that should do.
PHOTOS = [
    pytest.param("mobilenet_v2", "n07747607_orange", 300, marks=pytest.mark.slow),
    ("mobilenet_v2", "n02391049_zebra", 200),
    pytest.param("squeezenet", "n06874185_traffic_light", 150, marks=pytest.mark.slow),
    ("squeezenet", "n01980166_fiddler_crab", 100),
]


@pytest.mark.parametrize(("name", "photo", "calls"), PHOTOS)
def test_photos_and_networks_of_the_outside_world(name, photo, calls):
    path = SHARED / "data" / "imagenet-samples" / f"{photo}.JPEG"
    if not path.is_file() or not (SHARED / "models" / f"{name}.onnx").is_file():
        pytest.skip("../shared is not there: it holds photos and networks that are not ours to publish")
    explanation = becausal.explain(path, outside(name), max_calls=calls, smallest=True)
    assert explanation.label.split(",")[0].replace(" ", "_").lower() == photo.split("_", 1)[1].lower()
    assert explanation.calls <= calls
    assert explanation.checks.sufficient
    assert explanation.size < 0.15
    assert all(claim.holds for claim in explanation.verify(outside(name)))
    with Image.open(path) as image:
        assert explanation.on_original(explanation.visible).shape == (image.height, image.width)
