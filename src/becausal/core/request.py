"""What is asked of an explanation besides the image and the model; said once, for Python, command line, page and records."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, Literal, Self

from becausal.core.boxes import is_box
from becausal.core.contracts import Grid, ModelInfo
from becausal.core.errors import OptionError
from becausal.core.options import option
from becausal.core.problem import Explainer, SetExplainer, options_of
from becausal.core.schema import read_fields

_MOST = 2**63 - 1  # what databases can hold
LEAST_CALLS = 10
COSTLY_CALLS = 150  # the default limit where calls cost money or seconds: enough for a set that is certified, in most cases
MAX_SEVERAL = 1000
MAX_SEEDS = 1000
SHARE = 0.9  # of the confidence that `core` keeps, and of the random backgrounds that `enough` holds on, by default
MAX_GRAIN = 2**31 - 1
AUTO = "auto"  # in the place of a fill: the usual one, or where nothing can be explained with it, the first that works
MOST_HOLDS = 0.999  # a certificate of this share takes thousands of calls


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


def parse_box(value: Any) -> int | str:
    """Which box of a detector: its number, from 1, or "left,top,right,bottom" in pixels of the image."""
    is_text = isinstance(value, str)
    if not is_text or value.strip().isdecimal():
        return whole_number("box", int(value) if is_text else value, 1, kind="a box's number")
    try:
        sides = [float(side) for side in value.split(",")]
    except ValueError:
        sides = []
    if not is_box(sides):
        raise OptionError(f"a box is a number, e.g. 2, or left,top,right,bottom in pixels, e.g. 34,50,120,80, not {value!r}")
    return ",".join(f"{side:g}" for side in sides)


def parse_place(value: Any) -> str:
    """A pixel of the image as "x,y", from such a text or a pair of numbers."""
    parts = value.split(",") if isinstance(value, str) else value
    try:
        x, y = (operator.index(int(part) if isinstance(part, str) else part) for part in parts)
    except (TypeError, ValueError):
        x = y = -1
    if min(x, y) < 0:
        raise OptionError(
            f"a place is x,y in whole pixels of the image, from its top left corner, e.g. 120,88, not {value!r}"
        )
    return f"{x},{y}"


def whole_number(name: str, value: Any, least: int, most: int = _MOST, *, kind: str = "a whole number") -> int:
    """The value of an option as an int. Raises OptionError for anything else, and for what is out of range."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise OptionError(f"{name} must be {kind}, not {value!r}") from None
    if number < least:
        raise OptionError(f"{name} must be at least {least}, not {number}")
    if number > most:
        raise OptionError(f"{name} must be at most {most}, not {number}")
    return number


