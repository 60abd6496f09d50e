"""What happens on the page: an image is chosen, explained, looked at closely, compared."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import gradio as gr

from becausal.api.explanation import Explanation
from becausal.core.contracts import Classifier
from becausal.core.errors import BecausalError, InputError
from becausal.interfaces.web import answers, closeups, parts
from becausal.interfaces.web.limits import Limits
from becausal.interfaces.web.pictures import Upload, check_fits, preview, read_picture
from becausal.interfaces.web.questions import (
    Contest,
    Search,
    Wish,
    ask_witness,
    choose_model,
    classify_view,
    offer_methods,
    view_of,
)
from becausal.interfaces.web.sessions import Found, Session, Sessions
from becausal.interfaces.web.work import Desk, Job
from becausal.render.wording import say_confidence

TICK = 0.15  # seconds between two looks at a running search
OTHER = "rise"  # the method to compare with, unless another is chosen
CHOSEN = 10  # parts of the page that a choice of image or model sets anew


class Page:
    """Everything the page does, for any number of clients at once.

    models: the operator's, by the name that is shown. No client can add one.
    """

    def __init__(
        self, models: Mapping[str, Classifier], sessions: Sessions, desk: Desk, examples: tuple[Upload, ...], limits: Limits
    ) -> None:
        self.models = dict(models)
        self.sessions = sessions
        self.desk = desk
        self.examples = examples
        self.limits = limits

    # ---------------------------------------------------------------- the image

    def open(self, request: gr.Request) -> tuple[Any, ...]:
        """A page was loaded: begin with the first example."""
        session = self._session(request)
        return self._choose(session, session.upload or self.examples[0], next(iter(self.models)))

    def take_example(self, model: str, event: gr.EventData, request: gr.Request) -> tuple[Any, ...]:
        """One of the drawn images was chosen."""
        session, number = self._session(request), _read(event, "example", int)
        known = number is not None and 0 <= number < len(self.examples)
        return self._choose(session, self.examples[number] if known else session.upload, model)

    def take_upload(self, model: str, event: gr.EventData, request: gr.Request) -> tuple[Any, ...]:
        """An image was sent; the event has the token it was answered with."""
        session, token = self._session(request), _read(event, "token", str)
        upload = self.sessions.take(token) if token is not None else None
        note = "" if upload is not None else "The image is no longer here: please choose it again."
        return self._choose(session, upload or session.upload, model, note)

    def take_model(self, model: str, request: gr.Request) -> tuple[Any, ...]:
        """Another model: the same image, other labels, other methods.

        The list says so too when it is only passed by with the Tab key: nothing is forgotten for that.
        """
        session = self._session(request)
        if model == session.wanted:
            return _nothing_new()
        return self._choose(session, session.upload, model)

    def _choose(self, session: Session, upload: Upload | None, model: str, note: str = "") -> tuple[Any, ...]:
        """Show an image and what the model says of it; what was found for another is put away.

        Where several are chosen in a hurry, the last one counts, whichever is read first.
        """
        choice = session.choice = object()
        uri, before, session.wanted = "", session.model, model
        try:
            classifier = choose_model(self.models, model)
            if upload is not None:
                picture = read_picture(upload, self.limits)
                check_fits(picture, classifier, self.limits)
                top, uri = classify_view(picture, classifier), preview(picture)
        except BecausalError as error:
            note, upload = str(error), session.upload
            uri = preview(read_picture(upload, self.limits)) if upload is not None else ""
        else:
            if upload is not None and session.choice is choice:
                session.forget()
                session.upload, session.model, session.top = upload, model, top
                session.side = max(view_of(picture, classifier).shape[:2])
        if session.choice is not choice:
            return _nothing_new()
        session.wanted = session.model
        said = [(f"{name} {say_confidence(sure)}".strip(), number) for number, name, sure in session.top]
        chosen = session.model or next(iter(self.models))
        methods = list(offer_methods(self.models[chosen]))
        return (
            parts.draw_start(self.examples, self.limits, upload, uri, model=chosen, note=note),
            chosen,
            gr.update(choices=said, value=said[0][1] if said else None),
            gr.update(choices=methods, value="causal") if chosen != before else gr.skip(),
            gr.update(choices=methods, value=OTHER) if chosen != before else gr.skip(),
            parts.draw_welcome(),
            "",
            "",
            "",
            parts.draw_invitation(),
        )

    # ---------------------------------------------------------------- the explanation

    async def explain(
        self,
        method: str,
        fill: str,
        label: int,
        share: float,
        grain: int,
        several: int,
        calls: float,
        request: gr.Request,
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Search, show how far it is, and what was found."""
        session = self._session(request)
        try:
            wish = Wish(
                method=method, fill=fill, label_id=label, share=share, grain=grain, several=several, max_calls=int(calls)
            )
            upload, classifier = self._question(session)
            asked = wish.request(session.top, classifier, session.side, self.limits)
            search = Search(upload, classifier, asked, self.limits)
            job = self._submit(session, search)
        except (BecausalError, TypeError, ValueError) as error:
            yield parts.draw_error(str(error)), "", "", "", *_buttons(is_busy=False)
            return
        yield parts.draw_waiting(job.before), "", "", "", *_buttons(is_busy=True)
        async for _ in _follow(job, session):
            drawn = await asyncio.to_thread(_draw_running, job, search)
            if session.job is job:
                yield drawn, *[gr.skip()] * 6
        if session.job is not job:  # another image was chosen meanwhile
            yield parts.draw_welcome(), *[gr.skip()] * 3, *_buttons(is_busy=False)
            return
        if job.result is None:
            yield parts.draw_error(job.error), "", "", "", *_buttons(is_busy=False)
            return
        answer = job.result
        session.found = Found(answer.explanation)
        yield (
            await asyncio.to_thread(answers.draw_found, answer.explanation, session.found.token),
            "",
            await asyncio.to_thread(closeups.draw_reveal, answer.explanation, answer.reveal) if answer.reveal else "",
            await asyncio.to_thread(answers.draw_others, answer.explanation),
            *_buttons(is_busy=False),
        )

    def stop(self, request: gr.Request) -> None:
        """Round off the best so far."""
        self._session(request).stop()

    def show_witness(self, event: gr.EventData, request: gr.Request) -> Any:
        """A pixel of the explanation was chosen; of several, the last one counts."""
        session = self._session(request)
        look = session.look = object()
        found = session.found.answer if session.found is not None else None
        row, column = _read(event, "row", int), _read(event, "column", int)
        if row is None or column is None:
            return ""
        if not isinstance(found, Explanation):
            return parts.draw_error("this answer is no longer here: press Explain again")
        try:
            witness = ask_witness(found, choose_model(self.models, session.model), row, column)
        except BecausalError as error:
            return parts.draw_error(str(error))
        drawn = closeups.draw_witness(found, witness, row, column)
        return drawn if session.look is look and session.found is not None else gr.skip()

    # ---------------------------------------------------------------- two methods

    async def compare(
        self, method: str, other: str, fill: str, label: int, share: float, calls: float, request: gr.Request
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Two methods, one after the other, side by side in the end."""
        session = self._session(request)
        try:
            upload, classifier = self._question(session)
            for name in (method, other):
                wish = Wish(method=name, fill=fill, label_id=label, share=share, max_calls=int(calls))
                asked = wish.request(session.top, classifier, session.side, self.limits)
            if method == other:
                raise InputError(f"choose another method to compare {method} with")
            job = self._submit(session, Contest(upload, classifier, (method, other), asked, self.limits))
        except (BecausalError, TypeError, ValueError) as error:
            yield parts.draw_error(str(error)), *_buttons(is_busy=False)
            return
        yield parts.draw_waiting(job.before), *_buttons(is_busy=True)
        async for _ in _follow(job, session):
            running = parts.draw_comparing((method, other), calls=job.live.calls, stopping=job.is_stopping)
            yield running if job.state == "running" else parts.draw_waiting(job.before), *[gr.skip()] * 3
        if session.job is not job:
            yield parts.draw_invitation(), *_buttons(is_busy=False)
        elif job.result is None:
            yield parts.draw_error(job.error), *_buttons(is_busy=False)
        else:
            session.compared = Found(job.result)
            drawn = await asyncio.to_thread(answers.draw_comparison, job.result, session.compared.token)
            yield drawn, *_buttons(is_busy=False)

    # ---------------------------------------------------------------- all of them

    def leave(self, request: gr.Request) -> None:
        """A page was closed."""
        self.sessions.leave(str(request.session_hash))

    def _session(self, request: gr.Request) -> Session:
        return self.sessions.of(str(request.session_hash))

    def _question(self, session: Session) -> tuple[Upload, Classifier]:
        if session.upload is None:
            raise InputError("choose an image first")
        return session.upload, choose_model(self.models, session.model)

    def _submit(self, session: Session, task: Any) -> Job[Any]:
        session.stop()
        session.job = self.desk.submit(task)
        return session.job


def _read(event: gr.EventData, name: str, kind: type[Any]) -> Any:
    """A value that came with an event, if it is there and of that type."""
    value = event._data.get(name) if isinstance(event._data, dict) else None
    return value if type(value) is kind else None


def _nothing_new() -> tuple[Any, ...]:
    """The page stays as it is after a choice."""
    return (gr.skip(),) * CHOSEN


def _buttons(*, is_busy: bool) -> tuple[Any, Any, Any]:
    """Explain, Compare and Stop, as they may be pressed now."""
    return gr.update(interactive=not is_busy), gr.update(interactive=not is_busy), gr.update(interactive=is_busy)


async def _follow(job: Job[Any], session: Session) -> AsyncIterator[None]:
    """Until the job has ended, or its page has another image: a beat whenever there is something new to draw."""
    seen: tuple[Any, ...] = ()
    while not job.ended.is_set() and session.job is job:
        now = (job.look().number, job.state, job.before, job.is_stopping)
        if now != seen:
            seen = now
            yield
        await asyncio.sleep(TICK)


def _draw_running(job: Job[Any], search: Search) -> str:
    live, view = job.live, search.view
    if job.state == "waiting":
        return parts.draw_waiting(job.before)
    shot, stage = None, "search"
    if live.status is not None and view is not None and live.depth is not None:
        shot, stage = parts.Shot(view, live.status.visible, live.depth), live.status.stage
    limit = search.request.max_calls
    return parts.draw_live(shot, calls=live.calls, max_calls=limit, stage=stage, stopping=job.is_stopping)
