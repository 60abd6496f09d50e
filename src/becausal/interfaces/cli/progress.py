"""Progress on stderr, and what Ctrl-C does.

The first Ctrl-C asks a search for its best result so far, the second ends it. Python handles signals in its main thread,
between two steps of its own; a method may be busy inside a library for minutes, or keep its search from being interrupted.
So another thread hears of signals as well, and ends the process within five seconds, whatever it is doing.
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from becausal.core.text import one_line
from becausal.interfaces.cli.console import complain, open_console

if TYPE_CHECKING:
    from becausal.api import Status

LOG_INTERVAL = 30.0  # seconds between two lines of a log, where stderr is not a terminal
PATIENCE = 3.0  # seconds in which a search should return its best result so far; then it is interrupted once more
LAST_SECONDS = 1.0  # after that, and after a second Ctrl-C; then the process ends
MESSAGE = b"becausal: stopped: interrupted; the search did not return in time, so its result is lost\n"

_is_writing = False  # a result is being written, which is waited for: files appear complete or not at all


def end_in_time() -> None:
    """Begin to listen for signals, in a process that is a command."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.detach(), warn_on_full_buffer=False)  # written to by Python as soon as a signal comes
    threading.Thread(target=_listen, args=(ours,), name="becausal-signals", daemon=True).start()


def _listen(line: socket.socket) -> None:
    _wait_for_signal(line)
    line.settimeout(PATIENCE)
    try:
        _wait_for_signal(line)  # a second one, which is raised at once where it can be
    except TimeoutError:
        while _is_writing:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(LAST_SECONDS)
    while _is_writing:
        time.sleep(0.05)
    os.write(2, MESSAGE)
    os._exit(130)


def _wait_for_signal(line: socket.socket) -> None:
    while line.recv(1)[0] not in (signal.SIGINT, signal.SIGTERM):
        pass


class InterruptHandler:
    """Turns the first signal into a request to stop, `is_stopping`; the second raises KeyboardInterrupt.

    message: what is printed at the first signal. raises_at_once: whether already the first one should raise
    KeyboardInterrupt, as things are; `has_raised` tells whether it did.
    """

    def __init__(self, message: str, *signals: int, raises_at_once: Callable[[], bool] = lambda: False) -> None:
        self.is_stopping = False
        self.has_raised = False
        self._message = message
        self._raises_at_once = raises_at_once
        self._signals = signals or (signal.SIGINT,)
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers there only
            self._previous = {number: signal.signal(number, self._handle) for number in self._signals}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_stopping:
            raise KeyboardInterrupt
        self.is_stopping = True
        complain(self._message, kind="stopping")
        if self._raises_at_once():
            self.has_raised = True
            raise KeyboardInterrupt


class ProgressBar:
    """A bar on stderr if that is a terminal; otherwise nothing, or a line every `LOG_INTERVAL` seconds.

    title: what stands before the bar. has_log: print lines where there is no terminal. has_time_left: estimate the time
    that is left.
    """

    def __init__(self, title: str = "", *, quiet: bool = False, has_log: bool = False, has_time_left: bool = False) -> None:
        self._has_log = has_log and not quiet
        self._logged = time.monotonic()
        self._bar: Any = None
        console = None if quiet else open_console(stderr=True)
        if console is None or not console.is_terminal:
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            *([TimeRemainingColumn()] if has_time_left else []),
            console=console,
            transient=True,
        )
        self._task = self._bar.add_task(one_line(title), total=None, text="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, total: int | None, text: str = "") -> None:
        """Show how far the work is; total: None while that is not known."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, text=text)
        elif self._has_log and time.monotonic() - self._logged >= LOG_INTERVAL:
            self._logged = time.monotonic()
            print(f"becausal: {text}", file=sys.stderr, flush=True)

    @contextmanager
    def paused(self, *, is_last: bool) -> Iterator[None]:
        """Hide the bar while something else is printed; it does not come back after the last time."""
        if self._bar is not None:
            self._bar.stop()
        yield
        if self._bar is not None and not is_last:
            self._bar.start()


class SearchProgress:
    """Shows the progress of searches, and turns the first Ctrl-C into an interrupt in a model call or after it.

    There the engine can still return its best result so far; a second Ctrl-C ends everything at once.
    """

    def __init__(self, bar: ProgressBar, interrupts: InterruptHandler, count: int) -> None:
        self._bar, self._interrupts, self._count = bar, interrupts, count
        self._done = 0

    @property
    def is_stopping(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._interrupts.is_stopping

    def __call__(self, status: "Status") -> None:
        """Show the state of a search after a batch of model calls."""
        from becausal.render.numbers import format_share

        if self.is_stopping and not self._interrupts.has_raised:
            self._interrupts.has_raised = True
            raise KeyboardInterrupt
        text = f"{status.stage:<11} {status.calls:>6,} calls, explanation {format_share(status.size)}"
        if self._count == 1:
            self._bar.update(status.calls, status.max_calls, text)
        else:
            text = f"{self._done}/{self._count} done; {one_line(Path(status.image).name)}: {text}"
            self._bar.update(self._done, self._count, text)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the bar while the result of an image is written and printed."""
        global _is_writing
        self._done += 1
        with self._bar.paused(is_last=self._done == self._count):
            _is_writing = True
            try:
                yield
            finally:
                _is_writing = False


@contextmanager
def watch_searches(*, title: str, quiet: bool, count: int = 1) -> Iterator[SearchProgress]:
    """Show the progress of searches; count: number of images, of which the bar shows how many are done."""
    global _is_writing
    message = "finishing with the best result so far; press Ctrl-C again to discard it"
    from becausal.engine.interrupts import is_calling_model

    with InterruptHandler(message, raises_at_once=is_calling_model) as interrupts, ProgressBar(title, quiet=quiet) as bar:
        yield SearchProgress(bar, interrupts, count)
    if interrupts.is_stopping:  # nothing is left to end: the command writes what was found, and ends by itself
        _is_writing = True