def _share(name: str, value: Any, whole: str) -> float:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not 0.0 < float(value) <= 1.0:  # NaN is in no range
        raise OptionError(f"{name} is a share {whole}, above 0 and up to 1, not {value!r}")
    return float(value)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that is asked of an explanation besides the image and the model.

    The options are those of `becausal.explain`, which documents each for Python; the texts here are for the command line.
    """

    target: int | str | None = option(None, "Why this label? Default: the top label.", metavar="LABEL|ID")
    against: int | str | None = option(
        None, "Why not this label: what keeps the explained label ahead of it?", metavar="LABEL|ID"
    )
    box: int | str | None = option(
        None,
        "Object detectors: why this box? Its number (see `becausal inspect`), or the pixels of the image it is nearest to. "
        "Default: the box with the highest score.",
        metavar="N|L,T,R,B",
    )
    at: str | tuple[int, int] | None = option(
        None,
        "segment: models: why this pixel? Its place in the image. Without it, why this segment, see --target.",
        metavar="X,Y",
    )
    top: int = option(1, "What keeps the label among the top K?", metavar="K")
    confidence: float | None = option(
        None,
        "Which pixels keep this share of the confidence, e.g. 0.7? One set, with the rest in one fill.",
        metavar="SHARE",
    )
    smallest: bool = option(
        False, "What are the fewest pixels that keep the label, at any confidence? One set, with the rest in one fill."
    )
    fills: tuple[str, ...] = option(
        (AUTO,),
        "Which pixels are enough when the rest becomes this: {fills}, '#rrggbb', 'r,g,b', a number, image:FILE? "
        "Give it several times for a set that is enough under each of them. Default: a plain colour that does not have the "
        "label itself.",
        metavar="FILL",
        flag="--fill",
        parse=tuple,
    )
    holds: float | None = option(
        None,
        "Which pixels keep the label on this share of random backgrounds, e.g. 0.95? Default: 0.9; not asked with "
        "--smallest, --confidence, --fill, --contrast and --several.",
        metavar="SHARE",
    )
    backgrounds: str | Callable[[Any, Any], Any] | None = option(
        None, "Take the random backgrounds from the images in this folder; see `becausal backgrounds`.", metavar="DIR"
    )
    contrast: bool = option(False, "Which pixels keep the label alone, and lose it when they are masked?")
    several: int = option(
        1, "Are there others? Look for K explanations that share no pixel (method causal only).", metavar="K"
    )
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
        "Remove cells of this side in pixels that are not needed, until every one is; none to skip this. "
        "Default: 1/28 of the longest side (8 px at 224) for causal, twice that for large sets, 1/56 with --smallest, none "
        "for other methods.",
        metavar="PX|none",
        parse=parse_grain,
    )
    seed: int = option(0, "Random seed. Same seed, same answer.", metavar="N")
    seeds: int = option(
        1, "Search N times, with seeds from --seed on. The map is the mean; the most typical set is kept.", metavar="N"
    )
    max_calls: int | None = option(
        None,
        "Maximum number of model calls per image, e.g. 500; then the best result so far is returned. Default: none; 150 for "
        "chat: models.",
        metavar="N",
    )

    def __post_init__(self) -> None:
        """Check every value, and keep numbers of other libraries as Python's own, as JSON needs them."""

        def keep(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        limits = {"top": (1, _MOST), "several": (1, MAX_SEVERAL), "seed": (0, _MOST), "seeds": (1, MAX_SEEDS)}
        if self.max_calls is not None:
            limits["max_calls"] = (LEAST_CALLS, _MOST)
        if self.grain not in (None, "default"):
            limits["grain"] = (1, MAX_GRAIN)
        for name, (least, most) in limits.items():
            kind = "a side in whole pixels, None or 'default'" if name == "grain" else "a whole number"
            keep(name, whole_number(name, getattr(self, name), least, most, kind=kind))
        for name in ("target", "against"):
            label = getattr(self, name)
            if label is not None and not isinstance(label, str):
                keep(name, whole_number(name, label, 0, kind="a label's name or id"))
        if self.box is not None:
            keep("box", parse_box(self.box))
        if self.at is not None:
            keep("at", parse_place(self.at))
        if self.confidence is not None:
            keep("confidence", _share("confidence", self.confidence, "of the original one"))
        if not (self.backgrounds is None or isinstance(self.backgrounds, str) or callable(self.backgrounds)):
            what = "a folder of images or a function of view and rng"
            raise OptionError(f"backgrounds are {what}, not {self.backgrounds!r}")
        if self.holds is not None:
            keep("holds", share := _share("holds", self.holds, "of random backgrounds"))
            if share > MOST_HOLDS:
                raise OptionError(f"holds must be at most {MOST_HOLDS}, not {share}: more would take too many backgrounds")
            if self.contrast or self.several > 1 or self.smallest:
                raise OptionError("holds asks for random backgrounds, and smallest, contrast and several for one fill")
        if isinstance(self.fills, (str, bytes)) or not isinstance(self.fills, Sequence):
            raise OptionError(f"fills must be a tuple of fills, e.g. ('grey', 'blur'), not {self.fills!r}")
        if not self.fills:
            raise OptionError("at least one fill is needed")
        for fill in self.fills:
            if not isinstance(fill, str):
                raise OptionError(f"a fill is written as text, e.g. 'grey', '0.5' or '255,136,0', not {fill!r}")
        if AUTO in self.fills and len(self.fills) > 1:
            raise OptionError(f"{AUTO} stands for one fill that is chosen for each image: leave it out, or the others")
        keep("fills", tuple(self.fills))
        for name in ("contrast", "smallest"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.smallest and self.confidence is not None:
            raise OptionError("smallest keeps the label alone, so confidence cannot be used with it")
        if not isinstance(self.method, str) and not callable(getattr(self.method, "search", None)):
            raise OptionError(f"method must be a method's name or an explainer, not {self.method!r}")
        if self.options is not None and not isinstance(self.options, Mapping):
            raise OptionError(f"options must be a mapping of names to values, not {self.options!r}")

    @property
    def share(self) -> float:
        """The share of the confidence to keep with everything else in the plain fill; 0 for the label alone."""
        if self.confidence is not None:
            return self.confidence
        return 0.0 if self.smallest or self.contrast or self.several > 1 else SHARE

    @property
    def share_held(self) -> float | None:
        """The share of random backgrounds to hold on; None where one set in one fill is asked for."""
        is_plain = self.confidence is None and self.share == SHARE and self.chooses_fill
        return SHARE if self.holds is None and is_plain else self.holds

    @property
    def chooses_fill(self) -> bool:
        """Whether no fill was named, so that another one may be taken where the usual one does not work."""
        return self.fills == (AUTO,)

    def describe_masked(self) -> str:
        """What masked pixels become: in the plain fill; replaced by blur and by noise."""
        if len(self.fills) == 1 and not self.fills[0].startswith(("blur", "noise", "inpaint", "image:")):
            return "in the plain fill"
        return f"replaced by {' and by '.join(self.fills)}"

    def limited(self, info: ModelInfo) -> Self:
        """The same with a limit on the calls of a model whose calls cost money or seconds, where none was given."""
        return replace(self, max_calls=COSTLY_CALLS) if info.is_costly and self.max_calls is None else self

    def within(self, grid: Grid) -> Self:
        """The same for views of this grid: a cell larger than the view is the view, whatever its side."""
        return replace(self, grain=min(self.grain, max(grid))) if isinstance(self.grain, int) else self

    def configure(self, explainer: Explainer) -> Explainer:
        """The explainer with this request's grain and number of explanations.

        Raises OptionError where several explanations are asked of a method that makes a map only.
        """
        grain = self.grain if isinstance(self.grain, int) else None
        if isinstance(explainer, SetExplainer):
            return explainer.configured(grain=grain, several=self.several, smallest=self.share == 0.0)
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
        backgrounds = None if callable(self.backgrounds) else self.backgrounds  # the certificate names a function
        return plain | {"method": method, "options": dict(options) if options else None, "backgrounds": backgrounds}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """The request behind a `record`. Raises OptionError that names the field which is unknown or of another type."""
        return cls(**read_fields(cls, record))
