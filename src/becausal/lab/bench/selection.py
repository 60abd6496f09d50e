"""Which images and methods a run uses, and why others are excluded."""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np

from becausal.api import classify
from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError, OptionError
from becausal.core.request import Request
from becausal.images.fills import make_background
from becausal.images.loading import InputImage, load_image, make_view
from becausal.lab.bench.datasets import Sample, draw_scenes, read_dataset
from becausal.lab.bench.plan import BenchSettings, ImageSelection, Subject, split_method
from becausal.lab.scenes import LABELS
from becausal.methods import METHODS, make_explainer
from becausal.models import find_label

Reject = Callable[[Sample], str | None]  # the reason to exclude an image, None to use it
WRONG = "the predicted label is not the true label"


def check_fills(request: Request) -> None:
    """Refuse unknown fills before any model call."""
    for fill in request.fills:
        if not fill.startswith("image:"):
            make_background(fill, np.zeros((8, 8, 3), np.uint8), rng=np.random.default_rng(0))


def select_methods(
    wanted: str | Sequence[str], classifier: Classifier, request: Request
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The methods to run, and those that this model cannot run with the reasons.

    Raises:
        OptionError: A method is unknown or does not support the request, or none can run.
    """
    texts = wanted.split(",") if isinstance(wanted, str) else list(wanted)
    texts = list(dict.fromkeys(text.strip() for text in texts if text.strip()))
    if not texts:
        raise OptionError("there are no methods: give names separated by commas, or all")
    chosen, unable = [], {}
    if classifier.info.output == "boxes":
        raise OptionError(f"benches compare methods on classifiers, and {classifier.info.spec} is an object detector")
    for text in [name for name in METHODS if METHODS[name].needs != "boxes"] if texts == ["all"] else texts:
        name, options = split_method(text)
        request.configure(make_explainer(name, options))
        reason = _why_unable(name, classifier)
        if reason is None:
            chosen.append(text)
        else:
            unable[text] = reason
    if not chosen:
        raise OptionError("none of the methods can run: " + "; ".join(f"{m}: {why}" for m, why in unable.items()))
    return tuple(chosen), unable


def _why_unable(name: str, classifier: Classifier) -> str | None:
    if METHODS[name].needs == "boxes":
        return "explains boxes of object detectors, and this model is a classifier"
    if METHODS[name].needs == "scores" and classifier.info.output == "labels":
        return "needs scores, and this model returns labels only"
    if METHODS[name].needs != "gradients":
        return None
    gradients = import_module("becausal.methods.gradients")
    try:
        gradients.require("torch", name)
        gradients.differentiable(classifier, name)
    except BecausalError as error:
        return str(error)
    return None


def load_subject(sample: Sample, classifier: Classifier) -> Subject:
    """Read a sample and make its view.

    Raises:
        ImageError: The image cannot be read.
    """
    annotated = sample.read()
    loaded = load_image(annotated.pixels)
    image = InputImage(loaded.pixels, sample.name, loaded.sha256, loaded.notes, loaded.squeeze)
    view = make_view(image, classifier.info.geometry, channels=classifier.info.channels)
    return Subject(sample, image, view, {key: view.frame.from_original(mask) for key, mask in annotated.masks.items()})


def top_label(subject: Subject, classifier: Classifier) -> int:
    """The predicted label of an image."""
    return classify(subject.image.pixels, classifier, top=1)[0][0]


def true_label(sample: Sample, classifier: Classifier) -> int | None:
    """The id of the true label of a sample; None if it is unknown, or unknown to the model."""
    if sample.label is None:
        return None
    try:
        return find_label(sample.label, classifier.info.labels, None)
    except BecausalError:
        return None


def take_evenly(samples: Sequence[Sample], limit: int | None) -> list[Sample]:
    """At most `limit` samples, evenly spaced."""
    if limit is None or limit >= len(samples):
        return list(samples)
    chosen = np.linspace(0, len(samples) - 1, limit).round().astype(int)
    return [samples[i] for i in chosen]


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


def select_evenly(samples: Sequence[Sample], reject: Reject, limit: int | None) -> ImageSelection:
    """At most `limit` of the accepted samples, evenly spaced."""
    accepted = take_first(samples, reject, len(samples), len(samples))
    return ImageSelection(tuple(take_evenly(accepted.samples, limit)), accepted.left_out)


def unless_known(settings: BenchSettings, reject: Reject) -> Reject:
    """The given filter or, in a resumed run, one that accepts exactly the images of that run."""
    known = settings.known
    return reject if known is None else lambda sample: None if sample.name in known else "not part of the run"


def reject_mislabelled(classifier: Classifier, *, mask: str | None = None, pixels: int = 1) -> Reject:
    """Rejects samples with a wrong prediction, or with fewer than `pixels` pixels in a ground-truth mask."""

    def reject(sample: Sample) -> str | None:
        try:
            subject = load_subject(sample, classifier)
        except BecausalError as error:
            return f"cannot be read: {type(error).__name__}"
        if mask is not None and int(np.count_nonzero(subject.masks[mask])) < pixels:
            return f"{mask} under {pixels} pixels"
        if sample.label is not None and top_label(subject, classifier) != true_label(sample, classifier):
            return WRONG
        return None

    return reject


def select_listed(settings: BenchSettings, read: Callable[[Path], list[Sample]], reject: Reject) -> ImageSelection:
    """The accepted images of a published dataset.

    Raises:
        OptionError: No dataset was given.
    """
    if settings.data is None:
        name = settings.bench
        raise OptionError(
            f"the bench {name} needs --data DIR: download the dataset with becausal data get {name}, or run the bench "
            "scenes, which needs no data"
        )
    return select_evenly(read(settings.data), unless_known(settings, reject), settings.limit)


def select_images(settings: BenchSettings, classifier: Classifier) -> ImageSelection:
    """Images of the folder or generated scenes, without those that have a wrong prediction."""
    reject = unless_known(settings, reject_mislabelled(classifier))
    if settings.data is not None:
        samples = read_dataset(settings.data)
        if all(sample.label is None for sample in samples):  # no predictions to check: no need to read all images
            samples = take_evenly(samples, settings.limit)
        return select_evenly(samples, reject, settings.limit)
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
