"""What the routes of the page do. The page keeps its image itself and sends it along; the server keeps results only."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from becausal.api import Request
from becausal.api.explanation import Explanation
from becausal.core.comparison import Comparison
from becausal.core.contracts import Classifier
from becausal.core.errors import InputError
from becausal.interfaces.serve import panels, results
from becausal.interfaces.serve.addresses import SEARCHES_PATH
from becausal.interfaces.serve.bodies import check_type, make_upload
from becausal.interfaces.serve.downloads import pack_result
from becausal.interfaces.serve.forms import FORM_TYPE, parse_form, read_one
from becausal.interfaces.serve.guard import RELEASE, RequestRejected
from becausal.interfaces.serve.images import Upload, check_image_size, decode_image
from becausal.interfaces.serve.jobs import ClientJob, KeptJob, Task
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.offers import (
    DETAILS,
    KEPT,
    MAX_EXPLANATIONS,
    available_fills,
    available_methods,
    find_example,
    list_examples,
    make_request,
)
from becausal.interfaces.serve.predictions import TopLabels, find_witness, predict_image
from becausal.interfaces.serve.rendering import read_static, render
from becausal.interfaces.serve.responses import read_body, respond
from becausal.interfaces.serve.service import Service
from becausal.interfaces.serve.tasks import CompareTask, ExplainTask, PageResult

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

POLL_SECONDS = 0.15
HEARTBEAT = 40  # looks without news after which a comment is sent, so that a client that has gone is noticed
MAX_EVALUATIONS, MAX_PACKED = 4, 2  # at once, besides the searches
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
STATIC = {"page.js": "text/javascript", "page.css": "text/css"}


class Page:
    """Every public coroutine answers one route."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._evaluating = asyncio.Semaphore(MAX_EVALUATIONS)
        self._packing = asyncio.Semaphore(MAX_PACKED)

    async def show(self, request: "HttpRequest") -> "Response":
        """GET /."""
        limits = self._service.limits
        html = render(
            "page",
            models=list(self._service.models),
            fills=available_fills(),
            kept=KEPT.items(),
            details=[(name, name) for name in DETAILS],
            several=[(number, number) for number in range(1, MAX_EXPLANATIONS + 1)],
            max_calls=limits.max_calls,
            limit=limits.upload_bytes,
        )
        return respond(html, media_type="text/html", content_security_policy=POLICY)

    async def show_static(self, request: "HttpRequest") -> "Response":
        """GET /static/NAME."""
        name = request.path_params["name"]
        if name not in STATIC:
            raise RequestRejected(404, "there is nothing at this address")
        return respond(read_static(name), media_type=STATIC[name])

    async def show_labels(self, request: "HttpRequest") -> "Response":
        """POST /page/labels: an image, or an example, and what the model predicts for it."""
        values, classifier, upload = await self._read_form(request)
        async with self._evaluating:
            return respond(await asyncio.to_thread(describe_image, upload, classifier, values, self._service.limits))

    async def explain(self, request: "HttpRequest") -> "Response":
        """POST /page/explain: the id of a search."""
        values, classifier, upload = await self._read_form(request)
        if upload is None:
            raise InputError("choose an image first")
        asked = await asyncio.to_thread(self._make_request, values, classifier, upload)
        return self._start(ExplainTask(upload, classifier, asked, self._service.limits), values)

    async def compare(self, request: "HttpRequest") -> "Response":
        """POST /page/compare: the id of a search with two methods."""
        values, classifier, upload = await self._read_form(request)
        if upload is None:
            raise InputError("choose an image first")
        other = values.get("other", "")
        if other not in available_methods(classifier):
            raise InputError("the method to compare with is not one of those offered")
        asked = await asyncio.to_thread(self._make_request, values | {"several": "1", "detail": ""}, classifier, upload)
        if asked.method == other:
            raise InputError(f"choose another method to compare {other} with")
        return self._start(CompareTask(upload, classifier, (str(asked.method), other), asked, self._service.limits), values)

    async def watch(self, request: "HttpRequest") -> "Response":
        """GET /page/jobs/ID/events: the progress of a search, then its result, as server-sent events."""
        from starlette.responses import StreamingResponse

        name = request.path_params["id"]
        kept = self._service.jobs.find(name, "page")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}  # the latter for proxies
        return StreamingResponse(self._send_events(name, kept), headers=headers, media_type="text/event-stream")

    async def stop(self, request: "HttpRequest") -> "Response":
        """DELETE /page/jobs/ID: stop a search and drop its result; with ?keep=1 the best result so far is kept."""
        name = request.path_params["id"]
        job = self._service.jobs.stop(name, "page", keep=request.query_params.get("keep") == "1")
        return respond({"ended": job.ended.is_set()})

    async def show_pixel(self, request: "HttpRequest") -> "Response":
        """GET /page/jobs/ID/pixel?row=R&column=C: why a pixel is needed."""
        kept, content = await self._find_result(request)
        if not isinstance(content, Explanation) or kept.classifier is None:
            raise RequestRejected(404, "this result has no pixels to select")
        try:
            row, column = (int(request.query_params.get(name, "")) for name in ("row", "column"))
        except ValueError:
            raise RequestRejected(400, "row and column must be whole numbers") from None
        async with self._evaluating:
            witness = await asyncio.to_thread(find_witness, content, kept.classifier, row, column)
            return respond({"html": await asyncio.to_thread(results.render_witness, content, witness, row, column)})

    async def download(self, request: "HttpRequest") -> "Response":
        """GET /page/jobs/ID/download: a result as a zip file."""
        _, content = await self._find_result(request)
        async with self._packing:
            name, data = await asyncio.to_thread(pack_result, content)
        disposition = f'attachment; filename="{name}"'
        return respond(data, media_type="application/zip", content_disposition=disposition)

    async def _read_form(self, request: "HttpRequest") -> tuple[dict[str, str], Classifier, Upload | None]:
        """The fields, the model and the image of a form; None without an image. Raises RequestRejected or BecausalError."""
        content_type = request.headers.get("content-type", "")
        check_type(content_type, FORM_TYPE)
        texts, files = parse_form(content_type, await read_body(request))
        values = {name: str(read_one(name, found)) for name, found in texts.items()}
        classifier = self._service.find_model(values.get("model") or None)
        if "image" in files:
            upload = make_upload(*files["image"], self._service.limits)
            await self._service.check_uploads(request, upload)
            return values, classifier, upload
        request.scope[RELEASE]()
        return values, classifier, await asyncio.to_thread(find_example, classifier, values.get("example", ""))

    def _make_request(self, values: dict[str, str], classifier: Classifier, upload: Upload) -> Request:
        geometry, limits = classifier.info.geometry, self._service.limits
        grid = geometry.grid if geometry is not None else decode_image(upload, limits).grid
        return make_request(values, classifier, max(grid), limits)

    def _start(self, task: ExplainTask | CompareTask, values: dict[str, str]) -> "Response":
        (job,) = self._service.submit([task], values.get("model") or None, is_watched=True)
        return respond({"job": self._service.jobs.keep(job, "page", task)}, 202)

    async def _send_events(self, name: str, kept: KeptJob) -> AsyncIterator[str]:
        """Progress whenever there is some, until the job has ended; a job that is not polled is stopped."""
        job, task, seen, quiet = kept.job, kept.task, None, 0
        while not job.ended.is_set() and not self._service.connections.is_closing:
            now = (job.poll().updates, job.state, job.ahead, job.is_stopping)
            quiet = quiet + 1 if now == seen else 0
            if now != seen:
                seen = now
                yield write_event("progress", {"html": await asyncio.to_thread(render_progress, job, task)})
            elif quiet % HEARTBEAT == 0:
                yield ":\n\n"
            await asyncio.sleep(POLL_SECONDS)
        if isinstance(job.result, PageResult):
            yield write_event("done", await asyncio.to_thread(render_result, job.result, f"{SEARCHES_PATH[1:]}/{name}"))
        elif job.ended.is_set():
            yield write_event("failed", {"error": job.error})

    async def _find_result(self, request: "HttpRequest") -> tuple[KeptJob, Explanation | Comparison]:
        kept = self._service.jobs.find(request.path_params["id"], "page")
        if not isinstance(kept.job.result, PageResult):
            raise RequestRejected(404, "there is no result yet")
        return kept, (await asyncio.to_thread(kept.job.result.unpack))[0]


