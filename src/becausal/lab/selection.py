"""Which images, methods and requests a run uses, and why others are excluded."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from becausal.api import Request, classify
from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError, OptionError
from becausal.images.loading import InputImage, load_image, make_view
from becausal.lab.base import BenchSettings, ImageSelection, Subject, split_method
from becausal.lab.datasets import Sample, draw_scenes, read_dataset
from becausal.methods import METHODS, make_explainer
from becausal.methods.gradients import differentiable, require
from becausal.models import find_label
from becausal.scenes.scene import LABELS

Reject = Callable[[Sample], str | None]  # the reason to exclude an image, None to use it
WRONG = "the predicted label is not the true label"


def select_methods(
    wanted: str | Sequence[str], classifier: Classifier, request: Request
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The methods to run, and those that this model cannot run with the reasons.

    Raises OptionError where a method is unknown or does not support the request, or none can run.
    """
    texts = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    texts = list(dict.fromkeys(text.strip() for text in texts if text.strip()))
    if not texts:
        raise OptionError("there are no methods: give names separated by commas, or all")
    kinds = {"boxes": "is an object detector", "segments": "gives every pixel a class"}
    if (what := kinds.get(classifier.info.output)) is not None:
        raise OptionError(f"benches compare methods on classifiers, and {classifier.info.spec} {what}")
    chosen, unable = [], {}
    for text in [name for name in METHODS if METHODS[name].needs != "boxes"] if texts == ["all"] else texts:
        name, options = split_method(text)
        request.configure(make_explainer(name, options))
        needs = METHODS[name].needs
        if needs == "boxes":
            unable[text] = "explains boxes of object detectors, and this model is a classifier"
            continue
        if needs == "gradients":
            try:
                require("torch", name)
                differentiable(classifier, name)
            except BecausalError as error:
                unable[text] = str(error)
                continue
        chosen.append(text)
    if not chosen:
        raise OptionError("none of the methods can run: " + "; ".join(f"{m}: {why}" for m, why in unable.items()))
    return tuple(chosen), unable


def load_subject(sample: Sample, classifier: Classifier) -> Subject:
    """Read a sample and make its view. Raises ImageError where the image cannot be read."""
    annotated = sample.read()
    loaded = load_image(annotated.pixels)
    image = InputImage(loaded.pixels, sample.name, loaded.sha256, loaded.notes)
    view = make_view(image, classifier.info.geometry, channels=classifier.info.channels)
    return Subject(sample, image, view, {key: view.frame.from_original(mask) for key, mask in annotated.masks.items()})


def is_right(subject: Subject, classifier: Classifier) -> bool:
    """Whether the predicted label is the true one; not where the model does not know the true one."""
    top, label = classify(subject.image.pixels, classifier, top=1)[0][0], subject.sample.label
    try:
        return label is not None and top == find_label(label, classifier.info.labels, None)
    except BecausalError:
        return False


def take_evenly(samples: Sequence[Sample], limit: int | None) -> list[Sample]:
    """At most `limit` samples, evenly spaced."""
    if limit is None or limit >= len(samples):
        return list(samples)
    return [samples[i] for i in np.linspace(0, len(samples) - 1, limit).round().astype(int)]


def take_first(candidates: Iterable[Sample], reject: Reject, limit: int, tries: int) -> ImageSelection:
    """The first `limit` accepted candidates, out of at most `tries`."""
    samples: list[Sample] = []
    left_out: dict[str, int] = {}
    for number, sample in enumerate(candidates):
        if len(samples) == limit or number == tries:
            break
        reason = reject(sample)
        if reason is None:
            samples.append(sample)
        else:
            left_out[reason] = left_out.get(reason, 0) + 1
    return ImageSelection(tuple(samples), left_out)


def _select_evenly(settings: BenchSettings, samples: Sequence[Sample], reject: Reject) -> ImageSelection:
    accepted = take_first(samples, reject, len(samples), len(samples))
    return replace(accepted, samples=tuple(take_evenly(accepted.samples, settings.limit)))


def unless_known(settings: BenchSettings, reject: Reject) -> Reject:
    """The given filter or, in a resumed run, one that accepts exactly the images of that run."""
    known = settings.known
    return reject if known is None else lambda sample: None if sample.name in known else "not part of the run"


def reject_mislabelled(settings: BenchSettings, classifier: Classifier, *, occluder: int = 0) -> Reject:
    """Rejects samples with a wrong prediction, or with an occluder of fewer than `occluder` pixels."""

    def reject(sample: Sample) -> str | None:
        try:
            subject = load_subject(sample, classifier)
        except BecausalError as error:
            return f"cannot be read: {type(error).__name__}"
        if occluder and int(np.count_nonzero(subject.masks["occluder"])) < occluder:
            return f"occluder under {occluder} pixels"
        return WRONG if sample.label is not None and not is_right(subject, classifier) else None

    return unless_known(settings, reject)


def select_listed(settings: BenchSettings, read: Callable[[Path], list[Sample]], reject: Reject) -> ImageSelection:
    """The accepted images of a published dataset. Raises OptionError where no dataset was given."""
    if settings.data is None:
        raise OptionError(
            f"the bench {settings.bench} needs --data DIR: download the dataset with becausal data get {settings.bench}, "
            "or run the bench scenes, which needs no data"
        )
    return _select_evenly(settings, read(settings.data), reject)


def select_images(settings: BenchSettings, classifier: Classifier) -> ImageSelection:
    """Images of the folder or generated scenes, without those that have a wrong prediction."""
    reject = reject_mislabelled(settings, classifier)
    if settings.data is not None:
        samples = read_dataset(settings.data)
        if all(sample.label is None for sample in samples):  # no predictions to check: no need to read all images
            samples = take_evenly(samples, settings.limit)
        return _select_evenly(settings, samples, reject)
    require_scene_labels(classifier)
    limit = settings.limit or 100
    return take_first(draw_scenes(settings.request.seed, cover=(0.1, 0.4)), reject, limit, 4 * limit)


def require_scene_labels(classifier: Classifier) -> None:
    """Refuse a model without the labels of generated scenes."""
    if classifier.info.labels is None or not set(LABELS) <= set(classifier.info.labels):
        raise OptionError(
            "without --data this bench uses generated scenes, whose labels this model does not have: give --data DIR, or "
            "--model bundled"
        )
