"""Scenes as files: run lengths, datasets, contact sheets."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from becausal.core.errors import OutputError
from becausal.scenes import NOTHING, contact_sheet, decode_mask, encode_mask, make_scene, write_scenes
from test_scenes import OBJECTS, few


@few
@given(st.integers(1, 12), st.integers(1, 12), st.randoms(use_true_random=False))
def test_run_lengths_come_back_and_start_with_zeros(height: int, width: int, random: Any) -> None:
    mask = np.array([[random.random() < 0.5 for _ in range(width)] for _ in range(height)])
    rle = encode_mask(mask)
    assert rle["size"] == [height, width]
    assert sum(rle["counts"]) == height * width
    assert np.array_equal(decode_mask(rle), mask)
    # as COCO reads it: the pixels down the columns, zeros first
    slow: list[int] = []
    for k, count in enumerate(rle["counts"]):
        slow += [k % 2] * count
    assert slow == mask.T.ravel().astype(int).tolist()


def test_runs_of_another_picture_are_refused() -> None:
    with pytest.raises(ValueError, match="add up to 9 pixels, expected 4 x 4 = 16"):
        decode_mask({"size": [4, 4], "counts": [4, 5]})


def read(path: Path) -> np.ndarray[Any, Any]:
    with Image.open(path) as file:
        return np.asarray(file)


def test_a_written_set_holds_all_the_truth(tmp_path: Path) -> None:
    path = write_scenes(14, 40, tmp_path / "set", size=64)
    assert path == tmp_path / "set" / "scenes.json"
    truth = json.loads(path.read_text(encoding="utf-8"))
    assert truth["info"]["first_seed"] == 40
    names = {each["id"]: each["name"] for each in truth["categories"]}
    assert sorted(names.values()) == sorted([*OBJECTS, "occluder"])
    assert [each["id"] for each in truth["annotations"]] == list(range(1, len(truth["annotations"]) + 1))
    of_image: dict[int, dict[str, Any]] = {}
    for each in truth["annotations"]:
        of_image.setdefault(each["image_id"], {})[names[each["category_id"]]] = each
    for k, image in enumerate(truth["images"]):
        scene = make_scene(40 + k, size=64)
        assert (image["seed"], image["label"], image["occluder"]) == (scene.seed, scene.label, scene.occluder_kind)
        assert (image["width"], image["height"]) == (64, 64)
        assert np.array_equal(read(path.parent / image["file_name"]), scene.image)
        stem = path.parent / "masks" / Path(image["file_name"]).stem
        shown = {kind: read(Path(f"{stem}-{kind}.png")) for kind in ("object", "visible", "occluder", "parts")}
        for kind in ("object", "visible", "occluder"):
            assert set(np.unique(shown[kind])) <= {0, 255}
            assert np.array_equal(shown[kind] == 255, getattr(scene, kind))
        found = of_image.pop(image["id"], {})
        assert set(found) == ({scene.label} - {NOTHING}) | ({"occluder"} if scene.occluder.any() else set())
        for name, each in found.items():
            kind = "occluder" if name == "occluder" else "visible"
            mask = decode_mask(each["segmentation"])
            assert np.array_equal(mask, shown[kind] == 255)
            assert each["area"] == mask.sum()
            left, top, wide, high = each["bbox"]
            assert mask[top : top + high, left : left + wide].sum() == each["area"]
            assert mask[top].any()
            assert mask[:, left].any()
        if scene.label != NOTHING:
            each = found[scene.label]
            assert np.array_equal(decode_mask(each["amodal_segmentation"]), scene.object)
            assert each["cover"] == pytest.approx(scene.cover, abs=1e-6)
            assert set(each["parts"]) == set(scene.parts)
            for part in each["parts"].values():
                assert np.array_equal(decode_mask(part["segmentation"]), shown["parts"] == part["number"])
    assert not of_image
    written = {file.relative_to(path.parent).as_posix() for file in path.parent.rglob("*.png")}
    assert len(written) == 14 * 5


def test_a_written_set_is_the_same_again(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_scenes(3, 7, tmp_path / name, size=64, label="mug", occluder="black", cover=(0.2, 0.3))
    one = sorted((tmp_path / "one").rglob("*.*"))
    assert len(one) == 3 * 5 + 1
    for file in one:
        assert file.read_bytes() == (tmp_path / "two" / file.relative_to(tmp_path / "one")).read_bytes()
    images = json.loads((tmp_path / "one" / "scenes.json").read_text(encoding="utf-8"))["images"]
    assert all(image["label"] == "mug" and 0.2 <= image["cover"] <= 0.3 for image in images)


@pytest.mark.parametrize(("count", "seed", "message"), [(0, 0, "count is 0"), (2, -3, "seed is -3")])
def test_a_set_that_makes_no_sense_is_refused(tmp_path: Path, count: int, seed: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_scenes(count, seed, tmp_path)


def test_a_contact_sheet_shows_every_scene() -> None:
    scenes = [make_scene(seed, size=48) for seed in range(5)]
    sheet = np.asarray(contact_sheet(scenes, columns=3, gap=2))
    assert sheet.shape == (2 * 50 + 2, 3 * 50 + 2, 3)
    assert np.array_equal(sheet[2:50, 2:50], scenes[0].image)
    assert np.array_equal(sheet[52:100, 52:100], scenes[4].image)
    outlined = np.asarray(contact_sheet(scenes, columns=3, gap=2, truth=True))
    assert not np.array_equal(outlined, sheet)


def test_a_contact_sheet_says_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="no scenes"):
        contact_sheet([])
    with pytest.raises(ValueError, match=r"\[32, 48\], expected one"):
        contact_sheet([make_scene(0, size=32), make_scene(1, size=48)])
    with pytest.raises(ValueError, match="0 columns"):
        contact_sheet([make_scene(0, size=32)], columns=0)


def test_a_folder_that_cannot_be_made_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot write to"):
        write_scenes(1, 0, tmp_path / "file" / "set", size=32)
