"""What the models of the server are asked: searches, which are jobs, and evaluations for the page outside of a search.

A job explains an image for the page or for a program, or compares two methods on it. The evaluations are the top labels, the
slider along the ranking, and the proof for a pixel.
"""

import json
import pickle
import threading
import zlib
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.api import Explanation, Request, Status, detect, explain_many
from becausal.api.compare import compare_methods
from becausal.core.checks import Level
from becausal.core.contracts import Classifier, Pixels, Visible
from becausal.core.errors import AnswerError, InputError, MissingExtraError, NetworkError
from becausal.core.explanation import Comparison, tell_cell, tell_rise
from becausal.core.metrics import prefix, ranking
from becausal.core.segments import measure_classes
from becausal.engine.engine import Engine
from becausal.images.backgrounds import RandomBackgrounds
from becausal.images.loading import InputImage, make_view
from becausal.interfaces.serve.images import Upload, array_uri, decode_image, read_image
from becausal.interfaces.serve.limits import Limits
from becausal.methods import make_explainer
from becausal.methods.costs import check_cost
from becausal.render.figures import draw_boxes
from becausal.render.pages import data_uri

ARRAYS = "arrays.npz"  # the file that is made without drawing
SLIDER_STEPS = 40
MOST_LABELS = 5  # that can be chosen on the page
MOST_BOXES = 20  # the same of a detector
#: What is said of a set that does not keep what was asked for, where it is not one label among others.
_LOST = {"boxes": "box not found", "segments": "segment not found", "similarity": "not alike"}
PREVIEW_SCALE = 2.5  # of the numbers of boxes, since the image is shown small
PREVIEW_SIDE = 720  # pixels of the longest side of the preview
_drawing = threading.Lock()  # matplotlib is not made for several threads

ProgressCallback = Callable[[Status], None]
TopLabels = tuple[tuple[int, str, float], ...]  # (label id, or number of a box, name, confidence), best first


@dataclass(frozen=True)
class Prediction:
    """The model's answer for one masked image; confidences are NaN without scores."""

    label: str
    confidence: float  # in the label that is explained
    own_confidence: float  # in the predicted label
    holds: bool  # whether the target is met


@dataclass(frozen=True)
class RankingSteps:
    """The ranking in a few steps, from its first pixels to the whole view, and the prediction for each alone."""

    counts: tuple[int, ...]  # pixels of each step
    predictions: tuple[Prediction, ...]
    entry: NDArray[np.uint8]  # (*grid,) step at which each pixel appears
    stops: tuple[int, ...]  # for each level of the explanation, the step that shows exactly its pixels


@dataclass(frozen=True, eq=False)
class Witness:
    """Why a pixel is, or is not, part of the explanation: one masked image, or two that differ in what is asked about."""

    text: str
    is_part: bool
    around: Visible  # (*grid,), what is shown of them
    images: tuple[tuple[str, Pixels, Prediction], ...]  # each with its title


@dataclass(frozen=True)
class JobResult:
    """What a job has found."""

    data: bytes  # a JSON object for a program, or what `pack_result` makes for the page
    stopped_by: str = "finished"  # of the explanation, for metrics, as the next one
    calls: int = 0


def pack_result(content: Explanation | Comparison, ranking: RankingSteps | None = None) -> JobResult:
    """A result for the page and the predictions along its ranking, compressed: maps and masks take little of their size."""
    found = [row.explanation for row in content.rows] if isinstance(content, Comparison) else [content]
    parts = [part for part in found if part is not None]
    packed = zlib.compress(pickle.dumps((content, ranking), pickle.HIGHEST_PROTOCOL), 1)
    return JobResult(packed, parts[-1].stopped_by, sum(part.calls for part in parts))


def unpack_result(result: JobResult) -> tuple[Explanation | Comparison, RankingSteps | None]:
    """What was packed; it never left the processes of this server, so unpickling it is safe."""
    content: tuple[Explanation | Comparison, RankingSteps | None] = pickle.loads(zlib.decompress(result.data))
    return content


