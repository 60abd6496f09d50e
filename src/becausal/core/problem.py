"""What a method is asked to solve, and what a method is."""

from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from becausal.core.contracts import BackgroundSampler, Classifier, Finding, Grid, Needs, Pixels, Search
from becausal.core.targets import Target


@dataclass(frozen=True, eq=False)
class Problem:
    """One view to search: what is shown, what masked pixels become, and what must stay true.

    Attributes:
        view: (*grid, channels), the image as the model sees it, not normalised.
        backgrounds: One image for each fill, each (*grid, channels); the target must hold under all of them.
        target: What must stay true of the model's answer.
        has_scores: Whether `Answers.confidence` means anything; False for models that return labels only.
        model: The classifier itself. Only methods that need gradients may use more of it than its `info`.
        budget: How many questions a method may ask, None for any number.
        floor: Confidence that a set has to keep in the fills beyond the target; 0 asks for nothing.
        holds: The share of random backgrounds on which the explanation has to keep the label; None for one fill only.
        sampler: The random backgrounds that a search may use by number, see `Question.draws`; None for none.
        is_guided: Whether a twin of the model answers what is not marked `Question.exact`.
    """

    view: Pixels
    backgrounds: tuple[Pixels, ...]
    target: Target
    has_scores: bool = True
    model: Classifier | None = None
    budget: int | None = None
    floor: float = 0.0
    holds: float | None = None
    sampler: BackgroundSampler | None = None
    is_guided: bool = False

    @property
    def grid(self) -> Grid:
        """The view's spatial shape."""
        return tuple(self.view.shape[:-1])

    @property
    def label_id(self) -> int:
        """The class that is explained."""
        return self.target.label_id

    @property
    def background(self) -> Pixels:
        """The background of the first fill."""
        return self.backgrounds[0]


class Explainer(Protocol):
    """A method: a frozen dataclass whose fields are its options and whose `search` asks questions and returns a map."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> Needs: ...
    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]: ...


@runtime_checkable
class SetExplainer(Explainer, Protocol):
    """A method that finds minimal sufficient sets itself, so that nothing is left to extract from its map."""

    def cell_side(self, grid: Grid) -> int:
        """The side of the cells at which its sets are minimal, in pixels."""
        ...

    def configured(self, *, grain: int | None, several: int, smallest: bool) -> "SetExplainer":
        """The same method for cells of this side (None: its own) and this many disjoint sets.

        smallest: the label alone is to be kept, by the smallest set.
        """
        ...


def options_of(explainer: Explainer) -> dict[str, Any]:
    """The options of a method as JSON can hold them.

    A nested record of options, e.g. the tuning of `causal`, becomes a mapping of the values that differ from its
    defaults, and is left out where none does.
    """
    found: dict[str, Any] = {}
    if not is_dataclass(explainer):
        return found
    for f in fields(explainer):
        value = getattr(explainer, f.name)
        if is_dataclass(value):
            value = {g.name: getattr(value, g.name) for g in fields(value) if getattr(value, g.name) != g.default}
            if not value:
                continue
        found[f.name] = value
    return found
