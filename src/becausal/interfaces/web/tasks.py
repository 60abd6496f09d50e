"""What the page offers, and the searches it starts: explain an image, or compare two methods on it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

from becausal.api import Request, explain_many
from becausal.api.compare import compare_methods
from becausal.api.explanation import Explanation
from becausal.core.checks import ANY
from becausal.core.contracts import Classifier, Pixels
from becausal.core.errors import AnswerError, NetworkError, OptionError
from becausal.images.fills import FILLS
from becausal.images.loading import InputImage
from becausal.interfaces.web.images import Upload, check_image_size, decode_image, to_pillow
from becausal.interfaces.web.job_queue import ProgressCallback
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.predictions import RankingSteps, TopLabels, predict_ranking, view_pixels
from becausal.interfaces.web.sessions import StoredResult
from becausal.methods import METHODS, make_explainer
from becausal.methods.costs import check_cost

#: Share of the confidence that the explanation must keep, by its name on the page; 0.9 with the two levels inside it, and
#: "any" with a level around them that holds on random backgrounds.
CONFIDENCE_SHARES: dict[str, float | str] = {
    "three levels: label, half and 90 % of the confidence": 0.9,
    "four levels: these, and the label on any background": ANY,
    "label only": 0.0,
}
HOLDS = 0.9  # share of random backgrounds
#: Cells along the longest side of the view, by the level of detail on the page.
CELL_COUNTS = {"fine": 56, "medium": 32, "coarse": 16}
MAX_EXPLANATIONS = 4
LIBRARIES = {"shap": ("shap",), "rap": ("torch",), "extremal": ("torch",)}  # needed by a method


def make_request(
    top_labels: TopLabels,
    classifier: Classifier,
    side: int,
    limits: Limits,
    *,
    fill: str = "grey",
    label: int | None = None,
    share: float | str = 0.9,
    cells: int = 32,
    max_calls: int = 2000,
    **options: Any,
) -> Request:
    """The request for the values of the page's controls; raises OptionError for a value that is not offered.

    side: longest side of the view in pixels. label: id, or the number of a detector's box; None for the top one. share:
    see `CONFIDENCE_SHARES`. cells: along the longest side. options: further fields of `Request`, by name.
    """
    ranks = {label_id: rank for rank, (label_id, _, _) in enumerate(top_labels, start=1)} | {None: 1}
    for name, value, offered in (
        ("method", options.get("method", "causal"), available_methods(classifier)),
        ("fill", fill, available_fills()),
        ("share of the confidence", share, CONFIDENCE_SHARES.values()),
        ("level of detail", cells, CELL_COUNTS.values()),
        ("number of explanations", options.get("several", 1), range(1, MAX_EXPLANATIONS + 1)),
        ("label", label, ranks),
    ):
        if value not in offered:
            raise OptionError(f"the {name} is not one of those offered")
    if not 10 <= max_calls <= limits.max_calls:
        raise OptionError(
            f"the maximum number of model calls must be between 10 and {limits.max_calls:,}, not {max_calls:,}"
        )
    output, is_any = classifier.info.output, share == ANY
    is_detector = output == "boxes"
    kept = 0.9 if is_any else float(share)
    several = options.get("several", 1) if options.get("method", "causal") == "causal" else 1
    return Request(
        fills=(fill,),
        target=None if is_detector else label,
        box=label if is_detector else None,
        top=1 if output in ("multilabel", "boxes") else ranks[label],
        confidence=kept if several > 1 and kept > 0 and output != "labels" else None,  # disjoint sets have no levels
        smallest=kept == 0,
        holds=HOLDS if is_any and several == 1 else None,
        grain=max(1, side // cells),
        max_calls=max_calls,
        **{**options, "several": several},
    )


@cache
def _is_installed(library: str) -> bool:
    return find_spec(library) is not None


def available_methods(classifier: Classifier) -> tuple[str, ...]:
    """The methods that can run on this model with the installed libraries."""
    has_gradients = hasattr(classifier, "torch_form")

    def can_run(name: str) -> bool:
        needs_gradients = METHODS[name].needs == "gradients"
        if METHODS[name].needs == "boxes" and classifier.info.output != "boxes":
            return False
        libraries = LIBRARIES.get(name, ("torch", "captum") if needs_gradients else ())
        return (has_gradients or not needs_gradients) and all(_is_installed(library) for library in libraries)

    return tuple(name for name in METHODS if can_run(name))


def available_fills() -> tuple[str, ...]:
    """The named fills; never one that reads a file of the server."""
    return tuple(name for name in FILLS if name != "inpaint" or _is_installed("cv2"))


def find_model(models: Mapping[str, Classifier], name: str) -> Classifier:
    """One of the server's models; raises OptionError for another name."""
    if name not in models:
        raise OptionError("the model is not one of those offered")
    return models[name]


def check_colour_model(classifier: Classifier, spec: str) -> None:
    """Raise OptionError for a model that does not take colour images, the only input of the page and the API."""
    info = classifier.info
    if (info.geometry is not None and len(info.geometry.grid) != 2) or info.channels not in (None, 3):
        raise OptionError(f"{spec} does not take colour images; becausal serve needs a model that does")


def check_method_cost(request: Request, image: InputImage, classifier: Classifier, limits: Limits) -> None:
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


@dataclass(frozen=True)
class ExplainResult:
    """An explanation, and the predictions along its ranking; None where the model failed."""

    stored: StoredResult
    ranking: RankingSteps | None

    @property
    def explanation(self) -> Explanation:
        """The explanation, unpacked."""
        content = self.stored.content
        assert isinstance(content, Explanation)
        return content

    @property
    def held_bytes(self) -> int:
        """Memory of the result."""
        return self.stored.held_bytes + (self.ranking.entry.nbytes if self.ranking is not None else 0)


@dataclass
class ExplainTask:
    """Explain an uploaded image."""

    upload: Upload
    classifier: Classifier
    request: Request
    limits: Limits

    @cached_property
    def view(self) -> Pixels:
        """The image as the classifier sees it, to show the progress on it."""
        return view_pixels(decode_image(self.upload, self.limits), self.classifier)

    def __call__(self, progress: ProgressCallback) -> ExplainResult:
        """Decode, search, and evaluate the ranking that was found."""
        image = decode_image(self.upload, self.limits)
        check_image_size(image, self.classifier, self.limits)
        explanation = next(explain_many([image], self.classifier, request=self.request, progress=progress))
        if not isinstance(explanation, Explanation):
            raise explanation.error
        return ExplainResult(StoredResult.store(explanation), self._evaluate_ranking(explanation))

    def _evaluate_ranking(self, explanation: Explanation) -> RankingSteps | None:
        if explanation.stopped_by == "failure":
            return None  # it would fail again, after the time-outs of an endpoint
        try:
            return predict_ranking(explanation, self.classifier)
        except (AnswerError, NetworkError):
            return None  # the explanation is valid without it


@dataclass
class CompareTask:
    """Run two methods on an uploaded image, one after the other."""

    upload: Upload
    classifier: Classifier
    methods: tuple[str, str]
    request: Request
    limits: Limits

    def __call__(self, progress: ProgressCallback) -> StoredResult:
        image = decode_image(self.upload, self.limits)
        check_image_size(image, self.classifier, self.limits)
        request = replace(self.request, grain=None)  # compare the sets as the methods find them
        return StoredResult.store(
            compare_methods(to_pillow(image), self.classifier, self.methods, request=request, progress=progress)
        )
