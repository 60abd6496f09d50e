"""The small classifier that comes with the package, trained on the scenes of `becausal.scenes`."""

from importlib.resources import as_file, files
from typing import Any, final

from becausal.core.contracts import Classifier
from becausal.core.errors import ModelError
from becausal.models import onnx_file
from becausal.models.labels import read_labels
from becausal.models.preprocess import PRESETS
from becausal.models.settings import ModelSettings


@final
class BundledClassifier:
    """The bundled ONNX model, with the same network as a torch module for methods that need gradients."""

    def __init__(self, onnx: Classifier) -> None:
        self.info, self.batch_size, self.fixed_sizes = onnx.info, onnx.batch_size, onnx.fixed_sizes
        self.stage, self.ask, self.classify = onnx.stage, onnx.ask, onnx.classify

    def __repr__(self) -> str:
        return f"<BundledClassifier {self.info}>"

    def torch_form(self) -> tuple[Any, Any]:
        """The torch module, and the function that normalises pixels (n, h, w, 3) to its input (n, 3, h, w)."""
        from becausal.scenes.network import load_network, to_input

        return load_network(), to_input


def load(target: str, settings: ModelSettings) -> Classifier:
    """The bundled classifier; `target` is empty. Raises ModelError where its files are missing."""
    if target:
        raise ModelError(f"the bundled model has no variants: write bundled, not bundled:{target}")
    folder = files("becausal") / "scenes" / "bundled"
    model, names = folder / "scenes.onnx", folder / "labels.txt"
    if not model.is_file() or not names.is_file():
        raise ModelError("the bundled model is missing from this installation: reinstall becausal")
    with as_file(model) as model_path, as_file(names) as names_path:
        complete = settings.over(ModelSettings(normalisation=PRESETS["tf"], labels=read_labels(names_path)))
        classifier = onnx_file.load(str(model_path), complete, spec="bundled")
    is_usual = classifier.info.normalisation == str(PRESETS["tf"])  # the torch form has no other normalisation
    return BundledClassifier(classifier) if is_usual else classifier
