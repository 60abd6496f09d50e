"""Asking an endpoint about batches: what it takes at once, what is known already, what it cost."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.errors import AnswerError, OutputError
from becausal.models.endpoint.cache import AnswerCache
from becausal.models.endpoint.metadata import Entry, pick_output
from becausal.models.endpoint.options import Address
from becausal.models.endpoint.transport import Transport, say_status
from becausal.models.endpoint.wire import Tensor, decode, encode

_TOO_MANY = (400, 413, 422, 500)  # what servers say to a batch that is too large, among other things


@dataclass
class Tally:
    """Images so far: asked of the endpoint and answered, those among them to get to know it, and known already."""

    asked: int = 0
    probes: int = 0
    kept: int = 0

    def say(self, price: float | None) -> str | None:
        """What was paid and what was not, in words; None where there is nothing to say."""
        spared = f", {self.kept:,} known from the cache" if self.kept else ""
        pictures = f"{self.asked:,} images asked of the endpoint ({self.probes} to get to know it){spared}"
        if price is None:
            return pictures if self.kept else None
        cost = self.asked * price
        return f"{cost:,.{2 if cost >= 0.1 else 4}f} spent so far at {price:g} an image: {pictures}"


@final
class Caller:
    """The raw answers of one endpoint: kept ones where there are any, else asked in batches that the server takes.

    limit: most images at once; it is halved whenever the server refuses. output: which one to read, None: the first
    answer decides. A question that was answered in this process already is asked anew: whoever repeats a question wants
    to know whether the answer stands.
    """

    def __init__(
        self, address: Address, transport: Transport, entry: Entry, *, output: str | None, binary: bool, limit: int
    ) -> None:
        self.tally = Tally()
        self.output = output
        self.notes: list[str] = []
        self._address = address
        self._transport = transport
        self._entry = entry
        self._binary = binary
        self._limit = limit
        self._version: str | None = None
        self._row: tuple[np.dtype[Any], tuple[int, ...]] | None = None  # type and shape of one image's answer
        self._cache: AnswerCache | None = None
        self._salt = b""
        self._heard: set[bytes] = set()

    def probe(self, batch: NDArray[Any]) -> NDArray[Any]:
        """The raw answers to a few images, past the cache."""
        raw = np.concatenate(list(self._ask_all(batch)))
        self.tally.probes = self.tally.asked
        return raw

    def remember(self, cache: AnswerCache, model: bytes, probe: NDArray[Any]) -> None:
        """Keep answers from now on, and use kept ones of a model that answers the probe like this one."""
        self._salt = cache.find_epoch(model, probe)
        self._cache = cache

    def __call__(self, batch: NDArray[Any]) -> NDArray[Any]:
        """The raw answers to a batch in the model's own numbers and layout, one row per image."""
        keys = [hashlib.sha256(self._salt + row.tobytes()).digest() for row in batch]
        found = self._look_up([key for key in keys if key not in self._heard])
        missing = {key: row for row, key in enumerate(keys) if key not in found}  # the same image twice goes out once
        todo = list(missing)
        for raw in self._ask_all(batch[list(missing.values())]):
            new = dict(zip(todo, raw, strict=False))
            todo = todo[len(raw) :]
            self._keep(new)
            found |= new
        self._heard.update(keys)
        return np.stack([found[key] for key in keys])

    def _ask_all(self, batch: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """The answers to any number of images, in pieces, as they come."""
        start = 0
        while start < len(batch):
            part = batch[start : start + self._limit]
            raw = self._ask(part)
            if raw is None:
                self._limit = len(part) // 2
                continue
            yield raw
            start += len(part)

    def _ask(self, batch: NDArray[Any]) -> NDArray[Any] | None:
        """The answers to one request; None where the server may take fewer images at once."""
        entry, rows, url = self._entry, len(batch), self._address.url
        if entry.batch is not None and rows < entry.batch:
            batch = np.concatenate([batch, np.repeat(batch[-1:], entry.batch - rows, axis=0)])
        body, headers = encode(entry.tensor, batch[0] if entry.is_single else batch, self.output, binary=self._binary)
        reply = self._transport.request("POST", f"{self._address.model}/infer", body, headers)
        if reply.status in _TOO_MANY and rows > 1 and entry.batch is None:
            return None
        if reply.status != 200:
            shape = "x".join(str(side) for side in batch.shape)
            raise AnswerError(f"{url} refused images of shape {shape}: {say_status(reply)}")
        answered = decode(reply, url)
        self._check_version(answered.version)
        raw = answered.outputs.get(self._choose(answered.outputs))
        if raw is None:
            raise AnswerError(f"{url} gave no output {self.output!r}, but {', '.join(answered.outputs)}")
        self._check(raw := raw[None] if entry.is_single else raw, len(batch))
        self.tally.asked += len(batch)
        return raw[:rows]

    def _choose(self, outputs: dict[str, NDArray[Any]]) -> str:
        if self.output is None:
            said = [Tensor(name, "FP32" if raw.dtype.kind == "f" else "INT64", raw.shape) for name, raw in outputs.items()]
            self.output, notes = pick_output(tuple(said), None)
            self.notes += notes
        return self.output or ""

    def _check(self, raw: NDArray[Any], rows: int) -> None:
        kind = (raw.dtype, raw.shape[1:])
        if raw.ndim == 0 or len(raw) != rows or kind != (self._row or kind):
            expected = f"({rows}, …)" if self._row is None else f"{(rows, *self._row[1])} {self._row[0]}"
            raise AnswerError(
                f"{self._address.url} gave an output {raw.shape} {raw.dtype} for {rows} images; expected {expected}"
            )
        if raw.dtype.kind == "f" and not np.isfinite(raw).all():
            raise AnswerError(f"{self._address.url} gave scores that are NaN or infinite")
        self._row = kind

    def _check_version(self, version: str | None) -> None:
        if version is not None and version != (self._version or version):
            raise AnswerError(
                f"{self._address.url} answered as version {self._version} and now as {version}: name one in the address, "
                f"as …/versions/{version}"
            )
        self._version = version or self._version

    def _look_up(self, keys: Sequence[bytes]) -> dict[bytes, NDArray[Any]]:
        if self._cache is None or self._row is None:
            return {}
        dtype, shape = self._row
        size = dtype.itemsize * int(np.prod(shape))
        try:
            values = self._cache.get(keys)
        except OutputError as error:
            self._go_without(error)
            return {}
        known = {key: np.frombuffer(value, dtype).reshape(shape) for key, value in values.items() if len(value) == size}
        self.tally.kept += len(known)
        return known

    def _keep(self, new: dict[bytes, NDArray[Any]]) -> None:
        if self._cache is not None:
            try:
                self._cache.put([(key, answer.tobytes()) for key, answer in new.items()])
            except OutputError as error:
                self._go_without(error)

    def _go_without(self, error: OutputError) -> None:
        """A full disk is no reason to lose what was paid for."""
        self._cache = None
        self.notes.append(f"answers are no longer kept: {error}")
