"""Runs over all boxes of an object detector: a row per box, whatever the workers, the crashes and the restarts."""

import base64
import csv
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import becausal
from becausal.api import Request
from becausal.api.explanation import Explanation
from becausal.batch.index import folder_of
from becausal.batch.inputs import find_inputs
from becausal.batch.pools import InProcessPool, ProcessPool
from becausal.batch.ray import RayWorker
from becausal.batch.reading import BatchRun
from becausal.batch.run import run_batch
from becausal.batch.settings import BatchJob, settings_of
from becausal.batch.store import BatchStore
from becausal.batch.summaries import pair_boxes
from becausal.batch.work import TaskDone
from becausal.core.boxes import MAX_BOXES, overlaps
from becausal.core.targets import OVERLAP
from becausal.interfaces.cli.app import main
from becausal.render.colours import BOX_COLOUR, rgb_of
from becausal.render.painting import make_thumbnail

MODEL = '''
import time
from pathlib import Path
import numpy as np
LABELS = ["cat", "dog", "wall"]
PLACES = (0, (1, 6, 11, 18)), (2, (13, 6, 23, 18))  # channel; left, top, right, bottom: a red cat, a blue dog

def find(image, walls=False):
    """The score of each is the squared brightness of its place, the wall is always there."""
    found = [(box, (0.95 - 0.1 * label) * (image[box[1]:box[3], box[0]:box[2], channel].mean() / 255) ** 2, label)
             for label, (channel, box) in enumerate(PLACES)]
    found += [((0, 0, 24, 3), 0.7, 2)] if walls else []
    return tuple(np.array(part, float) for part in zip(*found))

def detect(batch):
    return [find(image) for image in batch]

def detect_walls(batch):
    return [find(image, walls=True) for image in batch]

def fails_once(batch):
    if (batch[:, 0, 0, 0] == 7).any() and not Path("seen").exists():
        Path("seen").touch()
        raise RuntimeError("not today")
    return detect(batch)

def slow(batch):
    time.sleep(0.02)
    return detect(batch)
'''
SAME = (
    "id, image, state, sha256, label, label_id, confidence, box, box_left, box_top, box_right, box_bottom, size, pixels, "
    "alone, sufficient, necessary, minimal_grain, stopped_by, calls, error, tries"
)
QUICK = ("--grain", "4", "--smallest", "--max-calls", "40")
REQUEST = Request(grain=4, smallest=True, max_calls=40)


def draw(animals: str) -> np.ndarray:
    """A dark image of 24 px with a red square (c) on the left, a blue one (d) on the right, or both."""
    pixels = np.random.default_rng(len(animals)).integers(0, 40, (24, 24, 3)).astype(np.uint8)
    for name, left, channel in (("c", 1, 0), ("d", 13, 2)):
        if name in animals:
            pixels[6:18, left : left + 10, channel] = 250
    return pixels


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with the toy detectors and four images: both animals, one, both, the other."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    Path("shots").mkdir()
    for number, animals in enumerate(("cd", "d", "cd", "c")):
        Image.fromarray(draw(animals)).save(f"shots/p{number}.png")
    return tmp_path


def batch(*words, model="detect", every_box=True):
    options = ["--all"] if every_box else []
    return main(["batch", *QUICK, *options, *(str(word) for word in words), "--model", f"detect:python:net.py:{model}"])


def columns(run):
    with sqlite3.connect(Path(run) / "index.sqlite") as index:
        return index.execute(f"SELECT {SAME} FROM images ORDER BY id").fetchall()


def rows_of(run):
    with BatchRun(run) as opened:
        return list(opened.rows())


def assert_same_runs(one, other):
    """The same rows, and the same arrays, bit for bit."""
    assert columns(one) == columns(other)
    for row in rows_of(one):
        if row["state"] == "done":
            places = [folder_of(Path(run), row["id"], MAX_BOXES) / "arrays.npz" for run in (one, other)]
            with np.load(places[0]) as ours, np.load(places[1]) as theirs:
                assert ours.files == theirs.files
                assert all(np.array_equal(ours[name], theirs[name]) for name in ours.files)


def make_job(name="detect", **changed):
    given = {"model": f"detect:python:net.py:{name}", "request": REQUEST, "folder": str(Path.cwd()), "every_box": True}
    return BatchJob(**given | changed)


def open_store(run, job):
    inputs = find_inputs(["shots"])
    return BatchStore(Path(run), inputs, settings_of(job, inputs))


# Rows


