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
from becausal.core.contracts import ModelInfo, OutputKind, Pixels
from becausal.core.errors import AnswerError, MissingExtraError, OptionError, TargetError
from becausal.core.request import whole_number
from becausal.core.targets import Target
from becausal.images.fills import make_background
from becausal.interfaces.maps import SHARE, find_map, keep_rank
from becausal.methods import make_explainer
from becausal.models.array_model import ArrayClassifier, Composer

try:
    from xaitk_saliency import GenerateImageClassifierBlackboxSaliency, GenerateObjectDetectorBlackboxSaliency
except ImportError:
    raise MissingExtraError("xaitk-saliency", "xaitk", "becausal.interfaces.xaitk") from None

Image = NDArray[Any]  # (h, w) or (h, w, channels)
Maps = NDArray[np.float64]  # (n, h, w) in -1..1
Answer = Callable[[Sequence[Image]], NDArray[Any]]  # to images: scores or boxes


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
        self._maps = _Maps(method, options, fill, seed, max_calls)
        self._labels = whole_number("labels", labels, 1)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, by name."""
        return {**self._maps.config, "labels": self._labels}

    def _generate(self, ref_image: Image, blackbox: Any) -> Maps:
        names = list(blackbox.get_labels())

        def classify(images: Sequence[Image]) -> NDArray[Any]:
            found = []
            for confidences in blackbox.classify_images(images):
                if missing := [name for name in names if name not in confidences]:
                    raise AnswerError(f"the blackbox returned no confidence for the label {missing[0]}")
                found.append([float(confidences[name]) for name in names])
            scores = np.array(found, np.float32).reshape(len(found), len(names))
            return np.column_stack([scores, 1 - scores]) if len(names) == 1 else scores  # or not this label

        scores, find = self._maps.open(ref_image, classify, "probabilities")
        maps = np.zeros((len(names), *ref_image.shape[:2]))
        for label in np.argsort(-scores[: len(names)], kind="stable")[: self._labels]:
            maps[label] = find(keep_rank(scores, int(label)))
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
        self._maps = _Maps(method, options, fill, seed, max_calls)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor, by name."""
        return dict(self._maps.config)

    def _generate(
        self, ref_image: Image, bboxes: NDArray[Any], scores: NDArray[Any], blackbox: Any, objectness: Any = None
    ) -> Maps:
        first = list(next(iter(blackbox.detect_objects([ref_image]))))[:1]
        names = [name for _, found in first for name in found]  # in the blackbox's order
        if len(bboxes) and scores.shape[1] != len(names):
            raise TargetError(f"scores have {scores.shape[1]} classes, and the detector's boxes in this image {len(names)}")
        maps = np.zeros((len(bboxes), *ref_image.shape[:2]))
        for number, (corners, label) in enumerate(zip(np.asarray(bboxes, float), np.argmax(scores, axis=1), strict=True)):
            left, top, right, bottom = (float(side) for side in corners)
            maps[number] = self._find(ref_image, (left, top, right, bottom), names[label], blackbox)
        return maps

    def _find(self, image: Image, box: Box, name: Hashable, blackbox: Any) -> Maps:
        """The map of one box of a label, (h, w)."""

        def detect(images: Sequence[Image]) -> NDArray[Any]:
            rows = []  # boxes, scores and ids (all 0) of this label, for each image
            for found in blackbox.detect_objects(images):
                own = [(box, scores[name]) for box, scores in found if scores.get(name, 0.0) > 0.0]
                corners = np.array([[*box.min_vertex, *box.max_vertex] for box, _ in own], float).reshape(-1, 4)
                rows.append((corners, [score for _, score in own], [0] * len(own)))
            return pack_boxes(rows)

        whole, find = self._maps.open(image, detect, "boxes")
        score = float(Target(0, box=box).judge(whole[None]).confidence[0])
        if not score > 0.0:
            place = ",".join(f"{side:g}" for side in box)
            raise TargetError(f"the detector finds no box of {name} at {place} in this image: give boxes that it found")
        return find(Target(0, box=box, threshold=SHARE * score))


@final
class _Maps:
    """Makes the maps of one image after another. config: the arguments of the constructor of a generator."""

    def __init__(self, method: str, options: dict[str, Any] | None, fill: str, seed: int, max_calls: int | None) -> None:
        self._explainer = make_explainer(method, options)
        if self._explainer.needs == "gradients":
            raise OptionError(f"the method {method} needs gradients: choose a black-box method, e.g. causal")
        self._fill = fill
        self._seed = whole_number("seed", seed, 0)
        self._max_calls = None if max_calls is None else whole_number("max_calls", max_calls, 1)
        self.config = {"method": method, "options": options, "fill": fill, "seed": seed, "max_calls": max_calls}

    def open(self, image: Image, answer: Answer, output: OutputKind) -> tuple[NDArray[Any], Callable[[Target], Maps]]:
        """The model's answer to an image, (classes,) scores or (MAX_BOXES, 6) boxes, and what makes its map of a target.

        A map, (h, w), is scaled to a largest absolute value of 1.
        """
        model = _wrap(answer, output, is_grey=image.ndim == 2)
        check_method(self._explainer, model.info)
        view = image[..., None] if image.ndim == 2 else image
        background = make_background(self._fill, view, rng=np.random.default_rng([self._seed, 1]))

        def find(target: Target) -> Maps:
            found = find_map(model, view, background, target, self._explainer, seed=self._seed, max_calls=self._max_calls)
            most = float(np.abs(found).max())
            return np.asarray(found / most if most > 0.0 else found, np.float64)

        return model.classify(view[None])[0], find


def _wrap(answer: Answer, output: OutputKind, *, is_grey: bool) -> ArrayClassifier:
    """A function from a list of images to scores or boxes, as a model. is_grey: whether it takes images (h, w)."""

    def run(pixels: Pixels) -> NDArray[Any]:
        found = answer(list(pixels[..., 0] if is_grey else pixels))
        if len(found) != len(pixels):
            raise AnswerError(f"the blackbox returned {len(found)} answers for {len(pixels)} images; expected one for each")
        return found

    info = ModelInfo("blackbox", "python", None, None, None, output, "none")
    composer = Composer(np.asarray, reuses_buffer=False)  # the blackbox may keep what it is given
    return ArrayClassifier(info, composer, run, np.asarray, batch_size=32)
