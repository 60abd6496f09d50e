"""The contracts between the parts: array names, the search, what a method found, the classifier. Of methods: `core.problem`.

One polarity everywhere: a `visible` array is True where a pixel is shown. `grid` is the view's spatial shape, (h, w)
for images, (n,) for signals, (d, h, w) for volumes; nothing here knows how many dimensions it has.
"""

import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from becausal.core.text import replace_surrogates

Grid = tuple[int, ...]
Visible = NDArray[np.bool_]  # (n, *grid), or (*grid,) for one set
Pixels = NDArray[Any]  # (*grid, channels), uint8 0..255 for images, float for signals and volumes
Scores = NDArray[np.float32]  # (n, classes) probabilities
Saliency = NDArray[np.float64]  # (*grid,), higher = more responsible

OutputKind = Literal["probabilities", "multilabel", "labels", "boxes", "similarity", "segments"]
Needs = Literal["labels", "scores", "gradients", "boxes"]


@dataclass(frozen=True, eq=False)
class Answers:
    """The classifier's answers to n questions, judged by the target.

    holds: (n,) bool, whether the target holds.
    margin: (n,) float, how clearly: at least 0 exactly where it holds; +1 or -1 from a label-only classifier.
    confidence: (n,) float, the target label's probability; NaN from a label-only classifier.
    spent: model calls so far, these included.
    similarity: of a box: (n,) float, the highest score times overlap of a box of the label, as D-RISE uses it; else None.
    """

    holds: NDArray[np.bool_]
    margin: NDArray[np.float64]
    confidence: NDArray[np.float64]
    spent: int = 0
    similarity: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.holds)

    def part(self, rows: slice | NDArray[Any]) -> "Answers":
        similarity = None if self.similarity is None else self.similarity[rows]
        return Answers(self.holds[rows], self.margin[rows], self.confidence[rows], self.spent, similarity)

    @staticmethod
    def none() -> "Answers":
        return Answers(np.zeros(0, bool), np.zeros(0), np.zeros(0))


