"""Sessions of the page: the image, the running job and the results of each browser tab; in memory, within limits."""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from becausal.api.explanation import Explanation
from becausal.core.comparison import Comparison
from becausal.interfaces.web.images import Upload
from becausal.interfaces.web.job_queue import BackgroundJob
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.predictions import TopLabels

MAX_UNCLAIMED = 32  # uploads that no session has claimed yet


@dataclass(frozen=True)
class StoredResult:
    """A result that can be downloaded with a token that cannot be guessed."""

    content: Explanation | Comparison
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))


@dataclass
class Session:
    """The state of one browser tab."""

    upload: Upload | None = None
    model: str = ""
    top_labels: TopLabels = ()
    side: int = 0  # longest side of the view
    requested_model: str = ""  # the model chosen last, while its prediction is still being computed
    latest_choice: object = None  # identifies the last choice of an image or a model
    latest_pixel: object = None  # identifies the last choice of a pixel
    job: BackgroundJob[Any] | None = None
    explanation: StoredResult | None = None
    comparison: StoredResult | None = None
    last_used: float = 0.0
    is_closed: bool = False

    @property
    def held_bytes(self) -> int:
        """Memory of the image file."""
        return len(self.upload.data) if self.upload is not None else 0

    def clear(self) -> None:
        """Drop the results and stop the job, since they belong to another image or model."""
        self.stop()
        self.job = self.explanation = self.comparison = None

    def stop(self) -> None:
        """Stop the running job, if there is one."""
        if self.job is not None:
            self.job.stop()


class Sessions:
    """All sessions, least recently used first; those that are too old or exceed the limits are dropped."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._uploads: OrderedDict[str, tuple[float, Upload]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: str) -> Session:
        """The session of this id; a new one if it is unknown or was dropped."""
        with self._lock:
            session = self._sessions.setdefault(session_id, Session())
            self._sessions.move_to_end(session_id)
            session.last_used, session.is_closed = self._clock(), False
        self.clean_up()
        return session

    def close(self, session_id: str) -> None:
        """The tab was closed: stop its job, and drop the session soon unless the tab comes back."""
        with self._lock:
            session = self._sessions.get(session_id)
        if session is not None:
            session.is_closed = True
            session.stop()

    def add_upload(self, upload: Upload) -> str:
        """Keep an upload until a session claims it with the returned token."""
        token = secrets.token_urlsafe(24)
        with self._lock:
            self._uploads[token] = (self._clock(), upload)
            while len(self._uploads) > MAX_UNCLAIMED:
                self._uploads.popitem(last=False)
        return token

    def claim_upload(self, token: str) -> Upload | None:
        """The upload of a token, which can be claimed once."""
        with self._lock:
            return self._uploads.pop(token, (0.0, None))[1]

    def find_result(self, token: str) -> StoredResult | None:
        """The result of a token, as long as its session has it."""
        with self._lock:
            for session in self._sessions.values():
                for result in (session.explanation, session.comparison):
                    if result is not None and secrets.compare_digest(result.token.encode(), token.encode()):
                        return result
        return None

    def clean_up(self) -> None:
        """Drop what is too old, then the least recently used sessions until the limits are met."""
        limits, now = self._limits, self._clock()
        with self._lock:
            for token in [t for t, (added, _) in self._uploads.items() if now - added > limits.closed_seconds]:
                del self._uploads[token]
            for session_id, session in list(self._sessions.items()):
                if now - session.last_used > (limits.closed_seconds if session.is_closed else limits.idle_seconds):
                    self._drop(session_id)
            held = sum(session.held_bytes for session in self._sessions.values())
            while len(self._sessions) > 1 and (len(self._sessions) > limits.sessions or held > limits.held_bytes):
                oldest = next(iter(self._sessions))
                held -= self._sessions[oldest].held_bytes
                self._drop(oldest)

    def _drop(self, session_id: str) -> None:
        self._sessions.pop(session_id).stop()
