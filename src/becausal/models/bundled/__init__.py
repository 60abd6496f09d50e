"""The small models that come with the package, trained on the scenes of `becausal.scenes`."""

from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from typing import Any

from becausal.core.contracts import Classifier
from becausal.core.errors import ModelError
from becausal.models import onnx_file
from becausal.models.array_model import ArrayClassifier
from becausal.models.labels import read_labels
from becausal.models.loading import ModelSettings
from becausal.models.preprocess import PRESETS


@dataclass(frozen=True)
class BundledVariant:
    """One of the bundled models: its ONNX file, and what `info` says about it."""

    file: str
    torch_loader: str | None  # the function of `network` that loads it as a torch module; None for the object detector
    notes: tuple[str, ...] = ()


#: By what comes after "bundled:", empty for the default.
VARIANTS: dict[str, BundledVariant] = {
    "": BundledVariant("scenes.onnx", "load_network"),
    "vit": BundledVariant("vit.onnx", "load_vit", ("the model is the bundled vision transformer",)),
    "detector": BundledVariant("detector.onnx", None),
}


def load(target: str, settings: ModelSettings) -> Classifier:
    """A bundled classifier or detector; `target` names the variant, empty for the default. Raises ModelError for others."""
    specs = {name: f"bundled:{name}" if name else "bundled" for name in VARIANTS}
    if target not in specs:
        raise ModelError(f"there is no bundled model {target!r}: write {' or '.join(specs.values())}")
    variant, spec = VARIANTS[target], specs[target]
    folder = files("becausal.models.bundled")
    model, names = folder / variant.file, folder / "labels.txt"
    if not model.is_file() or not names.is_file():
        raise ModelError(f"the model {spec} is missing from this installation: reinstall becausal")
    detects = variant.torch_loader is None
    with as_file(model) as model_path, as_file(names) as names_path:
        own = ModelSettings(normalisation=PRESETS["tf"], labels=read_labels(names_path), notes=variant.notes)
        if detects:  # its threshold is in the file, and the last label is "nothing", which has no box
            own = replace(own, resize="squash", labels=(own.labels or ())[:-1])
        classifier = onnx_file.load(str(model_path), replace(settings.over(own), detects=detects), spec=spec)
    # For methods that need gradients: the same network as a torch module, which has no other normalisation
    loader, is_usual = variant.torch_loader, classifier.info.normalisation == str(PRESETS["tf"])
    if loader is not None and is_usual and isinstance(classifier, ArrayClassifier):

        def torch_form() -> tuple[Any, Any]:
            from becausal.models.bundled import network

            return getattr(network, loader)(), network.to_input

        classifier.torch_form = torch_form
    return classifier
