"""Answers kept on disk, so that an interrupted run does not pay twice.

One SQLite file that any number of processes may share; each batch is committed as it comes, so a process that is killed
loses only the batch under way. Nothing of an image is kept: a key is a hash, a value the raw scores.

A model may change behind its address. So answers belong to an *epoch*: the answers to a few fixed images, which are
asked anew in every run. Where they have moved, an epoch begins and older answers are not used.
"""

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

FILE = "answers.sqlite3"
SAME = 1e-3  # how far an answer may move between two runs, relative and absolute
_EPOCHS = 8  # kept of one model
_BATCH = 500  # keys in one SQL statement
_TABLES = """
CREATE TABLE IF NOT EXISTS epochs (id INTEGER PRIMARY KEY, model BLOB, salt BLOB, kind TEXT, probe BLOB);
CREATE TABLE IF NOT EXISTS answers (id INTEGER PRIMARY KEY, key BLOB UNIQUE, value BLOB);
"""


def own_folder() -> Path:
    """Where this user's caches lie."""
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("LOCALAPPDATA") if os.name == "nt" else None)
    return Path(base or Path.home() / ".cache") / "becausal"


@final
class AnswerCache:
    """The answers in one folder, at most `max_bytes` of them; the oldest go first.

    Every method raises OutputError where the file cannot be used.
    """

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        self._path = folder / FILE
        self._max_bytes = max_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._base = sqlite3.connect(self._path, timeout=30, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as error:
            raise self._unusable(error) from None
        self.close = weakref.finalize(self, self._base.close)
        try:
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = NORMAL")
            self._base.executescript(_TABLES)
        except sqlite3.Error as error:
            self.close()
            raise self._unusable(error) from None

    def find_epoch(self, model: bytes, probe: NDArray[Any]) -> bytes:
        """The salt of the keys of a model that answers the probe like this; a new one where it never did."""
        kind = f"{probe.dtype.str} {probe.shape}"
        with self._writing() as base:
            rows = base.execute("SELECT salt, kind, probe FROM epochs WHERE model = ? ORDER BY id DESC", (model,))
            for salt, known_kind, known in rows.fetchall():
                if known_kind == kind and _is_same(np.frombuffer(known, probe.dtype).reshape(probe.shape), probe):
                    return bytes(salt)
            salt = secrets.token_bytes(16)
            values = (model, salt, kind, probe.tobytes())
            base.execute("INSERT INTO epochs (model, salt, kind, probe) VALUES (?, ?, ?, ?)", values)
            base.execute(
                "DELETE FROM epochs WHERE model = ?1 AND id NOT IN "
                "(SELECT id FROM epochs WHERE model = ?1 ORDER BY id DESC LIMIT ?2)",
                (model, _EPOCHS),
            )
            return salt

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that have one."""
        found: dict[bytes, bytes] = {}
        try:
            for start in range(0, len(keys), _BATCH):
                part = keys[start : start + _BATCH]
                marks = ",".join("?" * len(part))
                found.update(self._base.execute(f"SELECT key, value FROM answers WHERE key IN ({marks})", part).fetchall())
        except sqlite3.Error as error:
            raise self._unusable(error) from None
        return found

    def put(self, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Keep values by their keys, all of them or none; they are safe when this returns."""
        with self._writing() as base:
            base.executemany("INSERT OR REPLACE INTO answers (key, value) VALUES (?, ?)", items)
            if self._used() > self._max_bytes:
                base.execute(
                    "DELETE FROM answers WHERE id <= (SELECT id FROM answers ORDER BY id LIMIT 1 OFFSET "
                    "(SELECT count(*) / 4 FROM answers))"
                )

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it is kept, or nothing."""
        try:
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield self._base
            except BaseException:
                self._base.execute("ROLLBACK")
                raise
            self._base.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._unusable(error) from None

    def _used(self) -> int:
        pages, free, size = (
            self._base.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def _unusable(self, error: Exception) -> OutputError:
        return OutputError(f"the cache {self._path} cannot be used ({error}): remove it, or give --endpoint cache=none")


def _is_same(before: NDArray[Any], now: NDArray[Any]) -> bool:
    return bool(np.allclose(before, now, rtol=SAME, atol=SAME))
