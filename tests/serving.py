"""Servers for tests: in a thread, with models they control, or as a process; and the clients of the load tests."""

import importlib.util
import io
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from becausal.interfaces.serve.app import listen, make_app, make_server
from becausal.interfaces.serve.limits import Limits
from becausal.models import as_classifier

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

SLOW = '''
import threading
from becausal import load_model

model, pause = load_model("bundled"), threading.Event()
SIZE, LABELS, OUTPUT = 128, list(model.info.labels), "probabilities"

def predict(batch):
    """The bundled classifier, slowed down."""
    pause.wait(0.2)
    return model.classify(batch)
'''


def load_benchmark(name):
    """benchmarks/NAME.py as a module."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(BENCHMARKS))


@contextmanager
def serving(models, limits=None, **options):
    """A server in a thread; it is shut down as by SIGTERM."""
    bound = listen("127.0.0.1", 0)
    server = make_server(make_app(models, limits or Limits(), **options), shutdown_seconds=30)
    bound.listen(256)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        yield Served(bound.getsockname()[1], server, thread)
    finally:
        server.should_exit = True
        thread.join(60)
        bound.close()
    assert not thread.is_alive()


@contextmanager
def serving_process(folder, *arguments):
    """The port of a process with two models, bundled and slow; its temporary files are in the folder."""
    (folder / "slow.py").write_text(SLOW)
    (folder / "temporary").mkdir()
    load = load_benchmark("serve_load")
    environment = {"TMPDIR": str(folder / "temporary"), "OMP_NUM_THREADS": "1"}
    models = ("--model", "bundled", "--model", f"python:{folder / 'slow.py'}:predict")
    process, port = load.start_server(*models, *arguments, environment=environment)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


class Served:
    """A running server."""

    def __init__(self, port, server, thread):
        self.port, self.server, self.thread = port, server, thread


class Gate:
    """A classifier of 16x16 images, bright or dark in the middle, that answers while the gate is open."""

    def __init__(self):
        self.is_open = threading.Event()
        self.is_open.set()
        self.reached = threading.Event()  # it has been called while the gate was closed
        self.free_calls = 0  # batches that may still pass a closed gate
        self.classifier = as_classifier(self.predict, labels=["dark", "bright"], returns="probabilities")

    def close(self, *, after=0):
        self.reached.clear()
        self.free_calls = after
        self.is_open.clear()

    def predict(self, batch):
        if self.free_calls > 0:
            self.free_calls -= 1
        elif not self.is_open.is_set():
            self.reached.set()
            assert self.is_open.wait(60)
        middle = batch[:, 4:12, 4:12].astype(float).mean((1, 2, 3)) / 255
        share = 1 / (1 + np.exp(-30 * (middle - 0.6)))
        return np.stack([1 - share, share], 1)


def encode(pixels, file_format="PNG", **options):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, file_format, **options)
    return buffer.getvalue()


def bright_image(seed=0):
    return encode(np.random.default_rng(seed).integers(200, 256, (16, 16, 3), np.uint8))