def test_every_box_has_a_row_with_what_explaining_it_gives(here, capsys):
    assert batch("shots", "--out", "run") == 0
    assert "explained   4 of 4 images, 6 boxes" in capsys.readouterr().out
    rows = rows_of("run")
    assert [(row["id"], row["box"], row["label"]) for row in rows] == [
        (0, 1, "cat"), (1, 2, "dog"), (100, 1, "dog"), (200, 1, "cat"), (201, 2, "dog"), (300, 1, "cat"),
    ]  # fmt: skip
    assert [rows[1][f"box_{side}"] for side in ("left", "top", "right", "bottom")] == [13, 6, 23, 18]
    model = becausal.load_model("detect:python:net.py:detect")
    answers = dict(becausal.explain_boxes("shots/p0.png", model, request=REQUEST))
    for number, row in enumerate(rows[:2], start=1):
        saved = Explanation.load(f"run/explanations/000/000000/box-{number}")
        assert np.array_equal(saved.visible, answers[number].visible)
        assert (row["calls"], row["confidence"]) == (answers[number].calls, answers[number].confidence)
    assert main(["verify", "run/explanations/000/000000/box-2", "--trust"]) == 0
    with BatchRun("run") as run:
        assert np.array_equal(run.load(1).visible, answers[2].visible)
        assert run.count() == {"waiting": 0, "done": 4, "failed": 0}


@pytest.mark.process
def test_rows_do_not_depend_on_the_workers(here):
    run_batch_in("calm", make_job())
    run_batch_in("run", make_job(), lambda job, store: ProcessPool(job, store.check_model, workers=2))
    assert_same_runs("calm", "run")


def run_batch_in(run, job, make_pool=None):
    opened = open_store(run, job)
    pool = make_pool(job, opened) if make_pool else InProcessPool(job, opened.check_model)
    try:
        run_batch(opened, pool)
    finally:
        pool.close()
        opened.close()


def test_a_ray_worker_returns_all_boxes_of_its_images(here):
    """What an actor does, without a cluster."""
    run_batch_in("calm", make_job())
    opened = open_store("run", make_job())
    worker = RayWorker(make_job(), None)
    opened.check_model(worker.start())
    for result in worker.explain(list(opened.tasks("waiting"))):
        assert isinstance(result, TaskDone)
        opened.write(result)
        opened.save(result)
    opened.close()
    assert_same_runs("calm", "run")


