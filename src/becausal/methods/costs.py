"""What the options of a method cost beside the calls of the model that the engine counts: memory, computing, gradients."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from becausal.core.contracts import Grid
from becausal.core.errors import OptionError
from becausal.core.problem import Explainer
from becausal.core.text import one_line

MOST_BYTES = 4 * 2**30
MOST_NUMBERS = 1e11  # some minutes of computing between two calls of the model, or in all


@dataclass(frozen=True, kw_only=True)
class Cost:
    """An estimate. reduce: the options that decide it. gradients: evaluations of the model past the engine."""

    reduce: tuple[str, ...]
    memory: int = 0
    numbers: int = 0
    gradients: int = 0


def _cells(grid: Grid, along: int) -> int:
    return prod(min(side, along) for side in grid)


def _rise(method: Any, grid: Grid) -> Cost:
    coarse = (method.cells + 2) ** len(grid)
    return Cost(reduce=("masks", "cells"), memory=24 * coarse, numbers=method.masks * (coarse + prod(grid)))


def _hsic(method: Any, grid: Grid) -> Cost:
    points = method.samples * _cells(grid, method.grid)
    return Cost(reduce=("samples", "grid"), memory=32 * points, numbers=points * (20 + method.samples // 50))


def _sobol(method: Any, grid: Grid) -> Cost:
    points = method.designs * _cells(grid, method.grid)
    return Cost(reduce=("designs", "grid"), memory=40 * points, numbers=30 * points)


def _lime(method: Any, grid: Grid) -> Cost:
    matrix, patches = method.samples * method.patches, min(method.patches, prod(grid))
    return Cost(reduce=("samples", "patches"), memory=24 * (matrix + patches**2), numbers=(matrix + patches**2) * patches)


def _greedy(method: Any, grid: Grid) -> Cost:
    patches = min(method.patches, prod(grid))
    return Cost(reduce=("patches",), memory=64 * prod(grid) + patches**2, numbers=patches**3)


def _sbfl(method: Any, grid: Grid) -> Cost:
    shown = min(method.chains, method.mutants) * prod(grid)
    return Cost(reduce=("chains", "mutants"), memory=3 * shown, numbers=4 * method.mutants * prod(grid))


def _shap(method: Any, grid: Grid) -> Cost:
    boxes = min(prod(grid), method.cells ** len(grid))
    return Cost(reduce=("evaluations", "cells"), memory=1000 * boxes + method.evaluations * (boxes // 8 + 100))


def _extremal(method: Any, grid: Grid) -> Cost:
    areas = len(method.shares())
    return Cost(reduce=("steps", "areas"), memory=250 * areas * prod(grid), gradients=method.steps * areas)


def _ig(method: Any, grid: Grid) -> Cost:
    return Cost(reduce=("steps",), gradients=method.steps)


COSTS: dict[str, Callable[[Any, Grid], Cost]] = {
    "rise": _rise,
    "d-rise": _rise,
    "hsic": _hsic,
    "sobol": _sobol,
    "lime": _lime,
    "greedy": _greedy,
    "phasewin": _greedy,
    "sbfl": _sbfl,
    "shap": _shap,
    "extremal": _extremal,
    "ig": _ig,
}


def check_cost(
    explainer: Explainer,
    grid: Grid,
    *,
    memory: float = MOST_BYTES,
    numbers: float = MOST_NUMBERS,
    gradients: float = float("inf"),
) -> None:
    """Raise OptionError, before any work begins, for options that cost more than these limits together on a view."""
    if explainer.name not in COSTS:
        return
    cost = COSTS[explainer.name](explainer, grid)
    for needed, limit, unit, scale in (
        (round(cost.memory, -7), min(memory, MOST_BYTES), "GB of memory", 1e9),
        (round(cost.numbers, -9), numbers, "billion numbers to compute", 1e9),
        (cost.gradients, gradients, "gradients of the model", 1),
    ):
        if needed > limit:
            size = "x".join(str(side) for side in grid)
            given = ", ".join(f"{name}={one_line(getattr(explainer, name), 30)}" for name in cost.reduce)
            raise OptionError(
                f"the method {explainer.name} with {given} would take about {needed / scale:,.6g} {unit} for a view of "
                f"{size}, and the limit is {limit / scale:,.3g}: reduce {' or '.join(cost.reduce)}"
            )
