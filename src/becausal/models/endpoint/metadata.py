"""What a served model's metadata means for images: the input's layout and size, and which output to read."""

from dataclasses import dataclass

from becausal.core.errors import ModelError
from becausal.models.compose import Layout
from becausal.models.endpoint.options import EndpointOptions
from becausal.models.endpoint.wire import DTYPES, PICTURES, Served, Tensor
from becausal.models.outputs import OutputOption

NAMED: dict[str, OutputOption] = {"probs": "probabilities", "probabilities": "probabilities", "logits": "logits"}


@dataclass(frozen=True)
class Entry:
    """The input as images see it.

    grid: (h, w), None where any size will do. batch: the only number of images, None for any number. is_single: there
    is no batch axis, one image at a time.
    """

    tensor: Tensor
    layout: Layout
    channels: int
    grid: tuple[int, int] | None
    batch: int | None
    is_single: bool
    notes: tuple[str, ...]


def read_entry(served: Served, options: EndpointOptions) -> Entry:
    """The input that takes images. Raises ModelError where there is none, or more than one."""
    tensor = _find_input(served, options)
    if tensor.datatype not in PICTURES:
        raise ModelError(f"the input {tensor} is of a type that images cannot be turned into: take {', '.join(PICTURES)}")
    if len(tensor.shape) not in (3, 4):
        raise ModelError(
            f"the input {tensor} has {len(tensor.shape)} axes; images need 4, such as [N,3,224,224], or 3, one at a time"
        )
    is_single = len(tensor.shape) == 3
    batch, *sides = (1, *tensor.shape) if is_single else tensor.shape
    layout, notes = _find_layout(sides, options.layout)
    channels, h, w = sides if layout == "nchw" else (sides[2], sides[0], sides[1])
    if channels is None:
        channels = 3
        notes.append("the number of channels is free: 3 taken; --endpoint shape=N,3,224,224 says otherwise")
    if is_single:
        notes.append("the input has no batch axis: one image per request")
    grid = (h, w) if h is not None and w is not None else None
    return Entry(tensor, layout, channels, grid, batch, is_single, tuple(notes))


def pick_output(outputs: tuple[Tensor, ...], said: str | None) -> tuple[str | None, tuple[str, ...]]:
    """The name of the output with the scores, and a note where that was a choice; None where none is known yet.

    Raises ModelError where the one that was said is not there, or none holds numbers.
    """
    names = ", ".join(tensor.name for tensor in outputs)
    if said is not None:
        if outputs and said not in [tensor.name for tensor in outputs]:
            raise ModelError(f"the model has no output {said!r}; it has {names}")
        return said, ()
    if not outputs:
        return None, ()
    numbers = [tensor for tensor in outputs if tensor.datatype in DTYPES]
    if not numbers:
        raise ModelError(f"the outputs {', '.join(str(tensor) for tensor in outputs)} are no numbers: scores are needed")
    for wanted in NAMED:
        for tensor in numbers:
            if tensor.name.lower() == wanted:
                return tensor.name, ()
    scores = [tensor for tensor in numbers if tensor.datatype.startswith("FP") and len(tensor.shape) <= 2]
    chosen = (scores or numbers)[0].name
    if len(outputs) == 1:
        return chosen, ()
    return chosen, (f"of the outputs {names} {chosen} is read; --endpoint output=NAME chooses another",)


def _find_input(served: Served, options: EndpointOptions) -> Tensor:
    """The input that metadata or options name; options win, tensor by tensor."""
    known = {tensor.name: tensor for tensor in served.inputs}
    if options.input is not None and known and options.input not in known:
        raise ModelError(f"the model has no input {options.input!r}; it has {', '.join(known)}")
    if options.input is None and len(known) > 1:
        raise ModelError(f"the model has {len(known)} inputs ({', '.join(known)}); a classifier of images has one")
    if not known and options.shape is None:
        raise ModelError(
            "the server does not say what the model takes: give --endpoint shape=N,3,224,224 (and input, datatype)"
        )
    found = known.get(options.input or next(iter(known), ""), Tensor(options.input or "input", "FP32", ()))
    return Tensor(found.name, options.datatype or found.datatype, options.shape or found.shape)


def _find_layout(sides: "list[int | None]", said: Layout | None) -> tuple[Layout, list[str]]:
    """Where channels are in the three sides after the batch axis."""
    if said is not None:
        return said, []
    first, last = sides[0], sides[2]
    if first in (1, 3) and last not in (1, 3):
        return "nchw", []
    if last in (1, 3) and first not in (1, 3):
        return "nhwc", []
    layout: Layout = "nhwc" if last is not None and (first is None or last < first) else "nchw"
    return layout, [f"the shape does not tell where channels are: {layout} assumed; --endpoint layout=… says so"]