class Stop(Exception):
    """Thrown into a search that must end now: the budget is spent, the user interrupted, or the model failed.

    `answers` are those to the first questions of the current wave; `cause` is what the model failed with. The search
    returns its best result so far; if it asks again, it is stopped again.
    """

    def __init__(self, reason: str, answers: Answers | None = None, cause: Exception | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.answers = answers if answers is not None else Answers.none()
        self.cause = cause


Lookahead = Callable[[int], Visible | Sequence[Visible]]  # up to n sets that may be asked next, likeliest first


@dataclass(frozen=True, eq=False)
class Question:
    """Sets of pixels that a search asks about, and how they are to be evaluated; a plain array is a question without hints.

    visible: (n, *grid). draws: (n,) the number of the random background that each set is evaluated on, instead of the fills;
    a set is then one call, and `lookahead` is ignored. lookahead: given n, returns up to n sets that may be asked next,
    likeliest first; they are evaluated where a batch would be padded, and the search does not notice. uncached: bypass the
    answer cache and the budget. exact: the model itself answers, not a twin of it: what is claimed of a result is asked
    like this. alone: in batches that have no other rows; such a question is uncached and exact.

    Raises ValueError where `draws` does not have one number for each set.
    """

    visible: Visible
    draws: NDArray[np.intp] | None = None
    lookahead: Lookahead | None = None
    uncached: bool = False
    exact: bool = False
    alone: bool = False

    def __post_init__(self) -> None:
        if self.draws is not None:
            draws = np.asarray(self.draws, np.intp)
            if draws.shape != (len(self),):
                raise ValueError(f"draws must have one number for each of {len(self)} rows, not shape {draws.shape}")
            object.__setattr__(self, "draws", draws)

    def __len__(self) -> int:
        return len(self.visible)

    def __iter__(self) -> Iterator[Visible]:
        return iter(self.visible)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Visible:  # numpy takes it for its sets
        return np.array(self.visible, dtype=dtype) if copy else np.asarray(self.visible, dtype=dtype)

    @staticmethod
    def of(asked: "Question | Visible") -> "Question":
        return asked if isinstance(asked, Question) else Question(asked)

    def part(self, rows: slice | NDArray[Any]) -> "Question":
        return replace(self, visible=self.visible[rows], draws=None if self.draws is None else self.draws[rows])


class BackgroundSampler(Protocol):
    """Numbered random backgrounds of one view: the same number always gives the same background."""

    def draw(self, number: int) -> Pixels:
        """The background with this number, of the view's shape and type."""
        ...

    def record(self) -> Mapping[str, str | int]:
        """What identifies the backgrounds, as JSON can hold it."""
        ...


T = TypeVar("T")
Search = Generator[Question | Visible, Answers, T]
"""A search asks by yielding sets of pixels, is sent Answers, and returns what it found; it never calls a model.

    def find_smallest(sets: Sequence[Visible]) -> Search[Visible | None]:
        best = None
        try:
            for visible in sorted(sets, key=np.count_nonzero, reverse=True):
                answers = yield visible[None]  # one question, (1, *grid): does this set keep the target?
                if answers.holds[0]:
                    best = visible
        except Stop:  # the budget is spent, or the user has pressed Ctrl-C
            pass
        return best

`Engine.run` answers with a model, `step` by hand. A search asks another one with `yield from`.
"""


@dataclass(frozen=True)
class Done(Generic[T]):
    """A search has ended, with this result."""

    result: T


def step(search: Search[T], message: Answers | Exception | None) -> Question | Visible | Done[T]:
    """Give a search what it waits for (None to begin; a Stop or an error is thrown) and get its questions, or its end."""
    try:
        if message is None:
            return next(search)
        return search.throw(message) if isinstance(message, Exception) else search.send(message)
    except StopIteration as end:
        return Done(end.value)
    finally:
        if isinstance(message, Stop):
            # Its traceback holds the search's frame, and a frame that keeps the Stop is held by it in turn: such a circle,
            # with all arrays of the search, would wait for the garbage collector.
            message.__traceback__ = None


class Zone(IntEnum):
    """What a pixel of the view is to the explanation."""

    AGAINST = 0  # showing it lowers the confidence
    CONTEXT = 1  # it adds a little beside the explanation
    BACKUP = 2  # it keeps the confidence up where the core is masked
    ENOUGH = 3  # part of the set that holds on random backgrounds
    CORE = 4  # part of the set that keeps most of the confidence in the plain fill


@dataclass(frozen=True, eq=False)
class Held:
    """A set that was evaluated on fresh random backgrounds.

    visible: (*grid,). grain: the side of the cells of which none can be removed without failing on the panel, None where
    this was not shown. panel: the numbers of these backgrounds. first, asked, failures: the fresh ones, and on how many of
    them the label was lost. bound: the share of all on which it is kept, at least.
    """

    visible: Visible
    grain: int | None
    panel: tuple[int, ...]
    first: int
    asked: int
    failures: int
    bound: float


@dataclass(frozen=True, eq=False)
class Finding:
    """What a method found: a map, and, where it looks for them itself, sufficient sets, the explanation first.

    grains: for each set, the side of the cells at which it was shown to be minimal, None where it was not; may be
    shorter than `sets`. enough: the set around the first one that holds on random backgrounds, where that is asked for.
    zones: what each pixel is, (*grid,), see `Zone`.
    """

    saliency: Saliency
    sets: tuple[Visible, ...] = ()
    grains: tuple[int | None, ...] = ()
    notes: tuple[str, ...] = ()
    enough: Held | None = None
    zones: NDArray[np.uint8] | None = None

    @property
    def grain(self) -> int | None:
        """The side of the cells at which the first set was shown to be minimal."""
        return self.grains[0] if self.grains else None


@dataclass(frozen=True)
class Geometry:
    """How an image becomes a view: resized, then cropped in the centre to `grid`.

    resize: short side to this many pixels; "squash" to `grid` whatever the aspect; "letterbox" into `grid`, with grey bars
    for what is left of it; (h, w) exactly; None: to the grid's own short side. interpolation: a name Pillow knows.
    """

    grid: tuple[int, int]
    resize: int | tuple[int, int] | Literal["squash", "letterbox"] | None = None
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"] = "bilinear"

    def __str__(self) -> str:
        h, w = self.grid
        match self.resize:
            case None:
                first = f"short side to {min(h, w)}"
            case "squash":
                return f"squashed to {h}x{w}, {self.interpolation}"
            case "letterbox":
                return f"letterboxed to {h}x{w}, {self.interpolation}"
            case int(side):
                first = f"short side to {side}"
            case (rows, columns):
                first = f"squashed to {rows}x{columns}"
        return f"{first}, {self.interpolation}, centre crop {h}x{w}"


PRESENT = 0.5  # the probability from which on a label of a multi-label model is present
BLIND = "with no image at all, the model says"  # begins the first note where it says the same of the image
UNWRITABLE = "class names with characters that cannot be written: each of these was replaced by U+FFFD"


@dataclass(frozen=True)
class ModelInfo:
    """What a classifier knows of itself; `notes` says in words what had to be guessed.

    geometry: how images become views; None where the model takes arrays of any shape as they are.
    channels: of the view, last axis; None where the model takes arrays as they are.
    output: `probabilities` over exclusive classes, `multilabel` independent probabilities, just `labels`, the `boxes` of an
    object detector, the `similarity` to something, or the `segments` of an image, whose pixels all have a class.
    threshold: the lowest score at which a detector reports a box, a label of a multi-label model is present or a segment is
    found again, there `PRESENT` unless it is stated; of a similarity 0 where none is stated.
    normalisation: what is applied to pixels before the network sees them, as text.
    sha256: of the model's file or files, None where there is none. loading: the options it was loaded with.
    names: the names without a place in `labels` that a model which returns names has returned so far, by `name_id`.
    Every name of a class is in one of the two, and can be written as UTF-8: other characters are replaced, with a note.
    is_costly: each call costs money or seconds, so searches take few. blank: the id of what it answers where it is shown no
    image at all; None where that cannot be asked.
    """

    spec: str
    kind: str
    geometry: Geometry | None
    channels: int | None
    labels: tuple[str, ...] | None
    output: OutputKind
    normalisation: str
    sha256: str | None = None
    device: str = "cpu"
    inputs: str = ""
    outputs: str = ""
    notes: tuple[str, ...] = ()
    loading: Mapping[str, Any] = field(default_factory=dict, hash=False)
    names: Mapping[int, str] = field(default_factory=dict, hash=False)
    threshold: float = 0.0
    is_costly: bool = False
    blank: int | None = None

    def __post_init__(self) -> None:
        if self.output in ("multilabel", "segments") and not self.threshold:
            object.__setattr__(self, "threshold", PRESENT)
        if self.labels is not None and (safe := tuple(map(replace_surrogates, self.labels))) != self.labels:
            object.__setattr__(self, "labels", safe)
            object.__setattr__(self, "notes", (*self.notes, UNWRITABLE))

    def __str__(self) -> str:
        """Kind, spec, input, labels and device, in one line."""
        spec = self.spec if self.spec.startswith(self.kind) else f"{self.kind} {self.spec}"
        size = self.inputs if self.inputs and self.kind != "python" else "arrays of any shape"
        if self.geometry is not None:
            size = f"{'x'.join(str(side) for side in self.geometry.grid)}x{self.channels or 3}"
        names = "names, as the model returns them" if self.names else "no names, numbers only"
        labels = f"{len(self.labels)} names" if self.labels else names
        return f"{spec}: input {size}, {self.output}, {labels}, on {self.device}"

    @property
    def is_half(self) -> bool:
        """Whether it calculates in half precision: the third digit of an answer depends on the batch it was asked in."""
        return any(word in self.inputs for word in ("float16", "FP16"))  # as torch and ONNX say it, and as endpoints do

    @property
    def is_rough(self) -> bool:
        """Whether the third digit of an answer may change: in half precision, and where a server may calculate in it."""
        return self.is_half or self.is_costly

    def name_of(self, label_id: int) -> str:
        """The label's name, or its number where the model has no names."""
        if self.labels is not None and 0 <= label_id < len(self.labels):
            return self.labels[label_id]
        return self.names.get(label_id, f"class {label_id}")

    @property
    def known_labels(self) -> Sequence[str] | Mapping[int, str] | None:
        """The labels, as `find_label` takes them: by their ids where the model has returned names that are not listed."""
        return dict(enumerate(self.labels or ())) | dict(self.names) if self.names else self.labels


def name_id(name: str, *, size: int = 6) -> int:
    """The id of a label that a model knows by its name only: the same in every process, and in no list of labels.

    size: in bytes; 3 for the label of a box, which float32 has to hold (`core.boxes`).
    """
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:size], "big") | 1 << 8 * size - 1


