"""Chat models on a server, asked a question about an image: `chat:http://HOST:PORT/v1`, as OpenAI or vLLM serve them.

An image is sent as a PNG file, next to the question. The answer is the label: one of the choices, where there are any, or
whatever is said, in plain form. Where the choices begin with different words, and the server gives the probabilities of
tokens, these are the scores; that is decided once. Answers are cached on disk.
"""

import base64
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import name_id
from becausal.core.errors import AnswerError, ModelError, NetworkError, OptionError
from becausal.core.text import one_line, replace_surrogates
from becausal.images.loading import encode_png
from becausal.models.array_model import ArrayClassifier, Composer
from becausal.models.endpoint.answers import ChatAnswer, differ_at_once, plain, read_answer
from becausal.models.endpoint.cache import Account
from becausal.models.endpoint.options import Address, EndpointOptions, parse_address, parse_endpoint
from becausal.models.endpoint.transport import Reply, Transport, describe_status, read_json
from becausal.models.loading import Loading, ModelSettings
from becausal.models.outputs import make_probe_images
from becausal.models.preprocess import plan_geometry

OTHER = "another answer"  # the label of all that are none of the choices, where there are scores
USUAL = (448, 448)  # the size of images
_LONGEST = 64  # tokens of an answer


@final
class ChatCaller:
    """Asks a model on a server about images, several at a time, from the cache where possible.

    What this process asks a second time is asked again: whoever repeats a question wants to know whether the answer is
    stable. The cache keeps both answers, so that the same command gives the same result, for free.
    names: of the answers so far that have no other id. blank: the id of the answer where there is no image at all.
    """

    def __init__(self, address: Address, options: EndpointOptions, ask: str, choices: Sequence[str]) -> None:
        self._address, self._options = address, options
        self._transport = Transport(address, options)
        self._account = Account(options)
        self.notes = self._account.notes
        self.notes += self._transport.notes
        self.model = options.model or self._choose_model()
        among = f"one of these, and nothing else: {', '.join(choices)}" if choices else "one word or a short phrase"
        self._prompt = f"{ask}\nAnswer with {among}."
        self._choices = tuple(plain(name) for name in choices)
        self._parameters: dict[str, Any] = {"temperature": 0, "seed": 0, "max_tokens": _LONGEST}
        if choices and options.logprobs != "no" and differ_at_once(self._choices):
            self._parameters |= {"logprobs": True, "top_logprobs": 20}
        self.is_scored = False
        self.names: dict[int, str] = {}
        self.blank: int | None = None
        self._others: set[str] = set()
        self._asked, self._lock = Counter[bytes](), threading.Lock()

    def begin(self, grid: tuple[int, int]) -> None:
        """Ask about a first image, and about none: what the server can do, and whether its model is still the same."""
        first = self._ask_first(make_probe_images(grid, 3)[3])
        self.is_scored = "logprobs" in self._parameters and first.scores is not None
        if not self.is_scored:
            self._parameters = {name: value for name, value in self._parameters.items() if "logprobs" not in name}
            if self._choices and self._options.logprobs != "no":
                self.notes.append("there are no log-probabilities that tell the choices apart: labels only, no scores")
        try:
            blank = self._read(self._post(self._write(None))).text
            # Where there are scores, two answers that are none of the choices have one id, and need not be the same.
            self.blank = self._find_id(blank) if blank in self._choices or not self.is_scored else None
            self.notes.append(f"with no image at all, the answer is {blank!r}")
        except AnswerError as error:
            blank = ""
            self.notes.append(f"with no image at all, there is no answer: {error}")
        self._account.probes = self._account.evaluated
        state = hashlib.sha256(f"{first.text}\n{blank}".encode()).digest()  # what it has answered so far
        known = "\n".join([self._address.url, self.model, self._prompt])
        self._account.use_cache(known, np.frombuffer(state, np.uint8))

    def __call__(self, batch: NDArray[Any]) -> NDArray[Any]:
        """The answers to images, (n, h, w, 3): scores (n, choices + 1), or label ids (n,)."""
        bodies, account = [self._write(pixels) for pixels in batch], self._account
        digests = [hashlib.sha256(body).digest() for body in bodies]
        keys = {one: hashlib.sha256(b"%b%b%d" % (account.salt, one, self._asked[one])).digest() for one in digests}
        with self._lock:
            values = account.find(list(keys.values()))
        found = {digest: ChatAnswer(*json.loads(values[key])) for digest, key in keys.items() if key in values}
        account.cached += len(found)

        def keep(digest: bytes, answer: ChatAnswer) -> None:
            found[digest] = answer
            if answer.scores is not None or not self.is_scored:
                account.keep([(keys[digest], json.dumps([answer.text, answer.scores]).encode())])

        missing = {digest: body for digest, body in zip(digests, bodies, strict=True) if digest not in found}
        self._ask_all(missing, keep)
        self._asked.update(keys.keys())
        answers = [found[digest] for digest in digests]
        numbers = [self._find_id(answer.text) for answer in answers]
        if not self.is_scored:
            return np.array(numbers, np.int64)
        for answer in answers:
            if answer.scores is None:
                said = f"no log-probabilities that tell the choices apart came with the answer {answer.text!r}"
                raise AnswerError(f"{said}: add --endpoint logprobs=no to use labels only")
        return np.array([answer.scores for answer in answers], np.float32)

    def report(self) -> tuple[str, ...]:
        """Notes on what counts as another answer, what went wrong, and what was paid for."""
        others = [f"{OTHER!r} is any that is none of the choices, e.g. {min(self._others)!r}"] if self._others else []
        return *others, *self._account.report("answer", "answers by the server ({} of them when it was loaded)")

    def _choose_model(self) -> str:
        """The first model that the server lists."""
        reply, url = self._transport.request("GET", f"{self._address.server}/models"), self._address.url
        scrub = self._transport.scrub
        names: list[str] = []
        with suppress(AnswerError, KeyError, TypeError):  # of another status there is no such list
            names = [scrub(replace_surrogates(str(item["id"]))) for item in read_json(reply.body, url)["data"]]
        if not names:
            status = describe_status(reply)
            raise ModelError(f"{url} lists no models ({status}): check the address, or add --endpoint model=NAME")
        if len(names) > 1:
            self.notes.append(f"the first of {len(names)} models is asked, {names[0]}: choose with --endpoint model=NAME")
        return names[0]

    def _find_id(self, text: str) -> int:
        """A label's id: its place among the choices, or that of its name."""
        if text in self._choices:
            return self._choices.index(text)
        if self.is_scored:
            self._others.add(text)
            return len(self._choices)
        number = name_id(text)
        if self.names.setdefault(number, text) != text:
            raise AnswerError(f"the answers {text!r} and {self.names[number]!r} get the same id: add choices with --labels")
        return number

    def _write(self, pixels: NDArray[np.uint8] | None) -> bytes:
        """The body of a request about an image, or about none."""
        content: list[dict[str, Any]] = [{"type": "text", "text": self._prompt}]
        if pixels is not None:
            url = f"data:image/png;base64,{base64.b64encode(encode_png(pixels)).decode('ascii')}"
            content.append({"type": "image_url", "image_url": {"url": url}})
        messages = [{"role": "user", "content": content}]
        return json.dumps({"model": self.model, "messages": messages, **self._parameters}).encode()

    def _ask_first(self, pixels: NDArray[np.uint8]) -> ChatAnswer:
        """The answer about a first image; parameters that the server refuses are left out from then on."""
        while True:
            known = self._parameters
            logprobs = [name for name in known if "logprobs" in name]
            try:
                reply = self._post(self._write(pixels))
                said = reply.body.decode("utf-8", "replace")
                refused = [name for name in known if name in said] or logprobs
                if reply.status not in (400, 422) or not refused:
                    return self._read(reply)
            except NetworkError as error:
                if "logprobs" not in str(error) or not logprobs:  # status 403 with some models of OpenAI
                    raise
                refused = logprobs
            self._parameters = {name: value for name, value in known.items() if name not in refused}
            if "max_tokens" in refused:
                self._parameters["max_completion_tokens"] = _LONGEST
            if "temperature" in refused:
                self.notes.append("the server does not take temperature 0: its answers may vary")

    def _ask_all(self, bodies: Mapping[bytes, bytes], keep: Callable[[bytes, ChatAnswer], None]) -> None:
        """Send requests, as many at a time as allowed, and keep each answer when it arrives. Raises the first error."""
        waiting, errors = iter(bodies.items()), list[BaseException]()

        def work() -> None:
            try:
                while True:
                    with self._lock:
                        digest, body = (None, b"") if errors else next(waiting, (None, b""))
                    if digest is None:
                        return
                    answer = self._read(self._post(body))
                    with self._lock:
                        keep(digest, answer)
            except BaseException as error:  # raised below
                errors.append(error)

        count = min(len(bodies), self._options.parallel)
        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as error:  # Ctrl-C: nobody waits for what is under way, which keeps its connections
            errors.append(error)
            self._transport = Transport(self._address, self._options)
            raise
        if errors:
            raise errors[0]

    def _post(self, body: bytes) -> Reply:
        path = f"{self._address.server}/chat/completions"
        return self._transport.request("POST", path, body, {"Content-Type": "application/json"})

    def _read(self, reply: Reply) -> ChatAnswer:
        """The answer in a reply. Raises AnswerError that names the server."""
        url, scrub = self._address.url, self._transport.scrub
        if reply.status != 200:
            raise AnswerError(f"{url} refused the question: {describe_status(reply)}")
        content = read_json(scrub(reply.body.decode("utf-8", "replace")).encode(), url)
        try:
            answer = read_answer(content, self._choices, scrub)
        except AnswerError as error:
            raise AnswerError(f"{url} {error}") from None
        with self._lock:
            self._account.evaluated += 1
        return answer


