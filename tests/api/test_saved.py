"""Saved explanations: read back from anybody, verified from anywhere, written whole; and names and files that are safe."""

import errno
import io
import json
import os
import shlex
import shutil
import socket
import struct
import threading
import tracemalloc
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from becausal.api import saved
from becausal.api.explanation import FILES, Explanation
from becausal.core.errors import InputError, OutputError
from becausal.core.files import open_regular, safe_name, write_file, write_files
from becausal.interfaces.cli.app import main
from becausal.interfaces.cli.folders import choose_folders
from becausal.scenes import make_scene

pytestmark = pytest.mark.usefixtures("without_figures")

BUNDLED = Path(str(files("becausal") / "models" / "bundled"))
QUICK = ["--max-calls", "60", "--grain", "none"]
NET = """
from pathlib import Path
Path("ran").write_text("the code of the model ran")

def predict(batch):
    share = (batch[:, 8:16, 8:16].mean(axis=(1, 2, 3)) / 255) ** 2
    return __import__("numpy").stack([1 - share, share], axis=1)
predict.returns = "probabilities"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an image, an ONNX model, its labels, and an explanation of the image by the bundled model."""
    home = tmp_path_factory.mktemp("made")
    Image.fromarray(make_scene(107).image).save(home / "photo.png")
    shutil.copy(BUNDLED / "scenes.onnx", home / "net.onnx")
    shutil.copy(BUNDLED / "labels.txt", home / "names.txt")
    assert main(["explain", str(home / "photo.png"), "-m", "bundled", "-o", str(home / "out"), "--max-calls", "80"]) == 0
    return home


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it that may be changed, in which the test runs."""
    home = tmp_path / "home"
    shutil.copytree(made, home)
    shutil.move(home / "out" / "photo", home / "saved")
    monkeypatch.chdir(home)
    return home


def change(folder: Path | str, **values: Any) -> None:
    """Set values of a record by dotted name, with __ for the dot; None removes nothing, `...` removes the field."""
    path = Path(folder) / "explanation.json"
    record = json.loads(path.read_text())
    for name, value in values.items():
        *parents, last = name.split("__")
        part = record
        for parent in parents:
            part = part[parent]
        if value is ...:
            del part[last]
        else:
            part[last] = value
    path.write_text(json.dumps(record))


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line with which a command is refused."""
    capsys.readouterr()
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "unexpected" not in err
    return err


# 17.1: nothing that a record names is run, called or read


def test_code_that_a_record_names_does_not_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "net.py").write_text(NET)
    bright = np.zeros((32, 32, 3), np.uint8)
    bright[8:16, 8:16] = 250
    Image.fromarray(bright).save("photo.png")
    assert main(["explain", "photo.png", "-m", "python:net.py:predict", "--fill", "black", *QUICK]) == 0
    (place / "ran").unlink()
    line = refused(capsys, "verify", "becausal-out/photo")
    assert "--model" in line
    assert "--trust" in line
    assert not (place / "ran").exists()
    assert main(["verify", "becausal-out/photo", "--model", "python:net.py:predict"]) == 0
    (place / "ran").unlink()
    assert main(["verify", "becausal-out/photo", "--trust"]) == 0
    assert (place / "ran").exists()


