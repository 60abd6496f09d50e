"""The searches of the server: explain an image for the page or for a program, or compare two methods on it."""

import json
import pickle
import threading
import zlib
from base64 import b64encode
from dataclasses import dataclass, replace
from functools import cached_property

from becausal.api import Explanation, Request, Status, explain_many
from becausal.api.compare import compare_methods
from becausal.core.comparison import Comparison
from becausal.core.contracts import Classifier, Pixels
from becausal.core.errors import AnswerError, InputError, MissingExtraError, NetworkError
from becausal.images.loading import InputImage
from becausal.interfaces.serve.images import Upload, check_image_size, decode_image
from becausal.interfaces.serve.job_queue import ProgressCallback
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.predictions import RankingSteps, predict_ranking, view_pixels
from becausal.methods import make_explainer
from becausal.methods.costs import check_cost

ARRAYS = "arrays.npz"  # the file that is made without drawing
_drawing = threading.Lock()  # matplotlib is not made for several threads


@dataclass(frozen=True)
class Answer:
    """An explanation as programs get it. label: the top label of the whole view. body: a JSON object.

    stopped_by, calls: of the explanation, for metrics.
    """

    label: str
    body: bytes
    stopped_by: str = "finished"
    calls: int = 0

    @property
    def held_bytes(self) -> int:
        """Memory of the answer."""
        return len(self.body)


@dataclass(frozen=True)
class PageResult:
    """A result for the page, compressed without loss; maps and masks take a fraction of their size."""

    packed: bytes
    stopped_by: str
    calls: int

    @staticmethod
    def pack(content: Explanation | Comparison, ranking: RankingSteps | None = None) -> "PageResult":
        """Keep a result, and the predictions along its ranking; None where there are none."""
        found = [row.explanation for row in content.rows] if isinstance(content, Comparison) else [content]
        parts = [part for part in found if part is not None]
        packed = zlib.compress(pickle.dumps((content, ranking), pickle.HIGHEST_PROTOCOL), 1)
        return PageResult(packed, parts[-1].stopped_by, sum(part.calls for part in parts))

    def unpack(self) -> tuple[Explanation | Comparison, RankingSteps | None]:
        """What was packed; it never left the processes of this server, so unpickling it is safe."""
        content: tuple[Explanation | Comparison, RankingSteps | None] = pickle.loads(zlib.decompress(self.packed))
        return content

    @property
    def held_bytes(self) -> int:
        """Memory of the result."""
        return len(self.packed)


@dataclass(frozen=True)
class AnswerTask:
    """Explain an uploaded image for a program. include: files to send along."""

    upload: Upload
    classifier: Classifier
    request: Request
    include: tuple[str, ...]
    limits: Limits

    def __call__(self, progress: ProgressCallback) -> Answer:
        """Explain, and write the answer."""
        return write_answer(explain_upload(self, progress), self.include)


@dataclass
class ExplainTask:
    """Explain an uploaded image for the page."""

    upload: Upload
    classifier: Classifier
    request: Request
    limits: Limits

    @cached_property
    def view(self) -> Pixels:
        """The image as the classifier sees it, to show the progress on it."""
        return view_pixels(decode_image(self.upload, self.limits), self.classifier)

    def __call__(self, progress: ProgressCallback) -> PageResult:
        """Explain, and evaluate the ranking that was found."""
        explanation = explain_upload(self, progress)
        return PageResult.pack(explanation, self._evaluate_ranking(explanation))

    def _evaluate_ranking(self, explanation: Explanation) -> RankingSteps | None:
        if explanation.stopped_by == "failure":
            return None  # it would fail again, after the time-outs of an endpoint
        try:
            return predict_ranking(explanation, self.classifier)
        except (AnswerError, NetworkError):
            return None  # the explanation is valid without it


@dataclass(frozen=True)
class CompareTask:
    """Run two methods on an uploaded image, one after the other."""

    upload: Upload
    classifier: Classifier
    methods: tuple[str, str]
    request: Request
    limits: Limits

    def __call__(self, progress: ProgressCallback) -> PageResult:
        image = decode_image(self.upload, self.limits)
        check_image_size(image, self.classifier, self.limits)
        watch = LimitedProgress(progress, self.limits.max_calls)
        return PageResult.pack(compare_methods(image, self.classifier, self.methods, request=self.request, progress=watch))


def explain_upload(task: AnswerTask | ExplainTask, progress: ProgressCallback) -> Explanation:
    """The explanation that a task asks for, within the limits of the server."""
    image = decode_image(task.upload, task.limits)
    check_image_size(image, task.classifier, task.limits)
    _check_method_cost(task.request, image, task.classifier, task.limits)
    watch = LimitedProgress(progress, task.limits.max_calls)
    explanation = next(explain_many([image], task.classifier, request=task.request, progress=watch))
    if not isinstance(explanation, Explanation):
        raise explanation.error
    return replace(explanation, notes=(*explanation.notes, watch.note)) if watch.note else explanation


def _check_method_cost(request: Request, image: InputImage, classifier: Classifier, limits: Limits) -> None:
    """Raise OptionError for options of a method that cost more than the server allows; in all they share the limits."""
    if isinstance(request.method, str) and request.options:
        geometry = classifier.info.geometry
        check_cost(
            make_explainer(request.method, request.options),
            image.grid if geometry is None else geometry.grid,
            memory=limits.method_bytes,
            numbers=limits.method_numbers,
            gradients=limits.max_calls,
        )


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


def write_answer(explanation: Explanation, include: tuple[str, ...]) -> Answer:
    """The record of an explanation as in explanation.json, with a field `files` where files are to be included."""
    record = explanation.record()
    if include:
        with _drawing:
            made = explanation.files(render=set(include) != {ARRAYS})
        record["files"] = {name: b64encode(made[name]).decode("ascii") for name in include}
    label = explanation.top.label if explanation.top is not None else explanation.label
    return Answer(label, json.dumps(record).encode("utf-8"), explanation.stopped_by, explanation.calls)


def kind_of(failure: type[BaseException] | None) -> str:
    """What an error is about, for clients and metrics: input, model, stopped or internal."""
    if failure is None or issubclass(failure, KeyboardInterrupt):
        return "stopped"
    if issubclass(failure, (InputError, MissingExtraError)):
        return "input"
    return "model" if issubclass(failure, (AnswerError, NetworkError)) else "internal"
