"""Object detectors in ONNX files, run by onnxruntime: `detect:FILE.onnx`."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.boxes import Detections
from becausal.core.contracts import ModelInfo
from becausal.core.errors import AnswerError, ModelError
from becausal.core.text import one_line
from becausal.models.array_model import ArrayClassifier, run_padded
from becausal.models.compose import Composer
from becausal.models.detect.choosing import ChosenReader, choose_reader
from becausal.models.detect.inputs import (
    agrees_in_batches,
    choose_batch_size,
    choose_names,
    choose_threshold,
    is_like_yolo,
    plan_input,
    read_threshold,
    refuse_returns,
)
from becausal.models.detect.layouts import Outputs
from becausal.models.labels import MetadataLabels, read_metadata_labels
from becausal.models.onnx_arrays import INPUT_TYPES
from becausal.models.onnx_file import find_input, open_session, read_tensors
from becausal.models.outputs import make_probe_images
from becausal.models.settings import ModelSettings
from becausal.models.signature import ImageInput, TensorInfo, read_image_input
from becausal.models.user_code import file_sha256

MASK = "pixel_mask"  # an input that says which pixels are not padding, in some exports of DETR: all of them


def load(target: str, settings: ModelSettings, *, spec: str | None = None) -> ArrayClassifier:
    """The detector in an ONNX file. Raises ModelError if it is not one, or does not take images."""
    refuse_returns(settings)
    path = Path(target)
    session = open_session(path, settings)
    metadata = session.get_modelmeta().custom_metadata_map
    settings = settings.over(read_threshold(metadata))
    inputs, outputs = read_tensors(session.get_inputs()), read_tensors(session.get_outputs())
    tensor = find_input(tuple(each for each in inputs if each.name != MASK), settings)
    image_input = read_image_input(tensor, settings.layout, types=INPUT_TYPES, axes=(3, 4), hint="`layout` in a TOML file")
    is_integer = image_input.dtype.kind in "iu"
    plan = plan_input(settings, image_input.channels, image_input.grid, is_integer=is_integer, is_yolo=is_like_yolo(outputs))
    composer = Composer(plan.normalisation.apply, layout=image_input.layout, dtype=image_input.dtype, is_incremental=True)
    mask = next((each for each in inputs if each.name == MASK), None)
    network = _Network(session, image_input, mask, tuple(item.name for item in outputs if item.dtype is not None))
    images = composer.batch(make_probe_images(plan.geometry.grid, plan.channels))
    found = read_metadata_labels(metadata)
    chosen = network.probe(images, plan.geometry.grid, settings, found, path)
    labels, label_notes = choose_names(settings.labels, found, chosen.reader.layout.classes)
    threshold, threshold_notes = choose_threshold(settings.threshold, chosen.threshold)
    device = settings.loading.device
    size = choose_batch_size(settings.loading.batch_size, plan.geometry.grid, device)
    fixed, batch_notes = network.choose_sizes(images, size)
    info = ModelInfo(
        spec=spec or f"detect:onnx:{target}",
        kind="detect:onnx",
        geometry=plan.geometry,
        channels=plan.channels,
        labels=labels,
        output="boxes",
        normalisation=str(plan.normalisation),
        sha256=file_sha256(path),
        device=device,
        inputs="; ".join(str(tensor) for tensor in inputs),
        outputs="; ".join(str(tensor) for tensor in outputs),
        notes=(
            *settings.notes, *image_input.notes, *plan.notes, *chosen.notes, *threshold_notes, *label_notes, *batch_notes
        ),
        loading=settings.loading.record(),
        threshold=threshold,
    )  # fmt: skip
    return ArrayClassifier(info, composer, network, np.asarray, batch_size=fixed[-1] if fixed else size, fixed_sizes=fixed)


class _Network:
    """A session that returns boxes; how its outputs are read is chosen by `probe`. mask: the input `MASK`."""

    def __init__(self, session: Any, image_input: ImageInput, mask: TensorInfo | None, outputs: tuple[str, ...]) -> None:
        self._session = session
        self._input = image_input
        self._mask = mask
        self._outputs = outputs
        self._chosen: ChosenReader | None = None

    def __call__(self, batch: NDArray[Any]) -> Detections:
        assert self._chosen is not None  # set by probe
        return self._chosen.reader(self._run(batch), len(batch))

    def _run(self, batch: NDArray[Any]) -> Outputs:
        sent = batch if self._input.has_batch_axis else batch[0]
        feeds = {self._input.tensor.name: sent}
        if self._mask is not None:
            sides = (batch.shape[2:] if self._input.layout == "nchw" else batch.shape[1:3], self._mask.shape[1:])
            shape = [own if own is not None else side for side, own in zip(*sides, strict=True)]
            feeds[MASK] = np.ones((len(batch), *shape), self._mask.dtype)
        found = self._session.run(self._outputs, feeds)
        return {name: np.asarray(values) for name, values in zip(self._outputs, found, strict=True)}

    def probe(
        self, images: NDArray[Any], grid: tuple[int, int], settings: ModelSettings, names: MetadataLabels | None, path: Path
    ) -> ChosenReader:
        """Find out how the outputs are read, from those for the probe images. Raises ModelError if they are no boxes."""
        size = self._input.batch or 1
        try:
            probes = [(self._run(np.repeat(image[None], size, axis=0)), size) for image in images]
        except Exception as error:  # onnxruntime raises a dozen types of its own, with no common base
            raise ModelError(f"{path} cannot process images of shape {images.shape[1:]}: {one_line(error, 200)}") from None
        classes = len(settings.labels) if settings.labels else len(names.names) if names is not None else None
        try:
            self._chosen = choose_reader(probes, grid, classes, settings.output_name)
            for outputs, rows in probes:
                self._chosen.reader(outputs, rows)
        except (AnswerError, ModelError) as error:
            raise ModelError(f"{path}: {error}") from None
        return self._chosen

    def choose_sizes(self, images: NDArray[Any], size: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The allowed batch sizes, empty for any, and a note where batches do not work."""
        assert self._chosen is not None
        if self._input.batch is not None:
            return (self._input.batch,), ()
        if not self._chosen.reader.layout.has_batch_axis:
            return (1,), ("the outputs have no batch axis: one image at a time",)
        alone = run_padded(self, images, (1,))
        if size > 1 and not agrees_in_batches(self, images[:size], alone[:size]):
            return (1,), ("the network does not return the same boxes for batches: one image at a time",)
        return (), ()
