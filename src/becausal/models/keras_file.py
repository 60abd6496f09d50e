"""Saved Keras models, with whichever backend Keras is configured for."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.errors import MissingExtraError, ModelError
from becausal.core.text import one_line
from becausal.models.array_model import ArrayClassifier, Composer, Layout, run_padded
from becausal.models.loading import ModelSettings
from becausal.models.outputs import Returns, make_decoder, make_probe_images, name_classes
from becausal.models.preprocess import PRESETS
from becausal.models.user_code import check_file, file_sha256, stdout_to_stderr

_NORMALISING_LAYERS = ("Rescaling", "Normalization")


def load(target: str, settings: ModelSettings) -> ArrayClassifier:
    """The classifier in a .keras or .h5 file. Raises ModelError if the file is not one."""
    path = Path(target)
    check_file(path)
    try:
        import keras
    except ImportError as error:
        if error.name == "keras":
            packages = "pip install keras torch, then set KERAS_BACKEND=torch (or use tensorflow or jax)"
            raise MissingExtraError("keras", "keras", "a Keras model", advice=packages) from None
        missing = (error.name or one_line(error, 80)).partition(".")[0]  # the backend that Keras is configured for
        installed = [name for name in ("torch", "jax", "tensorflow") if importlib.util.find_spec(name) is not None]
        advice = " or ".join(f"set KERAS_BACKEND={name}" for name in installed)
        advice = advice or "pip install torch, then set KERAS_BACKEND=torch (or use tensorflow or jax)"
        raise MissingExtraError(f"{missing}, its backend", "keras", "Keras is installed, but", advice=advice) from None
    try:
        with stdout_to_stderr():
            model = keras.saving.load_model(path, compile=False)
    except Exception as error:  # Keras and its backends raise all kinds of errors
        raise ModelError(f"{path} cannot be loaded as a Keras model: {one_line(error, 200)}") from error
    return wrap(model, settings, spec=settings.name_kind(f"keras:{target}"), sha256=file_sha256(path))


def is_model(model: Any) -> bool:
    """Whether an object is a Keras model, without importing Keras."""
    keras = sys.modules.get("keras")
    return keras is not None and hasattr(keras, "Model") and isinstance(model, keras.Model)


def wrap(model: Any, settings: ModelSettings, *, spec: str | None = None, sha256: str | None = None) -> ArrayClassifier:
    """A Keras model in memory as a classifier. Raises ModelError if it does not take images."""
    from keras import ops

    if settings.loading.device != "cpu" or settings.loading.half:
        raise ModelError("the device of a Keras model is chosen by its backend: remove --device and half")
    shape = getattr(model, "input_shape", None)
    if not isinstance(shape, tuple) or len(shape) != 4:
        raise ModelError(f"the model's input is {shape}; images need 4 axes, e.g. (None, 224, 224, 3)")
    layout: Layout = settings.layout or ("nchw" if shape[1] in (1, 3) and shape[3] not in (1, 3) else "nhwc")
    channels, h, w = (shape[1], shape[2], shape[3]) if layout == "nchw" else (shape[3], shape[1], shape[2])
    # What the layers state: whether the model normalises pixels itself, and what its last activation returns
    layers = list(getattr(model, "layers", ()))
    own = next((name for name in (type(layer).__name__ for layer in layers[:4]) if name in _NORMALISING_LAYERS), None)
    stated = [] if own is None else [f"the model has its own {own} layer: pixels are passed unchanged, 0..255"]
    activation = getattr(getattr(layers[-1], "activation", None), "__name__", None) if layers else None
    returns: Returns | None = None
    if activation in ("softmax", "linear"):
        returns = "probabilities" if activation == "softmax" else "logits"
    elif activation == "sigmoid":
        is_single = (getattr(model, "output_shape", None) or (None,))[-1] == 1
        returns = "probabilities" if is_single else "multilabel"
        stated.append("the last layer is a sigmoid" + ("" if is_single else ": labels are independent"))
    raw = PRESETS["raw"] if own else None
    settings = settings.over(ModelSettings(normalisation=raw, returns=returns, notes=tuple(stated)))
    plan = settings.plan_preprocessing(channels or 3, (h, w) if h and w else None)

    def run(batch: NDArray[Any]) -> NDArray[Any]:
        # A copy: a backend may keep the memory, and the composer reuses it.
        with stdout_to_stderr():
            return np.asarray(ops.convert_to_numpy(model(batch.copy(), training=False)))

    composer = Composer(plan.normalisation.apply, layout=layout, dtype=np.dtype(np.float32))
    fixed = (int(shape[0]),) if shape[0] else ()
    probe = run_padded(run, composer.batch(make_probe_images(plan.geometry.grid, plan.channels)), fixed)
    decoder, notes = make_decoder(probe, returns=settings.returns, source="the model or --returns")
    spec = spec or f"Keras model {getattr(model, 'name', '')}".strip()
    info = replace(
        plan.complete(settings.begin_info("keras", spec, sha256)),
        labels=name_classes(decoder, settings.labels),
        output=decoder.kind,
        inputs=str(shape),
        outputs=str(getattr(model, "output_shape", "")),
        notes=(*settings.notes, *plan.notes, *notes),
    )
    size = fixed[0] if fixed else settings.loading.batch_size or 32
    return ArrayClassifier(info, composer, run, decoder.scores, batch_size=size, fixed_sizes=fixed)
