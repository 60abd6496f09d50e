"""The bundled detector: it finds the objects of unseen scenes, its boxes can be explained, and every command takes it."""

import json
import re
from functools import cache

import numpy as np
import pytest
from PIL import Image

import becausal
from becausal.api.explanation import Explanation
from becausal.core.boxes import overlaps
from becausal.core.errors import NetworkError
from becausal.core.targets import OVERLAP
from becausal.interfaces.cli.app import main
from becausal.render.report import format_command
from becausal.scenes import LABELS, NOTHING, GroupScene, make_group

#: No training has seen a seed from here on; see training/detector.py.
FIRST_SEED = 150_000_000


@cache
def detector():
    return becausal.load_model("bundled:detector", threads=1)


@cache
def scenes(count: int = 40) -> tuple[GroupScene, ...]:
    return tuple(make_group(FIRST_SEED + k) for k in range(count))


def find_object(scene, found):
    """The object that a box is about: the one of its label that overlaps it most."""
    own = [one for one in scene.objects if one.label == found.label]
    return max(own, key=lambda one: float(overlaps(np.array(one.box), found.target.box)))


@pytest.fixture(scope="module")
def explained():
    """All boxes of the first scene, by number."""
    return dict(becausal.explain_boxes(scenes()[0].image, detector()))


def test_it_names_its_labels_and_assumes_nothing():
    info = detector().info
    assert info.labels == tuple(label for label in LABELS if label != NOTHING)
    assert (info.output, info.threshold, info.notes) == ("boxes", pytest.approx(0.3), ())


def test_it_finds_the_objects_of_unseen_scenes():
    right = reported = count = 0
    for scene in scenes():
        found = becausal.detect(scene.image, detector())
        hits = [
            any(one.label == truth.label and overlaps(np.array(one.box), truth.box) >= OVERLAP for one in found)
            for truth in scene.objects
        ]
        right, reported, count = right + sum(hits), reported + len(found), count + len(hits)
    assert right / count >= 0.95
    assert right / reported >= 0.9


@pytest.mark.parametrize("level", [0, 64, 128, 192, 255])
def test_it_finds_no_box_in_a_fully_masked_image(level):
    assert becausal.detect(np.full((192, 192, 3), level, np.uint8), detector()) == []


def test_explanations_are_certified_and_lie_on_their_object(explained):
    assert len(explained) == len(scenes()[0].objects) == 3
    on_object = []
    for found in explained.values():
        core, enough = found.levels
        assert core.checks.sufficient
        assert enough.checks.sufficient
        assert core.checks.minimal_grain == 7
        assert enough.checks.minimal_grain
        assert enough.certificate.holds
        assert all(claim.holds for claim in found.verify(detector()))
        on_object += [*find_object(scenes()[0], found).visible[found.levels[0].visible]]
    assert np.mean(on_object) >= 0.85


def test_further_boxes_are_cheaper(explained):
    first, *further = [found.calls for found in explained.values()]
    assert all(calls < first for calls in further)


# What commands and pages say


