"""Images in, views out, and the way back."""

import io
import json
import os
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import GifImagePlugin, Image, TiffImagePlugin

import becausal
from becausal.core.contracts import Geometry
from becausal.core.errors import ImageError
from becausal.core.frames import Frame, plan_frame
from becausal.images.loading import InputImage, load_image, make_view, shown_original


def save(tmp_path, image, name="picture.png", **options):
    path = tmp_path / name
    image.save(path, **options)
    return path


def gradient(h, w):
    rows, columns = np.indices((h, w))
    return np.stack([rows * 255 // max(1, h - 1), columns * 255 // max(1, w - 1), (rows + columns) % 256], -1).astype("u1")


# ---- reading files


def test_rgb_passes_bit_for_bit_and_the_hash_is_of_the_file(tmp_path):
    import hashlib

    pixels = gradient(31, 47)
    path = save(tmp_path, Image.fromarray(pixels))
    picture = load_image(path)
    assert np.array_equal(picture.pixels, pixels)
    assert picture.notes == ()
    assert picture.name == "picture.png"
    assert picture.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    for same in (str(path), str(path).encode(), Image.open(path), pixels):
        assert np.array_equal(load_image(same).pixels, pixels)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "YCbCr", "I;16", "HSV"])
def test_every_mode_becomes_rgb(mode):
    picture = load_image(
        Image.fromarray(gradient(20, 30)).convert("L").convert("I;16")
        if mode == "I;16"
        else Image.fromarray(gradient(20, 30)).convert(mode)
    )
    assert picture.pixels.shape == (20, 30, 3)
    assert picture.pixels.dtype == np.uint8


def test_16_bit_grey_is_scaled_by_257(tmp_path):
    values = np.array([[0, 257, 25700, 65535, 128 * 257]], np.uint16)
    picture = load_image(save(tmp_path, Image.fromarray(values)))
    assert picture.pixels[0, :, 0].tolist() == [0, 1, 100, 255, 128]
    assert picture.notes == ("16-bit scaled to 8",)


def test_float_tiff_of_0_to_255_is_read_and_others_refused(tmp_path):
    good = load_image(save(tmp_path, Image.fromarray(np.array([[0.0, 100.4, 255.0]], np.float32)), "a.tiff"))
    assert good.pixels[0, :, 0].tolist() == [0, 100, 255]
    with pytest.raises(ImageError, match="no known scale"):
        load_image(save(tmp_path, Image.fromarray(np.array([[0.0, 1.0]], np.float32)), "b.tiff"))
    with pytest.raises(ImageError, match="NaN"):
        load_image(save(tmp_path, Image.fromarray(np.array([[0.0, np.nan]], np.float32)), "c.tiff"))


def test_alpha_goes_over_white(tmp_path):
    rgba = np.zeros((2, 2, 4), np.uint8)
    rgba[0, 0] = (10, 20, 30, 255)
    rgba[0, 1] = (10, 20, 30, 0)
    rgba[1, 0] = (0, 0, 0, 128)
    picture = load_image(save(tmp_path, Image.fromarray(rgba)))
    assert picture.pixels[0, 0].tolist() == [10, 20, 30]
    assert picture.pixels[0, 1].tolist() == [255, 255, 255]
    assert picture.pixels[1, 0].tolist() == [127, 127, 127]
    assert picture.notes == ("alpha composited over white",)
    rgba[..., 3] = 255
    assert load_image(save(tmp_path, Image.fromarray(rgba))).notes == ()


def test_a_palette_with_a_transparent_colour(tmp_path):
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 255, 0])
    image.putpixel((1, 0), 1)
    picture = load_image(save(tmp_path, image, "p.png", transparency=1))
    assert picture.pixels[0].tolist() == [[255, 0, 0], [255, 255, 255]]


