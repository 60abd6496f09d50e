"""A small server of the Open Inference Protocol, with faults on demand; a process of its own.

    python tests/oip_server.py [--port P] [--tls CERT KEY]

It writes its port on the first line of stdout and serves, below /v2/models/:

    scenes    the bundled classifier, FP32 [N,3,128,128], outputs probs and logits
    toy       UINT8 [N,16,16,3], two classes by the brightness of a corner; quick
    and toy's relatives: nameless (no metadata), single (no batch axis), four (a batch of four), half (FP16, NCHW),
    labelled (INT64 labels), detector and loose (boxes, with a batch axis or without), named (BYTES), two (two inputs),
    loading (never ready), versions/1 and /2 of toy

POST /control sets how it behaves: {"faults": [...], "settings": {...}}. Each inference request takes the next of the
faults: null, {"status": 503, "headers": {...}, "error": "..."}, {"sleep": S}, {"reset": "before"|"body"}, {"body": "..."},
{"nan": true}, {"infinite": true}, {"null": true}, {"shape": [...]}, {"flat": N}, {"twice": true}, {"huge": BYTES},
{"version": "2"}, {"pieces": BYTES, "pause": S}, {"exit": true}. Settings: token, largest (batch), binary (bool),
extensions, config, versions, delay, keep_alive (bool), mix (towards equal scores). GET /control tells what was asked: a
hash per image, in order, the connections, the headers of the last request, how many requests are under way.

It shares no code with the package, so that both sides must read the protocol the same way.
"""

import argparse
import hashlib
import json
import os
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

DTYPES = {"UINT8": "u1", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "INT64": "<i8"}
BUNDLED = Path(__file__).parent.parent / "src" / "becausal" / "models" / "bundled" / "scenes.onnx"


class Scenes:
    """The bundled classifier; onnxruntime is loaded when it is first asked."""

    session = None

    def __call__(self, batch):
        if self.session is None:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            self.session = onnxruntime.InferenceSession(str(BUNDLED), options, providers=["CPUExecutionProvider"])
        probs, logits = self.session.run(["probs", "logits"], {"input": batch})
        return {"probs": probs, "logits": logits}


def corner(batch):
    """Scores (n, 2) of images (n, 16, 16, 3): how bright the 8 x 8 pixels in the upper left are."""
    share = batch[:, :8, :8].astype(np.float64).mean(axis=(1, 2, 3)) / 255
    return np.stack([1 - share, share], axis=1).astype(np.float32)


def boxes(batch):
    """Two boxes on images (n, 16, 16, 3): the corner, as sure as it is bright, and the whole image."""
    found = np.array([[[0, 0, 8, 8], [0, 0, 16, 16]]], np.float32)
    scores = np.stack([corner(batch)[:, 1], np.full(len(batch), 0.5, np.float32)], axis=1)
    return {"boxes": found.repeat(len(batch), 0), "scores": scores, "labels": np.array([[1, 0]]).repeat(len(batch), 0)}


def tensor(name, datatype, *shape):
    return {"name": name, "datatype": datatype, "shape": list(shape)}


SCORES = [tensor("scores", "FP32", -1, 2)]
MODELS = {
    "scenes": (
        [tensor("input", "FP32", -1, 3, 128, 128)],
        [tensor("probs", "FP32", -1, 13), tensor("logits", "FP32", -1, 13)],
        Scenes(),
    ),
    "toy": ([tensor("x", "UINT8", -1, 16, 16, 3)], SCORES, lambda batch: {"scores": corner(batch)}),
    "nameless": ([], [], lambda batch: {"scores": corner(batch)}),
    "single": (
        [tensor("x", "UINT8", 16, 16, 3)], [tensor("scores", "FP32", 2)], lambda one: {"scores": corner(one[None])[0]}
    ),
    "four": ([tensor("x", "UINT8", 4, 16, 16, 3)], SCORES, lambda batch: {"scores": corner(batch)}),
    "half": (
        [tensor("x", "FP16", -1, 3, 16, 16)],
        [tensor("scores", "FP16", -1, 2)],
        lambda batch: {"scores": corner(255 * np.moveaxis(batch, 1, -1)).astype(np.float16)},
    ),
    "labelled": (
        [tensor("x", "UINT8", -1, 16, 16, 3)],
        [tensor("label", "INT64", -1)],
        lambda batch: {"label": corner(batch).argmax(axis=1)},
    ),
    "detector": (
        [tensor("x", "UINT8", -1, 16, 16, 3)],
        [tensor("boxes", "FP32", -1, 2, 4), tensor("scores", "FP32", -1, 2), tensor("labels", "INT64", -1, 2)],
        lambda batch: boxes(batch),
    ),
    "loose": (
        [tensor("x", "UINT8", -1, 16, 16, 3)],
        [tensor("boxes", "FP32", -1, 4), tensor("scores", "FP32", -1), tensor("labels", "INT64", -1)],
        lambda batch: {name: values[0] for name, values in boxes(batch[:1]).items()},
    ),
    "named": ([tensor("x", "UINT8", -1, 16, 16, 3)], [tensor("name", "BYTES", -1)], lambda batch: {}),
    "two": ([tensor("x", "UINT8", -1, 16, 16, 3), tensor("y", "UINT8", -1, 16, 16, 3)], SCORES, lambda batch: {}),
    "flat": ([tensor("x", "FP32", -1, 768)], SCORES, lambda batch: {}),
    "text": ([tensor("x", "BYTES", -1, 16, 16, 3)], SCORES, lambda batch: {}),
    "loading": ([tensor("x", "UINT8", -1, 16, 16, 3)], SCORES, lambda batch: {}),
}  # fmt: skip


