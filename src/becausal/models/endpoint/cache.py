"""A cache of answers on disk, so that an interrupted run does not pay twice; and what was paid for.

One SQLite file that any number of processes may share. Each batch is committed when it arrives, so a process that is
killed loses only the current batch. No part of an image is stored: a key is a hash, a value the raw scores.

A model may change behind its address. So answers belong to an *epoch*, identified by the output for a few fixed probe
images, which every run evaluates again. If that output has changed, a new epoch begins and older answers are not used.
"""

import hashlib
import os
import secrets
import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.errors import OutputError
from becausal.core.files import path_inside
from becausal.core.text import format_cost
from becausal.models.endpoint.options import EndpointOptions

FILE = "answers.sqlite3"
TOLERANCE = 1e-3  # how far the probe output may differ between two runs, relative and absolute
_MAX_EPOCHS = 8  # per model
_TABLES = """
CREATE TABLE IF NOT EXISTS epochs (id INTEGER PRIMARY KEY, model BLOB, salt BLOB, kind TEXT, probe BLOB);
CREATE TABLE IF NOT EXISTS answers (id INTEGER PRIMARY KEY, key BLOB UNIQUE, value BLOB);
"""


def default_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return Path(base or Path.home() / ".cache") / "becausal"


@final
class AnswerCache:
    """The answers in one folder, at most `max_bytes`; the oldest are deleted first.

    Every method raises OutputError if the file cannot be used.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self._path = folder / FILE
        self._max_bytes = max_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            for path in folder.glob(f"{FILE}*"):  # the log too: SQLite follows links
                path_inside(folder, path.name)
            self._connection = sqlite3.connect(self._path, timeout=30, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from None
        self.close = weakref.finalize(self, self._connection.close)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.executescript(_TABLES)
        except sqlite3.Error as error:
            self.close()
            raise self._unusable(error) from None

    def find_epoch(self, model: bytes, probe: NDArray[Any]) -> bytes:
        """The salt for the keys of a model with this probe output; a new one if the output is new."""
        kind = f"{probe.dtype.str} {probe.shape}"
        with self._transaction() as connection:
            rows = connection.execute("SELECT salt, kind, probe FROM epochs WHERE model = ? ORDER BY id DESC", (model,))
            for salt, known_kind, known in rows.fetchall():
                if known_kind != kind:
                    continue
                before = np.frombuffer(known, probe.dtype).reshape(probe.shape)
                if np.allclose(before, probe, rtol=TOLERANCE, atol=TOLERANCE):
                    return bytes(salt)
            salt = secrets.token_bytes(16)
            values = (model, salt, kind, probe.tobytes())
            connection.execute("INSERT INTO epochs (model, salt, kind, probe) VALUES (?, ?, ?, ?)", values)
            connection.execute(
                "DELETE FROM epochs WHERE model = ?1 AND id NOT IN "
                "(SELECT id FROM epochs WHERE model = ?1 ORDER BY id DESC LIMIT ?2)",
                (model, _MAX_EPOCHS),
            )
            return salt

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values of the keys that are in the cache."""
        query = "SELECT key, value FROM answers WHERE key = ?"
        try:
            return dict(row for key in keys for row in self._connection.execute(query, (key,)))
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def put(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Store values by their keys, all of them or none; they are on disk when this returns."""
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO answers (key, value) VALUES (?, ?)", items)
            sizes = ("page_count", "freelist_count", "page_size")
            pages, free, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in sizes)
            if (pages - free) * size > self._max_bytes:
                connection.execute(
                    "DELETE FROM answers WHERE id <= (SELECT id FROM answers ORDER BY id LIMIT 1 OFFSET "
                    "(SELECT count(*) / 4 FROM answers))"
                )

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction: committed as a whole, or not at all."""
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def _unusable(self, error: Exception) -> OutputError:
        return OutputError(f"the cache {self._path} cannot be used ({error}): delete it, or use --endpoint cache=none")


@final
class Account:
    """Cached answers, and what was paid for. evaluated: by the server so far, `probes` of them when it was loaded."""

    def __init__(self, options: EndpointOptions) -> None:
        self.options, self.notes = options, list[str]()
        self._cache: AnswerCache | None = None
        self.salt = b""
        self.evaluated = self.probes = self.cached = 0

    def use_cache(self, model: str, probe: NDArray[Any]) -> None:
        """Start caching. A folder given by the user must be usable; a problem with the default one is only noted.

        model: what identifies it. probe: its answers to the probe images.
        """
        wanted = self.options.cache
        if wanted is None:
            return
        try:
            cache = AnswerCache(default_folder() if wanted == "default" else wanted, max_bytes=self.options.cache_mb * 2**20)
            self.salt = cache.find_epoch(hashlib.sha256(model.encode("utf-8", "replace")).digest(), probe)
            self._cache = cache
        except OutputError as error:
            if wanted != "default":
                raise
            self.notes.append(f"answers are not cached: {error}")

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The cached answers of these keys."""
        try:
            return {} if self._cache is None else self._cache.get(keys)
        except OutputError as error:
            self._stop_caching(error)
            return {}

    def keep(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Put answers into the cache, by their keys."""
        try:
            if self._cache is not None:
                self._cache.put(items)
        except OutputError as error:
            self._stop_caching(error)

    def _stop_caching(self, error: OutputError) -> None:
        """Go on without the cache: what was paid for must not be lost because the disk is full."""
        self._cache = None
        self.notes.append(f"answers are no longer cached: {error}")

    def report(self, unit: str, what: str) -> tuple[str, ...]:
        """The notes, and what was paid for. what: is counted, with a place for the number of probes."""
        price, notes = self.options.price, tuple(self.notes)
        cached = f", {self.cached:,} answered from the cache" if self.cached else ""
        usage = f"{self.evaluated:,} {what.format(self.probes)}{cached}"
        if price is None:
            return (*notes, usage) if self.cached else notes
        return *notes, f"{format_cost(self.evaluated * price)} spent so far at {price:g} per {unit}: {usage}"
