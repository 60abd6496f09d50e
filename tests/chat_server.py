"""A small chat server behind the OpenAI protocol, with faults on demand: the bundled classifier answers about scenes.

`ChatServer()` listens in threads of this process, at `spec`; as a process of its own, `python tests/chat_server.py` prints
the address. Below /v1 there are /models and /chat/completions. The question is not read: the answer is the classifier's
label of the image, and without an image `settings["blank"]`.

`set(faults, **settings)` says how it behaves from now on, and forgets what it has seen. Each request to /chat/completions
takes the next of the faults: None, {"status": 503, "headers": {…}, "error": "…"}, {"sleep": S}, {"body": "…"},
{"message": {…}}, {"finish": "…"}, {"token": "…"} (a first token that is not what is said). Settings: `logprobs` ("yes",
"no", "refused", "forbidden"), `refused` (parameters that it does not take), `key` (an Authorization header that it wants),
`delay`, `form` (of an answer, e.g. "A {}."), `blank` (None: a question without an image is refused), `always` (an answer to
everything), `models`, `echo` (a header that is part of every answer), `jitter` (of the probabilities). What it has seen:
`requests` (JSON), `images` (sha256), `headers` of the last request, `most` requests at a time.

It shares no code with the package, so that both sides must read the protocol the same way.
"""

import base64
import hashlib
import io
import json
import math
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from PIL import Image

BUNDLED = Path(__file__).parent.parent / "src" / "becausal" / "models" / "bundled"
LABELS = (BUNDLED / "labels.txt").read_text().splitlines()
USUAL = {
    "logprobs": "yes", "refused": [], "key": None, "delay": 0, "form": "{}", "blank": "I see no image", "always": None,
    "models": ["scenes-vl"], "echo": None, "jitter": 0.0,
}  # fmt: skip


class ChatServer:
    """The server, from when it is made until `stop`."""

    def __init__(self):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        providers = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(str(BUNDLED / "scenes.onnx"), options, providers=providers)
        self.lock = threading.Lock()
        self.set()
        owner = self

        class Handler(_Handler):
            server_of = owner

        self.http = _Threads(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        self.spec = f"chat:http://127.0.0.1:{self.port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def set(self, faults=(), **settings):
        assert not settings.keys() - USUAL.keys()
        with self.lock:
            self.faults, self.settings = list(faults), USUAL | settings
            self.requests, self.images, self.headers, self.busy, self.most = [], [], {}, 0, 0

    def stop(self):
        self.http.shutdown()
        self.http.server_close()

    def chances(self, data):
        """The probability of each label of an image file."""
        pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((128, 128)), np.float32)
        batch = np.moveaxis(pixels / 127.5 - 1, -1, 0)[None]
        return self.session.run(["probs"], {"input": batch})[0][0].astype(float)

    def answer(self, asked, fault):
        """The response to a request, a status and a JSON object."""
        settings = self.settings
        if refused := [name for name in settings["refused"] if name in asked]:
            return 400, {"error": {"message": f"Unsupported parameter: '{refused[0]}'", "type": "invalid_request_error"}}
        if settings["logprobs"] == "refused" and "logprobs" in asked:
            return 400, {"error": {"message": "Logprobs is not enabled for this model"}}
        if settings["logprobs"] == "forbidden" and "logprobs" in asked:
            return 403, {"error": {"message": "You are not allowed to request logprobs from this model."}}
        parts = {part["type"]: part for part in asked["messages"][0]["content"]}
        if "image_url" in parts:
            head, data = parts["image_url"]["image_url"]["url"].split(",")
            assert head == "data:image/png;base64"
            data = base64.b64decode(data)
            self.images.append(hashlib.sha256(data).hexdigest())
            shift = settings["jitter"] * (1 + len(self.images) % 3)  # batches of others change the third digit
            said = {
                name: (1 - shift) * own + shift / len(LABELS) for name, own in zip(LABELS, self.chances(data), strict=True)
            }
        elif settings["blank"] is None:
            return 400, {"error": {"message": "an image is required"}}
        else:
            said = {settings["blank"]: 1.0}
        if settings["always"] is not None:
            said = {settings["always"]: 1.0}
        text = settings["form"].format(max(said, key=said.get))
        if settings["echo"]:
            text += f" {self.headers[settings['echo'].lower()]}"
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        if "logprobs" in asked and settings["logprobs"] == "yes":
            choice["logprobs"] = {"content": self.tokens(text, said, fault.get("token"))}
        choice["message"] |= fault.get("message", {})
        choice["finish_reason"] = fault.get("finish", "stop")
        return 200, {"object": "chat.completion", "choices": [choice], "usage": {"total_tokens": 9}}

    def tokens(self, text, said, first):
        """The answer in tokens of one word each; the word of the label has the first words of all labels beside it."""
        words, found = [word if i == 0 else f" {word}" for i, word in enumerate(text.split(" "))], []
        label = max(said, key=said.get)
        for word in words:
            is_label = word.strip().strip(".").casefold() == label.split(" ")[0]
            space = " " if word.startswith(" ") else ""
            chances = {space + name.split(" ")[0]: chance for name, chance in said.items()} if is_label else {}
            chances.pop(space + label.split(" ")[0], None)
            own = said[label] if is_label else 1.0
            token = first if first is not None and not found else word
            top = sorted({**chances, token: own}.items(), key=lambda item: -item[1])
            listed = [{"token": name, "logprob": math.log(max(chance, 1e-9))} for name, chance in top]
            found.append({"token": token, "logprob": math.log(own), "top_logprobs": listed})
        return found


class _Threads(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *arguments):
        pass

    def send(self, status, body, headers=None):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        size = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        for key, value in {**size, **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def is_admitted(self):
        owner = self.server_of
        owner.headers = {key.lower(): value for key, value in self.headers.items()}
        if owner.settings["key"] in (None, self.headers.get("Authorization")):
            return True
        self.send(401, {"error": {"message": "Incorrect API key provided"}})
        return False

    def do_GET(self):
        if self.is_admitted():
            is_known = self.path == "/v1/models"
            models = [{"id": name, "object": "model"} for name in self.server_of.settings["models"]]
            self.send(200 if is_known else 404, {"object": "list", "data": models} if is_known else {"detail": "Not Found"})

    def do_POST(self):
        body, owner = self.rfile.read(int(self.headers["Content-Length"])), self.server_of
        if not self.is_admitted():
            return
        if self.path != "/v1/chat/completions":
            self.send(404, {"detail": "Not Found"})
            return
        with owner.lock:
            fault = (owner.faults.pop(0) if owner.faults else None) or {}
            owner.requests.append(json.loads(body))
            owner.busy += 1
            owner.most = max(owner.most, owner.busy)
        try:
            time.sleep(fault.get("sleep", owner.settings["delay"]))
            status, said = owner.answer(json.loads(body), fault)
        finally:
            with owner.lock:
                owner.busy -= 1
        if "status" in fault:
            self.send(fault["status"], {"error": {"message": fault.get("error", "injected")}}, fault.get("headers"))
        elif "body" in fault:
            self.send(200, fault["body"].encode())
        else:
            self.send(status, said)


if __name__ == "__main__":
    print(ChatServer().spec, flush=True)
    threading.Event().wait()
