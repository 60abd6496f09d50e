"""Event handlers of the page: choose an image, explain it, inspect a pixel, compare methods."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import gradio as gr

from becausal.api.explanation import Explanation
from becausal.core.comparison import Comparison
from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError, InputError
from becausal.interfaces.web import panels, results
from becausal.interfaces.web.images import Upload, check_image_size, decode_image, make_group_examples, make_preview
from becausal.interfaces.web.job_queue import BackgroundJob, JobQueue
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.predictions import (
    TopLabels,
    draw_detections,
    find_boxes,
    find_witness,
    name_boxes,
    predict_top_labels,
    view_pixels,
)
from becausal.interfaces.web.rendering import render
from becausal.interfaces.web.sessions import Session, Sessions, StoredResult
from becausal.interfaces.web.streams import Streams
from becausal.interfaces.web.tasks import (
    CompareTask,
    ExplainResult,
    ExplainTask,
    available_methods,
    find_model,
    make_request,
)
from becausal.render.wording import format_confidence

POLL_SECONDS = 0.15
COMPARED_METHOD, COMPARED_BOXES = "rise", "d-rise"  # the default methods to compare with
CHOICE_OUTPUTS = 10  # components that change with the image or the model

#: What the list of labels is called, for a classifier (False) and for a detector (True).
CHOICES: dict[bool, dict[str, str]] = {
    False: {"label": "Predicted labels", "info": "Select the label to explain."},
    True: {"label": "Boxes", "info": "Select the box to explain."},
}

Updates = tuple[Any, ...]  # one value for each output component of an event


class Page:
    """The handlers, for any number of clients at once.

    models: the server's models by the name that is shown; clients cannot add one. streams: who follows the events of a
    session; without it everyone does.
    """

    def __init__(
        self,
        models: Mapping[str, Classifier],
        sessions: Sessions,
        queue: JobQueue,
        examples: tuple[Upload, ...],
        limits: Limits,
        streams: Streams | None = None,
    ) -> None:
        self.models = dict(models)
        self.sessions = sessions
        self.queue = queue
        self.examples = examples
        self.limits = limits
        self.streams = streams

    def load(self, request: gr.Request) -> Updates:
        """The page was opened: show the first example of the bundled model, or an invitation to choose an image."""
        session = self._session(request)
        return self._choose(session, session.upload, next(iter(self.models)))

    def choose_example(self, model: str, event: gr.EventData, request: gr.Request) -> Updates:
        """An example was selected."""
        session, number = self._session(request), _event_value(event, "example", int)
        if _is_overtaken(session, event):
            return _unchanged()
        examples = self._examples_of(model)
        is_valid = number is not None and 0 <= number < len(examples)
        return self._choose(session, examples[number] if is_valid else session.upload, model)

    def choose_upload(self, model: str, event: gr.EventData, request: gr.Request) -> Updates:
        """An image was uploaded; the event carries its token."""
        session, token = self._session(request), _event_value(event, "token", str)
        upload = self.sessions.claim_upload(token) if token is not None else None
        if _is_overtaken(session, event):
            return _unchanged()
        error = "" if upload is not None else "The image is no longer available: please choose it again"
        return self._choose(session, upload or session.upload, model, error)

    def choose_model(self, model: str, request: gr.Request) -> Updates:
        """A model was selected.

        The drop-down also sends this event when it merely loses the focus; then nothing changes.
        """
        session = self._session(request)
        if model == session.requested_model:
            return _unchanged()
        return self._choose(session, session.upload, model)

    def _choose(self, session: Session, upload: Upload | None, model: str, error: str = "") -> Updates:
        """Show an image and its predicted labels, and clear earlier results; of concurrent choices the last one wins."""
        choice = session.latest_choice = object()
        preview, model_before, session.requested_model = None, session.model, model
        top_labels: TopLabels = ()
        side = 0
        try:
            classifier = find_model(self.models, model)
            upload = self._replace_example(upload, model)
            if upload is not None:
                image = decode_image(upload, self.limits)
                check_image_size(image, classifier, self.limits)
                boxes = find_boxes(image, classifier)
                top_labels = predict_top_labels(image, classifier) if boxes is None else name_boxes(boxes)
                preview = make_preview(image) if boxes is None else draw_detections(image, boxes)
                side = max(view_pixels(image, classifier).shape[:2])
        except BecausalError as failure:
            error, upload = str(failure), session.upload
            preview = make_preview(decode_image(upload, self.limits)) if upload is not None else None
        else:
            if session.latest_choice is choice:
                session.clear()
                session.upload, session.model, session.top_labels, session.side = upload, model, top_labels, side
        if session.latest_choice is not choice:
            return _unchanged()
        session.requested_model = session.model
        model = session.model or next(iter(self.models))
        publish = session.publisher("image")
        uri = publish(*preview) if preview is not None else ""
        labels = [(f"{name} {format_confidence(confidence)}".strip(), i) for i, name, confidence in session.top_labels]
        methods, is_detector = list(available_methods(self.models[model])), self.models[model].info.output == "boxes"
        is_new_model = model != model_before
        return (
            panels.render_image(self._examples_of(model), self.limits, upload, uri, model=model, error=error),
            model,
            gr.update(choices=labels, value=labels[0][1] if labels else None, **CHOICES[is_detector]),
            gr.update(choices=methods, value="causal") if is_new_model else gr.skip(),
            gr.update(choices=methods, value=COMPARED_BOXES if is_detector else COMPARED_METHOD)
            if is_new_model
            else gr.skip(),
            render("welcome", is_detector=is_detector),
            *("", "", ""),
            render("compare_intro"),
        )

    def _examples_of(self, model: str) -> tuple[Upload, ...]:
        """The examples for a model: they show what the bundled models know, and mean nothing to another one."""
        match self.models[model].info.spec if model in self.models else "":
            case "bundled" | "bundled:vit":
                return self.examples
            case "bundled:detector":
                return make_group_examples()
        return ()

    def _replace_example(self, upload: Upload | None, model: str) -> Upload | None:
        """The first example, or no image, instead of none and of an example for another model."""
        examples = self._examples_of(model)
        known = (example for name in self.models for example in self._examples_of(name))
        if upload is None or (any(upload is one for one in known) and not any(upload is one for one in examples)):
            return examples[0] if examples else None
        return upload

    async def explain(
        self,
        method: str,
        fill: str,
        label: int,
        share: float | str,
        cells: int,
        several: int,
        calls: float,
        request: gr.Request,
    ) -> AsyncIterator[Updates]:
        """Search, showing the progress, then the result."""
        session = self._session(request)
        try:
            options = {"label": label, "share": share, "cells": cells, "several": several, "max_calls": int(calls)}
            task = self._explain_task(session, method=method, fill=fill, **options)
            job = self._submit(session, task)
        except (BecausalError, TypeError, ValueError) as error:
            yield render("error", message=str(error)), "", "", "", *_buttons(is_busy=False)
            return
        yield render("waiting", ahead=job.ahead), "", "", "", *_buttons(is_busy=True)
        async for _ in self._poll(job, session, request):
            html = await asyncio.to_thread(_render_progress, job, task)
            if session.job is job:
                yield html, *[gr.skip()] * 6
        if session.job is not job:  # another image was chosen in the meantime
            yield render("welcome"), *[gr.skip()] * 3, *_buttons(is_busy=False)
        elif job.result is None:
            yield render("error", message=job.error), "", "", "", *_buttons(is_busy=False)
        else:
            stage, reveal, others = await asyncio.to_thread(_render_result, session, job.take_result())
            self.sessions.clean_up()
            yield stage, "", reveal, others, *_buttons(is_busy=False)

    def stop(self, request: gr.Request) -> None:
        """Stop was pressed: finish with the best result so far."""
        self._session(request).stop()

    def show_witness(self, event: gr.EventData, request: gr.Request) -> Any:
        """A pixel of the explanation was selected; of concurrent selections the last one wins."""
        session = self._session(request)
        choice = session.latest_pixel = object()
        explanation = session.explanation.content if session.explanation is not None else None
        row, column = _event_value(event, "row", int), _event_value(event, "column", int)
        if row is None or column is None:
            return ""
        if not isinstance(explanation, Explanation):
            return render("error", message="this result is no longer available: press Explain again")
        try:
            witness = find_witness(explanation, find_model(self.models, session.model), row, column)
        except BecausalError as error:
            return render("error", message=str(error))
        if session.latest_pixel is not choice or session.explanation is None:
            return gr.skip()
        return results.render_witness(explanation, witness, row, column, session.publisher("witness"))

    async def compare(
        self, method: str, other: str, fill: str, label: int, share: float | str, calls: float, request: gr.Request
    ) -> AsyncIterator[Updates]:
        """Run two methods, one after the other, then show them side by side."""
        session = self._session(request)
        try:
            options = {"fill": fill, "label": label, "share": share, "max_calls": int(calls)}
            first, second = (self._explain_task(session, method=name, **options) for name in (method, other))
            if method == other:
                raise InputError(f"choose another method to compare {method} with")
            task = CompareTask(first.upload, first.classifier, (method, other), second.request, self.limits)
            job = self._submit(session, task)
        except (BecausalError, TypeError, ValueError) as error:
            yield render("error", message=str(error)), *_buttons(is_busy=False)
            return
        yield render("waiting", ahead=job.ahead), *_buttons(is_busy=True)
        async for _ in self._poll(job, session, request):
            running = panels.render_comparing((method, other), calls=job.progress.calls, is_stopping=job.is_stopping)
            yield running if job.state == "running" else render("waiting", ahead=job.ahead), *[gr.skip()] * 3
        if session.job is not job:
            yield render("compare_intro"), *_buttons(is_busy=False)
        elif job.result is None:
            yield render("error", message=job.error), *_buttons(is_busy=False)
        else:
            html = await asyncio.to_thread(_render_comparison, session, job.take_result())
            self.sessions.clean_up()
            yield html, *_buttons(is_busy=False)

    def close(self, request: gr.Request) -> None:
        """The page was closed."""
        self.sessions.close(str(request.session_hash))

    def _session(self, request: gr.Request) -> Session:
        return self.sessions.get(str(request.session_hash))

    def _explain_task(self, session: Session, **options: Any) -> ExplainTask:
        if session.upload is None:
            raise InputError("choose an image first")
        classifier = find_model(self.models, session.model)
        request = make_request(session.top_labels, classifier, session.side, self.limits, **options)
        return ExplainTask(session.upload, classifier, request, self.limits)

    def _submit(self, session: Session, task: Any) -> BackgroundJob[Any]:
        session.stop()
        session.job = self.queue.submit(task)
        return session.job

    async def _poll(self, job: BackgroundJob[Any], session: Session, request: gr.Request) -> AsyncIterator[None]:
        """Yields whenever there is new progress, until the job has ended or the session has dropped it.

        Only while a client reads the events: unread ones are kept in memory, and a job that is not polled is stopped.
        """
        seen: Updates = ()
        while not job.ended.is_set() and session.job is job:
            if self.streams is None or self.streams.is_followed(str(request.session_hash)):
                now = (job.poll().updates, job.state, job.ahead, job.is_stopping)
                if now != seen:
                    seen = now
                    yield
            await asyncio.sleep(POLL_SECONDS)


def _event_value(event: gr.EventData, name: str, kind: type[Any]) -> Any:
    """A value of an event; None if it is missing or of another type."""
    value = event._data.get(name) if isinstance(event._data, dict) else None
    return value if type(value) is kind else None


def _is_overtaken(session: Session, event: gr.EventData) -> bool:
    """Whether a later choice of an image arrived before this one: the requests of a page may overtake each other."""
    turn = _event_value(event, "turn", int) or session.latest_turn
    is_overtaken: bool = turn < session.latest_turn
    session.latest_turn = max(turn, session.latest_turn)
    return is_overtaken


def _unchanged() -> Updates:
    return (gr.skip(),) * CHOICE_OUTPUTS


def _buttons(*, is_busy: bool) -> Updates:
    """Which of Explain, Compare and Stop are enabled."""
    return gr.update(interactive=not is_busy), gr.update(interactive=not is_busy), gr.update(interactive=is_busy)


def _render_result(session: Session, result: ExplainResult) -> tuple[str, str, str]:
    """Keep a result, and render its parts: the explanation, the slider and the further explanations."""
    session.explanation, explanation, ranking = result.stored, result.explanation, result.ranking
    session.images.pop("witness", None)
    return (
        results.render_explanation(explanation, result.stored.token, session.publisher("stage")),
        results.render_ranking(explanation, ranking, session.publisher("reveal")) if ranking is not None else "",
        results.render_others(explanation, session.publisher("others")),
    )


def _render_comparison(session: Session, result: StoredResult) -> str:
    """Keep a comparison and render it."""
    session.comparison, comparison = result, result.content
    assert isinstance(comparison, Comparison)
    return results.render_comparison(comparison, result.token, session.publisher("compared"))


def _render_progress(job: BackgroundJob[Any], task: ExplainTask) -> str:
    progress = job.progress
    if job.state == "waiting":
        return render("waiting", ahead=job.ahead)
    snapshot, stage = None, "search"
    if progress.status is not None and progress.depth is not None:
        snapshot = panels.SearchSnapshot(task.view, progress.status.visible, progress.depth)
        stage = progress.status.stage
    return panels.render_running(
        snapshot,
        calls=progress.calls,
        max_calls=task.request.max_calls,
        stage=stage,
        is_stopping=job.is_stopping,
    )
