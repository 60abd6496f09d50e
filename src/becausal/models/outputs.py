"""Which output of a network holds the scores, what they mean, and how they become probabilities.

Softmax is applied at most once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import OutputKind
from becausal.core.errors import AnswerError, ModelError

Returns = Literal["probabilities", "logits", "multilabel", "multilabel-logits", "labels", "raw"]
RETURNS: tuple[Returns, ...] = get_args(Returns)[:-1]  # what a model may be said to return; embeddings and maps are raw
EMBEDDINGS = ("image_embeds", "embedding", "embeddings", "pooler_output", "features", "logits")  # names of outputs
NAMED_OUTPUTS: dict[str, Returns] = {"probs": "probabilities", "probabilities": "probabilities", "logits": "logits"}

_SUM_TOLERANCE = 1e-3
_LAST_OPERATIONS: dict[str, Returns] = {
    "sigmoid": "multilabel", "hardsigmoid": "multilabel", "softmax": "probabilities", "linear": "logits",
    "conv2d": "logits", "gemm": "logits", "matmul": "logits", "add": "logits", "conv": "logits",
}  # fmt: skip
#: Numeric types by their names in the Open Inference Protocol (upper case) and in ONNX (lower case).
DTYPES = {
    "BOOL": "?", "UINT8": "<u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "<i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
    "bool": "?", "uint8": "<u1", "int8": "<i1", "int32": "<i4", "int64": "<i8", "float16": "<f2", "float": "<f4",
    "double": "<f8",
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """A declared input or output; None in the shape stands for any size."""

    name: str
    datatype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        sides = ",".join("N" if side is None else str(side) for side in self.shape)
        return f"{self.name} {self.datatype} [{sides}]"

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The numpy type, None where the tensor does not hold numbers."""
        return np.dtype(DTYPES[self.datatype]) if self.datatype in DTYPES else None


@dataclass(frozen=True)
class OutputClues:
    """What may decide the meaning of values that leave a choice."""

    name: str = ""  # of the output tensor
    find_last: Callable[[], str | None] = lambda: None  # finds the network's last operation, e.g. "Sigmoid"


@dataclass(frozen=True)
class OutputDecoder:
    """Converts raw output to (n, classes) probabilities or (n,) labels.

    classes: of the result; a network with one output column, `is_single`, has two, "not X" and "X".
    """

    returns: Returns
    classes: int
    is_single: bool = False

    @property
    def kind(self) -> OutputKind:
        return output_kind(self.returns)

    def scores(self, raw: NDArray[Any]) -> NDArray[Any]:
        """(n, classes) float32 probabilities, or (n,) integer labels; raw output as it is, (n, …) float32."""
        if self.returns == "raw":
            with np.errstate(over="ignore"):  # numbers too large for the type become infinite, which is rejected later
                return raw.astype(np.float32, copy=False)
        table = as_table(raw)
        if self.returns == "labels":
            return table[:, 0] if table.shape[1] == 1 else table.argmax(axis=1)
        values = table.astype(np.float32, copy=False)
        if self.is_single:
            positive = sigmoid(values) if self.returns == "logits" else values
            return np.concatenate([1 - positive, positive], axis=1)
        if self.returns == "logits":
            return softmax(values)
        return sigmoid(values) if self.returns == "multilabel-logits" else values


def pick_output(
    outputs: tuple[TensorInfo, ...], name: str | None, *, axes: tuple[int, ...], hint: str, embeds: bool = False
) -> tuple[TensorInfo, tuple[str, ...]]:
    """The output that holds the scores, and a note if there was a choice.

    name: None to choose by name, type and number of axes. hint: how another output can be chosen. embeds: find an embedding.
    """
    if name is not None:
        return find_tensor(outputs, name, "output"), ()
    numeric = [tensor for tensor in outputs if tensor.dtype is not None]
    if not numeric:
        raise ModelError(f"none of the outputs {', '.join(str(t) for t in outputs)} is numeric: scores are needed")
    known = EMBEDDINGS if embeds else tuple(NAMED_OUTPUTS)
    named = [tensor for wanted in known for tensor in numeric if tensor.name.lower() == wanted]
    if named:
        return named[0], ()
    scores = [t for t in numeric if t.dtype is not None and t.dtype.kind == "f" and len(t.shape) in axes]
    chosen = (scores or numeric)[0]
    if len(outputs) == 1:
        return chosen, ()
    names = ", ".join(tensor.name for tensor in outputs)
    return chosen, (f"the model has the outputs {names}: {chosen.name} is used; choose another with {hint}",)


