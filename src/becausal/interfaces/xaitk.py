"""Saliency generators of xaitk-saliency, for image classifiers and object detectors in the interfaces of SMQTK.

    from becausal.interfaces.xaitk import CausalClassifierSaliency, CausalDetectorSaliency

    maps = CausalClassifierSaliency().generate(image, blackbox)                  # (classes, h, w)
    maps = CausalDetectorSaliency().generate(image, boxes, scores, blackbox)     # (boxes, h, w)

Importing this module needs xaitk-saliency.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.api.target_choice import check_method
from becausal.core.boxes import Box, pack_boxes
from becausal.core.contracts import ModelInfo, OutputKind, Pixels, Visible
from becausal.core.errors import AnswerError, MissingExtraError, OptionError, TargetError
from becausal.core.request import whole_number
from becausal.core.targets import Target
from becausal.images.fills import make_background
from becausal.interfaces.maps import SHARE, find_map, keep_rank
from becausal.methods import make_explainer

try:
    from xaitk_saliency import GenerateImageClassifierBlackboxSaliency, GenerateObjectDetectorBlackboxSaliency
except ImportError:
    raise MissingExtraError("xaitk-saliency", "xaitk", "becausal.interfaces.xaitk") from None

Image = NDArray[Any]  # (h, w) or (h, w, channels)
Maps = NDArray[np.float64]  # (n, h, w) in -1..1


@final
class CausalClassifierSaliency(GenerateImageClassifierBlackboxSaliency):  # type: ignore[misc]
    """Saliency maps of an image classifier, by any black-box method of becausal.

    Args:
        method: Name of the method, as in `explain`.
        options: Options of the method.
        fill: What masked pixels become, as in `explain`.
        seed: Random seed. Same seed, same maps.
        max_calls: Maximum number of model calls per map; None for no limit.
        labels: Number of labels that are explained, most likely first. The maps of the other labels are 0. A label at rank
            k is explained as staying among the top k, the last label as keeping half of its confidence.

    Raises:
        OptionError: The method needs gradients, or an option is not valid.
    """

    def __init__(
        self,
        method: str = "causal",
        options: dict[str, Any] | None = None,
        fill: str = "grey",
        seed: int = 0,
        max_calls: int | None = None,
        labels: int = 5,
    ) -> None:
        self._settings = _Settings(method, options, fill, seed, max_calls)
        self._labels = whole_number("labels", labels, 1)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, by name."""
        return {**self._settings.config, "labels": self._labels}

    def _generate(self, ref_image: Image, blackbox: Any) -> Maps:
        names = list(blackbox.get_labels())

        def classify(images: Sequence[Image]) -> NDArray[Any]:
            found = [_in_order(scores, names) for scores in blackbox.classify_images(images)]
            scores = np.array(found, np.float32).reshape(len(found), len(names))
            return np.column_stack([scores, 1 - scores]) if len(names) == 1 else scores  # or not this label

        search = _MapSearch(self._settings, ref_image, classify, "probabilities")
        scores = search.whole
        maps = np.zeros((len(names), *search.grid))
        for label in np.argsort(-scores[: len(names)], kind="stable")[: self._labels]:
            maps[label] = search.find(keep_rank(scores, int(label)))
        return maps


