"""An onnxruntime session on a device, with device memory bound once for each batch shape."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class BoundSession:
    """Runs batches with one copy to the device and one back.

    input_name, output_name: tensors of the network. device, device_id: as in onnxruntime, e.g. "cuda" and 0.
    """

    def __init__(self, session: Any, input_name: str, output_name: str, device: str, device_id: int = 0) -> None:
        self._session = session
        self._input_name = input_name
        self._output_name = output_name
        self._device = device, device_id
        self._bindings: dict[tuple[tuple[int, ...], str], tuple[Any, Any]] = {}  # input memory and its binding

    def __call__(self, batch: NDArray[Any]) -> NDArray[Any]:
        """The raw output for a batch."""
        value, binding = self._bind(batch)
        value.update_inplace(batch)
        self._session.run_with_iobinding(binding)
        return np.asarray(binding.copy_outputs_to_cpu()[0])

    def _bind(self, batch: NDArray[Any]) -> tuple[Any, Any]:
        key = batch.shape, batch.dtype.str
        if key not in self._bindings:
            from onnxruntime import OrtValue

            value = OrtValue.ortvalue_from_shape_and_type(list(batch.shape), batch.dtype.type, *self._device)
            binding = self._session.io_binding()
            binding.bind_ortvalue_input(self._input_name, value)
            binding.bind_output(self._output_name, *self._device)
            self._bindings[key] = value, binding
        return self._bindings[key]
