"""The map of one view, by the search of `explain`, for the interfaces of other libraries."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Classifier, Pixels, Saliency
from becausal.core.errors import TargetError
from becausal.core.problem import Explainer, Problem
from becausal.core.request import Request
from becausal.core.targets import Target, with_floor
from becausal.engine.engine import Engine


def keep_rank(scores: NDArray[Any], label: int) -> Target:
    """The target that a label keeps its rank among the scores (classes,), or a better one."""
    mine = scores[label]
    return Target(label, top=1 + int((scores > mine).sum()) + int((scores[:label] == mine).sum()))


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
    """The map of a view, (*grid,), with the nested levels that `explain` looks for by default.

    Where the background alone keeps the target and most of its confidence, no set is needed for any level: then the map
    ranks pixels by the margin alone.

    Raises:
        TargetError: The target does not hold on the whole view.
    """
    request = Request().within(view.shape[:-1])
    answers = target.judge(np.concatenate([model.classify(whole[None]) for whole in (view, background)]))
    if not answers.holds[0]:
        raise TargetError("the target does not hold on the whole view, so there is nothing to explain")
    floors = tuple(share * float(answers.confidence[0]) for share in request.shares)
    if with_floor(answers, floors[-1]).holds[1]:
        floors = ()
    problem = Problem(view, (background,), target, model=model, budget=max_calls, floors=floors)
    search = request.configure(explainer).search(problem, np.random.default_rng(seed).spawn(2)[0])
    return Engine(model).run(problem, search, max_calls=max_calls).result.saliency