class State:
    """How the server behaves, and what it has seen."""

    def __init__(self):
        self.lock = threading.Lock()
        self.busy = 0
        self.reset()

    def reset(self):
        self.faults, self.settings = [], {}
        self.pictures, self.batches, self.paths, self.connections, self.headers = [], [], [], 0, {}


STATE = State()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        STATE.connections += 1

    def log_message(self, *arguments):
        pass

    def send(self, status, body, headers=None, pieces=None, pause=0):
        """An answer; pieces: in chunks of so many bytes, and no word about the length, pause: seconds between them."""
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        size = {"Content-Length": str(len(body))} if pieces is None else {"Transfer-Encoding": "chunked"}
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", **size, **(headers or {})}.items():
            self.send_header(key, value)
        if STATE.settings.get("keep_alive") is False:
            self.send_header("Connection", "close")
        self.end_headers()
        if pieces is None:
            self.wfile.write(body)
            return
        for start in range(0, len(body), pieces):
            piece = body[start : start + pieces]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            time.sleep(pause)
        self.wfile.write(b"0\r\n\r\n")

    def admitted(self):
        STATE.headers = {key.lower(): value for key, value in self.headers.items()}
        STATE.paths.append(self.path)
        token = STATE.settings.get("token")
        if token is None or self.headers.get("Authorization") == token:
            return True
        self.send(401, {"error": "who are you?"})
        return False

    def do_GET(self):
        if self.path == "/control":
            seen = {
                name: getattr(STATE, name) for name in ("pictures", "batches", "paths", "connections", "headers", "busy")
            }
            return self.send(200, seen)
        if not self.admitted():
            return None
        if self.path == "/v2":
            said = STATE.settings.get("extensions")
            return self.send(404, {}) if said is None else self.send(200, {"name": "s", "version": "1", "extensions": said})
        if self.path == "/elsewhere/v2/models/toy":
            return self.send(302, {}, {"Location": "http://user:secret@other.example/v2/models/toy?key=secret"})
        if self.path == "/page/v2/models/toy":
            return self.send(200, b"<html>hello</html>")
        name, _, rest = self.path.removeprefix("/v2/models/").partition("/")
        version, rest = (rest.split("/")[1], "/".join(rest.split("/")[2:])) if rest.startswith("versions/") else ("", rest)
        if name not in MODELS or version not in ("", "1", "2"):
            return self.send(404, {"error": f"model {name} not found"})
        if rest == "ready":
            return self.send(400, {"error": "still loading"}) if name == "loading" else self.send(200, b"")
        if rest == "config" and "config" in STATE.settings:
            return self.send(200, STATE.settings["config"])
        inputs, outputs, _ = MODELS[name]
        versions = STATE.settings.get("versions", ["1"])
        return self.send(200, {"name": name, "versions": versions, "platform": "test", "inputs": inputs, "outputs": outputs})

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/control":
            said = json.loads(body)
            STATE.reset()
            STATE.faults, STATE.settings = said.get("faults", []), said.get("settings", {})
            return self.send(200, {})
        if not self.admitted():
            return None
        with STATE.lock:
            fault = (STATE.faults.pop(0) if STATE.faults else None) or {}
            STATE.busy += 1
        try:
            return self.infer(body, fault)
        except (KeyError, ValueError, TypeError) as error:
            return self.send(400, {"error": f"{type(error).__name__}: {error}"})
        finally:
            with STATE.lock:
                STATE.busy -= 1

    def infer(self, body, fault):
        time.sleep(fault.get("sleep", STATE.settings.get("delay", 0)))
        name = self.path.removeprefix("/v2/models/").split("/")[0]
        inputs, _, run = MODELS[name]
        asked, batch = self.read(body)
        if inputs and asked["name"] not in [item["name"] for item in inputs]:
            raise ValueError(f"no input {asked['name']}")
        largest = STATE.settings.get("largest")
        if largest is not None and len(batch) > largest:
            return self.send(400, {"error": f"inference request batch-size must be <= {largest} for '{name}'"})
        if "exit" in fault:
            os._exit(1)
        if "status" in fault:
            return self.send(fault["status"], {"error": fault.get("error", "injected")}, fault.get("headers"))
        if fault.get("reset") == "before":
            return self.cut()
        pictures = batch[None] if name == "single" else batch
        with STATE.lock:
            STATE.batches.append(len(pictures))
            STATE.pictures += [hashlib.sha256(np.ascontiguousarray(one).tobytes()).hexdigest() for one in pictures]
        if "body" in fault:
            return self.send(200, fault["body"].encode())
        if "huge" in fault:
            return self.send(200, b"[" + b"1," * (fault["huge"] // 2), pieces=fault.get("pieces"))
        outputs, mix = run(batch), STATE.settings.get("mix", 0)
        if mix:
            outputs = {key: ((1 - mix) * value + mix / value.shape[-1]).astype("<f4") for key, value in outputs.items()}
        return self.answer(name, outputs, fault)

    def read(self, body):
        """The one input that was sent, and its tensor."""
        length = self.headers.get("Inference-Header-Content-Length")
        if length is not None and not STATE.settings.get("binary"):
            raise ValueError("no binary form here")
        said = json.loads(body if length is None else body[: int(length)])
        (asked,) = said["inputs"]
        self.wanted = {item["name"]: item.get("parameters", {}) for item in said.get("outputs", [])}
        self.all_binary = said.get("parameters", {}).get("binary_data_output", False)
        dtype = DTYPES[asked["datatype"]]
        if length is None:
            batch = np.array(asked["data"], dtype)
        else:
            batch = np.frombuffer(body[int(length) :][: asked["parameters"]["binary_data_size"]], dtype)
        return asked, batch.reshape(asked["shape"])

    def answer(self, name, outputs, fault):
        items, tail = [], b""
        for key, value in outputs.items():
            if self.wanted and key not in self.wanted:
                continue
            value = np.concatenate([value, value]) if "twice" in fault else np.array(value)
            if "nan" in fault or "infinite" in fault:
                value[-1] = np.nan if "nan" in fault else np.inf
            shape = fault.get("shape", list(value.shape))
            kind = {"f2": "FP16", "f4": "FP32", "i8": "INT64"}[value.dtype.str[1:]]
            item = {"name": key, "datatype": kind, "shape": shape}
            if self.all_binary or self.wanted.get(key, {}).get("binary_data"):
                item["parameters"] = {"binary_data_size": value.nbytes}
                tail += value.tobytes()
            else:
                data = value.reshape(-1)[: fault.get("flat")].tolist()
                item["data"] = [None] * len(data) if "null" in fault else data
            items.append(item)
        said = {"model_name": name, "model_version": fault.get("version", "1"), "outputs": items}
        head = json.dumps(said).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))} if tail else {}
        if fault.get("reset") == "body":
            self.send_response(200)
            self.send_header("Content-Length", str(len(head)))
            self.end_headers()
            self.wfile.write(head[: len(head) // 2])
            return self.cut()
        if "head_pause" in fault:
            return self.drip_head(fault["head_pause"])
        return self.send(200, head + tail, headers, fault.get("pieces"), fault.get("pause", 0))

    def drip_head(self, pause):
        """Headers that never end, a byte at a time."""
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        for _ in range(int(20 / pause)):
            self.wfile.write(b"a")
            time.sleep(pause)

    def cut(self):
        """Close the connection at once."""
        self.wfile.flush()
        self.close_connection = True
        self.connection.close()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tls", nargs=2)
    options = parser.parse_args()
    server = Server(("127.0.0.1", options.port), Handler)
    if options.tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*options.tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    print(server.server_address[1], flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()  # ends with its parent
    server.serve_forever()


if __name__ == "__main__":
    main()
