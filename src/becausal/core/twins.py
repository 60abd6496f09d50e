"""Twins of a model: faster stand-ins, which may guide a search but certify nothing (`search.twins`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Grid, Promise, Visible


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
