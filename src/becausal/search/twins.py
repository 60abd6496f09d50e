"""Searches that a twin of the model answers: a faster stand-in, which may guide a search but certifies nothing.

The twin answers every question that is not marked `exact`. What is claimed of a result is asked of the model itself, and
so are a few of the other questions now and then, so that a twin which computes something else is noticed early.
"""

from dataclasses import replace
from typing import TypeVar

import numpy as np

from becausal.core.contracts import Answers, Done, Question, Saliency, Search, Stop, Visible, step
from becausal.core.errors import TwinError
from becausal.core.regions import cells
from becausal.core.targets import with_floor
from becausal.search.checking import claims
from becausal.search.drive import drive
from becausal.search.minimise import Minimal, minimise

T = TypeVar("T")

EVERY = 16  # waves: the first of so many is compared
COMPARED = 2  # questions of that wave, at most
MOST = 64  # cells that are tried where a set is not quite sufficient
NEAR = 0.5  # nats: a verdict this close to the other one may be a matter of rounding; half precision moves some by 0.3


def compare_twin(search: Search[T], tolerance: float) -> Search[T | TwinError]:
    """The search, some of its questions also asked of the model itself; it ends where the twin's answers are wrong.

    tolerance: how far the twin's confidences may be from the model's. The search does not notice what the comparison costs:
    it asks the same, whatever answers.
    """
    waves = extra = 0
    state = step(search, None)
    while not isinstance(state, Done):
        question = Question.of(state)
        message: Answers | Stop | None = None
        answers: Answers | None = None
        try:
            answers = yield question
            message = answers = replace(answers, spent=answers.spent - extra)
            if not question.exact:
                if waves % EVERY == 0:
                    rows = np.unique(np.linspace(0, len(question) - 1, COMPARED).astype(np.intp))
                    exact = yield replace(question.part(rows), exact=True, lookahead=None)
                    extra = exact.spent - answers.spent
                    error = find_difference(answers.part(rows), exact, tolerance)
                    if error is not None:
                        search.close()
                        return error
                waves += 1
        except Stop as stop:  # while the twin was compared, its own answers had come
            message = stop if answers is None else Stop(stop.reason, answers, stop.cause)
        state = step(search, message)
    return state.result


def find_difference(guessed: Answers, exact: Answers, tolerance: float) -> TwinError | None:
    """What is wrong with a twin's answers, next to those of the model itself; None where they are close enough."""
    gap = np.abs(guessed.confidence - exact.confidence)
    if len(gap) and np.nanmax(gap, initial=0.0) > tolerance:
        worst = int(np.nanargmax(gap))
        there = exact.confidence[worst]
        return TwinError(f"a confidence of {guessed.confidence[worst]:.4f} where the model has {there:.4f}")
    if np.any((guessed.holds != exact.holds) & (np.abs(exact.margin) > NEAR)):
        return TwinError("another label than the model")
    return None


def confirm_minimal(minimal: Minimal, floor: float, saliency: Saliency, *, may_grow: bool = False) -> Search[Minimal]:
    """A set that a twin found, evaluated by the model itself; where one of its cells can go after all, they are removed.

    floor: the confidence it has to keep. saliency: which cells go first. may_grow: whether a set that is not quite
    sufficient gets further cells. Raises TwinError where the set does not keep the target, or the twin was clearly wrong.
    """
    found = minimal.visible
    answers = with_floor((yield Question(claims(minimal), exact=True)), floor)
    if not answers.holds[0]:
        is_wrong = bool(answers.margin[0] < -NEAR)
        error = TwinError("that a set is sufficient, and to the model it is not", is_wrong=is_wrong)
        if is_wrong or minimal.grain is None or not may_grow:
            raise error
        wider = add_cells(found, saliency, minimal.grain)
        answers = with_floor((yield Question(wider, exact=True)), floor)
        if not answers.holds.any():
            raise error
        found = wider[np.argmax(answers.margin)]
    elif minimal.grain is None or not answers.holds[2:].any():
        return minimal
    elif answers.margin[2:].max() > NEAR:
        raise TwinError("that a set is minimal, and to the model it is not")
    return (yield from drive(minimise(found, saliency, finest=minimal.grain), exact=True, floor=floor))


def add_cells(visible: Visible, saliency: Saliency, grain: int) -> Visible:
    """The set with each of the cells outside of it, (n, *grid), at most MOST of them, those that are highest in the map."""
    number = cells(visible.shape, grain)
    highest = np.full(int(number.max()) + 1, -np.inf)
    np.maximum.at(highest, number[~visible], saliency[~visible])
    order = np.argsort(-highest, kind="stable")[: min(MOST, np.count_nonzero(highest > -np.inf))]
    return np.stack([visible | (number == each) for each in order])
