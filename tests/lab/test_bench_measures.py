"""Metrics, statistics, tables and packed rows of the benches, on small cases."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal import Request
from becausal.core.metrics import iou, overlap, pieces_found, points_inside, rank_agreement, ranks, recall, top_pixels
from becausal.lab.base import format_command
from becausal.lab.exact import exact_responsibilities, label_table, random_scores, trained_scores
from becausal.lab.rows import count_failures, group_rows, pack_map, pack_set, unpack_map, unpack_set
from becausal.lab.tables import (
    Column,
    Estimate,
    Measure,
    best_rows,
    compare_paired,
    cumulative_plot,
    difference_of_means,
    estimate,
    estimate_share,
    format_cell,
    holm_adjust,
    measure_table,
    paired_table,
)
from becausal.methods.causal.exact import responsibilities


def mask(*rows: str) -> np.ndarray:
    """A set drawn with # and dots."""
    return np.array([[c == "#" for c in row] for row in rows])


LEFT, MIDDLE = mask("##..", "##.."), mask(".##.", ".##.")


def test_overlap_recall_and_iou_of_two_squares():
    assert overlap(LEFT, MIDDLE) == 0.5
    assert recall(LEFT, mask("#...", "....")) == 1.0
    assert recall(LEFT, MIDDLE) == 0.5
    assert iou(LEFT, MIDDLE) == pytest.approx(2 / 6)
    assert iou(LEFT, LEFT) == 1.0
    nothing = np.zeros((2, 4), bool)
    assert (overlap(nothing, LEFT), recall(LEFT, nothing), iou(nothing, LEFT), iou(nothing, nothing)) == (0, 0, 0, 1)


def test_the_pointing_game_shares_a_tie():
    values = np.array([[0.0, 3.0, 3.0, 1.0]])
    assert points_inside(values, mask(".##.")) == 1.0
    assert points_inside(values, mask(".#..")) == 0.5
    assert points_inside(values, mask("#..#")) == 0.0


def test_top_pixels_are_the_highest():
    values = np.array([[0.1, 0.9, 0.8, 0.2]])
    assert (top_pixels(values, 2, np.random.default_rng(0)) == mask(".##.")).all()
    assert not top_pixels(values, 0, np.random.default_rng(0)).any()


def test_ranks_share_ties_and_agreement_is_spearmans():
    assert ranks(np.array([10.0, 20.0, 20.0, 5.0])).tolist() == [2.0, 3.5, 3.5, 1.0]
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_agreement(a, a**3) == pytest.approx(1.0)
    assert rank_agreement(a, -a) == pytest.approx(-1.0)
    assert rank_agreement(a, np.array([2.0, 1.0, 4.0, 3.0])) == pytest.approx(0.6)  # 1 - 6·4 / (4·15)
    assert math.isnan(rank_agreement(a, np.ones(4)))


def test_a_piece_is_found_where_enough_of_the_explanation_lies():
    numbered = np.array([[1, 1, 0, 2, 2, 0, 3]])
    assert pieces_found(mask("##.#..."), numbered, 3) == 2
    assert pieces_found(mask("..#..#."), numbered, 3) == 0
    assert pieces_found(mask("##.#..."), numbered, 3, least=0.5) == 1
    assert pieces_found(mask("......."), numbered, 3) == 0


def test_a_mean_lies_in_its_interval_and_narrows_with_n():
    rng = np.random.default_rng(3)
    few, many = rng.normal(5, 1, 20), rng.normal(5, 1, 2000)
    a, b = estimate(few.tolist()), estimate(many.tolist())
    assert a.low < a.mean < a.high
    assert b.high - b.low < (a.high - a.low) / 4
    assert b.high - b.low == pytest.approx(2 * 1.96 / math.sqrt(2000), rel=0.15)
    assert estimate(few.tolist()) == a
    assert estimate([2.0, float("nan"), 4.0]).n == 2
    assert estimate([]).n == 0
    assert math.isnan(estimate([]).mean)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = [e.low <= 0.3 <= e.high for e in (estimate((rng.random(60) < 0.3).astype(float).tolist()) for _ in range(200))]
    assert 0.88 <= np.mean(inside) <= 1.0


def test_a_share_of_all_or_none_still_has_an_interval():
    whole = estimate_share([1.0] * 10)
    assert (whole.mean, whole.high) == (1.0, 1.0)
    assert whole.low == pytest.approx(10 / (10 + 1.96**2), abs=1e-3)  # Wilson's, by its formula
    assert estimate_share([0.0] * 10).high == pytest.approx(1 - whole.low)
    assert estimate_share([0.0, 1.0, 1.0]) == estimate([0.0, 1.0, 1.0])


def test_pairs_are_compared_where_both_are_known():
    one = {"a": 1.0, "b": 2.0, "c": 3.0, "only": 9.0}
    other = {"a": 2.0, "b": 2.0, "c": 5.0, "else": 0.0}
    found = compare_paired(one, other)
    assert (found.difference.n, found.lower, found.higher, found.equal) == (3, 2, 0, 1)
    assert found.difference.mean == pytest.approx(-1.0)
    assert found.p == pytest.approx(0.5, abs=0.05)  # of 8 tosses of signs of (-1, 0, -2) four are as far out
    clear = compare_paired({str(i): 0.0 for i in range(20)}, {str(i): 1.0 + i % 3 for i in range(20)})
    assert clear.p < 0.001
    assert math.isnan(compare_paired({}, one).p)


