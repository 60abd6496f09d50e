"""Runs over many images: complete, identical to single explanations, and safe against crashes."""

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from batch_toys import MODEL, QUICK, draw, open_store, toy_job, write_coco, write_pictures
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import becausal
from becausal.api import Request
from becausal.api.explanation import Explanation
from becausal.batch import pools, store, work
from becausal.batch.index import folder_of
from becausal.batch.inputs import InputItem, box_mask, compare_with_boxes, find_inputs
from becausal.batch.pools import InProcessPool, ProcessPool
from becausal.batch.reading import BatchRun
from becausal.batch.run import MAX_MODEL_FAILURES, ProgressMeter, format_duration, run_batch
from becausal.batch.settings import BatchJob, by_option, list_changes, settings_of
from becausal.batch.summaries import Overview
from becausal.batch.work import BatchTask, TaskDone, TaskFailed, TaskLost, WorkerReady
from becausal.core.errors import AnswerError, InputError, ModelError, OutputError
from becausal.core.frames import Frame
from becausal.interfaces.cli.app import main
from becausal.models import Loading
from becausal.scenes import write_scenes

SAME = (
    "id, image, state, sha256, label, label_id, confidence, size, pixels, pieces, alone, sufficient, necessary, "
    "minimal_grain, stopped_by, calls, inside, by_chance, note_code, note, error"
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with the toy models and eight images."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    write_pictures(Path("shots"), 8)
    return tmp_path


def agree(_):
    """Any model is the right one."""


def rows_of(run):
    with BatchRun(run) as opened:
        return list(opened.rows())


def same_rows(run):
    with sqlite3.connect(run / "index.sqlite") as index:
        return index.execute(f"SELECT {SAME} FROM images ORDER BY id").fetchall()


def arrays_of(run, number):
    with np.load(folder_of(run, number) / "arrays.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def assert_same_runs(one, other):
    """The same index, but for times, and the same arrays, bit for bit."""
    assert same_rows(one) == same_rows(other)
    for row in rows_of(one):
        if row["state"] == "done":
            ours, theirs = arrays_of(one, row["id"]), arrays_of(other, row["id"])
            assert ours.keys() == theirs.keys()
            assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


def fill(run, job, *sources, pool=None, retry=0, **more):
    """Run a job into a folder."""
    opened = open_store(run, *sources)
    pool = pool or InProcessPool(job, opened.check_model)
    try:
        run_batch(opened, pool, retry=retry, **more)
    finally:
        pool.close()
        opened.close()
    return run


def record_of(explanation):
    """All that is said of an answer but how long it took, as JSON holds it."""
    record = json.loads(json.dumps(explanation.record()))
    return {name: value for name, value in record.items() if name not in ("seconds", "stats")}


def batch(*words, model="python:net.py:predict"):
    return main(["batch", *QUICK, *(str(word) for word in words), "--model", model])


# Inputs


def test_pictures_come_from_folders_patterns_lists_and_files(here):
    write_pictures(Path("shots/deeper"), 1)
    Path("shots/.hidden.png").touch()
    Path("shots/notes.md").touch()
    Path("list.txt").write_text("\ufeffshots/p03.png\n\n  shots/p01.png  \nno-such.png\n")
    folder = [item.image for item in find_inputs(["shots"]).items]
    assert folder == [*(f"shots/p{k:02d}.png" for k in range(8)), "shots/deeper/p00.png"]
    assert [item.image for item in find_inputs(["shots/p0[12].png", "shots/p00.png"]).items] == [
        "shots/p01.png",
        "shots/p02.png",
        "shots/p00.png",
    ]
    assert [item.image for item in find_inputs(["list.txt"]).items] == ["shots/p03.png", "shots/p01.png", "no-such.png"]


def test_a_coco_file_brings_boxes(here):
    found = find_inputs([str(write_coco(Path("shots"), 4))])
    assert found.categories == {"dark", "bright"}
    assert found.items[2] == InputItem("shots/p02.png", ((0.0, 0.0, 5.0, 5.0, "Bright"),), (24, 24))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.json", "[1, 2]", "is not a COCO file"),
        ("x.json", '{"images": [{"id": 1}]}', "is not a COCO file"),
        ("x.json", "{", "is not a COCO file"),
        ("x.json", '{"images": []}', "has no images"),
        ("x.txt", "", "has no images"),
        ("x.txt", b"\xff\xfe\xfa", "cannot be read"),
    ],
)
def test_bad_lists_are_refused_in_words(here, name, content, said):
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=said):
        find_inputs([name])