@pytest.mark.parametrize(
    "spec",
    [
        "python:{evil}:predict",
        "torch:{evil}:predict",
        "keras:{home}/evil.keras",
        "hf:{home}",
        "timm:resnet18",
        "torchvision:resnet18",
        "oip:http://127.0.0.1:9/v2/models/x",
        "onnx:{home}/other.onnx",
        "{home}/other.onnx",
        "onnx:/dev/zero",
        "onnx:{home}/pipe",
        "onnx:{home}",
        "onnx:",
        "onnx://server/share/net.onnx",
        "onnx:\\\\server\\share\\net.onnx",
        "onnx:a\0b.onnx",
        "bundled:x",
        "function predict",
        "",
        "python:{evil}:predict\n.onnx",
    ],
)
def test_a_record_names_only_harmless_models(spec: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = place / "evil.py"
    evil.write_text(NET)
    (place / "evil.keras").write_bytes(b"no model")
    (place / "other.onnx").write_bytes((place / "net.onnx").read_bytes() + b"\n")
    os.mkfifo(place / "pipe")
    change("saved", origin__model=spec.format(evil=evil, home=place), origin__model_sha256="0" * 64)
    assert "--model" in refused(capsys, "verify", "saved")
    assert not (place / "ran").exists()


class Recorder(BaseHTTPRequestHandler):
    """Keeps the headers of every request."""

    seen: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        self.seen.append(dict(self.headers))
        self.send_error(404)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def recorder():
    Recorder.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_no_environment_variable_is_sent_for_a_record(
    place: Path, recorder: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SECRET", "s3cret")
    options = ["header=X-Key: ${SECRET}", "token_env=SECRET", " header =Y: ${SECRET}", "ca=/etc/hostname", "cache=stolen"]
    spec = f"oip:http://127.0.0.1:{recorder.server_port}/v2/models/net"
    change("saved", origin__model=spec, origin__loading={"endpoint": options})
    assert "--trust" in refused(capsys, "verify", "saved")
    assert Recorder.seen == []
    refused(capsys, "verify", "saved", "--trust")
    refused(capsys, "verify", "saved", "--model", spec)
    assert Recorder.seen
    assert "s3cret" not in str(Recorder.seen)
    assert not (place / "stolen").exists()
    refused(capsys, "verify", "saved", "--model", spec, "--endpoint", "token_env=SECRET")  # the user's own word
    assert "s3cret" in str(Recorder.seen)


def test_no_file_that_a_record_names_is_read_as_labels_or_preprocessing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(place / "pipe")  # reading it would block for ever
    change("saved", origin__loading={"labels": str(place / "pipe")})
    assert main(["verify", "saved"]) == 0
    os.mkfifo(place / "pipe.toml")
    for path in (place / "pipe.toml", place / "missing.toml"):
        change("saved", origin__loading={"preprocess": str(path)})
        assert "--model" in refused(capsys, "verify", "saved")


def test_a_toml_file_next_to_the_model_is_the_recorded_one(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "net.toml").write_text('preprocess = "tf"\nlabels = "names.txt"\n')
    assert main(["explain", "photo.png", "-m", "net.onnx", *QUICK]) == 0
    assert main(["verify", "becausal-out/photo"]) == 0
    (place / "net.toml").write_text('preprocess = "tf"\nlabels = "/etc/passwd"\n')
    assert "net.toml" in refused(capsys, "verify", "becausal-out/photo")
    change("becausal-out/photo", origin__files__toml__sha256=saved_hash(place / "net.toml"))
    assert "net.toml" in refused(capsys, "verify", "becausal-out/photo")  # it still names a file elsewhere
    (place / "net.toml").unlink()
    assert "net.toml" in refused(capsys, "verify", "becausal-out/photo")
    assert main(["verify", "becausal-out/photo", "--trust", "--preprocess", "tf"]) == 0


def saved_hash(path: Path) -> str:
    from hashlib import sha256

    return sha256(path.read_bytes()).hexdigest()


# 16.3: repeated from anywhere


def test_it_is_verified_and_repeated_from_any_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "my fill.png").write_bytes((place / "photo.png").read_bytes())
    Image.fromarray(make_scene(3).image).save("my fill.png")
    words = ["-m", "net.onnx", "--labels", "names.txt", "--preprocess", "tf", "--fill", "image:my fill.png"]
    assert main(["explain", "photo.png", *words, *QUICK]) == 0
    first = Explanation.load("becausal-out/photo")
    record = json.loads(Path("becausal-out/photo/explanation.json").read_text())
    origin = record["origin"]
    assert origin["loading"]["labels"] == (place / "names.txt").read_text().splitlines()
    assert origin["model"] == f"onnx:{place / 'net.onnx'}"
    assert origin["files"]["image"] == {"path": str(place / "photo.png"), "sha256": origin["image_sha256"]}
    assert origin["files"]["labels"]["sha256"] == saved_hash(place / "names.txt")
    fill = f"image:{place / 'my fill.png'}"
    assert origin["request"]["fills"] == [fill]
    assert origin["files"][fill]["sha256"] == saved_hash(place / "my fill.png")
    assert record["image"] == "photo.png"  # titles have the file name only

    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (place / "names.txt").rename(place / "names-moved.txt")  # the names are in the record
    capsys.readouterr()
    assert main(["verify", str(place / "becausal-out" / "photo")]) == 0
    assert "claims hold" in capsys.readouterr().out
    (place / "names-moved.txt").rename(place / "names.txt")
    from becausal.render.report import format_command

    command = shlex.split(format_command(first).replace("\\\n", " "))
    assert command[:2] == ["becausal", "explain"]
    assert not {"--seed", "--method", "--option", "--target"} & set(command)
    assert main(command[1:]) == 0
    assert np.array_equal(Explanation.load("becausal-out/photo").visible, first.visible)


def test_a_model_that_moved_is_named_with_the_option_to_use(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "photo.png", "-m", "net.onnx", "--preprocess", "tf", *QUICK]) == 0
    (place / "net.onnx").rename(place / "moved.onnx")
    line = refused(capsys, "verify", "becausal-out/photo")
    assert str(place / "net.onnx") in line
    assert "--model" in line
    capsys.readouterr()
    assert main(["verify", "becausal-out/photo", "--model", "moved.onnx"]) == 0  # with the recorded options
    assert "note:" not in capsys.readouterr().out