def test_an_animation_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "green", "blue")]
    path = save(tmp_path, frames[0], "a.gif", save_all=True, append_images=frames[1:])
    picture = load_image(path)
    assert picture.notes == ("several frames: first frame used",)
    assert picture.pixels[0, 0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("kind", ["gif", "tiff", "png", "webp"])
def test_frames_are_never_counted(tmp_path, monkeypatch, kind):
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "green", "blue")]
    several = save(tmp_path, frames[0], f"a.{kind}", save_all=True, append_images=frames[1:])
    single = save(tmp_path, frames[0], f"b.{kind}")

    def count(self):
        raise AssertionError("counted")

    for plugin in (GifImagePlugin.GifImageFile, TiffImagePlugin.TiffImageFile):
        monkeypatch.setattr(plugin, "n_frames", property(count))
    assert "several frames: first frame used" in load_image(several).notes
    assert load_image(single).notes == ()


def test_a_tiff_of_very_many_frames_is_read_at_once(tmp_path):
    # Each directory points to the next; all show the same four grey pixels.
    entries = [(256, 3, 1, 2), (257, 3, 1, 2), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8)]
    entries += [(278, 3, 1, 2), (279, 4, 1, 4)]
    size, count = 2 + 12 * len(entries) + 4, 60_000
    directory = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    links = [12 + size * (i + 1) for i in range(count - 1)] + [0]
    body = b"".join(directory + struct.pack("<I", link) for link in links)
    (tmp_path / "many.tif").write_bytes(b"II*\0" + struct.pack("<I", 12) + bytes([9, 9, 9, 9]) + body)
    begun = time.perf_counter()
    image = load_image(tmp_path / "many.tif")
    assert time.perf_counter() - begun < 1.0  # counting them takes half a minute
    assert image.notes == ("several frames: first frame used",)
    assert (image.pixels == 9).all()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
