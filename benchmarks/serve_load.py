"""Load test of `becausal serve`: many clients at once, no errors, no mixed-up results, bounded memory.

    python benchmarks/serve_load.py --clients 30 --seconds 120

Starts a server with the bundled classifier on loopback. Every client runs in its own thread and does over plain HTTP
what the page does: upload an image, read the predicted labels, explain one, download the result as a zip file, and again
with another image until the time is up. Each result is compared, pixel by pixel, with that of `becausal.explain`. Prints
a report as JSON; the exit status is 1 if anything went wrong.
"""

import argparse
import http.client
import io
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from html import unescape
from pathlib import Path
from urllib.parse import quote

import numpy as np
from PIL import Image

from becausal import explain, load_model
from becausal.scenes import make_scene

FILL, SHARE, CELLS, CALLS = "grey", 0.9, 32, 2000


class UnexpectedResponse(Exception):
    """A response that the page should not get."""


class Client:
    """One session of the page, over plain HTTP."""

    def __init__(self, port: int, name: str | None = None, cookie: str | None = None) -> None:
        self.port = port
        self.cookie = cookie
        self.name = name or f"{random.getrandbits(64):016x}"
        self.events = self._read_events()

    def request(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None):
        """The status, the headers and the body of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, path, body, self._headers() | (headers or {}))
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def _headers(self) -> dict[str, str]:
        return {"Cookie": self.cookie} if self.cookie is not None else {}

    def _read_events(self) -> dict[tuple[str, str], int]:
        """The number of each event, by the id of its component and its name."""
        status, _, body = self.request("GET", "/config")
        if status != 200:
            raise UnexpectedResponse(f"the page's config: {status} {body[:200]!r}")
        config = json.loads(body)
        names = {part["id"]: part["props"].get("elem_id") or part["type"] for part in config["components"]}
        return {
            (names.get(part, "page"), event): number["id"]
            for number in config["dependencies"]
            for part, event in number["targets"]
            if number["backend_fn"]
        }

    def send(self, part: str, event: str, data: list, extra: dict | None = None) -> str:
        """Send an event and return its id; its outputs arrive on the session's stream."""
        message = {"data": data, "event_data": extra, "fn_index": self.events[part, event], "session_hash": self.name}
        status, _, body = self.request("POST", "/gradio_api/queue/join", json.dumps(message).encode())
        if status != 200:
            raise UnexpectedResponse(f"{part}.{event}: {status} {body[:200]!r}")
        return json.loads(body)["event_id"]

    def fire(self, part: str, event: str, data: list, extra: dict | None = None, watch=None) -> list[dict]:
        """Send an event and return the server's messages until it is complete; `watch` gets each one at once."""
        number = self.send(part, event, data, extra)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        messages = []
        try:
            connection.request("GET", f"/gradio_api/queue/data?session_hash={self.name}", headers=self._headers())
            for line in connection.getresponse():
                if line.startswith(b"data: "):
                    message = json.loads(line[6:])
                    if message.get("event_id") in (number, None):
                        messages.append(message)
                        if watch is not None:
                            watch(message)
                    if message["msg"] == "process_completed" and message["event_id"] == number:
                        if not message["success"]:
                            raise UnexpectedResponse(f"{part}.{event} failed: {str(message)[:300]}")
                        return messages
        finally:
            connection.close()
        raise UnexpectedResponse(f"{part}.{event} ended without a result")

    def upload(self, name: str, data: bytes) -> list[dict]:
        """Upload an image and choose it."""
        status, _, body = self.request("POST", f"/image?name={quote(name)}", data)
        if status != 200:
            raise UnexpectedResponse(f"upload: {status} {body[:200]!r}")
        return self.fire("bc-image", "upload", ["bundled"], {"token": json.loads(body)["token"]})

    def explain(self, label: int) -> tuple[dict, str]:
        """The summary of the result on the page, and the path of the download."""
        values = ["causal", FILL, label, SHARE, CELLS, 1, CALLS]
        page = json.dumps(self.fire("bc-go", "click", values))
        found = re.findall(r'data-result=\\"(.*?)\\"', page)
        link = re.findall(r'href=\\"(download/[\w-]+)\\"', page)
        if not found or not link:
            raise UnexpectedResponse(f"no result on the page: {page[-600:]}")
        return json.loads(unescape(found[-1].replace("\\\\", "\\"))), f"/{link[-1]}"


@dataclass(frozen=True)
class Case:
    """An image and its expected result."""

    name: str
    data: bytes
    label: int
    pixels: int
    visible_sha256: str