def test_an_array_has_no_paths_but_those_given(place: Path) -> None:
    """The page explains uploads: the server's folders are not its visitors' business."""
    import becausal

    model = becausal.load_model("net.onnx", labels="names.txt", preprocess="tf")
    explanation = becausal.explain(make_scene(107).image, model, max_calls=40, grain=None)
    assert str(place) not in json.dumps(explanation.record())


# 17.14: records and arrays with anything in them


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("label", ..., "label is missing"),
        ("label", 3, "label is 3, expected text"),
        ("label_id", "3", 'label_id is "3"'),
        ("label_id", 10**30, "label_id"),
        ("label_id", -1, "label_id"),
        ("confidence", float("nan"), "confidence"),
        ("confidence", 10**400, "confidence"),
        ("confidence", [], "confidence is a list"),
        ("target", [], "target is a list, expected an object"),
        ("target__top", 0, "top"),
        ("target__top", True, "target.top is true"),
        ("target__floor", float("inf"), "target.floor"),
        ("target__other", 1, "target.other"),
        ("checks", None, "checks"),
        ("checks__sufficient", 1, "checks.sufficient"),
        ("checks__minimal_grain", -3, "checks.minimal_grain"),
        ("checks__minimal_grain", 10**15, "checks.minimal_grain"),
        ("checks__cells", 1.5, "checks.cells"),
        ("stopped_by", "boredom", "stopped_by"),
        ("stats", {"calls": "many"}, "stats.calls"),
        ("stats__seconds", float("-inf"), "stats.seconds"),
        ("origin", "here", "origin"),
        ("origin__image", None, "origin.image"),
        ("origin__versions", {"python": 3}, "origin.versions"),
        ("origin__files", {"toml": "x"}, "origin.files"),
        ("origin__loading", [], "origin.loading"),
        ("origin__loading", {"labels": 5}, "labels"),
        ("origin__loading", {"colour": 5}, "colour"),
        ("origin__loading", {"preprocess": {"mean": ["x"]}}, "normalisation"),
        ("origin__loading", {"endpoint": ["price=much"]}, "price"),
        ("origin__loading", {"endpoint": [5]}, "endpoint"),
        ("origin__request", {}, None),
        ("origin__request", {"seed": "x"}, "origin.request.seed"),
        ("origin__request", {"fills": "grey"}, "origin.request.fills"),
        ("origin__request", {"fills": [{}]}, "origin.request.fills"),
        ("origin__request", {"max_calls": 1}, "max_calls"),
        ("frame", [], "frame"),
        ("frame__grid", [1, 1], "frame.grid"),
        ("frame__original", [10**9, 10**9], "frame.original"),
        ("frame__original", ["a", 1], "frame.original"),
        ("frame__resized", [0, 0], "frame.resized"),
        ("frame__origin", [0], "frame.origin"),
        ("notes", "note", "notes"),
        ("notes", [1], "notes"),
        ("further_checks", [{"sufficient": True, "confidence": 1}], "further_checks"),
        ("schema", {"a": 1}, "schema"),
    ],
)
def test_a_record_with_a_wrong_field_is_refused_with_its_name(
    name: str, value: Any, said: str | None, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change("saved", **{name: value})
    if said is None:
        assert main(["verify", "saved"]) == 0
    else:
        assert said in refused(capsys, "verify", "saved")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "5", "{", "[" * 200_000, '{"a":' * 200_000, '{"schema": ' + "[" * 900 + "]" * 900 + "}", "\ud800"],
)
def test_a_record_that_is_no_record(text: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "saved" / "explanation.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert "readable" in refused(capsys, "verify", "saved")


def test_deep_nesting_in_a_good_record(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deep: Any = 1
    for _ in range(300):
        deep = {"a": deep}
    change("saved", origin__options={"deep": deep})
    assert "nested" in refused(capsys, "verify", "saved")


def repack(folder: Path, **arrays: Any) -> None:
    """The archive with other arrays; bytes are members as they are, `...` removes one."""
    with np.load(folder / "arrays.npz") as old:
        kept = {name: old[name] for name in old.files} | arrays
    with zipfile.ZipFile(folder / "arrays.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in kept.items():
            if value is ...:
                continue
            buffer = io.BytesIO()
            if isinstance(value, bytes):
                buffer.write(value)
            else:
                np.lib.format.write_array(buffer, value, allow_pickle=True)
            archive.writestr(f"{name}.npy", buffer.getvalue())


def header(text: str) -> bytes:
    raw = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(raw)) + raw


def plain_header(shape: Any, descr: str = "|b1") -> bytes:
    return header(repr({"descr": descr, "fortran_order": False, "shape": shape}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("visible", ...),
        ("visible", np.zeros((128, 128), np.uint8)),
        ("visible", np.zeros((128, 127), bool)),
        ("visible", np.zeros((0, 0), bool)),
        ("visible", np.zeros((), bool)),
        ("visible", np.array([{"pickled": 1}], object)),
        ("visible", np.zeros((128, 128), "M8[s]")),
        ("visible", plain_header((128, 128)) + b"\x07" * 128 * 128),
        ("visible", plain_header((128, 128))),
        ("visible", plain_header((10**6, 10**6))),
        ("visible", plain_header((2**62, 2**62))),
        ("visible", plain_header((-1, 128))),
        ("visible", plain_header(("a",))),
        ("visible", plain_header(5)),
        ("visible", plain_header((128, 128), "|O")),
        ("visible", plain_header((128, 128), "nonsense")),
        ("visible", header("{" * 100)),
        ("visible", header("__import__('os').system('touch ran')")),
        ("visible", b"no array"),
        ("visible", b"\x93NUMPY\x09\x00"),
        ("visible", b""),
        ("responsibility", np.zeros((128, 128), "U3")),
        ("responsibility", np.zeros((128, 128), complex)),
        ("responsibility", np.zeros((2, 2))),
        ("view", np.zeros((128, 128), np.uint8)),
        ("view", np.zeros((128, 128, 0), np.uint8)),
        ("view", np.full((128, 128, 3), np.nan)),
        ("backgrounds", np.zeros((0, 128, 128, 3), np.uint8)),
        ("backgrounds", np.zeros((1, 128, 128, 3), np.float32)),
        ("backgrounds", np.zeros((128, 128, 3), np.uint8)),
        ("others", np.zeros((2, 5, 5), bool)),
        ("others", np.zeros(0, bool)),
        ("others", np.zeros((3, 128, 128), bool)),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name: str, value: Any, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repack(place / "saved", **{name: value})
    said = refused(capsys, "verify", "saved")
    assert "readable" in said
    assert name in said or "further" in said or "fit" in said
    assert not (place / "ran").exists()


def test_what_is_not_needed_in_an_archive_is_not_read(place: Path) -> None:
    repack(place / "saved", big=np.zeros(10**7), evil=np.array([{"pickled": 1}], object))
    tracemalloc.start()
    Explanation.load("saved")
    assert tracemalloc.get_traced_memory()[1] < 2 * 10**7
    tracemalloc.stop()


def test_an_archive_that_expands_beyond_all_bounds(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The members promise 8 GB; nothing of them is decompressed."""
    side = 2**15
    with zipfile.ZipFile(place / "saved" / "arrays.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, shape, descr in (
            ("visible", (side, side), "|b1"),
            ("responsibility", (side, side), "<f8"),
            ("view", (side, side, 3), "|u1"),
            ("backgrounds", (1, side, side, 3), "|u1"),
            ("others", (0, side, side), "|b1"),
        ):
            archive.writestr(f"{name}.npy", plain_header(shape, descr))
    data = bytearray((place / "saved" / "arrays.npz").read_bytes())
    sizes = {"visible": side**2, "responsibility": 8 * side**2, "view": 3 * side**2, "backgrounds": 3 * side**2, "others": 0}
    at = data.find(b"PK\x01\x02")
    while at >= 0:  # the sizes in the directory of the archive fit the headers
        length = struct.unpack_from("<H", data, at + 28)[0]
        name = bytes(data[at + 46 : at + 46 + length]).decode().removesuffix(".npy")
        struct.pack_into("<I", data, at + 24, min(2**32 - 2, sizes[name] + 128))
        at = data.find(b"PK\x01\x02", at + 46)
    (place / "saved" / "arrays.npz").write_bytes(data)
    tracemalloc.start()
    assert "readable" in refused(capsys, "verify", "saved")
    assert tracemalloc.get_traced_memory()[1] < 10**7
    tracemalloc.stop()


def test_the_limit_on_arrays_is_one_on_all_of_them(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "MOST_ARRAYS", 128 * 128 * 8)
    with pytest.raises(OutputError, match="the arrays take more than"):
        Explanation.load("saved")


@pytest.mark.parametrize("offset", [6, 8])  # the flags, and the compression
def test_odd_members_of_an_archive(offset: int, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = place / "saved" / "arrays.npz"
    data = bytearray(path.read_bytes())
    for mark, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        at = data.find(mark)
        while at >= 0:
            struct.pack_into("<H", data, at + offset + shift, 1 if offset == 6 else 99)
            at = data.find(mark, at + 4)
    path.write_bytes(data)
    assert "encrypted" in refused(capsys, "verify", "saved")


def test_an_array_that_is_there_twice(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(place / "saved" / "arrays.npz", "a") as archive:
        archive.writestr("visible.npy", b"")
    assert "2 arrays named visible" in refused(capsys, "verify", "saved")


def test_the_pixel_set_alone_is_read_with_the_same_care(place: Path) -> None:
    visible, frame = saved.read_visible(place / "saved")
    assert visible.shape == frame.grid == (128, 128)
    repack(place / "saved", visible=np.zeros((3, 3), bool))
    with pytest.raises(OutputError, match=r"frame\.grid"):
        saved.read_visible(place / "saved")


def test_a_label_that_the_model_does_not_have(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change("saved", label_id=999, target__label_id=999)
    capsys.readouterr()
    assert main(["verify", "saved"]) in (1, 2)
    assert "unexpected" not in capsys.readouterr().err


@pytest.mark.parametrize("has_levels", [False, True])
def test_claims_that_would_take_all_memory(place: Path, capsys: pytest.CaptureFixture[str], has_levels: bool) -> None:
    grid = (600, 600)
    pixels = np.zeros((*grid, 3), np.uint8)
    repack(
        place / "saved",
        levels=np.ones((2, *grid), bool) if has_levels else ...,
        visible=np.ones(grid, bool),
        responsibility=np.zeros(grid),
        view=pixels,
        backgrounds=pixels[None],
        others=np.zeros((0, *grid), bool),
    )
    same = {"original": grid, "resized": grid, "origin": (0, 0), "grid": grid}
    change("saved", frame=same, checks__minimal_grain=None if has_levels else 1)
    if has_levels:
        *_, record = json.loads((place / "saved" / "explanation.json").read_text())["levels"]
        change("saved", levels=[{**record, "minimal_grain": 1}, record])
    else:
        change("saved", levels=...)
    assert "GB of memory" in refused(capsys, "verify", "saved")


def test_mutated_folders_are_read_or_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes of the record and of the archive changed at random: an answer, or one line."""
    rng = np.random.default_rng(0)
    for number in range(40):
        name = FILES[number % 2]
        data = bytearray((place / "saved" / name).read_bytes())
        for _ in range(int(rng.integers(1, 6))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        shutil.copytree(place / "saved", place / "mutated", dirs_exist_ok=True)
        (place / "mutated" / name).write_bytes(data)
        capsys.readouterr()
        code = main(["verify", "mutated"])
        err = capsys.readouterr().err
        assert code in (0, 1) or (code == 2 and err.count("\n") == 1 and "unexpected" not in err), (number, code, err)


# 17.10: only regular files are opened


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "s"))
        for path, kind in (
            (tmp_path / "pipe", "a named pipe"),
            (tmp_path, "a folder"),
            (tmp_path / "s", "a socket"),
            (Path("/dev/zero"), "a device"),
            (Path("a\0b"), "null"),
        ):
            with pytest.raises(InputError, match=kind):
                open_regular(path)
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"content"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")


@pytest.mark.parametrize("name", FILES[:2])
def test_a_pipe_in_a_saved_folder_does_not_block(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "saved" / name).unlink()
    os.mkfifo(place / "saved" / name)
    assert "a named pipe, not a regular file" in refused(capsys, "verify", "saved")


# 17.11: files that belong together


OLD = {"record": b"old", "one": b"old", "two": b"old"}
NEW = {"record": b"new", "one": b"new", "two": b"new"}


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_files_are_replaced_together_and_others_kept(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "it", OLD)
    (folder / "mine").write_bytes(b"mine")
    write_files(folder, NEW)
    assert content(folder) == NEW | {"mine": b"mine"}
    (tmp_path / "link").symlink_to(folder)
    write_files(tmp_path / "link", OLD)
    assert content(folder) == OLD | {"mine": b"mine"}
    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", range(8))
def test_a_save_that_fails_leaves_all_as_it_was(
    at: int, failure: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever move fails, or writing of a file: never old and new files beside each other, and no rest."""
    folder = write_files(tmp_path / "it", OLD)
    moves, replace, write = [0], os.replace, Path.write_bytes

    def fail(real: Any) -> Any:
        def call(*arguments: Any) -> Any:
            moves[0] += 1
            if moves[0] == at + 1:
                raise failure
            return real(*arguments)

        return call

    monkeypatch.setattr(os, "replace", fail(replace))
    monkeypatch.setattr(Path, "write_bytes", fail(write))
    with pytest.raises((OutputError, KeyboardInterrupt)):
        write_files(folder, NEW)
    monkeypatch.undo()
    assert content(folder) == OLD
    assert list(tmp_path.iterdir()) == [folder]


def test_a_process_that_is_killed_while_saving_leaves_nothing_that_is_read(place: Path) -> None:
    """The record goes first and comes last, so a folder is never read with files of two explanations."""
    explanation = Explanation.load("saved")
    replace, moves, limit = os.replace, [0], [0]

    def killed(*arguments: Any) -> None:
        moves[0] += 1
        if moves[0] == limit[0]:
            os._exit(9)
        replace(*arguments)

    for number in range(1, 12):
        shutil.rmtree("killed", ignore_errors=True)
        shutil.copytree("saved", "killed")
        if (pid := os.fork()) == 0:
            limit[0] = number
            os.replace = killed
            write_files(Path("killed"), explanation.files(render=False) | dict.fromkeys(FILES[2:], b"new"))
            os._exit(0)
        os.waitpid(pid, 0)
        kept = {name: Path("killed", name).read_bytes() for name in FILES if Path("killed", name).exists()}
        if "explanation.json" in kept:
            assert len({kept[name] == b"new" for name in FILES[2:]}) == 1
            Explanation.load("killed")
        else:
            with pytest.raises(OutputError, match=r"explanation\.json is missing"):
                Explanation.load("killed")


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    def fill(part: Path) -> None:
        part.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OutputError, match="No space"):
        write_file(tmp_path / "it.png", fill)
    assert list(tmp_path.iterdir()) == []


def test_pipes_and_devices_are_not_replaced_by_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(OutputError, match="named pipe"):
            write_file(tmp_path / name, b"content")
        with pytest.raises(OutputError, match=r"named pipe|is a link"):
            write_files(tmp_path, {name: b"content"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_folder_in_the_place_of_a_file_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "it" / "two").mkdir(parents=True)
    (tmp_path / "it" / "two" / "mine").write_bytes(b"mine")
    with pytest.raises(OutputError, match="two is a folder, not a regular file"):
        write_files(tmp_path / "it", NEW)
    assert [path.name for path in (tmp_path / "it").iterdir()] == ["two"]
    assert (tmp_path / "it" / "two" / "mine").exists()


# 17.6: names


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("..", "image"),
        (".", "image"),
        ("", "image"),
        ("...", "image"),
        ("a/../../b", "a_.._.._b"),
        ("a\\b", "a_b"),
        ("C:", "C_"),
        ("CON", "_CON"),
        ("aux.tar", "_aux.tar"),
        ("com1", "_com1"),
        ("x\udcffy", "x_y"),
        ("a\nb\0", "a_b_"),
        ("end. .", "end"),
        ("a" * 300, "a" * 200),
        ("é" * 300, "é" * 100),
        ("photo 1 (ü, 日本).x", "photo 1 (ü, 日本).x"),
        (".hidden", ".hidden"),
        ("console", "console"),
    ],
)
def test_names_are_made_safe(name: str, safe: str, tmp_path: Path) -> None:
    assert safe_name(name) == safe
    (tmp_path / safe).mkdir()
    assert (tmp_path / safe).parent == tmp_path


def test_no_image_is_written_outside_of_the_folder(place: Path) -> None:
    shutil.copy("photo.png", "...png")
    assert main(["explain", "...png", "photo.png", "-m", "bundled", "--out", "results/out", *QUICK]) == 0
    assert {path.name for path in (place / "results").iterdir()} == {"out"}
    assert all(path.is_dir() for path in (place / "results" / "out").iterdir())
    assert len(list((place / "results" / "out").iterdir())) == 2
    chosen = [folder.name for _, folder in choose_folders([Path("...png"), Path("..."), Path("image.png")], Path("out"))]
    assert len({name.casefold() for name in chosen}) == 3
    assert not {".", "..", "..."} & set(chosen)
