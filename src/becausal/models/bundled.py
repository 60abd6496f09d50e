"""The small classifier that comes with the package, for the scenes of `becausal.scenes`."""

from dataclasses import replace
from importlib.resources import as_file, files

from becausal.core.errors import ModelError
from becausal.models import onnx_file
from becausal.models.array_model import ArrayClassifier
from becausal.models.labels import read_labels
from becausal.models.preprocess import PRESETS
from becausal.models.settings import Settings


def load(target: str, settings: Settings) -> ArrayClassifier:
    """The bundled classifier; `target` is empty. Raises ModelError where its files are missing."""
    if target:
        raise ModelError(f"the bundled model has no variants: write bundled, not bundled:{target}")
    folder = files("becausal") / "scenes" / "bundled"
    model, names = folder / "scenes.onnx", folder / "labels.txt"
    if not model.is_file() or not names.is_file():
        raise ModelError("the bundled model is missing from this installation: install becausal again")
    with as_file(model) as model_path, as_file(names) as names_path:
        said = replace(
            settings,
            numbers=settings.numbers or PRESETS["tf"],
            labels=settings.labels or read_labels(names_path),
        )
        return onnx_file.load(str(model_path), said, spec="bundled")
