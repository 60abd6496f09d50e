"""What the methods share: checks of options, a score for each answer, and mutants evaluated in waves."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Search, Stop, Visible
from becausal.core.errors import OptionError

WAVE = 64  # mutants per wave, independent of the batch size, so that results do not depend on it

Update = Callable[[Visible, Answers], None]  # takes the mutants that were evaluated, (n, *grid), and their n answers


def check_least(method: object, **least: int) -> None:
    """Raise OptionError where an option of the method is below its smallest value."""
    for option, lowest in least.items():
        if getattr(method, option) < lowest:
            raise OptionError(f"{option} must be at least {lowest}, not {getattr(method, option)}")


def scores(answers: Answers) -> NDArray[np.float64]:
    """The label's probability, (n,); for a label-only classifier 1 where the target is kept, else 0."""
    return np.where(np.isnan(answers.confidence), answers.holds, answers.confidence).astype(np.float64)


def run_waves(waves: Iterable[Visible], update: Update) -> Search[bool]:
    """Evaluate wave after wave and call `update` with each; returns whether all were evaluated.

    The next wave is made only after `update` has returned, and none is kept. On a stop, `update` gets the answers that
    came with it.
    """
    for wave in waves:
        try:
            answers = yield wave
        except Stop as stop:
            update(wave[: len(stop.answers)], stop.answers)
            return False
        update(wave, answers)
    return True


def score_all(waves: Iterable[Visible]) -> Search[NDArray[np.float64]]:
    """Evaluate wave after wave; returns the scores, (n,), of the mutants that were evaluated."""
    found: list[NDArray[np.float64]] = []
    yield from run_waves(waves, lambda wave, answers: found.append(scores(answers)))
    return np.concatenate(found)


def wave_sizes(total: int, wave: int = WAVE) -> Iterator[int]:
    """The number of mutants in each wave, `total` in all."""
    for start in range(0, total, wave):
        yield min(wave, total - start)