def write_event(name: str, content: dict[str, str]) -> str:
    """A server-sent event; JSON has no line breaks."""
    return f"event: {name}\ndata: {json.dumps(content)}\n\n"


def describe_image(upload: Upload | None, classifier: Classifier, values: dict[str, str], limits: Limits) -> dict[str, Any]:
    """The parts of the page that depend on the image and the model. Raises BecausalError."""
    is_detector = classifier.info.output == "boxes"
    labels: TopLabels = ()
    preview = ""
    if upload is not None:
        image = decode_image(upload, limits)
        check_image_size(image, classifier, limits)
        labels, preview = predict_image(image, classifier)
    family, examples = list_examples(classifier)
    return {
        "image": panels.render_image(family, examples, upload, preview, model=values.get("model", "")),
        "labels": render("labels", labels=labels, is_detector=is_detector),
        "welcome": render("welcome", is_detector=is_detector),
        "methods": available_methods(classifier),
        "compared": "d-rise" if is_detector else "rise",
    }


def render_progress(job: ClientJob, task: Task | None) -> str:
    """A search that waits or runs."""
    progress = job.progress
    if job.state == "waiting":
        return render("waiting", ahead=job.ahead)
    if isinstance(task, CompareTask):
        return panels.render_comparing(task.methods, calls=progress.calls, is_stopping=job.is_stopping)
    snapshot, stage = None, "search"
    if progress.status is not None and progress.depth is not None and isinstance(task, ExplainTask):
        snapshot = panels.SearchSnapshot(task.view, progress.status.visible, progress.depth)
        stage = progress.status.stage
    max_calls = task.request.max_calls if task is not None else None
    return panels.render_running(
        snapshot, calls=progress.calls, max_calls=max_calls, stage=stage, is_stopping=job.is_stopping
    )


def render_result(found: PageResult, address: str) -> dict[str, str]:
    """The parts of the page for a result. address: of the search."""
    content, ranking = found.unpack()
    if not isinstance(content, Explanation):
        return {"compared": results.render_comparison(content, address)}
    return {
        "stage": results.render_explanation(content, address),
        "reveal": results.render_ranking(content, ranking) if ranking is not None else "",
        "others": results.render_others(content),
    }