@runtime_checkable
class Classifier(Protocol):
    """A model as the engine calls it.

    `stage` brings one view and one background (the fill, as a full image) to where the model lives, normalised.
    `ask` composes mutants of staged pairs and classifies them: row i shows view `which[i]` where
    `visible[i]` and its background elsewhere. `classify` takes whole pixels, (n, *grid, channels). Both return
    (n, classes) float32 probabilities, (n,) integer labels where `info.output` is "labels", the (n, MAX_BOXES, 6) boxes of a
    detector (`core.boxes`) where it is "boxes", or (n, classes, h, w) float32 logits (`core.segments`) where it is
    "segments". The engine never passes more than `batch_size` rows, and pads to one of `fixed_sizes` (ascending) where
    there are any.
    """

    @property
    def info(self) -> ModelInfo: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def fixed_sizes(self) -> tuple[int, ...]: ...
    def stage(self, view: Pixels, background: Pixels) -> Any: ...
    def ask(self, staged: Sequence[Any], which: NDArray[np.intp], visible: Visible) -> NDArray[Any]: ...
    def classify(self, pixels: Pixels) -> NDArray[Any]: ...


class Promise(Protocol):
    """A batch in flight. `collect` waits for its scores; `seconds` is then how long the model worked on it."""

    @property
    def seconds(self) -> float: ...
    def is_ready(self) -> bool: ...
    def collect(self) -> NDArray[Any]: ...


