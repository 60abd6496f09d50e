"""The page: what it offers, the `Request` for the values of its controls, and what its routes do.

What is left as it is stands for the default of `becausal explain`, so that the page gives the answer of the command line.
The page keeps its image itself and sends it along; the server keeps results only.
"""

import asyncio
import json
import re
import tempfile
from collections.abc import AsyncIterator, Mapping
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_DEFLATED, ZipFile

from becausal.api.compare import save_comparison
from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.errors import InputError, OptionError
from becausal.core.explanation import Comparison
from becausal.core.options import list_options
from becausal.core.request import AUTO, Request
from becausal.core.schema import read_fields
from becausal.images.fills import FILLS
from becausal.interfaces.serve import bodies, rendering
from becausal.interfaces.serve.guard import RELEASE, RequestRejected
from becausal.interfaces.serve.images import Upload, decode_image, encode, read_image
from becausal.interfaces.serve.jobs import BackgroundJob
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.rendering import render
from becausal.interfaces.serve.service import Service, read_body, respond
from becausal.interfaces.serve.tasks import CompareTask, ExplainTask, JobResult, find_witness, predict_image, unpack_result
from becausal.methods import METHODS
from becausal.scenes import make_group, make_scene

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

#: What can be asked, by its name on the page.
QUESTIONS = {
    "sets": "two sets: core and enough",
    "smallest": "the smallest set that keeps the label",
    "share": "one set that keeps a share of the confidence",
}
SHARE = 0.7  # of the confidence, until another one is entered
#: Levels of detail, as cells along the longest side of the view; None for the cells of the command line.
DETAILS: dict[str, int | None] = {"fine": 56, "medium": None, "coarse": 16}
MAX_EXPLANATIONS = 4
LIBRARIES = {"shap": ("shap",), "rap": ("torch",), "extremal": ("torch",)}  # needed by a method
MAX_RANK = 20  # of the labels and boxes that can be explained

#: Fields of `Request` that `make_request` sets from controls made for them, and those that the page does not offer.
#: Any other field has a plain control of its own name, so that a new option is on the page without an edit here.
SET_BY_CONTROLS = {"method", "fills", "target", "box", "top", "smallest", "confidence", "grain", "several", "max_calls"}
NOT_OFFERED = {"against", "at", "holds", "backgrounds", "contrast", "options", "seed", "seeds"}

#: Label and seed of scenes whose object is partly covered and that the bundled classifier gets right.
EXAMPLES = {
    "bus": 1025,
    "house": 1002,
    "sailboat": 1011,
    "butterfly": 1000,
    "mug": 1028,
    "clock": 1005,
    "umbrella": 1017,
    "plane": 1008,
}
#: Seeds of scenes with several objects, all of which the bundled detector finds.
GROUP_EXAMPLES = (1055, 1036, 1011, 1050, 1016, 1028, 1044, 1023)


