"""What a network's raw output means, and the probabilities behind it: one softmax at most, never a silent guess."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import OutputKind
from becausal.core.errors import AnswerError, ModelError, OptionError

OutputOption = Literal["probabilities", "logits", "multilabel", "multilabel-logits", "labels"]
OUTPUT_OPTIONS: tuple[OutputOption, ...] = get_args(OutputOption)

_NEAR_ONE = 1e-3


@dataclass(frozen=True)
class Reading:
    """How raw output becomes (n, classes) probabilities or (n,) labels.

    classes: of the result; a network with one column has two, "not X" and "X". is_single: it has one column.
    """

    meaning: OutputOption
    classes: int
    is_single: bool = False

    @property
    def output(self) -> OutputKind:
        match self.meaning:
            case "labels":
                return "labels"
            case "multilabel" | "multilabel-logits":
                return "multilabel"
            case _:
                return "probabilities"

    def scores(self, raw: NDArray[Any]) -> NDArray[Any]:
        """(n, classes) float32 probabilities, or (n,) integer labels, from the network's raw output."""
        table = as_table(raw)
        if self.meaning == "labels":
            return table[:, 0] if table.shape[1] == 1 else table.argmax(axis=1)
        values = table.astype(np.float32, copy=False)
        if self.is_single:
            positive = sigmoid(values) if self.meaning == "logits" else values
            return np.concatenate([1 - positive, positive], axis=1)
        match self.meaning:
            case "logits":
                return softmax(values)
            case "multilabel-logits":
                return sigmoid(values)
            case _:
                return values


def as_table(raw: NDArray[Any]) -> NDArray[Any]:
    """Raw output as (n, columns): axes of size one after the second are dropped, (n,) becomes (n, 1)."""
    if raw.ndim == 0:
        raise AnswerError("the model gave a single number; expected one row per image")
    table = raw.reshape(len(raw), 1) if raw.ndim == 1 else raw
    if table.ndim > 2 and sum(side > 1 for side in table.shape[1:]) <= 1:
        table = table.reshape(len(table), -1)
    if table.ndim != 2:
        raise AnswerError(f"the model gave an output of shape {raw.shape}; expected (n, classes)")
    return table


def read_output(probe: NDArray[Any], *, said: OutputOption | None, by: str = "an option") -> tuple[Reading, tuple[str, ...]]:
    """The reading of a model's output, from what was said of it or from its answers to probe images.

    probe: raw output for a few very different images. by: who said it. Also returns notes where values decided, or
    spoke against what was said. Raises ModelError where the output is not one row per image, or cannot be as said.
    """
    try:
        table = as_table(probe)
    except AnswerError as error:
        raise ModelError(f"this is no classifier: {error}") from None
    columns = table.shape[1]
    is_single = columns == 1
    classes = 2 if is_single else columns
    if np.issubdtype(table.dtype, np.integer) and is_single and said in (None, "labels"):
        return Reading("labels", 0), ("the model gives labels only, no scores",)
    if said is None:
        meaning: OutputOption = "probabilities" if looks_like_probabilities(table) else "logits"
        return Reading(meaning, classes, is_single), (_detected(meaning, is_single),)
    if said == "logits" and not is_single and looks_like_probabilities(table):
        note = f"{by} says logits, but the values are probabilities: no softmax applied"
        return Reading("probabilities", classes), (note,)
    if said in ("probabilities", "multilabel") and (table.min() < -0.01 or table.max() > 1.01):
        raise ModelError(
            f"{by} says {said}, but the values run from {table.min():.3g} to {table.max():.3g}: say "
            f"{'logits' if said == 'probabilities' else 'multilabel-logits'} instead"
        )
    return Reading(said, classes, is_single and said != "labels"), ()


def looks_like_probabilities(table: NDArray[Any]) -> bool:
    """Whether every row could be a distribution; one column: whether every value lies in 0..1."""
    values = table.astype(np.float64)
    if not np.isfinite(values).all() or values.min() < 0.0:
        return False
    if values.shape[1] == 1:
        return bool(values.max() <= 1.0)
    return bool(np.abs(values.sum(axis=1) - 1.0).max() <= _NEAR_ONE)


def name_classes(reading: Reading, labels: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The names of a reading's classes. Raises ModelError where there are too many or too few."""
    if reading.is_single:
        if labels is not None and len(labels) == 2:
            return labels
        name = labels[0] if labels else "positive"
        labels = None if labels is not None and len(labels) > 2 else (f"not {name}", name)
        if labels is None:
            raise ModelError("the model gives one number, so it has two classes; the labels name more")
        return labels
    if labels is not None and reading.classes and len(labels) != reading.classes:
        raise ModelError(
            f"there are {len(labels)} labels but the model has {reading.classes} classes: give one name per class"
        )
    return labels


def parse_output(value: Any) -> OutputOption:
    """One of the output options. Raises OptionError for anything else."""
    for option in OUTPUT_OPTIONS:
        if value == option:
            return option
    raise OptionError(f"unknown output {value!r}: take one of {', '.join(OUTPUT_OPTIONS)}")


def probe_pictures(grid: tuple[int, int], channels: int) -> NDArray[np.uint8]:
    """Six very different images, (6, h, w, channels) uint8, always the same."""
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


def softmax(values: NDArray[np.float32]) -> NDArray[np.float32]:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), np.float32)


def sigmoid(values: NDArray[np.float32]) -> NDArray[np.float32]:
    # tanh never overflows, exp(-x) does
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * values)), np.float32)


def _detected(meaning: OutputOption, is_single: bool) -> str:
    if is_single:
        what = "in 0..1: read as a probability" if meaning == "probabilities" else "not all in 0..1: sigmoid applied"
        return f"one output, {what} (detected; --output says otherwise)"
    what = "probabilities: no softmax applied" if meaning == "probabilities" else "logits: softmax applied once"
    return f"the output is read as {what} (detected; --output says otherwise)"
