"""The work of one job: decode an image, explain it, and write the answer as JSON."""

import json
import threading
import time
from base64 import b64encode
from dataclasses import dataclass, replace

from becausal.api import Explanation, Request, Status, explain_many
from becausal.core.contracts import Classifier
from becausal.core.errors import AnswerError, InputError, MissingExtraError, NetworkError
from becausal.interfaces.http.metrics import Metrics
from becausal.interfaces.web.images import Upload, check_image_size, decode_image
from becausal.interfaces.web.job_queue import ProgressCallback
from becausal.interfaces.web.limits import Limits

ARRAYS = "arrays.npz"  # the file that is made without drawing
_drawing = threading.Lock()  # matplotlib is not made for several threads


@dataclass(frozen=True)
class Answer:
    """An explanation as clients get it. label: the top label of the whole view. body: a JSON object."""

    label: str
    body: bytes


@dataclass(frozen=True)
class ExplainWork:
    """Explain an uploaded image with a model of the server, known to clients by its name."""

    upload: Upload
    name: str
    classifier: Classifier
    request: Request
    include: tuple[str, ...]
    limits: Limits
    metrics: Metrics

    def __call__(self, progress: ProgressCallback) -> Answer:
        """Explain and count."""
        watch = LimitedProgress(progress, self.limits)
        begun = time.monotonic()
        try:
            explanation = self._explain(watch)
            answer = write_answer(explanation, self.include)
        except BaseException as error:  # a KeyboardInterrupt too: it ends a search
            self.metrics.count_error(self.name, kind_of(type(error)), watch.calls)
            raise
        self.metrics.count_explanation(self.name, explanation.stopped_by, explanation.calls, time.monotonic() - begun)
        return answer

    def _explain(self, watch: "LimitedProgress") -> Explanation:
        image = decode_image(self.upload, self.limits)
        check_image_size(image, self.classifier, self.limits)
        explanation = next(explain_many([image], self.classifier, request=self.request, progress=watch))
        if not isinstance(explanation, Explanation):
            raise explanation.error
        return replace(explanation, notes=(*explanation.notes, watch.note)) if watch.note else explanation


class LimitedProgress:
    """A progress callback that ends a search at the limits of the server, as Ctrl-C does: with the best result so far.

    The request is not changed: `max_calls` would be part of the record, and of the search. note: which limit was
    reached; empty if none was. calls: of the model so far.
    """

    def __init__(self, progress: ProgressCallback, limits: Limits) -> None:
        self.note = ""
        self.calls = 0
        self._progress = progress
        self._limits = limits
        self._begun = time.monotonic()
        self._is_ending = False

    def __call__(self, status: Status) -> None:
        """Pass the progress on. Raises KeyboardInterrupt, once."""
        self.calls = status.calls
        if self._is_ending:  # another interrupt would lose the result
            return
        try:
            if status.max_calls is None and status.calls >= self._limits.max_calls:
                self.note = f"stopped at this server's limit of {self._limits.max_calls:,} model calls"
            elif time.monotonic() - self._begun > self._limits.seconds:
                self.note = f"stopped at this server's limit of {self._limits.seconds:g} seconds"
            if self.note:
                raise KeyboardInterrupt
            self._progress(status)
        except KeyboardInterrupt:
            self._is_ending = True
            raise


def write_answer(explanation: Explanation, include: tuple[str, ...]) -> Answer:
    """The record of an explanation as in explanation.json, with a field `files` where files are to be included."""
    record = explanation.record()
    if include:
        with _drawing:
            made = explanation.files(render=set(include) != {ARRAYS})
        record["files"] = {name: b64encode(made[name]).decode("ascii") for name in include}
    label = explanation.top.label if explanation.top is not None else explanation.label
    return Answer(label, json.dumps(record).encode("utf-8"))


def kind_of(failure: type[BaseException] | None) -> str:
    """What an error is about, for clients and metrics: input, model, stopped or internal."""
    if failure is None or issubclass(failure, KeyboardInterrupt):
        return "stopped"
    if issubclass(failure, (InputError, MissingExtraError)):
        return "input"
    return "model" if issubclass(failure, (AnswerError, NetworkError)) else "internal"
