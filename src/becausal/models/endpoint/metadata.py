"""What a server's metadata mean for images: the input that takes them, and the output to read."""

from becausal.core.errors import ModelError
from becausal.models.endpoint.options import EndpointOptions
from becausal.models.endpoint.wire import ServerMetadata
from becausal.models.signature import ImageInput, TensorInfo, find_tensor, read_image_input
from becausal.models.signature import pick_output as pick_tensor

INPUT_TYPES = ("UINT8", "UINT16", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64")


def read_input(metadata: ServerMetadata, options: EndpointOptions) -> ImageInput:
    """The input that takes images. Raises ModelError if there is none, or more than one."""
    tensor = _find_input(metadata, options)
    return read_image_input(tensor, options.layout, types=INPUT_TYPES, axes=(3, 4), hint="--endpoint layout=nchw or nhwc")


def pick_output(outputs: tuple[TensorInfo, ...], name: str | None) -> tuple[str | None, tuple[str, ...]]:
    """The name of the output with the scores, and a note if there was a choice; None if no output is known yet.

    Raises ModelError if there is no output of the given name, or none that holds numbers.
    """
    if not outputs:
        return name, ()
    tensor, notes = pick_tensor(outputs, name, axes=(0, 1, 2), hint="--endpoint output=NAME")
    return tensor.name, notes


def _find_input(metadata: ServerMetadata, options: EndpointOptions) -> TensorInfo:
    """The input in the metadata, with name, type and shape of the options where given."""
    known = metadata.inputs
    if options.input is None and len(known) > 1:
        names = ", ".join(tensor.name for tensor in known)
        raise ModelError(f"the model has {len(known)} inputs ({names}); an image model has one")
    if not known and options.shape is None:
        raise ModelError(
            "the server does not state the model's input: give --endpoint shape=N,3,224,224 (and input, datatype)"
        )
    found = TensorInfo(options.input or "input", "FP32", ())
    if known:
        found = find_tensor(known, options.input or known[0].name, "input")
    return TensorInfo(found.name, options.datatype or found.datatype, options.shape or found.shape)
