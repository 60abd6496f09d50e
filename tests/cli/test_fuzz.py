"""Damaged and hostile files and answers, through the command line: the right result, or one clear line and exit status 2.

Every kind of input (`KINDS`) is mutated with seeded random numbers. The cases of a kind run in a process of their own
(`python tests/cli/test_fuzz.py KIND START COUNT`), one after the other through `main`, within `SECONDS` each and `MEMORY` in
all, so that a crash in a library is a failure of a case, too. A failure names its seed; to see a case again:

    python tests/cli/test_fuzz.py record 17 1
"""

import copy
import io
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import socketserver
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main
from PIL import Image

SECONDS, MEMORY = 20, 2 * 1024**3
STATUSES = {
    "verify": (0, 1, 2),
    "batch": (0, 2, 3),
    "export": (0, 2, 3),
    "report": (0, 2, 3),
}  # of a command; (0, 2) of all others
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 7, 2**31, 10**22, -(10**22), 0.5, -0.5, 1e308, math.nan, math.inf, "", " ", "x", "1", "nan",
    "x" * 10_000, "\0", "\ud800", "../../../etc/passwd", "/dev/zero", "${HOME}", "<script>", [], {}, [None], [[]], [1, 2],
    ["x"], {"a": 1}, {"": None}, [1e308] * 3, [-1] * 4,
]  # fmt: skip
LABELS = ["dark", "bright"]
NORMALISATION = """
scale = 255.0
mean = [0.0, 0.0, 0.0]
std = [1.0, 1.0, 1.0]
order = "rgb"
resize = "16"
crop = 16
interpolation = "bilinear"
returns = "probabilities"
layout = "nchw"
"""
NOTICES = re.compile(
    r"becausal: |(TIFF\w*|LZW\w*|Fax\w*|JPEG\w*|_TIFF\w*|Zip\w*|tempfile\.tif): "
)  # ours, and those of libtiff


