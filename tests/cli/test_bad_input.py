"""Bad input, through the command line: one line on stderr, exit status 2, no traceback, nothing half-written.

And odd but good input: images of every kind that can be read are read right.
"""

import errno
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from becausal.api.explanation import Explanation
from becausal.batch.index import count_reasons
from becausal.interfaces.cli.app import main

MODEL = """
import numpy as np
LABELS = ["dark", "bright"]
OUTPUT = "probabilities"
calls = 0

def predict(batch):
    share = (batch[:, 8:16, 8:16].mean(axis=(1, 2, 3)) / 255) ** 2
    return np.stack([1 - share, share], axis=1)

def failing(last):
    def fails(batch):
        global calls
        calls += 1
        if calls > last:
            raise RuntimeError("the accelerator\\nhas gone")
        return predict(batch)

    return fails

fails_early, fails_halfway = failing(2), failing(5)

random = np.random.default_rng(0)

def changes_its_mind(batch):
    scores = predict(batch)
    noise = random.uniform(0, 0.5, len(batch))
    return np.stack([scores[:, 0] * (1 - noise), 1 - scores[:, 0] * (1 - noise)], axis=1)

def says_nan(batch):
    return predict(batch) * np.nan

def says_infinity(batch):
    return predict(batch) + np.inf

def nan_later(batch):
    global calls
    calls += 1
    return predict(batch) * (np.nan if calls > 2 else 1)

def draws_a_picture(batch):
    return batch

def says_one_number(batch):
    return 0.5

def says_too_few(batch):
    return predict(batch)[:1] if len(batch) > 1 else predict(batch)

def says_nothing(batch):
    return None

def says_objects_that_are_no_numbers(batch):
    return np.array([[None, 1.0]] * len(batch), object)

def says_numbers_as_text(batch):
    return predict(batch).astype(str)

def says_objects(batch):
    return predict(batch).astype(object)

def exits(batch):
    raise SystemExit("bye")

def paints(batch):
    bright = batch[:, ::4, ::4].mean(axis=3) / 25 - 5
    return np.stack([-bright, bright], axis=1)
"""
BASE = ["--model", "python:net.py:predict", "--method", "dc-causal", "--option", "partitions=2"]
Prepare = Callable[[], list[str]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    Path("net.py").write_text(MODEL)
    Image.fromarray(square()).save("photo.png")
    return tmp_path


def square(side: int = 32) -> np.ndarray:
    pixels = np.zeros((side, side, 3), np.uint8)
    pixels[8:16, 8:16] = 255
    return pixels


def image(name: str, data: bytes = b"") -> Prepare:
    """Explain a file with these bytes; no bytes, no file."""

    def prepare() -> list[str]:
        if data:
            Path(name).write_bytes(data)
        return [name, *BASE]

    return prepare


def words(*options: str) -> Prepare:
    """Explain the good image with these options over the good ones."""
    return lambda: ["photo.png", *BASE, *options]


def clip(*options: str) -> Prepare:
    """Ask the bundled model of images and texts."""
    return words("--model", "bundled:clip", *options)


def model(spec: str, data: bytes = b"") -> Prepare:
    """Explain the good image with another model, whose file holds these bytes."""

    def prepare() -> list[str]:
        if data:
            Path(spec).write_bytes(data)
        return ["photo.png", *BASE, "--model", spec]

    return prepare


def segments(*options: str) -> Prepare:
    """Explain the good image with a model that gives every pixel a class."""
    return words("--model", "segment:python:net.py:paints", "--resize", "squash/32", *options)


def chat(address: str, *options: str) -> Prepare:
    """Ask a chat model about the good image."""
    return lambda: ["photo.png", "--model", f"chat:{address}", "--ask", "What is it?", *options]


def bomb() -> bytes:
    """A PNG of a few bytes that promises 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def truncated() -> list[str]:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save("cut.jpg", quality=95)
    Path("cut.jpg").write_bytes(Path("cut.jpg").read_bytes()[:2000])
    return ["cut.jpg", *BASE]


def empty_file() -> list[str]:
    Path("empty.png").touch()
    return ["empty.png", *BASE]


def a_folder() -> list[str]:
    Path("folder.png").mkdir()
    return ["folder.png", *BASE]


def pickled() -> list[str]:
    np.save("objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return ["objects.npy", *BASE]


def with_nan() -> list[str]:
    np.save("holes.npy", np.full((32, 32), np.nan))
    return ["holes.npy", *BASE]


def wrong_rank() -> list[str]:
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "flat",
        [value("x", onnx.TensorProto.FLOAT, ["n", 10])],
        [value("y", onnx.TensorProto.FLOAT, ["n", 10])],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), "flat.onnx")
    return ["photo.png", *BASE, "--model", "flat.onnx"]


def no_score_vector() -> list[str]:
    onnx = pytest.importorskip("onnx")
    value = onnx.helper.make_tensor_value_info
    shape = ["n", 3, 32, 32]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "picture",
        [value("x", onnx.TensorProto.FLOAT, shape)],
        [value("y", onnx.TensorProto.FLOAT, shape)],
    )
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), "picture.onnx")
    return ["photo.png", *BASE, "--model", "picture.onnx"]


def out_is_a_file() -> list[str]:
    Path("taken").write_text("mine")
    return ["photo.png", *BASE, "--out", "taken"]


def out_is_under_a_file() -> list[str]:
    Path("taken").write_text("mine")
    return ["photo.png", *BASE, "--out", "taken/deeper"]


def image_folder_is_a_file() -> list[str]:
    Path("out").mkdir()
    Path("out/photo").write_text("mine")
    return ["photo.png", *BASE]


BAD: dict[str, tuple[Prepare, str]] = {
    "missing image": (image("missing.png"), "missing.png"),
    "zero-byte image": (empty_file, "empty"),
    "truncated image": (truncated, "cut.jpg"),
    "text for an image": (image("notes.png", b"these are notes"), "notes.png"),
    "decompression bomb": (image("bomb.png", bomb()), "million pixels"),
    "a folder for an image": (a_folder, "is a folder: use becausal batch folder.png"),
    "pickled objects": (pickled, "objects.npy"),
    "an array with NaN": (with_nan, "NaN"),
    "no model file": (model("missing.onnx"), "missing.onnx"),
    "a file that is no model": (model("notes.onnx", b"these are notes"), "notes.onnx"),
    "an empty spec": (model(""), "is not a model specification"),
    "an unknown kind of model": (model("caffe:net"), "is not a model specification"),
    "no Python file": (model("python:missing.py:predict"), "missing.py"),
    "no such function": (model("python:net.py:forecast"), "forecast"),
    "wrong input rank": (wrong_rank, "the array has shape 32x32x3; the model takes arrays of shape 10"),
    "an output that is no score vector": (no_score_vector, "shape"),
    "an image for scores": (model("python:net.py:draws_a_picture"), "shape"),
    "one number for scores": (model("python:net.py:says_one_number"), "one row"),
    "too few rows": (model("python:net.py:says_too_few"), ""),
    "nothing for scores": (model("python:net.py:says_nothing"), ""),
    "NaN scores": (model("python:net.py:says_nan"), "NaN"),
    "objects for scores": (
        model("python:net.py:says_objects_that_are_no_numbers"),
        "NoneType, float; expected numbers",
    ),
    "text for scores": (model("python:net.py:says_numbers_as_text"), "expected numbers"),
    "an image under a file": (image("net.py/photo.png"), "a part of its path is a file, not a folder"),
    "a model under a file": (model("net.py/net.onnx"), "a part of its path is a file, not a folder"),
    "labels under a file": (words("--labels", "net.py/names.txt"), "a part of its path is a file, not a folder"),
    "infinite scores": (model("python:net.py:says_infinity"), "inf"),
    "NaN scores after a while": (model("python:net.py:nan_later"), "NaN"),
    "a model that fails before anything is known": (model("python:net.py:fails_early"), "the accelerator has gone"),
    "a model that exits": (model("python:net.py:exits"), "bye"),
    "a model that changes its mind": (model("python:net.py:changes_its_mind"), "two ways"),
    "a target that does not hold": (words("--target", "dark"), "the model does not say dark here: its top label is bright"),
    "a fill that has the label": (words("--fill", "white"), "fully masked image"),
    "a pixel of a classifier": (words("--at", "9,9"), "at is for models that give every pixel a class"),
    "a pixel without a row": (words("--at", "9"), "a place is x,y in whole pixels of the image"),
    "a pixel outside": (segments("--at", "32,9"), "there is no pixel 32,9 in an image of 32 x 32"),
    "neither pixel nor segment": (segments(), "say which segment with --target, or which pixel with --at X,Y"),
    "a box of segments": (segments("--box", "1"), "this model gives every pixel a class"),
    "segments of a classifier": (
        model("segment:python:net.py:predict"),
        "returns scores per class, not maps of classes: load it",
    ),
    "segments of segments": (model("segment:segment:python:net.py:paints"), "give a network alone"),
    "segments of nothing": (model("segment:"), "is not a model specification"),
    "a confidence twice": (words("--complete", "--confidence", "0.5"), "--complete"),
    "an unknown target": (words("--target", "brigth"), "bright"),
    "a target out of range": (words("--target", "7"), "7"),
    "against itself": (words("--against", "bright"), "same"),
    "an unknown fill": (words("--fill", "plaid"), "plaid"),
    "a fill image that is missing": (words("--fill", "image:missing.png"), "missing.png"),
    "an unknown method": (words("--method", "magic"), "magic"),
    "an unknown option of the method": (words("--option", "speed=9"), "speed"),
    "an option without a value": (words("--option", "speed"), "key=value"),
    "an option of a wrong type": (words("--option", "parts=many"), "many"),
    "an option out of range": (words("--option", "partitions=0"), "partitions"),
    "an unknown option": (words("--sped", "9"), "--sped"),
    "a number that is none": (words("--seed", "first"), "--seed"),
    "a grain that is none": (words("--grain", "fine"), "fine"),
    "a grain of nothing": (words("--grain", "0"), "grain"),
    "no top at all": (words("--top", "0"), "top"),
    "a confidence above all": (words("--confidence", "2"), "confidence"),
    "a budget for nothing": (words("--max-calls", "1"), "max_calls"),
    "a batch of nothing": (words("--batch-size", "0"), "batch_size"),
    "an unknown device": (words("--device", "abacus"), "abacus"),
    "an unknown preset": (words("--preprocess", "magic"), "magic"),
    "an unknown resize": (words("--resize", "sideways"), "sideways"),
    "an unknown kind of output": (words("--returns", "poems"), "poems"),
    "no labels file": (words("--labels", "missing.txt"), "missing.txt"),
    "an output folder that is a file": (out_is_a_file, "taken"),
    "an output folder under a file": (out_is_under_a_file, "taken"),
    "an image's folder that is a file": (image_folder_is_a_file, "photo"),
    "no image to compare with": (model("embed:bundled"), "say which with --like IMAGE, or use `becausal similar`"),
    "a missing image to compare with": (words("--model", "embed:bundled", "--like", "missing.png"), "missing.png"),
    "an image to compare with for a classifier": (words("--like", "photo.png"), "like is for embed: models, not for python"),
    "a similarity that an empty image has": (
        words("--model", "embed:bundled", "--like", "photo.png", "--threshold", "0.01"),
        "already: give a threshold above it, not 0.01",
    ),
    "one number for embeddings": (
        words("--model", "embed:python:net.py:says_one_number", "--like", "photo.png"),
        "the function returned shape () for",
    ),
    "a detector for embeddings": (
        words("--model", "embed:detect:net.onnx", "--like", "photo.png"),
        "cannot follow it: give a network alone",
    ),
    "a chat model without a question": (model("chat:http://127.0.0.1:9/v1"), "add e.g. --ask 'What is on the table?'"),
    "a chat server that is not there": (chat("http://127.0.0.1:9/v1"), "no server is listening at 127.0.0.1:9"),
    "a chat address that is none": (chat("localhost:8000"), "expected chat:http://HOST:PORT/v1"),
    "a choice of one": (chat("http://127.0.0.1:9/v1", "--labels", "yes,"), "choices are two names or more"),
    "a question to another model": (words("--ask", "What?"), "ask is for chat: models, not for python"),
    "no network for a hub model": (model("hf:nobody/no-such-model"), "hf"),
    "no prompts": (
        model("clip:nobody/no-such-model"),
        'compares an image with prompts, say which: --labels "a photo of a cat,a photo of a dog", or --text "a red bus"',
    ),
    "prompts twice": (clip("--text", "a mug", "--labels", "a mug,a bus"), "prompts, one or the other, not both"),
    "one prompt among none": (
        clip("--labels", "a mug,a mug"),
        "two or more different prompts, not a mug, a mug; for one, use",
    ),
    "an empty prompt": (clip("--text", ""), 'a prompt is empty; expected a text such as "a red bus"'),
    "a prompt of unknown words": (clip("--text", "zebra"), "the model knows no word of the prompt 'zebra'; it knows a, "),
    "a threshold for several prompts": (
        clip("--labels", "a mug,a bus", "--threshold", "0.5"),
        "threshold is for one prompt",
    ),
    "what embeddings are": (clip("--text", "a mug", "--returns", "logits"), "returns embeddings: remove returns"),
    "a text for a classifier": (words("--text", "a mug"), "text is for clip: models, not for python"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gives_one_line_and_leaves_nothing(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare, expected = BAD[name]
    arguments = prepare()
    if "--out" not in arguments:
        arguments += ["--out", "out"]
    before = snapshot(place)
    status = main(["explain", *arguments])
    said, complaint = capsys.readouterr()
    assert status == 2, said
    assert said == ""
    assert complaint.startswith("becausal: error: ")
    assert complaint.count("\n") == 1, complaint
    assert "Traceback" not in complaint
    assert len(complaint) < 600
    assert expected in complaint
    assert snapshot(place) == before


def snapshot(place: Path) -> dict[str, bytes]:
    """Every file of a folder, but for caches of compiled code."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in place.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("name", ["a model that fails before anything is known"])
def test_bad_input_to_the_command_itself(name: str, place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "becausal", "explain", *BAD[name][0](), "--out", "out"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("becausal: error: ")
    assert done.stderr.count("\n") == 1
    assert not os.path.lexists("out")


@pytest.mark.usefixtures("without_figures")
def test_a_model_that_fails_halfway_gives_one_line_and_leaves_what_was_found(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["explain", *model("python:net.py:fails_halfway")(), "--out", "out"])
    said, complaint = capsys.readouterr()
    assert status == 2
    assert "The model failed before the search finished." in said
    assert complaint == "becausal: error: the model failed: RuntimeError: the accelerator has gone\n"
    (folder,) = (place / "out").iterdir()
    assert Explanation.load(folder).stopped_by == "failure"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["verify", "nowhere"], "nowhere"),
        (["verify", "."], "explanation.json"),
        (["verify", "net.py"], "a part of its path is a file, not a folder"),
        (["check", ".", "--rules", "net.py/rules.toml"], "a part of its path is a file, not a folder"),
        (["inspect", "missing.onnx"], "missing.onnx"),
        (["inspect", "python:net.py:predict", "missing.png"], "missing.png"),
        (["methods", "magic"], "magic"),
        (["scenes", "make", "--count", "0", "--out", "x"], "count"),
        (["scenes", "show", "--out", "sheet.txt"], "sheet.txt"),
        (["explian"], "explain"),
        (["explain"], "IMAGE"),
        (["explain", "photo.png"], "--model"),
        (["demo", "--out", "net.py"], "net.py"),
        (["batch", "photo.png", "--model", "bundled", "--out", "run", "--gpus-per-worker", "1"], "--ray"),
        (["batch", "photo.png", "--model", "bundled", "--out", "run", "--workers", "0"], "--workers"),
        (["bench", "scenes", "--model", "bundled", "--smallest", "--confidence", "1"], "smallest"),
        (["bench", "scenes"], "--model"),
    ],
)
def test_bad_input_to_other_commands(
    arguments: list[str], expected: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(place)
    assert main(arguments) == 2
    said, complaint = capsys.readouterr()
    assert said == ""
    assert complaint.startswith("becausal: error: ")
    assert complaint.count("\n") == 1
    assert expected in complaint
    assert "Err" not in complaint
    assert snapshot(place) == before


HUGE = ["10000000000000000000000", "-10000000000000000000000", "9" * 5000, "1e400", "nan", "-inf", "", "many"]
EXPLAIN = ["explain", "photo.png", *BASE]
BATCH = ["batch", "photo.png", *BASE, "--out", "run"]
BENCH = ["bench", "scenes", "--model", "bundled", "--methods", "random", "--limit", "1"]
COMMANDS: dict[str, tuple[list[str], list[str]]] = {  # what is complete without them, and options that take a number
    "explain": (EXPLAIN, ["--top", "--confidence", "--several", "--seed", "--max-calls", "--grain"]),
    "loading": (EXPLAIN, ["--batch-size", "--threads"]),
    "batch": (BATCH, ["--limit", "--retry", "--workers", "--width", "--gpus-per-worker"]),
    "bench": (BENCH, ["--limit", "--side", "--width"]),
    "scenes make": (["scenes", "make", "--count", "1", "--out", "x"], ["--count", "--seed", "--size"]),
    "scenes show": (["scenes", "show", "--out", "x.png"], ["--count", "--seed", "--size"]),
    "backgrounds": (["backgrounds", "photo.png", "--out", "x.png"], ["--count", "--seed"]),
    "report": (["report", "run"], ["--thumbs", "--below"]),
    "serve": (["serve"], ["--port", "--max-upload", "--max-calls", "--searches"]),
}


@pytest.mark.parametrize(("command", "flag"), [(name, flag) for name, (_, flags) in COMMANDS.items() for flag in flags])
def test_odd_numbers_are_refused_before_anything_is_done(
    command: str, flag: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in HUGE:
        expect_refusal([*COMMANDS[command][0], flag, value], flag.strip("-").split("-")[0], place, capsys)


def expect_refusal(arguments: list[str], expected: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that contains `expected`, exit status 2, and no new or changed file; pipe.png is a named pipe."""
    if not os.path.lexists("pipe.png"):
        os.mkfifo("pipe.png")
    before = snapshot(place)
    assert main(arguments) == 2, arguments
    said, complaint = capsys.readouterr()
    assert said == ""
    assert complaint.startswith("becausal: error: ")
    assert complaint.count("\n") == 1
    assert "unexpected" not in complaint
    assert len(complaint) < 700
    assert expected in complaint
    assert snapshot(place) == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([*EXPLAIN, "--seed", "-1"], "seed"),
        ([*EXPLAIN, "--option", "parts=1e400"], "parts"),
        ([*EXPLAIN, "--option", "parts=" + "9" * 5000], "parts"),
        ([*EXPLAIN, "--option", ""], "key=value"),
        ([*EXPLAIN, "--option", "=3"], "key=value"),
        ([*EXPLAIN, "--model", ""], "model"),
        ([*EXPLAIN, "--target", ""], ""),
        ([*EXPLAIN, "--fill", ""], "fill"),
        ([*EXPLAIN, "--labels", "a\0b"], "--labels"),
        ([*EXPLAIN, "--out", "a\0b"], "--out"),
        ([*EXPLAIN, "--out", "a" * 5000], "too long"),
        ([*EXPLAIN, "--out", "/dev/full"], "/dev/full"),
        ([*EXPLAIN, "--out", "photo.png"], "photo.png"),
        (["explain", "a\0b", *BASE], "null "),
        (["explain", "a" * 5000, *BASE], "aaa"),
        (["explain", "x\udcff.png", *BASE], "x"),
        (["inspect", "x\udcff.onnx"], "x"),
        (["inspect", "python:net.py:predict", "."], "."),
        (["verify", ""], ""),
        (["verify", "/dev/null"], "/dev/null"),
        (["methods", ""], "method"),
        (["methods", "x\udcff"], "method"),
        (["scenes", "show", "--count", "1", "--out", "/"], ".png"),
        (["scenes", "show", "--count", "1", "--out", "pipe.png"], "pipe.png"),
        (["scenes", "make", "--count", "1", "--out", "/dev/full"], "/dev/full"),
        (["scenes", "make", "--count", "1", "--out", "photo.png"], "photo.png"),
        (["demo", "--out", "/dev/full/x"], "/dev/full"),
        ([*BENCH, "--out", "photo.png"], "photo.png"),
        ([*BENCH, "--data", "photo.png"], "photo.png"),
        ([*BENCH, "--methods", ""], "method"),
        (["bench", "", "--model", "bundled"], "bench"),
        (["bench", "../x", "--model", "bundled"], "bench"),
        (["data", "get", "photobombing", "--from", "here"], "https://"),
        (["data", "get", "photobombing", "--from", "file:///etc"], "https://"),
        (["data", "get", ""], "dataset"),
        (["batch", "photo.png", *BASE, "--out", "photo.png"], "photo.png"),
        (["batch", "photo.png", *BASE, "--out", "a" * 5000], "long"),
        (["report", "/dev/null"], "/dev/null"),
        (["export", ""], ""),
        (["diff", "photo.png", "."], "photo.png"),
        (["compare", "photo.png", *BASE[:2], "--methods", ""], "method"),
        (["compare", "photo.png", *BASE[:2], "--methods", "random", "--truth", "net.py"], "net.py"),
        (["\udcff"], "No such command"),
    ],
    ids=lambda value: " ".join(value)[:60].encode("ascii", "backslashreplace").decode() if isinstance(value, list) else "",
)
def test_odd_values_are_refused(
    arguments: list[str], expected: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expect_refusal(arguments, expected, place, capsys)


def test_pages_and_exports_are_not_written_to_odd_places(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(BATCH) == 0
    capsys.readouterr()
    for words in (["export", "run"], ["export", "run", "--format", "coco"], ["report", "run"]):
        for out in ("/", "pipe.png", ".", "photo.png/x", "a" * 5000):
            expect_refusal([*words, "--out", out], "write", place, capsys)


def test_undecodable_bytes_on_the_command_line_give_one_line(place: Path) -> None:
    words = [sys.executable.encode(), b"-m", b"becausal", b"explain", b"\xff\xfe.png", *(word.encode() for word in BASE)]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert b"unexpected" not in done.stderr


@pytest.mark.usefixtures("without_figures")
@pytest.mark.skipif(sys.platform != "linux", reason="file names are text elsewhere")
def test_a_file_with_an_undecodable_name_is_explained(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.rename(b"photo.png", b"\xff.png")
    assert main(["explain", os.fsdecode(b"\xff.png"), *BASE]) == 0, capsys.readouterr().err
    (folder,) = Path("becausal-out").iterdir()
    assert Explanation.load(folder).label == "bright"


def test_a_full_disk_leaves_nothing_of_a_set_of_scenes(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = 0

    def save(self: Image.Image, path: Path, *_: object, **__: object) -> None:
        nonlocal saved
        saved += 1
        Path(path).write_bytes(b"half of it")
        if saved % 8 == 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", save)
    Path("used").mkdir()
    Path("used/mine.txt").write_text("mine")
    for out in ("new/deeper", "used"):
        command = ["scenes", "make", "--count", "3", "--size", "32", "--out", out]
        expect_refusal(command, f"cannot write to {out}: No space left", place, capsys)
    assert not Path("new").exists()
    assert [path.name for path in Path("used").iterdir()] == ["mine.txt"]


def test_scenes_are_added_to_a_folder_that_exists(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("used/pictures").mkdir(parents=True)
    Path("used/pictures/mine.txt").write_text("mine")
    for out in ("used", "new"):
        assert main(["scenes", "make", "--count", "2", "--size", "32", "--out", out]) == 0
    added = {path: data for path, data in snapshot(place / "used").items() if path != "pictures/mine.txt"}
    assert added == snapshot(place / "new")
    assert len(added) == 11
    assert Path("used").stat().st_mode == Path("new").stat().st_mode


def test_a_full_disk_leaves_no_partial_file_of_a_bench(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if self.suffix != ".svg":
            return write(self, data)
        write(self, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main([*BENCH, "--out", "run"]) == 2
    assert "No space left" in capsys.readouterr().err
    assert not [path.name for path in Path("run").iterdir() if path.suffix == ".svg" or "part" in path.name]
    monkeypatch.undo()
    assert main([*BENCH, "--out", str(place / "run"), "--resume"]) == 0
    assert list((place / "run").glob("*.svg"))


@pytest.mark.usefixtures("without_figures")
def test_a_damaged_record_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "photo.png", *BASE]) == 0
    record = Path("becausal-out/photo/explanation.json")
    arrays, text = record.with_name("arrays.npz"), record.read_text()
    for damage, said in (
        (lambda: record.write_text(text[:300]), "explanation.json is not a JSON file"),
        (lambda: record.write_bytes(b"\xff\xfe"), "explanation.json is not text in UTF-8"),
        (lambda: record.write_text(text.replace('"notes": []', '"notes": ["a", 2]')), "notes[1] is 2, expected text"),
        (lambda: record.write_text(text.replace('"sha256": "', '"sha256": 5, "old": "')), "sha256 is 5, expected text"),
        (lambda: (record.write_text(text), arrays.write_bytes(arrays.read_bytes()[:300])), "arrays.npz is damaged or cut"),
        (lambda: arrays.write_bytes(b""), "arrays.npz is damaged or cut short"),
    ):
        damage()
        capsys.readouterr()
        assert main(["verify", "becausal-out/photo"]) == 2
        complaint = capsys.readouterr().err
        assert complaint.count("\n") == 1
        assert said in complaint
        assert "Error" not in complaint


@pytest.mark.usefixtures("without_figures")
def test_scores_of_dtype_object_are_converted_and_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--fill", "black", "--max-calls", "60"]
    assert main(["explain", "photo.png", "--model", "python:net.py:predict", *words, "--out", "plain"]) == 0
    assert main(["explain", "photo.png", "--model", "python:net.py:says_objects", *words, "--out", "objects"]) == 0
    plain, objects = Explanation.load("plain/photo"), Explanation.load("objects/photo")
    assert (plain.label, plain.calls) == (objects.label, objects.calls)
    assert (plain.visible == objects.visible).all()
    assert "the function returns scores of dtype object: converted to float" in objects.notes


@pytest.mark.process
def test_output_that_is_no_longer_read_ends_nothing(place: Path) -> None:
    """As in `becausal explain … | head -1`, where head has ended before the first line."""
    few = ["--model", "python:net.py:predict", "--fill", "black", "--max-calls", "40"]
    commands = (
        ["explain", "photo.png", "photo.png", *few, "--out", "two"],
        ["explain", "photo.png", *few, "--json", "--out", "one"],
        ["--help"],
    )
    reading, writing = os.pipe()
    os.close(reading)
    processes = [
        subprocess.Popen([sys.executable, "-m", "becausal", *words], stdout=writing, stderr=subprocess.PIPE)
        for words in commands
    ]
    os.close(writing)
    for process in processes:
        assert (process.communicate(timeout=120)[1], process.returncode) == (b"", 0)
    assert [len(list(place.glob(f"{out}/*/explanation.json"))) for out in ("two", "one")] == [2, 1]


def test_reasons_of_failures_are_counted_with_the_name_of_one_image() -> None:
    failed = [(f"there is no file {name}", f"/data/{name}") for name in ("a.png", "b.png")]
    failed.append(("c.png is empty: 0 bytes", "/data/c.png"))
    assert [(reason.text, reason.count) for reason in count_reasons(failed)] == [
        ("the file does not exist", 2),
        ("the file is empty: 0 bytes", 1),
    ]
    assert [str(reason).partition(": ")[0] for reason in count_reasons(failed)] == ["e.g. a.png", "c.png"]


def save_animation() -> str:
    frames = [Image.fromarray(square()), Image.new("RGB", (32, 32), "red")]
    frames[0].save("moving.gif", save_all=True, append_images=frames[1:], loop=0)
    return "moving.gif"


def save_cmyk() -> str:
    Image.fromarray(square()).convert("CMYK").save("print.tif")
    return "print.tif"


def save_deep() -> str:
    Image.fromarray(square()[..., 0].astype(np.uint16) * 257).save("deep.png")
    return "deep.png"


def save_grey() -> str:
    Image.fromarray(square()[..., 0]).save("grey.png")
    return "grey.png"


def save_alpha() -> str:
    pixels = np.zeros((32, 32, 4), np.uint8)
    pixels[..., 3] = 255
    pixels[8:16, 8:16, 3] = 0  # clear, so white shows through
    Image.fromarray(pixels).save("clear.png")
    return "clear.png"


def save_rotated() -> str:
    lying = np.rot90(np.pad(square(), ((0, 0), (0, 8), (0, 0))))  # 40 rows by 32 columns, as a camera held upright
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned right by a quarter
    Image.fromarray(lying).save("camera.png", exif=exif)
    return "camera.png"


GOOD: dict[str, Callable[[], str]] = {
    "animated": save_animation,
    "CMYK": save_cmyk,
    "16-bit": save_deep,
    "grey": save_grey,
    "alpha": save_alpha,
    "EXIF-rotated": save_rotated,
}


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize("name", GOOD)
def test_odd_pictures_are_read_right(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", GOOD[name](), *BASE, "--out", "out"]) == 0, capsys.readouterr().err
    (folder,) = Path("out").iterdir()
    view = Explanation.load(folder).view
    assert view.shape == ((32, 40, 3) if name == "EXIF-rotated" else (32, 32, 3))
    np.testing.assert_array_equal(view[:, :32], square())


@pytest.mark.usefixtures("without_figures")
def test_one_pixel_is_a_picture(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text(MODEL.replace("[:, 8:16, 8:16]", ""))
    Image.new("RGB", (1, 1), "white").save("dot.png")
    assert main(["explain", "dot.png", *BASE, "--grain", "1"]) == 0, capsys.readouterr().err
    explanation = Explanation.load("becausal-out/dot")
    assert explanation.pixels == 1
    assert explanation.checks.minimal_grain == 1


@pytest.mark.slow
def test_a_picture_of_a_hundred_megapixels_is_read(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text("SIZE = 32\n" + MODEL)
    big = Image.new("RGB", (12_000, 9_000))
    big.paste("white", (3750, 2250, 6000, 4500))  # rows and columns 8 to 16 of the view
    big.save("big.png", compress_level=1)
    assert main(["explain", "big.png", *BASE]) == 0, capsys.readouterr().err
    explanation = Explanation.load("becausal-out/big")
    assert explanation.label == "bright"
    assert explanation.on_original(explanation.visible).shape == (9_000, 12_000)


def test_boxes_and_scores_of_a_detector_are_numbers() -> None:
    from becausal.core.errors import AnswerError
    from becausal.models.boxes import read_answers

    def read(scores: object) -> np.ndarray:
        found = read_answers([{"boxes": [[0, 0, 4, 4]], "scores": scores, "labels": [1]}], 1, lambda name: 0)
        return found[0, :1, 4]

    assert read(np.array([0.75], object)).tolist() == [0.75]
    for odd in (["0.75"], [None], np.array([b"1"])):
        with pytest.raises(AnswerError, match="expected numbers"):
            read(odd)
