"""Small images and models for the tests of runs: quick to explain, and able to fail in every way."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from becausal.api import Request
from becausal.batch.inputs import find_inputs
from becausal.batch.settings import BatchJob, settings_of
from becausal.batch.store import BatchStore

QUICK = ("--grain", "4")  # explained with 30 calls each instead of 400; the options of `toy_job` too

MODEL = '''
import os, signal, time
from pathlib import Path
import numpy as np
LABELS = ["dark", "bright"]
OUTPUT = "probabilities"

def predict(batch):
    share = (batch[:, 8:16, 8:16].mean(axis=(1, 2, 3)) / 255) ** 2
    return np.stack([1 - share, share], axis=1)

def doubts(batch):
    """The square in the middle speaks for the label, what is bright at the top left against it."""
    light = batch.mean(axis=3) / 255
    evidence = 9 * light[:, 8:16, 8:16].mean(axis=(1, 2)) - 6 * light[:, :6, :12].mean(axis=(1, 2)) - 3.5
    share = 1 / (1 + np.exp(-evidence))
    return np.stack([1 - share, share], axis=1)

def is_marked(batch, value):
    pixel = batch[:, 12, 12].astype(int)
    others = pixel[:, 1]  # of the bright square; hardly any random background has such a pixel
    return ((pixel[:, 0] == value) & (others >= 235) & (others == pixel[:, 2])).any()

def raises(batch):
    """On 201 at once, on 202 only once pixels are masked."""
    if is_marked(batch, 201) or (is_marked(batch, 202) and (batch[:, 0, 0, 0] == 128).any()):
        raise RuntimeError("this one\\nI do not like")
    return predict(batch)

def always_raises(batch):
    raise RuntimeError("the accelerator has gone")

def dies(batch):
    if is_marked(batch, 203):
        os.kill(os.getpid(), signal.SIGKILL)
    return predict(batch)

def raises_once(batch):
    if is_marked(batch, 201) and not Path("seen").exists():
        Path("seen").touch()
        raise RuntimeError("not today")
    return predict(batch)

def dies_once(batch):
    if is_marked(batch, 203) and not Path("seen").exists():
        Path("seen").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return predict(batch)

def slow(batch):
    time.sleep(0.01)
    return predict(batch)

def slow_once_all_are_ready(batch):
    while not Path("all-ready").exists():
        time.sleep(0.05)
    time.sleep(0.1)
    return predict(batch)
'''

NAMES = """
import numpy as np

def predict(batch):
    means = batch[:, 8:16, 8:16].mean(axis=(1, 2))
    return [("red", "green", "blue")[row.argmax()] if np.ptp(row) > 100 else "grey" for row in means]
"""


def draw(seed: int, mark: int | None = None) -> np.ndarray:
    """A dark image of 24 px with a bright square in the middle, which the toy model detects."""
    pixels = np.random.default_rng(seed).integers(0, 60, (24, 24, 3)).astype(np.uint8)
    pixels[7:17, 7:17] = 235 + seed % 20
    if mark is not None:
        pixels[12, 12, 0] = mark
    return pixels


def write_pictures(folder: Path, count: int, marks: dict[int, int] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(count):
        Image.fromarray(draw(k, (marks or {}).get(k))).save(folder / f"p{k:02d}.png")
    return folder


def write_doubtful(folder: Path, count: int) -> Path:
    """Images for the toy model `doubts`: two nested sets explain each, and a patch speaks against all but the last."""
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(count):
        pixels = draw(k)
        pixels[:5, :12] = 200 if k + 1 < count else 0
        Image.fromarray(pixels).save(folder / f"p{k:02d}.png")
    return folder


def write_coco(folder: Path, count: int) -> Path:
    """A COCO file for such images: the box lies on the square, for every third image outside of it."""
    images = [{"id": k + 10, "file_name": f"p{k:02d}.png", "width": 24, "height": 24} for k in range(count)]
    marks = [
        {"id": k, "image_id": k + 10, "category_id": 2, "bbox": [0, 0, 5, 5] if k % 3 == 2 else [7, 7, 10, 10]}
        for k in range(count)
    ]
    names = [{"id": 1, "name": "dark"}, {"id": 2, "name": "Bright"}]
    path = folder / "boxes.json"
    path.write_text(json.dumps({"images": images, "annotations": marks, "categories": names}))
    return path


def open_store(run: Path, *sources: str | Path) -> BatchStore:
    """A store as the command line opens it, with default settings."""
    inputs = find_inputs([str(source) for source in sources])
    return BatchStore(run, inputs, settings_of(toy_job(), inputs))


def toy_job(name: str = "predict", **changed: object) -> BatchJob:
    """The job of a toy model in net.py of the working directory."""
    changed = {"request": Request(grain=4)} | changed
    return BatchJob(model=f"python:net.py:{name}", folder=str(Path.cwd()), **changed)  # type: ignore[arg-type]
