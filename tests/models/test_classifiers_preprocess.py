"""Normalisation, geometry, TOML files, and the meaning of raw outputs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal.core.errors import AnswerError, ModelError, OptionError
from becausal.models.array_model import Composer
from becausal.models.loading import Loading, resolve_settings
from becausal.models.outputs import OutputDecoder, as_table, make_decoder, name_classes
from becausal.models.preprocess import (
    PRESETS,
    Normalisation,
    choose_normalisation,
    parse_normalisation,
    parse_resize,
    plan_geometry,
)

GREY = Normalisation(1 / 255, order="grey", name="grey")
NORMALISATIONS = [*PRESETS.values(), parse_normalisation("caffe:104,117,123"), GREY]


def picture(seed, shape=(9, 11, 3), dtype=np.uint8):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(dtype)


def test_presets_are_what_their_names_say():
    pixels = picture(0).astype(np.float64)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    expected = {
        "imagenet": (pixels / 255 - mean) / std,
        "tf": pixels / 127.5 - 1,
        "caffe": pixels[..., ::-1] - [103.939, 116.779, 123.68],
        "unit": pixels / 255,
        "raw": pixels,
    }
    for name, values in expected.items():
        found = PRESETS[name].apply(picture(0))
        assert found.dtype == np.float32
        assert np.allclose(found, values, atol=2e-5)
    assert str(PRESETS["tf"]) == "tf: RGB, x/127.5, minus 1"
    grey = GREY.apply(picture(0))
    assert grey.shape == (9, 11, 1)
    assert np.allclose(grey[..., 0], pixels @ [0.299, 0.587, 0.114] / 255, atol=1e-6)


@pytest.mark.parametrize("normalisation", NORMALISATIONS, ids=lambda n: n.name)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_composing_then_normalising_is_the_same_bit_for_bit(normalisation, layout, dtype):
    composer = Composer(normalisation.apply, layout=layout, dtype=np.dtype(dtype))
    view, background = picture(1), picture(2)
    visible = np.random.default_rng(3).random((5, 9, 11)) < 0.5
    batch = composer.compose([composer.stage(view, background)], np.zeros(5, np.intp), visible)
    expected = composer.batch(np.where(visible[..., None], view, background))
    assert batch.dtype == dtype
    assert np.array_equal(batch, expected)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
    st.integers(1, 4),
    st.sampled_from(["u1", "i2", "f2", "f4", "f8", "i8"]),
    st.integers(0, 99),
)
def test_raw_arrays_of_any_dimension_compose(grid, channels, dtype, seed):
    composer = Composer(np.asarray, reuses_buffer=False)
    rng = np.random.default_rng(seed)
    pairs = [
        (picture(seed + i, (*grid, channels), dtype), picture(seed - i - 1 + 200, (*grid, channels), dtype)) for i in (0, 1)
    ]
    visible = rng.random((4, *grid)) < 0.5
    which = rng.integers(0, 2, 4)
    batch = composer.compose([composer.stage(*pair) for pair in pairs], which, visible)
    for row, pair, seen in zip(batch, which, visible, strict=True):
        assert np.array_equal(row, np.where(seen[..., None], *pairs[pair]))
    assert batch.dtype == np.dtype(dtype)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["nchw", "nhwc"]), st.integers(0, 999), st.booleans())
def test_a_composer_that_remembers_what_a_row_showed_makes_the_same_bits(layout, seed, is_written_to):
    composer = Composer(PRESETS["tf"].apply, layout=layout, dtype=np.dtype(np.float32), is_incremental=True)
    rng = np.random.default_rng(seed)
    pairs = [(picture(seed), picture(seed + 500)), (picture(seed + 1), np.full_like(picture(0), (128, 7, 90)))]
    staged = [composer.stage(*pair) for pair in pairs]
    for _ in range(6):
        count = int(rng.integers(1, 6))
        share = rng.choice([0.0, 0.02, 0.06, 0.5, 1.0], (count, 1, 1))
        visible, which = rng.random((count, 9, 11)) < share, rng.integers(0, 2, count)
        batch = composer.compose(staged, which, visible)
        for row, pair, seen in zip(batch, which, visible, strict=True):
            assert np.array_equal(row, composer.batch(np.where(seen[..., None], *pairs[pair])[None])[0])
        if is_written_to:
            batch += 1
            composer.invalidate()


def test_a_mutant_that_shows_little_is_changed_and_not_written_again():
    composer = Composer(PRESETS["tf"].apply, dtype=np.dtype(np.float32), is_incremental=True)
    staged, visible = composer.stage(picture(0), picture(1)), np.zeros((1, 9, 11), bool)
    batch = composer.compose([staged], np.zeros(1, np.intp), visible)
    batch[0, 0, 0] = 7.0  # what nobody may do, to see who writes there
    visible[0, 4, 4] = True
    assert composer.compose([staged], np.zeros(1, np.intp), visible)[0, 0, 0, 0] == 7.0
    composer.invalidate()
    assert composer.compose([staged], np.zeros(1, np.intp), visible)[0, 0, 0, 0] != 7.0


def test_a_mutant_whose_making_was_interrupted_is_written_whole(monkeypatch):
    composer = Composer(PRESETS["tf"].apply, dtype=np.dtype(np.float32), is_incremental=True)
    staged, visible = composer.stage(picture(0), picture(1)), np.zeros((1, 9, 11), bool)
    expected = composer.compose([staged], np.zeros(1, np.intp), visible).copy()
    visible[0, 4, 4] = True

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "flatnonzero", interrupted)
    with pytest.raises(KeyboardInterrupt):
        composer.compose([staged], np.zeros(1, np.intp), visible)
    monkeypatch.undo()
    composer._buffer[:] = 7.0  # half of anything
    visible[0, 4, 4] = False
    assert np.array_equal(composer.compose([staged], np.zeros(1, np.intp), visible), expected)


def test_the_buffer_is_reused_and_grows():
    composer = Composer(PRESETS["tf"].apply, layout="nchw")
    staged = composer.stage(picture(0), picture(1))
    first = composer.compose([staged], np.zeros(3, np.intp), np.ones((3, 9, 11), bool))
    second = composer.compose([staged], np.zeros(2, np.intp), np.zeros((2, 9, 11), bool))
    assert np.shares_memory(first, second)
    third = composer.compose([staged], np.zeros(4, np.intp), np.zeros((4, 9, 11), bool))
    assert len(third) == 4


@pytest.mark.parametrize(
    ("text", "resize", "crop"),
    [
        ("256", 256, None),
        (256, 256, None),
        ("squash", "squash", None),
        ("squash:256", (256, 256), None),
        ("squash:256x320", (256, 320), None),
        ("256/224", 256, (224, 224)),
        ("squash:256/227x200", (256, 256), (227, 200)),
    ],
)
def test_resize_texts(text, resize, crop):
    assert parse_resize(text) == (resize, crop)


@pytest.mark.parametrize("text", ["", "x", "-3", "0", "256/", "256/x", "squash:", "1.5", "256/0"])
def test_resize_texts_that_are_refused(text):
    if text == "256/":
        assert parse_resize(text) == (256, None)
        return
    with pytest.raises(OptionError):
        parse_resize(text)


def test_geometry_and_what_is_assumed():
    plain, notes = plan_geometry((224, 224), resize=None, crop=None, interpolation=None)
    assert (plain.grid, plain.resize, notes) == ((224, 224), None, ())
    free, notes = plan_geometry(None, resize=None, crop=None, interpolation="bicubic")
    assert free.grid == (224, 224)
    assert free.interpolation == "bicubic"
    assert "224x224 assumed" in notes[0]
    stated, notes = plan_geometry(None, resize=300, crop=None, interpolation=None)
    assert (stated.grid, notes) == ((300, 300), ())  # nothing is assumed where a size was given
    assert "black" in plan_geometry((224, 224), resize=200, crop=None, interpolation=None)[1][0]
    with pytest.raises(ModelError, match="the network's input is 224x224"):
        plan_geometry((224, 224), resize=None, crop=(200, 200), interpolation=None)


def test_an_assumed_normalisation_is_noted():
    for channels, name in [(3, "imagenet"), (1, "unit"), (7, "raw")]:
        normalisation, notes = choose_normalisation(None, channels=channels)
        assert normalisation.name == name
        assert f"{name} assumed" in notes[0]
    assert choose_normalisation(PRESETS["tf"], channels=3)[1] == ()
    assert choose_normalisation(None, channels=3, is_integer=True)[0].name == "raw"
    with pytest.raises(ModelError, match="is for 3 channels, but the network has 1"):
        choose_normalisation(PRESETS["imagenet"], channels=1)


# ---- TOML


def card(tmp_path, text):
    (tmp_path / "net.toml").write_text(text, encoding="utf-8")
    return tmp_path / "net.onnx"


def test_a_toml_file_next_to_the_model(tmp_path):
    (tmp_path / "names.txt").write_text("cat\ndog\n")
    file = card(
        tmp_path,
        'mean = [1, 2, 3.5]\nstd = 2\nscale = 0.5\norder = "bgr"\nresize = "squash:64"\ncrop = [60, 50]\n'
        'interpolation = "lanczos"\nlabels = "names.txt"\nreturns = "logits"\n'
        'input = "x"\noutput_name = "y"\nlayout = "nhwc"\n',
    )
    found = resolve_settings(file, Loading())
    assert found.normalisation == Normalisation(0.5, (1.0, 2.0, 3.5), (2.0,), "bgr", "TOML file")
    assert (found.resize, found.crop, found.interpolation) == ((64, 64), (60, 50), "lanczos")
    assert (found.labels, found.returns, found.layout) == (("cat", "dog"), "logits", "nhwc")
    assert (found.input_name, found.output_name) == ("x", "y")


def test_options_win_over_the_file(tmp_path):
    file = card(tmp_path, 'preprocess = "tf"\nresize = 64\nlabels = ["a"]\nreturns = "logits"\n')
    found = resolve_settings(file, Loading(preprocess="raw", resize="squash", labels=("b", "c"), returns="multilabel"))
    assert found.normalisation is PRESETS["raw"]
    assert (found.resize, found.labels, found.returns) == ("squash", ("b", "c"), "multilabel")
    recorded = found.loading.record()
    assert recorded == {"preprocess": "raw", "resize": "squash", "labels": ["b", "c"], "returns": "multilabel"}
    assert Loading.from_record(recorded) == found.loading
    other = tmp_path / "other.toml"
    other.write_text('preprocess = "unit"')
    assert resolve_settings(file, Loading(preprocess=other)).normalisation is PRESETS["unit"]
    with pytest.raises(ModelError, match="there is no file"):
        resolve_settings(file, Loading(preprocess="missing.toml"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("preproces = 1", "unknown key 'preproces'"),
        ("a = ", "cannot be read"),
        ('preprocess = "tf"\nmean = 1', "not both"),
        ('order = "xyz"', "expected one of rgb, bgr, grey"),
        ('mean = "a"', "expected a number"),
        ("mean = [true]", "expected a number"),
        ("std = 0", "not 0"),
        ("crop = [1, 2, 3]", "is not a size"),
        ('resize = "x"', "unknown resize"),
        ('interpolation = "x"', "unknown interpolation"),
        ("input = 3", "expected a name"),
        ('labels = "missing.txt"', "cannot be read"),
    ],
)
def test_a_toml_file_that_makes_no_sense(tmp_path, text, words):
    with pytest.raises(ModelError, match=words):
        resolve_settings(card(tmp_path, text), Loading())


# ---- outputs


def rows(*values):
    return np.array(values, np.float32)


def test_values_tell_probabilities_from_logits():
    decoder, notes = make_decoder(rows([0.2, 0.8], [1, 0]), returns=None)
    assert decoder.returns == "probabilities"
    assert "no softmax" in notes[0]
    assert np.array_equal(decoder.scores(rows([0.3, 0.7])), rows([0.3, 0.7]))
    decoder, notes = make_decoder(rows([2, -1], [0.5, 0.5]), returns=None)
    assert decoder.returns == "logits"
    assert "softmax applied once" in notes[0]
    assert np.allclose(decoder.scores(rows([1000, 1000])), 0.5)


def test_one_column_means_two_classes():
    decoder, notes = make_decoder(rows([-3], [4]), returns=None)
    assert (decoder.classes, decoder.is_single, decoder.kind) == (2, True, "probabilities")
    assert "sigmoid applied" in notes[0]
    assert np.allclose(decoder.scores(rows([0], [100])), [[0.5, 0.5], [0, 1]])
    sure, _ = make_decoder(np.array([0.2, 0.9]), returns=None)
    assert np.allclose(sure.scores(np.array([0.25])), [[0.75, 0.25]])
    assert name_classes(sure, None) == ("not positive", "positive")
    assert name_classes(sure, ("cat",)) == ("not cat", "cat")
    assert name_classes(sure, ("dog", "cat")) == ("dog", "cat")
    with pytest.raises(ModelError, match="two classes"):
        name_classes(sure, ("a", "b", "c"))


def test_what_is_said_counts_unless_it_cannot_be():
    many, _ = make_decoder(rows([3, 4], [-1, 0]), returns="multilabel-logits")
    assert many.kind == "multilabel"
    assert np.allclose(many.scores(rows([0, 100])), [[0.5, 1]])
    assert make_decoder(rows([0.9, 0.8]), returns="multilabel")[0].kind == "multilabel"
    labels, _ = make_decoder(rows([3, 4], [5, 0]), returns="labels")
    assert labels.scores(rows([3, 4], [5, 0])).tolist() == [1, 0]
    with pytest.raises(ModelError, match="use logits instead"):
        make_decoder(rows([3, 4]), returns="probabilities")
    kept, notes = make_decoder(rows([0.5, 0.5], [1, 0]), returns="logits")
    assert kept.returns == "probabilities"  # never a second softmax
    assert "no softmax applied" in notes[0]


def test_labels_shapes_and_refusals():
    decoder, _ = make_decoder(np.array([3, 1]), returns=None)
    assert decoder.kind == "labels"
    assert decoder.scores(np.array([3, 1])).tolist() == [3, 1]
    assert as_table(np.zeros((4, 5, 1, 1))).shape == (4, 5)
    with pytest.raises(AnswerError):
        as_table(np.zeros((4, 5, 2, 2)))
    with pytest.raises(ModelError, match="is not a classifier"):
        make_decoder(np.zeros((4, 5, 2, 2)), returns=None)
    with pytest.raises(ModelError, match="3 labels but the model has 2"):
        name_classes(OutputDecoder("logits", 2), ("a", "b", "c"))
