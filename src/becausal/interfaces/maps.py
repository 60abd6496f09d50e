"""The map of one view, for the interfaces of other libraries."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Classifier, Pixels, Saliency
from becausal.core.errors import TargetError
from becausal.core.problem import Explainer, Problem
from becausal.core.targets import Target
from becausal.engine.engine import Engine

SHARE = 0.5  # of the confidence, for a label that has no rank to lose


def keep_rank(scores: NDArray[Any], label: int) -> Target:
    """The target that a label keeps its rank among the scores (classes,), or gets a better one.

    The last label cannot lose its rank. It has to keep half of its confidence instead.
    """
    mine = scores[label]
    rank = 1 + int((scores > mine).sum()) + int((scores[:label] == mine).sum())
    return Target(label, top=rank, floor=SHARE * float(mine) if rank == len(scores) else 0.0)


def find_map(
    model: Classifier,
    view: Pixels,
    background: Pixels,
    target: Target,
    explainer: Explainer,
    *,
    seed: int,
    max_calls: int | None,
) -> Saliency:
    """The map of a view, (*grid,). Raises TargetError where the target does not hold on the whole view."""
    if not target.judge(model.classify(view[None])).holds[0]:
        raise TargetError("the target does not hold on the whole view, so there is nothing to explain")
    problem = Problem(view, (background,), target, model=model, budget=max_calls)
    search = explainer.search(problem, np.random.default_rng(seed))
    return Engine(model).run(problem, search, max_calls=max_calls).result.saliency
