"""Hugging Face object detectors: `detect:hf:NAME-OR-FOLDER`, with their processor's normalisation and box decoding."""

from typing import Any

from becausal.core.contracts import ModelInfo
from becausal.core.errors import ModelError
from becausal.models.detect.inputs import plan_input
from becausal.models.detect.layouts import LOWEST
from becausal.models.detect.torch import TorchDetector, make_detector
from becausal.models.huggingface import fetch, read_entry, read_interpolation, read_names, read_normalisation, read_pair
from becausal.models.settings import ModelSettings
from becausal.models.torch_probe import Tensor


def load(target: str, settings: ModelSettings) -> TorchDetector:
    """The detector in a folder, or of that name on the hub.

    Raises NetworkError if it must be downloaded and cannot be, ModelError if it is not a detector.
    """
    found = fetch(target, "ObjectDetection")
    module, processor = found.module, found.processor
    if processor is None or not hasattr(processor, "post_process_object_detection"):
        raise ModelError(f"hf:{target} has no image processor that decodes boxes: save it to the folder with the model")
    settings = settings.over(read_metadata(module.config, processor))
    plan = plan_input(settings, 3, None)
    h, w = plan.geometry.grid
    info = ModelInfo(
        spec=f"detect:hf:{target}",
        kind="detect:hf",
        geometry=plan.geometry,
        channels=plan.channels,
        labels=settings.labels,
        output="boxes",
        normalisation=str(plan.normalisation),
        sha256=found.sha256,
        inputs=f"float32 [N,3,{h},{w}]",
        outputs="boxes, scores, labels",
        notes=(*settings.notes, *plan.notes),
    )

    def detect(of: Any, batch: Tensor) -> Any:
        outputs = of(pixel_values=batch)
        sizes = [(h, w)] * len(batch)
        return processor.post_process_object_detection(outputs, threshold=LOWEST, target_sizes=sizes)

    return make_detector(module, settings, info, plan.normalisation, detect)


def read_metadata(config: Any, processor: Any) -> ModelSettings:
    """Geometry, normalisation and labels from the model's config and its processor.

    A processor that keeps the aspect ratio gives inputs of many sizes; views have one.
    """
    size = getattr(processor, "size", None) if getattr(processor, "do_resize", True) else None
    grid = read_pair(size)
    notes: tuple[str, ...] = ()
    short = read_entry(size, "shortest_edge")
    if grid is None and short is not None:
        grid = short, short
        wider = f"{short}x{4 * short // 3}"
        notes = (f"the processor keeps the aspect ratio; set another input size with e.g. --resize squash/{wider}",)
    return ModelSettings(
        normalisation=read_normalisation(processor),
        crop=grid,
        resize="squash" if grid is not None and short is None else None,
        interpolation=read_interpolation(processor),
        labels=read_names(config),
        notes=notes,
    )
