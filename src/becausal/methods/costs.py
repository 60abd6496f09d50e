"""What the options of a method cost beside the calls of the model that the engine counts: memory, computing, gradients."""

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

    reduce: tuple[str, ...] = ()
    memory: int = 0
    numbers: int = 0
    gradients: int = 0


def estimate_cost(method: Any, grid: Grid) -> Cost:
    """What the options of a method cost on a view of this shape; nothing for methods without such options."""
    pixels = prod(grid)
    match method.name:
        case "rise" | "d-rise":
            coarse = (method.cells + 2) ** len(grid)
            return Cost(reduce=("masks", "cells"), memory=24 * coarse, numbers=method.masks * (coarse + pixels))
        case "hsic":
            points = method.samples * prod(min(side, method.grid) for side in grid)
            return Cost(reduce=("samples", "grid"), memory=32 * points, numbers=points * (20 + method.samples // 50))
        case "sobol":
            points = method.designs * prod(min(side, method.grid) for side in grid)
            return Cost(reduce=("designs", "grid"), memory=40 * points, numbers=30 * points)
        case "lime":
            patches = min(method.patches, pixels)
            entries = method.samples * method.patches + patches**2
            return Cost(reduce=("samples", "patches"), memory=24 * entries, numbers=entries * patches)
        case "greedy" | "phasewin":
            patches = min(method.patches, pixels)
            return Cost(reduce=("patches",), memory=64 * pixels + patches**2, numbers=patches**3)
        case "sbfl":
            shown = min(method.chains, method.mutants) * pixels
            return Cost(reduce=("chains", "mutants"), memory=3 * shown, numbers=4 * method.mutants * pixels)
        case "shap":
            boxes = min(pixels, method.cells ** len(grid))
            return Cost(reduce=("evaluations", "cells"), memory=1000 * boxes + method.evaluations * (boxes // 8 + 100))
        case "extremal":
            areas = len(method.shares())
            return Cost(reduce=("steps", "areas"), memory=250 * areas * pixels, gradients=method.steps * areas)
        case "ig":
            return Cost(reduce=("steps",), gradients=method.steps)
    return Cost()


def check_cost(
    explainer: Explainer,
    grid: Grid,
    *,
    memory: float = MOST_BYTES,
    numbers: float = MOST_NUMBERS,
    gradients: float = float("inf"),
) -> None:
    """Raise OptionError, before any work begins, for options that cost more than these limits together on a view."""
    cost = estimate_cost(explainer, grid)
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
