"""Saved Keras models, with whichever backend Keras is set to."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import ModelInfo
from becausal.core.errors import MissingExtraError, ModelError
from becausal.models.array_model import ArrayClassifier, run_padded
from becausal.models.compose import Composer, Layout
from becausal.models.outputs import OutputOption, name_classes, probe_pictures, read_output
from becausal.models.preprocess import PRESETS, choose_numbers, plan_geometry
from becausal.models.settings import Metadata, Settings

_OWN_NUMBERS = ("Rescaling", "Normalization")


def load(target: str, settings: Settings) -> ArrayClassifier:
    """The classifier in a .keras or .h5 file. Raises ModelError for a file that is none."""
    path = Path(target)
    if not path.is_file():
        raise ModelError(f"there is no file {path}")
    try:
        import keras
    except ImportError:
        raise MissingExtraError("keras", "keras", "a Keras model") from None
    try:
        model = keras.saving.load_model(path, compile=False)
    except Exception as error:  # Keras and its backends raise whatever they trip over
        message = " ".join(str(error).split())[:200]
        raise ModelError(f"{path} cannot be loaded as a Keras model: {message}") from error
    return wrap(model, settings, spec=f"keras:{target}", sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def is_model(model: Any) -> bool:
    """Whether an object is a Keras model, without importing Keras."""
    keras = sys.modules.get("keras")
    return keras is not None and hasattr(keras, "Model") and isinstance(model, keras.Model)


def wrap(model: Any, settings: Settings, *, spec: str | None = None, sha256: str | None = None) -> ArrayClassifier:
    """A Keras model in memory as a classifier. Raises ModelError where it takes no images."""
    from keras import ops

    if settings.device != "cpu" or settings.half:
        raise ModelError("where a Keras model runs is up to its backend: leave --device and half out")
    shape = getattr(model, "input_shape", None)
    if not isinstance(shape, tuple) or len(shape) != 4:
        raise ModelError(f"the model's input is {shape}; images need 4 axes, such as (None, 224, 224, 3)")
    layout: Layout = settings.layout or ("nchw" if shape[1] in (1, 3) and shape[3] not in (1, 3) else "nhwc")
    channels, h, w = (shape[1], shape[2], shape[3]) if layout == "nchw" else (shape[3], shape[1], shape[2])
    found = _metadata(model)
    numbers, assumed = choose_numbers(settings.numbers or found.numbers, channels=channels or 3)
    geometry, more = plan_geometry(
        (h, w) if h and w else None, resize=settings.resize, crop=settings.crop, interpolation=settings.interpolation
    )

    def run(batch: NDArray[Any]) -> NDArray[Any]:
        # A copy: a backend may hold on to the memory it is given, and the composer writes on it again.
        return np.asarray(ops.convert_to_numpy(model(batch.copy(), training=False)))

    composer = Composer(numbers.apply, layout=layout, dtype=np.dtype(np.float32))
    view_channels = 3 if numbers.order == "grey" else channels or 3
    fixed = (int(shape[0]),) if shape[0] else ()
    probe = run_padded(run, composer.batch(probe_pictures(geometry.grid, view_channels)), fixed)
    reading, heard = read_output(probe, said=settings.output or found.output, by="the model or --output")
    info = ModelInfo(
        spec=spec or f"Keras model {getattr(model, 'name', '')}".strip(),
        kind="keras",
        geometry=geometry,
        channels=view_channels,
        labels=name_classes(reading, settings.labels),
        output=reading.output,
        numbers=str(numbers),
        sha256=sha256,
        inputs=str(shape),
        outputs=str(getattr(model, "output_shape", "")),
        notes=(*found.notes, *assumed, *more, *heard),
        loading=settings.loading.record(),
    )
    size = fixed[0] if fixed else settings.batch_size or 32
    return ArrayClassifier(info, composer, run, reading, batch_size=size, fixed_sizes=fixed)


def _metadata(model: Any) -> Metadata:
    """What the layers say: whether the model rescales pixels itself, and what its last activation gives."""
    layers = list(getattr(model, "layers", ()))
    own = next((type(layer).__name__ for layer in layers[:4] if type(layer).__name__ in _OWN_NUMBERS), None)
    notes: list[str] = []
    if own is not None:
        notes.append(f"the model has a {own} layer of its own: pixels go in as they are, 0..255")
    activation = getattr(getattr(layers[-1], "activation", None), "__name__", None) if layers else None
    units = (getattr(model, "output_shape", None) or (None, None))[-1]
    output: OutputOption | None = None
    if activation == "softmax":
        output = "probabilities"
    elif activation == "linear":
        output = "logits"
    elif activation == "sigmoid":
        output = "probabilities" if units == 1 else "multilabel"
        notes.append("the last layer is a sigmoid" + ("" if units == 1 else ": each label stands for itself"))
    return Metadata(numbers=PRESETS["raw"] if own else None, output=output, notes=tuple(notes))