@pytest.mark.parametrize("name", ["pipe.png", "pipe.npy", "pipe"])
def test_only_regular_files_are_opened(tmp_path, name):
    os.mkfifo(tmp_path / name)
    for path, kind in ((tmp_path / name, "a named pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        with pytest.raises(ImageError, match=f"^{path} is {kind}"):
            load_image(path)
    (tmp_path / "link.png").symlink_to("/dev/zero")
    with pytest.raises(ImageError, match="is a device"):
        load_image(tmp_path / "link.png")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_an_image_as_the_fill_must_be_a_regular_file_too(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    image = np.full((8, 8, 3), 200, np.uint8)
    for path in (tmp_path / "pipe.png", Path("/dev/zero")):
        with pytest.raises(ImageError, match="not a regular file"):
            becausal.explain(image, lambda batch: np.tile([0.2, 0.8], (len(batch), 1)), fills=f"image:{path}")


def test_exif_turns_the_picture_upright(tmp_path):
    image = Image.fromarray(gradient(10, 20))
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    picture = load_image(save(tmp_path, image, exif=exif.tobytes()))
    assert picture.pixels.shape == (20, 10, 3)
    assert np.array_equal(picture.pixels, np.rot90(gradient(10, 20), -1))
    assert picture.notes == ("turned upright by its EXIF orientation",)


def test_cmyk_jpeg(tmp_path):
    path = save(tmp_path, Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "c.jpg", quality=95)
    picture = load_image(path)
    red, green, blue = picture.pixels[4, 4].tolist()
    assert red > 240
    assert green < 15
    assert blue < 15


def test_one_pixel(tmp_path):
    view = make_view(load_image(save(tmp_path, Image.new("RGB", (1, 1), "red"))), Geometry((8, 8)))
    assert (view.pixels == [255, 0, 0]).all()
    assert view.frame.to_original(np.ones((8, 8), bool)).tolist() == [[True]]


def png_of(width, height):
    """A PNG file whose header promises that size, with next to no data."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_a_large_picture_is_read_without_a_warning(tmp_path, monkeypatch):
    path = save(tmp_path, Image.new("L", (1_200, 900), 77), "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 600_000)  # Pillow warns from here on, and refuses twice as many
    picture = load_image(path)
    assert picture.pixels.shape == (900, 1_200, 3)
    view = make_view(picture, Geometry((224, 224), 256))
    assert (view.pixels == 77).all()
    assert view.frame.original == (900, 1_200)


def test_what_cannot_be_read_says_why(tmp_path):
    def put(name, data):
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    buffer = io.BytesIO()
    Image.fromarray(gradient(64, 64)).save(buffer, "JPEG")
    cases = [
        (tmp_path / "missing.png", "there is no file"),
        (tmp_path, "is a folder"),
        (put("empty.png", b""), "is empty"),
        (put("text.png", b"hello"), "no image"),
        (put("cut.jpg", buffer.getvalue()[:500]), "damaged or cut short"),
        (put("bomb.png", png_of(20_000, 20_000)), "million pixels"),
        (put("broken.npy", b"\x93NUMPYxx"), "npy"),
        (put("text.npy", b"hello"), "npy"),
        ("a\0b.png", "is not the name of a file"),
        (42, "not int"),
    ]
    for source, words in cases:
        with pytest.raises(ImageError, match=words) as caught:
            load_image(source)
        assert "\n" not in str(caught.value)


def test_pickles_are_never_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(ImageError, match="npy"):
        load_image(tmp_path / "a.npy")


def test_an_archive_of_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.zeros(3))
    (tmp_path / "a.npz").rename(tmp_path / "b.npy")
    with pytest.raises(ImageError, match="several arrays"):
        load_image(tmp_path / "b.npy")


# ---- raw arrays


@pytest.mark.parametrize(
    ("shape", "channels", "pixels", "words"),
    [
        ((50,), "auto", (50, 1), "signal of 50 without"),
        ((9, 7), "auto", (9, 7, 1), "grid of 9x7 without"),
        ((9, 7, 3), "auto", (9, 7, 3), "image of 9x7 with 3 channels"),
        ((9, 7, 1), "auto", (9, 7, 1), "image of 9x7 with 1 channels"),
        ((9, 7, 5), "auto", (9, 7, 5, 1), "volume of 9x7x5 without"),
        ((3, 3, 3), "auto", (3, 3, 3, 1), "volume of 3x3x3 without"),
        ((4, 5, 6, 2), "auto", (4, 5, 6, 2), "volume of 4x5x6 with 2 channels"),
        ((9, 7, 3), "none", (9, 7, 3, 1), "volume of 9x7x3"),
        ((50, 2), "last", (50, 2), "signal of 50 with 2 channels"),
        ((9, 7, 5), "last", (9, 7, 5), "image of 9x7 with 5 channels"),
    ],
)
def test_how_arrays_are_read(tmp_path, shape, channels, pixels, words):
    array = np.random.default_rng(0).random(shape, dtype=np.float32)
    np.save(tmp_path / "a.npy", array)
    for source in (array, tmp_path / "a.npy"):
        picture = load_image(source, channels=channels)
        assert picture.pixels.shape == pixels
        assert words in picture.notes[0]
        assert np.array_equal(picture.pixels.reshape(shape), array)
        view = make_view(picture, None)
        assert view.frame.is_identity


@pytest.mark.parametrize("dtype", [">f4", ">u2", "bool", "int64", "float16"])
def test_types_of_other_machines(dtype):
    picture = load_image(np.ones((4, 5), dtype))
    assert picture.pixels.dtype.isnative
    assert (picture.pixels == 1).all()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([1.0, np.nan]), "NaN"),
        (np.array([1.0, np.inf]), "NaN or infinite"),
        (np.zeros((0, 3)), "none empty"),
        (np.array(3.0), "one to four axes"),
        (np.zeros((2, 2, 2, 2, 2)), "not a batch"),
        (np.array(["a"]), "real numbers"),
        (np.zeros(3, complex), "real numbers"),
    ],
)
def test_arrays_that_are_refused(array, words):
    with pytest.raises(ImageError, match=words):
        load_image(array)


def test_a_signal_has_no_channels_axis():
    with pytest.raises(ImageError, match="no channels"):
        load_image(np.zeros(5), channels="last")


# ---- views


def test_a_picture_of_the_right_size_is_untouched():
    pixels = gradient(224, 224)
    view = make_view(load_image(pixels), Geometry((224, 224)))
    assert np.array_equal(view.pixels, pixels)
    assert view.frame.is_identity


def test_grey_arrays_and_floats_of_0_to_255_serve_as_pictures():
    grey = gradient(8, 8)[..., 0]
    for array in (grey, grey[..., None], grey.astype(np.float64)):
        view = make_view(load_image(array), Geometry((8, 8)))
        assert view.pixels.dtype == np.uint8
        assert np.array_equal(view.pixels, np.repeat(grey[..., None], 3, axis=2))


@pytest.mark.parametrize("array", [np.zeros(9), np.full((8, 8), 0.5), np.full((8, 8), -3.0), np.zeros((5, 6, 7))])
def test_arrays_that_are_no_pictures_are_refused_by_a_picture_model(array):
    with pytest.raises(ImageError, match=r"array (has|holds)"):
        make_view(load_image(array), Geometry((8, 8)))


def test_a_model_of_many_channels_takes_arrays_that_fit():
    array = np.random.default_rng(0).random((6, 7, 5))
    assert np.array_equal(make_view(load_image(array, channels="last"), Geometry((6, 7)), channels=5).pixels, array)
    with pytest.raises(ImageError, match="takes exactly"):
        make_view(load_image(array, channels="last"), Geometry((6, 8)), channels=5)


def test_resize_and_crop_match_pillow_step_by_step():
    pixels = gradient(300, 451)
    view = make_view(load_image(pixels), Geometry((224, 224), 256, "bicubic"))
    small = Image.fromarray(pixels).resize((int(256 * 451 / 300), 256), Image.Resampling.BICUBIC)
    left = round((small.width - 224) / 2)
    assert np.array_equal(view.pixels, np.asarray(small.crop((left, 16, left + 224, 240))))
    squashed = make_view(load_image(pixels), Geometry((100, 60), "squash"))
    expected = Image.fromarray(pixels).resize((60, 100), Image.Resampling.BILINEAR)
    assert np.array_equal(squashed.pixels, np.asarray(expected))


def test_a_crop_larger_than_the_picture_is_padded_with_black():
    view = make_view(load_image(np.full((20, 20, 3), 200, np.uint8)), Geometry((31, 30), 20))
    assert view.pixels.shape == (31, 30, 3)
    shown = (view.pixels == 200).all(-1)
    assert shown.sum() == 400
    assert shown[5:25, 5:25].all()
    assert (view.pixels[~shown] == 0).all()
    assert np.array_equal(view.frame.to_original(shown), np.ones((20, 20), bool))
    assert np.array_equal(view.frame.from_original(np.ones((20, 20), bool)), shown)


def test_a_thin_strip_costs_no_gigabytes():
    pixels = np.zeros((1, 12_000, 3), np.uint8)
    pixels[0, 6_000] = 255
    view = make_view(load_image(pixels), Geometry((224, 224)))
    assert view.pixels.shape == (224, 224, 3)
    assert view.frame.resized == (224, 224 * 12_000)
    assert view.pixels.max() > 0


# ---- the way back

sizes = st.integers(1, 60)
resizes = st.one_of(st.none(), st.just("squash"), st.integers(1, 50), st.tuples(sizes, sizes))


@settings(max_examples=150, deadline=None)
@given(sizes, sizes, sizes, sizes, resizes, st.integers(0, 2**32 - 1))
def test_masks_make_the_round_trip(height, width, h, w, resize, seed):
    frame = plan_frame((height, width), Geometry((h, w), resize))
    rng = np.random.default_rng(seed)
    truth = rng.random((height, width)) < 0.5
    visible = rng.random((h, w)) < 0.5
    there = frame.to_original(np.ones((h, w), bool))
    if all(scale >= 1 for scale in frame.scale):  # the view is the coarser: nothing of it is lost on the original
        covered = frame.from_original(np.ones((height, width), bool))
        assert np.array_equal(frame.from_original(frame.to_original(visible)), visible & covered)
    if all(scale <= 1 for scale in frame.scale):  # the view is the finer: nothing of the original is lost on it
        assert np.array_equal(frame.to_original(frame.from_original(truth)), truth & there)
    assert Frame.from_record(json.loads(json.dumps(frame.record()))) == frame


@settings(max_examples=60, deadline=None)
@given(sizes, sizes, sizes, sizes, resizes, st.data())
def test_the_centre_of_a_pixel_lands_where_the_formula_says(height, width, h, w, resize, data):
    frame = plan_frame((height, width), Geometry((h, w), resize))
    row, column = data.draw(st.integers(0, h - 1)), data.draw(st.integers(0, w - 1))
    places = [(v + 0.5) * s + o for v, s, o in zip((row, column), frame.scale, frame.offset, strict=True)]
    numbered = np.arange(height * width).reshape(height, width) + 1
    found = frame.from_original(numbered)[row, column]
    if not all(0 <= place < side for place, side in zip(places, (height, width), strict=True)):
        assert found == 0
    else:
        at = np.unravel_index(found - 1, (height, width))
        assert all(abs(place - (i + 0.5)) <= 0.5 + 1e-9 for place, i in zip(places, at, strict=True))


@settings(max_examples=80, deadline=None)
@given(sizes, sizes, sizes, sizes, resizes)
def test_smooth_maps_keep_their_slope(height, width, h, w, resize):
    frame = plan_frame((height, width), Geometry((h, w), resize))
    slope = np.indices((h, w))[1] + 0.5
    back = frame.to_original(slope)
    inside = frame.to_original(np.ones((h, w), bool))
    assert (back[~inside] == 0.0).all()
    wanted = np.clip((np.arange(width) + 0.5 - frame.offset[1]) / frame.scale[1], 0.5, w - 0.5)
    assert np.allclose(np.where(inside, back, 0), np.where(inside, wanted[None], 0))


def test_the_pixels_themselves_follow_the_frame():
    pixels = np.zeros((301, 452, 3), np.uint8)
    pixels[100:140, 200:260] = 255
    for geometry in (Geometry((224, 224)), Geometry((224, 224), 256), Geometry((227, 227), (256, 256))):
        view = make_view(load_image(pixels), geometry)
        bright = view.pixels[..., 0] > 127
        back = view.frame.to_original(bright)
        assert (back != (pixels[..., 0] > 127)).sum() <= 2 * 200  # at most a pixel along the edge
        assert (view.frame.from_original(pixels[..., 0] > 0) != bright).sum() <= 2 * 200


@pytest.mark.parametrize("grid", [(17,), (5, 6), (3, 4, 5)])
def test_views_of_any_dimension_are_their_own_original(grid):
    frame = Frame.identity(grid)
    values = np.random.default_rng(0).random(grid)
    assert np.array_equal(frame.to_original(values), values)
    assert np.array_equal(frame.from_original(values > 0.5), values > 0.5)
    with pytest.raises(ImageError, match="does not fit"):
        frame.to_original(np.zeros((*grid, 1)))


def test_pictures_are_plain_records():
    picture = InputImage(np.zeros((2, 3, 3), np.uint8), "a", "b")
    assert picture.grid == (2, 3)
    with pytest.raises(AttributeError):
        picture.name = "c"


def test_the_original_is_kept_for_figures_only_where_the_view_differs() -> None:
    image = load_image(np.zeros((300, 2000, 3), np.uint8))
    view = make_view(image, Geometry((32, 32)))
    shown = shown_original(image, view.frame)
    assert shown is not None
    assert shown.shape == (154, 1024, 3)
    small = load_image(np.full((40, 50, 3), 7, np.uint8))
    same = shown_original(small, make_view(small, Geometry((32, 32))).frame)
    np.testing.assert_array_equal(same, small.pixels)
    assert shown_original(small, make_view(small, None).frame) is None
