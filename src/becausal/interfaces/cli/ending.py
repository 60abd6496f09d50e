"""Ctrl-C and SIGTERM end a command within five seconds, whatever it is doing.

Python handles signals in its main thread, between two steps of its own. A method may be busy inside a library for minutes,
or keep its search from being interrupted. So another thread hears of signals as well, and ends the process in time.
"""

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

PATIENCE = 3.0  # seconds in which a search should return its best result so far; then it is interrupted once more
LAST_SECONDS = 1.0  # after that, and after a second Ctrl-C; then the process ends
MESSAGE = b"becausal: stopped: interrupted; the search did not return in time, so its result is lost\n"

_is_writing = False


@contextmanager
def writing() -> Iterator[None]:
    """While a result is being written it is waited for: files appear complete or not at all."""
    global _is_writing
    _is_writing = True
    try:
        yield
    finally:
        _is_writing = False


def search_has_returned() -> None:
    """There is nothing left to end: the command writes what was found, and ends by itself."""
    global _is_writing
    _is_writing = True


def end_in_time() -> None:
    """Begin to listen for signals, in a process that is a command."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.detach(), warn_on_full_buffer=False)  # written to by Python as soon as a signal comes
    Thread(target=_listen, args=(ours,), name="becausal-signals", daemon=True).start()


def end_by_itself() -> None:
    """Stop listening, for a command that ends in time by itself."""
    signal.set_wakeup_fd(-1)


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
