"""Random backgrounds: our distribution, a folder of images, a function; and the command that shows samples."""

import hashlib
import os
from collections import Counter, deque
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from becausal.core.errors import ImageError, InputError
from becausal.images.backgrounds import (
    FAMILIES,
    Family,
    FolderBackgrounds,
    FunctionBackgrounds,
    RandomBackgrounds,
    make_backgrounds,
)
from becausal.images.fills import span
from becausal.images.loading import load_image
from becausal.interfaces.cli.app import main
from becausal.render.figures import backgrounds_png

IMAGE = (np.arange(24 * 20 * 3) % 251).astype(np.uint8).reshape(24, 20, 3)
SIGNAL = np.sin(np.arange(50.0)).reshape(50, 1).astype(np.float32)
VOLUME = np.arange(6 * 7 * 8 * 2.0).reshape(6, 7, 8, 2)
VIEWS = {"image": IMAGE, "signal": SIGNAL, "volume": VOLUME, "pixel": np.full((1, 1, 3), 9, np.uint8)}


def read(path):
    return load_image(path).pixels


# our distribution


def test_the_distribution_of_version_1_stays_as_it_is():
    """Saved certificates name their backgrounds by version, seed and number."""
    drawn, digest = RandomBackgrounds(IMAGE, 7), hashlib.sha256()
    for number in range(40):
        digest.update(drawn.family(number).encode() + drawn.draw(number).tobytes())
    assert digest.hexdigest().startswith("04e34a5f72ce2a4a")


@pytest.mark.parametrize("name", VIEWS)
def test_every_family_has_the_views_shape_type_and_range(name):
    view = VIEWS[name]
    drawn, (low, high) = RandomBackgrounds(view, 0), span(view)
    families = Counter()
    for number in range(40):
        background = drawn.draw(number)
        assert background.shape == view.shape
        assert background.dtype == view.dtype
        assert low - 1e-6 <= background.min() <= background.max() <= high + 1e-6
        families[drawn.family(number)] += 1
    assert set(families) == set(FAMILIES)


def test_a_background_depends_on_its_seed_and_number_alone():
    one, other = RandomBackgrounds(IMAGE, 3), RandomBackgrounds(IMAGE, 3)
    for number in (5, 0, 17):
        assert (one.draw(number) == other.draw(number)).all()
    assert any((RandomBackgrounds(IMAGE, 4).draw(k) != one.draw(k)).any() for k in range(3))


def test_families_are_equally_likely():
    drawn = RandomBackgrounds(VIEWS["pixel"], 0)
    counted = Counter(drawn.family(number) for number in range(2000))
    assert all(430 < counted[family] < 570 for family in FAMILIES)


@settings(max_examples=25, deadline=None)
@given(
    arrays.arrays(np.float32, arrays.array_shapes(min_dims=2, max_dims=4, max_side=9), elements=st.floats(-9, 9, width=32))
)
def test_any_grid_of_numbers_has_backgrounds(view):
    drawn = RandomBackgrounds(view, 1)
    assert all(drawn.draw(number).shape == view.shape for number in range(8))


def test_another_family_is_a_row_of_the_table(tmp_path, monkeypatch, capsys):
    """The samplers draw it, and the command that shows samples says what it is."""
    monkeypatch.setitem(FAMILIES, "snow", Family("white all over", lambda view, rng, kept: np.full(view.shape, 255.0)))
    drawn = RandomBackgrounds(IMAGE, 0)
    numbers = [number for number in range(40) if drawn.family(number) == "snow"]
    assert numbers
    assert (drawn.draw(numbers[0]) == 255).all()
    assert main(["backgrounds", "--count", "8", "--out", str(tmp_path / "samples.png")]) == 0
    assert "white all over" in " ".join(capsys.readouterr().out.split())


def test_ours_in_words_and_as_a_record():
    drawn = make_backgrounds(None, IMAGE, 5, read)
    assert isinstance(drawn, RandomBackgrounds)
    assert drawn.describe() == "becausal backgrounds, version 1"
    assert drawn.record() == {"kind": "becausal", "version": 1, "seed": 5}


# a folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Three images, one of them in a folder of its own; and files that are no images."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "places"
    (place / "far").mkdir(parents=True)
    for value, name in enumerate(("b.png", "a.png", "far/c.png")):
        Image.fromarray(np.full((24, 20, 3), 40 * value, np.uint8)).save(place / name)
    (place / "notes.txt").write_text("no image")
    (place / ".hidden.png").write_bytes(b"no image either")
    return place


