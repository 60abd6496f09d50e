"""What is asked of an explanation besides the image and the model; said once, for Python, command line, page and records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from becausal.core.contracts import Grid
from becausal.core.errors import OptionError
from becausal.core.options import option
from becausal.core.problem import Explainer, SetExplainer, options_of

FILLS = ("black", "grey", "white", "mean", "blur", "noise", "inpaint")


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """A method's options from key=value words."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, sign, value = pair.partition("=")
        if not sign or not key.strip():
            raise OptionError(f"a method's option is written key=value, e.g. --option partitions=20, not {pair!r}")
        found[key.strip().replace("-", "_")] = value.strip()
    return found


def parse_grain(text: str) -> int | Literal["default"] | None:
    """A side in pixels, `none`, or `default`."""
    match text.strip().lower():
        case "default":
            return "default"
        case "none":
            return None
        case number if number.isascii() and number.isdigit():
            return int(number)
    raise OptionError(f"the grain is a side in whole pixels, e.g. 4, or none, not {text!r}")


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that is asked of an explanation besides the image and the model.

    Attributes:
        method: A method's name, or an explainer.
        options: Options of the method, by name.
        target: The label to explain, by name or id; None for the top label.
        against: Only this other label must stay behind the target.
        top: It is enough that the target stays among the top k labels.
        confidence: Share of the original confidence to keep as well, above 0 and up to 1; None for the label alone.
        fills: What masked pixels become; the explanation must hold under all of them.
        grain: Side in pixels of the cells down to which an explanation is minimised; None for not at all, "default"
            for the method's own.
        seed: Same seed, same answer.
        max_calls: Limit on model calls; None for no limit.
        several: How many disjoint explanations to look for.
        contrast: Find a set that is necessary as well as sufficient.
    """

    target: int | str | None = option(None, "Label to explain. Default: the top label.", metavar="LABEL|ID")
    against: int | str | None = option(
        None, "Require only that the target scores higher than this label.", metavar="LABEL|ID"
    )
    top: int = option(1, "Require only that the target stays among the top K labels.", metavar="K")
    confidence: float | None = option(
        None, "Also keep this share of the original confidence, e.g. 0.9. Default: keep the label only.", metavar="SHARE"
    )
    fills: tuple[str, ...] = option(
        ("grey",),
        "What masked pixels become: black, grey, white, '#rrggbb', 'r,g,b', mean, blur, noise, inpaint, image:FILE. "
        "Repeat the option to require that the explanation holds under all of them.",
        metavar="FILL",
        flag="--fill",
        choices=FILLS,
        parse=tuple,
    )
    contrast: bool = option(
        False, "Find a set that is sufficient and necessary: alone it keeps the label, without it the label is lost."
    )
    several: int = option(1, "Look for K disjoint explanations (method causal only).", metavar="K")
    method: str | Explainer = option("causal", "Method to use; see `becausal methods`.", metavar="NAME")
    options: Mapping[str, Any] | None = option(
        None,
        "Option of the method; see `becausal methods NAME`. Can be repeated.",
        metavar="KEY=VALUE",
        flag="--option",
        parse=parse_options,
    )
    grain: int | None | Literal["default"] = option(
        "default",
        "Minimise the explanation down to cells of this side in pixels; none to skip this. "
        "Default: 1/56 of the longest side (4 px at 224) for causal, none for other methods.",
        metavar="PX|none",
        parse=parse_grain,
    )
    seed: int = option(0, "Random seed. Same seed, same answer.", metavar="N")
    max_calls: int | None = option(
        None, "Maximum number of model calls per image, e.g. 500; then the best result so far is returned.", metavar="N"
    )

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
    def price(self) -> int:
        """How many model calls one question of a search costs."""
        return len(self.fills) * (2 if self.contrast else 1)

    def configure(self, explainer: Explainer) -> Explainer:
        """The explainer with this request's grain and number of explanations.

        Raises:
            OptionError: Several explanations are asked of a method that makes a map only.
        """
        grain = self.grain if isinstance(self.grain, int) else None
        if isinstance(explainer, SetExplainer):
            return explainer.configured(grain=grain, several=self.several)
        if self.several > 1:
            raise OptionError(f"several explanations are found by the method causal only, not by {explainer.name}")
        return explainer

    def grain_for(self, explainer: Explainer, grid: Grid) -> int | None:
        """The side of the cells to minimise to: as asked, or the method's own."""
        if self.grain != "default":
            return self.grain
        return explainer.cell_side(grid) if isinstance(explainer, SetExplainer) else None

    def record(self) -> dict[str, Any]:
        """The request as JSON can hold it; an explainer is written as its name and options."""
        method, options = self.method, self.options
        if not isinstance(method, str):
            options, method = options_of(method), method.name
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        plain |= {name: list(value) for name, value in plain.items() if isinstance(value, tuple)}
        return plain | {"method": method, "options": dict(options) if options else None}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The request behind a `record`."""
        given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
        return cls(**given)