def make_case(seed: int, model) -> Case:
    """A scene, and its explanation by the library."""
    scene = make_scene(seed)
    buffer = io.BytesIO()
    Image.fromarray(scene.image).save(buffer, "PNG")
    expected = explain(scene.image, model, fill=FILL, grain=128 // CELLS, max_calls=CALLS)
    packed = np.packbits(expected.visible).tobytes()
    return Case(f"scene-{seed}.png", buffer.getvalue(), expected.label_id, expected.pixels, sha256(packed).hexdigest())


def make_cases(count: int) -> list[Case]:
    """`count` different scenes that can be explained."""
    model, cases, seed = load_model("bundled"), [], 5000
    while len(cases) < count:
        try:
            cases.append(make_case(seed, model))
        except Exception as error:  # e.g. the fully masked image may have the label already
            print(f"seed {seed}: {error}", file=sys.stderr)
        seed += 1
    return cases


def do_round(client: Client, case: Case) -> float:
    """One image from upload to download; returns the seconds until the explanation was shown."""
    client.upload(case.name, case.data)
    begun = time.perf_counter()
    summary, link = client.explain(case.label)
    seconds = time.perf_counter() - begun
    if (summary["image"], summary["image_sha256"]) != (case.name, sha256(case.data).hexdigest()):
        raise UnexpectedResponse(f"{case.name} got the result of {summary['image']}")
    if (summary["pixels"], summary["visible_sha256"]) != (case.pixels, case.visible_sha256):
        raise UnexpectedResponse(f"{case.name}: {summary['pixels']} pixels here, {case.pixels} in the library")
    status, _, body = client.request("GET", link)
    if status != 200:
        raise UnexpectedResponse(f"download: {status}")
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        inside = next(name for name in archive.namelist() if name.endswith("explanation.json"))
        if json.loads(archive.read(inside))["image"] != case.name:
            raise UnexpectedResponse(f"{case.name}: the zip file is of another image")
    return seconds


@dataclass
class Report:
    """The outcome of a run; memory is in MB."""

    clients: int
    seconds: float
    rounds: int = 0
    slowest: float = 0.0
    median: float = 0.0
    memory_before: float = 0.0
    memory_half: float = 0.0  # the peak in the first half of the time
    memory_peak: float = 0.0
    memory_after: float = 0.0
    errors: list[str] = field(default_factory=list)


def run(port: int, pid: int, cases: list[Case], *, clients: int, seconds: float, rounds: int | None = None) -> Report:
    """Run the clients for some seconds, or for a number of rounds each."""
    report = Report(clients, seconds, memory_before=read_memory(pid))
    ends, times, lock = time.monotonic() + seconds, [], threading.Lock()

    def play(number: int) -> None:
        try:
            client = Client(port)
            turn = 0
            while time.monotonic() < ends and (rounds is None or turn < rounds):
                taken = do_round(client, cases[(number + turn * clients) % len(cases)])
                with lock:
                    times.append(taken)
                turn += 1
        except Exception as error:
            with lock:
                report.errors.append(f"client {number}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=play, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        report.memory_peak = max(report.memory_peak, read_memory(pid))
        if ends - time.monotonic() > seconds / 2:
            report.memory_half = report.memory_peak
        time.sleep(0.2)
    report.memory_after = read_memory(pid)
    report.rounds = len(times)
    report.slowest, report.median = (max(times), float(np.median(times))) if times else (0.0, 0.0)
    return report


def read_memory(pid: int) -> float:
    """The resident memory of a process in MB; 0 where it is unknown."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


def start_server(*arguments: str, environment: dict[str, str] | None = None) -> tuple[subprocess.Popen, int]:
    """Start `becausal serve`; returns the process and its port."""
    command = [sys.executable, "-m", "becausal", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | (environment or {}))
    line = process.stdout.readline()
    found = re.search(r"http://[\d.]+:(\d+)", line)
    if found is None:
        process.kill()
        raise UnexpectedResponse(f"the server did not start: {line!r}")
    return process, int(found[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--images", type=int, default=60)
    options = parser.parse_args()
    cases = make_cases(options.images)
    process, port = start_server()
    try:
        report = run(port, process.pid, cases, clients=options.clients, seconds=options.seconds)
    finally:
        process.terminate()
        process.wait(20)
    print(json.dumps(asdict(report), indent=2))
    return 1 if report.errors else 0


if __name__ == "__main__":
    raise SystemExit(main())
