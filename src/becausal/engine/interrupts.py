"""Ctrl-C deferred while a search computes: interrupted inside, a search would lose all it has found."""

import signal
import threading
import time
from types import FrameType
from typing import Any

HANGING_SECONDS = 1.0  # a call that takes less does not hang
HANGING_RATIO = 5  # nor does one that takes less than this many times the slowest so far

_calls_in_main = 0  # of models, from engines in the main thread


def is_calling_model() -> bool:
    """Whether the main thread is inside a call of a model, or of a watcher: KeyboardInterrupt may be raised there.

    For handlers of Ctrl-C that otherwise only take note: a model that hangs ends in no other way.
    """
    return _calls_in_main > 0


class _Lifted:
    """A part of the context in which an interrupt is raised at once; one that was noted before is raised first.

    can_hang: whether it is a call of the model. slowest: seconds of the longest part that ended well.
    """

    def __init__(self, deferred: "DeferredInterrupt", *, can_hang: bool) -> None:
        self._deferred = deferred
        self._can_hang = can_hang
        self._begun = 0.0
        self._is_in_main = False
        self.slowest = 0.0

    def __enter__(self) -> None:
        global _calls_in_main
        self._deferred.raise_noted()
        self._begun = time.monotonic()
        self._is_in_main = threading.current_thread() is threading.main_thread()
        _calls_in_main += self._is_in_main
        self._deferred.is_lifted = True

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        global _calls_in_main
        self._deferred.is_lifted = False
        _calls_in_main -= self._is_in_main
        seconds = time.monotonic() - self._begun
        if error is None:
            self.slowest = max(self.slowest, seconds)
        is_long = self._can_hang and seconds > max(HANGING_SECONDS, HANGING_RATIO * self.slowest)
        self._deferred.hung_for = seconds if isinstance(error, KeyboardInterrupt) and is_long else None


class DeferredInterrupt:
    """A context in which the first Ctrl-C is only noted, and raised as KeyboardInterrupt when the context is left.

    A second one is raised at once. It works where Ctrl-C raises KeyboardInterrupt as Python has it by default, in the
    main thread; a handler of the user's own is left alone. is_final: there was a second one. `lifted` is for calls of the
    model, which may be interrupted, and `lifted_elsewhere` for other code that may. hung_for: how many seconds the last
    call of the model had taken when it was interrupted, if that was so long that the model seems to hang.
    """

    def __init__(self) -> None:
        self.is_final = False
        self._noted = False
        self.is_lifted = False
        self.hung_for: float | None = None
        self._replaced: Any = None
        self.lifted = _Lifted(self, can_hang=True)
        self.lifted_elsewhere = _Lifted(self, can_hang=False)

    def __enter__(self) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._replaced = signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._replaced is not None:
            signal.signal(signal.SIGINT, self._replaced)
            self._replaced = None
        if error is None:
            self.raise_noted()
        self._noted = False

    def note(self) -> None:
        """Have KeyboardInterrupt raised at the next good moment."""
        self._noted = True

    def raise_noted(self) -> None:
        """Raise the interrupt that was noted, if any."""
        if self._noted:
            self._noted = False
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._noted and not self.is_lifted:
            self.is_final = True
        if self._noted or self.is_lifted:
            raise KeyboardInterrupt
        self.note()