def test_each_image_of_a_folder_is_as_likely_as_the_others(folder):
    drawn = make_backgrounds("places", IMAGE, 0, read)
    assert isinstance(drawn, FolderBackgrounds)
    values = {"b.png": 0, "a.png": 40, "far/c.png": 80}
    counted = Counter()
    for number in range(300):
        name = drawn.family(number)
        background = drawn.draw(number)
        assert (background == values[name]).all()
        assert background.shape == IMAGE.shape
        counted[name] += 1
    assert all(70 < counted[name] < 130 for name in values)
    again = make_backgrounds(folder, IMAGE, 0, read)
    assert [again.family(k) for k in range(20)] == [drawn.family(k) for k in range(20)]
    assert drawn.describe() == "3 images of places"


def test_a_file_is_read_once(folder):
    calls = Counter()

    def counting(path):
        calls[path] += 1
        return read(path)

    drawn = make_backgrounds("places", IMAGE, 0, counting)
    for number in range(50):
        drawn.draw(number)
    assert sorted(calls.values()) == [1, 1, 1]


def test_signals_and_volumes_come_from_arrays(tmp_path):
    for name, view in (("signal", SIGNAL), ("volume", VOLUME)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "0.npy", view * 2)
        drawn = make_backgrounds(tmp_path / name, view, 0, lambda path: np.load(path))
        assert np.allclose(drawn.draw(0), view * 2)
        assert drawn.draw(0).dtype == view.dtype


def test_the_record_of_a_folder_changes_with_names_and_bytes_alone(folder):
    def record():
        return make_backgrounds("places", IMAGE, 0, read).record()

    first = record()
    assert first == {
        "kind": "folder", "version": 1, "seed": 0, "folder": "places", "images": 3, "sha256": first["sha256"],
    }  # fmt: skip
    os.utime(folder / "a.png", (1, 1))
    (folder / "notes.txt").write_text("other notes")
    assert record() == first
    (folder / "a.png").rename(folder / "z.png")
    renamed = record()
    assert renamed["sha256"] != first["sha256"]
    (folder / "z.png").write_bytes((folder / "b.png").read_bytes())
    assert record()["sha256"] not in (first["sha256"], renamed["sha256"])
    assert str(folder) not in str(record())


def test_a_file_that_cannot_be_used_is_named(folder):
    def first_error(drawn):
        with pytest.raises(ImageError) as refused:
            deque(map(drawn.draw, range(60)))
        assert "\n" not in str(refused.value)
        return str(refused.value)

    (folder / "a.png").write_bytes(b"no image")
    assert "places/a.png" in first_error(make_backgrounds("places", IMAGE, 0, read))
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(folder / "a.png")
    said = first_error(make_backgrounds("places", IMAGE, 0, read))
    assert "places/a.png has shape (9, 9, 3); the view has (24, 20, 3)" in said
    drawn = make_backgrounds("places", IMAGE, 0, read)
    (folder / "b.png").unlink()
    with pytest.raises(ImageError, match=r"places/b\.png"):
        drawn.record()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("missing", "missing"),
        ("empty", "empty has no images"),
        ("file.png", "file.png"),
        (3, "folder of images"),
        ("a\0b", "a"),
    ],
)
def test_backgrounds_that_are_none_are_refused(spec, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.png").write_bytes(b"")
    with pytest.raises(InputError, match=expected):
        make_backgrounds(spec, IMAGE, 0, read)


# a function


def stripes(view, rng):
    view[::2] = rng.integers(0, 256, view.shape[-1])
    return view


def test_a_function_draws_from_its_own_generator_and_cannot_change_the_view():
    view = IMAGE.copy()
    drawn = make_backgrounds(stripes, view, 0, read)
    assert isinstance(drawn, FunctionBackgrounds)
    assert (drawn.draw(4) == drawn.draw(4)).all()
    assert (drawn.draw(4) != drawn.draw(5)).any()
    assert (view == IMAGE).all()
    assert drawn.describe() == "the function stripes"
    assert drawn.family(0) == "stripes"
    assert drawn.record() == {"kind": "function", "version": 1, "seed": 0, "name": "stripes"}


def test_what_a_function_returns_takes_the_views_type():
    assert (make_backgrounds(lambda view, rng: np.full(view.shape, 99.6), IMAGE, 0, read).draw(0) == 100).all()
    assert (make_backgrounds(lambda view, rng: np.zeros(view.shape), IMAGE, 0, read).draw(0) == 0).all()
    found = make_backgrounds(lambda view, rng: rng.normal(size=view.shape), VOLUME.astype(np.float32), 0, read).draw(0)
    assert found.dtype == np.float32
    assert found.shape == VOLUME.shape


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda view, rng: view[1:], r"shape \(23, 20, 3\); the view has \(24, 20, 3\)"),
        (lambda view, rng: None, "shape"),
        (lambda view, rng: [[1], [2, 3]], "failed for background 0: ValueError"),
        (lambda view, rng: view.astype(str), "expected uint8"),
        (lambda view, rng: view > 3, "expected uint8"),
        (lambda view, rng: np.full(view.shape, np.nan), "NaN"),
        (lambda view, rng: np.full(view.shape, 256), "256..256; expected 0..255"),
        (lambda view, rng: np.full(view.shape, -1.0), "expected 0..255"),
        (lambda view, rng: rng.random(view.shape), "multiply them by 255"),
        (lambda view, rng: 1 / 0, "ZeroDivisionError"),
        (lambda view: view, "TypeError"),
    ],
)
def test_a_function_that_returns_something_else_is_refused_in_one_line(function, expected):
    with pytest.raises(InputError, match=expected) as refused:
        make_backgrounds(function, IMAGE, 0, read).draw(0)
    assert "\n" not in str(refused.value)


