"""Datasets: the published layouts, and datasets that are made and read back."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from becausal import Request
from becausal.core.errors import BecausalError, OptionError, OutputError
from becausal.interfaces.cli.app import main
from becausal.lab.bench import run
from becausal.lab.bench.datasets import occluder_pixels, read_dataset, read_photobombs, read_roaming
from becausal.lab.bench.planting import Planting, make_photobombs, make_roaming
from becausal.lab.bench.shapes import bounds, draw_shape, draw_texture, paste
from becausal.models import as_classifier


def greenest(batch: np.ndarray) -> np.ndarray:
    """A classifier of any images: dark, or with some green in it."""
    green = (batch[..., 1].astype(float) - batch[..., 0]).reshape(len(batch), -1).max(axis=1) / 255
    return np.stack([1 - green, green], axis=1)


@pytest.fixture
def classifier():
    return as_classifier(greenest)


@pytest.fixture
def photos(tmp_path):
    """Eight dull images of different sizes, each with a green patch, and a file that is none."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(8):
        pixels = np.full((40 + number, 50, 3), 90, np.uint8)
        pixels[5:30, 5:30] = (20, 220, 30)
        Image.fromarray(pixels).save(folder / f"p{number}.png")
    (folder / "broken.jpg").write_bytes(b"no image")
    return folder


# ------------------------------------------------------------------ published layouts


def test_published_shapes_are_where_their_pixels_are():
    assert occluder_pixels(2, 3, 5, 9, "rectangle", (20, 20)).sum() == 18
    square = occluder_pixels(2, 4, 10, 8, "box", (20, 20))
    assert bounds(square) == (3, 3, 9, 9)
    assert square.sum() == 36
    ellipse = occluder_pixels(0, 0, 20, 10, "ellipse", (30, 30))
    assert ellipse.sum() == pytest.approx(np.pi * 10 * 5, rel=0.06)
    disk = occluder_pixels(10, 10, 14, 16, "disk", (40, 40))
    assert bounds(disk) == (7, 8, 18, 19)
    assert disk.sum() == pytest.approx(np.pi * 25, rel=0.06)
    assert not occluder_pixels(5, 5, 5, 5, "rectangle", (20, 20)).any()
    with pytest.raises(OptionError, match="unknown occluder shape"):
        occluder_pixels(1, 1, 2, 2, "star")


def test_a_published_line_gives_occluder_object_and_label(tmp_path):
    (tmp_path / "photobombing_imgs").mkdir()
    Image.fromarray(np.zeros((224, 224, 3), np.uint8)).save(tmp_path / "photobombing_imgs" / "0.JPEG")
    lines = "0.JPEG 38(38) 67(23) 106(106) 101(164) 480 cash machine, cash dispenser, ATM, rectangle\n"
    (tmp_path / "photobombing_groundtruth.txt").write_text(lines + lines.replace("0.JPEG", "absent.JPEG"))
    (sample,) = read_photobombs(tmp_path)
    assert (sample.name, sample.label, sample.facts["shape"]) == ("0.JPEG", 480, "rectangle")
    masks = sample.read().masks
    assert bounds(masks["occluder"]) == (38, 67, 106, 101)
    assert bounds(masks["object"]) == (23, 38, 164, 106)
    assert not (masks["object"] & masks["occluder"]).any()


def test_a_roaming_list_gives_the_object(tmp_path):
    (tmp_path / "pictures").mkdir()
    Image.fromarray(np.zeros((224, 224, 3), np.uint8)).save(tmp_path / "pictures" / "0.JPEG")
    (tmp_path / "list.csv").write_text("0.JPEG 26 44 90 142\n")
    (sample,) = read_roaming(tmp_path)
    assert sample.label == 387
    assert sample.read().masks["object"].sum() == 64 * 98


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("photobombing_groundtruth.txt", "what is this\n", "cannot be read"),
        ("list.csv", "0.JPEG 26 44 90\n", "cannot be read"),
    ],
)
def test_a_list_that_cannot_be_read_says_so(file, text, said, tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / file).write_text(text)
    with pytest.raises(OptionError, match=said):
        read_dataset(tmp_path)


def test_a_folder_without_pictures_says_so(tmp_path):
    with pytest.raises(OptionError, match="no images"):
        read_dataset(tmp_path)


# ------------------------------------------------------------------ sets of one's own