@dataclass
class ExplainTask:
    """Explain an uploaded image. include: for a program, files to send along; None for the page."""

    upload: Upload
    classifier: Classifier
    request: Request
    limits: Limits
    include: tuple[str, ...] | None = None

    @cached_property
    def view(self) -> Pixels:
        """The image as the classifier sees it, to show the progress on it."""
        return view_pixels(decode_image(self.upload, self.limits), self.classifier)

    def __call__(self, progress: ProgressCallback) -> JobResult:
        """The result, within the limits of the server."""
        request, limits = self.request, self.limits
        image = read_image(self.upload, self.classifier, limits)
        if isinstance(request.method, str) and request.options:
            geometry = self.classifier.info.geometry
            check_cost(
                make_explainer(request.method, request.options),
                image.grid if geometry is None else geometry.grid,
                memory=limits.method_bytes,
                numbers=limits.method_numbers,
                gradients=limits.max_calls,
            )
        watch = LimitedProgress(progress, limits.max_calls)
        explanation = next(explain_many([image], self.classifier, request=request, progress=watch))
        if not isinstance(explanation, Explanation):
            raise explanation.error
        if watch.note:
            explanation = replace(explanation, notes=(*explanation.notes, watch.note))
        if self.include is not None:
            record = explanation.record()
            if self.include:
                with _drawing:
                    made = explanation.files(render=set(self.include) != {ARRAYS})
                record["files"] = {name: b64encode(made[name]).decode("ascii") for name in self.include}
            return JobResult(json.dumps(record).encode("utf-8"), explanation.stopped_by, explanation.calls)
        steps = None
        if explanation.stopped_by != "failure":  # else it would fail again, after the time-outs of an endpoint
            with suppress(AnswerError, NetworkError):  # the explanation is valid without it
                steps = predict_ranking(explanation, self.classifier)
        return pack_result(explanation, steps)


@dataclass(frozen=True)
class CompareTask:
    """Run two methods on an uploaded image, one after the other, for the page."""

    upload: Upload
    classifier: Classifier
    methods: tuple[str, str]
    request: Request
    limits: Limits

    def __call__(self, progress: ProgressCallback) -> JobResult:
        """The result, within the limits of the server."""
        image = read_image(self.upload, self.classifier, self.limits)
        watch = LimitedProgress(progress, self.limits.max_calls)
        return pack_result(compare_methods(image, self.classifier, self.methods, request=self.request, progress=watch))


Task = ExplainTask | CompareTask


class LimitedProgress:
    """A progress callback that ends a search at the server's limit on calls, as Ctrl-C does: with the best result so far.

    The request is not changed: `max_calls` would be part of the record, and of the search. note: which limit of the server
    has ended the search, this or another one; empty if none has.
    """

    def __init__(self, progress: ProgressCallback, max_calls: int) -> None:
        self.note = ""
        self._progress = progress
        self._max_calls = max_calls
        self._is_ending = False

    def __call__(self, status: Status) -> None:
        """Pass the progress on. Raises KeyboardInterrupt, once."""
        if self._is_ending:  # another interrupt would lose the result
            return
        try:
            if status.max_calls is None and status.calls >= self._max_calls:
                raise KeyboardInterrupt(f"stopped at this server's limit of {self._max_calls:,} model calls")
            self._progress(status)
        except KeyboardInterrupt as interrupt:
            self._is_ending, self.note = True, str(interrupt)
            raise


def kind_of(failure: type[BaseException] | None) -> str:
    """What an error is about, for clients and metrics: input, model, stopped or internal."""
    if failure is None or issubclass(failure, KeyboardInterrupt):
        return "stopped"
    if issubclass(failure, (InputError, MissingExtraError)):
        return "input"
    return "model" if issubclass(failure, (AnswerError, NetworkError)) else "internal"


# ---------------------------------------------------------------- evaluations for the page


def view_pixels(image: InputImage, classifier: Classifier) -> Pixels:
    """The image as the classifier sees it, (h, w, channels)."""
    return make_view(image, classifier.info.geometry, channels=classifier.info.channels).pixels


def predict_image(image: InputImage, classifier: Classifier) -> tuple[TopLabels, str]:
    """What can be explained, and the image to show as a data URI: the top labels, or the boxes that a detector finds."""
    info = classifier.info
    if info.output == "boxes":
        boxes = detect(image, classifier)[:MOST_BOXES]
        drawn = draw_boxes(image.pixels, [(one.box, str(one.number)) for one in boxes], scale=PREVIEW_SCALE)
        return tuple((one.number, f"{one.number}: {one.label}", one.score) for one in boxes), data_uri(drawn)
    preview = array_uri(image.pixels, "PNG" if max(image.grid) <= PREVIEW_SIDE else "JPEG", PREVIEW_SIDE)
    view = view_pixels(image, classifier)
    answer: NDArray[Any] = Engine(classifier).evaluate(view, view, np.ones((1, *view.shape[:-1]), bool))
    scores = (measure_classes(answer) if answer.ndim == 4 else answer)[0]
    if scores.ndim == 0:  # the model returns labels only
        return ((int(scores), info.name_of(int(scores)), float("nan")),), preview
    order = np.argsort(-scores, kind="stable")[:MOST_LABELS]
    if answer.ndim == 4:
        order = order[scores[order] > 0.0]  # the classes that there are
    return tuple((int(i), info.name_of(int(i)), float(scores[i])) for i in order), preview