def find_tensor(tensors: tuple[TensorInfo, ...], name: str, kind: str) -> TensorInfo:
    found = {tensor.name: tensor for tensor in tensors}
    if name not in found:
        raise ModelError(f"the model has no {kind} {name!r}; it has {', '.join(found)}")
    return found[name]


def output_kind(returns: Returns | None) -> OutputKind:
    """What a classifier offers if its network returns this; None, not known yet, counts as probabilities."""
    kinds: dict[str | None, OutputKind] = {"labels": "labels", "multilabel": "multilabel", "multilabel-logits": "multilabel"}
    return kinds.get(returns, "probabilities")


def as_numbers(values: NDArray[Any]) -> NDArray[Any]:
    """Python numbers in an array of dtype object as floats; other numbers as they are. Raises AnswerError for the rest."""
    if values.dtype.kind == "O" and all(isinstance(item, Real) for item in values.flat):
        return values.astype(np.float64)
    if values.dtype.kind in "OUSMm":
        kinds = sorted({type(item).__name__ for item in values.flat})
        raise AnswerError(f"the model returned scores or boxes of type {', '.join(kinds[:3])}; expected numbers")
    return values


def as_table(raw: NDArray[Any]) -> NDArray[Any]:
    """Raw output as (n, columns): axes of size one after the second are dropped, (n,) becomes (n, 1)."""
    if raw.ndim == 0:
        raise AnswerError("the model returned a single number; expected one row per image")
    if raw.dtype.kind == "c":
        raise AnswerError("the model returned complex numbers; expected real scores")
    if raw.dtype.kind in "OUSMm":
        raise AnswerError(f"the model returned an array of dtype {raw.dtype}; expected numbers")
    table = raw.reshape(len(raw), 1) if raw.ndim == 1 else raw
    if table.ndim > 2 and sum(side > 1 for side in table.shape[1:]) <= 1:
        table = table.reshape(len(table), -1)
    if table.ndim != 2:
        raise AnswerError(f"the model returned an output of shape {raw.shape}; expected (n, classes)")
    return table


def make_decoder(
    probe: NDArray[Any],
    *,
    returns: Returns | None,
    source: str = "an option",
    clues: OutputClues | None = None,
) -> tuple[OutputDecoder, tuple[str, ...]]:
    """The decoder for a network's output, and notes where the values decided or contradict the statement.

    probe: raw output for the probe images. returns: what is stated, None to detect it from the values and the clues. source:
    of the statement, for messages.
    """
    if returns == "raw":
        if probe.ndim < 2 or probe.dtype.kind not in "biuf":
            raise ModelError(f"the model returned {probe.dtype} of shape {probe.shape}; expected numbers for each image")
        is_map = probe.ndim == 4 and max(probe.shape[2:]) > 1
        return OutputDecoder(returns, probe.shape[1] if is_map else 0), ()  # the numbers of an embedding have no names
    try:
        table = as_table(probe)
    except AnswerError as error:
        raise ModelError(f"this is not a classifier: {error}") from None
    is_single = table.shape[1] == 1
    classes = 2 if is_single else table.shape[1]
    if np.issubdtype(table.dtype, np.integer) and is_single and returns in (None, "labels"):
        return OutputDecoder("labels", 0), ("the output is read as labels: there are no scores",)
    clues = clues or OutputClues()
    named = NAMED_OUTPUTS.get(clues.name.lower())
    if returns is None and named is not None and not (named == "probabilities" and _is_undecided(table)):
        returns, source = named, f"the name {clues.name}"
    if returns is None:
        detected, note = _detect(table, clues)
        return OutputDecoder(detected, classes, is_single), (note,)
    if returns == "logits" and not is_single and looks_like_probabilities(table):
        note = f"{source} states logits, but the values are probabilities: no softmax applied"
        return OutputDecoder("probabilities", classes), (note,)
    if returns in ("probabilities", "multilabel") and (table.min() < -0.01 or table.max() > 1.01):
        raise ModelError(
            f"{source} states {returns}, but the values range from {table.min():.3g} to {table.max():.3g}: use "
            f"{'logits' if returns == 'probabilities' else 'multilabel-logits'} instead"
        )
    return OutputDecoder(returns, classes, is_single and returns != "labels"), ()


