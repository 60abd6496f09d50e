"""What the methods that only ask have in common: a score for each answer, and questions in waves."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Search, Stop, Visible

WAVE = 64  # questions at a time: the same whatever the batch size, so that results do not depend on it

Learn = Callable[[Visible, Answers], None]  # the questions that were answered, (n, *grid), and their n answers


def scores(answers: Answers) -> NDArray[np.float64]:
    """The label's probability, (n,); from a label-only classifier 1 where the target is kept and 0 elsewhere."""
    return np.where(np.isnan(answers.confidence), answers.holds, answers.confidence).astype(np.float64)


def stream(waves: Iterable[Visible], learn: Learn) -> Search[bool]:
    """Ask wave after wave and learn from each; whether all were answered.

    The next wave is made only after `learn` has seen the last, and none is kept. Told to stop, it learns from the
    answers that came with the word.
    """
    for wave in waves:
        try:
            answers = yield wave
        except Stop as told:
            learn(wave[: len(told.answers)], told.answers)
            return False
        learn(wave, answers)
    return True


def sizes(total: int, wave: int = WAVE) -> Iterator[int]:
    """How many questions each wave has, `total` in all."""
    for start in range(0, total, wave):
        yield min(wave, total - start)
