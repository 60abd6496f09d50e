"""Why has this pixel its class, and why has this segment: images of all sizes, records, claims, pictures, pages."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import becausal
from becausal.api import explain_numbered
from becausal.api.explanation import Explanation
from becausal.api.jobs import ImageQueue
from becausal.api.target_choice import find_place
from becausal.core.contracts import Geometry
from becausal.core.errors import ModelError, OptionError, TargetError
from becausal.core.frames import plan_frame
from becausal.core.request import Request
from becausal.core.segments import read_segment, write_segment
from becausal.engine.engine import Engine
from becausal.interfaces.cli.app import main
from becausal.interfaces.serve import bodies
from becausal.interfaces.serve.limits import Limits
from becausal.interfaces.serve.page import make_request, plain_controls
from becausal.interfaces.serve.tasks import predict_image, predict_masked
from becausal.models import as_classifier, as_segmenter
from becausal.render.painting import paint_image
from becausal.render.sheets import lay_out, lay_out_original
from becausal.render.wording import as_text, describe_target, headline, question
from becausal.search.budget import Budget

LABELS = ("sky", "road", "grass", "nothing")
SIDE = 4  # of the cells of the maps, in pixels of the view
CODE = '''
import numpy as np

LABELS = ["sky", "road", "grass", "nothing"]
SIZE = (32, 48)

def predict(images):
    """Blue, red, green, or nothing, each cell with its neighbours: (n, 4, h / 4, w / 4)."""
    n, h, w, _ = images.shape
    means = (images / 255).reshape(n, h // 4, 4, w // 4, 4, 3).mean(axis=(2, 4))
    wide = np.pad(means, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    near = sum(wide[:, i : i + h // 4, j : j + w // 4] for i in range(3) for j in range(3)) / 9
    colours = 9 * np.moveaxis(near[..., [2, 0, 1]], -1, 1)
    return np.concatenate([colours, np.full_like(colours[:, :1], 4.9)], axis=1)

def classify(images):
    share = (images[:, :8, :, 2].mean(axis=(1, 2)) / 255) ** 2
    return np.stack([share, 1 - share, 0 * share, 0 * share], axis=1)
'''
scope: dict = {}
exec(CODE, scope)
predict = scope["predict"]


def segmenter(size="squash/32x48", function=predict, **options):
    return as_segmenter(lambda images: function(images), labels=LABELS, resize=size, **options)


def street(h=64, w=96):
    """Sky above grass, and a road in the lower half, left of the middle."""
    pixels = np.zeros((h, w, 3), np.uint8)
    pixels[: h // 2], pixels[h // 2 :] = (60, 60, 220), (60, 220, 60)
    pixels[5 * h // 8 :, w // 6 : w // 2] = (220, 60, 60)
    return pixels


@pytest.fixture(scope="module")
def pixel():
    return becausal.explain(street(), segmenter(), at=(30, 50))


@pytest.fixture(scope="module")
def region():
    return becausal.explain(street(), segmenter(), target="road")


def slow_iou(mutant, whole, label):
    own, other = (predict(each[None])[0].argmax(axis=0) == label for each in (mutant, whole))
    return (own & other).sum() / (own | other).sum()


# ---- What is explained


def test_the_pixel_keeps_its_class_with_the_explanation_alone(pixel):
    assert (pixel.label, pixel.target.segment, pixel.target.threshold) == ("road", None, None)
    assert pixel.checks.sufficient
    for level in pixel.levels:
        logits = predict(pixel.mutant(level.visible)[None])[0]
        # The pixel (30, 50) of 96 x 64 is the point (15.25, 25.25) of the view, in the cell (6, 3) of the map.
        assert logits[:, 6, 3].argmax() == 1
        assert level.visible[20:32, 8:20].any()
    assert not pixel.visible[:12].any()  # nothing as far away has any effect


def test_the_segment_is_found_again_with_the_explanation_alone(region):
    assert (region.label, region.target.place, region.target.threshold) == ("road", None, 0.5)
    mask = predict(region.view[None])[0].argmax(axis=0) == 1
    assert np.array_equal(read_segment(region.target.segment), mask)
    for level in region.levels:
        iou = slow_iou(region.mutant(level.visible), region.view, 1)
        assert level.checks.confidence == pytest.approx(iou, abs=1e-6)
        assert iou >= 0.5
    assert region.confidence == 1.0
    assert region.top is region.runner_up is None  # a segment has no rivals


def test_on_a_background_the_segment_is_that_of_the_whole_view(region):
    """Not that of the background: where this is all road, the overlap is low, and counts as lost."""
    engine, target = Engine(segmenter()), region.target
    red = np.broadcast_to(np.array([220, 60, 60], np.uint8), region.view.shape)
    nothing = np.zeros((1, *region.visible.shape), bool)
    answer = target.judge(engine.evaluate(region.view, red, nothing))
    assert answer.confidence[0] == pytest.approx(slow_iou(red, region.view, 1))
    assert not answer.holds[0]


@pytest.mark.parametrize(
    ("at", "label"), [((5, 5), "sky"), ((90, 60), "grass"), ("40,60", "road"), (np.array([40, 60]), "road")]
)
def test_each_pixel_has_the_class_that_the_model_gives_it(at, label):
    assert (
        becausal.explain(street(), segmenter(), at=at, smallest=True, max_calls=40, fills=("black", "white")).label == label
    )


def test_further_questions_about_a_pixel():
    model = segmenter()
    rather = becausal.explain(street(), model, at=(30, 50), against="grass", smallest=True)
    assert (rather.target.against, rather.rival.label) == (2, "grass")
    assert as_text(question(rather)) == f"Why road ({rather.confidence:.2f}) rather than grass?"
    both = becausal.explain(street(), model, at=(30, 50), contrast=True)
    assert both.checks.sufficient
    assert both.checks.necessary
    many = becausal.explain(street(), model, at=(30, 50), seeds=2, several=2, smallest=True)
    assert all(found.checks.sufficient for found in many.sets)
    among = becausal.explain(street(), model, at=(30, 50), target="grass", top=3, smallest=True, fills="black")
    assert (among.label, among.target.top) == ("grass", 3)
    with pytest.raises(TargetError, match=r"does not say grass here: .* grass has rank 3 \(0.01\): ask with --top 3"):
        becausal.explain(street(), model, at=(30, 50), target="grass")


def test_other_methods_explain_both(pixel):
    for asked in ({"at": (30, 50)}, {"target": "road"}):
        found = becausal.explain(street(), segmenter(), method="rise", options={"masks": 60}, smallest=True, **asked)
        assert found.checks.sufficient
    with pytest.raises(ModelError, match="needs the gradient of a class score, and this model gives every pixel a class"):
        becausal.explain(street(), segmenter(), at=(30, 50), method="ig")


# ---- Where the pixel is


@settings(deadline=None, max_examples=150)
@given(
    st.tuples(st.integers(1, 90), st.integers(1, 90)),
    st.sampled_from(["squash", "letterbox", None, 40, (48, 72)]),
    st.data(),
)
def test_a_pixel_of_the_image_is_found_in_the_view(original, resize, data):
    frame = plan_frame(original, Geometry((32, 48), resize, "nearest"))
    y, x = data.draw(st.integers(0, original[0] - 1)), data.draw(st.integers(0, original[1] - 1))
    own = np.zeros(original, bool)
    own[y, x] = True
    # By definition: the middle of the pixel, resized as the image, is at this point of the cut.
    point = [(i + 0.5) * r / o - cut for i, o, r, cut in zip((y, x), original, frame.resized, frame.origin, strict=True)]
    if all(0 <= p < side for p, side in zip(point, (32, 48), strict=True)):
        across, down = find_place(f"{x},{y}", frame)
        assert (down * 32, across * 48) == pytest.approx(point)
        row, column = int(down * 32), int(across * 48)
        seen = np.zeros((32, 48), bool)
        seen[row, column] = True
        if frame.resized >= original and all(abs(p - round(p)) > 1e-6 for p in point):
            assert frame.to_original(seen)[y, x]  # the way back, by another function
    else:
        with pytest.raises(TargetError, match="is cut off"):
            find_place(f"{x},{y}", frame)


@pytest.mark.parametrize("size", [(64, 96), (32, 48), (150, 120), (60, 110)])
@pytest.mark.parametrize("resize", ["squash/32x48", "letterbox/32x48"])
def test_the_explanation_is_around_the_pixel_in_images_of_any_size(size, resize):
    (h, w), model = size, segmenter(resize)
    for x, y, label in ((w // 2, h // 5, "sky"), (w // 3, 4 * h // 5, "road"), (4 * w // 5, 4 * h // 5, "grass")):
        found = becausal.explain(street(h, w), model, at=(x, y), smallest=True, fills="black")
        assert found.label == label
        rows, columns = np.nonzero(found.on_original(found.visible))
        reach = 2.5 * SIDE * max(found.frame.scale)  # of the cells around that of the pixel
        assert np.abs(rows - y).max() <= reach
        assert np.abs(columns - x).max() <= reach


def test_a_pixel_that_the_model_does_not_see():
    model = segmenter("32/32x32")
    with pytest.raises(
        TargetError, match="the pixel 2,30 is cut off: the model sees the centre of the image; use --resize squash"
    ):
        becausal.explain(street(), model, at=(2, 30))
    assert becausal.explain(street(), model, at=(30, 50), smallest=True, max_calls=60, fills="black").label == "road"
    with pytest.raises(TargetError, match="there is no pixel 96,3 in an image of 96 x 64"):
        becausal.explain(street(), model, at=(96, 3))


@pytest.mark.parametrize("value", ["", "1", "1,2,3", "a,b", "-1,2", "1.5,2", (1.5, 2), (1,), 7, None, {}, "9" * 5000 + ",1"])
def test_what_is_no_place(value):
    if value is None:
        assert Request(at=value).at is None
        return
    with pytest.raises(OptionError, match="a place is x,y in whole pixels of the image"):
        Request(at=value)


def test_a_place_in_json_and_in_forms():
    assert Request.from_record({"at": [30, 50]}) == Request.from_record({"at": "30, 50"}) == Request(at=(30, 50))
    assert bodies.read_texts("at", ["30,50"]) == "30,50"


# ---- Several at a time


def test_answers_for_different_places_and_segments_are_never_mixed():
    """The same view with the same sets, at the same time, in one engine: as each of them alone."""
    requests = [Request(smallest=True, fills=("black",), **asked) for asked in (
        {"at": (30, 50)}, {"at": (5, 5)}, {"target": "road"}, {"target": "sky"}, {"at": (90, 27)}, {"target": "grass"},
    )]  # fmt: skip
    images = [street(), street(), street(), street(), street(32, 96), street(32, 96)]
    alone = [
        next(becausal.explain_many([image], segmenter(), request=request))
        for image, request in zip(images, requests, strict=True)
    ]
    assert len({each.visible.tobytes() for each in alone[:4]}) == 4
    for width, batch_size in ((1, 32), (3, 7), (6, 32)):
        engine = Engine(segmenter(), batch_size=batch_size)
        queue = ImageQueue(zip(images, requests, strict=True), engine)
        found = dict(queue.run(Budget.of(requests[0]), width=width))
        for number, one in enumerate(alone):
            assert np.array_equal(found[number].visible, one.visible)
            assert found[number].target == one.target
            assert found[number].confidence == one.confidence
            assert found[number].calls == one.calls


def test_one_pixel_in_images_of_several_sizes():
    images = [street(), street(32, 48), street(200, 300), street(9, 9)]
    request = Request(at=(20, 10), smallest=True, fills=("black",))
    found = dict(explain_numbered(images, segmenter(), request=request, width=3))
    places = [each.target.place for each in (found[0], found[1], found[2])]
    assert places == [(20.5 / 96, 10.5 / 64), (20.5 / 48, 10.5 / 32), (20.5 / 300, 10.5 / 200)]
    assert "there is no pixel 20,10 in an image of 9 x 9" in str(found[3].error)


@pytest.mark.parametrize("asked", [{"at": (30, 50)}, {"target": "road"}])
def test_every_image_that_the_network_sees_is_counted(asked):
    rows = []

    def counted(images):
        rows.append(len(images))
        return predict(images)

    model = segmenter(function=counted)
    before = sum(rows)
    explanation = becausal.explain(street(), model, smallest=True, fills="black", **asked)
    assert sum(rows) - before == explanation.calls


# ---- Records and claims


def test_records_are_read_back(pixel, region, tmp_path):
    for name, explanation in (("pixel", pixel), ("region", region)):
        explanation.save(tmp_path / name)
        loaded = Explanation.load(tmp_path / name)
        assert loaded.target == explanation.target
        assert loaded.origin.request == explanation.origin.request
        assert as_text(headline(loaded)) == as_text(headline(explanation))
        claims = becausal.verify(loaded, segmenter(), image=street())
        assert all(claim.holds for claim in claims), [claim for claim in claims if not claim.holds]
    assert pixel.origin.request.at == "30,50"


def test_a_record_from_before_has_neither(pixel, tmp_path):
    plain = becausal.explain(street(), as_classifier(scope["classify"], labels=LABELS, resize="squash/32x48"), smallest=True)
    plain.save(tmp_path / "old")
    path = tmp_path / "old" / "explanation.json"
    record = json.loads(path.read_text())
    del record["target"]["place"], record["target"]["segment"], record["origin"]["request"]["at"]
    path.write_text(json.dumps(record))
    loaded = Explanation.load(tmp_path / "old")
    assert (loaded.target.place, loaded.target.segment, loaded.origin.request.at) == (None, None, None)


def test_what_was_changed_in_a_record_is_found(pixel, region, tmp_path):
    moved = write_segment(np.roll(read_segment(region.target.segment), 2, axis=1))
    for name, explanation, change in (("pixel", pixel, {"place": [0.5, 0.1]}), ("region", region, {"segment": moved})):
        explanation.save(tmp_path / name)
        path = tmp_path / name / "explanation.json"
        record = json.loads(path.read_text())
        record["target"] |= change
        path.write_text(json.dumps(record))
        claims = becausal.verify(Explanation.load(tmp_path / name), segmenter())
        assert any(claim.name.startswith("target.") for claim in claims if not claim.holds)


def test_a_segment_that_is_rounded_otherwise_still_verifies(region):
    mask = np.ones((60, 60), bool)
    mask[0, 0] = False

    def other(images):
        maps = np.zeros((len(images), 4, 60, 60), np.float32)
        maps[:, 1] = np.where(images.mean(axis=(1, 2, 3))[:, None, None] > 20, 1.0, -1.0)
        maps[:, 1, 0, 0] = -1.0
        return maps

    found = becausal.explain(street(), segmenter(function=other), target="road", smallest=True, fills="black")
    whole = replace(found, target=replace(found.target, segment=write_segment(np.ones((60, 60), bool))))
    claims = becausal.verify(replace(whole, confidence=1.0), segmenter(function=other))
    assert not [claim for claim in claims if claim.name.startswith("target") and not claim.holds]


def test_another_kind_of_model_is_refused(pixel, region):
    classifier = as_classifier(scope["classify"], labels=LABELS, resize="squash/32x48")
    for explanation in (pixel, region):
        with pytest.raises(
            ModelError, match="a model that gives every pixel a class was explained, and this model is a classifier"
        ):
            becausal.verify(explanation, classifier)
    plain = becausal.explain(street(), classifier, smallest=True)
    with pytest.raises(
        ModelError, match="a classifier was explained, and this model is a model that gives every pixel a class"
    ):
        becausal.verify(plain, segmenter())


# ---- What is refused


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "say which segment with --target, or which pixel with --at X,Y; the model sees sky, grass, road, nothing"),
        ({"target": "raod"}, "road"),
        ({"target": "road", "top": 2}, "top and against compare the classes of one pixel: say which with --at X,Y"),
        ({"target": "road", "against": "sky"}, "top and against compare the classes of one pixel"),
        ({"box": 1}, "box is for object detectors, and this model gives every pixel a class"),
    ],
)
def test_questions_without_an_answer(asked, message):
    with pytest.raises((TargetError, OptionError), match=message):
        becausal.explain(street(), segmenter(), **asked)


def test_a_class_that_is_not_there():
    with pytest.raises(TargetError, match="the model sees no road in this image; it sees sky, grass"):
        becausal.explain(street()[:, 60:], segmenter(), target="road")


@pytest.mark.parametrize("model", ["bundled", "bundled:detector"])
def test_a_place_is_for_these_models_only(model):
    with pytest.raises(OptionError, match="at is for models that give every pixel a class: load it as segment:"):
        becausal.explain(street(), model, at=(1, 1))


def test_detecting_and_all_boxes(tmp_path):
    with pytest.raises(ModelError, match="boxes are found by an object detector"):
        becausal.detect(street(), segmenter())
    ((_, answer),) = becausal.explain_boxes(street(), segmenter())
    assert "boxes are found by an object detector" in str(answer.error)


def test_what_is_found_in_the_fully_masked_image():
    green = street()
    green[:] = (60, 200, 60)
    always = as_segmenter(
        lambda images: np.zeros((len(images), 2, 8, 12)) + np.array([0.0, 2.0])[:, None, None],
        labels=["a", "b"],
        resize="squash/32x48",
    )
    with pytest.raises(becausal.core.errors.FillError, match="the model still finds this segment in the fully masked image"):
        becausal.explain(green, always, target="b")
    with pytest.raises(becausal.core.errors.FillError, match="ask for another pixel with --at"):
        becausal.explain(green, always, at=(1, 1))


# ---- Words, pictures and the page


def test_the_words(pixel, region):
    said = as_text(headline(pixel))
    assert said.startswith(f"The model gives the pixel (30, 50) the class road ({pixel.confidence:.2f}). ")
    assert "of the pixels are enough: they keep this class on at least 90 % of random backgrounds" in said
    assert as_text(question(pixel)) == f"Why is the pixel (30, 50) road ({pixel.confidence:.2f})?"
    assert describe_target(pixel).startswith("road stays the class of the pixel (30, 50), with a confidence of at least 0.")
    said = as_text(headline(region))
    assert said.startswith(
        f"The model gives {100 * read_segment(region.target.segment).mean():.2g} % of the image the class road. "
    )
    assert "they keep this segment (IoU at least 0.5) on at least 90 % of random backgrounds" in said
    assert f"keep this segment (IoU {region.levels[0].checks.confidence:.2f}) with everything else in the plain fill" in said
    assert as_text(question(region)) == "Why the segment road?"
    assert describe_target(region) == "road still has this segment (IoU at least 0.9)"
    row, column = np.argwhere(region.visible)[0]
    assert "the segment" in region.why(int(row), int(column)).text


def differing(explanation, sheet):
    """Where the picture differs from that of the same explanation without a place or a segment, as rows and columns."""
    target = replace(explanation.target, place=None, segment=None)
    lay = lay_out if sheet.image.shape[:2] == explanation.visible.shape else lay_out_original
    plain = paint_image(lay(replace(explanation, target=target)))
    return np.argwhere((paint_image(sheet) != plain).any(axis=-1)) / plain.shape[:2]


@pytest.mark.parametrize("lay", [lay_out, lay_out_original])
def test_a_ring_is_drawn_around_the_pixel(pixel, lay):
    marked = differing(pixel, lay(pixel))
    assert marked.mean(axis=0) == pytest.approx([50.5 / 64, 30.5 / 96], abs=0.01)
    assert np.ptp(marked, axis=0).max() < 0.1


@pytest.mark.parametrize("lay", [lay_out, lay_out_original])
def test_the_segment_is_outlined(region, lay):
    marked, rows = differing(region, lay(region)), np.argwhere(read_segment(region.target.segment))
    h, w = read_segment(region.target.segment).shape
    assert marked.min(axis=0) == pytest.approx(rows.min(axis=0) / (h, w), abs=0.02)
    assert marked.max(axis=0) == pytest.approx((rows.max(axis=0) + 1) / (h, w), abs=0.02)


def test_the_page_asks_for_a_segment_by_its_label():
    image, model, limits = becausal.images.loading.load_image(street()), segmenter(), Limits()
    labels, _ = predict_image(image, model)
    assert [name for _, name, _ in labels[:3]] == ["sky", "grass", "road"]
    assert [share for _, _, share in labels] == [share for _, _, share in becausal.classify(street(), model)]
    assert sum(share for _, _, share in labels) == pytest.approx(1.0)
    for rank, (label, _, _) in enumerate(labels, start=1):
        asked = make_request({"label": str(label), "rank": str(rank)}, model, None, limits)
        assert (asked.target, asked.top) == (label, 1)
    assert "at" not in plain_controls()


def test_the_page_says_what_a_masked_image_is(pixel, region):
    shown = np.stack([np.ones_like(region.visible), np.zeros_like(region.visible)])
    for explanation, words in ((region, ["road", "segment not found"]), (pixel, ["road", "nothing"])):
        found = predict_masked(explanation, segmenter(), shown, explanation.backgrounds[0], 0.0)
        assert [one.label for one in found] == words
        assert [one.holds for one in found] == [True, False]
        assert found[0].confidence == pytest.approx(explanation.confidence)


# ---- The command line


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(CODE)
    Image.fromarray(street()).save("street.png")
    return tmp_path


def test_explain_compare_and_verify(place, capsys):
    model = ["--model", "segment:python:net.py:predict"]
    assert main(["explain", "street.png", *model, "--at", "30,50", "--smallest", "--out", "out"]) == 0
    assert "The model gives the pixel (30, 50) the class road" in capsys.readouterr().out
    assert main(["verify", "out/street", *model]) == 0
    assert "road (30, 50), street.png" in capsys.readouterr().out
    report = (place / "out/street/report.html").read_text()
    assert "Why is the pixel (30, 50)" in report
    assert "--at 30,50" in report
    quick = ["--methods", "rise,occlusion", "--max-calls", "60"]
    assert main(["compare", "street.png", *model, "--target", "road", *quick, "--out", "both"]) == 0
    (page,) = (place / "both").rglob("*.html")
    assert "IoU of the segment" in page.read_text()


def test_a_batch_explains_the_same_pixel_of_each_image(place, capsys):
    (place / "set").mkdir()
    for number, size in enumerate([(64, 96), (128, 96)]):
        Image.fromarray(street(*size)).save(place / "set" / f"{number}.png")
    words = [
        "batch",
        "set",
        "--model",
        "segment:python:net.py:predict",
        "--at",
        "30,60",
        "--fill",
        "black",
        "--smallest",
        "--out",
        "run",
    ]
    assert main(words) == 0
    found = [Explanation.load(path.parent) for path in sorted((place / "run").rglob("explanation.json"))]
    assert [each.label for each in found] == ["road", "sky"]
    assert [each.target.place for each in found] == [(30.5 / 96, 60.5 / 64), (30.5 / 96, 60.5 / 128)]
