"""Runs on a bad day: lost and hostile indexes, replaced files, images that kill the process, read-only disks."""

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from batch_toys import MODEL, NAMES, QUICK, draw, open_store, toy_job, write_coco, write_pictures
from check_toys import make_run
from PIL import Image

from becausal.batch import reading
from becausal.batch.index import folder_of
from becausal.batch.reading import BatchRun
from becausal.batch.settings import hash_files
from becausal.batch.store import MAX_ORPHANS
from becausal.batch.work import TaskFailed
from becausal.core.errors import InputError, OutputError
from becausal.core.request import Request
from becausal.interfaces.cli.app import main
from becausal.models import Loading
from test_batch import assert_same_runs, batch, fill, rows_of, same_rows


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with the toy models and eight images."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    write_pictures(Path("shots"), 8)
    return tmp_path


def one_line_of(capsys):
    """The single line on stderr, which must not be about a bug of ours."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert "unexpected" not in lines[0]
    return lines[0]


def all_columns(run):
    """All columns but the time of the last attempt."""
    with BatchRun(run) as opened:
        return [{name: value for name, value in row.items() if name != "finished"} for row in opened.rows()]


# A lost index


LOSSES = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "overwritten": lambda path: path.write_bytes(b"not a database" * 100),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:5000]),
}


@pytest.mark.smoke
def test_a_lost_index_is_rebuilt(here, capsys):
    """However it was lost, with the copy of its header and without."""
    source = write_coco(Path("shots"), 8)
    Image.fromarray(np.zeros((24, 24, 3), np.uint8)).save("night.png")
    words = (source, "--out", "run", "--fill", "image:night.png", "--fill", "grey")
    assert batch(*words) == 0
    before = all_columns(here / "run")
    assert before[0]["inside"] is not None
    shutil.copytree("run", "finished")
    for lose, has_copy in product(LOSSES.values(), (True, False)):
        shutil.rmtree("run")
        shutil.copytree("finished", "run")
        lose(Path("run/index.sqlite"))
        if not has_copy:
            Path("run/run.json").unlink()
        capsys.readouterr()
        assert batch(*words) == 0
        said = "becausal: note: the index was lost, damaged or out of date: rebuilt it from 8 explanations\n"
        assert capsys.readouterr().err == said
        assert all_columns(here / "run") == before
        assert not list(Path("run").glob("*.new"))
        assert batch(*words) == 0  # and it can be resumed
        assert capsys.readouterr().err == ""


def test_without_explanations_a_damaged_index_is_left_alone(here, capsys):
    assert batch("shots", "--out", "run", "--limit", "1") == 0
    shutil.rmtree("run/explanations")
    Path("run/index.sqlite").write_bytes(b"not a database" * 100)
    capsys.readouterr()
    assert batch("shots", "--out", "run") == 2
    assert "if there are none, remove index.sqlite" in one_line_of(capsys)
    assert Path("run/index.sqlite").read_bytes() == b"not a database" * 100


def test_only_results_of_the_run_are_taken_and_nothing_is_removed(here, capsys):
    run = here / "run"
    fill(run, toy_job(), "shots")
    before = all_columns(run)
    assert batch("shots", "--out", "other", "--seed", "5") == 0
    shutil.rmtree(folder_of(run, 1))
    shutil.copytree(folder_of(here / "other", 1), folder_of(run, 1))  # of another request
    (folder_of(run, 2) / "arrays.npz").write_bytes(b"damaged")
    shutil.copytree(folder_of(run, 3), folder_of(run, 700))  # of no image
    Image.fromarray(draw(99)).save("shots/p04.png")  # replaced
    (run / "index.sqlite").unlink()
    capsys.readouterr()
    assert batch("shots", "--out", "run", "--limit", "1") == 0
    said = one_line_of(capsys)
    for part in ("from 5 explanations", "4 moved to run/rejected", "with another request", "1 unreadable", "another image"):
        assert part in said
    assert sorted(p.name for p in (run / "rejected").iterdir()) == ["000001", "000002", "000004", "000700"]
    assert [row for row in all_columns(run) if row["state"] == "done"] == [before[k] for k in (0, 3, 5, 6, 7)]
    assert batch("shots", "--out", "run") == 0
    assert batch("shots", "--out", "calm") == 0
    assert_same_runs(run, here / "calm")


def test_a_rebuilt_run_is_still_that_of_its_model_and_options(here, capsys):
    for has_copy in (True, False):
        shutil.rmtree("run", ignore_errors=True)
        Path("net.py").write_text(MODEL)
        assert batch("shots", "--out", "run", "--limit", "4") == 0
        Path("run/index.sqlite").unlink()
        if not has_copy:
            Path("run/run.json").unlink()
        Path("net.py").write_text(MODEL.replace("** 2", "** 3"))
        capsys.readouterr()
        assert batch("shots", "--out", "run") == 2
        assert "not the model that run was started with: model_sha256 was" in capsys.readouterr().err
        assert folder_of(here / "run", 3).is_dir()
    Path("net.py").write_text(MODEL)
    assert batch("shots", "--out", "run") == 0
    for said in ("seed was 0, now 3", "no explanation matches these options and images: 8 with another request"):
        Path("run/index.sqlite").unlink()
        capsys.readouterr()
        assert batch("shots", "--out", "run", "--seed", "3") == 2
        assert said in one_line_of(capsys)
        assert folder_of(here / "run", 7).is_dir()
        assert batch("shots", "--out", "run") == 0
        Path("run/run.json").unlink()


def test_a_damaged_index_is_kept_when_it_is_rebuilt(here):
    write_pictures(Path("shots"), 8, {2: 201})
    words = ["batch", "shots", "--model", "python:net.py:raises", "--out", "run", *QUICK]
    assert main(words) == 3
    before = same_rows(here / "run")
    for number in ("", "-1"):
        with sqlite3.connect("run/index.sqlite") as index:
            index.execute("DROP TABLE run")
        index.close()
        assert main(words) == 3
        assert same_rows(here / "run") == before  # the failed image was tried again
        with sqlite3.connect(f"run/index.sqlite.old{number}") as old:
            assert old.execute("SELECT count(*) FROM images WHERE state = 'failed'").fetchone() == (1,)


def test_an_old_copy_of_the_index_removes_nothing(here, capsys):
    write_pictures(Path("shots"), MAX_ORPHANS + 5)
    assert batch("shots", "--out", "run", "--limit", "1") == 0
    shutil.copyfile("run/index.sqlite", "copy.sqlite")
    assert batch("shots", "--out", "run") == 0
    before = all_columns(here / "run")
    shutil.copyfile("copy.sqlite", "run/index.sqlite")
    capsys.readouterr()
    assert batch("shots", "--out", "run") == 0
    assert f"rebuilt it from {MAX_ORPHANS + 5} explanations" in one_line_of(capsys)
    assert all_columns(here / "run") == before


# Files that decide the answers


HELPER = "def power():\n    return 2\n"
SPLIT = MODEL.replace("import numpy as np", "import numpy as np\nimport helper").replace("** 2", "** helper.power()")


@pytest.mark.parametrize(
    ("changed", "files"),
    [
        ("net.toml", {"net.toml": 'returns = "probabilities"\n'}),
        ("helper.py", {"net.py": SPLIT, "helper.py": HELPER}),
        ("deeper.py", {"net.py": SPLIT, "helper.py": "from deeper import power\n", "deeper.py": HELPER}),
        (
            "helper/inner.py",
            {"net.py": SPLIT, "helper/__init__.py": "from .inner import power\n", "helper/inner.py": HELPER},
        ),
        ("late.py", {"net.py": MODEL + "\ndef later():\n    import late\n", "late.py": HELPER}),
        ("weights.npy", {"net.py": MODEL + "\nWEIGHTS = Path(__file__).parent / 'weights.npy'\n", "weights.npy": "1"}),
    ],
)
def test_a_changed_file_of_the_model_is_noticed(here, changed, files, capsys, monkeypatch):
    for name in ("helper", "helper.inner", "deeper", "late"):  # imported from these files, and forgotten at the end
        monkeypatch.setitem(sys.modules, name, sys)
        monkeypatch.delitem(sys.modules, name)
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    assert batch("shots", "--out", "run", "--limit", "1") == 0
    with Path(changed).open("a") as file:
        file.write("\n# another line\n")
    capsys.readouterr()
    assert batch("shots", "--out", "run") == 2
    assert f"not the model that run was started with: file {changed} was" in capsys.readouterr().err
    assert sum(row["state"] == "done" for row in rows_of(here / "run")) == 1


def test_a_new_or_removed_toml_file_is_noticed(here):
    fill(here / "run", toy_job(), "shots", limit=1)
    Path("net.toml").write_text('returns = "probabilities"\n')
    with pytest.raises(InputError, match=r"file net\.toml was not given, now"):
        fill(here / "run", toy_job(), "shots")


def test_replaced_external_data_of_an_onnx_file_is_noticed(here, capsys):
    onnx = pytest.importorskip("onnx")
    weights = np.random.default_rng(0).normal(size=(24 * 24 * 3, 2)).astype(np.float32)
    nodes = [
        onnx.helper.make_node("Flatten", ["image"], ["flat"]),
        onnx.helper.make_node("MatMul", ["flat", "weights"], ["logits"]),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "net",
        [onnx.helper.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["n", 3, 24, 24])],
        [onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["n", 2])],
        [onnx.numpy_helper.from_array(weights, "weights")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    Path("nets").mkdir()
    onnx.save(model, "nets/net.onnx", save_as_external_data=True, location="net.data", size_threshold=0)
    words = ["batch", "shots", "--model", "nets/net.onnx", "--out", "run", "--max-calls", "60"]
    assert main([*words, "--limit", "1"]) in (0, 3)
    with BatchRun("run") as run:
        assert run.facts["file net.data"] is not None
    (weights * 2).tofile("nets/net.data")
    capsys.readouterr()
    assert main(words) == 2
    assert "file net.data was" in one_line_of(capsys)


def test_fills_and_arguments_are_hashed(here):
    Path("sub").mkdir()
    Path("sub/t.py").write_text("def build(name):\n    return name\n")
    Path("sub/a.weights").write_text("1")
    job = toy_job(request=Request(fills=("image:shots/p00.png", "grey")))
    assert set(hash_files(job)) == {"file shots/p00.png"}
    assert set(hash_files(replace(job, model="torch:sub/t.py:build:a.weights"))) == {
        "file shots/p00.png",
        "file a.weights",
    }
    fill(here / "run", job, "shots", limit=1)
    Image.fromarray(draw(70)).save("shots/p00.png")
    opened = open_store(here / "run", "shots")
    assert opened.count()["done"] == 0  # it was the first image, too
    opened.close()
    with pytest.raises(InputError, match=r"file shots/p00\.png was"):
        fill(here / "run", job, "shots")


def test_a_replaced_image_is_explained_again_and_said(here, capsys):
    assert batch("shots", "--out", "run") == 0
    Image.fromarray(draw(50)).save("shots/p02.png")
    os.utime("shots/p03.png", (1, 1))  # the same content
    Path("shots/p04.png").unlink()
    before = same_rows(here / "run")
    capsys.readouterr()
    Image.fromarray(draw(4)).save("shots/p04.png")  # written anew, the same content
    assert batch("shots", "--out", "run") == 0
    said = capsys.readouterr()
    assert said.err == ("becausal: note: 1 image has changed since the last start (e.g. shots/p02.png): explained again\n")
    after = same_rows(here / "run")
    assert [k for k in range(8) if before[k] != after[k]] == [2]
    assert batch("shots", "--out", "calm") == 0
    assert_same_runs(here / "run", here / "calm")
    assert batch("shots", "--out", "run") == 0
    assert capsys.readouterr().err == ""


def test_a_missing_image_keeps_its_result(here):
    Path("list.txt").write_text("".join(f"shots/p{k:02d}.png\n" for k in range(3)))
    assert batch("list.txt", "--out", "run") == 0
    Path("shots/p01.png").unlink()
    assert batch("list.txt", "--out", "run") == 0
    assert [row["state"] for row in rows_of(here / "run")] == ["done"] * 3


# An image that kills the process


def test_an_image_that_kills_a_single_process_is_failed_at_the_second_death(here):
    write_pictures(Path("shots"), 8, {2: 203})
    words = [sys.executable, "-m", "becausal", "batch", "shots", "--model", "python:net.py:dies", "--out", "run", *QUICK]
    assert subprocess.run(words).returncode == -signal.SIGKILL
    assert [row["state"] for row in rows_of(here / "run")] == ["done"] * 2 + ["waiting"] * 6
    assert main(words[3:]) == 3  # it is explained in a process of its own
    rows = rows_of(here / "run")
    assert [row["state"] for row in rows] == ["done"] * 2 + ["failed"] + ["done"] * 5
    assert rows[2]["error"] == "the worker process died, exit status -9 (SIGKILL), with this image alone"
    assert main([*words[3:], "--retry", "1"]) == 3  # and again


def test_an_image_that_kills_the_only_worker_does_not_end_the_run(here, capsys):
    write_pictures(Path("shots"), 8, {2: 203})
    assert batch("shots", "--out", "run", "--workers", "1", model="python:net.py:dies") == 3
    rows = rows_of(here / "run")
    assert [row["state"] for row in rows] == ["done"] * 2 + ["failed"] + ["done"] * 5
    assert rows[2]["error"] == "the worker process died, exit status -9 (SIGKILL), with this image alone"


def test_an_image_that_was_in_progress_by_chance_is_explained(here):
    write_pictures(Path("shots"), 8, {2: 203})
    words = ["batch", "shots", "--model", "python:net.py:dies_once", "--out", "run", *QUICK]
    assert subprocess.run([sys.executable, "-m", "becausal", *words, "--width", "3"]).returncode == -signal.SIGKILL
    with sqlite3.connect("run/index.sqlite") as index:
        assert index.execute("SELECT count(*) FROM in_progress WHERE id = 2").fetchone() == (1,)
    assert main(words) == 0
    assert [row["tries"] for row in rows_of(here / "run")] == [1] * 8
    with sqlite3.connect("run/index.sqlite") as index:
        assert index.execute("SELECT count(*) FROM in_progress").fetchone() == (0,)


def test_a_start_that_ends_in_order_leaves_no_suspects(here):
    opened = open_store(here / "run", "shots")
    opened.start(3)
    assert opened.suspects("waiting") == []
    opened.close()
    opened = open_store(here / "run", "shots")
    assert opened.suspects("waiting") == []
    opened.close()


def test_an_image_replaced_with_its_size_and_time_kept_is_noticed(here, capsys):
    for name, mark in (("p02", 1), ("p05", 2)):  # of the same size, without compression
        Image.fromarray(draw(mark)).save(f"shots/{name}.bmp")
        Path(f"shots/{name}.png").unlink()
    assert batch("shots", "--out", "run") == 0
    before = rows_of(here / "run")
    for name, change in (("p02", lambda path, data: path.write_bytes(data)), ("p05", put_in_place)):
        path = Path(f"shots/{name}.bmp")
        times, size = (path.stat().st_atime_ns, path.stat().st_mtime_ns), path.stat().st_size
        Image.fromarray(draw(9)).save("other.bmp")
        change(path, Path("other.bmp").read_bytes())
        os.utime(path, ns=times)
        assert (path.stat().st_mtime_ns, path.stat().st_size) == (times[1], size)
    capsys.readouterr()
    assert batch("shots", "--out", "run") == 0
    assert "2 images have changed since the last start" in capsys.readouterr().err
    after = rows_of(here / "run")
    assert [k for k in range(8) if before[k]["sha256"] != after[k]["sha256"]] == [2, 5]


def put_in_place(path, data):
    Path("new").write_bytes(data)
    os.replace("new", path)


def test_a_run_of_an_older_becausal_is_resumed(here, capsys):
    assert batch("shots", "--out", "run", "--limit", "4") == 0
    with sqlite3.connect("run/index.sqlite") as index:
        index.execute("DROP TABLE image_stamps")
        index.execute("CREATE TABLE stamps (id INTEGER PRIMARY KEY, bytes INTEGER NOT NULL, mtime INTEGER NOT NULL)")
    capsys.readouterr()
    assert batch("shots", "--out", "run") == 0
    assert "changed" not in capsys.readouterr().err
    assert [row["tries"] for row in rows_of(here / "run")] == [1] * 8


# Names that cannot be written, or are very long


@pytest.mark.parametrize("source", [MODEL.replace('"bright"', '"bri\\ud800ght"'), NAMES.replace('"grey"', '"gr\\udfffey"')])
def test_labels_that_cannot_be_written_are_replaced_and_said(here, capsys, source):
    Path("odd.py").write_text(source)
    pixels = np.zeros((24, 24, 3), np.uint8)
    pixels[6:18, 6:18] = (255, 255, 255) if "LABELS" in source else (255, 0, 0)
    Image.fromarray(pixels).save("shots/p00.png")
    assert batch("shots", "--out", "run", "--limit", "1", model="python:odd.py:predict") == 0
    printed = capsys.readouterr()
    assert "replaced by U+FFFD" in printed.out
    assert "unexpected" not in printed.out + printed.err
    (row, *_) = rows_of(here / "run")
    assert row["label"] == ("bri\ufffdght" if "LABELS" in source else "red")
    assert main(["report", "run"]) == main(["export", "run"]) == 0


def test_given_labels_that_cannot_be_written_can_be_stored(here):
    fill(here / "run", toy_job(loading=Loading(labels=("dark", "\ud800"))), "shots", limit=1)
    assert rows_of(here / "run")[0]["label"] == "\ufffd"


def test_a_record_with_such_a_label_does_not_stop_a_rebuild(here):
    assert batch("shots", "--out", "run") == 0
    path = folder_of(Path("run"), 0) / "explanation.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"label": "\ud800"}))
    Path("run/index.sqlite").unlink()
    assert batch("shots", "--out", "run") == 0
    assert rows_of(here / "run")[0]["label"] == "\ufffd"


def test_very_long_labels_take_no_time(here, capsys):
    for name in ("run", "old"):
        make_run(here / name, [{"image": f"{k}.png", "label": f"{name} " * 425_000} for k in range(12)])
    start = time.perf_counter()
    for words in (["diff", "run", "old"], ["check", "run", "--baseline", "old", "--rules", "rules.toml"], ["report", "run"]):
        Path("rules.toml").write_text("[labels]\n")
        assert main(words) == (1 if words[0] == "check" else 0)
    assert time.perf_counter() - start < 10
    assert max(map(len, capsys.readouterr().out.splitlines())) < 1000


# Foreign files and read-only disks


def test_foreign_files_among_the_results_do_no_harm(here):
    Path("run").mkdir()
    Path("run/.DS_Store").write_text("x")
    assert batch("shots", "--out", "run", "--limit", "4") == 0
    foreign = [Path("run/explanations") / name for name in (".DS_Store", "000/.DS_Store", "000/notes.txt", "000/12/x")]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    Path("run/explanations/000/000099").symlink_to(here / "shots")
    assert batch("shots", "--out", "run") == 0
    assert all(path.read_text() == "x" for path in foreign)
    assert len(list(Path("shots").iterdir())) == 8
    assert batch("shots", "--out", "calm") == 0
    assert_same_runs(here / "run", here / "calm")


def listing(folder):
    return sorted((str(p.relative_to(folder)), p.stat().st_size) for p in folder.rglob("*"))


def read_all(run, place, capsys):
    """Report, export and diff of a run, written elsewhere."""
    before = listing(run)
    for words in (
        ["report", str(run), "--out", str(place / "r.html")],
        ["export", str(run), "--out", str(place / "r.csv")],
        ["export", str(run), "--format", "coco", "--out", str(place / "r.json")],
        ["diff", str(run), str(run), "--json"],
    ):
        assert main(words) == 0, capsys.readouterr().err
    assert listing(run) == before


def test_reading_leaves_no_files_behind(here, capsys, monkeypatch):
    assert batch("shots", "--out", "run") == 0
    read_all(here / "run", here, capsys)
    monkeypatch.setattr(reading, "is_writable", lambda folder: False)  # as on a read-only disk
    read_all(here / "run", here, capsys)


def test_a_log_left_by_a_crash_is_read_on_a_read_only_disk(here, monkeypatch):
    assert batch("shots", "--out", "run", "--limit", "3") == 0
    opened = open_store(here / "run", "shots")
    opened.fail(TaskFailed(7, "as a test"))
    shutil.copytree("run", "copy")  # as if the driver had been killed here
    opened.close()
    assert Path("copy/index.sqlite-wal").stat().st_size
    monkeypatch.setattr(reading, "is_writable", lambda folder: False)
    before = listing(here / "copy")
    assert rows_of(here / "copy")[7]["error"] == "as a test"
    assert listing(here / "copy") == before


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting needs root on Linux")
def test_a_disk_that_is_really_read_only(here, capsys):
    disk = here / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        assert batch("shots", "--out", "disk/run") == 0
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        read_all(disk / "run", here, capsys)
        capsys.readouterr()
        for words in (["report", "disk/run"], ["export", "disk/run"], ["report", "disk/run", "--image", "1"]):
            assert main(words) == 2
            assert "Read-only file system" in one_line_of(capsys)
        assert batch("shots", "--out", "disk/run") == 2
        assert "Read-only file system" in one_line_of(capsys)
    finally:
        subprocess.run(["umount", disk], check=True)


# Hostile and damaged content


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    (folder / "net.py").write_text(MODEL)
    path = write_coco(write_pictures(folder / "shots", 4), 4)
    words = ["batch", str(path), "--model", f"python:{folder}/net.py:predict", "--out", str(folder / "run")]
    assert main([*words, "--max-calls", "60"]) == 0
    return folder / "run"


DEEP = "[" * 100_000 + "]" * 100_000
TAMPERED = {
    "text for a number": "UPDATE images SET size = 'large' WHERE id = 1",
    "a blob": "UPDATE images SET label = x'ff00' WHERE id = 1",
    "infinity": "UPDATE images SET seconds = 9e999 WHERE id = 1",
    "a share above one": "UPDATE images SET size = 7.0 WHERE id = 1",
    "no label": "UPDATE images SET label = NULL WHERE id = 1",
    "bytes that are not text": "UPDATE images SET note = CAST(x'fffe' AS TEXT) WHERE id = 1",
    "a float for an integer": "UPDATE images SET calls = 2.5 WHERE id = 1",
    "a name that is not text": "PRAGMA writable_schema = ON; "
    "UPDATE sqlite_master SET sql = CAST(x'43524541544520ff' AS TEXT) WHERE name = 'images'",
    "a negative number": "UPDATE images SET id = -5 WHERE id = 1",
    "no table": "DROP TABLE images",
    "another table": "DROP TABLE images; CREATE TABLE images (a)",
    "an endless view": "ALTER TABLE images RENAME TO old; CREATE VIEW images AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL "
    "SELECT id + 1 FROM n) SELECT * FROM n",
    "no header": "DELETE FROM run",
    "infinite settings": """UPDATE run SET value = replace(value, '"seed": 0', '"seed": Infinity')""",
    "huge settings": """UPDATE run SET value = replace(value, '"seed": 0', '"seed": 1e999')""",
    "settings of another type": "UPDATE run SET value = '[1, 2]' WHERE name = 'settings'",
    "no request": "UPDATE run SET value = '{\"model\": \"x\"}' WHERE name = 'settings'",
    "deep settings": f"UPDATE run SET value = '{DEEP}' WHERE name = 'settings'",
    "categories of another type": "UPDATE run SET value = '{\"a\": 1}' WHERE name = 'categories'",
    "numbers as categories": "UPDATE run SET value = '[1]' WHERE name = 'categories'",
    "a limit of another type": "INSERT OR REPLACE INTO run VALUES ('limit', '\"x\"')",
    "settings that are a blob": "UPDATE run SET value = x'ff' WHERE name = 'settings'",
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_index_gives_one_line(finished, tmp_path, name, capsys):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    with sqlite3.connect(run / "index.sqlite") as index:
        index.execute("PRAGMA ignore_check_constraints = ON")
        index.executescript(TAMPERED[name])
    index.close()
    for words in (
        ["report", str(run), "--out", str(tmp_path / "r.html")],
        ["export", str(run), "--out", str(tmp_path / "r.csv")],
        ["export", str(run), "--format", "coco", "--out", str(tmp_path / "r.json")],
        ["diff", str(run), str(finished)],
    ):
        assert main(words) == 2, words
        assert str(run) in one_line_of(capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def mutate(data, rng):
    """The bytes with some replaced, removed or added."""
    for _ in range(rng.choice([1, 3, 20])):
        at, kind = rng.randrange(len(data)), rng.random()
        if kind < 0.7:
            data[at] = rng.randrange(256)
        elif kind < 0.85 and len(data) > 400:
            del data[at : at + rng.randrange(1, 200)]
        else:
            data[at:at] = rng.randbytes(rng.randrange(1, 50))
    return bytes(data)


@pytest.mark.parametrize("seed", range(20))
def test_a_mutated_run_gives_results_or_one_line(finished, tmp_path, seed, capsys):
    rng, run = random.Random(seed), tmp_path / "run"
    shutil.copytree(finished, run)
    others = sorted(path for path in run.rglob("*") if path.suffix in (".json", ".npz"))
    path = run / "index.sqlite" if seed % 2 else rng.choice(others)
    path.write_bytes(mutate(bytearray(path.read_bytes()), rng))
    source, model = finished.parent / "shots" / "boxes.json", f"python:{finished.parent}/net.py:predict"
    capsys.readouterr()
    for words in (
        ["report", str(run), "--out", str(tmp_path / "r.html")],
        ["export", str(run), "--out", str(tmp_path / "r.csv")],
        ["export", str(run), "--format", "coco", "--out", str(tmp_path / "r.json")],
        ["diff", str(finished), str(run), "--json"],
        ["batch", str(source), "--model", model, "--out", str(run), "--max-calls", "60"],
    ):
        status, said = main(words), capsys.readouterr().err
        assert status in (0, 2, 3)
        assert "unexpected" not in said
        assert status != 2 or len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "statement"),
    [
        ("boxes", "UPDATE images SET boxes = '[[1, 2]]', state = 'waiting'"),
        ("boxes", f"UPDATE images SET boxes = '{DEEP}', state = 'waiting'"),
        ("box_size", "UPDATE images SET box_size = '\"x\"', state = 'waiting'"),
        ("images", "DROP TABLE images"),
    ],
)
def test_a_tampered_index_is_not_resumed(here, name, statement, capsys):
    source = write_coco(Path("shots"), 8)
    assert batch(source, "--out", "run", "--limit", "1") == 0
    shutil.rmtree("run/explanations")
    with sqlite3.connect("run/index.sqlite") as index:
        index.executescript(statement)
    index.close()
    capsys.readouterr()
    assert batch(source, "--out", "run") == 2
    assert name in one_line_of(capsys)


def test_an_index_that_breaks_during_a_run_gives_one_line(here):
    opened = open_store(here / "run", "shots")
    opened._index.execute("DROP TABLE images")
    for use in (opened.count, opened.reasons, lambda: list(opened.tasks("waiting")), lambda: opened.task(1)):
        with pytest.raises(OutputError, match=r"the index of .* cannot be used: no such table: images"):
            use()
    opened.close()


@pytest.mark.parametrize("content", [
    '{"images": [{"id": 1, "file_name": "p00.png"}], "annotations": [{"image_id": 1, "bbox": [0, 0, Infinity, 1]}]}',
    '{"images": [{"id": 1, "file_name": "p00.png"}], "annotations": [{"image_id": 1, "bbox": [NaN, 0, 1, 1]}]}',
    '{"images": [{"id": 1, "file_name": "p00.png", "width": Infinity, "height": 3}]}',
    '{"images": [{"file_name": "p00.png"}], "annotations": [{"image_id": 1, "bbox": [' + "9" * 400 + ", 0, 1, 1]}]}",
    '{"images": ' + DEEP + "}",
])  # fmt: skip
def test_a_hostile_coco_file_gives_one_line(here, content, capsys):
    Path("shots/x.json").write_text(content)
    assert batch("shots/x.json", "--out", "run") == 2
    assert "is not a COCO file" in one_line_of(capsys)


def test_places_that_are_no_files_are_refused(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for out in ("/", ".", "..", "", str(tmp_path)):
        for words in (["report", str(finished)], ["export", str(finished)], ["diff", str(finished), str(finished)]):
            assert main([*words, "--out", out]) == 2, (words, out)
            assert "it is a folder" in one_line_of(capsys)
    assert not list(tmp_path.iterdir())


def test_one_damaged_explanation_does_not_hide_the_others(finished, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (folder_of(run, 1) / "arrays.npz").write_bytes(b"damaged")
    (folder_of(run, 2) / "explanation.json").write_text(DEEP)
    capsys.readouterr()
    assert main(["report", str(run)]) == 0
    assert one_line_of(capsys).startswith("becausal: warning: 2 explanations were left out of")
    assert (run / "report.html").read_text().count('class="blank"') >= 2
    assert main(["export", str(run), "--format", "coco", "--out", str(tmp_path / "r.json")]) == 3
    assert "warning: 2 explanations were left out" in one_line_of(capsys)
    found = json.loads((tmp_path / "r.json").read_text())
    assert [mark["image_id"] for mark in found["annotations"]] == [0, 3]
    assert main(["diff", str(run), str(finished), "--out", str(tmp_path / "d.html"), "--json"]) == 0
    said = capsys.readouterr()
    assert [pair["overlap"] for pair in json.loads(said.out)["pictures"]].count(None) == 2
    assert "warning: 2 explanations" in said.err


def test_one_bad_array_does_not_abort_the_others(here, capsys):
    Path("shots/p01.npy").write_bytes(b"\x93NUMPY\x01\x00\xf0\x0f" + b"(" * 4080)
    Path("shots/p02.npy").write_bytes(b"\x93NUMPY" + b"\xff" * 40)
    np.save("shots/p03.npy", np.array([{"a": 1}], object), allow_pickle=True)
    Path("shots/p04.npy").write_bytes(b"")
    assert batch("shots", "--out", "run") == 3
    rows = rows_of(here / "run")
    assert {row["image"] for row in rows if row["state"] == "failed"} == {f"shots/p0{k}.npy" for k in (1, 2, 3, 4)}
    assert sum(row["state"] == "done" for row in rows) == 8
    assert all("unexpected" not in row["error"] and str(here) not in row["error"] for row in rows if row["error"])


def test_signals_among_images_do_not_abort_the_coco_export(here, capsys):
    Path("any.py").write_text(
        "import numpy as np\nRETURNS = 'probabilities'\n"
        "def predict(batch):\n"
        "    share = batch.reshape(len(batch), -1).astype(float).mean(axis=1).clip(0, 255) / 255\n"
        "    return np.stack([share ** 0.5, 1 - share ** 0.5], axis=1)\n"
    )
    Image.fromarray(np.full((24, 24, 3), 255, np.uint8)).save("shots/p00.png")
    np.save("signal.npy", np.repeat([0.0, 255.0], 25))
    words = ["batch", "shots/p00.png", "signal.npy", "--model", "python:any.py:predict", "--out", "run", "--fill", "black"]
    assert main([*words, "--max-calls", "50"]) == 0, capsys.readouterr()
    assert main(["export", "run", "--format", "coco", "--out", "r.json"]) == 0
    assert [image["file_name"] for image in json.loads(Path("r.json").read_text())["images"]] == ["shots/p00.png"]
    assert main(["batch", "signal.npy", *words[3:-3], "signals", *words[-2:], "--max-calls", "50"]) == 0
    capsys.readouterr()
    assert main(["export", "signals", "--format", "coco", "--out", "s.json"]) == 2
    assert "for images only" in one_line_of(capsys)
    assert not Path("s.json").exists()


# Truth in what is said


@pytest.mark.parametrize("constant", ["SIZE = 24", ""])
def test_notes_of_the_model_are_shown_once_per_run(here, constant, capsys):
    Path("net.py").write_text(MODEL.replace('OUTPUT = "probabilities"', constant))
    note = "the output is read as probabilities: no softmax applied (detected; override with --returns)"
    for _ in range(2):  # also where there is nothing left to do
        assert batch("shots", "--out", "run") == 0
        assert capsys.readouterr().out.count(note) == 1
    assert batch("shots", "--out", "run", "--json") == 0
    assert note in json.loads(capsys.readouterr().out)["notes"]
    assert main(["report", "run"]) == 0
    assert capsys.readouterr().out.count(note) == 1
    page = Path("run/report.html").read_text()
    assert page.count(note) == 1
    assert page.index(note) < page.index("</header>")
    assert batch("shots", "--out", "two", "--workers", "2") == 0
    assert capsys.readouterr().out.count(note) == 1


def test_a_limited_run_is_called_limited_everywhere(here, capsys):
    assert batch("shots", "--out", "run", "--limit", "1") == 0
    truth = "1 of 8 images explained, limited to the first 1"
    said = capsys.readouterr().out
    assert said.startswith(f"run: {truth}\n")
    assert "complete" not in said
    assert main(["report", "run"]) == 0
    assert truth in capsys.readouterr().out
    page = Path("run/report.html").read_text()
    assert f"<strong>{truth}.</strong> Run the same command without --limit for the rest." in page
    assert "<em>1</em> of 8 images explained." in page
    assert batch("shots", "--out", "run", "--limit", "1", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["images"], found["limit"], found["done"], found["waiting"]) == (8, 1, 1, 0)
    assert batch("shots", "--out", "run") == 0
    assert capsys.readouterr().out.startswith("run: complete\n")
    assert main(["report", "run"]) == 0
    page = Path("run/report.html").read_text()
    assert "<em>8</em> images explained." in page
    assert "Run the same command" not in page


def test_thumbnails_are_links(here, capsys):
    odd = Path("a run #1")
    assert batch("shots", "--out", odd) == 0
    assert main(["report", str(odd), "--image", "2"]) == 0
    assert main(["report", str(odd)]) == 0
    page = (odd / "report.html").read_text()
    assert '<a href="explanations/000/000001/explanation.json"><img' in page
    assert '<a href="explanations/000/000002/report.html"><img' in page
    Path("pages").mkdir()
    assert main(["report", str(odd), "--out", "pages/r.html"]) == 0
    assert '<a href="../a%20run%20%231/explanations/000/000001/explanation.json"><img' in Path("pages/r.html").read_text()


# Models that return names


@pytest.mark.parametrize("constant", ["", "SIZE = 24\n"])
def test_names_are_the_identity_of_labels(here, constant, capsys):
    """Each loaded model meets the names in another order."""
    Path("named.py").write_text(constant + NAMES)
    shutil.rmtree("shots")
    Path("shots").mkdir()
    wanted = {}
    for k in range(12):
        pixels = draw(k)
        channel = (k * 7 + k // 3) % 3
        pixels[7:17, 7:17] = 20
        pixels[7:17, 7:17, channel] = 250
        Image.fromarray(pixels).save(f"shots/p{k:02d}.png")
        wanted[f"shots/p{k:02d}.png"] = ("red", "green", "blue")[channel]
    words = ["batch", "shots", "--model", "python:named.py:predict", *QUICK, "--max-calls", "60"]
    assert main([*words, "--out", "two", "--workers", "2"]) == 0
    assert main([*words, "--out", "resumed", "--limit", "5"]) == 0  # each start loads the model anew
    assert main([*words, "--out", "resumed"]) == 0
    assert_same_runs(here / "two", here / "resumed")
    for run in ("two", "resumed"):
        assert main(["export", run, "--format", "coco", "--out", "r.json"]) == 0
        found = json.loads(Path("r.json").read_text())
        assert sorted(category["name"] for category in found["categories"]) == ["blue", "green", "red"]
        names = {category["id"]: category["name"] for category in found["categories"]}
        assert len(names) == 3
        files = {image["id"]: image["file_name"] for image in found["images"]}
        assert {files[mark["image_id"]]: names[mark["category_id"]] for mark in found["annotations"]} == wanted
        assert {row["image"]: row["label"] for row in rows_of(here / run)} == wanted
        assert {row["label_id"] for row in rows_of(here / run)} == {None}


def test_categories_of_runs_with_conflicting_ids_follow_the_names(finished, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    with sqlite3.connect(run / "index.sqlite") as index:
        index.execute("UPDATE images SET label = 'cat' WHERE id = 2")  # another name, the same id
    index.close()
    assert main(["export", str(run), "--format", "coco", "--out", str(tmp_path / "r.json")]) == 0
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["categories"] == [{"id": 1, "name": "bright"}, {"id": 2, "name": "cat"}]
    assert [mark["category_id"] for mark in found["annotations"]] == [1, 1, 2, 1]
    assert main(["export", str(finished), "--format", "coco", "--out", str(tmp_path / "r.json")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["categories"] == [{"id": 1, "name": "bright"}]


def test_a_run_with_an_option_that_is_gone_is_resumed(here, capsys):
    run = here / "run"
    assert batch("shots", "--out", "run", "--limit", "1") == 0
    with sqlite3.connect(run / "index.sqlite") as index:
        ((text,),) = index.execute("SELECT value FROM run WHERE name = 'settings'").fetchall()
        settings = json.loads(text)
        settings["loading"]["runtime"] = "torch"
        index.execute("UPDATE run SET value = ? WHERE name = 'settings'", (json.dumps(settings),))
    index.close()
    assert batch("shots", "--out", "run") == 0
