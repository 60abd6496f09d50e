"""Which images a run takes, and which it leaves out, and why."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from becausal.api import classify
from becausal.bench.datasets import Sample, draw_scenes, read_set
from becausal.bench.plan import Pool, Settings, Subject
from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError, OptionError
from becausal.images.loading import InputImage, load_image, make_view
from becausal.models import find_label

Judging = Callable[[Sample], str | None]  # why an image is left out, None where it is not
WRONG = "the model gives another label"


def see(sample: Sample, classifier: Classifier) -> Subject:
    """The sample read, as the classifier sees it. Raises ImageError."""
    seen = sample.read()
    loaded = load_image(seen.pixels)
    picture = InputImage(loaded.pixels, sample.name, loaded.sha256, loaded.notes, loaded.squeeze)
    view = make_view(picture, classifier.info.geometry, channels=classifier.info.channels)
    return Subject(sample, picture, view, {key: view.frame.from_original(truth) for key, truth in seen.truths.items()})


def top_label(subject: Subject, classifier: Classifier) -> int:
    """What the model says of an image."""
    return classify(subject.picture.pixels, classifier, top=1)[0][0]


def true_label(sample: Sample, classifier: Classifier) -> int | None:
    """The sample's label as the model numbers them; None where it is not known, or the model does not know it."""
    if sample.label is None:
        return None
    try:
        return find_label(sample.label, classifier.info.labels, None)
    except BecausalError:
        return None


def spread(samples: Sequence[Sample], limit: int | None) -> list[Sample]:
    """At most `limit` samples, evenly spaced."""
    if limit is None or limit >= len(samples):
        return list(samples)
    chosen = np.linspace(0, len(samples) - 1, limit).round().astype(int)
    return [samples[i] for i in chosen]


def take(candidates: Iterable[Sample], accept: Judging, limit: int, tries: int) -> Pool:
    """The first `limit` candidates that are accepted, of at most `tries`; accept gives the reason against one."""
    samples: list[Sample] = []
    left_out: dict[str, int] = {}
    for number, sample in enumerate(candidates):
        if len(samples) == limit or number == tries:
            break
        reason = accept(sample)
        if reason is None:
            samples.append(sample)
        else:
            left_out[reason] = left_out.get(reason, 0) + 1
    return Pool(tuple(samples), left_out)


def sift(samples: Iterable[Sample], accept: Judging, limit: int | None) -> Pool:
    """All samples that are accepted, evenly thinned to the limit."""
    everything = list(samples)
    pool = take(everything, accept, len(everything), len(everything))
    return Pool(tuple(spread(pool.samples, limit)), pool.left_out)


def judged(settings: Settings, accept: Judging) -> Judging:
    """The judgement, or, of a run that goes on, what it was."""
    known = settings.known
    return accept if known is None else lambda sample: None if sample.name in known else "not among them"


def rightly_labelled(classifier: Classifier, *, least: str | None = None, pixels: int = 1) -> Judging:
    """Accepts samples whose label the model gives, and whose truth of that name has at least so many pixels."""

    def accept(sample: Sample) -> str | None:
        try:
            subject = see(sample, classifier)
        except BecausalError as error:
            return f"cannot be read: {type(error).__name__}"
        if least is not None and int(np.count_nonzero(subject.truths[least])) < pixels:
            return f"{least} under {pixels} pixels"
        if sample.label is not None and top_label(subject, classifier) != true_label(sample, classifier):
            return WRONG
        return None

    return accept


def usual_pool(settings: Settings, classifier: Classifier) -> Pool:
    """The folder that was given, or generated scenes; only images whose label, where known, the model gives."""
    if settings.data is not None:
        samples = read_set(settings.data)
        if all(sample.label is None for sample in samples):  # nothing to be judged by: no need to read them all
            samples = spread(samples, settings.limit)
        return sift(samples, judged(settings, rightly_labelled(classifier)), settings.limit)
    need_scene_labels(classifier)
    limit = settings.limit or 100
    accept = judged(settings, rightly_labelled(classifier))
    return take(draw_scenes(settings.seed, cover=(0.1, 0.4)), accept, limit, 4 * limit)


def need_scene_labels(classifier: Classifier) -> None:
    """Refuse a model that does not know what is in generated scenes."""
    from becausal.scenes import LABELS

    if classifier.info.labels is None or not set(LABELS) <= set(classifier.info.labels):
        raise OptionError(
            "without --data this bench draws scenes, and this model does not know their labels: give --data DIR, or "
            "--model bundled"
        )