def test_unpaired_groups_and_holm():
    found = difference_of_means([3.0, 4.0, 5.0], [1.0, 1.0, 1.0])
    assert found.mean == pytest.approx(3.0)
    assert found.low >= 2.0
    assert difference_of_means([], [1.0]).n == 0
    assert holm_adjust([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm_adjust([0.5, 0.9])[1] == pytest.approx(1.0, abs=0.11)


ROWS = [
    {"name": "a", "method": "one", "size": 0.1, "clear": 1},
    {"name": "b", "method": "one", "size": 0.3, "clear": 0},
    {"name": "a", "method": "two", "size": 0.2, "clear": 1},
    {"name": "b", "method": "two", "size": None, "clear": None},
    {"name": "a", "method": "random", "size": 0.0, "clear": 1},
]
SIZE = Measure("size", "size", "share", "low")
CLEAR = Measure("clear", "clear", "share", "high", is_flag=True)


def test_a_table_has_a_line_per_method_and_marks_the_best_but_no_control():
    table = measure_table("t", "T", ROWS, (SIZE, CLEAR))
    assert [row[:2] for row in table.rows] == [("one", 2), ("two", 2), ("random", 1)]
    assert table.rows[0][2].mean == pytest.approx(0.2)
    assert table.rows[1][2].n == 1
    assert best_rows(table, 2) == {0, 1}  # both 20 %; random's 0 does not count
    assert best_rows(table, 1) == set()


def test_the_paired_table_compares_the_first_with_each():
    table = paired_table(ROWS, SIZE)
    assert [row[:2] for row in table.rows] == [("two", 1), ("random", 1)]
    assert table.rows[0][2].mean == pytest.approx(-0.1)
    assert paired_table(ROWS[:2], SIZE) is None


def test_curves_rise_to_all_pictures():
    plot = cumulative_plot("p", "P", "x", ROWS[:2], "size")
    (line,) = plot.lines
    assert line.y[0] == 0.0
    assert line.y[-1] == 1.0
    assert line.y[round(0.1 * 200) - 1] == 0.0
    assert line.y[round(0.1 * 200)] == line.y[round(0.2 * 200)] == 0.5, "a value that equals a bound counts"


def test_groups_keep_their_order():
    assert list(group_rows(ROWS, "method")) == [("one",), ("two",), ("random",)]


@pytest.mark.parametrize(
    ("cell", "kind", "said"),
    [
        (Estimate(0.1234, 0.1, 0.2, 5), "share", "12.3 % (10.0 to 20.0)"),
        (Estimate(0.005, 0.001, 0.01, 5), "share", "0.50 % (0.10 to 1.0)"),
        (Estimate(0.5, 0.5, 0.5, 1), "share", "50.0 %"),
        (Estimate(-0.05, -0.1, 0.0, 5), "points", "-5.0 (-10.0 to +0.0)"),
        (Estimate(1234.5, 1000, 2000, 5), "count", "1,234"),
        (Estimate(float("nan"), 0, 0, 0), "share", "–"),
        (0.0004, "p", "<0.001"),
        (None, "share", "–"),
        ("text", "text", "text"),
    ],
)
def test_cells_in_words(cell, kind, said):
    assert format_cell(cell, Column("c", kind)) == said


def test_failures_are_counted_by_kind():
    rows = [
        {"method": "one", "error": "FillError: the fully masked image …"},
        {"method": "one", "error": "FillError: another text"},
        {"method": "two", "error": None},
        {"method": "two", "error": "AnswerError: it broke"},
    ]
    assert count_failures(rows) == {"one": {"the fully masked image already has the label": 2}, "two": {"it broke": 1}}


def test_the_command_gives_the_run_again():
    record = {
        "bench": "fills", "model": "net with blank.onnx", "loading": {"preprocess": "tf", "half": True, "labels": None},
        "data": "my data", "methods": ["causal", "rise:masks=5"], "limit": 7, "side": 4,
        "request": Request(fills=("grey",), seed=3, grain=None).record(),
    }  # fmt: skip
    said = format_command(record).replace("\\\n", " ").split()
    assert " ".join(said) == (
        "becausal bench fills --model 'net with blank.onnx' --preprocess tf --half --data 'my data' --methods "
        "causal,rise:masks=5 --fill grey --grain none --seed 3 --limit 7 --out OUT"
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**20))
def test_sets_and_maps_survive_packing(h, w, seed):
    rng = np.random.default_rng(seed)
    visible, values = rng.random((h, w)) < 0.5, rng.random((h, w))
    assert (unpack_set(pack_set(visible)) == visible).all()
    span = values.max() - values.min() or 1.0
    assert np.abs(unpack_map(pack_map(values)) - (values - values.min()) / span).max() <= 0.5 / 255 + 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_quick_responsibilities_are_those_of_the_definition(seed):
    rng = np.random.default_rng(seed)
    for holds in (label_table(random_scores(3, rng)), rng.random(2**9) < 0.6):
        assert exact_responsibilities(holds).tolist() == responsibilities(holds).tolist()


def test_a_trained_tiny_network_needs_several_pixels_and_is_right():
    answers = trained_scores(3, np.random.default_rng(0), np.random.default_rng(1))
    holds = label_table(answers)
    assert holds[-1]
    assert not holds[0]
    assert not any(holds[1 << pixel] for pixel in range(9))
    again = trained_scores(3, np.random.default_rng(0), np.random.default_rng(1))
    assert (again == answers).all()
