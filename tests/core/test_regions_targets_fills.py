"""The pure parts: boxes and cells of a grid, the rule behind an answer, what hidden pixels become."""

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal.core.errors import FillError, MissingExtraError, TargetError
from becausal.core.regions import Region, box_blur, cells, count_components, cut, default_grain, split, whole
from becausal.core.targets import Target
from becausal.images.fills import FILLS, make_background, span

seeds = st.integers(0, 2**32 - 1)
grids = st.lists(st.integers(1, 13), min_size=1, max_size=3).map(tuple)


# Regions


@given(grids, st.integers(1, 9), seeds)
@settings(max_examples=150, deadline=None)
def test_split_is_a_partition_into_boxes(grid, parts, seed):
    boxes = split(whole(grid), parts, np.random.default_rng(seed))
    painted = np.zeros(grid, int)
    for box in boxes:
        assert box.size == painted[box.slices].size >= 1
        assert painted[box.slices].shape == box.shape
        painted[box.slices] += 1
    assert (painted == 1).all()
    assert len(boxes) == min(parts, int(np.prod(grid)))


@given(st.integers(2, 60), st.integers(2, 60), seeds)
@settings(max_examples=60, deadline=None)
def test_a_cut_goes_across_the_longest_side_and_not_near_an_edge(h, w, seed):
    rng = np.random.default_rng(seed)
    first, second = split(whole((h, w)), 2, rng)
    axis = 0 if h >= w else 1
    for box in (first, second):
        assert box.shape[1 - axis] == (h, w)[1 - axis]  # cut across the longest side
        assert box.shape[axis] >= max(1, (h, w)[axis] // 4)


def test_split_draws_every_cut_there_is():
    cuts = {split(whole((12,)), 2, np.random.default_rng(seed))[0].stop[0] for seed in range(200)}
    assert cuts == {3, 4, 5, 6, 7, 8, 9}  # from a quarter to three quarters


def test_split_of_a_part_stays_inside_it():
    region = Region((3, 5), (9, 11))
    for box in split(region, 5, np.random.default_rng(0)):
        assert all(a >= b for a, b in zip(box.start, region.start, strict=True))
        assert all(a <= b for a, b in zip(box.stop, region.stop, strict=True))


def test_cut_and_whole():
    region = whole((4, 6))
    assert (region.shape, region.size) == ((4, 6), 24)
    assert cut(region, 1, 2) == (Region((0, 0), (4, 2)), Region((0, 2), (4, 6)))


@given(grids, st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_cells_number_boxes_of_the_grain_row_by_row(grid, grain):
    found = cells(grid, grain)
    counts = [-(-side // grain) for side in grid]
    for place in np.ndindex(*grid):
        wanted = np.ravel_multi_index([p // grain for p in place], counts)
        assert found[place] == wanted
    assert set(found.ravel()) == set(range(int(np.prod(counts))))


def test_default_grain_is_a_28th_of_the_longest_side():
    grids = [(224, 224), (4, 4), (128, 128), (100, 448), (2000,)]
    assert [default_grain(grid) for grid in grids] == [8, 1, 5, 16, 71]
    assert [default_grain(grid, 56) for grid in grids] == [4, 1, 2, 8, 36]


def flood(visible):
    """Connected pieces, one pixel at a time."""
    left = {tuple(int(i) for i in p) for p in np.argwhere(visible)}
    count = 0
    while left:
        count += 1
        todo = [left.pop()]
        while todo:
            at = todo.pop()
            for axis in range(visible.ndim):
                for move in (-1, 1):
                    near = (*at[:axis], at[axis] + move, *at[axis + 1 :])
                    if near in left:
                        left.remove(near)
                        todo.append(near)
    return count


@given(grids, seeds, st.sampled_from([0.2, 0.5, 0.7]))
@settings(max_examples=100, deadline=None)
def test_pieces_are_those_of_a_naive_flood(grid, seed, share):
    visible = np.random.default_rng(seed).random(grid) < share
    before = visible.copy()
    assert count_components(visible) == flood(visible)
    assert (visible == before).all()


def test_pieces_that_touch_by_a_corner_or_across_an_edge_are_two():
    assert count_components(np.eye(3, dtype=bool)) == 3
    assert count_components(np.array([[0, 0, 1], [1, 0, 0]], bool)) == 2  # neighbours in memory, not in the image
    assert count_components(np.zeros((3, 3), bool)) == 0
    assert count_components(np.ones((3, 3), bool)[::-1, ::2]) == 1


# Targets

#: Scores from a coarse scale, so that ties are common.
tables = st.integers(2, 6).flatmap(
    lambda classes: st.lists(
        st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.3, 0.5, 0.9, 1.0]), min_size=classes, max_size=classes),
        min_size=1,
        max_size=6,
    )
)


def naive_rank(row, label):
    """How many labels come before this one: higher scores, and equal ones of a lower number."""
    order = sorted(range(len(row)), key=lambda i: (-row[i], i))
    return order.index(label)


@given(tables, st.data())
@settings(max_examples=200, deadline=None)
def test_judge_is_the_rule_row_by_row(table, data):
    scores = np.array(table, np.float32)
    classes = scores.shape[1]
    label = data.draw(st.integers(0, classes - 1))
    top = data.draw(st.integers(1, classes + 1))
    floor = data.draw(st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0]))
    rival = data.draw(st.sampled_from([None, *(i for i in range(classes) if i != label)]))
    threshold = data.draw(st.sampled_from([None, 0.25, 0.5]))
    target = Target(label, top=1 if rival is not None else top, floor=floor, threshold=threshold, against=rival)
    answers = target.judge(scores)
    for row, holds, margin, confidence in zip(
        scores.tolist(), answers.holds, answers.margin, answers.confidence, strict=True
    ):
        wanted = row[label] >= floor
        if threshold is not None:
            wanted = wanted and row[label] >= threshold
        if rival is not None:
            wanted = wanted and (row[label] > row[rival] or (row[label] == row[rival] and label < rival))
        if threshold is None and rival is None:
            wanted = wanted and naive_rank(row, label) < top
        assert bool(holds) == wanted
        assert (margin >= 0) == wanted
        assert np.isfinite(margin)
        assert confidence == row[label]


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_margins_are_logarithms_of_how_far_ahead(seed):
    rng = np.random.default_rng(seed)
    scores = rng.dirichlet(np.full(5, 0.3), 8).astype(np.float32)
    label = int(rng.integers(5))
    mine = np.maximum(scores[:, label].astype(float), 1e-30)
    others = np.sort(np.delete(scores, label, axis=1).astype(float), axis=1)
    for top in (1, 2, 4):
        wanted = np.log(mine) - np.log(np.maximum(others[:, -top], 1e-30))
        np.testing.assert_allclose(Target(label, top=top).judge(scores).margin, wanted, rtol=1e-6, atol=1e-9)
    floored = Target(label, floor=0.3).judge(scores).margin
    wanted = np.minimum(np.log(mine) - np.log(np.maximum(others[:, -1], 1e-30)), np.log(mine / 0.3))
    np.testing.assert_allclose(floored, wanted, rtol=1e-6, atol=1e-9)


def test_a_tie_for_the_top_goes_to_the_lower_number_as_argmax_has_it():
    scores = np.array([[0.4, 0.4, 0.2]], np.float32)
    assert scores.argmax() == 0
    assert Target(0).judge(scores).holds[0]
    assert not Target(1).judge(scores).holds[0]
    assert Target(1, top=2).judge(scores).holds[0]


def test_labels_alone_are_judged_as_yes_or_no():
    answers = Target(2).judge(np.array([2, 0, 2]))
    assert answers.holds.tolist() == [True, False, True]
    assert answers.margin.tolist() == [1.0, -1.0, 1.0]
    assert np.isnan(answers.confidence).all()


def test_a_rival_is_heeded_where_labels_are_independent():
    # Both are above the threshold, but the rival is ahead.
    target = Target(0, threshold=0.5, against=1)
    assert not target.judge(np.array([[0.6, 0.9]], np.float32)).holds[0]
    assert target.judge(np.array([[0.9, 0.6]], np.float32)).holds[0]


@pytest.mark.parametrize("options", [{"label_id": -1}, {"top": 0}, {"floor": 1.5}, {"floor": -0.1}, {"against": 3}])
def test_targets_that_make_no_sense_are_refused(options):
    with pytest.raises(TargetError):
        Target(**{"label_id": 3, **options})


# Fills

VIEWS = {
    "picture": np.random.default_rng(0).integers(0, 256, (24, 30, 3)).astype(np.uint8),
    "grey image": np.random.default_rng(1).integers(0, 256, (20, 24, 1)).astype(np.uint8),
    "signal": np.random.default_rng(2).normal(3.0, 2.0, (50, 1)).astype(np.float32),
    "volume": np.random.default_rng(3).normal(size=(6, 7, 8, 2)),
    "counts": np.random.default_rng(4).integers(-500, 500, (9, 1)).astype(np.int16),
    "flat signal": np.full((12, 1), 4.0, np.float32),
    "pixel": np.full((1, 1, 3), 9, np.uint8),
}
PLAIN = [name for name in FILLS if name != "inpaint"]


def make(fill, view, seed=0):
    return make_background(fill, view, rng=np.random.default_rng(seed))


@pytest.mark.parametrize("fill", [*PLAIN, "77"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_background_has_the_views_shape_and_type_and_is_the_same_each_time(fill, name):
    view = VIEWS[name]
    before = view.copy()
    background = make(fill, view)
    assert background.shape == view.shape
    assert background.dtype == view.dtype
    assert np.isfinite(background.astype(float)).all()
    assert (make(fill, view) == background).all()
    assert (view == before).all()
    low, high = span(view) if fill != "77" else (77, 77)
    assert background.min() >= np.floor(low)
    assert background.max() <= high


def test_colours_of_pictures():
    view = VIEWS["picture"]
    for fill, colour in {
        "black": (0, 0, 0),
        "grey": (128, 128, 128),
        "white": (255, 255, 255),
        "#0a80fF": (10, 128, 255),
        "1,2,3": (1, 2, 3),
        "200": (200, 200, 200),
        "mean": tuple(np.rint(view.reshape(-1, 3).mean(axis=0)).astype(int)),
    }.items():
        assert (make(fill, view) == np.array(colour, np.uint8)).all(), fill


def test_colours_of_float_signals_lie_in_their_own_range():
    view = np.array([-1.0, 0.0, 3.0], np.float32)[:, None]
    assert span(view) == (-1.0, 3.0)
    assert make("black", view).ravel().tolist() == [-1.0] * 3
    assert make("white", view).ravel().tolist() == [3.0] * 3
    np.testing.assert_allclose(make("grey", view), -1 + 4 * 128 / 255, rtol=1e-6)
    np.testing.assert_allclose(make("mean", view), 2 / 3, rtol=1e-6)


def test_numbers_are_in_the_own_units_of_signals_and_volumes():
    view = np.array([-1.0, 0.0, 3.0], np.float32)[:, None]
    for fill in ("0", "0.0", "-0.25", "+2", "1e-3", ".5", "400", "-1e30"):
        assert (make(fill, view) == np.float32(fill)).all(), fill
    assert make("0.5,-2", VIEWS["volume"])[0, 0, 0].tolist() == [0.5, -2.0]
    assert (make("-7", VIEWS["counts"]) == -7).all()
    for fill, name in (("0.5", "counts"), ("40000", "counts"), ("1e60", "signal"), ("nan", "signal"), ("inf", "signal")):
        with pytest.raises(FillError):
            make(fill, VIEWS[name])
    with pytest.raises(FillError, match=r"^the fill 256 does not fit 3 channels of 0\.\.255$"):
        make("256", VIEWS["picture"])
    for number in ("90", "90.0", "9e1"):
        assert (make(number, VIEWS["picture"]) == 90).all()


def test_noise_hangs_on_its_seed_and_fills_the_range():
    view = VIEWS["picture"]
    assert (make("noise", view, 0) != make("noise", view, 1)).any()
    noise = make("noise", np.zeros((64, 64, 3), np.uint8))
    assert noise.min() <= 2
    assert noise.max() >= 253
    assert abs(float(noise.mean()) - 127.5) < 3
    signal = make("noise", VIEWS["signal"])
    assert VIEWS["signal"].min() <= signal.min() < signal.max() <= VIEWS["signal"].max()


@given(st.integers(1, 20), st.integers(1, 8), seeds)
@settings(max_examples=40, deadline=None)
def test_box_blur_is_the_mean_of_neighbours_edges_repeated(length, radius, seed):
    values = np.random.default_rng(seed).normal(size=(length, 2))
    wanted = [
        [np.mean([values[min(max(i + d, 0), length - 1), c] for d in range(-radius, radius + 1)]) for c in range(2)]
        for i in range(length)
    ]
    np.testing.assert_allclose(box_blur(values, radius, 0), wanted, atol=1e-12)


def test_blur_leaves_no_detail_and_keeps_the_mean_colour_of_places():
    board = np.indices((60, 60)).sum(axis=0) % 2 * 255
    view = np.repeat(board[..., None], 3, axis=2).astype(np.uint8)
    blurred = make("blur", view).astype(int)
    assert np.ptp(blurred[10:-10, 10:-10]) <= 4
    halves = np.zeros((60, 60, 3), np.uint8)
    halves[:, 30:] = 200
    blurred = make("blur", halves).astype(int)
    assert (blurred[:, :3] <= 5).all()
    assert (blurred[:, -3:] >= 195).all()
    assert (blurred[0] == blurred[-1]).all()  # nothing is smeared along the other axis


@pytest.mark.parametrize(
    "fill", ["", "pink", "#12345", "#gggggg", "1,2", "1,2,3,4", "256", "1,2,999", "-1", "1.5", "image:x.png", "Grey"]
)
def test_unknown_fills_are_refused(fill):
    with pytest.raises(FillError):
        make(fill, VIEWS["picture"])


def test_a_colour_must_fit_the_channels():
    with pytest.raises(FillError, match="1 channels"):
        make("1,2,3", VIEWS["signal"])
    with pytest.raises(FillError, match="1 channels"):
        make("#010203", VIEWS["grey image"])


def test_another_picture_as_the_fill():
    view = VIEWS["picture"]
    other = view[::-1].copy()
    asked = []

    def read(path):
        asked.append(path)
        return other

    background = make_background("image:some/where.png", view, rng=np.random.default_rng(0), read_image=read)
    assert asked == ["some/where.png"]
    assert (background == other).all()
    with pytest.raises(FillError, match="shape"):
        make_background("image:x", view, rng=np.random.default_rng(0), read_image=lambda path: view[1:])


def test_inpaint_is_for_pictures_and_says_what_it_needs():
    with pytest.raises(FillError, match="images only"):
        make("inpaint", VIEWS["signal"])
    if find_spec("cv2") is None:
        with pytest.raises(MissingExtraError, match=r"pip install .*\[inpaint\]"):
            make("inpaint", VIEWS["picture"])


@pytest.mark.parametrize("name", ["picture", "grey image"])
def test_inpaint_gives_each_pixel_what_its_surroundings_suggest(name):
    pytest.importorskip("cv2", reason="opencv is not installed")
    view = VIEWS[name]
    background = make("inpaint", view)
    assert background.shape == view.shape
    assert background.dtype == view.dtype
    assert (make("inpaint", view) == background).all()
    assert (background != view).mean() > 0.8
    ramp = np.repeat(np.arange(0, 240, 4, dtype=np.uint8)[None, :, None], 60, axis=0)
    assert np.abs(make("inpaint", ramp).astype(int) - ramp).mean() < 20
