"""Progress on stderr, and Ctrl-C as a request to stop."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from becausal.core.text import one_line
from becausal.interfaces.cli.console import complain, open_console
from becausal.interfaces.cli.ending import search_has_returned, writing

if TYPE_CHECKING:
    from becausal.api import Status
    from becausal.batch.run import ProgressMeter, TaskEvent

LOG_INTERVAL = 30.0  # seconds between two lines of a log, where stderr is not a terminal


class InterruptHandler(AbstractContextManager["InterruptHandler"]):
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

    def __enter__(self) -> "InterruptHandler":
        if threading.current_thread() is threading.main_thread():  # Python allows handlers there only
            self._previous = {number: signal.signal(number, self._handle) for number in self._signals}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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


class ProgressBar(AbstractContextManager["ProgressBar"]):
    """A bar on stderr if that is a terminal; otherwise nothing, or a line every `LOG_INTERVAL` seconds.

    title: what stands before the bar. has_log: print lines where there is no terminal. has_time_left: estimate the time
    that is left.
    """

    def __init__(self, title: str = "", *, quiet: bool = False, has_log: bool = False, has_time_left: bool = False) -> None:
        self._has_log = has_log and not quiet
        self._logged = time.monotonic()
        self._bar = None if quiet else _make_bar(has_time_left)
        if self._bar is not None:
            self._task = self._bar.add_task(one_line(title), total=None, text="")

    def __enter__(self) -> "ProgressBar":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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


def _make_bar(has_time_left: bool) -> Any:
    """A bar of the rich library on stderr; None if that is not a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = open_console(stderr=True)
    if not console.is_terminal:
        return None
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text]}", markup=False),
        TimeElapsedColumn(),
        *([TimeRemainingColumn()] if has_time_left else []),
        console=console,
        transient=True,
    )


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
        from becausal.render.wording import format_share

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
        self._done += 1
        with self._bar.paused(is_last=self._done == self._count), writing():
            yield


@contextmanager
def watch_searches(*, title: str, quiet: bool, count: int = 1) -> Iterator[SearchProgress]:
    """Show the progress of searches; count: number of images, of which the bar shows how many are done."""
    message = "finishing with the best result so far; press Ctrl-C again to discard it"
    from becausal.engine.interrupts import is_calling_model

    with InterruptHandler(message, raises_at_once=is_calling_model) as interrupts, ProgressBar(title, quiet=quiet) as bar:
        yield SearchProgress(bar, interrupts, count)
    if interrupts.is_stopping:
        search_has_returned()


class BatchProgress:
    """Shows the progress of a run of `becausal batch`."""

    def __init__(self, bar: ProgressBar, meter: "ProgressMeter") -> None:
        self._bar, self._meter = bar, meter
        self._failures = 0
        bar.update(meter.done, meter.total, "starting")

    def __call__(self, event: "TaskEvent") -> None:
        """Count an image that was explained, or that failed."""
        from becausal.batch.run import format_progress

        self._meter.step()
        self._failures += event.error is not None
        failed = f", {self._failures:,} failed" if self._failures else ""
        self._bar.update(self._meter.done, self._meter.total, format_progress(self._meter) + failed)