@pytest.mark.parametrize("shape", ["rectangle", "box", "ellipse", "disk"])
def test_a_shape_has_its_area_and_place(shape):
    for seed in range(5):
        mask = draw_shape((80, 100), shape, 600.0, np.random.default_rng(seed))
        assert mask.sum() == pytest.approx(600, rel=0.15)
        r0, c0, r1, c1 = bounds(mask)
        if shape in ("box", "disk"):
            assert abs((r1 - r0) - (c1 - c0)) <= 1
        held = draw_shape((80, 100), shape, 60.0, np.random.default_rng(seed), (10, 70, 30, 90))
        middle = np.argwhere(held).mean(axis=0)
        assert 9 <= middle[0] <= 31
        assert 69 <= middle[1] <= 91


def test_made_photobombs_are_read_back_pixel_by_pixel(photos, classifier, tmp_path):
    made = make_photobombs(photos, classifier, tmp_path / "set", Planting(seed=3, paint="#010203", area=(0.05, 0.1)))
    assert made.count == 8
    assert dict(made.left_out) == {"the image cannot be read": 1}
    samples = read_dataset(tmp_path / "set")
    assert len(samples) == 8
    sources = json.loads((tmp_path / "set" / "dataset.json").read_text())["sources"]
    for sample in samples:
        seen = sample.read()
        before = np.asarray(Image.open(photos / sources[sample.name]))
        occluder = seen.masks["occluder"]
        assert (seen.pixels[occluder] == (1, 2, 3)).all()
        assert (seen.pixels[~occluder] == before[~occluder]).all()
        assert 0.04 <= occluder.mean() <= 0.12
        assert sample.label == 1
        assert greenest(seen.pixels[None])[0].argmax() == 1


