"""Explain one answer of a chat model that is asked about an image, over HTTP, in at most 150 calls.

    python examples/chat.py

`Handler` stands for your server (vLLM, llama.cpp, Ollama, …): it speaks the protocol of OpenAI, and the bundled classifier
answers in the place of a language model. With a server of your own, all you need is `load_model` and `explain` in `main`.
"""

import base64
import io
import json
import math
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from PIL import Image

import becausal
from becausal.scenes import make_scene

bundled = becausal.load_model("bundled")
names = bundled.info.labels or ()


class Handler(BaseHTTPRequestHandler):
    """`/v1/models`, and `/v1/chat/completions` with the log-probabilities of one token."""

    protocol_version = "HTTP/1.1"
    requests = 0

    def do_GET(self) -> None:
        self.reply({"data": [{"id": "scenes"}]})

    def do_POST(self) -> None:
        Handler.requests += 1
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        parts = {part["type"]: part for part in asked["messages"][0]["content"]}
        said = [(1.0, "I see no image")]
        if "image_url" in parts:
            data = base64.b64decode(parts["image_url"]["image_url"]["url"].partition(",")[2])
            pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((128, 128)))
            said = sorted(zip(bundled.classify(pixels[None])[0].tolist(), names, strict=True), reverse=True)
        likely = [{"token": name, "logprob": math.log(chance + 1e-9)} for chance, name in said]
        message = {"role": "assistant", "content": said[0][1]}
        logprobs = {"content": [{**likely[0], "top_logprobs": likely}]}
        self.reply({"choices": [{"message": message, "finish_reason": "stop", "logprobs": logprobs}]})

    def reply(self, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    scene = make_scene(112)  # a house behind a black bar
    with tempfile.TemporaryDirectory() as folder:
        model = becausal.load_model(
            f"chat:http://127.0.0.1:{server.server_port}/v1",
            ask="What is behind the bar?",
            labels=["house", "sailboat", "tree", "mug"],
            endpoint={"parallel": 4, "price": 0.001, "cache": folder},
        )
        explanation = becausal.explain(scene.image, model)

    # Two of the questions are asked when the model is loaded.
    print(f"{explanation.label} ({explanation.confidence:.2f}), {Handler.requests} questions")
    truth = explanation.frame.from_original(scene.visible)
    for level in explanation.levels:
        on_house = np.count_nonzero(level.visible & truth) / level.pixels
        print(f"{level.name}: {level.size:.1%} of the view, {on_house:.0%} of it on the house")
    for note in explanation.notes:
        print(f"note: {note}")
    assert explanation.label == scene.label
    assert explanation.checks.sufficient
    assert explanation.calls <= 150


if __name__ == "__main__":
    main()
