"""Ctrl-C deferred while a search computes: interrupted inside, a search would lose all it has found."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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


class DeferredInterrupt:
    """A context in which the first Ctrl-C is only noted, and raised as KeyboardInterrupt when the context is left.

    A second one is raised at once. It works where Ctrl-C raises KeyboardInterrupt as Python has it by default, in the
    main thread; a handler of the user's own is left alone. is_final: there was a second one. hung_for: how many seconds the
    last call of the model had taken when it was interrupted, if that was so long that the model seems to hang.
    """

    def __init__(self) -> None:
        self.is_final = False
        self.hung_for: float | None = None
        self._noted = False
        self._is_lifted = False
        self._slowest = 0.0  # seconds of the longest call of the model that ended well
        self._replaced: Any = None

    def __enter__(self) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._replaced = signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._replaced is not None:
            signal.signal(signal.SIGINT, self._replaced)
            self._replaced = None
        if error is None:
            self._raise_noted()
        self._noted = False

    @contextmanager
    def lifted(self, *, can_hang: bool = True) -> Iterator[None]:
        """A part in which an interrupt is raised at once; one that was noted before is raised first.

        can_hang: whether it is a call of the model; else it is other code that may be interrupted.
        """
        global _calls_in_main
        self._raise_noted()
        in_main = threading.current_thread() is threading.main_thread()
        begun, ended_by = time.monotonic(), None
        _calls_in_main += in_main
        self._is_lifted = True
        try:
            yield
        except BaseException as error:
            ended_by = type(error)
            raise
        finally:
            self._is_lifted = False
            _calls_in_main -= in_main
            seconds = time.monotonic() - begun
            is_long = can_hang and seconds > max(HANGING_SECONDS, HANGING_RATIO * self._slowest)
            self.hung_for = seconds if ended_by is KeyboardInterrupt and is_long else None
            if can_hang and ended_by is None:
                self._slowest = max(self._slowest, seconds)

    def note(self) -> None:
        """Have KeyboardInterrupt raised at the next good moment."""
        self._noted = True

    def _raise_noted(self) -> None:
        if self._noted:
            self._noted = False
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._noted and not self._is_lifted:
            self.is_final = True
        if self._noted or self._is_lifted:
            raise KeyboardInterrupt
        self.note()
