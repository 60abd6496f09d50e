"""The saliency generators for xaitk-saliency: what its interfaces require, and that the maps are right."""

import json
import sys
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from libraries import need

from becausal.core.errors import AnswerError, FillError, MissingExtraError, ModelError, OptionError, TargetError

need("xaitk_saliency")
from smqtk_classifier import ClassifyImage  # noqa: E402
from smqtk_core.configuration import configuration_test_helper, from_config_dict, to_config_dict  # noqa: E402
from smqtk_core.plugin import discover_via_subclasses  # noqa: E402
from smqtk_detection import DetectImageObjects  # noqa: E402
from smqtk_image_io import AxisAlignedBoundingBox  # noqa: E402
from xaitk_saliency import (  # noqa: E402
    GenerateImageClassifierBlackboxSaliency,
    GenerateObjectDetectorBlackboxSaliency,
)

from becausal.interfaces.xaitk import CausalClassifierSaliency, CausalDetectorSaliency  # noqa: E402

GENERATORS = (CausalClassifierSaliency, CausalDetectorSaliency)
BUS, CAR = (2, 2, 10, 10), (18, 16, 30, 28)
LABELS = ["bus", "car", "none"]


def street() -> Any:
    """A bus and a car on grey, (32, 32, 3)."""
    image = np.full((32, 32, 3), 128, np.uint8)
    for left, top, right, bottom in (BUS, CAR):
        image[top:bottom, left:right] = 255
    return image


def bright_share(image: Any, box: tuple[int, int, int, int]) -> float:
    left, top, right, bottom = box
    return float((image[top:bottom, left:right] > 200).mean())


class Classifier(ClassifyImage):
    """Buses by the brightness of one place, cars by that of another."""

    def __init__(self, labels: Sequence[Hashable] = tuple(LABELS)) -> None:
        self.labels = labels

    def get_labels(self) -> Sequence[Hashable]:
        return self.labels

    def classify_images(self, img_iter: Iterable[Any]) -> Iterator[dict[Hashable, float]]:
        for image in img_iter:
            bus, car = 0.6 * bright_share(image, BUS), 0.3 * bright_share(image, CAR)
            yield {"none": 1.0 - bus - car, "bus": bus, "car": car}  # in another order than the labels

    def get_config(self) -> dict[str, Any]:
        return {}


class Detector(DetectImageObjects):
    """A bus and a car, each with the share of its pixels that is bright as its score; faint boxes elsewhere."""

    def detect_objects(self, img_iter: Iterable[Any]) -> Iterable[Iterable[tuple[Any, dict[Hashable, float]]]]:
        for image in img_iter:
            found = []
            for number, box in enumerate((BUS, CAR)):
                if (score := 0.9 * bright_share(image, box)) > 0.05:
                    scores = {name: score if i == number else 0.0 for i, name in enumerate(LABELS[:2])}
                    found.append((AxisAlignedBoundingBox(box[:2], box[2:]), scores))
            yield found

    def get_config(self) -> dict[str, Any]:
        return {}


def share_inside(saliency: Any, box: tuple[int, int, int, int]) -> float:
    """Share of the highest values, as many as the box has pixels, that lie in the box."""
    left, top, right, bottom = box
    inside = np.zeros(saliency.shape, bool)
    inside[top:bottom, left:right] = True
    chosen = np.argsort(-saliency.ravel(), kind="stable")[: inside.sum()]
    return float(inside.ravel()[chosen].mean())


@pytest.mark.parametrize("kind", GENERATORS)
def test_their_check_of_configurations(kind: Any) -> None:
    config = {"method": "rise", "options": {"masks": 40}, "fill": "black", "seed": 3, "max_calls": 500}
    config |= {"labels": 2} if kind is CausalClassifierSaliency else {}
    for made in configuration_test_helper(kind(**config)):
        assert made.get_config() == config
    assert configuration_test_helper(kind())


@pytest.mark.parametrize(
    ("interface", "kind"),
    [
        (GenerateImageClassifierBlackboxSaliency, CausalClassifierSaliency),
        (GenerateObjectDetectorBlackboxSaliency, CausalDetectorSaliency),
    ],
)
def test_it_is_found_as_an_implementation_and_made_from_json(interface: Any, kind: Any) -> None:
    found = discover_via_subclasses(interface)  # as get_impls does, which loads all other plugins too
    assert kind in found
    written = json.dumps(to_config_dict(kind(method="rise")))
    made = from_config_dict(json.loads(written), found)
    assert type(made) is kind
    assert made.get_config()["method"] == "rise"


@pytest.mark.parametrize("method", ["causal", "rise", "occlusion"])
def test_the_map_of_each_label_is_on_its_object(method: str) -> None:
    maps = CausalClassifierSaliency(method=method).generate(street(), Classifier())
    assert maps.shape == (3, 32, 32)
    assert maps.dtype == np.float64
    assert np.abs(maps).max(axis=(1, 2)) == pytest.approx(np.ones(3))
    assert share_inside(maps[0], BUS) > 0.6
    assert share_inside(maps[1], CAR) > 0.6
    assert np.array_equal(maps, CausalClassifierSaliency(method=method)(street(), Classifier()))


