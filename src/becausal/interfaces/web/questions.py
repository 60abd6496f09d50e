"""What a page asks: an explanation, a comparison, what is enough along the ranking, why this pixel."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from becausal.api import Request, explain_many
from becausal.api.compare import compare_methods
from becausal.api.explanation import Explanation
from becausal.core.comparison import Comparison
from becausal.core.contracts import Classifier, Pixels, Visible
from becausal.core.errors import AnswerError, NetworkError, OptionError
from becausal.core.explanation import Why
from becausal.core.extract import prefix, ranking
from becausal.engine.engine import Engine
from becausal.images.fills import NAMES
from becausal.images.loading import InputImage, make_view
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.pictures import Upload, as_image, check_fits, read_picture
from becausal.interfaces.web.sessions import Top
from becausal.interfaces.web.work import Progress
from becausal.methods import METHODS

STEPS = 40  # of the ranking that are asked for the slider
SHARES = (0.0, 0.5, 0.9)  # of the confidence that may be asked to stay; 0: the label is enough
GRAINS = (56, 32, 16)  # smallest parts, as a share of the view's longest side
MOST_SEVERAL = 4
LIBRARIES = {"shap": ("shap",), "rap": ("torch",), "extremal": ("torch",)}


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The choices of a page, which a client may set to anything: `request` refuses what was not offered."""

    method: str = "causal"
    fill: str = "grey"
    label_id: int | None = None
    share: float = 0.0
    grain: int = 32
    several: int = 1
    max_calls: int = 2000

    def request(self, top: Top, classifier: Classifier, side: int, limits: Limits) -> Request:
        """The wish as the engine takes it; top: what the classifier says; side: the view's longest. Raises OptionError."""
        if self.method not in offer_methods(classifier):
            raise OptionError("this method is not offered here")
        if self.fill not in offer_fills():
            raise OptionError("this fill is not offered here")
        if self.share not in SHARES:
            raise OptionError(f"the share of the confidence is one of {SHARES}")
        if self.grain not in GRAINS:
            raise OptionError(f"the smallest part is one of 1/{', 1/'.join(str(g) for g in GRAINS)} of the view")
        if not 1 <= self.several <= MOST_SEVERAL:
            raise OptionError(f"between 1 and {MOST_SEVERAL} explanations can be asked for")
        if not 10 <= self.max_calls <= limits.max_calls:
            raise OptionError(f"between 10 and {limits.max_calls:,} calls can be asked for")
        ranks = {label: place for place, (label, _, _) in enumerate(top, start=1)}
        if self.label_id is not None and self.label_id not in ranks:
            raise OptionError("this label is not among those offered")
        rank = 1 if self.label_id is None else ranks[self.label_id]
        has_scores = classifier.info.output != "labels"
        return Request(
            method=self.method,
            fills=(self.fill,),
            target=self.label_id,
            top=1 if classifier.info.output == "multilabel" else rank,
            confidence=self.share if self.share > 0 and has_scores else None,
            grain=max(1, side // self.grain),
            several=self.several if self.method == "causal" else 1,
            max_calls=self.max_calls,
        )


@cache
def _has(library: str) -> bool:
    return find_spec(library) is not None


def offer_methods(classifier: Classifier) -> tuple[str, ...]:
    """The methods that can run on this model with what is installed."""
    info = classifier.info
    opens = hasattr(classifier, "module") or info.spec == "bundled"

    def can_run(name: str) -> bool:
        gradients = METHODS[name].needs == "gradients"
        libraries = LIBRARIES.get(name, ("torch", "captum") if gradients else ())
        return (opens or not gradients) and all(_has(library) for library in libraries)

    return tuple(name for name in METHODS if can_run(name))


def offer_fills() -> tuple[str, ...]:
    """The fills that need no file: never one that a client names."""
    return tuple(name for name in NAMES if name != "inpaint" or _has("cv2"))


def choose_model(models: Mapping[str, Classifier], name: str) -> Classifier:
    """One of the operator's models. Raises OptionError for anything else."""
    if name not in models:
        raise OptionError("this model is not offered here")
    return models[name]


def view_of(picture: InputImage, classifier: Classifier) -> Pixels:
    """The image as the classifier sees it, (h, w, channels)."""
    return make_view(picture, classifier.info.geometry, channels=classifier.info.channels).pixels


@dataclass
class Search:
    """An explanation of an uploaded image as a task; `view` is there once it has begun, to be drawn on."""

    upload: Upload
    classifier: Classifier
    request: Request
    limits: Limits
    view: Pixels | None = None

    def __call__(self, progress: Progress) -> "Answer":
        """Read, search, and ask along the ranking that was found."""
        picture = read_picture(self.upload, self.limits)
        check_fits(picture, self.classifier, self.limits)
        self.view = view_of(picture, self.classifier)
        answer = next(explain_many([picture], self.classifier, request=self.request, progress=progress))
        if not isinstance(answer, Explanation):
            raise answer.error
        return Answer(answer, self._reveal(answer))

    def _reveal(self, explanation: Explanation) -> "Reveal | None":
        if explanation.stopped_by == "failure":
            return None  # it would fail again, and an endpoint takes its time to do so
        try:
            return ask_reveal(explanation, self.classifier)
        except (AnswerError, NetworkError):
            return None  # the explanation is there all the same


@dataclass
class Contest:
    """Two methods on an uploaded image, one after the other, as a task."""

    upload: Upload
    classifier: Classifier
    methods: tuple[str, str]
    request: Request
    limits: Limits

    def __call__(self, progress: Progress) -> Comparison:
        picture = read_picture(self.upload, self.limits)
        check_fits(picture, self.classifier, self.limits)
        plain = replace(self.request, grain=None)  # so that every method's set is as its map gives it
        return compare_methods(as_image(picture), self.classifier, self.methods, request=plain, progress=progress)


def classify_view(picture: InputImage, classifier: Classifier, count: int = 5) -> Top:
    """What the classifier says of the whole view, its first labels."""
    view = view_of(picture, classifier)
    said = Engine(classifier).ask_plainly(view, view, np.ones((1, *view.shape[:-1]), bool))
    if said.ndim == 1:
        return ((int(said[0]), classifier.info.name_of(int(said[0])), float("nan")),)
    order = np.argsort(-said[0], kind="stable")[:count]
    return tuple((int(i), classifier.info.name_of(int(i)), float(said[0, i])) for i in order)


@dataclass(frozen=True)
class Step:
    """The first pixels of the ranking: how many, their share of the view, and what the classifier says to them alone.

    confidence: in the label that is explained; NaN for a model that gives labels only.
    """

    pixels: int
    share: float
    label: str
    confidence: float
    holds: bool


@dataclass(frozen=True)
class Answer:
    """An explanation, and what the classifier says along its ranking; None where it fails."""

    explanation: Explanation
    reveal: "Reveal | None"


@dataclass(frozen=True)
class Reveal:
    """The ranking from its top to the whole view in a few steps; entry: (*grid,) the step at which a pixel appears."""

    steps: tuple[Step, ...]
    entry: NDArray[np.uint8]
    start: int  # the step that has as many pixels as the explanation


def ask_reveal(explanation: Explanation, classifier: Classifier) -> Reveal:
    """Ask the classifier about growing sets, finer where they are small: the explanation first, then as the map ranks."""
    grid, total = explanation.visible.shape, explanation.visible.size
    lift = np.ptp(explanation.responsibility) + 1
    order = ranking(explanation.responsibility + lift * explanation.visible, np.random.default_rng(explanation.origin.seed))
    even = np.geomspace(max(1, total // 1000), total, STEPS).round().astype(int)
    counts = np.unique(np.append(even, max(1, explanation.pixels)))
    entry = np.zeros(total, np.uint8)
    entry[order] = np.searchsorted(counts, np.arange(total), side="right")
    shown = np.stack([prefix(order, int(count), grid) for count in counts])
    steps = tuple(
        Step(int(count), int(count) / total, said.label, said.confidence, said.holds)
        for count, said in zip(counts, ask_labels(explanation, classifier, shown), strict=True)
    )
    return Reveal(steps, entry.reshape(grid), int(np.searchsorted(counts, explanation.pixels)))


@dataclass(frozen=True)
class Said:
    """What the classifier says to one mutant; confidence: in the label that is explained; own: in what it says."""

    label: str
    confidence: float
    own: float
    holds: bool


def ask_labels(explanation: Explanation, classifier: Classifier, visible: Visible) -> list[Said]:
    """What the classifier says to (n, *grid) questions under the explanation's first fill."""
    scores = Engine(classifier).ask_plainly(explanation.view, explanation.backgrounds[0], visible)
    judged = explanation.target.judge(scores)
    best = scores.argmax(axis=1) if scores.ndim == 2 else scores
    own = scores.max(axis=1) if scores.ndim == 2 else np.full(len(scores), np.nan)
    return [
        Said(classifier.info.name_of(int(best[i])), float(judged.confidence[i]), float(own[i]), bool(judged.holds[i]))
        for i in range(len(scores))
    ]


@dataclass(frozen=True)
class Witness:
    """The proof for a pixel, with what the classifier says to both images; `without` is None where there is no second."""

    why: Why
    shown: Said
    without: Said | None


def ask_witness(explanation: Explanation, classifier: Classifier, row: int, column: int) -> Witness:
    """Why is this pixel part of the explanation? Raises OptionError for one outside of the view."""
    why = explanation.why(row, column)
    if why.cell is None:
        return Witness(why, ask_labels(explanation, classifier, explanation.visible[None])[0], None)
    both = np.stack([explanation.visible, explanation.visible & ~why.cell])
    shown, without = ask_labels(explanation, classifier, both)
    return Witness(why, shown, without)


def refuse_misfits(classifier: Classifier, spec: str) -> None:
    """A page shows images in colour: a model of signals or volumes has no place on it. Raises OptionError."""
    info = classifier.info
    if (info.geometry is not None and len(info.geometry.grid) != 2) or info.channels not in (None, 3):
        raise OptionError(f"{spec} takes no colour images, and the page has nothing else to give it")