class Page:
    """Every public coroutine answers one route."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._evaluating = asyncio.Semaphore(MAX_EVALUATIONS)
        self._packing = asyncio.Semaphore(MAX_PACKED)

    async def show(self, request: "HttpRequest") -> "Response":
        """GET /."""
        html = render(
            "page",
            models=list(self._service.models),
            fills=(AUTO, *available_fills()),
            questions=QUESTIONS,
            share=SHARE,
            details=DETAILS,
            several=range(1, MAX_EXPLANATIONS + 1),
            plain=plain_controls(),
            limits=self._service.limits,
        )
        return respond(html, media_type="text/html", content_security_policy=POLICY)

    async def show_static(self, request: "HttpRequest") -> "Response":
        """GET /static/NAME."""
        name = request.path_params["name"]
        if name not in STATIC:
            raise RequestRejected(404, "there is nothing at this address")
        return respond(rendering.read_static(name), media_type=STATIC[name])

    async def show_labels(self, request: "HttpRequest") -> "Response":
        """POST /page/labels: an image, or an example, and what the model predicts for it."""
        values, classifier, upload = await self._read_form(request)
        async with self._evaluating:
            return respond(await asyncio.to_thread(describe_image, upload, classifier, values, self._service.limits))

    async def explain(self, request: "HttpRequest", *, is_comparison: bool = False) -> "Response":
        """POST /page/explain, or /page/compare, with two methods: the id of a search."""
        service, limits = self._service, self._service.limits
        values, classifier, upload = await self._read_form(request)
        if upload is None:
            raise InputError("choose an image first")
        other, controls = values.get("other", ""), values
        if is_comparison:
            if other not in available_methods(classifier):
                raise InputError("the method to compare with is not one of those offered")
            controls = values | {"several": "1", "detail": ""}
        asked = await asyncio.to_thread(make_request, controls, classifier, upload, limits)
        task: ExplainTask | CompareTask = ExplainTask(upload, classifier, asked, limits)
        if is_comparison:
            if asked.method == other:
                raise InputError(f"choose another method to compare {other} with")
            task = CompareTask(upload, classifier, (str(asked.method), other), asked, limits)
        job = service.submit(task, values.get("model") or None, is_watched=True)
        return respond({"job": service.queue.keep(job, "page", classifier)}, 202)

    async def _read_form(self, request: "HttpRequest") -> tuple[dict[str, str], Classifier, Upload | None]:
        """The fields, the model and the image of a form; None without an image. Raises RequestRejected or BecausalError."""
        content_type = request.headers.get("content-type", "")
        bodies.check_type(content_type, bodies.FORM_TYPE)
        texts, files = bodies.parse_form(content_type, await read_body(request))
        values = {name: str(bodies.read_one(name, found)) for name, found in texts.items()}
        classifier = self._service.find_model(values.get("model") or None)
        if "image" in files:
            upload = bodies.make_upload(*files["image"], self._service.limits)
            await self._service.check_upload(request, upload)
            return values, classifier, upload
        request.scope[RELEASE]()
        return values, classifier, await asyncio.to_thread(find_example, classifier, values.get("example", ""))

    async def watch(self, request: "HttpRequest") -> "Response":
        """GET /page/jobs/ID/events: the progress of a search, then its result, as server-sent events."""
        from starlette.responses import StreamingResponse

        name = request.path_params["id"]
        job = self._service.queue.find(name, "page")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}  # the latter for proxies
        return StreamingResponse(self._send_events(name, job), headers=headers, media_type="text/event-stream")

    async def _send_events(self, name: str, job: BackgroundJob) -> AsyncIterator[str]:
        """Progress whenever there is some, until the job has ended; a job that is not polled is stopped."""
        seen, quiet = None, 0
        while not job.ended.is_set() and not self._service.connections.is_closing:
            now = (job.poll().updates, job.state, job.ahead, job.is_stopping)
            quiet = quiet + 1 if now == seen else 0
            if now != seen:
                seen = now
                yield write_event("progress", {"html": await asyncio.to_thread(rendering.render_progress, job)})
            elif quiet % HEARTBEAT == 0:
                yield ":\n\n"
            await asyncio.sleep(POLL_SECONDS)
        if job.result is not None:
            yield write_event("done", await asyncio.to_thread(render_result, job.result, f"page/jobs/{name}"))
        elif job.ended.is_set():
            yield write_event("failed", {"error": job.error})

    async def stop(self, request: "HttpRequest") -> "Response":
        """DELETE /page/jobs/ID: stop a search and drop its result; with ?keep=1 the best result so far is kept."""
        name = request.path_params["id"]
        job = self._service.queue.stop(name, "page", keep=request.query_params.get("keep") == "1")
        return respond({"ended": job.ended.is_set()})

    async def show_pixel(self, request: "HttpRequest") -> "Response":
        """GET /page/jobs/ID/pixel?row=R&column=C: why a pixel is needed."""
        job, content = await self._find_result(request)
        if not isinstance(content, Explanation) or job.classifier is None:
            raise RequestRejected(404, "this result has no pixels to select")
        try:
            row, column = (int(request.query_params.get(name, "")) for name in ("row", "column"))
        except ValueError:
            raise RequestRejected(400, "row and column must be whole numbers") from None
        async with self._evaluating:
            witness = await asyncio.to_thread(find_witness, content, job.classifier, row, column)
            html = await asyncio.to_thread(rendering.render_witness, content, witness, row, column)
        return respond({"html": html})

    async def download(self, request: "HttpRequest") -> "Response":
        """GET /page/jobs/ID/download: a result as a zip file."""
        _, content = await self._find_result(request)
        async with self._packing:
            name, data = await asyncio.to_thread(write_zip, content)
        disposition = f'attachment; filename="{name}.zip"'
        return respond(data, media_type="application/zip", content_disposition=disposition)

    async def _find_result(self, request: "HttpRequest") -> tuple[BackgroundJob, Explanation | Comparison]:
        job = self._service.queue.find(request.path_params["id"], "page")
        if job.result is None:
            raise RequestRejected(404, "there is no result yet")
        return job, (await asyncio.to_thread(unpack_result, job.result))[0]


def write_event(name: str, content: dict[str, str]) -> str:
    """A server-sent event; JSON has no line breaks."""
    return f"event: {name}\ndata: {json.dumps(content)}\n\n"


def describe_image(upload: Upload | None, classifier: Classifier, values: dict[str, str], limits: Limits) -> dict[str, Any]:
    """The parts of the page that depend on the image and the model. Raises BecausalError."""
    is_detector = classifier.info.output == "boxes"
    labels, preview = predict_image(read_image(upload, classifier, limits), classifier) if upload is not None else ((), "")
    family, examples = list_examples(classifier)
    return {
        "image": render(
            "image", family=family, examples=examples, upload=upload, uri=preview, model=values.get("model", "")
        ),
        "labels": render("labels", labels=labels, is_detector=is_detector),
        "welcome": render("welcome", is_detector=is_detector),
        "methods": available_methods(classifier),
        "compared": "d-rise" if is_detector else "rise",
    }


def render_result(found: JobResult, address: str) -> dict[str, str]:
    """The parts of the page for a result. address: of the search."""
    content, ranking = unpack_result(found)
    if not isinstance(content, Explanation):
        return {"compared": rendering.render_comparison(content, address)}
    return {
        "stage": rendering.render_explanation(content, address),
        "reveal": rendering.render_ranking(content, ranking) if ranking is not None else "",
        "others": rendering.render_others(content),
    }


def write_zip(content: Explanation | Comparison) -> tuple[str, bytes]:
    """The folder in which a result is saved, as a zip file: the folder's name and the file; nothing stays on disk."""
    label = content.label if isinstance(content, Explanation) else f"{content.first.label}-compared"
    name = f"becausal-{re.sub(r'[^A-Za-z0-9]+', '-', label).strip('-')[:40].lower() or 'answer'}"
    buffer = BytesIO()
    with tempfile.TemporaryDirectory(prefix="becausal-") as temporary, ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        folder = Path(temporary) / name
        if isinstance(content, Explanation):
            content.save(folder)
        else:
            save_comparison(content, folder)
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{name}/{file.name}")
    return name, buffer.getvalue()


