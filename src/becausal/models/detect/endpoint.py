"""Object detectors on a server that speaks the Open Inference Protocol: `detect:oip:http://HOST:PORT/v2/models/NAME`.

The outputs are those of an ONNX file, see `choosing`. What is cached are the boxes, as they are read.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import ModelInfo
from becausal.core.errors import AnswerError, ModelError
from becausal.models.array_model import ArrayClassifier
from becausal.models.detect.choosing import ChosenReader, choose_reader
from becausal.models.detect.inputs import (
    agrees_in_batches,
    choose_names,
    choose_threshold,
    is_like_yolo,
    plan_input,
    refuse_returns,
)
from becausal.models.detect.layouts import Outputs, placeholder
from becausal.models.endpoint.caller import Caller
from becausal.models.endpoint.classifier import open_endpoint
from becausal.models.outputs import make_probe_images
from becausal.models.settings import ModelSettings


def load(target: str, settings: ModelSettings) -> ArrayClassifier:
    """The detector at an address. Raises ModelError, NetworkError or OptionError, none of which repeats a secret."""
    refuse_returns(settings)
    endpoint = open_endpoint(target, settings)
    image_input, outputs = endpoint.image_input, endpoint.metadata.outputs
    is_integer = image_input.dtype.kind in "iu"
    plan = plan_input(settings, image_input.channels, image_input.grid, is_integer=is_integer, is_yolo=is_like_yolo(outputs))
    composer = endpoint.make_composer(plan)
    images = composer.batch(make_probe_images(plan.geometry.grid, plan.channels))
    caller = endpoint.make_caller(images[0], settings.loading.batch_size, output=None)
    classes = len(settings.labels) if settings.labels else None
    chosen, probe, batch_notes = _probe(caller, images, plan.geometry.grid, classes, endpoint.options.output)
    labels, _ = choose_names(settings.labels, None, chosen.reader.layout.classes)
    threshold, threshold_notes = choose_threshold(settings.threshold, chosen.threshold)
    info = ModelInfo(
        spec=f"detect:oip:{endpoint.address.url}",
        kind="detect:oip",
        geometry=plan.geometry,
        channels=plan.channels,
        labels=labels,
        output="boxes",
        normalisation=str(plan.normalisation),
        device=endpoint.address.location,
        inputs=str(image_input.tensor),
        outputs="; ".join(str(tensor) for tensor in outputs),
        notes=(*image_input.notes, *plan.notes, *chosen.notes, *threshold_notes, *batch_notes, *endpoint.notes),
        loading=settings.loading.record(),
        threshold=threshold,
    )
    endpoint.open_cache(caller, str(chosen.reader), probe)
    price, size = endpoint.options.price, caller.limit
    return ArrayClassifier(info, composer, caller, np.asarray, batch_size=size, report=lambda: caller.report(price))


def _probe(
    caller: Caller, images: NDArray[Any], grid: tuple[int, int], classes: int | None, output: str | None
) -> tuple[ChosenReader, NDArray[Any], tuple[str, ...]]:
    """How the outputs are read, the boxes in the probe images, and a note where batches do not work."""
    limit, caller.limit = caller.limit, 1  # one image at a time, until it is known whether outputs have a batch axis
    seen: list[tuple[Outputs, int]] = []

    def collect(outputs: dict[str, NDArray[Any]], rows: int) -> NDArray[Any]:
        seen.append((outputs, rows))
        return placeholder(outputs, rows)

    caller.read = collect
    caller.probe(images)
    try:
        chosen = choose_reader(seen, grid, classes, output)
        probe = np.concatenate([chosen.reader(outputs, rows)[:1] for outputs, rows in seen])
    except AnswerError as error:
        raise ModelError(f"the model cannot be read: {error}") from None
    caller.read = chosen.reader
    if not chosen.reader.layout.has_batch_axis:
        return chosen, probe, ("the outputs have no batch axis: one image at a time",)
    caller.limit = limit
    if limit > 1 and not agrees_in_batches(caller.probe, images[:limit], probe[:limit]):
        caller.limit = 1
        return chosen, probe, ("the network does not return the same boxes for batches: one image at a time",)
    return chosen, probe, ()
