"""LIME: a linear model of the classifier around the view, over superpixels.

After Ribeiro, Singh, Guestrin: "Why should I trust you?", KDD 2016. Own code, no library: the lime package wants a
function of whole images and would call the model itself, past batches, memo and budget; what it adds to the formula
below is a segmentation of two-dimensional colour images.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Finding, Needs, Search, Visible
from becausal.core.errors import OptionError
from becausal.core.patches import fit_ridge, superpixels
from becausal.core.problem import Problem
from becausal.methods.waves import WAVE, scores, stream


@dataclass(frozen=True, kw_only=True)
class Lime:
    """LIME, `lime`.

    samples: how many sets of superpixels are asked. patches: about how many superpixels. kernel: the width of the
    exponential kernel, which weighs a sample by exp(-d²/kernel²), d the cosine distance from the whole view. ridge: the
    penalty on the squared weights. A pixel's value is its superpixel's weight.

    Where the classifier gives labels only, the score is 1 where the target is kept and 0 elsewhere.
    """

    samples: int = 1000
    patches: int = 50
    kernel: float = 0.25
    ridge: float = 1.0

    name: ClassVar[str] = "lime"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        for option, least in (("samples", 1), ("patches", 2)):
            if getattr(self, option) < least:
                raise OptionError(f"{option} must be at least {least}, not {getattr(self, option)}")
        if not self.kernel > 0.0:
            raise OptionError(f"kernel must be above 0, not {self.kernel}")
        if not self.ridge >= 0.0:
            raise OptionError(f"ridge must be 0 or more, not {self.ridge}")

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        patch = superpixels(problem.view, self.patches)
        count = int(patch.max()) + 1
        shown = rng.random((self.samples, count)) < 0.5  # a bit per superpixel: small, whatever the view's size
        shown[0] = True
        answered: list[NDArray[np.float64]] = []

        def learn(wave: Visible, answers: Answers) -> None:
            answered.append(scores(answers))

        def waves() -> Iterator[Visible]:
            for start in range(0, self.samples, WAVE):
                yield shown[start : start + WAVE].take(patch, axis=1)

        yield from stream(waves(), learn)
        values = np.concatenate(answered)
        return Finding(self.weights(shown[: len(values)], values)[patch])

    def weights(self, shown: NDArray[np.bool_], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The superpixels' weights, (k,), from the samples, (n, k), and their scores, (n,)."""
        distance = 1 - np.sqrt(shown.mean(axis=1))  # the cosine distance of a set of k ones among n from all ones
        return fit_ridge(shown, values, np.exp(-((distance / self.kernel) ** 2)), self.ridge)
