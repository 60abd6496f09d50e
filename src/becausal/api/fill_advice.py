"""Where the fully masked image already has the label: what it shows, and which of the built-in fills would work."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import ModelInfo, Pixels
from becausal.core.errors import BecausalError, FillError, MissingExtraError
from becausal.core.problem import Problem
from becausal.core.request import Request
from becausal.engine.engine import Engine
from becausal.images.fills import FILLS

MOST_FILLS = 7  # evaluated to find one that would work


def suggest_fills(
    error: FillError, problem: Problem, request: Request, engine: Engine, make: Callable[[str], Pixels]
) -> FillError:
    """The refusal of a fill, with the label of the fully masked image and the built-in fills that would work.

    make: makes the background of a fill.
    """
    fills, info = request.fills, engine.classifier.info
    if len(fills) > 1:
        return error
    working, found, label = [], problem.label_id, ""
    try:
        for fill in [fills[0], *(name for name in FILLS if name != fills[0])][:MOST_FILLS]:
            with suppress(FillError, MissingExtraError):  # inpaint is not for signals, and needs a library
                scores = engine.evaluate(problem.view, make(fill), np.zeros((1, *problem.grid), bool))
                if fill == fills[0] and scores.ndim < 3:
                    found, label = _describe_top(info, scores)
                elif fill != fills[0] and not problem.target.judge(scores).holds[0]:
                    working.append(fill)
    except KeyboardInterrupt:
        engine.interrupt()
        return error
    except BecausalError:  # the model failed
        return error
    advice = f"use {_either(working)}" if working else "none of the built-in fills would work either"
    fact = "fully masked image already has this label"
    if problem.target.box is not None:
        return FillError(f"the detector still finds this box in the fully masked image (fill {fills[0]}): {advice}")
    if found != problem.label_id:  # one of the top k, or ahead of its rival
        fact = "target already holds on the fully masked image"
    return FillError(f"the {fact}: under the fill {fills[0]} it is {label}, so there is nothing to explain; {advice}")


def _describe_top(info: ModelInfo, scores: NDArray[Any]) -> tuple[int, str]:
    if scores.ndim == 1:
        return int(scores[0]), info.name_of(int(scores[0]))
    top = int(np.argmax(scores[0]))
    return top, f"{info.name_of(top)} (confidence {scores[0, top]:.2f})"


def _either(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
