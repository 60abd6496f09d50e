"""An onnxruntime session on a device, with memory of its own there for each shape of batch."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class BoundRun:
    """A batch to the network's raw output: one copy to the device, one back.

    entry, output: names of the network's input and output. device: as onnxruntime names it, cpu or cuda, and its number.
    """

    def __init__(self, session: Any, entry: str, output: str, device: str, number: int = 0) -> None:
        self._session = session
        self._entry = entry
        self._output = output
        self._device = device, number
        self._kept: dict[tuple[tuple[int, ...], str], tuple[Any, Any]] = {}  # the input's memory, and what is bound to it

    def __call__(self, batch: NDArray[Any]) -> NDArray[Any]:
        value, binding = self._of(batch)
        value.update_inplace(batch)
        self._session.run_with_iobinding(binding)
        return np.asarray(binding.copy_outputs_to_cpu()[0])

    def _of(self, batch: NDArray[Any]) -> tuple[Any, Any]:
        key = batch.shape, batch.dtype.str
        if key not in self._kept:
            from onnxruntime import OrtValue

            value = OrtValue.ortvalue_from_shape_and_type(list(batch.shape), batch.dtype.type, *self._device)
            binding = self._session.io_binding()
            binding.bind_ortvalue_input(self._entry, value)
            binding.bind_output(self._output, *self._device)
            self._kept[key] = value, binding
        return self._kept[key]