# --- mutations ---------------------------------------------------------------------------------------------------------


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, removed, repeated or added, or the end cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 30))):
        place = rng.randrange(len(changed) + 1)
        match rng.randrange(7):
            case 0:
                changed[place : place + 1] = bytes([rng.randrange(256)])
            case 1:
                del changed[place : place + rng.choice((1, 4, 100))]
            case 2:
                changed[place:place] = rng.randbytes(rng.choice((1, 4, 100)))
            case 3:
                changed[place : place + 4] = rng.choice((b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f"))
            case 4:
                changed[place:place] = changed[place : place + rng.choice((4, 100))]
            case 5 if changed:
                changed[place % len(changed)] ^= 1 << rng.randrange(8)
            case 6 if rng.random() < 0.2:
                del changed[place:]
    return bytes(changed)


def mutate_json(text: str, rng: random.Random) -> str:
    """Values of another type, size or depth, and names that are missing or new; now and then a torn text."""
    if rng.random() < 0.15:
        return mutate_bytes(text.encode(), rng).decode("utf-8", "surrogateescape")
    if rng.random() < 0.03:
        return rng.choice(("[" * 100_000, '{"a":' * 50_000, "null", "[]", "1e999", '"text"', "9" * 10_000))
    value = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _replace_somewhere(value, rng)
    return json.dumps(value)


def _replace_somewhere(value: Any, rng: random.Random) -> Any:
    inside = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    if not inside or rng.random() < 0.12:
        return _nested(rng) if rng.random() < 0.05 else copy.deepcopy(rng.choice(ODD))
    key, item = rng.choice(inside)
    match rng.random():
        case chance if chance < 0.06:
            del value[key]
        case chance if chance < 0.1 and isinstance(value, dict):
            value[rng.choice(("", "x", "\0", str(key) + "s"))] = copy.deepcopy(rng.choice(ODD))
        case chance if chance < 0.13 and isinstance(value, list):
            value += [item] * rng.choice((1, 50))
        case _:
            value[key] = _replace_somewhere(item, rng)
    return value


def _nested(rng: random.Random) -> Any:
    value: Any = 1
    for _ in range(rng.choice((40, 300))):
        value = [value] if rng.random() < 0.5 else {"a": value}
    return value


def mutate_toml(text: str, rng: random.Random) -> str:
    """Lines with odd values, lines left out or twice, and torn text."""
    lines = text.splitlines()
    odd = [
        "nan",
        "-inf",
        "1e999",
        "9" * 5000,
        '""',
        "[]",
        "{}",
        "true",
        "'x'",
        "[[1]]",
        "1979-05-27",
        "[" * 5000,
        "{a=" * 500,
    ]
    for _ in range(rng.choice((1, 1, 2))):
        number = rng.randrange(len(lines))
        key = lines[number].partition("=")[0]
        match rng.randrange(5):
            case 0:
                del lines[number]
            case 1:
                lines.insert(number, lines[number])
            case 2 | 3:
                lines[number] = f"{key} = {rng.choice(odd)}"
            case 4:
                lines[number] = mutate_bytes(lines[number].encode(), rng).decode("latin-1")
        if not lines:
            break
    return "\n".join(lines)


def mutate_arrays(path: Path, rng: random.Random) -> None:
    """Another dtype, shape, content or name of an array, or other bytes of the file."""
    if rng.random() < 0.5:
        path.write_bytes(mutate_bytes(path.read_bytes(), rng))
        return
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    options: list[Callable[[], Any]] = [
        lambda: array.astype(rng.choice(("f4", "f8", "u1", "i8", "c16", "U4", "S3", "M8[s]", "?"))),
        lambda: array[..., None],
        lambda: array.ravel(),
        lambda: array[:0],
        lambda: np.zeros((), array.dtype),
        lambda: np.full(array.shape, np.nan),
        lambda: np.full(array.shape, 1e308),
        lambda: np.ones(array.shape, bool),
        lambda: np.zeros((1, *array.shape), array.dtype),
        lambda: np.array([{"a": 1}, None], dtype=object),
        lambda: np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
    ]
    arrays[name] = rng.choice(options)()
    if rng.random() < 0.2:
        del arrays[name]
    if rng.random() < 0.1:
        arrays["more"] = array
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    path.write_bytes(buffer.getvalue())
    if rng.random() < 0.1:
        with zipfile.ZipFile(path, "a") as file:
            file.writestr(rng.choice(("../x.npy", "VIEW.npy", "x", "visible.npy.npy")), rng.randbytes(50))


def mutate_index(path: Path, rng: random.Random) -> None:
    """Other values in the tables of an SQLite file, tables and columns that are missing, or other bytes."""
    if rng.random() < 0.4:
        path.write_bytes(mutate_bytes(path.read_bytes(), rng))
        return
    odd = [
        None,
        0,
        -1,
        2**63 - 1,
        0.5,
        math.inf,
        "",
        "x",
        "x" * 10_000,
        b"\xff\xfe",
        b"",
        "[1,",
        "{}",
        "[]",
        "null",
        "9" * 5000,
    ]
    db = sqlite3.connect(path)
    try:
        tables = {
            name: [row[1] for row in db.execute(f"PRAGMA table_info({name})")]
            for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        }
        for _ in range(rng.choice((1, 1, 2, 4))):
            table = rng.choice(sorted(tables))
            column = rng.choice(tables[table])
            match rng.randrange(12):
                case 0:
                    db.execute(f"DROP TABLE IF EXISTS {table}")
                case 1:
                    db.execute(f"DELETE FROM {table}")
                case 2:
                    db.execute(f'ALTER TABLE {table} RENAME COLUMN "{column}" TO other')
                case 3:
                    db.execute(f"PRAGMA user_version = {rng.choice((-1, 0, 99))}")
                case 4:
                    rows = db.execute(f'SELECT rowid, "{column}" FROM {table}').fetchall()
                    texts = [(number, text) for number, text in rows if isinstance(text, str) and text[:1] in ("{", "[")]
                    for number, text in texts[:1]:
                        db.execute(f'UPDATE {table} SET "{column}" = ? WHERE rowid = ?', (mutate_json(text, rng), number))
                case _:
                    some = " WHERE rowid % 2 = 0" if rng.random() < 0.5 else ""
                    db.execute(f'UPDATE OR IGNORE {table} SET "{column}" = ?{some}', (rng.choice(odd),))
            db.commit()
    except (sqlite3.Error, UnicodeEncodeError, ValueError):
        db.rollback()  # the file as far as it was changed
    finally:
        db.close()


# --- an endpoint that answers wrongly ----------------------------------------------------------------------------------


class Endpoint(socketserver.ThreadingTCPServer):
    """The Open Inference Protocol, for a classifier of 16 x 16 images; answers are mutated from `first` on."""

    daemon_threads = allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), EndpointHandler)
        self.rng, self.first, self.seen = random.Random(0), 0, 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client may be gone."""


class EndpointHandler(socketserver.StreamRequestHandler):
    server: Endpoint
    timeout = 10

    def handle(self) -> None:
        line = self.rfile.readline().split()
        sizes = [
            int(h.split(b":")[1]) for h in iter(self.rfile.readline, b"\r\n") if h.lower().startswith(b"content-length:")
        ]
        body = self.rfile.read(sizes[0]) if sizes else b""
        self.server.seen += 1
        answer = self.answer(line[1].decode(), body)
        is_mutated = self.server.seen > self.server.first and self.server.rng.random() < 0.7
        self.wfile.write(self.mutated(answer) if is_mutated else self.packed(json.dumps(answer).encode()))

    def answer(self, path: str, body: bytes) -> Any:
        if not path.endswith("/infer"):
            tensors = {"inputs": ("x", "UINT8", [-1, 16, 16, 3]), "outputs": ("scores", "FP32", [-1, 2])}
            described = {k: [{"name": n, "datatype": d, "shape": s}] for k, (n, d, s) in tensors.items()}
            return {"name": "toy", "versions": ["1"], "platform": "test", **described}
        (given,) = json.loads(body)["inputs"]
        batch = np.array(given["data"], float).reshape(given["shape"])
        share = batch[:, :8, :8].mean(axis=(1, 2, 3)) / 255
        scores = {"name": "scores", "datatype": "FP32", "shape": [len(batch), 2]}
        return {"model_name": "toy", "outputs": [{**scores, "data": np.stack([1 - share, share], 1).ravel().tolist()}]}

    def mutated(self, answer: Any) -> bytes:
        rng = self.server.rng
        match rng.randrange(8):
            case 0:
                return mutate_bytes(self.packed(json.dumps(answer).encode()), rng)
            case 1:
                waits = ("1e400", "99999999999999999999", "-1", "nan", "Wed, 99 Foo 9999", "\xff", "0")
                headers = f"Retry-After: {rng.choice(waits)}\r\n"
                return self.packed(b"{}", status=rng.choice((429, 503, 500)), headers=headers)
            case 2:
                sizes = (
                    "Content-Length: 99999999999999999999",
                    "Content-Length: -1",
                    "Transfer-Encoding: chunked",
                    "Content-Encoding: gzip",
                    "Inference-Header-Content-Length: 10",
                    "Content-Type: text/html; charset=x",
                )
                return self.packed(json.dumps(answer).encode(), headers=f"{rng.choice(sizes)}\r\n")
            case 3:
                return self.packed(rng.choice((b"", b"{}", b"null", b"<html>", b"\xff", b"[" * 100_000)))
            case 4:
                return self.packed(b'{"error": "\\u0000no\\n"}', status=rng.choice((100, 204, 302, 400, 404, 418, 500, 999)))
        return self.packed(mutate_json(json.dumps(answer), rng).encode("utf-8", "surrogateescape"))

    def packed(self, body: bytes, *, status: int = 200, headers: str = "") -> bytes:
        size = "" if re.search("length: |chunked", headers.lower()) else f"Content-Length: {len(body)}\r\n"
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{size}{headers}Connection: close\r\n\r\n"
        return head.encode("latin-1") + body


# --- the kinds of input: what is made once, and a case of it -----------------------------------------------------------

MODEL = ["--model", "net.onnx", "--labels", "names.txt"]
QUICK = ["--max-calls", "60", "--grain", "8", "--fill", "black"]
ENDPOINT = [f"--endpoint={pair}" for pair in ("timeout=2", "deadline=3", "retries=1", "cache=none", "binary=no")]
Case = Callable[[random.Random], list[list[str]]]  # mutates files in the working directory; the commands to run


def make_place() -> None:
    """Good files of every kind in the working directory: images, a model, its record, and a run."""
    rng = np.random.default_rng(0)
    for number in range(3):
        pixels = rng.integers(0, 60, (16, 16, 3), dtype=np.uint8)
        pixels[:8, :8] = 240
        Image.fromarray(pixels).save(f"{number}.png")
    Image.open("0.png").save("0.jpg", quality=95)
    Image.open("0.png").save("0.tif", compression="tiff_lzw")
    Image.open("0.png").save("0.gif")
    Image.open("0.png").save("0.webp", lossless=True)
    Image.open("0.png").save("0.bmp")
    np.save("0.npy", np.asarray(Image.open("0.png")))
    save_onnx(Path("net.onnx"))
    Path("names.txt").write_text("\n".join(LABELS))
    Path("names.json").write_text(json.dumps({"0": "dark", "1": "bright"}))
    Path("norm.toml").write_text(NORMALISATION)
    images = [{"id": n, "file_name": f"{n}.png", "width": 16, "height": 16} for n in range(3)]
    boxes = [{"id": n, "image_id": n, "category_id": 1, "bbox": [0, 0, 8, 8], "iscrowd": 0, "area": 64} for n in range(3)]
    coco = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "bright"}]}
    Path("coco.json").write_text(json.dumps(coco))
    Path("list.txt").write_text("0.png\n1.png\n2.png\n")


def save_onnx(path: Path) -> None:
    """A classifier of 16 x 16 images, whose scores are the brightness of the upper left corner."""
    from onnx import TensorProto, helper, numpy_helper, save

    weights = np.zeros((3, 16, 16), np.float32)
    weights[:, :8, :8] = 1 / 192
    matrix = np.stack([-weights.ravel(), weights.ravel()], axis=1) * 8
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w", "b"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"], axis=1),
    ]
    constants = [numpy_helper.from_array(matrix, "w"), numpy_helper.from_array(np.array([4, -4], np.float32), "b")]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])
    scores = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
    graph = helper.make_graph(nodes, "corner", [given], [scores], constants)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def make_record() -> None:
    make_place()
    must_run("explain", "0.png", *MODEL, "--preprocess", "norm.toml", *QUICK, "--out", "out")


def make_run() -> None:
    make_place()
    must_run("batch", "coco.json", *MODEL, *QUICK, "--out", "run")


def must_run(*words: str) -> None:
    status, said, complaints = run_case(list(words))
    assert status == 0, said + complaints


def damage_record(rng: random.Random) -> list[list[str]]:
    record = Path("out/0/explanation.json")
    if rng.random() < 0.6:
        record.write_text(mutate_json(record.read_text(), rng), encoding="utf-8", errors="surrogateescape")
    else:
        mutate_arrays(Path("out/0/arrays.npz"), rng)
    return [["verify", "out/0", *rng.choice(([], MODEL)), *rng.choice(([], ["--json"]))]]


def damage_run(rng: random.Random) -> list[list[str]]:
    if rng.random() < 0.7:
        mutate_index(Path("run/index.sqlite"), rng)
    else:
        folder = rng.choice(sorted(path.parent for path in Path("run/explanations").rglob("explanation.json")))
        record = folder / "explanation.json"
        if rng.random() < 0.5:
            record.write_text(mutate_json(record.read_text(), rng), encoding="utf-8", errors="surrogateescape")
        else:
            mutate_arrays(folder / "arrays.npz", rng)
    commands = [
        ["report", "run"], ["report", "run", "--image", "0"], ["export", "run", "--format", "csv"],
        ["export", "run", "--format", "coco"], ["diff", "run", "run", "--json"],
        ["batch", "coco.json", *MODEL, *QUICK, "--out", "run"],
    ]  # fmt: skip
    return rng.sample(commands, 2)


def damage_onnx(rng: random.Random) -> list[list[str]]:
    path = Path("net.onnx")
    path.write_bytes(mutate_bytes(path.read_bytes(), rng))
    return [rng.choice((["inspect", "net.onnx", "0.png", "--json"], ["explain", "0.png", *MODEL, *QUICK]))]


def damage_image(rng: random.Random) -> list[list[str]]:
    path = Path(rng.choice(("0.png", "0.jpg", "0.tif", "0.gif", "0.webp", "0.bmp", "0.npy")))
    path.write_bytes(mutate_bytes(path.read_bytes(), rng))
    fill = [*QUICK[:-1], f"image:{path}"]
    return [rng.choice((["explain", str(path), *MODEL, *QUICK], ["explain", "1.png", *MODEL, *fill]))]


def damage_coco(rng: random.Random) -> list[list[str]]:
    path = Path(rng.choice(("coco.json", "coco.json", "coco.json", "list.txt")))
    text = path.read_text()
    changed = mutate_json(text, rng) if path.suffix == ".json" else mutate_bytes(text.encode(), rng).decode("latin-1")
    path.write_text(changed, encoding="utf-8", errors="surrogateescape")
    commands = [["batch", str(path), *MODEL, *QUICK, "--out", "new"]]
    return commands + ([["report", "new"]] if rng.random() < 0.3 else [])


def damage_settings(rng: random.Random) -> list[list[str]]:
    name = rng.choice(("norm.toml", "norm.toml", "net.toml", "names.txt", "names.json"))
    path = Path(name)
    text = Path("norm.toml").read_text() if name == "net.toml" else path.read_text()
    changed = mutate_toml(text, rng) if path.suffix == ".toml" else mutate_json(text, rng) if path.suffix == ".json" else ""
    if path.suffix == ".txt":
        path.write_bytes(mutate_bytes(text.encode(), rng))
    else:
        path.write_text(changed, encoding="utf-8", errors="surrogateescape")
    labels = name if name.startswith("names") else "names.txt"
    normalisation = ["--preprocess", "norm.toml"] if name == "norm.toml" else []
    return [["explain", "0.png", "--model", "net.onnx", "--labels", labels, *normalisation, *QUICK]]


def damage_answers(rng: random.Random) -> list[list[str]]:
    server = Endpoint()
    server.rng, server.first = rng, rng.choice((0, 1, 2, 3, 5, 20))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    spec = f"oip:http://127.0.0.1:{server.server_address[1]}/v2/models/toy"
    return [rng.choice((["inspect", spec, "0.png", *ENDPOINT], ["explain", "0.png", "--model", spec, *ENDPOINT, *QUICK]))]


#: How the files are made, how they are damaged, the number of cases in CI; the slow test has many more.
KINDS: dict[str, tuple[Callable[[], None], Case, int]] = {
    "record": (make_record, damage_record, 20),
    "run": (make_run, damage_run, 8),
    "onnx": (make_place, damage_onnx, 10),
    "image": (make_place, damage_image, 8),
    "coco": (make_place, damage_coco, 8),
    "settings": (make_place, damage_settings, 10),
    "answers": (make_place, damage_answers, 6),
}

#: Faults that are known, by kind: what is on stderr, and where it comes from; to be removed when that is fixed.
KNOWN_FAILURES: dict[str, dict[str, str]] = {}


# --- running cases -----------------------------------------------------------------------------------------------------


class TooSlow(BaseException):
    """A case took longer than `SECONDS`."""


def run_case(words: list[str]) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command, with what libraries write to the file descriptors."""
    from becausal.interfaces.cli.app import main

    def end(number: int, frame: Any) -> None:
        raise TooSlow(f"more than {SECONDS} s")

    signal.signal(signal.SIGALRM, end)
    with captured(1) as out, captured(2) as err:
        signal.alarm(SECONDS)
        try:
            status = main(words)
        finally:
            signal.alarm(0)
    return status, out[0], err[0]


