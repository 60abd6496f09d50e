"""How fast a run goes, and how long it will still take."""

import time
from collections import deque
from collections.abc import Callable

WINDOW = 120.0  # seconds that count
MOST = 512  # events remembered


class Pace:
    """The rate over the last two minutes: old enough to be quantise_margin, young enough to follow a change.

    total: images in all; done: those dealt with before this start.
    """

    def __init__(self, total: int, done: int = 0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.done = total, done
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque([(clock(), done)], maxlen=MOST)

    def step(self) -> None:
        """Another image has been dealt with."""
        self.done += 1
        self.total = max(self.total, self.done)  # images that are tried again count again
        now = self._clock()
        self._marks.append((now, self.done))
        while len(self._marks) > 2 and now - self._marks[0][0] > WINDOW:
            self._marks.popleft()

    @property
    def rate(self) -> float:
        """Images per second; 0 while nothing is known."""
        (then, before), (now, after) = self._marks[0], self._marks[-1]
        return (after - before) / (now - then) if now > then else 0.0

    @property
    def seconds_left(self) -> float | None:
        """None while nothing is known."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None


def say_pace(pace: Pace) -> str:
    """As `1,234 of 10,000, 3.1 pictures/s, 47 min left`."""
    parts = [f"{pace.done:,} of {pace.total:,}"]
    if pace.rate > 0:
        rate = pace.rate
        parts.append(f"{rate:.1f} pictures/s" if rate >= 1 else f"{60 * rate:.1f} pictures/min")
    if pace.seconds_left is not None and pace.done < pace.total:
        parts.append(f"{say_duration(pace.seconds_left)} left")
    return ", ".join(parts)


def say_duration(seconds: float) -> str:
    """As 40 s, 12 min, 3 h 05 min, 2 d 4 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"
