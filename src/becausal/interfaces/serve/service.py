"""One running server: its models, its queue, its jobs and its counts, which the page and the API share."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from becausal.core.contracts import Classifier
from becausal.core.text import one_line
from becausal.interfaces.serve.addresses import name_route
from becausal.interfaces.serve.connections import Connections, group_address
from becausal.interfaces.serve.guard import RELEASE, RequestRejected
from becausal.interfaces.serve.images import Upload
from becausal.interfaces.serve.job_processes import JobProcesses, ModelSource
from becausal.interfaces.serve.job_queue import JobQueue
from becausal.interfaces.serve.jobs import ClientJob, ClientJobs, Task
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.listening import return_memory
from becausal.interfaces.serve.metrics import Metrics
from becausal.interfaces.serve.tasks import kind_of
from becausal.interfaces.serve.upload_check import UploadChecks

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest

CLEAN_UP_SECONDS = 20.0


class Service:
    """What all routes use.

    models: by the name clients use, the default one first. sources: how each of them is loaded, by the same names; searches
    then run in processes, which can be ended at any time, and otherwise in threads.
    """

    def __init__(
        self, models: Mapping[str, Classifier], limits: Limits, sources: Mapping[str, ModelSource] | None = None
    ) -> None:
        self.models = models
        self.limits = limits
        self.connections = Connections(limits)
        self.queue = JobQueue(limits, JobProcesses(models, sources) if sources is not None else None)
        self.jobs = ClientJobs(self.queue, limits)
        self.metrics = Metrics()
        self._checks = UploadChecks(limits)

    @asynccontextmanager
    async def run(self, _: Any) -> AsyncIterator[None]:
        """Clean up from time to time while the server runs, and stop all jobs at its end."""
        cleaning = asyncio.create_task(self._clean_up())
        self.queue.start()
        yield
        cleaning.cancel()
        self._checks.close()
        await asyncio.to_thread(self.queue.close)

    def count_response(self, path: str, status: int) -> None:
        """Count a response, also one of the guard itself."""
        self.metrics.count_request(name_route(path), status)

    def find_model(self, name: str | None) -> Classifier:
        """A model by its name; the default one for None. Raises RequestRejected."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise RequestRejected(404, f"there is no model {one_line(name, 60)!r}: it is one of {', '.join(self.models)}")
        return self.models[name]

    async def check_uploads(self, request: "HttpRequest", *uploads: Upload) -> None:
        """Decode images in a process of their own. Raises BecausalError, and RequestRejected at the end of the server."""
        address = group_address(request.client.host if request.client else "")
        for upload in uploads:
            await self._checks.check(upload, address)
        request.scope[RELEASE]()
        if self.connections.is_closing:
            raise RequestRejected(503, "the server is shutting down")

    def submit(self, tasks: list[Task], model: str | None, *, is_watched: bool = False) -> list[ClientJob]:
        """A job for each task; all of them, or none. Raises QueueFull."""
        jobs: list[ClientJob] = []
        count = partial(self._count_job, model if model is not None else next(iter(self.models)))
        try:
            for task in tasks:
                jobs.append(self.jobs.submit(task, count, is_watched=is_watched))
        except BaseException:
            stop_all(jobs)
            raise
        return jobs

    def _count_job(self, model: str, job: ClientJob) -> None:
        """Count a job that has run."""
        if (found := job.result) is not None:
            self.metrics.count_explanation(model, found.stopped_by, found.calls, job.seconds)
        else:
            self.metrics.count_error(model, kind_of(job.failure), job.progress.calls)

    async def _clean_up(self) -> None:
        while True:
            await asyncio.sleep(CLEAN_UP_SECONDS)
            self.jobs.clean_up()
            await asyncio.to_thread(return_memory)


def stop_all(jobs: list[ClientJob]) -> None:
    """Stop several jobs."""
    for job in jobs:
        job.stop()