@contextmanager
def captured(number: int) -> Iterator[list[str]]:
    """What is written to a file descriptor, as the only item of a list, afterwards."""
    stream, kept, found = (sys.stdout, sys.stderr)[number - 1], os.dup(number), [""]
    with tempfile.TemporaryFile() as file:
        stream.flush()
        os.dup2(file.fileno(), number)
        try:
            yield found
        finally:
            stream.flush()
            os.dup2(kept, number)
            os.close(kept)
            file.seek(0)
            found[0] = file.read().decode("utf-8", "replace")


def find_fault(words: list[str], status: int, said: str, complaints: str) -> str | None:
    """What is wrong with the way a command ended; None if it is one of the ways that are promised."""
    if status not in STATUSES.get(words[0], (0, 2)):
        return f"exit status {status}"
    if found := re.search(r"unexpected [A-Z]\w+:|Traceback|TooSlow|out of memory", said + complaints):
        return found[0]
    lines = complaints.splitlines()
    if status == 2 and len([line for line in lines if line.startswith("becausal: error: ")]) != 1:
        return "not one error"
    if not all(NOTICES.match(line) for line in lines):
        return "other lines on stderr"
    return None


def peak_memory() -> int:
    """The most bytes this process has used. On Linux, `ru_maxrss` includes those of the process that started it."""
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"VmHWM:\s+(\d+) kB", status.read_text())):
        return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run_kind(kind: str, start: int, count: int) -> None:
    """Run cases of a kind; prints a JSON line for each that went wrong."""
    typer.main.get_command = cache(typer.main.get_command)  # typer would build all commands again for each call of `main`
    make, damage, _ = KINDS[kind]
    base = Path(tempfile.mkdtemp())
    try:
        (base / "good").mkdir()
        os.chdir(base / "good")
        make()
        for seed in range(start, start + count):
            print(json.dumps({"last": f"{kind} {seed}"}), flush=True)  # if the process dies
            shutil.copytree(base / "good", base / "case")
            os.chdir(base / "case")
            for words in damage(random.Random(f"{kind} {seed}")):
                begun = time.monotonic()
                status, said, complaints = run_case(words)
                fault = find_fault(words, status, said, complaints)
                if fault or count == 1:
                    shown = {
                        "kind": kind,
                        "seed": seed,
                        "command": words,
                        "fault": fault,
                        "status": status,
                        "stdout": said[-500:],
                    }
                    print(
                        json.dumps({**shown, "stderr": complaints[-1000:], "seconds": time.monotonic() - begun}), flush=True
                    )
            os.chdir(base)
            shutil.rmtree(base / "case")
    finally:
        os.chdir("/")
        shutil.rmtree(base, ignore_errors=True)


