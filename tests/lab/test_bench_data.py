"""Datasets: the published layouts, and datasets of one's own in them."""

import numpy as np
import pytest
from PIL import Image

from becausal import Request
from becausal.core.errors import ImageError, OptionError
from becausal.interfaces.cli.app import main
from becausal.lab import run
from becausal.lab.datasets import occluder_pixels, read_dataset, read_photobombs, read_roaming
from test_bench import plain_figures  # noqa: F401 - a fixture


def greenest(batch: np.ndarray) -> np.ndarray:
    """A classifier of any images: dark, or with some green in it."""
    green = (batch[..., 1].astype(float) - batch[..., 0]).reshape(len(batch), -1).max(axis=1) / 255
    return np.stack([1 - green, green], axis=1)


def bounds(mask: np.ndarray) -> tuple[int, ...]:
    """The box around a mask: first row and column, and those after the last."""
    places = np.argwhere(mask)
    return (*places.min(axis=0).tolist(), *(places.max(axis=0) + 1).tolist())


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


def write_mask(folder, name, mask):
    (folder / "masks").mkdir(exist_ok=True)
    Image.fromarray(mask.astype(np.uint8) * 255).save(folder / "masks" / f"{name}.png")


def test_a_mask_file_takes_precedence_over_the_list(tmp_path):
    (tmp_path / "photobombing_imgs").mkdir()
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / "photobombing_imgs" / "0.png")
    (tmp_path / "photobombing_groundtruth.txt").write_text("0.png 2(0) 3(0) 5(0) 9(0) 1 thing, star\n")
    cross = np.zeros((20, 30), bool)
    cross[8:12, :12] = cross[:, 4:8] = True
    write_mask(tmp_path, "0", cross)
    (sample,) = read_dataset(tmp_path)
    assert (sample.read().masks["occluder"] == cross).all()
    write_mask(tmp_path, "0", cross[:-1])
    with pytest.raises(ImageError, match="its image has"):
        sample.read()


@pytest.mark.usefixtures("plain_figures")
def test_a_roaming_object_is_read_and_benched(tmp_path):
    data = tmp_path / "set"
    (data / "pictures").mkdir(parents=True)
    (data / "dataset.json").write_text('{"label": 1}')
    lines = []
    for number in range(4):
        pixels, mask = np.full((48, 48, 3), 60 + number, np.uint8), np.zeros((48, 48), bool)
        mask[5 * number : 5 * number + 12, 20:32] = True
        pixels[mask] = (0, 250, 0)
        Image.fromarray(pixels).save(data / "pictures" / f"{number}.png")
        write_mask(data, str(number), mask)
        lines.append(f"{number}.png 0 0 48 48\n")
    (data / "list.csv").write_text("".join(lines))
    assert [(sample.label, sample.read().masks["object"].sum()) for sample in read_dataset(data)] == [(1, 144)] * 4
    black = Request(fills=("black",))
    done = run("roaming-panda", greenest, data=data, methods="causal,random", request=black, out=tmp_path / "run")
    found = {line[0]: line for line in done.findings.tables[0].rows}
    inside = [column.name for column in done.findings.tables[0].columns].index("inside")
    assert found["causal"][inside].mean == 1.0


def test_an_unknown_dataset_is_named(capsys):
    assert main(["data", "get", "imagenet"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "unknown dataset 'imagenet'" in told