def test_a_function_whose_message_has_several_lines():
    def fails(view, rng):
        raise RuntimeError("first\nsecond")

    with pytest.raises(
        InputError, match="the background function fails failed for background 3: RuntimeError: first second"
    ):
        make_backgrounds(fails, IMAGE, 0, read).draw(3)


# samples on a sheet


@pytest.mark.parametrize("name", ["image", "signal", "volume"])
def test_a_sheet_has_a_tile_for_the_view_and_each_sample(name):
    view = VIEWS[name]
    drawn = RandomBackgrounds(view, 0)
    sheets = [backgrounds_png(view, [(drawn.family(k), drawn.draw(k)) for k in range(count)]) for count in (1, 5)]
    sizes = [load_image(Image.open(BytesIO(sheet))).grid for sheet in sheets]
    assert sizes[1][1] > sizes[0][1]  # three columns instead of two


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_shows_ours(place, capsys):
    assert main(["backgrounds", "--count", "5", "--seed", "7"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("5 backgrounds for the bundled image, seed 7, in backgrounds.png\n")
    assert "becausal backgrounds, version 1" in said
    counted = [int(line.rsplit(" ", 3)[1]) for line in said.splitlines() if line.endswith(" of 5")]
    assert len(counted) == 4
    assert sum(counted) == 5
    assert main(["backgrounds", "--count", "5", "--seed", "7", "--out", "new/again.png"]) == 0
    assert (place / "new" / "again.png").read_bytes() == (place / "backgrounds.png").read_bytes()


def test_the_command_fits_a_folder_to_the_image_and_the_model(place, capsys):
    (place / "streets").mkdir()
    Image.fromarray(np.full((300, 700, 3), 200, np.uint8)).save("streets/one.jpg")
    Image.fromarray(np.full((400, 500, 3), 100, np.uint8)).save("photo.png")
    for words in ([], ["--model", "bundled"]):
        assert main(["backgrounds", "photo.png", "--backgrounds", "streets", "--count", "2", *words]) == 0
        assert "1 image of streets" in capsys.readouterr().out


def test_the_command_takes_signals(place, capsys):
    np.save("signal.npy", SIGNAL[:, 0])
    assert main(["backgrounds", "signal.npy", "--count", "3"]) == 0
    assert "3 backgrounds for signal.npy" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["missing.png"], "missing.png"),
        (["--count", "0"], "count"),
        (["--count", "100"], "count"),
        (["--seed", "-1"], "seed"),
        (["--out", "sheet.jpg"], "sheet.jpg"),
        (["--out", "folder.png"], "folder.png"),
        (["--backgrounds", "missing"], "missing"),
        (["--backgrounds", "folder.png"], "has no images"),
        (["--backgrounds", "bad"], "bad/broken.png"),
        (["--model", "missing.onnx"], "missing.onnx"),
    ],
)
def test_the_command_refuses_in_one_line_and_writes_nothing(words, expected, place, capsys):
    (place / "folder.png").mkdir()
    (place / "bad").mkdir()
    (place / "bad" / "broken.png").write_bytes(b"no image")
    before = sorted(place.rglob("*"))
    assert main(["backgrounds", *words]) == 2
    said, complaint = capsys.readouterr()
    assert said == ""
    assert complaint.count("\n") == 1
    assert expected in complaint
    assert "unexpected" not in complaint
    assert sorted(place.rglob("*")) == before
