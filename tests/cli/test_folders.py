"""The folders of results: no image's explanation replaces that of another, and none of an earlier run stays unsaid."""

import json
import shutil
from functools import partial

import numpy as np
import pytest
from PIL import Image

from becausal.interfaces.cli.app import main

pytestmark = pytest.mark.usefixtures("without_figures")

CODE = """
import numpy as np

THRESHOLD = 0.3

def predict(batch):
    bright = batch.mean(axis=(1, 2, 3)) / 255
    return np.stack([0.3 + 0 * bright, bright, 0 * bright], axis=1) / (0.3 + bright)[:, None]

def detect(batch):
    places = np.float32([[8 * i, 0, 8 * i + 8, 8] for i in range(3)])
    return [(places, [0.9 * image[:, 8 * i : 8 * i + 8].mean() / 255 for i in range(3)], [0, 1, 2]) for image in batch]
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a model and a/x.png, b/x.png: other images of one name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(CODE)
    rng = np.random.default_rng(0)
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(rng.integers(200, 256, (8, 24, 3)).astype(np.uint8)).save(tmp_path / name / "x.png")
    return tmp_path


def explain(*words, model="python:net.py:predict"):
    return main(["explain", *words, "--model", model, "--fill", "black", "--max-calls", "40", "--out", "out"])


def image_of(folder):
    record = json.loads((folder / "explanation.json").read_text())
    return record["origin"]["files"]["image"]["path"]


def test_an_image_keeps_its_folder_whichever_is_explained(place, capsys):
    assert explain("a/x.png", "b/x.png") == 0
    first, second = place / "out" / "x", place / "out" / "x-2"
    assert (image_of(first), image_of(second)) == (str(place / "a" / "x.png"), str(place / "b" / "x.png"))
    before = (first / "explanation.json").read_bytes()
    capsys.readouterr()
    assert explain("b/x.png") == 0  # replaced the explanation of a/x.png before
    assert (first / "explanation.json").read_bytes() == before
    assert image_of(second) == str(place / "b" / "x.png")
    assert "holds the explanation" not in capsys.readouterr().err
    assert explain("b/x.png", "a/x.png") == 0
    assert (image_of(first), image_of(second)) == (str(place / "a" / "x.png"), str(place / "b" / "x.png"))
    assert sorted(own.name for own in (place / "out").iterdir()) == ["x", "x-2"]


def test_the_next_free_name_is_taken_and_said(place, capsys):
    assert explain("a/x.png") == 0
    capsys.readouterr()
    assert explain("b/x.png") == 0
    assert capsys.readouterr().err.splitlines()[-1] == (
        "becausal: note: out/x holds the explanation of another image: b/x.png is saved in out/x-2"
    )
    assert (image_of(place / "out" / "x"), image_of(place / "out" / "x-2")) == (
        str(place / "a" / "x.png"),
        str(place / "b" / "x.png"),
    )


def test_a_copy_and_an_edited_image_are_the_same_image(place):
    assert explain("a/x.png") == 0
    shutil.move("a/x.png", "x.png")
    assert explain("x.png") == 0
    shutil.copy("b/x.png", "x.png")
    assert explain("x.png") == 0
    assert [own.name for own in (place / "out").iterdir()] == ["x"]


@pytest.mark.parametrize("content", ["{", "[]", '{"schema": "becausal/explanation/1"}'])
def test_what_cannot_be_read_is_not_replaced(place, content):
    (place / "out" / "x").mkdir(parents=True)
    record = place / "out" / "x" / "explanation.json"
    record.write_text(content)
    assert explain("a/x.png") == 0
    assert record.read_text() == content
    assert image_of(place / "out" / "x-2") == str(place / "a" / "x.png")


def test_a_folder_without_an_explanation_is_used(place):
    (place / "out" / "x").mkdir(parents=True)
    (place / "out" / "x" / "notes.txt").write_text("mine")
    assert explain("a/x.png") == 0
    assert sorted(own.name for own in (place / "out").iterdir()) == ["x"]
    assert (place / "out" / "x" / "notes.txt").read_text() == "mine"


def boxes(place):
    return sorted(own.name for own in (place / "out" / "x").iterdir())


def test_boxes_of_an_earlier_run_go_and_that_is_said(place, capsys):
    detect = "detect:python:net.py:detect"
    assert explain("a/x.png", "--box", "2", model=detect) == 0
    assert "explanation.json" in boxes(place)
    capsys.readouterr()
    assert explain("a/x.png", "--all", model=detect) == 0
    assert boxes(place) == ["box-1", "box-2", "box-3"]
    assert "note: out/x: removed the explanation of a single box from an earlier run" in capsys.readouterr().err
    pixels = np.asarray(Image.open("a/x.png")).copy()
    pixels[:, 16:] = 0  # the same image, of which one box is not found any more
    Image.fromarray(pixels).save("a/x.png")
    (place / "out" / "x" / "box-3" / "mine.txt").write_text("")
    (place / "out" / "x" / "box-4").mkdir()
    assert explain("a/x.png", "--all", model=detect) == 0
    said = "note: out/x: removed box-3 of an earlier run, boxes that are not found now"
    assert said in capsys.readouterr().err
    assert boxes(place) == ["box-1", "box-2", "box-3", "box-4"]
    assert [own.name for own in (place / "out" / "x" / "box-3").iterdir()] == ["mine.txt"]
    assert explain("a/x.png", "--box", "1", model=detect) == 0
    assert "note: out/x: removed box-1, box-2 of an earlier run with --all\n" in capsys.readouterr().err
    assert not {"box-1", "box-2"} & set(boxes(place))
    assert [own.name for own in (place / "out" / "x" / "box-3").iterdir()] == ["mine.txt"]
    assert explain("a/x.png", "--box", "2", model=detect) == 0
    assert "removed" not in capsys.readouterr().err
    assert explain("b/x.png", "--all", model=detect) == 0  # another image
    assert "explanation.json" in boxes(place)
    assert sorted(own.name for own in (place / "out").iterdir()) == ["x", "x-2"]


TWO = """
import numpy as np

