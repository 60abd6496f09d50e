"""One running server: its models, its queue and its counts, which the page and the API share, and how both answer."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from becausal.core.contracts import Classifier
from becausal.core.errors import NetworkError
from becausal.core.text import one_line
from becausal.interfaces.serve.guard import RELEASE, RequestRejected, name_route
from becausal.interfaces.serve.images import Upload, UploadChecks
from becausal.interfaces.serve.job_queue import JobQueue
from becausal.interfaces.serve.jobs import BackgroundJob, JobProcesses, ModelSource, return_memory
from becausal.interfaces.serve.limits import Connections, Limits, group_address
from becausal.interfaces.serve.tasks import Task, kind_of

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

CLEAN_UP_SECONDS = 20.0
STATUSES = {"input": 400, "model": 500, "stopped": 503, "internal": 500}
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)  # seconds, upper bounds of the histogram


class Service:
    """What all routes use; the arguments are those of `make_app`."""

    def __init__(
        self, models: Mapping[str, Classifier], limits: Limits, sources: Mapping[str, ModelSource] | None = None
    ) -> None:
        self.models = models
        self.limits = limits
        self.connections = Connections(limits)
        self.queue = JobQueue(limits, JobProcesses(models, sources) if sources is not None else None)
        self.metrics = Metrics(self.queue)
        self._checks = UploadChecks(limits)

    @asynccontextmanager
    async def run(self, _: Any) -> AsyncIterator[None]:
        """Clean up from time to time while the server runs, and stop all jobs at its end."""

        async def clean_up() -> None:
            while True:
                await asyncio.sleep(CLEAN_UP_SECONDS)
                self.queue.clean_up()
                await asyncio.to_thread(return_memory)

        cleaning = asyncio.create_task(clean_up())
        self.queue.start()
        yield
        cleaning.cancel()
        self._checks.close()
        await asyncio.to_thread(self.queue.close)

    def find_model(self, name: str | None) -> Classifier:
        """A model by its name; the default one for None. Raises RequestRejected."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise RequestRejected(404, f"there is no model {one_line(name, 60)!r}: it is one of {', '.join(self.models)}")
        return self.models[name]

    async def check_upload(self, request: "HttpRequest", upload: Upload) -> None:
        """Decode an image in a process of its own. Raises BecausalError, and RequestRejected at the end of the server."""
        await self._checks.check(upload, group_address(request.client.host if request.client else ""))
        request.scope[RELEASE]()
        if self.connections.is_closing:
            raise RequestRejected(503, "the server is shutting down")

    def submit(self, task: Task, model: str | None, *, is_watched: bool = False) -> BackgroundJob:
        """A job for a task, which metrics count. Raises QueueFull."""
        count = partial(self.metrics.count_job, model if model is not None else next(iter(self.models)))
        return self.queue.submit(task, count, size=len(task.upload.data), is_watched=is_watched)


class Metrics:
    """Counts of what the server has done, for Prometheus; any thread may count."""

    def __init__(self, queue: JobQueue) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

        disable_created_metrics()
        self._registry: Any = CollectorRegistry()
        mine: Any = {"registry": self._registry}
        self._requests = Counter("becausal_requests", "Responses sent.", ("path", "status"), **mine)
        self._explanations = Counter("becausal_explanations", "Explanations found.", ("model", "stopped_by"), **mine)
        self._calls = Counter("becausal_model_calls", "Images evaluated by the model.", ("model",), **mine)
        self._errors = Counter("becausal_errors", "Searches that ended without an explanation.", ("model", "kind"), **mine)
        self._seconds = Histogram(
            "becausal_explanation_seconds", "Seconds per explanation, without waiting.", buckets=BUCKETS, **mine
        )
        for name, meaning, count in (
            ("becausal_queue_length", "Jobs that wait.", lambda: queue.lengths[0]),
            ("becausal_running_jobs", "Jobs that run.", lambda: queue.lengths[1]),
            ("becausal_kept_jobs", "Jobs that clients can ask for by their id.", lambda: queue.kept[0]),
            ("becausal_kept_bytes", "Size of the results of these jobs.", lambda: queue.kept[1]),
        ):
            Gauge(name, meaning, **mine).set_function(count)

    def count_response(self, path: str, status: int) -> None:
        """A response has been sent, perhaps one of the guard itself."""
        self._requests.labels(name_route(path), str(status)).inc()

    def count_job(self, model: str, job: BackgroundJob) -> None:
        """A job has run."""
        if (found := job.result) is not None:
            self._explanations.labels(model, found.stopped_by).inc()
            self._calls.labels(model).inc(found.calls)
            self._seconds.observe(job.seconds)
        else:
            self._errors.labels(model, kind_of(job.failure)).inc()
            self._calls.labels(model).inc(job.progress.calls)

    def render(self) -> tuple[bytes, str]:
        """All values as text, and its media type."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self._registry), CONTENT_TYPE_LATEST


async def read_body(request: "HttpRequest") -> bytes:
    """The body of a request, which the request does not keep."""
    return b"".join([chunk async for chunk in request.stream()])


def respond(
    content: bytes | str | Mapping[str, Any], status: int = 200, media_type: str = "application/json", **headers: str
) -> "Response":
    """A response that no cache keeps. content: a mapping is written as JSON. headers: with underscores for dashes."""
    from starlette.responses import Response

    body = json.dumps(content) if isinstance(content, Mapping) else content
    lines = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(body, status, {"cache-control": "no-store", **lines}, media_type)


def find_status(failure: type[BaseException] | None) -> int:
    """The status for an error; None for a job that was stopped."""
    if failure is not None and issubclass(failure, NetworkError):
        return 502
    return STATUSES[kind_of(failure)]
