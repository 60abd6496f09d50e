"""Sessions of the page: the image, the running job and the results of each browser tab; in memory, within limits."""

import pickle
import secrets
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from becausal.api.explanation import Explanation
from becausal.core.comparison import Comparison
from becausal.interfaces.web.images import Upload
from becausal.interfaces.web.job_queue import BackgroundJob
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.predictions import TopLabels
from becausal.render.pages import data_uri

T = TypeVar("T")

MAX_UNCLAIMED = 32  # uploads that no session has claimed yet
IMAGE_FOLDER = "shown"  # of the URLs of images on the page

Publish = Callable[[bytes, str], str]  # (content, media type) -> URL of an image on the page


def embed(content: bytes, media_type: str) -> str:
    """Publish an image as a data URI; for small ones, since gradio keeps the HTML of every page."""
    return data_uri(content, media_type)


class Packed(Generic[T]):
    """A value that is compressed in memory without loss; maps and masks take a fraction of their size."""

    def __init__(self, content: T) -> None:
        self._data = zlib.compress(pickle.dumps(content, pickle.HIGHEST_PROTOCOL), 1)

    def __len__(self) -> int:
        return len(self._data)

    def unpack(self) -> T:
        """The value; it never left the processes of this server, so unpickling it is safe."""
        content: T = pickle.loads(zlib.decompress(self._data))
        return content


@dataclass(frozen=True)
class StoredResult:
    """A result that can be downloaded with a token that cannot be guessed."""

    packed: Packed[Any]  # of an Explanation or a Comparison
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @staticmethod
    def store(content: Explanation | Comparison) -> "StoredResult":
        """Pack a result."""
        return StoredResult(Packed(content))

    @property
    def held_bytes(self) -> int:
        """Memory of the result."""
        return len(self.packed)

    @property
    def content(self) -> Explanation | Comparison:
        """The result, unpacked."""
        content: Explanation | Comparison = self.packed.unpack()
        return content


@dataclass(frozen=True)
class StoredImage:
    """An image on the page."""

    content: bytes
    media_type: str


@dataclass
class Session:
    """The state of one browser tab."""

    upload: Upload | None = None
    model: str = ""
    top_labels: TopLabels = ()
    side: int = 0  # longest side of the view
    requested_model: str = ""  # the model chosen last, while its prediction is still being computed
    latest_turn: int = 0  # the page numbers its choices of an image
    latest_choice: object = None  # identifies the last choice of an image or a model
    latest_pixel: object = None  # identifies the last choice of a pixel
    job: BackgroundJob[Any] | None = None
    explanation: StoredResult | None = None
    comparison: StoredResult | None = None
    images: dict[str, dict[str, StoredImage]] = field(default_factory=dict)  # by component, then by token
    last_used: float = 0.0
    is_closed: bool = False

    @property
    def held_bytes(self) -> int:
        """Memory of the image file, the results and the images shown."""
        job, upload = self.job, self.upload
        results = (self.explanation, self.comparison, job.result if job is not None else None)  # the last is not shown yet
        images = [image for group in list(self.images.values()) for image in list(group.values())]
        return (
            sum(result.held_bytes for result in results if result is not None)
            + sum(len(image.content) for image in images)
            + (len(upload.data) if upload is not None else 0)
        )

    @property
    def is_idle(self) -> bool:
        """Whether no search of this session runs or waits."""
        return self.job is None or self.job.ended.is_set()

    def publisher(self, component: str) -> Publish:
        """A function that keeps the images of a component of the page and returns their URLs; earlier ones are dropped."""
        group: dict[str, StoredImage] = {}
        self.images[component] = group

        def publish(content: bytes, media_type: str) -> str:
            token = secrets.token_urlsafe(24)
            group[token] = StoredImage(content, media_type)
            return f"{IMAGE_FOLDER}/{token}"

        return publish

    def clear(self) -> None:
        """Drop the results and stop the job, since they belong to another image or model."""
        self.stop()
        self.job = self.explanation = self.comparison = None
        self.images = {name: group for name, group in self.images.items() if name == "image"}

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

    @property
    def held_bytes(self) -> int:
        """Memory of all sessions and of the uploads that no session has claimed."""
        with self._lock:
            return self._count_bytes()

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
        self.clean_up()
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

    def find_image(self, token: str) -> StoredImage | None:
        """The image of a token, as long as its session shows it."""
        with self._lock:
            groups = [group for session in self._sessions.values() for group in list(session.images.values())]
        return next((group[token] for group in groups if token in group), None)

    def clean_up(self) -> None:
        """Drop what is too old, then the least recently used until the limits are met, those without a search first."""
        limits, now = self._limits, self._clock()
        with self._lock:
            for token in [t for t, (added, _) in self._uploads.items() if now - added > limits.closed_seconds]:
                del self._uploads[token]
            for session_id, session in list(self._sessions.items()):
                if now - session.last_used > (limits.closed_seconds if session.is_closed else limits.idle_seconds):
                    self._drop(session_id)
            held = self._count_bytes()
            while len(self._sessions) > 1 and (len(self._sessions) > limits.sessions or held > limits.held_bytes):
                candidates = list(self._sessions)[:-1]  # not the one in use now
                oldest = next((name for name in candidates if self._sessions[name].is_idle), candidates[0])
                held -= self._sessions[oldest].held_bytes
                self._drop(oldest)
            while held > limits.held_bytes and len(self._uploads) > 1:
                held -= len(self._uploads.popitem(last=False)[1][1].data)

    def _count_bytes(self) -> int:
        unclaimed = sum(len(upload.data) for _, upload in self._uploads.values())
        return unclaimed + sum(session.held_bytes for session in self._sessions.values())

    def _drop(self, session_id: str) -> None:
        session = self._sessions.pop(session_id)
        session.clear()
        session.upload, session.images = None, {}
