"""The small models that come with the package, trained on the scenes of `becausal.scenes`."""

from dataclasses import dataclass, replace
from importlib import import_module
from importlib.resources import as_file, files
from typing import Any, final

from becausal.core.contracts import Classifier
from becausal.core.errors import ModelError
from becausal.models import onnx_file
from becausal.models.detect import onnx as detector_file
from becausal.models.labels import read_labels
from becausal.models.preprocess import PRESETS
from becausal.models.settings import ModelSettings


@dataclass(frozen=True)
class BundledVariant:
    """One of the bundled models.

    Attributes:
        file: Its ONNX file, in the folder of this package.
        torch_loader: Module of this package and its function that load the same network as a torch module; None for the
            object detector.
        notes: What `info` says about it.
    """

    file: str
    torch_loader: tuple[str, str] | None
    notes: tuple[str, ...] = ()


#: By what comes after "bundled:", empty for the default.
VARIANTS: dict[str, BundledVariant] = {
    "": BundledVariant("scenes.onnx", ("network", "load_network")),
    "vit": BundledVariant("vit.onnx", ("vit", "load_vit"), ("the model is the bundled vision transformer",)),
    "detector": BundledVariant("detector.onnx", None),
}


@final
class BundledClassifier:
    """A bundled ONNX model, with the same network as a torch module for methods that need gradients."""

    def __init__(self, onnx: Classifier, variant: BundledVariant) -> None:
        self.info = replace(onnx.info, notes=(*variant.notes, *onnx.info.notes))
        self.batch_size, self.fixed_sizes = onnx.batch_size, onnx.fixed_sizes
        self.stage, self.ask, self.classify = onnx.stage, onnx.ask, onnx.classify
        self._variant = variant

    def __repr__(self) -> str:
        return f"<BundledClassifier {self.info}>"

    def torch_form(self) -> tuple[Any, Any]:
        """The torch module, and the function that normalises pixels (n, h, w, 3) to its input (n, 3, h, w)."""
        from becausal.models.bundled.network import to_input

        assert self._variant.torch_loader is not None  # that of a classifier
        module, function = self._variant.torch_loader
        return getattr(import_module(f"becausal.models.bundled.{module}"), function)(), to_input


def load(target: str, settings: ModelSettings) -> Classifier:
    """A bundled classifier or detector; `target` names the variant, empty for the default.

    Raises:
        ModelError: There is no such variant, or its files are missing.
    """
    spec = f"bundled:{target}" if target else "bundled"
    if target not in VARIANTS:
        known = " or ".join(f"bundled:{name}" if name else "bundled" for name in VARIANTS)
        raise ModelError(f"there is no bundled model {target!r}: write {known}")
    variant = VARIANTS[target]
    folder = files("becausal.models.bundled")
    model, names = folder / variant.file, folder / "labels.txt"
    if not model.is_file() or not names.is_file():
        raise ModelError(f"the model {spec} is missing from this installation: reinstall becausal")
    if variant.torch_loader is None:
        with as_file(model) as model_path, as_file(names) as names_path:  # its threshold is in the file
            labels = read_labels(names_path)[:-1]  # the last one is "nothing", which has no box
            own = ModelSettings(normalisation=PRESETS["tf"], resize="squash", labels=labels)
            return detector_file.load(str(model_path), settings.over(own), spec=spec)
    with as_file(model) as model_path, as_file(names) as names_path:
        complete = settings.over(ModelSettings(normalisation=PRESETS["tf"], labels=read_labels(names_path)))
        classifier = onnx_file.load(str(model_path), complete, spec=spec)
    is_usual = classifier.info.normalisation == str(PRESETS["tf"])  # the torch form has no other normalisation
    return BundledClassifier(classifier, variant) if is_usual else classifier