@pytest.fixture
def street(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(scenes()[0].image).save("street.png")
    return tmp_path


def test_inspect_lists_numbered_boxes_and_draws_them(street, capsys):
    (street / "other").mkdir()
    (street / "other" / "street.png").write_bytes((street / "street.png").read_bytes())
    assert main(["inspect", "bundled:detector", "street.png", "other/street.png", "--out", "boxes"]) == 0
    printed = capsys.readouterr().out
    assert "12 names" in printed
    assert "1  0.7162  clock  36,5,125,89" in printed
    assert {path.name for path in (street / "boxes").iterdir()} == {"street.png", "street-2.png"}


def test_explain_and_verify_name_the_box(street, capsys, without_figures):
    words = ["--model", "bundled:detector", "--smallest", "--grain", "16", "--max-calls", "90"]
    assert main(["explain", "street.png", *words, "--box", "2", "--out", "out"]) == 0
    assert capsys.readouterr().out.startswith("street.png: The detector finds traffic light (0.69) at 121,44 to 172,160. ")
    assert main(["verify", "out/street"]) == 0
    assert capsys.readouterr().out.startswith("traffic light at 121,44 to 172,160, street.png\n")
    assert "--box 2" in format_command(Explanation.load("out/street"))
    assert main(["explain", "street.png", *words, "--all", "--json", "--out", "all"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [(entry["box_number"], entry["label"]) for entry in entries] == [(1, "clock"), (2, "traffic light"), (3, "house")]
    assert entries[1]["box"] == pytest.approx([121, 44, 172, 160], abs=1)
    assert [entry["folder"] for entry in entries] == [f"all/street/box-{n}" for n in (1, 2, 3)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--box", "9"], "there is no box 9: the detector finds 3 boxes in this image"),
        (["--all", "--box", "1"], "--all explains every box: leave out --box"),
        (["--target", "fish"], "the detector finds no fish in this image; it finds clock, traffic light, house"),
        (
            ["--threshold", "0.95", "--all"],
            "no box with a score of at least 0.95 in this image; the best candidate is clock",
        ),
        (["--method", "ig"], "needs the gradient of a class score, and this model is a detector"),
        (["--model", "bundled", "--box", "1"], "box is for object detectors, and this model is a classifier"),
        (["--model", "bundled", "--all"], "bundled is a classifier; boxes are found by an object detector"),
    ],
)
def test_what_cannot_be_explained_is_said_in_one_line(street, capsys, words, message):
    model = [] if "--model" in words else ["--model", "bundled:detector"]
    assert main(["explain", "street.png", *model, *words]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_batch_explains_the_highest_box_of_each_image(street, capsys):
    assert main(["scenes", "make", "--boxes", "--count", "2", "--seed", str(FIRST_SEED), "--out", "scenes"]) == 0
    options = ["--model", "bundled:detector", "--smallest", "--grain", "16", "--max-calls", "90", "--out", "run"]
    assert main(["batch", "scenes/scenes.json", *options]) == 0
    capsys.readouterr()
    assert main(["report", "run"]) == 0
    assert "0 of 2 with boxes" in capsys.readouterr().out
    assert main(["export", "run", "--format", "coco", "--out", "run.json"]) == 0
    annotations = json.loads((street / "run.json").read_text())["annotations"]
    assert [LABELS[one["category_id"]] for one in annotations] == ["clock", "bus"]


def test_verify_names_both_sizes_where_the_model_has_another_input(street, capsys, without_figures):
    words = ["--model", "bundled:detector", "--smallest", "--grain", "16", "--max-calls", "60"]
    assert main(["explain", "street.png", *words, "--out", "out"]) == 0
    capsys.readouterr()
    assert main(["verify", "out/street", "--model", "bundled"]) == 2
    assert capsys.readouterr().err == (
        "becausal: error: the explanation is for an input of 192 x 192 pixels, and this model expects 128 x 128: it is not "
        "the model that was explained\n"
    )


def test_a_broken_background_is_not_a_failure_of_the_model(street, capsys, without_figures):
    (street / "rooms").mkdir()
    (street / "rooms" / "a.png").write_bytes((street / "street.png").read_bytes()[:300])
    words = ["--model", "bundled:detector", "--grain", "16", "--holds", "0.5", "--backgrounds", "rooms"]
    assert main(["explain", "street.png", *words, "--out", "none"]) == 2  # causal begins with the backgrounds
    assert capsys.readouterr().err.count("\n") == 1
    words += ["--method", "centre"]  # and this one ends with them
    assert main(["explain", "street.png", *words, "--out", "out"]) == 2
    out, err = capsys.readouterr()
    assert re.search("cut short +A background could not be read before the search finished. This is the best", out)
    assert "The model failed" not in out
    assert "becausal: error: the background rooms/a.png cannot be used: a.png cannot be decoded" in err


def test_boxes_that_were_explained_before_the_model_is_lost_are_printed(street, monkeypatch, capsys, without_figures):
    explain_boxes = becausal.api.explain_boxes

    def explain_one(image, model, **options):
        yield next(explain_boxes(image, model, **options))
        raise NetworkError("the server does not answer")

    monkeypatch.setattr(becausal.api, "explain_boxes", explain_one)
    assert (
        main(["explain", "street.png", "--model", "bundled:detector", "--smallest", "--grain", "16", "--all", "--json"]) == 2
    )
    out, err = capsys.readouterr()
    assert [entry["box_number"] for entry in json.loads(out)] == [1]
    assert "street.png: not all boxes were explained: the server does not answer" in err