def load(target: str, settings: ModelSettings) -> ArrayClassifier:
    """The chat model at an address. Raises ModelError, NetworkError or OptionError, none of which repeats a secret."""
    address, loading, choices = parse_address(target, "chat"), settings.loading, settings.labels or ()
    ask, options = (loading.ask or "").strip(), parse_endpoint(loading.endpoint, "chat")
    if not ask:
        raise OptionError("a chat: model is asked a question about the image: add e.g. --ask 'What is on the table?'")
    for name in ("device", "half", "preprocess", "returns", "threshold"):
        if getattr(loading, name) != getattr(Loading(), name):
            raise OptionError(f"a chat: model is sent the image, and answers in words: remove --{name}")
    names = {plain(name) for name in choices} - {""}
    if choices and not len(choices) == len(names) > 1:
        given = one_line(", ".join(map(repr, choices)), 80)
        raise OptionError(f"choices are two names or more, which differ by their words, not {given}")
    if OTHER in names:
        raise OptionError(f"{OTHER!r} is the label of all answers that are none of the choices: remove it from the choices")
    resize = settings.resize or "letterbox"
    crop = settings.crop or (USUAL if isinstance(resize, str) else None)
    geometry, notes = plan_geometry(None, resize=resize, crop=crop, interpolation=settings.interpolation)
    if settings.resize is None:
        notes = (f"images are {geometry}: set another size with --resize, e.g. letterbox/672",)
    caller = ChatCaller(address, options, ask, choices)
    caller.begin(geometry.grid)
    record = loading.record()
    record["endpoint"] = [*record.get("endpoint", ()), *([] if options.model else [f"model={caller.model}"])]
    info = replace(
        settings.begin_info("chat", f"chat:{address.url}"),
        geometry=geometry, channels=3, device=address.location, notes=notes, is_costly=True, blank=caller.blank,
        labels=(*choices, OTHER) if caller.is_scored else choices or None, names=caller.names,
        output="probabilities" if caller.is_scored else "labels",
        inputs=f"an image and a question, {one_line(ask, 200)!r}", outputs=f"what {one_line(caller.model, 80)} answers",
        loading=record | ({"labels": list(choices)} if choices else {}),
    )  # fmt: skip
    size = loading.batch_size or options.parallel
    return ArrayClassifier(info, Composer(np.asarray), caller, np.asarray, batch_size=size, report=caller.report)
