"""What speaks against the label: the pixels whose masking raises its confidence most.

A greedy search over patches of the view: each alone at first, then those that help together with the ones that are masked.
At the end a patch is shown again where that costs little of what was gained, so that each one that is left matters.
"""

import numpy as np
from numpy.typing import NDArray

from becausal.core.checks import Against
from becausal.core.contracts import Question, Search, Stop, Visible
from becausal.core.patches import superpixels
from becausal.core.problem import Problem

PATCHES = 30  # of the view
STEPS = 6  # patches that are masked, at most
CANDIDATES = 8  # of those that help alone, the best ones, which are asked with the others
ROOM = 0.1  # of confidence: where less can be gained, nothing is asked, and a set that gains less is none
LEAST_GAIN = 0.1  # of the gain: what is lost, at least, with any one of the patches shown again


def find_against(problem: Problem, core: Visible, confidence: float) -> Search[Against | None]:
    """The set, or None where masking hardly raises the confidence, or the search is cut short.

    core: (*grid,) what the label needs most, which is not masked. confidence: of the whole view.
    """
    if not confidence <= 1.0 - ROOM:  # NaN too: a model that returns labels only
        return None
    patch = patches_outside(problem, core)
    masked, best = np.zeros(problem.grid, bool), confidence
    chosen: list[int] = []
    candidates = np.unique(patch[~core]).tolist()
    try:
        while candidates and len(chosen) < STEPS:
            answers = yield np.stack([~(masked | (patch == number)) for number in candidates])
            order = np.argsort(-answers.confidence, kind="stable")
            first = int(order[0])
            if not answers.confidence[first] >= best + LEAST_GAIN * max(ROOM, best - confidence):
                break
            best = float(answers.confidence[first])
            chosen.append(candidates[first])
            masked |= patch == chosen[-1]
            # Only patches that help by themselves, or beside the others: with one more masked they seldom begin to.
            helping = [candidates[place] for place in order[1:] if answers.confidence[place] > confidence]
            candidates = helping[:CANDIDATES]
        while len(chosen) > 1:
            answers = yield np.stack([~(masked & (patch != number)) for number in chosen])
            gain = best - confidence
            place = int(np.argmax(answers.confidence))
            if best - answers.confidence[place] >= LEAST_GAIN * gain:
                break
            best = float(answers.confidence[place])
            masked = masked & (patch != chosen.pop(place))
        if not chosen:
            return None
        answers = yield Question(shown_again(masked, problem, core), exact=True)  # what is claimed, of the model itself
    except Stop:
        return None  # nothing is claimed that was not measured
    best, without = float(answers.confidence[0]), answers.confidence[1:]
    gain = best - confidence
    matters = len(chosen) == 1 or best - float(without.max()) >= LEAST_GAIN * gain
    return Against(masked, best, gain, len(chosen)) if gain >= ROOM and matters else None


def patches_outside(problem: Problem, core: Visible) -> NDArray[np.intp]:
    """The number of each pixel's patch, (*grid,), -1 in the core."""
    return np.where(core, -1, superpixels(problem.view, PATCHES))


def shown_again(visible: Visible, problem: Problem, core: Visible) -> Visible:
    """The questions behind a set, (*grid,): it masked, and with each of its patches shown again, (1 + patches, *grid)."""
    patch = patches_outside(problem, core)
    numbers = np.unique(patch[visible & ~core])
    return np.stack([~visible, *(~(visible & (patch != number)) for number in numbers)])


def check_against(
    visible: Visible, problem: Problem, core: Visible, confidence: float, tolerance: float
) -> Search[tuple[float, int, str]]:
    """The confidence with a set, (*grid,), masked, its patches, and in words what is wrong with it.

    core: see `find_against`. confidence: of the whole view.
    """
    patch = patches_outside(problem, core)
    answers = yield Question(shown_again(visible, problem, core), exact=True)
    masked, without = float(answers.confidence[0]), answers.confidence[1:]
    fault = ""
    if not len(without) or (np.isin(patch, patch[visible & ~core]) != visible).any():
        fault = ", not of whole patches"
    elif len(without) > 1 and without.max() > masked - LEAST_GAIN * (masked - confidence) + tolerance:
        fault = ", and less would do"
    return masked, len(without), fault
