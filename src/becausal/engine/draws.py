"""The numbered random backgrounds of one search: drawn and staged when a batch needs them, the last ones used kept.

A search evaluates thousands of sets on the same few backgrounds, so these stay where the model is. To check a set, it uses
a hundred others once each; they take the place of those not used for longest.
"""

from collections.abc import Callable, Sequence
from typing import Any

from becausal.core.contracts import BackgroundSampler, Pixels
from becausal.core.errors import AnswerError, BecausalError

MOST_KEPT = 64
LEAST_KEPT = 16  # however large the view: fewer would be staged again and again
KEPT_BYTES = 32 * 2**20  # of one search; tens of searches run at a time on a GPU
PAIR_BYTES = 8  # of a value of the view: it and its background, normalised to float32


def kept_count(size: int) -> int:
    """How many backgrounds of a view with this many values are kept."""
    return min(MOST_KEPT, max(LEAST_KEPT, KEPT_BYTES // max(1, PAIR_BYTES * size)))


class DrawnBackgrounds:
    """The random backgrounds of one view, staged, at most `capacity` of them at a time."""

    def __init__(self, view: Pixels, sampler: BackgroundSampler, stage: Callable[[Pixels, Pixels], Any]) -> None:
        self._view = view
        self._sampler = sampler
        self._stage = stage
        self._kept: dict[int, Any] = {}  # by number, the one not used for longest first
        self.capacity = kept_count(view.size)

    def fitting(self, draws: Sequence[int]) -> int:
        """How many of the first draws one batch may have, so that it needs no more than `capacity` backgrounds."""
        numbers: set[int] = set()
        for count, number in enumerate(draws):
            numbers.add(number)
            if len(numbers) > self.capacity:
                return count
        return len(draws)

    def staged(self, numbers: Sequence[int]) -> list[Any]:
        """The pairs with these numbers, at most `capacity` different ones. Raises AnswerError where one cannot be made."""
        for number in numbers:
            if number in self._kept:
                self._kept[number] = self._kept.pop(number)  # now the last to go
        for number in numbers:
            if number not in self._kept:
                background = self._draw(number)
                while len(self._kept) >= self.capacity:
                    del self._kept[next(iter(self._kept))]
                self._kept[number] = self._stage(self._view, background)
        return [self._kept[number] for number in numbers]

    def _draw(self, number: int) -> Pixels:
        try:
            return self._sampler.draw(number)
        except BecausalError as error:  # e.g. a file of the user's folder that cannot be read
            raise AnswerError(str(error)) from error