def predict_masked(
    explanation: Explanation, classifier: Classifier, visible: Visible, background: Pixels, floor: float
) -> list[Prediction]:
    """The predictions for (n, *grid) masks on a background; floor: the confidence that the target needs to hold."""
    target = replace(explanation.target, floor=floor)
    scores = Engine(classifier).evaluate(explanation.view, background, visible, target.read)
    judged = target.judge(scores)
    lost = _LOST.get(classifier.info.output)
    if lost is not None and target.place is None:  # of a pixel, the label that it has instead
        return [
            Prediction(explanation.label if holds else lost, float(score), float(score), bool(holds))
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
    order = ranking(saliency, np.random.default_rng(explanation.origin.request.seed))
    spread = np.geomspace(max(1, total // 1000), total, SLIDER_STEPS).round().astype(int)
    counts = np.unique([*spread, *sizes])
    entry = np.zeros(total, np.uint8)
    entry[order] = np.searchsorted(counts, np.arange(total), side="right")
    visible = np.stack([prefix(order, int(count), grid) for count in counts])
    return RankingSteps(
        counts=tuple(counts.tolist()),
        predictions=tuple(predict_masked(explanation, classifier, visible, explanation.backgrounds[0], 0.0)),
        entry=entry.reshape(grid),
        stops=tuple(np.searchsorted(counts, sizes).tolist()),
    )


def find_witness(explanation: Explanation, classifier: Classifier, row: int, column: int) -> Witness:
    """Why this pixel is part of the explanation, and the predictions for the images that prove it: with it, without it.

    Raises OptionError for a pixel outside of the view.
    """
    why = explanation.why(row, column)
    level = next((level for level in explanation.levels if level.visible[row, column]), explanation.level)
    text, shown, titles, background = why.text, level.visible, ["The explanation alone"], explanation.backgrounds[0]
    sets = [shown]
    if why.cell is not None:  # of the explanation, or else the pixels that speak against the label
        titles = ["With it", "Without it"] if why.part else ["The whole image", "With these pixels masked"]
        shown = level.visible if why.part else np.ones_like(level.visible)
        sets = [shown, shown & ~why.cell]
    if why.cell is not None and why.part:
        background, predictions, text = _find_loss(explanation, classifier, level, np.stack(sets))
        text += tell_rise(explanation, (row, column))
    else:
        predictions = predict_masked(explanation, classifier, np.stack(sets), background, explanation.target.floor)
    images = (np.where(visible[..., None], explanation.view, background) for visible in sets)
    around = level.visible if why.part or why.cell is None else why.cell
    return Witness(text, why.part, around, tuple(zip(titles, images, predictions, strict=True)))


def _find_loss(
    explanation: Explanation, classifier: Classifier, level: Level, sets: Visible
) -> tuple[Pixels, list[Prediction], str]:
    """Where the target is lost without a cell: the background, the predictions there, and what is said of it.

    sets: (2, *grid), with the cell and without it. Where it is not seen to be lost, the background is the first fill.
    """
    if level.certificate is not None:
        sampler = RandomBackgrounds(explanation.view, int(level.certificate.backgrounds["seed"]))
        for drawn in map(sampler.draw, level.panel):
            found = predict_masked(explanation, classifier, sets, drawn, 0.0)
            if not found[-1].holds:
                return drawn, found, tell_cell(explanation, level, "background")
    fills, floor = explanation.backgrounds, explanation.target.floor
    tried = [predict_masked(explanation, classifier, sets, fill, floor) for fill in fills]
    failed = next((number for number, found in enumerate(tried) if not found[-1].holds), None)
    background, text = fills[failed or 0], tell_cell(explanation, level)
    if failed is not None and level.certificate is not None:
        is_kept = predict_masked(explanation, classifier, sets[1:], background, 0.0)[0].holds  # at any confidence
        text = tell_cell(explanation, level, "share" if is_kept else "fill")
    return background, tried[failed or 0], text