@runtime_checkable
class AsyncClassifier(Protocol):
    """What a classifier that evaluates batches in the background, such as one on a GPU, has in addition.

    `submit` is `ask` that does not wait: it takes `visible` packed eight pixels to a byte, (n, bytes) uint8 as
    np.packbits makes them of (n, pixels), and their grid. depth: how many batches may be in flight at once.
    """

    @property
    def depth(self) -> int: ...
    def submit(self, staged: Sequence[Any], which: NDArray[np.intp], packed: NDArray[np.uint8], grid: Grid) -> Promise: ...


@dataclass(frozen=True, eq=False)
class Twin:
    """A faster stand-in of a classifier, e.g. in half precision. It may guide a search, and certifies nothing.

    name: what it is, for notes. tolerance: how far its confidences may be from the model's. ask, submit: as those of the
    classifier, with the pairs that the classifier has staged; submit where the classifier is asynchronous.
    """

    name: str
    tolerance: float
    ask: Callable[[Sequence[Any], NDArray[np.intp], Visible], NDArray[Any]]
    submit: Callable[[Sequence[Any], NDArray[np.intp], NDArray[np.uint8], Grid], Promise] | None = None


@runtime_checkable
class TwinnedClassifier(Protocol):
    """What a classifier that may have a twin has in addition.

    `find_twin` makes one, or returns one that was made before: whoever uses it compares it with the model. `drop_twin` says
    that it was wrong; `find_twin` may then make a new one.
    """

    def find_twin(self) -> Twin | None: ...
    def drop_twin(self) -> None: ...