def test_only_the_most_likely_labels_are_explained() -> None:
    maps = CausalClassifierSaliency(labels=1, method="rise", options={"masks": 50}).generate(street(), Classifier())
    assert [bool(one.any()) for one in maps] == [True, False, False]


@pytest.mark.parametrize("shape", [(32, 32), (32, 32, 7)])
@pytest.mark.parametrize("labels", [["bus"], LABELS])
def test_images_of_any_number_of_channels_and_any_number_of_labels(shape: tuple[int, ...], labels: list[str]) -> None:
    image = np.broadcast_to(street()[..., :1] if len(shape) == 3 else street()[..., 0], shape)
    seen: set[tuple[int, ...]] = set()

    class Watched(Classifier):
        def classify_images(self, img_iter: Iterable[Any]) -> Iterator[dict[Hashable, float]]:
            images = list(img_iter)
            seen.update(one.shape for one in images)
            yield from super().classify_images(images)

    maps = CausalClassifierSaliency(labels=1).generate(image, Watched(labels))
    assert maps.shape == (len(labels), 32, 32)
    assert share_inside(maps[0], BUS) > 0.6
    assert seen == {shape}


def test_a_blackbox_that_always_answers_the_same_has_a_map_too() -> None:
    class Constant(Classifier):
        def classify_images(self, img_iter: Iterable[Any]) -> Iterator[dict[Hashable, float]]:
            for _ in img_iter:
                yield {"same": 1.0}

    maps = CausalClassifierSaliency().generate(street(), Constant(["same"]))
    assert maps.shape == (1, 32, 32)
    assert np.isfinite(maps).all()
    assert np.abs(maps).max() <= 1.0


@pytest.mark.parametrize(("method", "options", "least"), [("causal", None, 0.6), ("d-rise", {"masks": 1000}, 0.4)])
def test_the_map_of_each_box_is_in_it(method: str, options: Any, least: float) -> None:
    boxes, scores = np.array([CAR, BUS]), np.array([[0.0, 1.0], [1.0, 0.0]])
    maps = CausalDetectorSaliency(method=method, options=options).generate(
        street(), boxes, scores, Detector(), objectness=np.array([0.9, 0.9])
    )
    assert maps.shape == (2, 32, 32)
    assert np.abs(maps).max(axis=(1, 2)) == pytest.approx(np.ones(2))
    assert share_inside(maps[0], CAR) > least
    assert share_inside(maps[1], BUS) > least


def test_no_boxes_no_maps() -> None:
    none = CausalDetectorSaliency().generate(street(), np.zeros((0, 4)), np.zeros((0, 2)), Detector())
    assert len(none) == 0


def test_max_calls_limits_the_calls_of_a_map() -> None:
    asked = []

    class Counted(Classifier):
        def classify_images(self, img_iter: Iterable[Any]) -> Iterator[dict[Hashable, float]]:
            images = list(img_iter)
            asked.append(len(images))
            yield from super().classify_images(images)

    CausalClassifierSaliency(max_calls=30, labels=1).generate(street(), Counted())
    assert sum(asked) <= 30 + 3  # and the image and its background, to know what to explain


def test_what_makes_no_sense_is_refused() -> None:
    image, boxes, scores = street(), np.array([BUS]), np.array([[1.0, 0.0]])
    for kind in GENERATORS:
        with pytest.raises(OptionError, match="needs gradients"):
            kind(method="ig")
        with pytest.raises(OptionError, match="max_calls"):
            kind(max_calls=0)
    with pytest.raises(OptionError, match="labels"):
        CausalClassifierSaliency(labels=0)
    with pytest.raises(FillError, match="purple"):
        CausalClassifierSaliency(fill="purple").generate(image, Classifier())
    with pytest.raises(ModelError, match="explains boxes"):
        CausalClassifierSaliency(method="d-rise").generate(image, Classifier())
    with pytest.raises(AnswerError, match="no confidence for the label lorry"):
        CausalClassifierSaliency().generate(image, Classifier([*LABELS, "lorry"]))
    with pytest.raises(TargetError, match="finds no box of bus at 20,2,30,10"):
        CausalDetectorSaliency().generate(image, np.array([[20, 2, 30, 10]]), scores, Detector())
    with pytest.raises(TargetError, match="scores have 3 classes"):
        CausalDetectorSaliency().generate(image, boxes, np.ones((1, 3)), Detector())
    with pytest.raises(ValueError, match="unexpected number of dimensions: 4"):
        CausalClassifierSaliency().generate(image[None], Classifier())
    with pytest.raises(ValueError, match="do not match"):
        CausalDetectorSaliency().generate(image, boxes, np.ones((2, 2)), Detector())


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xaitk_saliency", None)
    monkeypatch.delitem(sys.modules, "becausal.interfaces.xaitk")
    with pytest.raises(MissingExtraError, match=r"pip install xaitk-saliency, or pip install \"\.\[xaitk\]\" in "):
        __import__("becausal.interfaces.xaitk")
