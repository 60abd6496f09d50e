"""What is reported while images are explained."""

from dataclasses import dataclass

from becausal.core.contracts import Visible
from becausal.core.errors import BecausalError


@dataclass(frozen=True, eq=False)
class Status:
    """How far an explanation has come.

    Attributes:
        image: The image's name.
        index: Its number, from 0, among the images of the run.
        stage: What is being done: "search", "extract", "minimise", "backgrounds" or "verify".
        calls: Model calls so far.
        max_calls: The limit on them, None for none.
        size: Share of the view in the smallest sufficient set so far.
        visible: (*grid,) that set.
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