def test_boxes_of_one_label_keep_their_numbers(here):
    assert batch("shots", "--target", "dog", "--out", "run") == 3
    found = [(row["id"], row["state"], row["box"], row["label"]) for row in rows_of("run")]
    assert found == [(1, "done", 2, "dog"), (100, "done", 1, "dog"), (201, "done", 2, "dog"), (300, "failed", None, None)]
    assert "the detector finds no dog in this image; it finds cat" in rows_of("run")[3]["error"]
    assert batch("shots", "--target", "dog", "--out", "run", "--retry", "1") == 3
    assert [row["tries"] for row in rows_of("run")] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("words", "model", "said"),
    [
        (["--box", "1"], "detect", "--all explains every box: leave out --box"),
        (["--width", "2"], "detect", "--width is for single boxes"),
        ([], None, "bundled is a classifier; boxes are found by an object detector, e.g. detect:yolo.onnx"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(here, words, model, said, capsys):
    spec = "bundled" if model is None else f"detect:python:net.py:{model}"
    assert main(["batch", "shots", "--all", *words, "--model", spec, "--out", "run"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_run_is_resumed_with_or_without_all_boxes_as_it_was_started(here, capsys):
    assert batch("shots", "--out", "run", "--limit", "1") == 0
    assert batch("shots", "--out", "run", every_box=False) == 2
    assert "all was true, now not given" in capsys.readouterr().err


def test_without_all_the_best_box_has_the_only_row(here):
    assert batch("shots", "--out", "run", every_box=False) == 0
    rows = rows_of("run")
    assert [(row["id"], row["label"], row["box"], row["box_left"]) for row in rows] == [
        (0, "cat", None, 1), (1, "dog", None, 13), (2, "cat", None, 1), (3, "cat", None, 1),
    ]  # fmt: skip


# Failures


def test_a_box_that_cannot_be_explained_does_not_fail_the_others(here, capsys):
    assert batch("shots", "--out", "run", model="detect_walls") == 3
    said = capsys.readouterr().out
    assert "explained   0 of 4 images, 6 boxes" in said
    assert re.search(r" 4 x e\.g\. \S+: the detector still finds this box in the fully masked image", said)
    walls = [row for row in rows_of("run") if row["state"] == "failed"]
    assert [(row["id"], row["box"], row["label"]) for row in walls] == [
        (2, 3, None), (101, 2, None), (202, 3, None), (301, 2, None)
    ]  # fmt: skip
    assert len(rows_of("run")) == 10


def test_failed_boxes_are_tried_again_with_their_image_and_the_index_can_be_rebuilt(here, capsys):
    assert batch("shots", "--out", "run", model="detect_walls") == 3
    assert batch("shots", "--out", "run", "--retry", "1", model="detect_walls") == 3
    rows = rows_of("run")
    assert {row["tries"] for row in rows} == {2}
    before = [row[:-1] for row in columns("run")]
    for has_copy in (True, False):
        Path("run/index.sqlite").unlink()
        if not has_copy:
            Path("run/run.json").unlink()
        capsys.readouterr()
        assert batch("shots", "--out", "run", model="detect_walls") == 3
        assert "rebuilt it from 6 explanations" in capsys.readouterr().err
        assert [row[:-1] for row in columns("run")] == before


def test_a_damaged_box_rejects_its_image_when_the_index_is_rebuilt(here, capsys):
    assert batch("shots", "--out", "run") == 0
    assert batch("shots", "--out", "calm") == 0
    Path("run/index.sqlite").unlink()
    Path("run/explanations/000/000000/box-2/arrays.npz").write_bytes(b"damaged")
    Path("run/explanations/000/000001/box-101").mkdir()
    assert batch("shots", "--out", "run") == 0
    assert "2 moved to run/rejected: 2 unreadable" in capsys.readouterr().err
    assert_same_runs("calm", "run")


def test_a_model_that_fails_fails_the_image_and_it_can_be_tried_again(here):
    pixels = draw("cd")
    pixels[0, 0, 0] = 7
    Image.fromarray(pixels).save("shots/p2.png")
    assert batch("shots", "--out", "calm") == 0
    assert batch("shots", "--out", "run", model="fails_once") == 3
    failed = [row for row in rows_of("run") if row["state"] == "failed"]
    assert [(row["id"], row["box"], row["error"]) for row in failed] == [
        (200, None, "the model failed: RuntimeError: not today")
    ]
    assert batch("shots", "--out", "run", "--retry", "1", model="fails_once") == 0
    assert [row[:-1] for row in columns("run")] == [row[:-1] for row in columns("calm")]


def test_an_image_without_boxes_and_one_that_cannot_be_read_are_failed_rows(here):
    Image.fromarray(draw("")).save("shots/p1.png")
    Path("shots/p3.png").write_bytes(b"")
    assert batch("shots", "--out", "run") == 3
    errors = {row["id"]: row["error"] for row in rows_of("run") if row["state"] == "failed"}
    assert "the detector finds no box with a score of at least 0.5" in errors[100]
    assert errors[300] == "p3.png is empty: 0 bytes"


# Restarts


def test_what_a_kill_left_half_made_is_made_again(here):
    run_batch_in("calm", make_job())
    run_batch_in("run", make_job())
    with sqlite3.connect("run/index.sqlite") as index:  # renamed, but the rows were not written
        index.execute("DELETE FROM images WHERE id = 201")
        index.execute("UPDATE images SET state = 'waiting', tries = 0 WHERE id = 200")
    shutil.rmtree("run/explanations/000/000000")  # the disk has lost a rename
    opened = open_store("run", make_job())
    assert [(task.id, task.item.image) for task in opened.tasks("waiting")] == [(0, "shots/p0.png"), (2, "shots/p2.png")]
    assert opened.count() == {"waiting": 2, "done": 2, "failed": 0}
    opened.close()
    assert not Path("run/explanations/000/000002").exists()
    run_batch_in("run", make_job())
    assert [row[:-1] for row in columns("run")] == [row[:-1] for row in columns("calm")]


def test_an_image_that_was_replaced_gets_the_rows_of_its_new_boxes(here, capsys):
    assert batch("shots", "--out", "run") == 0
    Image.fromarray(draw("d")).save("shots/p0.png")
    assert batch("shots", "--out", "run") == 0
    assert "1 image has changed since the last start" in capsys.readouterr().err
    assert [(row["id"], row["label"]) for row in rows_of("run")][:2] == [(0, "dog"), (100, "dog")]
    assert sorted(path.name for path in Path("run/explanations/000/000000").iterdir()) == ["box-1"]


@pytest.mark.process
@pytest.mark.slow
def test_kills_do_not_show(here):
    """The driver is killed a few times while it explains or stores boxes."""
    run_batch_in("calm", make_job("slow"))
    words = [sys.executable, "-m", "becausal", "batch", "shots", *QUICK, "--all"]
    words += ["--model", "detect:python:net.py:slow", "--out", "run"]
    for seconds in (1.5, 2.2, 2.9):
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(seconds)
        process.kill()
        process.wait()
    assert subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert [row[:-1] for row in columns("run")] == [row[:-1] for row in columns("calm")]


@pytest.mark.process
@pytest.mark.slow
def test_an_interrupt_finishes_the_boxes_of_the_image_in_progress(here):
    words = [sys.executable, "-m", "becausal", "batch", "shots", *QUICK, "--all"]
    words += ["--model", "detect:python:net.py:slow", "--out", "run"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    while not (Path("run") / "explanations").exists():
        time.sleep(0.01)
        assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    process.communicate()
    states = [(row["id"] // MAX_BOXES, row["state"]) for row in rows_of("run")]
    assert process.returncode in (0, 130)
    assert ("waiting" in {state for _, state in states}) == (process.returncode == 130)
    assert subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode == 0
    run_batch_in("calm", make_job("slow"))
    assert columns("run") == columns("calm")


def test_the_first_images_of_a_limited_run(here, capsys):
    assert batch("shots", "--out", "run", "--limit", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["done"], found["waiting"], found["images"], found["boxes"]) == (2, 0, 4, 3)
    assert [row["id"] for row in rows_of("run")] == [0, 1, 100, 200, 300]
    assert batch("shots", "--out", "run") == 0
    assert len(rows_of("run")) == 6


# Reports


@pytest.fixture
def finished(here):
    assert batch("shots", "--out", "run") == 0
    return here


def test_the_page_speaks_of_boxes(finished, capsys):
    assert main(["report", "run"]) == 0
    assert "4 of 4 images, 6 boxes" in capsys.readouterr().out
    page = Path("run/report.html").read_text()
    text = re.sub(r"<[^>]+>", " ", page)
    for words in ("6  boxes in 4 images explained", "All boxes", "box 2 at 13,6 to 23,18", "The explained box is dashed"):
        assert words in re.sub(r"[ \n]+", " ", text) or words in text
    assert "labelled" not in page
    assert 'alt="p0.png, dog at 13,6 to 23,18"' in page
    table = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))
    assert table["per_image"] == MAX_BOXES
    assert table["columns"][:5] == ["id", "image", "box", "label", "place"]
    assert [row[4] for row in table["rows"]][:2] == ["at 1,6 to 11,18", "at 13,6 to 23,18"]


def test_a_run_of_best_boxes_names_the_place_too(here, capsys):
    assert batch("shots", "--out", "run", every_box=False) == 0
    assert main(["report", "run"]) == 0
    page = Path("run/report.html").read_text()
    assert "at 1,6 to 11,18" in page
    assert "The explained box is dashed" in page
    assert "All images" in page


def test_one_box_is_rendered_on_demand(finished, capsys):
    assert main(["report", "run", "--image", "p0.png"]) == 2
    assert "run has 2 boxes of 'p0.png': give the number of one" in capsys.readouterr().err
    assert main(["report", "run", "--image", "201"]) == 0
    assert Path("run/explanations/000/000002/box-2/report.html").is_file()


def test_thumbnails_have_the_box(finished):
    explanation = Explanation.load("run/explanations/000/000000/box-2")
    uri = make_thumbnail(explanation)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))), float)
    scale = 144 / 24
    amber = rgb_of(BOX_COLOUR)
    is_amber = (np.abs(pixels - amber) < 90).all(axis=2) & (pixels[..., 0] - pixels[..., 2] > 90)
    rows, columns = np.nonzero(is_amber)
    assert len(rows) > 20
    left, top, right, bottom = (side * scale for side in explanation.target.box)
    near = (np.minimum(abs(columns - left), abs(columns - right + 1)) < 3) | (
        np.minimum(abs(rows - top), abs(rows - bottom + 1)) < 3
    )
    assert near.all()


def test_csv_has_the_box_and_its_score(finished):
    assert main(["export", "run", "--out", "run.csv"]) == 0
    with open("run.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["image"], row["box"], row["label"]) for row in rows[:2]] == [
        ("shots/p0.png", "1", "cat"), ("shots/p0.png", "2", "dog")
    ]  # fmt: skip
    assert [float(rows[1][f"box_{side}"]) for side in ("left", "top", "right", "bottom")] == [13, 6, 23, 18]
    assert float(rows[1]["confidence"]) == pytest.approx(0.85 * (250 / 255) ** 2, abs=1e-3)


def test_coco_keeps_the_box_of_the_mask_and_names_the_detection(finished):
    assert main(["export", "run", "--format", "coco", "--out", "run.json"]) == 0
    data = json.loads(Path("run.json").read_text())
    assert [image["id"] for image in data["images"]] == [0, 1, 2, 3]
    assert [one["id"] for one in data["annotations"]] == [1, 2, 101, 201, 202, 301]
    assert [one["image_id"] for one in data["annotations"]] == [0, 0, 1, 2, 2, 3]
    dog = data["annotations"][1]
    visible = Explanation.load("run/explanations/000/000000/box-2").visible
    rows, columns = np.nonzero(visible)
    assert dog["bbox"] == [columns.min(), rows.min(), np.ptp(columns) + 1, np.ptp(rows) + 1]
    assert dog["area"] == visible.sum()
    assert dog["detection"] == {"number": 2, "bbox": [13, 6, 10, 12], "label": "dog", "score": dog["score"]}
    assert {category["id"]: category["name"] for category in data["categories"]}[dog["category_id"]] == "dog"


# Two runs


def row(box, label):
    return {"box": 1, "label": label} | dict(zip(("box_left", "box_top", "box_right", "box_bottom"), box, strict=True))


sides = st.integers(0, 6)
boxes = st.tuples(sides, sides, sides, sides).map(lambda s: (s[0], s[1], s[0] + s[2] + 1, s[1] + s[3] + 1))
box_rows = st.lists(st.builds(row, boxes, st.sampled_from("ab")), max_size=5)


@settings(max_examples=80)
@given(box_rows, box_rows)
def test_boxes_are_paired_by_label_then_by_overlap(ours, theirs):
    """The definition: again and again the best pair of what is left."""
    corners = [
        [[one[f"box_{side}"] for side in ("left", "top", "right", "bottom")] for one in rows] for rows in (ours, theirs)
    ]
    expected, free = {}, [set(range(len(ours))), set(range(len(theirs)))]
    while True:
        pairs = [
            (ours[i]["label"] != theirs[j]["label"], -float(overlaps(np.array(corners[1][j]), tuple(corners[0][i]))), i, j)
            for i in free[0]
            for j in free[1]
        ]
        pairs = [pair for pair in pairs if -pair[1] >= OVERLAP]
        if not pairs:
            break
        *_, i, j = min(pairs)
        expected[i] = theirs[j]
        free[0].remove(i)
        free[1].remove(j)
    found = pair_boxes(ours, theirs)
    assert [id(one) for one in found] == [id(expected.get(i)) for i in range(len(ours))]


def test_a_box_without_a_place_has_no_partner():
    failed = row((None,) * 4, None)
    assert pair_boxes([failed, row((0, 0, 4, 4), "a")], [failed]) == [None, None]


def test_diff_compares_the_same_boxes(finished, capsys):
    """In the other run the dog has the higher score, and one cat is gone."""
    Path("net.py").write_text(MODEL.replace("(0.95 - 0.1 * label)", "(0.85 + 0.1 * label)"))
    Image.fromarray(draw("d")).save("shots/p2.png")
    assert batch("shots", "--out", "other") == 0
    capsys.readouterr()
    assert main(["diff", "run", "other", "--out", "diff.html", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["shared"], found["only"], found["relabelled"]) == (5, [1, 0], 0)
    assert {tuple(pair["ids"]) for pair in found["pictures"]} == {(0, 1), (1, 0), (100, 100), (201, 200), (300, 300)}
    assert all(pair["boxes"][0] == pair["boxes"][1] for pair in found["pictures"])
    page = Path("diff.html").read_text()
    assert "of 5 boxes changed label" in page
    assert "at 13,6 to 23,18" in page
    assert main(["diff", "run", "other"]) == 0
    assert "5 boxes explained in both" in capsys.readouterr().out


def test_a_check_counts_boxes(finished, capsys):
    Path("rules.toml").write_text("[size]\nat_most = 0.01\n[failures]\n")
    assert main(["check", "run", "--rules", "rules.toml", "--page", "check.html", "--strict"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"\d of 6 boxes", said)
    assert "shots/p0.png: box 2: " in said
    assert "6 boxes" in Path("check.html").read_text()
