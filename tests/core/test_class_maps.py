"""Maps of classes: what is read of one place and of a segment, against its definition, written a second time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from becausal.core.errors import TargetError
from becausal.core.segments import (
    find_class,
    measure_classes,
    measure_overlap,
    read_place,
    read_segment,
    stretch_segment,
    write_segment,
)
from becausal.core.targets import Target

#: Few values, so that there are ties.
MAPS = st.tuples(st.integers(1, 3), st.integers(2, 4), st.integers(1, 5), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=st.integers(-3, 3).map(float))
)
MASKS = st.tuples(st.integers(1, 6), st.integers(1, 6)).flatmap(lambda shape: arrays(np.bool_, shape))


def classes_of(map_):
    """The class of each cell of one map, (h, w): the highest logit, the first of equal ones."""
    classes, h, w = map_.shape
    return [[max(range(classes), key=lambda k: (map_[k, i, j], -k)) for j in range(w)] for i in range(h)]


def slow_overlap(map_, whole, label):
    """Cells that have the class in both maps, over those that have it in one or both."""
    a = {(i, j) for i, row in enumerate(classes_of(map_)) for j, each in enumerate(row) if each == label}
    b = {(i, j) for i, row in enumerate(classes_of(whole)) for j, each in enumerate(row) if each == label}
    return len(a & b) / len(a | b)


def slow_place(map_, across, down):
    """The probabilities at a point: each logit is known in the middles of the cells, and linear between them."""
    classes, h, _ = map_.shape

    def between(values, share):
        at = min(max(share * len(values) - 0.5, 0), len(values) - 1)
        low = math.floor(at)
        return values[low] + (at - low) * (values[min(low + 1, len(values) - 1)] - values[low])

    logits = [between([between([float(v) for v in map_[k, i]], across) for i in range(h)], down) for k in range(classes)]
    total = sum(math.exp(logit) for logit in logits)
    return [math.exp(logit) / total for logit in logits]


@given(MAPS, st.data())
def test_a_segment_is_judged_by_its_intersection_over_union(maps, data):
    whole = maps[0]
    label = data.draw(st.sampled_from(sorted({each for row in classes_of(whole) for each in row})))
    threshold = data.draw(st.sampled_from([0.3, 0.5, 0.9]))
    target = Target(label, threshold=threshold, segment=write_segment(find_class(maps[:1], label)[0]))
    judged = target.judge(maps)
    expected = [slow_overlap(each, whole, label) for each in maps]
    assert judged.confidence == pytest.approx(expected, abs=1e-6)
    clear = [abs(value - threshold) > 1e-6 for value in expected]
    assert [bool(h) for h, c in zip(judged.holds, clear, strict=True) if c] == [
        value >= threshold for value, c in zip(expected, clear, strict=True) if c
    ]
    assert judged.holds[0]
    assert judged.confidence[0] == 1.0


@given(MAPS, st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True), st.data())
def test_a_place_has_the_probabilities_of_the_classes_there(maps, across, down, data):
    expected = [slow_place(each, across, down) for each in maps]
    assert read_place(maps, (across, down)) == pytest.approx(np.array(expected), abs=1e-5)
    label = data.draw(st.integers(0, maps.shape[1] - 1))
    judged = Target(label, place=(across, down)).judge(maps)
    assert judged.confidence == pytest.approx([row[label] for row in expected], abs=1e-5)
    others = [max(value for k, value in enumerate(row) if k != label) for row in expected]
    for holds, row, other in zip(judged.holds, expected, others, strict=True):
        if abs(row[label] - other) > 1e-5:
            assert holds == (row[label] > other)


@pytest.mark.parametrize(("h", "w", "times"), [(4, 6, 4), (3, 5, 7), (1, 2, 3)])
def test_a_pixel_has_the_class_that_maps_enlarged_as_usual_give_it(h, w, times):
    torch = pytest.importorskip("torch")
    maps = np.random.default_rng(0).normal(size=(2, 3, h, w)).astype(np.float32)
    size = (h * times, w * times)
    large = torch.nn.functional.interpolate(torch.from_numpy(maps), size=size, mode="bilinear", align_corners=False)
    expected = torch.softmax(large, 1).numpy()
    for i in range(size[0]):
        for j in range(size[1]):
            found = read_place(maps, ((j + 0.5) / size[1], (i + 0.5) / size[0]))
            assert found == pytest.approx(expected[:, :, i, j], abs=1e-5)


@given(MAPS)
def test_every_cell_has_one_class(maps):
    found = np.stack([find_class(maps, label) for label in range(maps.shape[1])])
    assert (found.sum(axis=0) == 1).all()
    assert found.argmax(axis=0).tolist() == [classes_of(each) for each in maps]
    assert measure_classes(maps) == pytest.approx(found.mean(axis=(2, 3)).T, abs=1e-6)


@given(MASKS)
def test_a_segment_is_read_back_from_its_text(mask):
    text = write_segment(mask)
    if mask.any():
        assert np.array_equal(read_segment(text), mask)
        assert measure_overlap(mask[None], text).tolist() == [1.0]
    else:
        with pytest.raises(TargetError):
            read_segment(text)


def test_a_segment_as_text():
    assert write_segment(np.array([[0, 1, 1], [0, 0, 0]], bool)) == "2x3:1,2,3"
    assert write_segment(np.ones((2, 2), bool)) == "2x2:0,4"


@given(MASKS, st.integers(1, 9), st.integers(1, 9))
def test_a_segment_over_the_view_has_the_cell_under_the_middle_of_each_pixel(mask, h, w):
    mask = mask.copy()
    mask[0, 0] = True
    found = stretch_segment(write_segment(mask), (h, w))
    rows, columns = mask.shape
    for i in range(h):
        for j in range(w):
            assert found[i, j] == mask[math.floor((i + 0.5) / h * rows), math.floor((j + 0.5) / w * columns)]


@pytest.mark.parametrize(
    "text",
    ["", "2x3", "2x3:", "2x3:6", "2x3:1,2", "2x3:1,2,4", "2x3:1,-1,6", "x:1", "-2x-3:1,2,3", "0x0:0,0", "2x3:a,b",
     "99999999x99999999:1,9999999799999999", "2x3x1:1,2,3", "3x:3,0"],
)  # fmt: skip
def test_other_texts_are_no_segments(text):
    with pytest.raises(TargetError, match="a segment is a height, a width and runs"):
        Target(0, threshold=0.5, segment=text)


@pytest.mark.parametrize("place", [(1.0, 0.0), (0.0, -0.1), (float("nan"), 0.0), (0.5, float("inf"))])
def test_a_place_outside_of_the_view_is_refused(place):
    with pytest.raises(TargetError, match="a place lies in the view"):
        Target(0, place=place)


def test_maps_of_another_model_never_hold():
    target = Target(1, threshold=0.5, segment="2x2:0,4")
    assert not target.judge(np.ones((1, 3, 4, 4), np.float32)).holds[0]  # of another size
    assert not Target(7, threshold=0.5, segment="2x2:0,4").judge(np.ones((1, 3, 2, 2), np.float32)).holds[0]
    assert not Target(7, place=(0.5, 0.5)).judge(np.ones((1, 3, 2, 2), np.float32)).holds[0]
