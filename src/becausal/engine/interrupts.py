"""Ctrl-C deferred while a search computes: interrupted inside, a search would lose all it has found."""

import signal
import threading
from types import FrameType
from typing import Any


class _Lifted:
    """A part of the context in which an interrupt is raised at once; one that was noted before is raised first."""

    def __init__(self, deferred: "DeferredInterrupt") -> None:
        self._deferred = deferred

    def __enter__(self) -> None:
        self._deferred.raise_noted()
        self._deferred.is_lifted = True

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._deferred.is_lifted = False


class DeferredInterrupt:
    """A context in which the first Ctrl-C is only noted, and raised as KeyboardInterrupt when the context is left.

    A second one is raised at once. It works where Ctrl-C raises KeyboardInterrupt as Python has it by default, in the
    main thread; a handler of the user's own is left alone. is_final: there was a second one. `lifted` is for the parts
    that may be interrupted, such as a call of the model.
    """

    def __init__(self) -> None:
        self.is_final = False
        self._noted = False
        self.is_lifted = False
        self._replaced: Any = None
        self.lifted = _Lifted(self)

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
