"""Progress of a run: rate and remaining time."""

import time
from collections import deque
from collections.abc import Callable, Mapping

WINDOW = 120.0  # seconds over which the rate is measured
MAX_MARKS = 512


class ProgressMeter:
    """Measures the rate over the last two minutes: long enough to be stable, short enough to follow a change.

    total: number of images. done: images finished in earlier starts.
    """

    def __init__(self, total: int, done: int = 0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.total, self.done = total, done
        self._clock = clock
        self._marks: deque[tuple[float, int]] = deque([(clock(), done)], maxlen=MAX_MARKS)

    def step(self) -> None:
        """Count another finished image."""
        self.done += 1
        self.total = max(self.total, self.done)  # images that are retried count again
        now = self._clock()
        self._marks.append((now, self.done))
        while len(self._marks) > 2 and now - self._marks[0][0] > WINDOW:
            self._marks.popleft()

    @property
    def rate(self) -> float:
        """Images per second; 0 if unknown."""
        (then, before), (now, after) = self._marks[0], self._marks[-1]
        return (after - before) / (now - then) if now > then else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimated remaining time; None if unknown."""
        return (self.total - self.done) / self.rate if self.rate > 0 else None


def format_progress(meter: ProgressMeter) -> str:
    """E.g. `1,234 of 10,000, 3.1 images/s, 47 min left`."""
    parts = [f"{meter.done:,} of {meter.total:,}"]
    if (rate := meter.rate) > 0:
        parts.append(f"{rate:.1f} images/s" if rate >= 1 else f"{60 * rate:.1f} images/min")
    if meter.seconds_left is not None and meter.done < meter.total:
        parts.append(f"{format_duration(meter.seconds_left)} left")
    return ", ".join(parts)


def describe_completion(counts: Mapping[str, int], limit: int | None = None) -> str:
    """E.g. `complete`, `1 of 8 images explained, limited to the first 1`, `3 of 8 images explained, 5 waiting`.

    counts: of all images of the run. limit: of the last start, None for none or if images within it are waiting.
    """
    if not counts["waiting"]:
        return "complete"
    text = f"{counts['done']:,} of {sum(counts.values()):,} images explained"
    return f"{text}, {counts['waiting']:,} waiting" if limit is None else f"{text}, limited to the first {limit:,}"


def format_duration(seconds: float) -> str:
    """E.g. 40 s, 12 min, 3 h 05 min, 2 d 4 h."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"
