"""Counts of what the server has done, in the text format of Prometheus."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)  # upper bounds of the histogram

Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters and one histogram; any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[Labels] = Counter()
        self._explanations: Counter[Labels] = Counter()
        self._calls: Counter[Labels] = Counter()
        self._errors: Counter[Labels] = Counter()
        self._buckets = [0] * (len(SECONDS) + 1)  # the last one is for everything above
        self._seconds = 0.0

    def count_request(self, path: str, status: int) -> None:
        """A response has been sent."""
        with self._lock:
            self._requests[("path", path), ("status", str(status))] += 1

    def count_explanation(self, model: str, stopped_by: str, calls: int, seconds: float) -> None:
        """An explanation has been found."""
        with self._lock:
            self._explanations[("model", model), ("stopped_by", stopped_by)] += 1
            self._calls[(("model", model),)] += calls
            self._buckets[bisect_left(SECONDS, seconds)] += 1
            self._seconds += seconds

    def count_error(self, model: str, kind: str, calls: int) -> None:
        """A search has ended without an explanation."""
        with self._lock:
            self._errors[("model", model), ("kind", kind)] += 1
            self._calls[(("model", model),)] += calls

    def render(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """All values as text. gauges: by name, a description and the value."""
        lines: list[str] = []
        with self._lock:
            for name, meaning, counter in (
                ("becausal_requests_total", "Responses sent.", self._requests),
                ("becausal_explanations_total", "Explanations found.", self._explanations),
                ("becausal_model_calls_total", "Images evaluated by the model.", self._calls),
                ("becausal_errors_total", "Searches that ended without an explanation.", self._errors),
            ):
                lines += _family(name, meaning, "counter", ((name, labels, n) for labels, n in sorted(counter.items())))
            lines += self._histogram("becausal_explanation_seconds", "Seconds per explanation, without waiting.")
        for name, (meaning, value) in gauges.items():
            lines += _family(name, meaning, "gauge", [(name, (), value)])
        return "\n".join(lines) + "\n"

    def _histogram(self, name: str, meaning: str) -> list[str]:
        samples: list[tuple[str, Labels, float]] = []
        total = 0
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self._buckets, strict=True):
            total += count
            samples.append((f"{name}_bucket", (("le", bound),), total))
        samples += [(f"{name}_sum", (), self._seconds), (f"{name}_count", (), total)]
        return _family(name, meaning, "histogram", samples)


def _family(name: str, meaning: str, kind: str, samples: Iterable[tuple[str, Labels, float]]) -> list[str]:
    lines = [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
    for sample, labels, value in samples:
        inside = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
        lines.append(f"{sample}{{{inside}}} {value}" if inside else f"{sample} {value}")
    return lines


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