def test_the_same_seed_makes_the_same_bytes(photos, classifier, tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_photobombs(photos, classifier, tmp_path / name, Planting(seed=seed, paint="texture"))
    listing = "photobombing_groundtruth.txt"
    assert (tmp_path / "a" / listing).read_bytes() == (tmp_path / "b" / listing).read_bytes()
    assert (tmp_path / "a" / listing).read_bytes() != (tmp_path / "c" / listing).read_bytes()
    picture = Path("photobombing_imgs") / "0.png"
    assert (tmp_path / "a" / picture).read_bytes() == (tmp_path / "b" / picture).read_bytes()


def test_a_picture_whose_label_goes_is_left_out(photos, classifier, tmp_path):
    boxes = tmp_path / "boxes.csv"
    boxes.write_text("".join(f"p{n}.png,16,16,19,19\n" for n in range(8)))
    planting = Planting(area=(0.8, 0.9), shapes=("rectangle",))
    with pytest.raises(OptionError, match="the label is lost"):
        make_photobombs(photos, classifier, tmp_path / "none", planting, boxes=boxes)
    assert not (tmp_path / "none").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_the_photobomber_lies_on_the_object_where_boxes_are_given(photos, classifier, tmp_path):
    boxes = tmp_path / "boxes.csv"
    boxes.write_text("".join(f"p{n}.png 5 5 30 30\n" for n in range(8)))
    make_photobombs(photos, classifier, tmp_path / "set", Planting(area=(0.02, 0.03)), boxes=boxes)
    for sample in read_dataset(tmp_path / "set"):
        masks = sample.read().masks
        middle = np.argwhere(masks["occluder"]).mean(axis=0)
        assert (middle > 2).all()
        assert (middle < 33).all()
        assert masks["object"].any()
    boxes.write_text("p0.png 1 2 three 4\n")
    with pytest.raises(OptionError, match="name x0 y0 x1 y1"):
        make_photobombs(photos, classifier, tmp_path / "other", Planting(), boxes=boxes)


def test_cutouts_keep_their_own_outline(photos, classifier, tmp_path):
    (tmp_path / "cut").mkdir()
    star = np.zeros((20, 20, 4), np.uint8)
    star[..., 2] = 250
    star[8:12, :, 3] = star[:, 8:12, 3] = 255
    Image.fromarray(star).save(tmp_path / "cut" / "star.png")
    planting = Planting(paint="cutout", area=(0.05, 0.08))
    make_photobombs(photos, classifier, tmp_path / "set", planting, cutouts=tmp_path / "cut")
    samples = read_dataset(tmp_path / "set")
    assert {sample.facts["shape"] for sample in samples} == {"cutout"}
    for sample in samples:
        seen = sample.read()
        occluder = seen.masks["occluder"]
        r0, c0, r1, c1 = bounds(occluder)
        assert 0.2 < occluder.sum() / ((r1 - r0) * (c1 - c0)) < 0.65  # a cross leaves its corners free
        assert (seen.pixels[occluder][:, 2] == 250).all()
    make_photobombs(photos, classifier, tmp_path / "own", planting)
    assert {sample.facts["shape"] for sample in read_dataset(tmp_path / "own")} <= {"rectangle", "box", "ellipse", "disk"}


def test_textures_have_two_colours():
    for seed in range(6):
        colours = np.unique(draw_texture((40, 40), np.random.default_rng(seed)).reshape(-1, 3), axis=0)
        assert len(colours) == 2


def test_a_roaming_object_is_read_back_and_benched(photos, tmp_path):
    thing = np.zeros((10, 20, 4), np.uint8)
    thing[..., 1] = 250
    thing[:, 5:15, 3] = 255
    Image.fromarray(thing).save(tmp_path / "thing.png")
    plain = tmp_path / "plain"
    plain.mkdir()
    for number in range(4):
        Image.fromarray(np.full((48, 48, 3), 60 + number, np.uint8)).save(plain / f"{number}.png")
    made = make_roaming(tmp_path / "thing.png", plain, as_classifier(greenest), tmp_path / "set", size=0.5)
    assert made.count == 4
    samples = read_dataset(tmp_path / "set")
    for sample in samples:
        seen = sample.read()
        assert sample.label == 1
        assert seen.masks["object"].sum() == pytest.approx(12 * 12, rel=0.1)
        assert (seen.pixels[seen.masks["object"]] == (0, 250, 0)).all()
    assert len({tuple(bounds(sample.read().masks["object"])) for sample in samples}) > 1
    black = Request(fills=("black",))
    done = run(
        "roaming-panda", greenest, data=tmp_path / "set", methods="causal,random", request=black, out=tmp_path / "run"
    )
    found = {line[0]: line for line in done.findings.tables[0].rows}
    inside = [column.name for column in done.findings.tables[0].columns].index("inside")
    assert found["causal"][inside].mean == 1.0
    with pytest.raises(BecausalError, match="no class"):
        make_roaming(
            tmp_path / "thing.png", plain, as_classifier(greenest, labels=["a", "b"]), tmp_path / "x", label="panda"
        )


def test_what_is_too_tall_is_made_to_fit():
    cutout = np.full((90, 10, 3), 200, np.uint8), np.full((90, 10), 255, np.uint8)
    out, mask = paste(np.zeros((30, 40, 3), np.uint8), cutout, 20, np.random.default_rng(0))
    assert bounds(mask)[2] - bounds(mask)[0] == 30
    assert (out[mask] == 200).all()


def test_a_folder_in_use_is_not_written_to(photos, classifier, tmp_path):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "mine.txt").write_text("precious")
    with pytest.raises(OutputError, match="not empty"):
        make_photobombs(photos, classifier, tmp_path / "set", Planting())
    assert (tmp_path / "set" / "mine.txt").read_text() == "precious"


NET = "import numpy as np\nOUTPUT = 'probabilities'\n" + (
    "def predict(batch):\n"
    "    green = (batch[..., 1].astype(float) - batch[..., 0]).reshape(len(batch), -1).max(axis=1) / 255\n"
    "    return np.stack([1 - green, green], axis=1)\n"
)


def test_the_command_line_makes_sets(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    base = ["data", "make", "photobombing", "--images", "photos", "--model", "python:net.py:predict"]
    assert main([*base, "--out", "set", "--area", "0.05", "--seed", "4"]) == 0
    assert "8 images in set/" in capsys.readouterr().out
    assert len(read_dataset(Path("set"))) == 8
    for arguments, said in [
        ([*base, "--out", "x", "--area", "lots"], "an area is a share"),
        ([*base, "--out", "x", "--area", "0.5:0.2"], "the area is a range"),
        ([*base, "--out", "x", "--shapes", "star"], "unknown shape star"),
        ([*base, "--out", "x", "--paint", "plaid"], "unknown fill 'plaid'"),
        ([*base, "--out", "set"], "not empty"),
        (["data", "make", "photobombing", "--images", "absent", "--model", "bundled", "--out", "x"], "no folder absent"),
        (["data", "get", "imagenet"], "unknown dataset 'imagenet'"),
    ]:
        assert main(arguments) == 2
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        assert said in told