@pytest.mark.parametrize("source", ["nothing.png", "nowhere/", "shots/*.tga"])
def test_what_is_not_there_is_refused(here, source, capsys):
    assert batch(source, "--out", "run") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert source.rstrip("/") in lines[0]
    assert not Path("run").exists()


# Truth


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(20, 90), st.integers(20, 90))
def test_the_share_on_the_object_is_that_on_the_original(seed, high, wide):
    """Against the original image, pixel by pixel, where each pixel of the view has its own block there."""
    rng = np.random.default_rng(seed)
    scale = int(rng.integers(1, 4))
    resized = (high, wide)
    side = min(high, wide) - int(rng.integers(0, 8))
    frame = Frame((high * scale, wide * scale), resized, ((high - side) // 2, (wide - side) // 2), (side, side))
    visible = rng.random((side, side)) < 0.3
    visible[0, 0] = True
    x, y, w, h = (int(n) * scale for n in rng.integers(0, 40, 4))
    item = InputItem("x", ((x, y, w, h, "cat"),), (wide * scale, high * scale))
    found = compare_with_boxes(visible, frame, "cat", item, frozenset({"cat"}))
    shown, truth = frame.to_original(visible), np.zeros(frame.original, bool)
    truth[y : y + h, x : x + w] = True
    assert found.inside == pytest.approx((shown & truth).sum() / shown.sum())
    seen = frame.to_original(np.ones((side, side), bool))
    assert found.by_chance == pytest.approx((seen & truth).sum() / seen.sum())


def test_only_boxes_of_the_label_count_where_the_truth_knows_it():
    frame, visible = Frame.identity((10, 10)), np.zeros((10, 10), bool)
    visible[2:4, 2:4] = True
    item = InputItem("x", ((2, 2, 1, 2, "cat"), (0, 0, 10, 10, "dog")))
    assert compare_with_boxes(visible, frame, "Cat", item, frozenset({"cat", "dog"})).inside == 0.5
    assert compare_with_boxes(visible, frame, "tabby", item, frozenset({"cat", "dog"})).inside == 1.0
    without = compare_with_boxes(visible, frame, "bird", item, frozenset({"cat", "bird"}))
    assert (without.note_code, without.inside) == ("label_without_box", None)
    assert without.note == "the ground truth has no box of bird in this image"
    assert compare_with_boxes(visible, frame, "cat", InputItem("x"), frozenset()).inside is None
    other = InputItem("x", item.boxes, (10, 20))
    mismatch = compare_with_boxes(visible, frame, "cat", other, frozenset({"cat"}))
    assert (mismatch.note_code, mismatch.inside) == ("size_mismatch", None)
    assert "10 x 20" in mismatch.note
    assert compare_with_boxes(np.ones(7, bool), Frame.identity((7,)), "cat", item, frozenset()).inside is None
    assert box_mask([(0.0, 0.0, 0.4, 9, "")], frame).sum() == 0  # no pixel's centre is in it


# The same as one by one


@pytest.mark.parametrize("width", [1, 5])
def test_a_run_gives_what_explain_gives(tmp_path, width):
    path = write_scenes(3, 100, tmp_path / "scenes")
    request = Request(max_calls=80, seed=3)
    job = BatchJob(model="bundled", request=request, categories=find_inputs([str(path)]).categories)
    opened = open_store(tmp_path / "run", path)
    run_batch(opened, InProcessPool(job, opened.check_model, width=width))
    opened.close()
    model = becausal.load_model("bundled")
    for row in rows_of(tmp_path / "run"):
        alone = becausal.explain(row["image"], model, max_calls=80, seed=3)
        kept = Explanation.load(folder_of(tmp_path / "run", row["id"]))
        for name in ("visible", "responsibility", "view"):
            assert np.array_equal(getattr(kept, name), getattr(alone, name))
        assert record_of(kept) == record_of(alone)
        assert (row["size"], row["calls"], row["label"], row["pieces"]) == (
            alone.size,
            alone.calls,
            alone.label,
            alone.pieces,
        )
        assert sorted(p.name for p in folder_of(tmp_path / "run", row["id"]).iterdir()) == ["arrays.npz", "explanation.json"]
        assert row["inside"] is not None


def test_worker_processes_give_the_same_and_one_file_may_come_twice(here):
    Path("list.txt").write_text("".join(f"shots/p{k:02d}.png\n" for k in (0, 1, 2, 3, 1, 1, 4)))
    fill(here / "one", toy_job(), "list.txt")
    fill(here / "two", toy_job(), "list.txt", pool=ProcessPool(toy_job(), agree, workers=2, width=2))
    assert_same_runs(here / "one", here / "two")
    rows = rows_of(here / "two")
    assert [row["state"] for row in rows] == ["done"] * 7
    assert rows[1]["sha256"] == rows[4]["sha256"] == rows[5]["sha256"]


def test_answers_reach_their_tasks_in_any_order(here, monkeypatch):
    """Also where a file comes twice, and one between them cannot be read."""
    plain = work.explain_numbered
    monkeypatch.setattr(work, "explain_numbered", lambda *args, **more: reversed(list(plain(*args, **more))))
    write_pictures(Path("shots"), 3, {2: 201})
    Path("shots/p01.png").write_bytes(b"")
    paths = {k + 5: here / "shots" / name for k, name in enumerate(("p00.png", "p01.png", "p02.png", "p00.png", "p03.png"))}
    tasks = [BatchTask(number, str(path), InputItem(path.name)) for number, path in paths.items()]
    results = list(InProcessPool(toy_job("raises"), agree, width=3).results(tasks))
    assert sorted(result.id for result in results) == list(paths)
    assert [result.id for result in results if isinstance(result, TaskDone)] == [9, 8, 5]
    for result in results:
        path = paths[result.id]
        if isinstance(result, TaskDone):
            ((row, files),) = result.results
            assert row["sha256"] == sha256(path.read_bytes()).hexdigest()
            assert json.loads(files["explanation.json"])["origin"]["image"] == path.name
    failed = {result.id: result.reason for result in results if isinstance(result, TaskFailed)}
    assert failed == {6: "p01.png is empty: 0 bytes", 7: "the model failed: RuntimeError: this one I do not like"}


def test_images_without_a_box_of_their_label_are_counted_by_code(here):
    path = write_coco(Path("shots"), 4)
    data = json.loads(path.read_text())
    data["annotations"][1]["category_id"] = 1  # of the other label
    data["images"][3]["width"] = 25
    path.write_text(json.dumps(data))
    run = fill(here / "run", toy_job(categories=find_inputs([str(path)]).categories), path)
    assert [row["note_code"] for row in rows_of(run)] == [None, "label_without_box", None, "size_mismatch"]
    with sqlite3.connect(run / "index.sqlite") as index:
        index.execute("UPDATE images SET note = 'in other words' WHERE note IS NOT NULL")
    with BatchRun(run) as opened:
        overview = Overview(opened)
    assert (overview.judged, overview.wrong_count) == (2, 1)


# What goes wrong


@pytest.fixture
def troubled(here):
    """Images among which some are unreadable, and some break the model."""
    write_pictures(Path("shots"), 8, {2: 201, 5: 202})
    Path("shots/p03.png").write_bytes(b"not an image")
    Path("shots/p06.png").write_bytes(b"")
    Path("shots/p07.png").write_bytes(Path("shots/p00.png").read_bytes()[:80])
    return here


def test_a_bad_picture_is_a_failed_row_and_not_a_dead_run(troubled, capsys):
    for name, more in (("one", []), ("wide", ["--width", "4"]), ("two", ["--workers", "2"])):
        words = ["batch", "shots", "--model", "python:net.py:raises", "--out", name, *QUICK, *more]
        assert main(words) == 3
    assert_same_runs(troubled / "one", troubled / "two")
    assert_same_runs(troubled / "one", troubled / "wide")
    rows = rows_of(troubled / "one")
    assert [row["state"] for row in rows] == ["done", "done", "failed", "failed", "done", "failed", "failed", "failed"]
    reasons = {row["id"]: row["error"] for row in rows if row["state"] == "failed"}
    assert reasons[2] == reasons[5] == "the model failed: RuntimeError: this one I do not like"
    assert reasons[3].startswith("p03.png is no image")
    assert reasons[6] == "p06.png is empty: 0 bytes"
    assert reasons[7].startswith("p07.png cannot be decoded")
    assert all("\n" not in reason and str(troubled) not in reason for reason in reasons.values())
    assert not any(folder_of(troubled / "one", k).exists() for k in reasons)
    out = capsys.readouterr().out
    assert "explained   3" in out
    assert " 2 x e.g. p02.png: the model failed: RuntimeError: this one I do not like\n" in out
    assert " 1 x p03.png: the file is no image in a known format: give a JPEG" in out
    assert main([*words[:4], "--out", "one", *QUICK, "--json"]) == 3  # nothing left to do
    assert json.loads(capsys.readouterr().out)["failed"] == 5


@pytest.mark.process
def test_a_worker_that_dies_takes_one_picture_with_it(here):
    write_pictures(Path("shots"), 8, {3: 203})
    opened = open_store(here / "run", "shots")
    run_batch(opened, ProcessPool(toy_job("dies"), agree, workers=2, width=2))
    assert opened.count() == {"waiting": 0, "done": 7, "failed": 1}
    opened.close()
    assert "worker process died, exit status -9" in rows_of(here / "run")[3]["error"]


@pytest.mark.process
def test_what_a_dead_worker_held_is_done_again(here):
    fill(here / "calm", toy_job(), "shots")
    write_pictures(Path("shots"), 8, {3: 203})
    fill(here / "run", toy_job("dies_once"), "shots", pool=ProcessPool(toy_job("dies_once"), agree, workers=2, width=2))
    rows = rows_of(here / "run")
    assert [row["state"] for row in rows] == ["done"] * 8
    assert Path("seen").exists()


def test_a_fault_in_a_method_fails_the_picture_it_came_from(here, monkeypatch):
    plain = work.explain_numbered

    def faulty(pictures, *args, **more):
        def checked():
            for picture in pictures:
                if picture.name.endswith("p04.png"):
                    raise ZeroDivisionError("a fault\nin a method")
                yield picture

        return plain(checked(), *args, **more)

    monkeypatch.setattr(work, "explain_numbered", faulty)
    opened = open_store(here / "run", "shots")
    run_batch(opened, InProcessPool(toy_job(), opened.check_model, width=3))
    opened.close()
    rows = rows_of(here / "run")
    assert [row["id"] for row in rows if row["state"] == "failed"] == [4]
    assert rows[4]["error"] == "unexpected ZeroDivisionError: a fault in a method"


def test_retry_tries_failures_again_those_of_earlier_starts_too(here):
    write_pictures(Path("shots"), 8, {1: 201})
    words = ["batch", "shots", *QUICK, "--model", "python:net.py:raises_once", "--out", "run"]
    assert main(words) == 3
    assert main(words) == 3  # without --retry a failure stays one
    assert main([*words, "--retry", "1"]) == 0
    assert [row["tries"] for row in rows_of(here / "run")] == [1, 2, 1, 1, 1, 1, 1, 1]
    Path("seen").unlink()
    assert main([*words[:-1], "other", "--retry", "2"]) == 0


def test_a_model_that_breaks_on_everything_ends_the_run(here, capsys):
    write_pictures(Path("shots"), MAX_MODEL_FAILURES + 20)
    assert main(["batch", "shots", "--model", "python:net.py:always_raises", "--out", "run"]) == 2
    said = capsys.readouterr().err
    assert f"the model failed on {MAX_MODEL_FAILURES} images in a row" in said
    assert "the accelerator has gone" in said
    assert len(said.splitlines()) == 1
    assert sum(row["state"] == "waiting" for row in rows_of(here / "run")) >= 10


@pytest.mark.process
def test_a_worker_that_cannot_load_the_model_says_why(here):
    with pytest.raises(ModelError, match="has no function 'nothing'"):
        list(
            ProcessPool(toy_job("nothing"), agree, workers=2).results(
                [BatchTask(0, "shots/p00.png", InputItem("shots/p00.png"))]
            )
        )


def test_an_unknown_target_is_said_before_any_picture_is_failed_for_it(here, capsys):
    assert batch("shots", "--out", "run", "--target", "purple") == 2
    assert "purple" in capsys.readouterr().err
    assert all(row["state"] == "waiting" for row in rows_of(here / "run"))


# Going on


def test_a_limit_is_lifted_by_a_later_start(here, capsys):
    assert batch("shots", "--out", "run", "--limit", "3") == 0
    assert [row["state"] for row in rows_of(here / "run")] == ["done"] * 3 + ["waiting"] * 5
    capsys.readouterr()
    assert batch("shots", "--out", "run", "--workers", "2", "--batch-size", "8", "--threads", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["done"] == 8
    assert batch("shots", "--out", "calm") == 0
    assert_same_runs(here / "run", here / "calm")


def test_another_option_is_refused_with_what_differs(here, capsys):
    assert batch("shots", "--out", "run", "--limit", "1") == 0
    capsys.readouterr()
    before = same_rows(here / "run")
    for more, said in (
        (["--seed", "4", "--max-calls", "90"], "max_calls was not given, now 90; seed was 0, now 4"),
        (["--fill", "black"], 'fills was ["auto"], now ["black"]'),
        (["--render"], "render was false, now true"),
        (["--option", "coarse=2"], None),
    ):
        assert batch("shots", "--out", "run", *more) == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1
        assert said is None or said in error
    assert main(["batch", "shots", "--out", "run", "--model", "python:net.py:raises", *QUICK]) == 2
    assert "model was python:net.py:predict, now python:net.py:raises" in capsys.readouterr().err
    assert same_rows(here / "run") == before


def test_the_index_has_whole_records(here):
    request = Request(seed=3, max_calls=60, fills=("black", "grey"), target="bright", options={"partitions": "4"})
    loading = Loading(labels=("dark", "bright"), resize="24/24", batch_size=2, threads=1)
    inputs = find_inputs(["shots"])
    store.BatchStore(here / "run", inputs, settings_of(toy_job(request=request, loading=loading), inputs)).close()
    with BatchRun(here / "run") as run:
        assert Request.from_record(run.settings["request"]) == request
        assert Loading.from_record(run.settings["loading"]) == replace(loading, batch_size=None, threads=None)
        assert run.settings["working_directory"] == str(here)


@pytest.mark.parametrize(("kind", "name"), [(kind, f.name) for kind in (Request, Loading) for f in fields(kind)])
def test_every_option_is_compared_under_its_own_name(here, kind, name):
    inputs, option = find_inputs(["shots"]), kind()
    other = {"fills": ("other",), "endpoint": ("timeout=5",), "options": {"other": 1}}.get(name, "other")
    object.__setattr__(option, name, other)
    before = toy_job(request=Request())
    now = replace(before, **{kind.__name__.lower(): option})
    changes = list_changes(by_option(settings_of(before, inputs)), by_option(settings_of(now, inputs)))
    if name in ("batch_size", "threads"):  # answers do not depend on them
        assert changes == []
    else:
        assert len(changes) == 1
        assert changes[0].startswith(f"{name} was ")


def test_other_pictures_are_refused(here, capsys):
    assert batch("shots", "--out", "run", "--limit", "1") == 0
    Image.fromarray(draw(9)).save("shots/p99.png")
    Path("shots/p07.png").unlink()
    assert batch("shots", "--out", "run") == 2
    assert "1 added (e.g. shots/p99.png) and 1 missing (e.g. shots/p07.png)" in capsys.readouterr().err


def test_another_model_under_the_same_name_is_refused(here, capsys):
    assert batch("shots", "--out", "run", "--limit", "1") == 0
    Path("net.py").write_text(MODEL.replace("** 2", "** 3"))
    assert batch("shots", "--out", "run") == 2
    error = capsys.readouterr().err
    assert "not the model that run was started with: model_sha256 was" in error
    assert sum(row["state"] == "done" for row in rows_of(here / "run")) == 1


def test_a_second_start_on_one_folder_is_refused(here, capsys):
    opened = open_store(here / "run", "shots")
    try:
        with pytest.raises(OutputError, match=f"is in use by process {os.getpid()}"):
            open_store(here / "run", "shots")
        assert batch("shots", "--out", "run") == 2
        assert "run is in use by" in capsys.readouterr().err
        with BatchRun(here / "run") as reader:  # reading is allowed meanwhile
            assert reader.count()["waiting"] == 8
    finally:
        opened.close()
    open_store(here / "run", "shots").close()


def test_a_folder_of_someone_else_is_left_alone(here, capsys):
    assert batch("shots", "--out", "shots") == 2
    assert "holds other files" in capsys.readouterr().err
    assert sorted(p.name for p in Path("shots").iterdir()) == [f"p{k:02d}.png" for k in range(8)]


def test_what_a_kill_left_half_made_is_removed_and_made_again(here):
    run = fill(here / "run", toy_job(), "shots")
    fill(here / "calm", toy_job(), "shots")
    (run / "unfinished" / "000005").mkdir(parents=True)
    (run / "unfinished" / "000005" / "arrays.npz").write_bytes(b"half")
    with sqlite3.connect(run / "index.sqlite") as index:  # as if killed between the files and the row
        index.execute("UPDATE images SET state = 'waiting', label = NULL, tries = 0 WHERE id = 2")
    shutil.rmtree(folder_of(run, 6))  # as if the disk had lost a rename
    opened = open_store(run, "shots")
    assert not (run / "unfinished" / "000005").exists()
    assert not folder_of(run, 2).exists()
    assert opened.count() == {"waiting": 2, "done": 6, "failed": 0}
    run_batch(opened, InProcessPool(toy_job(), opened.check_model))
    opened.close()
    assert_same_runs(run, here / "calm")


def test_a_result_is_kept_once(here):
    opened = open_store(here / "run", "shots")
    results = list(InProcessPool(toy_job(), agree).results(opened.tasks("waiting", limit=1)))
    for _ in range(2):
        opened.write(results[0])
        opened.save(results[0])
    assert not list((here / "run" / "unfinished").iterdir())
    opened.fail(TaskFailed(0, "too late"))
    opened.close()
    row = rows_of(here / "run")[0]
    assert (row["state"], row["tries"], row["error"]) == ("done", 1, None)


def test_a_full_disk_stops_the_run_and_keeps_what_is_done(here, monkeypatch, capsys):
    plain, count = store._write_synced, 0

    def full(path, content):
        nonlocal count
        count += 1
        if count > 7:
            path.write_bytes(content[:10])
            raise OSError(28, "No space left on device")
        plain(path, content)

    monkeypatch.setattr(store, "_write_synced", full)
    assert batch("shots", "--out", "run") == 2
    assert capsys.readouterr().err == "becausal: error: cannot write to run: No space left on device\n"
    assert [row["state"] for row in rows_of(here / "run")] == ["done"] * 3 + ["waiting"] * 5
    assert not list((here / "run" / "unfinished").iterdir())
    monkeypatch.setattr(store, "_write_synced", plain)
    assert batch("shots", "--out", "run") == 0
    assert batch("shots", "--out", "calm") == 0
    assert_same_runs(here / "run", here / "calm")


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounting needs root on Linux")
def test_a_disk_that_is_really_full(here, capsys):
    small = here / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", small], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        write_pictures(Path("shots"), 24)
        assert batch("shots", "--out", small / "run") == 2
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1
        assert "space left" in said or "disk is full" in said
        kept = [row["id"] for row in rows_of(small / "run") if row["state"] == "done"]
        assert 0 < len(kept) < 24
        assert all(arrays_of(small / "run", number)["visible"].any() for number in kept)
        subprocess.run(["mount", "-o", "remount,size=8m", small], check=True)
        assert batch("shots", "--out", small / "run") == 0
        assert batch("shots", "--out", "calm") == 0
        assert_same_runs(small / "run", here / "calm")
    finally:
        subprocess.run(["umount", small], check=True)


# Killed and interrupted


def start(run, *more, model="python:net.py:slow"):
    words = [sys.executable, "-m", "becausal", "batch", "shots", "--model", model, "--out", run, *QUICK, *more]
    return subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_until(what, seconds=60.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def done_in(run):
    try:
        with sqlite3.connect(f"file:{run}/index.sqlite?mode=ro", uri=True) as index:
            return index.execute("SELECT count(*) FROM images WHERE state = 'done'").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


def check_kills(here, kills, pictures, *more):
    """Kill a run at random moments until it has been killed so often, or is through; it must not show."""
    write_pictures(Path("shots"), pictures)
    fill(here / "calm", toy_job("slow"), "shots")
    draw_moment = random.Random(5)
    for number in range(kills):
        process = start("run", *more)
        goal = done_in("run") + draw_moment.randrange(0, pictures // kills + 1)
        wait_until(lambda process=process, goal=goal: process.poll() is not None or done_in("run") >= goal)
        time.sleep(draw_moment.uniform(0, 0.2))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        assert done_in("run") < pictures or number == kills - 1
    process = start("run", *more)
    process.communicate()
    assert process.returncode == 0
    assert [row["tries"] for row in rows_of(here / "run")] == [1] * pictures
    assert_same_runs(here / "run", here / "calm")


@pytest.mark.process
def test_kills_at_random_moments_do_not_show(here):
    check_kills(here, 2, 12, "--workers", "2")


@pytest.mark.slow
def test_many_kills_do_not_show(here):
    check_kills(here, 30, 300, "--workers", "2")


@pytest.mark.process
def test_workers_go_when_their_driver_is_killed(here):
    process = start("run", "--workers", "2")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        pytest.skip("no /proc here")
    wait_until(lambda: done_in("run") >= 1)
    workers = children.read_text().split()
    assert len(workers) >= 2
    process.kill()
    process.communicate()
    wait_until(lambda: not any(is_alive(pid) for pid in workers))


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.process
@pytest.mark.parametrize(("number", "more"), [(signal.SIGINT, []), (signal.SIGTERM, ["--workers", "2"])])
def test_an_interrupt_finishes_what_is_under_way(here, number, more):
    write_pictures(Path("shots"), 60)
    process = start("run", *more)
    wait_until(lambda: done_in("run") >= 1)
    os.killpg(process.pid, number)
    said = process.communicate()[1]
    assert process.returncode == 130
    first, *rest = said.splitlines()
    assert "finishing the images in progress" in first
    assert rest in ([], ["becausal: stopped: interrupted"])  # the images took longer than they are waited for
    rows = rows_of(here / "run")
    assert 1 <= sum(row["state"] == "done" for row in rows) < 60
    assert all(row["stopped_by"] == "finished" for row in rows if row["state"] == "done")


# Streams and figures


@pytest.mark.parametrize("kind", ["single", "processes"])
def test_pools_take_no_more_than_they_need(here, kind):
    """Memory stays flat because tasks are taken as answers come, whatever the number of images."""
    write_pictures(Path("shots"), 24)
    taken = answered = most = 0

    def tasks():
        nonlocal taken, most
        for k in range(24):
            taken += 1
            most = max(most, taken - answered)
            yield BatchTask(k, str(here / f"shots/p{k:02d}.png"), InputItem(f"p{k:02d}.png"))

    pool = (
        InProcessPool(toy_job(), agree, width=2) if kind == "single" else ProcessPool(toy_job(), agree, workers=2, width=2)
    )
    for result in pool.results(tasks()):
        assert isinstance(result, TaskDone)
        answered += 1
    assert answered == 24
    assert most <= 11


def test_every_worker_must_have_the_same_model(here):
    opened = open_store(here / "run", "shots")
    opened.check_model(WorkerReady({"model_sha256": "a" * 64}))
    opened.check_model(WorkerReady({"model_sha256": "a" * 64}))
    with pytest.raises(InputError, match="model_sha256 was aaaa"):
        opened.check_model(WorkerReady({"model_sha256": "b" * 64}))
    opened.close()


def test_lost_pictures_are_tried_alone_before_they_are_blamed(here):
    class Flaky:
        """Loses all images in company, and one of them alone, too."""

        feeds_device = False

        def __init__(self):
            self.asked = []

        def results(self, tasks, *, one_at_a_time=False):
            for task in tasks:
                self.asked.append((task.id, one_at_a_time))
                if not one_at_a_time:
                    yield TaskLost(task.id, "gone")
                elif task.id == 2:
                    yield TaskFailed(task.id, "gone, with this image alone")
                else:
                    yield from InProcessPool(toy_job(), agree).results([task])

    opened = open_store(here / "run", "shots")
    flaky = Flaky()
    run_batch(opened, flaky, limit=3)
    assert flaky.asked == [(0, False), (1, False), (2, False), (0, True), (1, True), (2, True)]
    assert opened.count(3) == {"waiting": 0, "done": 2, "failed": 1}
    opened.close()


class Feeding:
    """A pool that feeds a device: explains in this process, and raises an error in the end, if it has one."""

    feeds_device = True

    def __init__(self, error=None, ahead=lambda count: None):
        self.error, self.ahead = error, ahead

    def results(self, tasks, *, one_at_a_time=False):
        for count, result in enumerate(InProcessPool(toy_job(), agree).results(tasks), start=1):
            yield result
            self.ahead(count)
        if self.error is not None:
            raise self.error


def test_a_device_does_not_wait_for_files(here, monkeypatch):
    """Files are written when five further results have been taken; what is stored is the same, in the same order."""
    plain, open_gate, stored = store._write_synced, threading.Event(), []

    def slow(path, content):
        assert open_gate.wait(60)
        plain(path, content)

    def go_on(count):
        if count == 6:
            assert not stored
            open_gate.set()

    monkeypatch.setattr(store, "_write_synced", slow)
    opened = open_store(here / "run", "shots")
    run_batch(opened, Feeding(ahead=go_on), on_event=lambda event: stored.append(event.id))
    opened.close()
    assert stored == list(range(8))
    assert not list((here / "run" / "unfinished").iterdir())
    fill(here / "calm", toy_job(), "shots")
    assert_same_runs(here / "run", here / "calm")


def test_no_more_results_wait_for_their_files_than_memory_has_room_for(here, monkeypatch):
    """With room for three, the device is not fed again after the fourth result until a file is written."""
    plain, gate, too_early = store._write_synced, threading.Event(), []

    def slow(path, content):
        assert gate.wait(60)
        plain(path, content)

    def watch(count):
        if count > 3 and not gate.is_set():
            too_early.append(count)
            gate.set()

    monkeypatch.setattr(store, "_write_synced", slow)
    monkeypatch.setattr("becausal.batch.run.MAX_UNSTORED", 3)
    opened = open_store(here / "run", "shots")
    timer = threading.Timer(0.5, gate.set)
    timer.start()
    run_batch(opened, Feeding(ahead=watch))
    timer.cancel()
    assert opened.count() == {"waiting": 0, "done": 8, "failed": 0}
    opened.close()
    assert not too_early


@pytest.mark.parametrize("error", [ModelError("the device is lost"), KeyboardInterrupt()])
def test_what_was_explained_is_stored_when_a_run_breaks_off(here, error):
    opened = open_store(here / "run", "shots")
    with pytest.raises(type(error)):
        run_batch(opened, Feeding(error), limit=5)
    assert opened.count() == {"waiting": 3, "done": 5, "failed": 0}
    opened.close()


def test_a_full_disk_stops_a_run_on_a_device(here, monkeypatch):
    plain = store._write_synced

    def full(path, content):
        if "000004" in str(path):
            raise OSError(28, "No space left on device")
        plain(path, content)

    monkeypatch.setattr(store, "_write_synced", full)
    opened = open_store(here / "run", "shots")
    with pytest.raises(OutputError, match="No space left"):
        run_batch(opened, Feeding())
    assert opened.count()["done"] >= 4
    opened.close()
    assert not list((here / "run" / "unfinished").iterdir())


def test_the_streak_is_broken_by_a_success(here):
    class Breaking:
        feeds_device = False

        def results(self, tasks, *, one_at_a_time=False):
            for task in tasks:
                yield TaskFailed(task.id, "broke", is_model=task.id % MAX_MODEL_FAILURES != 7)

    write_pictures(Path("shots"), 2 * MAX_MODEL_FAILURES)
    opened = open_store(here / "run", "shots")
    run_batch(opened, Breaking())
    assert opened.count()["failed"] == 2 * MAX_MODEL_FAILURES
    opened.close()

    class Broken:
        feeds_device = False

        def results(self, tasks, *, one_at_a_time=False):
            for task in tasks:
                yield TaskFailed(task.id, "broke", is_model=True)

    opened = open_store(here / "other", "shots")
    with pytest.raises(AnswerError, match="--retry 1"):
        run_batch(opened, Broken())
    assert opened.count()["failed"] == MAX_MODEL_FAILURES
    opened.close()


def test_pace_says_rate_and_time_left():
    now = 0.0
    pace = ProgressMeter(1000, 100, clock=lambda: now)
    assert str(pace) == "100 of 1,000"
    for _ in range(50):
        now += 0.5
        pace.step()
    assert str(pace) == "150 of 1,000, 2.0 images/s, 7 min left"
    for _ in range(100):  # slower: the old rate is forgotten
        now += 4.0
        pace.step()
    assert re.search(r", 1[45]\.\d images/min, ", str(pace))
    assert [format_duration(s) for s in (3, 125, 3 * 3600 + 300, 52 * 3600)] == ["3 s", "2 min", "3 h 05 min", "2 d 4 h"]


@pytest.mark.parametrize(
    "more",
    [
        ["--workers", "0"],
        ["--limit", "0"],
        ["--retry", "-1"],
        ["--width", "0"],
        ["--gpus-per-worker", "1"],
        ["--method", "no-such"],
        ["--max-calls", "3"],
        ["--device", "toaster"],
        ["--grain", "x"],
    ],
)
def test_bad_options_give_one_line(here, more, capsys):
    assert batch("shots", "--out", "run", *more) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_no_header_gets_into_the_index(here):
    job = toy_job(loading=Loading(endpoint=("header=Authorization: Bearer SECRET", "timeout=5")))
    assert settings_of(job, find_inputs(["shots"]))["loading"] == {"endpoint": ["timeout=5"]}


def test_verify_reads_what_a_run_wrote(here, capsys):
    assert batch("shots", "--out", "run", "--limit", "1") == 0
    assert main(["verify", str(folder_of(here / "run", 0)), "--trust"]) == 0
    assert "claims hold" in capsys.readouterr().out


@pytest.mark.process
def test_workers_report_what_is_wrong_before_they_start(here, monkeypatch):
    monkeypatch.setattr(pools, "MAX_START_CRASHES", 2)
    monkeypatch.setattr(pools, "serve", _die)
    with pytest.raises(ModelError, match="before it had loaded the model"):
        list(ProcessPool(toy_job(), agree, workers=1).results([BatchTask(0, "shots/p00.png", InputItem("shots/p00.png"))]))


def _die(*_):
    raise SystemExit(7)