# ---------------------------------------------------------------- what the page offers


def make_request(values: Mapping[str, str], classifier: Classifier, upload: Upload, limits: Limits) -> Request:
    """The request for the values of the page's controls; raises OptionError for a value that is not offered.

    values: method, fill, ask, share, detail, several, calls, label (id, or the number of a detector's box) and rank (of the
    label, from 1), and the plain controls; any of them may be missing or empty. upload: the image, whose size decides that
    of the cells where the model takes images of any size.
    """
    is_detector = classifier.info.output == "boxes"
    method = _choose(values, "method", "causal", available_methods(classifier))
    ask = _choose(values, "ask", "sets", QUESTIONS)
    cells = DETAILS[_choose(values, "detail", "medium", DETAILS)]
    several = _read_number(values, "several", 1, MAX_EXPLANATIONS) or 1
    several = several if method == "causal" else 1
    rank = _read_number(values, "rank", 1, MAX_RANK) or 1
    is_needed = rank > 1 or classifier.info.output == "segments"  # which has no label of the whole image
    label = _read_number(values, "label", 0, 2**31) if is_needed else None
    geometry = classifier.info.geometry
    side = max(geometry.grid if geometry is not None else decode_image(upload, limits).grid)
    given = {name: values[name] for name in plain_controls() if values.get(name)}
    asked = Request(
        method=method,
        fills=(_choose(values, "fill", AUTO, (AUTO, *available_fills())),),
        target=None if is_detector else label,
        box=label if is_detector else None,
        top=1 if label is None or classifier.info.output in ("multilabel", "boxes", "segments") else rank,
        smallest=ask == "smallest",
        confidence=_read_share(values) if ask == "share" else None,
        grain="default" if cells is None else max(1, side // cells),
        several=several,
        max_calls=_read_number(values, "calls", 10, limits.max_calls),
        **read_fields(Request, {name: bodies.read_texts(name, [text]) for name, text in given.items()}),
    )
    return bodies.check_request(asked, limits)


def plain_controls() -> dict[str, dict[str, str]]:
    """The plain controls of the page by the fields of `Request` they stand for: kind of input and help."""
    found = {}
    for option in list_options(Request):
        if option.name not in SET_BY_CONTROLS | NOT_OFFERED:
            kind = "number" if {*option.types} <= {int, float} else "checkbox" if bool in option.types else "text"
            found[option.name] = {"kind": kind, "help": option.help}
    return found


def _choose(values: Mapping[str, str], name: str, default: str, offered: Mapping[str, object] | tuple[str, ...]) -> str:
    value = values.get(name) or default
    if value not in offered:
        raise OptionError(f"the value of {name} is not one of those offered")
    return value


def _read_number(values: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = values.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and least <= int(text) <= most):
        raise OptionError(f"the value of {name} must be a whole number from {least} to {most:,}")
    return int(text)


def _read_share(values: Mapping[str, str]) -> float:
    try:
        return float(values.get("share") or SHARE)  # its range is checked with the request
    except ValueError:
        raise OptionError("the value of share must be a number above 0 and up to 1") from None


def available_methods(classifier: Classifier) -> tuple[str, ...]:
    """The methods that can run on this model with the installed libraries."""
    has_boxes, has_gradients = classifier.info.output == "boxes", hasattr(classifier, "torch_form")
    found = []
    for name, method in METHODS.items():
        libraries = LIBRARIES.get(name, ("torch", "captum") if method.needs == "gradients" else ())
        can_run = {"boxes": has_boxes, "gradients": has_gradients}.get(method.needs, True)
        if can_run and all(find_spec(library) is not None for library in libraries):
            found.append(name)
    return tuple(found)


def available_fills() -> tuple[str, ...]:
    """The named fills; never one that reads a file of the server."""
    return tuple(name for name, fill in FILLS.items() if fill.library is None or find_spec(fill.library) is not None)


def list_examples(classifier: Classifier) -> tuple[str, tuple[Upload, ...]]:
    """The name of a set of examples, and the set; none for models that are not bundled, to which they mean nothing."""
    sets = {"bundled": "scenes", "bundled:vit": "scenes", "bundled:detector": "groups"}
    family = sets.get(classifier.info.spec, "")
    return family, make_examples(family)


@cache
def make_examples(family: str) -> tuple[Upload, ...]:
    """The example images of a set, generated when they are first asked for; none for an empty name."""
    if family == "groups":
        groups = [make_group(seed) for seed in GROUP_EXAMPLES]
        made = [(", ".join(sorted(one.label for one in group.objects)), group.image) for group in groups]
    else:
        made = [(label, make_scene(seed, label=label, size=256).image) for label, seed in EXAMPLES.items()] if family else []
    return tuple(Upload(f"{name}.png", encode(image)) for name, image in made)


def find_example(classifier: Classifier, chosen: str) -> Upload | None:
    """The example with a name such as scenes/3; the first one for any other name; None for a model without examples."""
    name, examples = list_examples(classifier)
    if not examples:
        return None
    family, _, number = chosen.partition("/")
    is_known = family == name and number.isascii() and number.isdecimal() and len(number) < 4
    return examples[int(number)] if is_known and int(number) < len(examples) else examples[0]
