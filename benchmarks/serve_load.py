"""Many clients at once on `becausal serve`: no error, no mixed-up answer, memory within bounds.

    python benchmarks/serve_load.py --clients 30 --seconds 120

Starts a server with the bundled classifier on loopback and lets every client, in a thread of its own, do what a page
does, over plain HTTP: upload an image, read what the classifier says, have it explained, fetch the answer as a zip file,
and again with another image until the time is up. Each answer is compared, pixel by pixel, with the one that
`becausal.explain` gives for that image here. Prints the figures as JSON and ends with status 1 if anything is wrong.
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

FILL, SHARE, GRAIN, CALLS = "grey", 0.9, 32, 2000


class Trouble(Exception):
    """An answer that is not what a page should get."""


class Client:
    """A page, as far as the server can tell: one session, plain HTTP."""

    def __init__(self, port: int, name: str | None = None) -> None:
        self.port = port
        self.name = name or f"{random.getrandbits(64):016x}"
        self.events = self._read_events()

    def request(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None):
        """The status, the headers and the body of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _read_events(self) -> dict[tuple[str, str], int]:
        """The number of each event by the id of its part and its name."""
        status, _, body = self.request("GET", "/config")
        if status != 200:
            raise Trouble(f"the page's config: {status} {body[:200]!r}")
        config = json.loads(body)
        names = {part["id"]: part["props"].get("elem_id") or part["type"] for part in config["components"]}
        return {
            (names.get(part, "page"), event): number["id"]
            for number in config["dependencies"]
            for part, event in number["targets"]
            if number["backend_fn"]
        }

    def send(self, part: str, event: str, data: list, extra: dict | None = None) -> str:
        """Cause an event; its number. What comes of it is said on the session's one stream."""
        wanted = {"data": data, "event_data": extra, "fn_index": self.events[part, event], "session_hash": self.name}
        status, _, body = self.request("POST", "/gradio_api/queue/join", json.dumps(wanted).encode())
        if status != 200:
            raise Trouble(f"{part}.{event}: {status} {body[:200]!r}")
        return json.loads(body)["event_id"]

    def fire(self, part: str, event: str, data: list, extra: dict | None = None, watch=None) -> list[dict]:
        """Cause an event, and hear everything the server says to it until it is through; `watch` hears it at once."""
        number = self.send(part, event, data, extra)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        said = []
        try:
            connection.request("GET", f"/gradio_api/queue/data?session_hash={self.name}")
            for line in connection.getresponse():
                if line.startswith(b"data: "):
                    message = json.loads(line[6:])
                    if message.get("event_id") in (number, None):
                        said.append(message)
                        if watch is not None:
                            watch(message)
                    if message["msg"] == "process_completed" and message["event_id"] == number:
                        if not message["success"]:
                            raise Trouble(f"{part}.{event} failed: {str(message)[:300]}")
                        return said
        finally:
            connection.close()
        raise Trouble(f"{part}.{event} ended without an answer")

    def upload(self, name: str, data: bytes) -> list[dict]:
        """Send an image and choose it."""
        status, _, body = self.request("POST", f"/picture?name={quote(name)}", data)
        if status != 200:
            raise Trouble(f"upload: {status} {body[:200]!r}")
        return self.fire("bc-picture", "upload", ["bundled"], {"token": json.loads(body)["token"]})

    def explain(self, label: int) -> tuple[dict, str]:
        """What the page says of the answer, and where the answer can be fetched."""
        values = ["causal", FILL, label, SHARE, GRAIN, 1, CALLS]
        page = json.dumps(self.fire("bc-go", "click", values))
        found = re.findall(r'data-result=\\"(.*?)\\"', page)
        link = re.findall(r'href=\\"(download/[\w-]+)\\"', page)
        if not found or not link:
            raise Trouble(f"no answer on the page: {page[-600:]}")
        return json.loads(unescape(found[-1].replace("\\\\", "\\"))), f"/{link[-1]}"


@dataclass(frozen=True)
class Case:
    """An image and the answer it must get."""

    name: str
    data: bytes
    label: int
    pixels: int
    visible_sha256: str


def make_case(seed: int, model) -> Case:
    """A scene, and its explanation as the library gives it."""
    scene = make_scene(seed)
    buffer = io.BytesIO()
    Image.fromarray(scene.picture).save(buffer, "PNG")
    answer = explain(scene.picture, model, fill=FILL, confidence=SHARE, grain=128 // GRAIN, max_calls=CALLS)
    packed = np.packbits(answer.visible).tobytes()
    return Case(f"scene-{seed}.png", buffer.getvalue(), answer.label_id, answer.pixels, sha256(packed).hexdigest())


def make_cases(count: int) -> list[Case]:
    """So many different cases that can be explained at all."""
    model, cases, seed = load_model("bundled"), [], 5000
    while len(cases) < count:
        try:
            cases.append(make_case(seed, model))
        except Exception as error:  # the empty image may have the label already: no case
            print(f"seed {seed}: {error}", file=sys.stderr)
        seed += 1
    return cases


def do_round(client: Client, case: Case) -> float:
    """An image from upload to download; the seconds until its explanation was there. Raises Trouble."""
    client.upload(case.name, case.data)
    begun = time.perf_counter()
    said, link = client.explain(case.label)
    seconds = time.perf_counter() - begun
    if (said["image"], said["image_sha256"]) != (case.name, sha256(case.data).hexdigest()):
        raise Trouble(f"{case.name} got the answer of {said['image']}")
    if (said["pixels"], said["visible_sha256"]) != (case.pixels, case.visible_sha256):
        raise Trouble(f"{case.name}: {said['pixels']} pixels here, {case.pixels} in the library")
    status, _, body = client.request("GET", link)
    if status != 200:
        raise Trouble(f"download: {status}")
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        inside = next(name for name in archive.namelist() if name.endswith("explanation.json"))
        if json.loads(archive.read(inside))["image"] != case.name:
            raise Trouble(f"{case.name}: the zip file is of another image")
    return seconds


@dataclass
class Report:
    """What happened."""

    clients: int
    seconds: float
    rounds: int = 0
    slowest: float = 0.0
    median: float = 0.0
    memory_before: float = 0.0  # MB
    memory_half: float = 0.0  # the most in the first half of the time
    memory_most: float = 0.0
    memory_after: float = 0.0
    errors: list[str] = field(default_factory=list)


def run(port: int, pid: int, cases: list[Case], *, clients: int, seconds: float, rounds: int | None = None) -> Report:
    """Let clients loose for a time, or for so many rounds each."""
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
        report.memory_most = max(report.memory_most, read_memory(pid))
        if ends - time.monotonic() > seconds / 2:
            report.memory_half = report.memory_most
        time.sleep(0.2)
    report.memory_after = read_memory(pid)
    report.rounds = len(times)
    report.slowest, report.median = (max(times), float(np.median(times))) if times else (0.0, 0.0)
    return report


def read_memory(pid: int) -> float:
    """The resident memory of a process in MB; 0 where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


def start_server(*arguments: str, environment: dict[str, str] | None = None) -> tuple[subprocess.Popen, int]:
    """`becausal serve` as a process of its own, and its port."""
    command = [sys.executable, "-m", "becausal", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | (environment or {}))
    line = process.stdout.readline()
    found = re.search(r"http://[\d.]+:(\d+)", line)
    if found is None:
        process.kill()
        raise Trouble(f"the server did not start: {line!r}")
    return process, int(found[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--pictures", type=int, default=60)
    options = parser.parse_args()
    cases = make_cases(options.pictures)
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
