"""Load test of `becausal serve`: many clients at once, no errors, no mixed-up results, bounded memory.

    python benchmarks/serve_load.py --clients 30 --seconds 120

Starts a server with the bundled classifier on loopback. Every client runs in its own thread and does over plain HTTP
what the page does: send an image, read the predicted labels, explain it, download the result as a zip file, and again
with another image until the time is up. Each result is compared, pixel by pixel, with that of `becausal.explain`. Prints
a report as JSON; the exit status is 1 if anything went wrong.
"""

import argparse
import http.client
import io
import json
import os
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

import numpy as np
from PIL import Image

from becausal import explain, load_model
from becausal.scenes import make_scene


class UnexpectedResponse(Exception):
    """A response that the page should not get."""


def encode_form(
    texts: list[tuple[str, str]], name: str | None, data: bytes = b"", boundary: str = "becausal-form"
) -> tuple[bytes, str]:
    """A form with texts and the file `image`, none without a name: its body and its content type."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{text}\r\n'.encode() for key, text in texts
    ]
    if name is not None:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n'
        parts += [head.encode(), b"Content-Type: image/png\r\n\r\n", data, b"\r\n"]
    return b"".join([*parts, f"--{boundary}--\r\n".encode()]), f"multipart/form-data; boundary={boundary}"


class Client:
    """What the page does, over plain HTTP. image: its name and content; None for the first example."""

    def __init__(self, port: int, cookie: str | None = None, model: str = "bundled") -> None:
        self.port = port
        self.cookie = cookie
        self.model = model
        self.image: tuple[str, bytes] | None = None

    def request(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None):
        """The status, the headers and the body of a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request(method, path, body, self._headers() | (headers or {}))
            response = connection.getresponse()
            return response.status, {key.lower(): value for key, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def _headers(self) -> dict[str, str]:
        return {"Cookie": self.cookie} if self.cookie is not None else {}

    def post(self, path: str, **values: str) -> tuple[int, dict]:
        """Send the image and values of the page's controls: the status and the JSON of the response."""
        texts = list(({"model": self.model} | values).items())
        body, content_type = encode_form(texts, *(self.image or (None,)))
        status, _, answer = self.request("POST", path, body, {"Content-Type": content_type})
        return status, json.loads(answer)

    def choose(self, name: str, data: bytes) -> dict:
        """Choose an image: the parts of the page that depend on it."""
        self.image = (name, data)
        status, reply = self.post("/page/labels")
        if status != 200:
            raise UnexpectedResponse(f"{name}: {status} {reply}")
        return reply

    def start(self, path: str = "/page/explain", **values: str) -> str:
        """The address of a new search."""
        status, reply = self.post(path, **values)
        if status != 202:
            raise UnexpectedResponse(f"{path}: {status} {reply}")
        return f"/page/jobs/{reply['job']}"

    def follow(self, address: str, watch=None) -> tuple[str, dict]:
        """The last event of a search, its name and content; `watch` gets each one at once."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request("GET", f"{address}/events", headers=self._headers())
            name = ""
            for line in connection.getresponse():
                if line.startswith(b"event: "):
                    name = line[7:].decode().strip()
                if line.startswith(b"data: "):
                    content = json.loads(line[6:])
                    if watch is not None:
                        watch(name, content)
                    if name in ("done", "failed"):
                        return name, content
        finally:
            connection.close()
        raise UnexpectedResponse(f"{address} ended without a result")

    def explain(self, **values: str) -> tuple[dict, str]:
        """The summary of the result on the page, and the path of the download."""
        name, content = self.follow(address := self.start(**values))
        found = re.findall(r'data-result="(.*?)"', content.get("stage", ""))
        if name != "done" or not found:
            raise UnexpectedResponse(f"no result on the page: {str(content)[-600:]}")
        return json.loads(unescape(found[-1])), f"{address}/download"


@dataclass(frozen=True)
class Case:
    """An image and its expected result."""

    name: str
    data: bytes
    pixels: int
    visible_sha256: str


def make_case(seed: int, model) -> Case:
    """A scene, and its explanation by the library."""
    scene = make_scene(seed)
    buffer = io.BytesIO()
    Image.fromarray(scene.image).save(buffer, "PNG")
    expected = explain(scene.image, model)
    packed = np.packbits(expected.visible).tobytes()
    return Case(f"scene-{seed}.png", buffer.getvalue(), expected.pixels, sha256(packed).hexdigest())


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
    client.choose(case.name, case.data)
    begun = time.perf_counter()
    summary, link = client.explain()
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
