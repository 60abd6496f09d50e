"""Saliency maps with the interfaces of xaitk-saliency: for a classifier, and for the boxes of an object detector.

    pip install ".[xaitk]"
    python examples/xaitk_saliency_maps.py

The models are the bundled ones, behind the interfaces of SMQTK that xaitk-saliency takes.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from smqtk_classifier import ClassifyImage
from smqtk_detection import DetectImageObjects
from smqtk_image_io import AxisAlignedBoundingBox

import becausal
from becausal.interfaces.xaitk import CausalClassifierSaliency, CausalDetectorSaliency
from becausal.scenes import LABELS, Scene, make_scene

CLASSIFIER = becausal.load_model("bundled")
DETECTOR = becausal.load_model("bundled:detector")


class SceneClassifier(ClassifyImage):
    def get_labels(self) -> Sequence[Hashable]:
        return LABELS

    def classify_images(self, img_iter: Iterable[np.ndarray]) -> Iterator[dict[Hashable, float]]:
        for scores in CLASSIFIER.classify(np.stack(list(img_iter))):
            yield dict(zip(LABELS, scores.tolist(), strict=True))

    def get_config(self) -> dict[str, Any]:
        return {}


class SceneDetector(DetectImageObjects):
    def detect_objects(self, img_iter: Iterable[np.ndarray]) -> Iterator[list[tuple[Any, dict[Hashable, float]]]]:
        for image in img_iter:
            yield [
                (AxisAlignedBoundingBox(found.box[:2], found.box[2:]), one_hot(found.label_id, found.score))
                for found in becausal.detect(image, DETECTOR)
            ]

    def get_config(self) -> dict[str, Any]:
        return {}


def one_hot(label_id: int, score: float) -> dict[Hashable, float]:
    return {name: score if number == label_id else 0.0 for number, name in enumerate(LABELS)}


def main() -> None:
    scene = make_scene(107)  # a sailboat behind strips
    classifier_maps = CausalClassifierSaliency(labels=1).generate(scene.image, SceneClassifier())
    assert classifier_maps.shape == (len(LABELS), *scene.image.shape[:2])
    print_top(classifier_maps[scene.label_index], scene)

    found = becausal.detect(scene.image, DETECTOR)[:1]
    boxes = np.array([one.box for one in found])  # (1, 4): left, top, right, bottom
    scores = np.array([list(one_hot(one.label_id, 1.0).values()) for one in found])  # (1, classes)
    (box_map,) = CausalDetectorSaliency().generate(scene.image, boxes, scores, SceneDetector())
    print_top(box_map, scene)


def print_top(saliency: np.ndarray, scene: Scene) -> None:
    """Print where the highest values are, as many as the object has visible pixels."""
    chosen = np.argsort(-saliency.ravel())[: scene.visible.sum()]
    print(f"{scene.label}: {scene.visible.ravel()[chosen].mean():.0%} of the most salient pixels are on its visible part")


if __name__ == "__main__":
    main()
