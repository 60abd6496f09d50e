"""What a worker does with tasks, wherever it lives: load the model once, explain, and make rows and files."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from becausal import models
from becausal.api import Failure, explain_many, find_failure
from becausal.api.explanation import Explanation
from becausal.batch.records import Done, Failed, Hello, Job, Lost, Result, Task
from becausal.batch.truth import place
from becausal.core.contracts import Classifier
from becausal.core.errors import AnswerError, BecausalError, NetworkError
from becausal.images.loading import InputImage, load_image
from becausal.models.labels import find_label

# The engine counts all calls since the model was loaded, which depends on what this worker did before.
_COUNTED = re.compile(r"the model failed after [\d,]+ calls: ")


@dataclass(frozen=True)
class _Numbered(InputImage):
    """An image whose name begins with its task's number, in answers and in failures: two tasks may have one file."""

    def __fspath__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name


def open_model(job: Job) -> tuple[Classifier, Hello]:
    """The job's model, and what it says of itself. Raises what `load_model` raises, and TargetError for an unknown label."""
    classifier = models.open_model(job.model, job.loading)
    info = classifier.info
    for label in (job.request.target, job.request.against):
        if label is not None and info.labels is not None:
            find_label(label, info.labels, len(info.labels))
    facts: dict[str, str | None] = {
        "model_sha256": info.sha256,
        "labels_sha256": None if info.labels is None else sha256("\n".join(info.labels).encode()).hexdigest(),
        "preprocess": f"{info.geometry or 'as it is'}; {info.numbers}",
    }
    return classifier, Hello(facts)


def work(tasks: Iterable[Task], classifier: Classifier, job: Job, *, width: int | None = 1) -> Iterator[Result]:
    """Explain tasks, `width` of them side by side (None: as `explain_many` likes): one result each, as they come.

    A failure may wait for the next result, or for the end of the tasks. A task whose search was cut short by the model's
    failure has failed, so that it can be tried again; where the model could not be reached, the next task tries anew.
    What no one expected (a fault in a method, no memory) fails the task if it was alone, and else makes all that were
    under way Lost.
    """
    waiting = iter(tasks)
    under_way: dict[str, tuple[Task, str]] = {}
    refused: list[Failed] = []

    def pictures() -> Iterator[InputImage]:
        for task in waiting:
            try:
                picture = load_image(task.path)
            except BecausalError as error:
                refused.append(Failed(task.id, one_line(str(error).replace(task.path, Path(task.path).name))))
                continue
            except Exception as error:  # a reader of images may raise anything, too
                refused.append(Failed(task.id, f"unexpected {type(error).__name__}: {one_line(error)}"))
                continue
            key = f"{task.id}/{picture.name}"
            under_way[key] = (task, picture.sha256)
            yield _Numbered(picture.pixels, key, picture.sha256, picture.notes, picture.squeeze)

    is_finished = False
    while not is_finished:
        try:
            for answer in explain_many(pictures(), classifier, request=job.request, width=width):
                yield from refused
                refused.clear()
                if isinstance(answer, Explanation) and answer.stopped_by == "interrupt":
                    raise KeyboardInterrupt  # cut short, so not what an undisturbed run would keep
                key = answer.image if isinstance(answer, Failure) else answer.origin.image
                task, digest = under_way[key]
                result = _result(task, digest, key, answer, job)
                del under_way[key]  # only now: what breaks on the way to the result is this task's fault as well
                yield result
            is_finished = True
        except NetworkError as error:
            for key, (task, digest) in under_way.items():
                yield _refuse(task, digest, key, error)
            under_way.clear()
        except Exception as error:  # methods and libraries may raise anything; the other images are not to suffer
            if not under_way:
                raise  # it is not about any image
            reason = f"unexpected {type(error).__name__}: {one_line(error)}"
            is_alone = len(under_way) == 1
            for task, digest in under_way.values():
                yield Failed(task.id, reason, digest) if is_alone else Lost(task.id, reason)
            under_way.clear()
        yield from refused
        refused.clear()


def _result(task: Task, digest: str, image: str, answer: Explanation | Failure, job: Job) -> Done | Failed:
    if isinstance(answer, Failure):
        return _refuse(task, digest, image, answer.error)
    failure = find_failure(answer)
    return finish(task, answer, job) if failure is None else _refuse(task, digest, image, AnswerError(failure))


def finish(task: Task, explanation: Explanation, job: Job) -> Done:
    """The row and the files of an explained task."""
    explanation = explanation.renamed(Path(task.path).name)
    checks = explanation.checks
    placing = place(explanation.visible, explanation.frame, explanation.label, task.item, job.categories)
    summary = explanation.summary()
    row: dict[str, Any] = {
        "sha256": explanation.origin.image_sha256,
        "label": explanation.label,
        "label_id": explanation.label_id,
        "confidence": summary["confidence"],
        "size": explanation.size,
        "pixels": explanation.pixels,
        "pieces": explanation.pieces,
        "alone": summary["explanation"]["confidence"],
        "sufficient": checks.sufficient,
        "necessary": checks.necessary,
        "minimal_grain": checks.minimal_grain,
        "stopped_by": explanation.stopped_by,
        "calls": explanation.calls,
        "seconds": explanation.seconds,
        "inside": placing.inside,
        "by_chance": placing.by_chance,
        "note": placing.note,
    }
    return Done(task.id, row, explanation.files(pictures=job.pictures))


def _refuse(task: Task, digest: str, image: str, error: BecausalError) -> Failed:
    reason = str(error).replace(image, Path(task.path).name)  # users know it without our number
    reason = _COUNTED.sub("the model failed: ", reason)
    return Failed(task.id, one_line(reason), digest, is_model=isinstance(error, AnswerError | NetworkError))


def one_line(error: object, limit: int = 300) -> str:
    """The message without line breaks and control characters, cut where it gets out of hand."""
    words = "".join(c if c.isprintable() else " " for c in str(error)).split()
    return " ".join(words)[:limit]
