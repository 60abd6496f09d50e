"""What is asked of an explanation besides the picture and the model, and what is said of one on its way."""

from dataclasses import dataclass
from typing import Any, Literal

from becausal.contracts import Explainer, Visible
from becausal.errors import BecausalError, OptionError
from becausal.explainers import make_explainer
from becausal.pipeline import Plan
from becausal.regions import default_grain


@dataclass(frozen=True)
class Status:
    """How far an explanation has come; `size` is the share of the view in the smallest sufficient set so far, `visible`."""

    image: str
    index: int
    stage: str
    calls: int
    max_calls: int | None
    size: float
    visible: Visible


@dataclass(frozen=True)
class Failure:
    """A picture that could not be explained, and why."""

    image: str
    error: BecausalError


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that is asked of an explanation besides the picture and the model."""

    method: str | Explainer = "causal"
    options: dict[str, Any] | None = None
    target: int | str | None = None
    against: int | str | None = None
    top: int = 1
    confidence: float | None = None
    fills: tuple[str, ...] = ("grey",)
    grain: int | None | Literal["default"] = "default"
    seed: int = 0
    max_calls: int | None = None
    several: int = 1
    contrast: bool = False

    def __post_init__(self) -> None:
        if self.max_calls is not None and self.max_calls < 10:
            raise OptionError(f"max_calls must be at least 10, not {self.max_calls}")
        if self.confidence is not None and not 0.0 < self.confidence <= 1.0:
            raise OptionError(f"confidence is a share of the original one, above 0 and up to 1, not {self.confidence}")
        if isinstance(self.grain, int) and self.grain < 1:
            raise OptionError(f"grain is a side in pixels, at least 1, not {self.grain}")
        if not self.fills:
            raise OptionError("at least one fill is needed")
        if self.several < 1:
            raise OptionError(f"several must be at least 1, not {self.several}")

    @property
    def outer_calls(self) -> int:
        """What is asked outside of the search: the whole view for its label, and the explanation once more at the end."""
        return 1 + len(self.fills)

    @property
    def inner_limit(self) -> int | None:
        """The calls that are left for the search itself."""
        return None if self.max_calls is None else self.max_calls - self.outer_calls

    def plan(self, grid: tuple[int, ...]) -> Plan:
        """The request for a view of this grid: the method made, the grain decided, the opening call set aside."""
        explainer, grain = self.method, self.grain
        if isinstance(explainer, str):
            options = dict(self.options or {})
            if explainer == "causal":
                options.setdefault("several", self.several)
                if isinstance(grain, int):
                    options.setdefault("grain", grain)
            elif self.several > 1:
                raise OptionError(f"several explanations are for the method causal, not {explainer}")
            explainer = make_explainer(explainer, options)
        elif self.several > 1:
            raise OptionError("several is an option of the method: give it to the explainer itself")
        if grain == "default":
            own = getattr(explainer, "grain", None)
            grain = (own or default_grain(grid)) if explainer.name == "causal" else None
        return Plan(
            explainer=explainer,
            grain=grain,
            seed=self.seed,
            max_calls=self.inner_limit,
            fills=len(self.fills),
            contrast=self.contrast,
        )