LABELS, OUTPUT = ["left", "right", "none"], "probabilities"

def predict(batch):
    halves = [0.5 * part.mean(axis=(1, 2, 3)) / 255 for part in np.split(batch, 2, axis=2)]
    scores = np.stack([halves[0], 0.9 * halves[1], 0.1 + 0 * halves[0]], axis=1)
    return scores / scores.sum(axis=1, keepdims=True)
"""


def notes_of(capsys):
    """What is said of the folder out/x, where an answer is replaced."""
    start, end = "becausal: note: out/x: the explanation of ", "; another --out keeps both"
    lines = [line for line in capsys.readouterr().err.splitlines() if " is replaced" in line]
    assert all(line.startswith(start) and line.endswith(end) for line in lines)
    return [line.removeprefix(start).removesuffix(end) for line in lines]


def test_the_answer_to_another_question_is_not_replaced_in_silence(place, capsys):
    for name in ("two", "three"):
        (place / f"{name}.py").write_text(TWO)
    ask = partial(explain, "a/x.png", model="python:two.py:predict")
    assert ask() == 0
    assert ask("--seed", "4", "--method", "rise") == 0  # the same question
    assert notes_of(capsys) == []
    assert ask("--target", "right", "--top", "2") == 0
    assert notes_of(capsys) == ["left there is replaced by that of right"]
    assert ask("--target", "1", "--top", "2") == 0
    assert notes_of(capsys) == []
    assert ask("--target", "right", "--top", "2", "--smallest") == 0
    assert notes_of(capsys) == ["right there, of another question, is replaced"]
    assert ask("--target", "right", "--against", "none", "--smallest") == 0
    assert notes_of(capsys) == ["right there is replaced by that of right rather than none"]
    assert explain("a/x.png", model="python:two.py:predict") == 0
    assert notes_of(capsys) == ["right rather than none there is replaced by that of left"]
    assert explain("a/x.png", model="python:three.py:predict") == 0
    assert notes_of(capsys) == ["left there, of another model, is replaced"]


def test_another_box_is_not_replaced_in_silence(place, capsys):
    detect = "detect:python:net.py:detect"
    assert explain("a/x.png", model=detect) == 0
    best = json.loads((place / "out" / "x" / "explanation.json").read_text())["target"]["box"]
    assert explain("a/x.png", "--box", "1", model=detect) == 0  # the same one
    assert notes_of(capsys) == []
    assert explain("a/x.png", "--box", "2", model=detect) == 0
    record = json.loads((place / "out" / "x" / "explanation.json").read_text())
    assert record["target"]["box"] != best
    (said,) = notes_of(capsys)
    places = [f"at {x:g},{y:g} to {right:g},{low:g}" for x, y, right, low in (best, record["target"]["box"])]
    assert f" {places[0]} there is replaced by that of {record['label']} {places[1]}" in said
