"""Boxes of object detectors: overlaps, the target, one search per box, answers that several boxes share."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import becausal
from becausal.api.compare import choose_methods, compare_methods
from becausal.api.explanation import Explanation
from becausal.core.boxes import MAX_BOXES, FoundBox, check_boxes, is_box, nearest_box, overlaps, pack_boxes, read_boxes
from becausal.core.contracts import Answers, Done, step
from becausal.core.errors import AnswerError, FillError, ModelError, OptionError, TargetError
from becausal.core.frames import Frame
from becausal.core.problem import Problem
from becausal.core.regions import default_grain
from becausal.core.request import Request
from becausal.core.stats import Failure
from becausal.core.targets import LOST, OVERLAP, Target, with_floor
from becausal.lab import run as run_bench
from becausal.methods import METHODS
from becausal.methods.rise import DRise
from becausal.render.comparison import render_comparison
from becausal.render.report import render_report
from becausal.render.wording import as_text, describe_checks, describe_level, describe_target, headline, question
from becausal.testing import MaskClassifier

IMAGE = np.full((64, 64, 3), 200, np.uint8)
IMAGE[10:30, 8:32] = (255, 0, 0)
IMAGE[36:60, 36:60] = (0, 0, 255)
BUS, CAR = (8, 10, 32, 30), (36, 36, 60, 60)
THRESHOLD = 0.3


def find_two(visible):
    """A bus and a car; the score of each is the share of its box that is visible, which grows slowly at first."""
    images = []
    for one in visible:
        shares = [one[top:bottom, left:right].mean() for left, top, right, bottom in (BUS, CAR)]
        images.append(([BUS, CAR], [0.95 * shares[0] ** 0.5, 0.9 * shares[1] ** 0.5], [0, 1]))
    return pack_boxes(images)


def detector(function=find_two, **options):
    return MaskClassifier(function, labels=("bus", "car"), threshold=THRESHOLD, **options)


def explained(**options):
    return becausal.explain(IMAGE, detector(), **options)


# Arrays of boxes

sides = st.integers(0, 12)
boxes = st.tuples(sides, sides, sides, sides).map(
    lambda s: (min(s[0], s[2]), min(s[1], s[3]), max(s[0], s[2]), max(s[1], s[3]))
)


@given(boxes, boxes.filter(is_box))
def test_the_overlap_is_the_share_of_pixels_that_two_boxes_have_in_common(one, other):
    pixels = []
    for left, top, right, bottom in (one, other):
        mask = np.zeros((12, 12), bool)
        mask[top:bottom, left:right] = True
        pixels.append(mask)
    expected = (pixels[0] & pixels[1]).sum() / (pixels[0] | pixels[1]).sum()
    assert overlaps(np.array(one, float), other) == pytest.approx(expected)


def test_boxes_are_packed_best_first_without_those_that_have_no_area():
    packed = pack_boxes(
        [([(0, 0, 2, 2), (5, 5, 5, 9), (1, 1, 3, 3), (4, 4, 2, 2)], [0.2, 0.9, 0.6, 0.8], [3, 0, 1, 1]), ([], [], [])]
    )
    assert packed.shape == (2, MAX_BOXES, 6)
    assert packed.dtype == np.float32
    first = read_boxes(packed[0])
    assert [(one.box, one.label_id) for one in first] == [((1, 1, 3, 3), 1), ((0, 0, 2, 2), 3)]
    assert [one.score for one in first] == pytest.approx([0.6, 0.2])
    assert read_boxes(packed[1]) == []
    assert [one.label_id for one in read_boxes(packed[0], 0.5)] == [1]


def test_of_ten_thousand_boxes_the_best_are_kept():
    scores = np.linspace(0, 1, 10_000)
    packed = pack_boxes([(np.tile((0, 0, 1, 1), (10_000, 1)), scores, np.zeros(10_000))])
    assert len(read_boxes(packed[0])) == MAX_BOXES
    assert packed[0, -1, 4] == pytest.approx(scores[-MAX_BOXES])


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (([(0, 0, np.nan, 1)], [0.5], [0]), "NaN or infinite"),
        (([(0, 0, 1, 1)], [np.inf], [0]), "NaN or infinite"),
        (([(0, 0, 1, 1)], [1.5], [0]), "scores from 1.5 to 1.5; expected 0 to 1"),
        (([(0, 0, 1)], [0.5], [0]), r"shapes \(1, 3\), \(1,\), \(1,\); expected"),
        (([(0, 0, 1, 1)], [0.5, 0.6], [0]), "shapes"),
        (([(0, 0, 1, "x")], [0.5], [0]), "not numbers"),
    ],
)
def test_boxes_that_make_no_sense_are_refused_in_one_line(image, message):
    with pytest.raises(AnswerError, match=message):
        pack_boxes([image])


def test_an_answer_of_another_shape_is_refused():
    with pytest.raises(AnswerError, match="expected"):
        check_boxes(np.zeros((2, 3, 6), np.float32), 2)
    with pytest.raises(AnswerError, match="NaN"):
        check_boxes(np.full((1, MAX_BOXES, 6), np.nan, np.float32), 1)


def test_the_nearest_box_is_the_one_that_overlaps_most_else_the_one_with_the_nearest_centre():
    found = [FoundBox((0, 0, 10, 10), 0.9, 0), FoundBox((8, 8, 20, 20), 0.8, 0)]
    assert nearest_box(found, (5, 5, 12, 12)) == 0
    assert nearest_box(found, (9, 9, 21, 21)) == 1
    assert nearest_box(found, (40, 40, 50, 50)) == 1


# The target


@given(
    st.lists(st.tuples(boxes, st.floats(0, 1), st.integers(0, 2)), max_size=4),
    boxes.filter(is_box),
    st.floats(0.05, 0.9),
    st.floats(0.0, 0.9),
)
def test_the_target_holds_where_one_box_has_label_overlap_and_score(found, box, threshold, floor):
    answer = pack_boxes([([f[0] for f in found], [f[1] for f in found], [f[2] for f in found])])
    target = Target(1, box=box, threshold=threshold)
    boxes_of_label = [(f[0], float(np.float32(f[1]))) for f in found if f[2] == 1 and is_box(f[0])]
    own = [(float(overlaps(np.array(one, float), box)), score) for one, score in boxes_of_label]
    close = [score for shared, score in own if shared >= OVERLAP]
    judged = target.judge(answer)
    assert bool(judged.holds[0]) == any(score >= threshold for score in close)
    assert (judged.margin[0] >= 0) == bool(judged.holds[0])
    assert LOST <= judged.margin[0] < np.inf
    assert judged.confidence[0] == pytest.approx(max(close, default=0.0))
    assert judged.similarity[0] == pytest.approx(max((shared * score for shared, score in own), default=0.0), abs=1e-6)
    hard = replace(target, floor=floor).judge(answer)
    assert bool(hard.holds[0]) == any(score >= max(threshold, floor) for score in close)
    assert bool(with_floor(judged, floor).holds[0]) == bool(hard.holds[0])


def test_the_margin_falls_with_the_score_and_with_the_overlap():
    target = Target(0, box=(0, 0, 10, 10), threshold=0.4)
    margins = [
        target.judge(pack_boxes([([box], [score], [0])])).margin[0]
        for box, score in [
            ((0, 0, 10, 10), 0.8),
            ((0, 0, 10, 10), 0.4),
            ((0, 0, 10, 10), 0.1),
            ((0, 0, 10, 4), 0.8),
            ((0, 0, 10, 2), 0.8),
        ]
    ]
    assert margins[0] > margins[1] == pytest.approx(0, abs=1e-6)
    assert 0 > margins[2] > LOST
    assert 0 > margins[3] > margins[4] > LOST
    assert target.judge(pack_boxes([([(0, 0, 10, 10)], [0.9], [1])])).margin[0] == LOST


@pytest.mark.parametrize("box", [(0, 0, 0, 5), (5, 0, 1, 5), (0, 0, 1), (0, 0, np.nan, 1)])
def test_a_target_needs_a_box_with_an_area(box):
    with pytest.raises(TargetError, match="left, top, right and bottom"):
        Target(0, box=box)


def test_the_answer_of_a_classifier_never_has_a_box():
    assert not Target(0, box=(0, 0, 1, 1)).judge(np.array([[0.9, 0.1]])).holds[0]


def test_a_box_finds_its_way_to_the_original_and_back():
    frame = Frame((100, 200), (50, 100), (0, 25), (50, 50))
    assert frame.box_to_original((0, 0, 50, 50)) == (50, 0, 150, 100)
    assert frame.box_from_original(frame.box_to_original((3, 4, 15, 26))) == pytest.approx((3, 4, 15, 26))


# Explanations


def test_the_box_with_the_highest_score_is_explained_by_pixels_inside_it():
    explanation = explained()
    assert (explanation.label, explanation.target.box) == ("bus", BUS)
    assert explanation.confidence == pytest.approx(0.95)
    inside = np.zeros((64, 64), bool)
    inside[10:30, 8:32] = True
    assert not (explanation.levels[0].visible & ~inside).any()
    assert (explanation.visible & inside).sum() > 0.6 * explanation.visible.sum()
    assert [level.name for level in explanation.levels] == ["core", "enough"]
    assert all(level.checks.sufficient for level in explanation.levels)
    assert [level.checks.minimal_grain for level in explanation.levels] == [4, default_grain((64, 64), 5)]
    assert explanation.top is None


@pytest.mark.parametrize("box", [2, "2", "30,30,62,62", "60,60,62,63"])
def test_a_box_is_chosen_by_its_number_or_by_pixels_near_it(box):
    assert explained(box=box, smallest=True).label == "car"


def test_a_label_chooses_the_best_box_of_that_label():
    assert explained(target="car", smallest=True).target.box == CAR
    assert explained(target=1, box=2, smallest=True).target.box == CAR


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"box": 3}, TargetError, "there is no box 3: the detector finds 2 boxes in this image"),
        ({"box": 1, "target": "car"}, TargetError, "box 1 is bus, not car"),
        ({"box": "1,2"}, OptionError, "a box is a number"),
        ({"box": "9,9,3,3"}, OptionError, "a box is a number"),
        ({"box": 0}, OptionError, "box must be at least 1"),
        ({"box": 1.5}, OptionError, "box must be a box's number"),
        ({"target": "dog"}, TargetError, "dog"),
        ({"top": 2}, TargetError, "top and against compare the labels of a classifier"),
        ({"against": "car"}, TargetError, "top and against"),
        ({"method": "ig"}, ModelError, "needs the gradient of a class score, and this model is a detector"),
    ],
)
def test_what_cannot_be_asked_of_a_detector_is_refused_in_one_line(options, error, message):
    with pytest.raises(error, match=message):
        explained(**options)


def test_a_detector_that_finds_no_box_says_what_came_closest():
    def find_little(visible):
        return pack_boxes([([BUS], [0.2], [0])] * len(visible))

    with pytest.raises(
        TargetError, match=r"no box with a score of at least 0.3 in this image; the best candidate is bus \(0.20\)"
    ):
        becausal.explain(IMAGE, detector(find_little))
    with pytest.raises(TargetError, match=r"in this image$"):
        becausal.explain(IMAGE, detector(lambda visible: pack_boxes([([], [], [])] * len(visible))))


def test_a_label_that_was_not_found_is_named_with_those_that_were():
    def find_a_bus(visible):
        return pack_boxes([([BUS], [0.9 * one.mean()], [0]) for one in visible])

    with pytest.raises(TargetError, match="the detector finds no car in this image; it finds bus"):
        becausal.explain(IMAGE, detector(find_a_bus), target="car")


def test_a_box_that_is_found_in_the_fully_masked_image_cannot_be_explained():
    with pytest.raises(FillError, match="still finds this box in the fully masked image"):
        becausal.explain(IMAGE, detector(lambda visible: pack_boxes([([BUS], [0.9], [0])] * len(visible))))


def test_a_classifier_has_no_boxes():
    yes = MaskClassifier(lambda visible: visible.mean(axis=(1, 2)))
    with pytest.raises(OptionError, match="box is for object detectors"):
        becausal.explain(IMAGE, yes, box=1)
    with pytest.raises(ModelError, match="is a classifier"):
        becausal.detect(IMAGE, yes)
    with pytest.raises(ModelError, match="explains boxes of object detectors"):
        becausal.explain(IMAGE, yes, method="d-rise")
    ((number, answer),) = becausal.explain_boxes(IMAGE, yes)
    assert number == 1
    assert isinstance(answer, Failure)
    assert "is a classifier" in str(answer.error)


def test_a_class_without_a_name_is_called_by_its_number():
    model = MaskClassifier(lambda visible: pack_boxes([([BUS], [0.9 * one.mean()], [17]) for one in visible]), threshold=0.3)
    assert becausal.detect(IMAGE, model)[0].label == "class 17"


def test_a_detector_that_returns_nan_is_refused_in_one_line():
    def broken(visible):
        answer = find_two(visible)
        answer[0, 0, 0] = np.nan
        return answer

    with pytest.raises(AnswerError, match="the model returned boxes that are NaN"):
        becausal.explain(IMAGE, detector(broken))


# All boxes of an image


def test_every_box_has_the_explanation_that_it_has_alone_and_further_ones_take_fewer_calls():
    answers = dict(becausal.explain_boxes(IMAGE, detector()))
    assert list(answers) == [1, 2]
    for number, found in answers.items():
        alone = explained(box=number)
        assert (found.visible == alone.visible).all()
        assert np.array_equal(found.responsibility, alone.responsibility)
        assert found.checks == alone.checks
        assert found.calls <= alone.calls
    assert answers[2].calls <= explained(box=2).calls - 60  # the survey, the whole view and the fully masked image


def test_all_calls_of_several_boxes_are_counted():
    model = detector()
    calls = sum(answer.calls for _, answer in becausal.explain_boxes(IMAGE, model, request=Request(smallest=True)))
    assert calls == len(model.asked)


def test_all_boxes_of_one_label():
    assert [
        number for number, _ in becausal.explain_boxes(IMAGE, detector(), request=Request(target="car", smallest=True))
    ] == [2]
    ((number, answer),) = becausal.explain_boxes(IMAGE, detector(), request=Request(target="dog"))
    assert number == 1
    assert "dog" in str(answer.error)


def test_each_box_has_its_own_budget_and_several_fills():
    request = Request(max_calls=120, fills=("grey", "black"), smallest=True)
    for _, answer in becausal.explain_boxes(IMAGE, detector(), request=request):
        assert answer.checks.sufficient
        assert answer.calls <= 120


def test_boxes_in_an_image_that_has_none():
    ((_, answer),) = becausal.explain_boxes(IMAGE, detector(lambda visible: pack_boxes([([], [], [])] * len(visible))))
    assert "finds no box" in str(answer.error)


def test_detect_lists_boxes_in_pixels_of_the_image():
    first, second = becausal.detect(IMAGE, detector())
    assert (first.number, first.label, first.box, second.label_id) == (1, "bus", BUS, 1)
    with pytest.raises(ModelError, match="is an object detector: use detect"):
        becausal.classify(IMAGE, detector())


# Methods, levels on any background, files


def test_d_rise_is_the_mean_similarity_of_the_mutants_that_show_a_pixel():
    asked, weights = [], []
    search = DRise(masks=70, cells=4).search(problem(), np.random.default_rng(0))
    state = step(search, None)
    while not isinstance(state, Done):
        similarity = np.asarray(state)[:, 10:30, 8:32].mean(axis=(1, 2))
        asked, weights = [*asked, *state], [*weights, *similarity]
        nothing = np.zeros(len(state))
        state = step(search, Answers(nothing > 0, nothing - 1, nothing, similarity=similarity))
    shown = np.array(asked)
    expected = (shown * np.array(weights)[:, None, None]).sum(axis=0) / shown.sum(axis=0)
    assert state.result.saliency == pytest.approx(expected)
    assert METHODS["d-rise"].needs == "boxes"


def problem():
    return Problem(IMAGE, (np.zeros_like(IMAGE),), Target(0, box=BUS, threshold=THRESHOLD))


def test_d_rise_explains_a_box():
    explanation = explained(method="d-rise", options={"masks": 300})
    assert explanation.responsibility[10:30, 8:32].mean() > explanation.responsibility[36:60, 36:60].mean()
    assert explanation.checks.sufficient


@pytest.mark.parametrize("method", ["dc-causal", "rise", "occlusion", "greedy", "lime"])
def test_methods_for_classifiers_explain_boxes_too(method):
    explanation = explained(method=method, max_calls=400)
    assert explanation.checks.sufficient
    assert explanation.label == "bus"


def test_a_box_can_be_explained_on_random_backgrounds():
    explanation = explained(holds=0.8)
    assert explanation.level.name == "enough"
    assert explanation.level.certificate.share == 0.8
    assert all(level.checks.transfer.asked > 0 for level in explanation.levels)
    assert explanation.level.certificate.holds
    assert all(claim.holds for claim in explanation.verify(detector()))


def test_a_box_survives_being_saved_and_verified(tmp_path):
    explanation = explained(box=2)
    loaded = Explanation.load(explanation.save(tmp_path / "box"))
    assert loaded.target == explanation.target
    assert loaded.origin.request.box == 2
    assert all(claim.holds for claim in loaded.verify(detector()))
    blind = detector(lambda visible: pack_boxes([([], [], [])] * len(visible)))
    assert not all(claim.holds for claim in loaded.verify(blind))


def test_sentences_speak_of_the_box():
    explanation = explained()
    assert as_text(headline(explanation)).startswith("The detector finds bus (0.95) at 8,10 to 32,30. ")
    assert "are enough: they keep this box on at least 90 % of random backgrounds" in as_text(headline(explanation))
    assert "the core, keep this box and the score (" in as_text(headline(explanation))
    assert as_text(question(explanation)) == "Why bus (0.95) at 8,10 to 32,30?"
    assert "label" not in describe_level(explanation.levels[0])
    checked = [check.meaning for level in explanation.levels for check in describe_checks(explanation, level)]
    assert sum("keeps the box on" in text for text in checked) == 2
    said = str(explanation).splitlines()[1]
    assert not [text for text in (*checked, said) if "the label" in text or "confidence" in text]
    assert ", score 0." in said
    assert describe_target(replace(explanation, target=replace(explanation.target, floor=0.0))) == (
        "a box of bus that overlaps this one (IoU at least 0.5) is still found, with a score of at least 0.3"
    )
    row, column = np.argwhere(explanation.levels[0].visible)[0]
    assert "the box keeps 90 % of its score; without it, all else equal, it does not" in explanation.why(row, column).text
    smallest = explained(smallest=True)
    row, column = np.argwhere(smallest.visible)[0]
    assert "the box is found; without it, all else equal, it is lost" in smallest.why(row, column).text
    assert "the box is still found" in explanation.why(0, 0).text


def test_verifying_with_a_model_of_another_kind_is_refused_in_one_line():
    found, whole = explained(smallest=True), MaskClassifier(lambda visible: visible.mean(axis=(1, 2)))
    with pytest.raises(ModelError, match="an object detector was explained, and this model is a classifier: it is not the"):
        becausal.verify(found, whole)
    model = detector()
    becausal.explain(IMAGE, model, smallest=True)  # what it returns is known from its first answer on
    with pytest.raises(ModelError, match="a classifier was explained, and this model is an object detector: it is not the"):
        becausal.verify(becausal.explain(IMAGE, whole, smallest=True), model)


def test_pages_speak_of_the_box():
    explanation = explained()
    report = render_report(explanation)
    assert "keep this box" in report.replace("<b>", "").replace("</b>", "")
    assert "The image with the box of bus." in report
    assert "for the label" not in report
    comparison = compare_methods(IMAGE, detector(), ("causal", "d-rise", "ig"), request=Request(max_calls=200))
    page = render_comparison(comparison)
    assert "area under the score of the box" in page
    assert "needs the gradient of a class score" in page
    assert "keeps the label" not in page


def test_all_methods_are_those_for_the_kind_of_model(tmp_path):
    model = detector()
    model.ask([], np.zeros(1, np.intp), np.ones((1, 64, 64), bool))  # what it returns is known from now on
    names = choose_methods("all", model.info)
    assert "d-rise" in names
    assert not any(METHODS[name].needs == "gradients" for name in names)
    assert "d-rise" not in choose_methods("all")
    with pytest.raises(OptionError, match="benches compare methods on classifiers, and mask function is an object detector"):
        run_bench("scenes", model, out=tmp_path)
    with pytest.raises(OptionError, match="d-rise: explains boxes of object detectors"):
        run_bench("scenes", "bundled", out=tmp_path, methods="d-rise")
