"""What is remembered of each page: its image, its search, what was found. In memory only, and only so much."""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from becausal.api.explanation import Explanation
from becausal.core.comparison import Comparison
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.pictures import Upload
from becausal.interfaces.web.work import Job

Top = tuple[tuple[int, str, float], ...]  # (label's number, name, confidence), best first

UNCLAIMED = 32  # uploads that no page has taken yet


@dataclass(frozen=True)
class Found:
    """An answer that may be fetched under a token nobody can guess."""

    answer: Explanation | Comparison
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))


@dataclass
class Session:
    """One page in one browser."""

    upload: Upload | None = None
    model: str = ""
    top: Top = ()
    side: int = 0  # the view's longest
    wanted: str = ""  # the model that was chosen last, while its answer is still to come
    choice: object = None  # the last one of an image or a model
    look: object = None  # the last one at a pixel
    job: Job[Any] | None = None
    found: Found | None = None
    compared: Found | None = None
    used: float = 0.0
    is_gone: bool = False

    @property
    def held(self) -> int:
        return len(self.upload.data) if self.upload is not None else 0

    def forget(self) -> None:
        """Drop the answers, which belong to another image or model now, and stop what still looks for one."""
        self.stop()
        self.job = self.found = self.compared = None

    def stop(self) -> None:
        if self.job is not None:
            self.job.stop()


class Sessions:
    """All pages, the least recently used first; what is too much, or unused for too long, is dropped."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._all: OrderedDict[str, Session] = OrderedDict()
        self._uploads: OrderedDict[str, tuple[float, Upload]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._all)

    def of(self, name: str) -> Session:
        """The session of a page; a new one where it is not known, or no longer."""
        with self._lock:
            session = self._all.setdefault(name, Session())
            self._all.move_to_end(name)
            session.used, session.is_gone = self._clock(), False
        self.tidy()
        return session

    def leave(self, name: str) -> None:
        """The page was closed: stop its search, and forget it soon unless it comes back."""
        with self._lock:
            session = self._all.get(name)
        if session is not None:
            session.is_gone = True
            session.stop()

    def put(self, upload: Upload) -> str:
        """Keep what was uploaded until its page takes it; the token is the only way to it."""
        token = secrets.token_urlsafe(24)
        with self._lock:
            self._uploads[token] = (self._clock(), upload)
            while len(self._uploads) > UNCLAIMED:
                self._uploads.popitem(last=False)
        return token

    def take(self, token: str) -> Upload | None:
        """What was uploaded under a token, once."""
        with self._lock:
            return self._uploads.pop(token, (0.0, None))[1]

    def find(self, token: str) -> Found | None:
        """The answer of a token, as long as its page has it."""
        with self._lock:
            for session in self._all.values():
                for found in (session.found, session.compared):
                    if found is not None and secrets.compare_digest(found.token.encode(), token.encode()):
                        return found
        return None

    def tidy(self) -> None:
        """Forget what is too old, then the least recently used of what is too much."""
        limits, now = self._limits, self._clock()
        with self._lock:
            for token in [t for t, (put, _) in self._uploads.items() if now - put > limits.gone]:
                del self._uploads[token]
            for name, session in list(self._all.items()):
                if now - session.used > (limits.gone if session.is_gone else limits.idle):
                    self._drop(name)
            held = sum(session.held for session in self._all.values())
            while len(self._all) > 1 and (len(self._all) > limits.sessions or held > limits.held_bytes):
                held -= next(iter(self._all.values())).held
                self._drop(next(iter(self._all)))

    def _drop(self, name: str) -> None:
        self._all.pop(name).stop()