@final
class CausalDetectorSaliency(GenerateObjectDetectorBlackboxSaliency):  # type: ignore[misc]
    """Saliency maps of the boxes of an object detector, by any black-box method of becausal.

    A box is explained as still being found: a box of its label that overlaps it (IoU of at least 0.5), with at least half of
    the score it has in the image. `objectness` has no influence.

    Args:
        method: Name of the method, as in `explain`, e.g. "causal" or "d-rise".
        options: Options of the method.
        fill: What masked pixels become, as in `explain`.
        seed: Random seed. Same seed, same maps.
        max_calls: Maximum number of model calls per map; None for no limit.

    Raises:
        OptionError: The method needs gradients, or an option is not valid.
    """

    def __init__(
        self,
        method: str = "causal",
        options: dict[str, Any] | None = None,
        fill: str = "grey",
        seed: int = 0,
        max_calls: int | None = None,
    ) -> None:
        self._settings = _Settings(method, options, fill, seed, max_calls)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, by name."""
        return dict(self._settings.config)

    def _generate(
        self, ref_image: Image, bboxes: NDArray[Any], scores: NDArray[Any], blackbox: Any, objectness: Any = None
    ) -> Maps:
        names = [name for _, found in _detect(blackbox, [ref_image])[0][:1] for name in found]  # in the blackbox's order
        if len(bboxes) and scores.shape[1] != len(names):
            raise TargetError(f"scores have {scores.shape[1]} classes, and the detector's boxes in this image {len(names)}")
        maps = np.zeros((len(bboxes), *ref_image.shape[:2]))
        for number, (corners, label) in enumerate(zip(np.asarray(bboxes, float), np.argmax(scores, axis=1), strict=True)):
            maps[number] = self._find(ref_image, _as_box(corners), names[label], blackbox)
        return maps

    def _find(self, image: Image, box: Box, name: Hashable, blackbox: Any) -> NDArray[np.float64]:
        """The map of one box of a label."""

        def detect(images: Sequence[Image]) -> NDArray[Any]:
            return pack_boxes([_of_label(found, name) for found in _detect(blackbox, images)])

        search = _MapSearch(self._settings, image, detect, "boxes")
        score = float(Target(0, box=box).judge(search.whole[None]).confidence[0])
        if not score > 0.0:
            place = ",".join(f"{side:g}" for side in box)
            raise TargetError(f"the detector finds no box of {name} at {place} in this image: give boxes that it found")
        return search.find(Target(0, box=box, threshold=SHARE * score))


@final
class _Settings:
    """What both generators are configured with."""

    def __init__(self, method: str, options: dict[str, Any] | None, fill: str, seed: int, max_calls: int | None) -> None:
        self.explainer = make_explainer(method, options)
        if self.explainer.needs == "gradients":
            raise OptionError(f"the method {method} needs gradients: choose a black-box method, e.g. causal")
        self.fill = fill
        self.seed = whole_number("seed", seed, 0)
        self.max_calls = None if max_calls is None else whole_number("max_calls", max_calls, 1)
        self.config = {"method": method, "options": options, "fill": fill, "seed": seed, "max_calls": max_calls}


@final
class _MapSearch:
    """Maps of one image.

    whole: the model's answer to it, (classes,) scores or (MAX_BOXES, 6) boxes. grid: its height and width.
    """

    def __init__(
        self, settings: _Settings, image: Image, answer: Callable[[Sequence[Image]], NDArray[Any]], output: OutputKind
    ) -> None:
        self._settings = settings
        self._model = _Blackbox(answer, output, is_grey=image.ndim == 2)
        check_method(settings.explainer, self._model.info)
        self._view = image[..., None] if image.ndim == 2 else image
        self._background = make_background(settings.fill, self._view, rng=np.random.default_rng([settings.seed, 1]))
        self.whole: NDArray[Any] = self._model.classify(self._view[None])[0]
        self.grid = image.shape[:2]

    def find(self, target: Target) -> NDArray[np.float64]:
        """The map, scaled to a largest absolute value of 1."""
        chosen = self._settings
        found = find_map(
            self._model, self._view, self._background, target, chosen.explainer, seed=chosen.seed, max_calls=chosen.max_calls
        )
        most = float(np.abs(found).max())
        return np.asarray(found / most if most > 0.0 else found, np.float64)


@final
class _Blackbox:
    """A function from a list of images to scores or boxes, as a model. is_grey: whether it takes images (h, w)."""

    batch_size = 32
    fixed_sizes: tuple[int, ...] = ()

    def __init__(self, answer: Callable[[Sequence[Image]], NDArray[Any]], output: OutputKind, *, is_grey: bool) -> None:
        self._answer = answer
        self._is_grey = is_grey
        self.info = ModelInfo("blackbox", "python", None, None, None, output, "none")

    def stage(self, view: Pixels, background: Pixels) -> tuple[Pixels, Pixels]:
        return view, background

    def ask(self, staged: Sequence[tuple[Pixels, Pixels]], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]:
        return self.classify(np.stack([np.where(s[..., None], *staged[i]) for i, s in zip(which, visible, strict=True)]))

    def classify(self, pixels: Pixels) -> NDArray[Any]:
        answer = self._answer(list(pixels[..., 0] if self._is_grey else pixels))
        if len(answer) != len(pixels):
            raise AnswerError(f"the blackbox returned {len(answer)} answers for {len(pixels)} images; expected one for each")
        return answer


def _in_order(scores: Any, names: Sequence[Hashable]) -> list[float]:
    """The confidences of one image, in the order of the labels."""
    if missing := [name for name in names if name not in scores]:
        raise AnswerError(f"the blackbox returned no confidence for the label {missing[0]}")
    return [float(scores[name]) for name in names]


def _detect(blackbox: Any, images: Sequence[Image]) -> list[list[tuple[Any, dict[Hashable, float]]]]:
    """For each image, the boxes and their confidences by label."""
    return [list(found) for found in blackbox.detect_objects(images)]


def _of_label(found: Sequence[tuple[Any, dict[Hashable, float]]], name: Hashable) -> tuple[Any, Any, Any]:
    """Boxes, scores and ids (all 0) of one label."""
    own = [(box, scores[name]) for box, scores in found if scores.get(name, 0.0) > 0.0]
    corners = [[*box.min_vertex, *box.max_vertex] for box, _ in own]
    return np.array(corners, float).reshape(-1, 4), [score for _, score in own], [0] * len(own)


def _as_box(corners: NDArray[Any]) -> Box:
    left, top, right, bottom = (float(side) for side in corners)
    return left, top, right, bottom
