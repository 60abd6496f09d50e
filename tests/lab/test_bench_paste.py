"""The bench `paste`: sets and maps on other photographs."""

import json

import numpy as np
import pytest
from PIL import Image

import becausal
from becausal import Request
from becausal.core.errors import OptionError
from becausal.lab import run
from becausal.lab.paste import make_tables, paste
from becausal.models import as_classifier
from test_bench import bright, plain_figures  # noqa: F401 - one is a fixture

pytestmark = pytest.mark.usefixtures("plain_figures")


def picture(number: int, *, is_bright: bool) -> np.ndarray:
    """A dark image, or one with a bright middle."""
    pixels = np.random.default_rng(number).integers(0, 60, (16, 16, 3), dtype=np.uint8)
    if is_bright:
        pixels[5:11, 5:11] = 240
    return pixels


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Two bright images and three dark ones, one of them larger."""
    folder = tmp_path_factory.mktemp("mixed")
    for number in range(5):
        image = Image.fromarray(picture(number, is_bright=number in (0, 4)))
        (image.resize((32, 32)) if number == 1 else image).save(folder / f"{number}.png")
    return folder


def test_a_set_keeps_its_label_where_it_decides_and_photographs_with_the_label_do_not_count():
    model = as_classifier(bright)
    found = becausal.explain(picture(0, is_bright=True), model, smallest=True)
    others = [picture(1, is_bright=False), picture(2, is_bright=True), picture(3, is_bright=False)]
    middle = np.zeros((16, 16), bool)
    middle[6:10, 6:10] = True
    kept, count = paste(found, model, np.stack([middle, ~middle, found.visible | middle]), others)
    assert kept.tolist() == [1.0, 0.0, 1.0]
    assert count == 2  # the bright one has the label without any set
    none, count = paste(found, model, middle[None], others[1:2])
    assert np.isnan(none).all()
    assert count == 0


def test_both_sets_and_parts_of_the_map_are_pasted_on_all_other_images(mixed, tmp_path):
    done = run(
        "paste", bright, data=mixed, methods="causal,centre", limit=2, request=Request(fills=("black",)), out=tmp_path
    )
    first = done.rows[0]
    assert first["name"] == "0.png"
    assert first["others"] == 3  # the dark ones: neither the image itself, nor the other one with its label
    assert first["size_core"] <= first["size_enough"] == first["size"]
    assert first["kept_enough"] == 1.0  # dark pixels decide nothing
    assert [line[:2] for line in done.findings.tables[1].rows][:2] == [("core", "causal"), ("core", "centre")]
    curves, sets = json.loads((tmp_path / "summary.json").read_text())["plots"]
    assert [line["label"] for line in curves["lines"]] == ["causal", "centre"]
    assert curves["lines"][0]["x"] == [0.05, 0.1, 0.2, 0.3]
    assert all(len(line["low"]) == len(line["high"]) == 4 for line in curves["lines"])
    assert sets["ticks"] == ["core", "enough"]
    centre = next(row for row in done.rows if row["method"] == "centre")
    assert centre["top_5"] <= centre["top_30"] == 1.0  # the middle is 14 % of the image


def test_the_sets_are_those_that_were_asked_for(mixed, tmp_path):
    given = {"data": mixed, "methods": "causal", "limit": 1}
    smallest = run("paste", bright, request=Request(smallest=True, fills=("black",)), out=tmp_path / "smallest", **given)
    assert {line[0] for line in smallest.findings.tables[1].rows} == {"label"}
    share = run("paste", bright, request=Request(confidence=0.7, fills=("black",)), out=tmp_path / "share", **given)
    assert {line[0] for line in share.findings.tables[1].rows} == {"70%"}


def test_an_image_without_a_certified_set_has_a_row_for_core_only():
    common = {"method": "rise", "calls": 5} | {f"top_{share}": 0.5 for share in (5, 10, 20, 30)}
    with_both = common | {"name": "a", "size_core": 0.1, "kept_core": 0.2, "size_enough": 0.4, "kept_enough": 0.8}
    only_core = common | {"name": "b", "size_core": 0.3, "kept_core": 0.4}
    table = make_tables([with_both, only_core])[1]
    assert [(line[0], line[2], round(line[4].mean, 6)) for line in table.rows] == [("core", 2, 0.3), ("enough", 1, 0.8)]


def test_there_must_be_an_image_to_paste_on(tmp_path):
    (tmp_path / "data").mkdir()
    Image.fromarray(picture(0, is_bright=True)).save(tmp_path / "data" / "0.png")
    with pytest.raises(OptionError, match="needs other images to paste on"):
        run("paste", bright, data=tmp_path / "data", methods="random", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
