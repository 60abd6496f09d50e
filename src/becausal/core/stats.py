"""What is reported of searches: how far they are, what they cost, and why one has failed."""

from dataclasses import dataclass

from becausal.core.contracts import Visible
from becausal.core.errors import BecausalError


@dataclass
class Stats:
    """What one search, or several, cost.

    Attributes:
        calls: Mutants that the model evaluated because a search asked for them.
        asked: Questions of the search, including repeated ones, which need no call.
        batches: Batches that its questions were part of.
        slots: Rows of those batches with padding, divided among the searches in them.
        model_seconds: Time inside the model, divided likewise.
        seconds: From the first question to the end.
        speculative: Mutants evaluated ahead that the search did not ask for; they are not calls.
    """

    calls: int = 0
    asked: int = 0
    batches: int = 0
    slots: int = 0
    model_seconds: float = 0.0
    seconds: float = 0.0
    speculative: int = 0

    @property
    def fill_rate(self) -> float:
        """Share of rows that were calls; the others were padding or speculative."""
        return self.calls / self.slots if self.slots else 1.0

    @property
    def overhead_seconds(self) -> float:
        """Time outside the model; it measures our own overhead only for a search that ran alone."""
        return max(0.0, self.seconds - self.model_seconds)


@dataclass(frozen=True, eq=False)
class Status:
    """How far the explanation of an image, number `index` from 0 of the run, has come.

    stage: what is being done: "search", "extract", "minimise", "backgrounds" or "verify". calls: model calls so far, of at
    most `max_calls`. visible: (*grid,) the smallest sufficient set so far. size: its share of the view.
    """

    image: str
    index: int
    stage: str
    calls: int
    max_calls: int | None
    size: float
    visible: Visible


@dataclass(frozen=True)
class Failure:
    """An image that could not be explained, and why."""

    image: str
    error: BecausalError