def _detect(table: NDArray[Any], clues: OutputClues) -> tuple[Returns, str]:
    """What the values mean, and a note. Raises ModelError where neither values nor name nor last operation decide."""
    override = "(detected; override with --returns)"
    is_exclusive = looks_like_probabilities(table)
    if table.shape[1] == 1:
        reading = "in 0..1: read as a probability" if is_exclusive else "not all in 0..1: sigmoid applied"
        return "probabilities" if is_exclusive else "logits", f"one output column, {reading} {override}"
    as_probabilities = f"the output is read as probabilities: no softmax applied {override}"
    as_logits = f"the output is read as logits: softmax applied once {override}"
    if not (is_exclusive or _is_undecided(table)):
        return "logits", as_logits
    last = clues.find_last() or ""
    known = _LAST_OPERATIONS.get(last.lower())
    if known == "multilabel":
        return known, f"the last operation is {last}: labels are independent {override}"
    if is_exclusive:
        return "probabilities", as_probabilities
    if known == "logits":
        return known, f"the last operation is {last}, so {as_logits}"
    if any(word in clues.name.lower() for word in ("sigmoid", "prob")):
        return "multilabel", f"the name and the values of {clues.name} show independent labels (override with --returns)"
    raise ModelError(
        "the model's outputs are in 0..1 but do not sum to 1: independent probabilities, or logits that happen to be "
        "small? Add --returns multilabel or --returns logits"
    )


def _is_undecided(table: NDArray[Any]) -> bool:
    """Whether the values could be independent probabilities as well as logits."""
    return bool(table.min() >= 0.0 and table.max() <= 1.0) and not looks_like_probabilities(table)  # NaN is neither


def looks_like_probabilities(table: NDArray[Any]) -> bool:
    """Whether every row could be a probability distribution; for one column, whether every value is in 0..1."""
    values = table.astype(np.float64)
    if not np.isfinite(values).all() or values.min() < 0.0:
        return False
    if values.shape[1] == 1:
        return bool(values.max() <= 1.0)
    return bool(np.abs(values.sum(axis=1) - 1.0).max() <= _SUM_TOLERANCE)


def name_classes(decoder: OutputDecoder, labels: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The class names that fit a decoder. Raises ModelError if there are too many or too few."""
    if decoder.is_single:
        if labels is not None and len(labels) > 2:
            raise ModelError(f"the model returns one number per image, so it has two classes, not {len(labels)}")
        if labels is not None and len(labels) == 2:
            return labels
        name = labels[0] if labels else "positive"
        return f"not {name}", name
    if labels is not None and decoder.classes and len(labels) != decoder.classes:
        count = f"there are {len(labels)} labels but the model has {decoder.classes} classes"
        raise ModelError(f"{count}: give one name per class")
    return labels


def make_probe_images(grid: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """Six very different images, (6, h, w, channels), always the same."""
    h, w = grid
    rng = np.random.default_rng(0)
    out = np.empty((6, h, w, channels), np.uint8)
    out[0], out[1] = 0, 255
    out[2] = rng.integers(0, 256, (h, w, channels))
    rows, columns = np.indices((h, w))
    out[3] = (rows * 255 // max(1, h - 1))[..., None]
    out[4] = np.where((rows // 8 + columns // 8) % 2, 255, 0)[..., None]
    out[5] = rng.integers(0, 256, channels)
    return out


def softmax(values: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)


def sigmoid(values: NDArray[np.float32]) -> NDArray[np.float32]:
    # tanh never overflows, exp(-x) does
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)), np.float32)
