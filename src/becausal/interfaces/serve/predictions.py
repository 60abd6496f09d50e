"""Model evaluations for the page outside of a search: top labels, the slider along the ranking, proof for a pixel."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from becausal.api import detect
from becausal.api.explanation import Explanation
from becausal.core.checks import Level
from becausal.core.contracts import Classifier, Pixels, Visible
from becausal.core.explanation import Why
from becausal.core.metrics import prefix, ranking
from becausal.engine.engine import Engine
from becausal.images.loading import InputImage, make_view
from becausal.interfaces.serve.images import preview_uri
from becausal.render.boxes import draw_boxes
from becausal.render.pages import data_uri

SLIDER_STEPS = 40
MOST_BOXES = 20  # of a detector, that can be chosen on the page
PREVIEW_SCALE = 2.5  # of the numbers of boxes, since the image is shown small

TopLabels = tuple[tuple[int, str, float], ...]  # (label id, or number of a box, name, confidence), best first


@dataclass(frozen=True)
class Prediction:
    """The model's answer for one masked image.

    confidence: in the label that is explained. own_confidence: in the predicted label. Both NaN without scores.
    holds: whether the target is met.
    """

    label: str
    confidence: float
    own_confidence: float
    holds: bool


@dataclass(frozen=True)
class RankingStep:
    """The first pixels of the ranking, and the prediction for them alone. share: of the view."""

    pixels: int
    share: float
    prediction: Prediction


@dataclass(frozen=True)
class RankingSteps:
    """The ranking in a few steps, from its first pixels to the whole view.

    entry: (*grid,) step at which each pixel appears. stops: for each level of the explanation, the step that shows exactly
    its pixels.
    """

    steps: tuple[RankingStep, ...]
    entry: NDArray[np.uint8]
    stops: tuple[int, ...]

    @property
    def start(self) -> int:
        """The step that shows exactly the explanation."""
        return self.stops[-1]


@dataclass(frozen=True)
class Witness:
    """The proof for a pixel, with the predictions for both images; `without` is None where there is only one."""

    why: Why
    shown: Prediction
    without: Prediction | None


def view_pixels(image: InputImage, classifier: Classifier) -> Pixels:
    """The image as the classifier sees it, (h, w, channels)."""
    return make_view(image, classifier.info.geometry, channels=classifier.info.channels).pixels


def predict_top_labels(image: InputImage, classifier: Classifier, count: int = 5) -> TopLabels:
    """The top labels for the unmasked view."""
    view = view_pixels(image, classifier)
    scores = Engine(classifier).evaluate(view, view, np.ones((1, *view.shape[:-1]), bool))[0]
    info = classifier.info
    if scores.ndim == 0:
        return ((int(scores), info.name_of(int(scores)), float("nan")),)
    order = np.argsort(-scores, kind="stable")[:count]
    return tuple((int(i), info.name_of(int(i)), float(scores[i])) for i in order)


def predict_image(image: InputImage, classifier: Classifier) -> tuple[TopLabels, str]:
    """What can be explained, and the image to show as a data URI: the top labels, or the boxes that a detector finds."""
    if classifier.info.output != "boxes":
        return predict_top_labels(image, classifier), preview_uri(image)
    boxes = detect(image, classifier)[:MOST_BOXES]
    drawn = draw_boxes(image.pixels, [(one.box, str(one.number)) for one in boxes], scale=PREVIEW_SCALE)
    return tuple((one.number, f"{one.number}: {one.label}", one.score) for one in boxes), data_uri(drawn)


def predict_masked(
    explanation: Explanation, classifier: Classifier, visible: Visible, level: Level | None = None
) -> list[Prediction]:
    """The predictions for (n, *grid) masks under the explanation's first fill; `holds` is about a level, or the last one."""
    scores = Engine(classifier).evaluate(explanation.view, explanation.backgrounds[0], visible)
    target = explanation.target
    if level is not None and len(explanation.levels) > 1:
        target = replace(target, floor=level.share * explanation.confidence)
    judged = target.judge(scores)
    if target.box is not None:
        return [
            Prediction(explanation.label if holds else "box not found", float(score), float(score), bool(holds))
            for score, holds in zip(judged.confidence, judged.holds, strict=True)
        ]
    labels = scores.argmax(axis=1) if scores.ndim == 2 else scores
    own = scores.max(axis=1) if scores.ndim == 2 else np.full(len(scores), np.nan)
    return [
        Prediction(classifier.info.name_of(int(label)), float(confidence), float(own_confidence), bool(holds))
        for label, confidence, own_confidence, holds in zip(labels, judged.confidence, own, judged.holds, strict=True)
    ]


def predict_ranking(explanation: Explanation, classifier: Classifier) -> RankingSteps:
    """Predictions for growing sets, in finer steps where they are small: the levels one by one, then the map's order."""
    grid, total = explanation.visible.shape, explanation.visible.size
    offset = np.ptp(explanation.responsibility) + 1
    sizes = [max(1, level.pixels) for level in explanation.levels]
    saliency = explanation.responsibility + offset * np.sum([level.visible for level in explanation.levels], axis=0)
    order = ranking(saliency, np.random.default_rng(explanation.origin.seed))
    counts = np.geomspace(max(1, total // 1000), total, SLIDER_STEPS).round().astype(int)
    counts = np.unique([*counts, *sizes])
    entry = np.zeros(total, np.uint8)
    entry[order] = np.searchsorted(counts, np.arange(total), side="right")
    visible = np.stack([prefix(order, int(count), grid) for count in counts])
    predictions = predict_masked(explanation, classifier, visible, explanation.levels[0])
    steps = tuple(RankingStep(int(n), int(n) / total, made) for n, made in zip(counts, predictions, strict=True))
    return RankingSteps(steps, entry.reshape(grid), tuple(int(stop) for stop in np.searchsorted(counts, sizes)))


def find_witness(explanation: Explanation, classifier: Classifier, row: int, column: int) -> Witness:
    """Why this pixel is part of the explanation; raises OptionError for a pixel outside of the view."""
    why = explanation.why(row, column)
    level = next((level for level in explanation.levels if level.visible[row, column]), explanation.level)
    if why.cell is None:
        return Witness(why, predict_masked(explanation, classifier, level.visible[None], level)[0], None)
    both = np.stack([level.visible, level.visible & ~why.cell])
    shown, without = predict_masked(explanation, classifier, both, level)
    return Witness(why, shown, without)
