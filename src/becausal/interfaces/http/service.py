"""What the routes of the API do."""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from becausal.core.contracts import Classifier
from becausal.core.text import one_line
from becausal.interfaces.http.bodies import Order, read_explain, read_instances
from becausal.interfaces.http.jobs import ApiJob, ApiJobs, describe_job, write_job
from becausal.interfaces.http.metrics import MEDIA_TYPE, Metrics
from becausal.interfaces.http.responses import respond, respond_failure
from becausal.interfaces.http.rules import EXPLAIN_VERB, JOBS_PATH, name_route
from becausal.interfaces.http.schema import make_openapi, render_docs
from becausal.interfaces.http.work import Answer, ExplainWork, kind_of
from becausal.interfaces.web.connections import Connections, group_address
from becausal.interfaces.web.guard import RELEASE, RequestRejected, Scope
from becausal.interfaces.web.job_processes import JobProcesses, ModelSource
from becausal.interfaces.web.job_queue import JobQueue
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.listening import return_memory
from becausal.interfaces.web.upload_check import UploadChecks

if TYPE_CHECKING:
    from fastapi import Request as HttpRequest
    from fastapi import Response

CLEAN_UP_SECONDS = 20.0


class ApiService:
    """The models, the jobs and the counts of one server; every public coroutine answers one route."""

    def __init__(
        self, models: Mapping[str, Classifier], limits: Limits, sources: Mapping[str, ModelSource] | None = None
    ) -> None:
        self.limits = replace(limits, unwatched_seconds=math.inf)  # clients may come back for a result later
        self.connections = Connections(self.limits)
        self._models = models
        self._queue = JobQueue(self.limits, JobProcesses(models, sources) if sources is not None else None)
        self._jobs = ApiJobs(self._queue, self.limits)
        self._checks = UploadChecks(self.limits)
        self._metrics = Metrics()
        self._document = make_openapi(self.limits)
        self._page = render_docs(self._document)

    @asynccontextmanager
    async def run(self, _: Any) -> AsyncIterator[None]:
        """Clean up from time to time while the server runs, and stop all jobs at its end."""
        cleaning = asyncio.create_task(self._clean_up())
        self._queue.start()
        yield
        cleaning.cancel()
        self._checks.close()
        await asyncio.to_thread(self._queue.close)

    def count_response(self, scope: Scope, status: int) -> None:
        """Count a response, also one of the guard itself."""
        self._metrics.count_request(name_route(scope["path"]), status)

    async def explain(self, request: "HttpRequest") -> "Response":
        """POST /v1/explain."""
        body = await _read_body(request)
        order = read_explain(request.headers.get("content-type", ""), body, self.limits)
        del body  # a few megabytes, while the job is waited for
        (job,), wait = await self._start(request, order), order.wait
        del order
        is_waited_for = not _prefers_async(request)  # else its address is sent, even if it has ended already
        if is_waited_for and await self._jobs.wait(job, wait, self.connections, request.is_disconnected):
            return respond(job.result.body) if job.result is not None else respond_failure(job)
        name = self._jobs.keep(job)
        return respond(describe_job(name, job), 202, location=f"{JOBS_PATH}/{name}")

    async def explain_instances(self, request: "HttpRequest") -> "Response":
        """POST /v1/models/NAME:explain."""
        name = request.path_params["name"].removesuffix(EXPLAIN_VERB)
        self._find_model(name)
        body = await _read_body(request)
        order = read_instances(request.headers.get("content-type", ""), body, name, self.limits)
        del body
        jobs, wait = await self._start(request, order), order.wait
        del order
        answers: list[Answer] = []
        for number, job in enumerate(jobs):
            await self._jobs.wait(job, wait, self.connections, request.is_disconnected)
            if job.result is None:
                _stop_all(jobs)
                return respond_failure(job, f"instances[{number}]")
            answers.append(job.result)
        predictions = json.dumps([answer.label for answer in answers]).encode("utf-8")
        explanations = b", ".join(answer.body for answer in answers)
        return respond(b'{"predictions": ' + predictions + b', "explanations": [' + explanations + b"]}")

    async def show_job(self, request: "HttpRequest") -> "Response":
        """GET /v1/jobs/ID."""
        name = request.path_params["id"]
        return respond(write_job(name, self._jobs.find(name)))

    async def stop_job(self, request: "HttpRequest") -> "Response":
        """DELETE /v1/jobs/ID."""
        name = request.path_params["id"]
        job = self._jobs.stop(name)
        return respond(describe_job(name, job), 200 if job.ended.is_set() else 202)

    async def list_models(self, request: "HttpRequest") -> "Response":
        """GET /v1/models."""
        return respond({"models": list(self._models)})

    async def show_model(self, request: "HttpRequest") -> "Response":
        """GET /v1/models/NAME."""
        name = request.path_params["name"]
        self._find_model(name)
        return respond({"name": name, "ready": not self.connections.is_closing})

    async def show_health(self, request: "HttpRequest") -> "Response":
        """GET /healthz."""
        return respond({"status": "ok"})

    async def show_metrics(self, request: "HttpRequest") -> "Response":
        """GET /metrics."""
        (waiting, running), (kept, held) = self._queue.lengths, self._jobs.kept
        gauges = {
            "becausal_queue_length": ("Jobs that wait.", waiting),
            "becausal_running_jobs": ("Jobs that run.", running),
            "becausal_kept_jobs": ("Jobs that clients can ask for by their id.", kept),
            "becausal_kept_bytes": ("Size of the results of these jobs.", held),
        }
        return respond(self._metrics.render(gauges), media_type=MEDIA_TYPE)

    async def show_docs(self, request: "HttpRequest") -> "Response":
        """GET /docs."""
        return respond(self._page, media_type="text/html")

    async def show_schema(self, request: "HttpRequest") -> "Response":
        """GET /openapi.json."""
        return respond(self._document)

    async def _start(self, request: "HttpRequest", order: Order) -> list[ApiJob]:
        """Check the images and submit a job for each; all of them, or none. Raises RequestRejected or BecausalError."""
        name = order.model if order.model is not None else next(iter(self._models))
        classifier = self._find_model(name)
        address = group_address(request.client.host if request.client else "")
        for upload in order.uploads:
            await self._checks.check(upload, address)
        request.scope[RELEASE]()
        if self.connections.is_closing:
            raise RequestRejected(503, "the server is shutting down")
        jobs: list[ApiJob] = []
        try:
            for upload in order.uploads:
                work = ExplainWork(upload, classifier, order.request, order.include, self.limits)
                jobs.append(self._jobs.submit(work, partial(self._count_job, name)))
        except BaseException:
            _stop_all(jobs)
            raise
        return jobs

    def _count_job(self, model: str, job: ApiJob) -> None:
        """Count a job that has run."""
        if (answer := job.result) is not None:
            self._metrics.count_explanation(model, answer.stopped_by, answer.calls, job.seconds)
        else:
            self._metrics.count_error(model, kind_of(job.failure), job.progress.calls)

    def _find_model(self, name: str) -> Classifier:
        if name not in self._models:
            raise RequestRejected(404, f"there is no model {one_line(name, 60)!r}: it is one of {', '.join(self._models)}")
        return self._models[name]

    async def _clean_up(self) -> None:
        while True:
            await asyncio.sleep(CLEAN_UP_SECONDS)
            self._jobs.clean_up()
            await asyncio.to_thread(return_memory)


async def _read_body(request: "HttpRequest") -> bytes:
    """The body, which the request does not keep."""
    return b"".join([chunk async for chunk in request.stream()])


def _prefers_async(request: "HttpRequest") -> bool:
    """Whether the client wants the address of the job at once (RFC 7240)."""
    wishes = ",".join(request.headers.getlist("prefer")).split(",")
    return any(wish.partition(";")[0].strip().lower() == "respond-async" for wish in wishes)


def _stop_all(jobs: list[ApiJob]) -> None:
    for job in jobs:
        job.stop()
