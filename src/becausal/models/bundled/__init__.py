"""The small models that come with the package, trained on the scenes of `becausal.scenes`."""

from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from typing import Any

from becausal.core.contracts import Classifier
from becausal.core.errors import ModelError
from becausal.models import onnx_file, text
from becausal.models.array_model import ArrayClassifier
from becausal.models.labels import read_labels
from becausal.models.loading import ModelSettings
from becausal.models.preprocess import PRESETS


@dataclass(frozen=True)
class BundledVariant:
    """One of the bundled models: its ONNX file, and what `info` says about it.

    torch_loader: the function of `network` that loads it as a torch module, only of classifiers of the scenes. texts: the
    file of the text encoder beside that of the images.
    """

    file: str
    torch_loader: str | None = None
    notes: tuple[str, ...] = ()
    texts: str | None = None


#: By what comes after "bundled:", empty for the default.
VARIANTS: dict[str, BundledVariant] = {
    "": BundledVariant("scenes.onnx", "load_network"),
    "vit": BundledVariant("vit.onnx", "load_vit", ("the model is the bundled vision transformer",)),
    "detector": BundledVariant("detector.onnx"),
    "clip": BundledVariant("clip_image.onnx", texts="clip_text.onnx"),
    "segmenter": BundledVariant("segmenter.onnx"),
}


def load(target: str, settings: ModelSettings) -> Classifier:
    """A bundled model; `target` names the variant, empty for the default. Raises ModelError for others."""
    specs = {name: f"bundled:{name}" if name else "bundled" for name in VARIANTS}
    if target not in specs:
        raise ModelError(f"there is no bundled model {target!r}: write {' or '.join(specs.values())}")
    variant, spec = VARIANTS[target], settings.name_kind(specs[target])
    folder = files("becausal.models.bundled")
    model, names, words = folder / variant.file, folder / "labels.txt", folder / (variant.texts or variant.file)
    if not (model.is_file() and names.is_file() and words.is_file()):
        raise ModelError(f"the model {spec} is missing from this installation: reinstall becausal")
    own = ModelSettings(normalisation=PRESETS["tf"], notes=variant.notes)
    with as_file(model) as model_path, as_file(names) as names_path, as_file(words) as words_path:
        match target:
            case "clip" if not settings.question:
                texts, scale, notes = text.load_words(words_path, settings)
                plain = replace(settings, labels=None, threshold=None, returns="raw", notes=notes)
                encoder = onnx_file.load(str(model_path), plain.over(own), spec=spec)
                return text.ask(encoder, texts, settings, scale=scale)
            case "detector":  # its threshold is in the file, and the last label is "nothing", which has no box
                own = replace(own, resize="squash", labels=read_labels(names_path)[:-1])
                settings = replace(settings, question="detect")
            case "segmenter":
                own = replace(own, labels=("background", *read_labels(names_path)[:-1], "occluder"))
            case "" | "vit":
                own = replace(own, labels=read_labels(names_path))
        classifier = onnx_file.load(str(model_path), settings.over(own), spec=spec)
    # For methods that need gradients: the same network as a torch module, which has no other normalisation
    loader, is_usual = variant.torch_loader, classifier.info.normalisation == str(PRESETS["tf"])
    if loader is not None and is_usual and isinstance(classifier, ArrayClassifier):

        def torch_form() -> tuple[Any, Any]:
            from becausal.models.bundled import network

            return getattr(network, loader)(), network.to_input

        classifier.torch_form = torch_form
    return classifier
