"""Counts of what the server has done, for Prometheus."""

from collections.abc import Mapping
from typing import Any

SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)  # upper bounds of the histogram


class Metrics:
    """Counters, one histogram and gauges; any thread may count."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

        disable_created_metrics()
        self._registry: Any = CollectorRegistry()
        mine: Any = {"registry": self._registry}
        self._requests = Counter("becausal_requests", "Responses sent.", ("path", "status"), **mine)
        self._explanations = Counter("becausal_explanations", "Explanations found.", ("model", "stopped_by"), **mine)
        self._calls = Counter("becausal_model_calls", "Images evaluated by the model.", ("model",), **mine)
        self._errors = Counter("becausal_errors", "Searches that ended without an explanation.", ("model", "kind"), **mine)
        self._seconds = Histogram(
            "becausal_explanation_seconds", "Seconds per explanation, without waiting.", buckets=SECONDS, **mine
        )
        self._gauges: dict[str, Any] = {}

    def count_request(self, path: str, status: int) -> None:
        """A response has been sent."""
        self._requests.labels(path, str(status)).inc()

    def count_explanation(self, model: str, stopped_by: str, calls: int, seconds: float) -> None:
        """An explanation has been found."""
        self._explanations.labels(model, stopped_by).inc()
        self._calls.labels(model).inc(calls)
        self._seconds.observe(seconds)

    def count_error(self, model: str, kind: str, calls: int) -> None:
        """A search has ended without an explanation."""
        self._errors.labels(model, kind).inc()
        self._calls.labels(model).inc(calls)

    def render(self, gauges: Mapping[str, tuple[str, float]]) -> tuple[bytes, str]:
        """All values as text, and its media type. gauges: by name, a description and the value."""
        from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest

        for name, (meaning, value) in gauges.items():
            if name not in self._gauges:
                self._gauges[name] = Gauge(name, meaning, registry=self._registry)
            self._gauges[name].set(value)
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
