"""Explain an image through the HTTP API of `becausal serve --api`, with nothing but Python's standard library.

    becausal serve --api                                            # in another terminal
    python examples/http_client.py http://127.0.0.1:7860 photo.jpg

The answer is that of `becausal explain photo.jpg`. The explanation is saved as an image next to it. If the server needs a
token, put it into the environment variable BECAUSAL_TOKEN. Without arguments the script starts a server of its own, on
this machine, and explains a generated scene.
"""

import base64
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


class ServerError(Exception):
    """The server has refused a request, and says why."""


def call(method: str, url: str, content: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    """Send JSON and return the status and the JSON of the answer."""
    headers = {"Content-Type": "application/json"}
    if token := os.environ.get("BECAUSAL_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    body = json.dumps(content).encode() if content is not None else None
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            raise ServerError(f"{error.code}: {json.load(error)['error']}") from None


def explain(server: str, image: Path, **request: Any) -> dict[str, Any]:
    """The explanation of an image file; prints the progress of a long search."""
    content = {
        "image": base64.b64encode(image.read_bytes()).decode("ascii"),
        "name": image.name,
        "request": request,
        "include": ["explanation.png"],
        "wait": 2,
    }
    status, answer = call("POST", f"{server}/v1/explain", content)
    if status == 200:
        return answer
    job = f"{server}/v1/jobs/{answer['id']}"
    while answer["state"] in ("queued", "running"):
        print(f"{answer['state']}, {answer['calls']} model calls", file=sys.stderr)
        time.sleep(1)
        _, answer = call("GET", job)
    call("DELETE", job)
    if answer["state"] == "failed":
        raise ServerError(answer["error"])
    result: dict[str, Any] = answer["result"]
    return result


def main(server: str, image: Path) -> None:
    found = explain(server, image, seed=0)
    print(f"{found['image']}: {found['label']}, {found['explanation']['size']:.0%} of the view is enough")
    saved = image.with_name(f"{image.stem}-explanation.png")
    saved.write_bytes(base64.b64decode(found["files"]["explanation.png"]))
    print(f"saved {saved.name}")


def try_out() -> None:
    """Start a server, explain a scene, and stop the server."""
    from PIL import Image

    from becausal.scenes import make_scene

    scene = Path("scene.png")
    Image.fromarray(make_scene(112).image).save(scene)
    command = [sys.executable, "-m", "becausal", "serve", "--api", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
        assert found is not None
        try:
            main(found[0], scene)
        finally:
            process.terminate()
    assert process.returncode == 0


if __name__ == "__main__":
    try:
        main(sys.argv[1].rstrip("/"), Path(sys.argv[2])) if len(sys.argv) == 3 else try_out()
    except ServerError as error:
        sys.exit(str(error))
