"""Watching an explanation come about: a bar on the terminal, and Ctrl-C as a wish to stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from becausal.interfaces.cli.console import complain, one_line, open_console

if TYPE_CHECKING:
    from rich.progress import Progress

    from becausal.api import Status


class Watch(AbstractContextManager["Watch"]):
    """Shows how far things are, and turns the first Ctrl-C into an interrupt between two batches.

    Between batches the engine can still round off its best answer so far; a second Ctrl-C ends everything at once.
    count: of images; with more than one the bar says how many are done.
    """

    def __init__(self, *, title: str, quiet: bool, count: int = 1) -> None:
        self.is_stopping = False
        self._told = False
        self._title = title
        self._count = count
        self._done = 0
        self._bar = None if quiet else _make_bar()
        self._task: Any = None
        self._before: Any = None

    def __enter__(self) -> "Watch":
        if threading.current_thread() is threading.main_thread():  # the only one that may handle signals
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        if self._bar is not None:
            self._task = self._bar.add_task(one_line(self._title), total=None, said="")
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def __call__(self, status: "Status") -> None:
        """Take note of a batch that was asked."""
        if self.is_stopping and not self._told:
            self._told = True
            raise KeyboardInterrupt
        if self._bar is not None:
            from becausal.render.wording import say_share

            said = f"{status.stage:<8} {status.calls:>6,} calls, explanation {say_share(status.size)}"
            if self._count == 1:
                self._bar.update(self._task, completed=status.calls, total=status.max_calls, said=said)
                return
            said = f"{self._done}/{self._count} done; {one_line(Path(status.image).name)}: {said}"
            self._bar.update(self._task, completed=self._done, total=self._count, said=said)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The bar out of the way while an image that is done is told of."""
        self._done += 1
        if self._bar is not None:
            self._bar.stop()
        yield
        if self._bar is not None and self._done < self._count:
            self._bar.start()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.is_stopping:
            raise KeyboardInterrupt
        self.is_stopping = True
        complain("rounding off the best so far; Ctrl-C again to drop it", kind="stopping")


def _make_bar() -> "Progress | None":
    """A bar on stderr; None where that is no terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = open_console(stderr=True)
    if not console.is_terminal:
        return None
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[said]}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
