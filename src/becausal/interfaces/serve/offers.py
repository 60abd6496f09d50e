"""What the page offers: examples, methods, fills and levels of detail, and the `Request` for the values of its controls.

What is left as it is stands for the default of `becausal explain`, so that the page gives the answer of the command line.
"""

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec

from becausal.api import Request
from becausal.core.checks import ANY
from becausal.core.contracts import Classifier
from becausal.core.errors import OptionError
from becausal.images.fills import FILLS
from becausal.interfaces.serve.images import Upload, make_examples, make_group_examples
from becausal.interfaces.serve.limits import Limits
from becausal.methods import METHODS

#: What an explanation must keep, by its name on the page.
KEPT = {
    "levels": "three levels: label, half and 90 % of the confidence",
    ANY: "four levels: these, and the label on any background",
    "label": "label only",
}
HOLDS = 0.9  # share of random backgrounds
#: Levels of detail, as cells along the longest side of the view; None for the cells of the command line.
DETAILS: dict[str, int | None] = {"fine": 56, "medium": None, "coarse": 16}
MAX_EXPLANATIONS = 4
LIBRARIES = {"shap": ("shap",), "rap": ("torch",), "extremal": ("torch",)}  # needed by a method
MAX_RANK = 20  # of the labels and boxes that can be explained


def make_request(values: Mapping[str, str], classifier: Classifier, side: int, limits: Limits) -> Request:
    """The request for the values of the page's controls; raises OptionError for a value that is not offered.

    values: method, fill, keep, detail, several, calls, label (id, or the number of a detector's box) and rank (of the label,
    from 1); any of them may be missing or empty. side: longest side of the view in pixels.
    """
    is_detector = classifier.info.output == "boxes"
    method = _choose(values, "method", "causal", available_methods(classifier))
    keep = _choose(values, "keep", "levels", KEPT)
    cells = DETAILS[_choose(values, "detail", "medium", DETAILS)]
    several = _read_number(values, "several", 1, MAX_EXPLANATIONS) or 1
    several = several if method == "causal" else 1
    rank = _read_number(values, "rank", 1, MAX_RANK) or 1
    label = _read_number(values, "label", 0, 2**31) if rank > 1 else None
    return Request(
        method=method,
        fills=(_choose(values, "fill", "grey", available_fills()),),
        target=None if is_detector else label,
        box=label if is_detector else None,
        top=1 if label is None or classifier.info.output in ("multilabel", "boxes") else rank,
        smallest=keep == "label",
        holds=HOLDS if keep == ANY and several == 1 else None,
        grain="default" if cells is None else max(1, side // cells),
        several=several,
        max_calls=_read_number(values, "calls", 10, limits.max_calls),
    )


def _choose(values: Mapping[str, str], name: str, default: str, offered: Mapping[str, object] | tuple[str, ...]) -> str:
    value = values.get(name) or default
    if value not in offered:
        raise OptionError(f"the value of {name} is not one of those offered")
    return value


def _read_number(values: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = values.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and least <= int(text) <= most):
        raise OptionError(f"the value of {name} must be a whole number from {least} to {most:,}")
    return int(text)


@cache
def _is_installed(library: str) -> bool:
    return find_spec(library) is not None


def available_methods(classifier: Classifier) -> tuple[str, ...]:
    """The methods that can run on this model with the installed libraries."""
    has_gradients = hasattr(classifier, "torch_form")

    def can_run(name: str) -> bool:
        needs_gradients = METHODS[name].needs == "gradients"
        if METHODS[name].needs == "boxes" and classifier.info.output != "boxes":
            return False
        libraries = LIBRARIES.get(name, ("torch", "captum") if needs_gradients else ())
        return (has_gradients or not needs_gradients) and all(_is_installed(library) for library in libraries)

    return tuple(name for name in METHODS if can_run(name))


def available_fills() -> tuple[str, ...]:
    """The named fills; never one that reads a file of the server."""
    return tuple(name for name in FILLS if name != "inpaint" or _is_installed("cv2"))


def list_examples(classifier: Classifier) -> tuple[str, tuple[Upload, ...]]:
    """The name of a set of examples, and the set; none for models that are not bundled, to which they mean nothing."""
    match classifier.info.spec:
        case "bundled" | "bundled:vit":
            return "scenes", make_examples()
        case "bundled:detector":
            return "groups", make_group_examples()
    return "", ()


def find_example(classifier: Classifier, chosen: str) -> Upload | None:
    """The example with a name such as scenes/3; the first one for any other name; None for a model without examples."""
    name, examples = list_examples(classifier)
    if not examples:
        return None
    family, _, number = chosen.partition("/")
    is_known = family == name and number.isascii() and number.isdecimal() and len(number) < 4
    return examples[int(number)] if is_known and int(number) < len(examples) else examples[0]


def check_colour_model(classifier: Classifier, spec: str) -> None:
    """Raise OptionError for a model that does not take colour images, the only input of the server."""
    info = classifier.info
    if (info.geometry is not None and len(info.geometry.grid) != 2) or info.channels not in (None, 3):
        raise OptionError(f"{spec} does not take colour images; becausal serve needs a model that does")
