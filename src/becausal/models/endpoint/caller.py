"""Inference in batches: split to what the server accepts, with cached answers, and a count of what was paid for."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.errors import AnswerError, OutputError
from becausal.models.endpoint.cache import AnswerCache
from becausal.models.endpoint.metadata import pick_output
from becausal.models.endpoint.options import Address
from becausal.models.endpoint.transport import Transport, describe_status
from becausal.models.endpoint.wire import decode, encode
from becausal.models.signature import ImageInput, TensorInfo

_TOO_LARGE = (400, 413, 422, 500)  # how servers refuse a batch that is too large, among other things


ReadOutputs = Callable[[dict[str, NDArray[Any]], int], NDArray[Any]]  # from outputs by name, and the number of images


@final
class Caller:
    """The raw output of one model on a server, from the cache where possible.

    input: the model's input. output: the output to read; None to choose it from the first response. read: makes one array,
    a row per image, of all outputs; None to read one output. limit: maximum number of images per request, halved whenever
    the server refuses a batch. An image that was evaluated in this process before is evaluated again: whoever repeats a
    question wants to know whether the answer is stable.
    """

    def __init__(
        self,
        address: Address,
        transport: Transport,
        input: ImageInput,
        *,
        output: str | None,
        binary: bool,
        limit: int,
        read: ReadOutputs | None = None,
    ) -> None:
        self.output = output
        self.limit = limit
        self.read = read
        self.notes: list[str] = []
        self._address = address
        self._transport = transport
        self._input = input
        self._binary = binary
        self._version: str | None = None
        self._row: tuple[np.dtype[Any], tuple[int, ...]] | None = None  # type and shape of the output for one image
        self._cache: AnswerCache | None = None
        self._salt = b""
        self._asked: set[bytes] = set()
        self._evaluated = self._probes = self._cached = 0  # images so far

    def probe(self, batch: NDArray[Any]) -> NDArray[Any]:
        """The raw output for the probe images, without the cache."""
        raw = np.concatenate(list(self._infer_all(batch)))
        self._probes = self._evaluated
        return raw

    def use_cache(self, cache: AnswerCache, model: bytes, probe: NDArray[Any]) -> None:
        """Cache answers from now on, and use those of a model with this identity and this output for the probe images."""
        self._salt = cache.find_epoch(model, probe)
        self._cache = cache

    def report(self, price: float | None) -> tuple[str, ...]:
        """Notes on what went wrong and what was paid for. price: of one image."""
        cached = f", {self._cached:,} answered from the cache" if self._cached else ""
        usage = f"{self._evaluated:,} images evaluated by the server ({self._probes} of them probe images){cached}"
        if price is not None:
            cost = self._evaluated * price
            usage = f"{cost:,.{2 if cost >= 0.1 else 4}f} spent so far at {price:g} per image: {usage}"
        return (*self.notes, *([usage] if price is not None or self._cached else []))

    def __call__(self, batch: NDArray[Any]) -> NDArray[Any]:
        """The raw output for a normalised batch in the model's layout, one row per image."""
        keys = [hashlib.sha256(self._salt + row.tobytes()).digest() for row in batch]
        found = self._read_cache([key for key in keys if key not in self._asked])
        missing = {key: row for row, key in enumerate(keys) if key not in found}  # equal images are sent once
        remaining = list(missing)
        for raw in self._infer_all(batch[list(missing.values())]):
            new = dict(zip(remaining, raw, strict=False))
            remaining = remaining[len(raw) :]
            self._write_cache(new)
            found |= new
        self._asked.update(keys)
        return np.stack([found[key] for key in keys])

    def _infer_all(self, batch: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """The raw output for any number of images, in parts, as they arrive."""
        start = 0
        while start < len(batch):
            part = batch[start : start + self.limit]
            raw = self._infer(part)
            if raw is None:
                self.limit = len(part) // 2
                continue
            yield raw
            start += len(part)

    def _infer(self, batch: NDArray[Any]) -> NDArray[Any] | None:
        """The raw output for one request; None if the server may accept a smaller batch."""
        size, rows, url = self._input.batch, len(batch), self._address.url
        if size is not None and rows < size:
            batch = np.concatenate([batch, np.repeat(batch[-1:], size - rows, axis=0)])
        has_batch_axis = self._input.has_batch_axis
        sent = batch if has_batch_axis else batch[0]
        body, headers = encode(self._input.tensor, sent, self.output, binary=self._binary)
        reply = self._transport.request("POST", f"{self._address.model}/infer", body, headers)
        if reply.status in _TOO_LARGE and rows > 1 and size is None:
            return None
        if reply.status != 200:
            shape = "x".join(str(side) for side in batch.shape)
            raise AnswerError(f"{url} refused images of shape {shape}: {describe_status(reply)}")
        try:
            result = decode(reply, url)
        except AnswerError as error:
            raise AnswerError(self._transport.scrub(str(error))) from None
        self._check_version(result.version)
        if self.read is not None:
            raw = self.read(result.outputs, len(batch))
        else:
            raw = self._read_one(result.outputs, has_batch_axis=has_batch_axis)
        self._check_output(raw, len(batch))
        self._evaluated += len(batch)
        return raw[:rows]

    def _read_one(self, outputs: dict[str, NDArray[Any]], *, has_batch_axis: bool) -> NDArray[Any]:
        raw = outputs.get(self._choose_output(outputs))
        if raw is None:
            raise AnswerError(f"{self._address.url} sent no output {self.output!r}, only {', '.join(outputs)}")
        return raw if has_batch_axis else raw[None]

    def _choose_output(self, outputs: dict[str, NDArray[Any]]) -> str:
        if self.output is None:
            found = [(name, "FP32" if raw.dtype.kind == "f" else "INT64", raw.shape) for name, raw in outputs.items()]
            self.output, notes = pick_output(tuple(TensorInfo(*item) for item in found), None)
            self.notes += notes
        return self.output or ""

    def _check_output(self, raw: NDArray[Any], rows: int) -> None:
        row = (raw.dtype, raw.shape[1:])
        if raw.ndim == 0 or len(raw) != rows or row != (self._row or row):
            expected = f"({rows}, …)" if self._row is None else f"{(rows, *self._row[1])} {self._row[0]}"
            raise AnswerError(
                f"{self._address.url} sent an output of shape {raw.shape} {raw.dtype} for {rows} images; expected {expected}"
            )
        if raw.dtype.kind == "f" and not np.isfinite(raw).all():
            raise AnswerError(f"{self._address.url} sent scores that are NaN or infinite")
        self._row = row

    def _check_version(self, version: str | None) -> None:
        if version is not None and version != (self._version or version):
            raise AnswerError(
                f"the model version at {self._address.url} changed from {self._version} to {version}: name one in the "
                f"address, e.g. …/versions/{version}"
            )
        self._version = version or self._version

    def _read_cache(self, keys: Sequence[bytes]) -> dict[bytes, NDArray[Any]]:
        if self._cache is None or self._row is None:
            return {}
        dtype, shape = self._row
        size = dtype.itemsize * int(np.prod(shape))
        try:
            values = self._cache.get(keys)
        except OutputError as error:
            self._disable_cache(error)
            return {}
        known = {key: np.frombuffer(value, dtype).reshape(shape) for key, value in values.items() if len(value) == size}
        self._cached += len(known)
        return known

    def _write_cache(self, new: dict[bytes, NDArray[Any]]) -> None:
        if self._cache is not None:
            try:
                self._cache.put([(key, raw.tobytes()) for key, raw in new.items()])
            except OutputError as error:
                self._disable_cache(error)

    def _disable_cache(self, error: OutputError) -> None:
        """Continue without the cache: what was paid for must not be lost because the disk is full."""
        self._cache = None
        self.notes.append(f"answers are no longer cached: {error}")
