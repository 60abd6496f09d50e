"""What driving searches has cost."""

from dataclasses import dataclass


@dataclass
class Stats:
    """What driving one search, or many, has cost.

    calls: mutants shown to the model because a search asked for them. asked: questions of the searches, repeated ones
    included. batches: that they were in. slots: rows of those batches, padding included, shared out among the searches
    in them. model_seconds: inside the classifier, its share where a batch had questions of several searches; seconds:
    from the first question to the end. speculative: mutants evaluated ahead that no search has
    asked for; they are not calls.
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
        """The share of rows that were calls; the others were padding, or guesses."""
        return self.calls / self.slots if self.slots else 1.0

    @property
    def overhead_seconds(self) -> float:
        """The time that was not the model's; only of a search that ran alone does it say what we cost."""
        return max(0.0, self.seconds - self.model_seconds)
