"""A server process for tests with its own folder for temporary files, and a slow model."""

import importlib.util
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent

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


def load_benchmark():
    """benchmarks/serve_load.py as a module, for its HTTP client."""
    spec = importlib.util.spec_from_file_location("serve_load", ROOT / "benchmarks" / "serve_load.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def serving(folder, *arguments):
    """The port of a server with two models, bundled and slow; its temporary files are in the folder."""
    (folder / "slow.py").write_text(SLOW)
    (folder / "temporary").mkdir()
    load = load_benchmark()
    environment = {"TMPDIR": str(folder / "temporary"), "OMP_NUM_THREADS": "1"}
    models = ("--model", "bundled", "--model", f"python:{folder / 'slow.py'}:predict")
    process, port = load.start_server(*models, *arguments, environment=environment)
    try:
        yield port
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