def fuzz(*cases: tuple[str, int, int]) -> list[str]:
    """The faults of cases, each a kind, the first seed and the number of seeds; they run in a process of their own."""
    command = [sys.executable, __file__, json.dumps(cases)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "default"}
    patience = 60 + 2 * SECONDS * sum(count for _, _, count in cases)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patience, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    faults = [
        json.dumps(line)
        for line in lines
        if line.get("fault") and not any(sign in line["stderr"] for sign in KNOWN_FAILURES.get(line["kind"], {}))
    ]
    if not lines or "peak" not in lines[-1]:
        last = next((line["last"] for line in reversed(lines) if "last" in line), None)
        return [*faults, f"the process ended with {done.returncode} at {last}: {done.stderr[-2000:]}"]
    if lines[-1]["peak"] > MEMORY:
        faults.append(f"{lines[-1]['peak'] / 1e9:.1f} GB of memory were used")
    return faults


def test_damaged_input_gives_the_right_result_or_one_clear_line() -> None:
    pytest.importorskip("onnx")
    faults = fuzz(*((kind, 0, count) for kind, (_, _, count) in KINDS.items()))
    assert not faults, "\n".join(faults)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_much_damaged_input_gives_the_right_result_or_one_clear_line(kind: str) -> None:
    pytest.importorskip("onnx")
    faults = fuzz((kind, 1000, 100 * KINDS[kind][2]))
    assert not faults, "\n".join(faults)


if __name__ == "__main__":
    for each in json.loads(sys.argv[1]):
        run_kind(*each)
    print(json.dumps({"peak": peak_memory()}), flush=True)
