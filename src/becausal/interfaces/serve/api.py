"""What the routes of the API do."""

import json
from typing import TYPE_CHECKING

from becausal.interfaces.serve.addresses import EXPLAIN_VERB, JOBS_PATH
from becausal.interfaces.serve.bodies import Order, read_explain, read_instances
from becausal.interfaces.serve.description import make_openapi, render_docs
from becausal.interfaces.serve.jobs import ClientJob, describe_job, write_job
from becausal.interfaces.serve.responses import read_body, respond, respond_failure
from becausal.interfaces.serve.service import Service, stop_all
from becausal.interfaces.serve.tasks import Answer, AnswerTask

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response


class Api:
    """Every public coroutine answers one route."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._document = make_openapi(service.limits)
        self._page = render_docs(self._document)

    async def explain(self, request: "HttpRequest") -> "Response":
        """POST /v1/explain."""
        body = await read_body(request)
        order = read_explain(request.headers.get("content-type", ""), body, self._service.limits)
        del body  # a few megabytes, while the job is waited for
        (job,), wait = await self._start(request, order), order.wait
        del order
        is_waited_for = not _prefers_async(request)  # else its address is sent, even if it has ended already
        jobs = self._service.jobs
        if is_waited_for and await jobs.wait(job, wait, self._service.connections, request.is_disconnected):
            return respond(job.result.body) if isinstance(job.result, Answer) else respond_failure(job)
        name = jobs.keep(job)
        return respond(describe_job(name, job), 202, location=f"{JOBS_PATH}/{name}")

    async def explain_instances(self, request: "HttpRequest") -> "Response":
        """POST /v1/models/NAME:explain."""
        name = request.path_params["name"].removesuffix(EXPLAIN_VERB)
        self._service.find_model(name)
        body = await read_body(request)
        order = read_instances(request.headers.get("content-type", ""), body, name, self._service.limits)
        del body
        jobs, wait = await self._start(request, order), order.wait
        del order
        answers: list[Answer] = []
        for number, job in enumerate(jobs):
            await self._service.jobs.wait(job, wait, self._service.connections, request.is_disconnected)
            if not isinstance(job.result, Answer):
                stop_all(jobs)
                return respond_failure(job, f"instances[{number}]")
            answers.append(job.result)
        predictions = json.dumps([answer.label for answer in answers]).encode("utf-8")
        explanations = b", ".join(answer.body for answer in answers)
        return respond(b'{"predictions": ' + predictions + b', "explanations": [' + explanations + b"]}")

    async def show_job(self, request: "HttpRequest") -> "Response":
        """GET /v1/jobs/ID."""
        name = request.path_params["id"]
        return respond(write_job(name, self._service.jobs.find(name).job))

    async def stop_job(self, request: "HttpRequest") -> "Response":
        """DELETE /v1/jobs/ID."""
        name = request.path_params["id"]
        job = self._service.jobs.stop(name)
        return respond(describe_job(name, job), 200 if job.ended.is_set() else 202)

    async def list_models(self, request: "HttpRequest") -> "Response":
        """GET /v1/models."""
        return respond({"models": list(self._service.models)})

    async def show_model(self, request: "HttpRequest") -> "Response":
        """GET /v1/models/NAME."""
        name = request.path_params["name"]
        self._service.find_model(name)
        return respond({"name": name, "ready": not self._service.connections.is_closing})

    async def show_health(self, request: "HttpRequest") -> "Response":
        """GET /healthz."""
        return respond({"status": "ok"})

    async def show_metrics(self, request: "HttpRequest") -> "Response":
        """GET /metrics."""
        (waiting, running), (kept, held) = self._service.queue.lengths, self._service.jobs.kept
        gauges = {
            "becausal_queue_length": ("Jobs that wait.", waiting),
            "becausal_running_jobs": ("Jobs that run.", running),
            "becausal_kept_jobs": ("Jobs that clients can ask for by their id.", kept),
            "becausal_kept_bytes": ("Size of the results of these jobs.", held),
        }
        text, media_type = self._service.metrics.render(gauges)
        return respond(text, media_type=media_type)

    async def show_docs(self, request: "HttpRequest") -> "Response":
        """GET /docs."""
        return respond(self._page, media_type="text/html")

    async def show_schema(self, request: "HttpRequest") -> "Response":
        """GET /openapi.json."""
        return respond(self._document)

    async def _start(self, request: "HttpRequest", order: Order) -> list[ClientJob]:
        """Check the images and submit a job for each; all of them, or none. Raises RequestRejected or BecausalError."""
        classifier, limits = self._service.find_model(order.model), self._service.limits
        await self._service.check_uploads(request, *order.uploads)
        return self._service.submit(
            [AnswerTask(upload, classifier, order.request, order.include, limits) for upload in order.uploads], order.model
        )


def _prefers_async(request: "HttpRequest") -> bool:
    """Whether the client wants the address of the job at once (RFC 7240)."""
    wishes = ",".join(request.headers.getlist("prefer")).split(",")
    return any(wish.partition(";")[0].strip().lower() == "respond-async" for wish in wishes)
