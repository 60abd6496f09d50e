"""Load test of `becausal serve --api`: many clients at once, no errors, no mixed-up answers, bounded memory.

    python benchmarks/api_load.py --clients 30 --seconds 120

Starts a server with the bundled classifier on loopback. Every client runs in its own thread and sends one image after the
other until the time is up: as a form, as JSON, or as a job that is polled, in turn. Each answer is
compared with that of `becausal.explain` for the same image, field by field without the times; every fourth one has the
arrays too. Prints the memory of the server over time and a report as JSON; the exit status is 1 if anything went wrong.
"""

import argparse
import http.client
import io
import json
import threading
import time
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import asdict, dataclass, field

import numpy as np
from PIL import Image
from serve_load import encode_form, read_memory, start_server

from becausal import Request, explain_many, load_model
from becausal.core.errors import InputError
from becausal.interfaces.serve.images import Upload, decode_image
from becausal.interfaces.serve.limits import Limits
from becausal.scenes import make_scene

REQUEST = {"seed": 1, "max_calls": 200}
SHAPES = ("form", "json", "job")
POLL_SECONDS = 0.2


class UnexpectedAnswer(Exception):
    """An answer that a client should not get."""


@dataclass(frozen=True)
class Case:
    """An image file and its expected answer."""

    name: str
    data: bytes
    record: dict
    visible: np.ndarray


def without_times(record: dict) -> dict:
    """A record without the fields that differ from run to run, and without included files."""
    kept = {key: value for key, value in record.items() if key not in ("seconds", "files")}
    kept["stats"] = {key: value for key, value in record["stats"].items() if not key.endswith("seconds")}
    return kept


def make_case(seed: int, model) -> Case:
    """A scene, and its explanation by the library. Raises an error if it cannot be explained."""
    buffer = io.BytesIO()
    Image.fromarray(make_scene(seed).image).save(buffer, "PNG")
    upload = Upload(f"scene-{seed}.png", buffer.getvalue())
    image = decode_image(upload, Limits())
    found = next(explain_many([image], model, request=Request.from_record(REQUEST)))
    if not hasattr(found, "record"):
        raise found.error
    return Case(upload.name, upload.data, without_times(json.loads(json.dumps(found.record()))), found.visible)


def make_cases(count: int) -> list[Case]:
    """`count` different scenes that can be explained."""
    model, cases, seed = load_model("bundled"), [], 7000
    while len(cases) < count:
        with suppress(InputError):  # e.g. the fully masked image may have the label already
            cases.append(make_case(seed, model))
        seed += 1
    return cases


class ApiClient:
    """One client over plain HTTP."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self.port = port
        self.token = token

    def request(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None):
        """The status, the headers in lower case and the body of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        own = {"Authorization": f"Bearer {self.token}"} if self.token is not None else {}
        try:
            connection.request(method, path, body, own | (headers or {}))
            response = connection.getresponse()
            return response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        finally:
            connection.close()

    def post_json(self, path: str, content: dict, headers: dict[str, str] | None = None):
        """The status, the headers and the JSON of the response."""
        body = json.dumps(content).encode()
        status, lines, answer = self.request("POST", path, body, {"Content-Type": "application/json", **(headers or {})})
        return status, lines, json.loads(answer)

    def post_form(self, texts: list[tuple[str, str]], name: str, data: bytes, headers: dict[str, str] | None = None):
        """Send a file with fields to /v1/explain."""
        body, content_type = encode_form(texts, name, data)
        status, lines, answer = self.request("POST", "/v1/explain", body, {"Content-Type": content_type, **(headers or {})})
        return status, lines, json.loads(answer)

    def wait_for(self, location: str) -> dict:
        """Poll a job until it has ended."""
        while True:
            status, _, body = self.request("GET", location)
            job = json.loads(body)
            if status != 200 or job["state"] in ("done", "failed"):
                return job
            time.sleep(POLL_SECONDS)


