"""Searches that a twin of the model answers: a faster stand-in, which may guide a search but certifies nothing.

The twin answers every question that is not marked `exact`. What is claimed of a result is asked of the model itself, and
so are a few of the other questions now and then, so that a twin which computes something else is noticed early.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from becausal.core.checks import removals
from becausal.core.contracts import Answers, Grid, Promise, Saliency, Search, Stop, Visible, draws_of, is_exact, with_hints
from becausal.core.errors import TwinError
from becausal.core.minimise import Minimal, minimise
from becausal.core.searches import Done, keeping, showing, step
from becausal.core.targets import STEP

T = TypeVar("T")

EVERY = 16  # waves: the first of so many is compared
COMPARED = 2  # questions of that wave, at most
NEAR = 4 * STEP  # nats: a verdict this close to the other one may be a matter of rounding


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


def compare_twin(search: Search[T], tolerance: float) -> Search[T | TwinError]:
    """The search, some of its questions also asked of the model itself; it ends where the twin's answers are wrong.

    tolerance: how far the twin's confidences may be from the model's. The search does not notice what the comparison costs:
    it asks the same, whatever answers.
    """
    waves = extra = 0
    state = step(search, None)
    while not isinstance(state, Done):
        message: Answers | Stop | None = None
        answers: Answers | None = None
        try:
            answers = yield state
            message = answers = replace(answers, spent=answers.spent - extra)
            if not is_exact(state):
                if waves % EVERY == 0:
                    rows = np.unique(np.linspace(0, len(state) - 1, COMPARED).astype(np.intp))
                    draws = draws_of(state)
                    some = with_hints(np.asarray(state)[rows], draws=None if draws is None else draws[rows], exact=True)
                    exact = yield some
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
        return TwinError(
            f"a confidence of {guessed.confidence[worst]:.4f} where the model has {exact.confidence[worst]:.4f}"
        )
    if np.any((guessed.holds != exact.holds) & (np.abs(exact.margin) > NEAR)):
        return TwinError("another label than the model")
    return None


def exactly(search: Search[T]) -> Search[T]:
    """The search, all its questions asked of the model itself."""
    state = step(search, None)
    while not isinstance(state, Done):
        message: Answers | Stop
        try:
            message = yield with_hints(np.asarray(state), draws=draws_of(state), exact=True)
        except Stop as stop:
            message = stop
        state = step(search, message)
    return state.result


def claims(minimal: Minimal, inner: Visible | None = None) -> Visible:
    """The questions behind the claims on a set: itself, its complement, and with a grain the removal of each cell."""
    visible, grain = minimal.visible, minimal.grain
    both = np.stack([visible, ~visible])
    added = visible if inner is None else visible & ~inner
    return np.concatenate([both, removals(visible, grain, inner)]) if grain is not None and added.any() else both


def confirm_minimal(minimal: Minimal, inner: Visible | None, floor: float, saliency: Saliency) -> Search[Minimal]:
    """A set that a twin found, evaluated by the model itself; where one of its cells can go after all, they are removed.

    Args:
        minimal: The set.
        inner: The level inside it, which stays.
        floor: The confidence it has to keep.
        saliency: Which cells go first.

    Raises:
        TwinError: The set does not keep the target, or the twin's verdicts were clearly wrong.
    """
    answers = yield from keeping(_ask_exactly(claims(minimal, inner)), floor)
    if not answers.holds[0]:
        is_wrong = bool(answers.margin[0] < -NEAR)
        raise TwinError("that a set is sufficient, and to the model it is not", is_wrong=is_wrong)
    if minimal.grain is None or not answers.holds[2:].any():
        return minimal
    if answers.margin[2:].max() > NEAR:
        raise TwinError("that a set is minimal, and to the model it is not")
    inside = np.zeros_like(minimal.visible) if inner is None else inner
    less = minimise(minimal.visible & ~inside, saliency, finest=minimal.grain)
    settled = yield from exactly(keeping(showing(less, inside), floor))
    return replace(settled, visible=settled.visible | inside)


def _ask_exactly(visible: Visible) -> Search[Answers]:
    return (yield with_hints(visible, exact=True))
