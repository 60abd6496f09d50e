"""The work of one job: decode an image, explain it, and write the answer as JSON."""

import json
import threading
from base64 import b64encode
from dataclasses import dataclass, replace

from becausal.api import Explanation, Request, Status, explain_many
from becausal.core.contracts import Classifier
from becausal.core.errors import AnswerError, InputError, MissingExtraError, NetworkError
from becausal.interfaces.web.images import Upload, check_image_size, decode_image
from becausal.interfaces.web.job_queue import ProgressCallback
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.tasks import check_method_cost

ARRAYS = "arrays.npz"  # the file that is made without drawing
_drawing = threading.Lock()  # matplotlib is not made for several threads


@dataclass(frozen=True)
class Answer:
    """An explanation as clients get it. label: the top label of the whole view. body: a JSON object.

    stopped_by, calls: of the explanation, for metrics.
    """

    label: str
    body: bytes
    stopped_by: str = "finished"
    calls: int = 0


@dataclass(frozen=True)
class ExplainWork:
    """Explain an uploaded image with a model of the server."""

    upload: Upload
    classifier: Classifier
    request: Request
    include: tuple[str, ...]
    limits: Limits

    def __call__(self, progress: ProgressCallback) -> Answer:
        """Explain, and write the answer."""
        return write_answer(self._explain(LimitedProgress(progress, self.limits.max_calls)), self.include)

    def _explain(self, watch: "LimitedProgress") -> Explanation:
        image = decode_image(self.upload, self.limits)
        check_image_size(image, self.classifier, self.limits)
        check_method_cost(self.request, image, self.classifier, self.limits)
        explanation = next(explain_many([image], self.classifier, request=self.request, progress=watch))
        if not isinstance(explanation, Explanation):
            raise explanation.error
        return replace(explanation, notes=(*explanation.notes, watch.note)) if watch.note else explanation


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