def explain(client: ApiClient, case: Case, shape: str, include: list[str]) -> dict:
    """The record that the server answers with."""
    if shape == "form":
        texts = [(key, str(value)) for key, value in REQUEST.items()] + [("include", name) for name in include]
        status, headers, answer = client.post_form(texts, case.name, case.data)
    else:
        body = {"image": b64encode(case.data).decode(), "name": case.name, "request": REQUEST, "include": include}
        prefer = {"Prefer": "respond-async"} if shape == "job" else {}
        status, headers, answer = client.post_json("/v1/explain", body, prefer)
    if status == 202:
        answer = client.wait_for(headers["location"])
        client.request("DELETE", headers["location"])
        status, answer = (200, answer["result"]) if answer.get("state") == "done" else (500, answer)
    if status != 200:
        raise UnexpectedAnswer(f"{case.name} as {shape}: {status} {str(answer)[:200]}")
    return answer


def check_answer(case: Case, answer: dict, include: list[str]) -> None:
    """Compare an answer with the expected one; raises UnexpectedAnswer."""
    if answer["image"] != case.name or answer["origin"]["image_sha256"] != case.record["origin"]["image_sha256"]:
        raise UnexpectedAnswer(f"mixed up: {case.name} got the answer of {answer['image']}")
    if without_times(answer) != case.record:
        wrong = [key for key, value in case.record.items() if without_times(answer).get(key) != value]
        raise UnexpectedAnswer(f"{case.name}: differs from the library in {wrong}")
    if include:
        arrays = np.load(io.BytesIO(b64decode(answer["files"]["arrays.npz"])))
        if not np.array_equal(arrays["visible"], case.visible):
            raise UnexpectedAnswer(f"mixed up: {case.name} has the arrays of another image")


@dataclass
class ApiReport:
    """The outcome of a run; memory is in MB."""

    clients: int
    seconds: float
    answers: int = 0
    mixed_up: int = 0
    slowest: float = 0.0
    median: float = 0.0
    memory_start: float = 0.0
    memory_middle: float = 0.0
    memory_end: float = 0.0
    memory_peak: float = 0.0
    memory_peak_first_half: float = 0.0
    memory: list[int] = field(default_factory=list)  # every ten seconds
    errors: list[str] = field(default_factory=list)


def run(port: int, pid: int, cases: list[Case], *, clients: int, seconds: float, rounds: int | None = None) -> ApiReport:
    """Run the clients for some seconds, or for a number of rounds each."""
    report = ApiReport(clients, seconds, memory_start=read_memory(pid))
    begun, times, lock = time.monotonic(), [], threading.Lock()

    def play(number: int) -> None:
        client, turn = ApiClient(port), 0
        while time.monotonic() - begun < seconds and (rounds is None or turn < rounds):
            case, shape = cases[(number + turn * clients) % len(cases)], SHAPES[(number + turn) % len(SHAPES)]
            include = ["arrays.npz"] if turn % 4 == 3 else []
            sent = time.monotonic()
            try:
                check_answer(case, explain(client, case, shape, include), include)
            except Exception as error:
                with lock:
                    report.errors.append(f"client {number}: {type(error).__name__}: {error}")
                    report.mixed_up += "mixed up" in str(error)
            with lock:
                times.append(time.monotonic() - sent)
            turn += 1

    threads = [threading.Thread(target=play, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        now, passed = read_memory(pid), time.monotonic() - begun
        report.memory_peak = max(report.memory_peak, now)
        if passed < seconds / 2:
            report.memory_peak_first_half, report.memory_middle = report.memory_peak, now
        if passed >= 10 * len(report.memory):
            report.memory.append(round(now))
        time.sleep(0.2)
    report.memory_end, report.answers = read_memory(pid), len(times)
    report.slowest, report.median = (max(times), float(np.median(times))) if times else (0.0, 0.0)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--images", type=int, default=60)
    options = parser.parse_args()
    cases = make_cases(options.images)
    process, port = start_server("--api")
    try:
        report = run(port, process.pid, cases, clients=options.clients, seconds=options.seconds)
        _, _, metrics = ApiClient(port).request("GET", "/metrics")
    finally:
        process.terminate()
        status = process.wait(30)
    counts = [line for line in metrics.decode().splitlines() if line.startswith(("becausal_requests", "becausal_queue"))]
    print("\n".join(counts), f"exit status of the server {status}", json.dumps(asdict(report), indent=2), sep="\n")
    return 1 if report.errors or status else 0


if __name__ == "__main__":
    raise SystemExit(main())
