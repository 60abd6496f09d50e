"""The causal core against the definitions, by brute force, on classifiers of a few pixels.

A classifier is a table over all subsets of pixels, as in `becausal.methods.causal.exact`. Each fast function is
compared with a slow one, written here from the text of the definitions or of the algorithm alone.
"""

from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal.core.contracts import Answers, Done, Stop, step
from becausal.core.errors import OptionError
from becausal.core.metrics import prefix, ranking
from becausal.core.problem import Problem
from becausal.core.regions import Region, split, whole
from becausal.core.request import Request
from becausal.core.targets import Target
from becausal.methods.causal import exact, refinement
from becausal.methods.causal.refinement import DcCausal, degrees
from becausal.methods.causal.search import Causal
from becausal.search.descent import Tuning
from becausal.search.drive import BudgetedRun
from becausal.search.minimise import Minimal
from becausal.search.pipeline import extract, run_pipeline

GRIDS = [(3, 3), (2, 4), (3, 4), (4, 4), (9,), (2, 2, 3)]
seeds = st.integers(0, 2**32 - 1)


def powers(grid):
    return 1 << np.arange(int(np.prod(grid)))


def numbers(visible):
    """The entry of the table behind each of (n, *grid) visible sets."""
    visible = np.asarray(visible)
    return visible.reshape(len(visible), -1) @ powers(visible.shape[1:])


def answer(search, table, margins=None):
    """Run a search on a table; its result, and every set it evaluated."""
    margins = np.where(table, 1.0, -1.0) if margins is None else margins
    asked = []
    state = step(search, None)
    while not isinstance(state, Done):
        rows = numbers(state)
        asked += rows.tolist()
        state = step(search, Answers(table[rows], margins[rows], np.full(len(rows), np.nan), len(set(asked))))
    return state.result, asked


def random_table(seed, grid, share=None):
    """A random table in which the whole view keeps the target and the fully masked one does not."""
    rng = np.random.default_rng(seed)
    share = rng.choice([0.03, 0.2, 0.5, 0.8, 0.97]) if share is None else share
    table = rng.random(2 ** int(np.prod(grid))) < share
    table[-1], table[0] = True, False
    return table


def monotone_table(seed, grid):
    """A table in which showing more never loses the target: the sets that contain one of a few random ones."""
    rng = np.random.default_rng(seed)
    pixels = int(np.prod(grid))
    every = np.arange(2**pixels)
    table = np.zeros(len(every), bool)
    for _ in range(rng.integers(1, 7)):
        core = int(sum(1 << int(i) for i in rng.choice(pixels, rng.integers(1, pixels // 2 + 1), replace=False)))
        table |= every & core == core
    return table


def problem_of(grid, has_scores=False):
    blank = np.zeros((*grid, 1), np.uint8)
    return Problem(blank, (blank,), Target(0), has_scores)


# The exact definitions, each against its words


def all_sets(pixels):
    return [frozenset(c) for k in range(pixels + 1) for c in combinations(range(pixels), k)]


def number(chosen):
    return sum(1 << i for i in chosen)


def test_all_visible_counts_in_bits():
    sets = exact.all_visible((2, 3))
    assert sets.shape == (64, 2, 3)
    assert numbers(sets).tolist() == list(range(64))
    assert sets[1, 0, 0]  # bit 0 is the first pixel, and rows come first
    assert sets[1 << 4, 1, 1]
    with pytest.raises(OptionError, match="at most 20"):
        exact.all_visible((5, 5))


def test_tabulate_asks_every_set():
    table = exact.tabulate(lambda visible: visible.reshape(len(visible), -1).sum(axis=1) >= 2, (3,))
    assert table.tolist() == [m.bit_count() >= 2 for m in range(8)]


def test_subsets_of_a_set():
    for members in (0, 0b1, 0b101, 0b1101):
        assert sorted(exact.subsets(members)) == [m for m in range(members + 1) if m & ~members == 0]


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_witnesses_are_those_of_definition_1(seed):
    pixels = 5
    table = random_table(seed, (pixels,))
    everything = frozenset(range(pixels))
    for pixel in range(pixels):
        wanted = {
            number(w)
            for w in all_sets(pixels)
            if pixel not in w  # SC1
            and all(table[number(everything - part)] for part in all_sets(pixels) if part <= w)  # SC2
            and not table[number(everything - w - {pixel})]  # SC3
        }
        assert set(exact.witnesses(table, pixel)) == wanted
        assert exact.is_cause(table, pixel) == bool(wanted)
        smallest = min((w.bit_count() for w in wanted), default=None)
        assert exact.degree(table, pixel) == (0.0 if smallest is None else 1 / (smallest + 1))


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_explanations_are_exactly_the_minimal_sufficient_sets(seed):
    table = random_table(seed, (6,))
    every = all_sets(6)
    sufficient = {s for s in every if table[number(s)]}
    minimal = {number(s) for s in sufficient if not any(other < s for other in sufficient)}
    found = exact.explanations(table)
    assert set(found) == minimal
    assert len(found) == len(minimal)
    assert [m.bit_count() for m in found] == sorted(m.bit_count() for m in found)
    assert exact.smallest_size(table) == min(len(s) for s in sufficient)
    assert all(exact.is_explanation(table, m) == (m in minimal) for m in range(64))


# Algorithm 1


def slow_degrees(table, parts, grid):
    """1/(k+1), k the smallest number of masked parts in a mutant that shows part j, keeps the target, and loses it
    when j is masked too."""

    def keeps(masked):
        visible = np.ones(grid, bool)
        for i in masked:
            visible[parts[i].slices] = False
        return table[numbers(visible[None])[0]]

    result = []
    for j in range(len(parts)):
        others = [i for i in range(len(parts)) if i != j]
        sizes = [
            k
            for k in range(len(others) + 1)
            if any(keeps(masked) and not keeps((*masked, j)) for masked in combinations(others, k))
        ]
        result.append(1 / (min(sizes) + 1) if sizes else 0.0)
    return result


def restricted(table, parts, grid):
    """The table over a partition: bit j shows part j as a whole."""
    shown = np.zeros((2 ** len(parts), *grid), bool)
    for m in range(len(shown)):
        for j, part in enumerate(parts):
            shown[m][part.slices] = m >> j & 1
    return table[numbers(shown)]


def responsibility(grid, parts, *, strict=False):
    """Algorithm 1 as a search of its own: the degrees of the parts, from all mutants of their partition."""
    (mutants,) = refinement._waves(grid, [parts])
    return degrees((yield mutants).holds, len(parts), strict=strict)


@given(seeds, st.sampled_from(GRIDS), st.integers(2, 5))
@settings(max_examples=80, deadline=None)
def test_responsibility_is_the_definition_restricted_to_the_partition(seed, grid, count):
    table = random_table(seed, grid)
    parts = split(whole(grid), count, np.random.default_rng(seed))
    found, asked = answer(responsibility(grid, parts), table)
    assert len(set(asked)) == 2 ** len(parts)
    assert found.tolist() == slow_degrees(table, parts, grid)
    strict, _ = answer(responsibility(grid, parts, strict=True), table)
    assert strict.tolist() == exact.responsibilities(restricted(table, parts, grid)).tolist()


@given(seeds)
@settings(max_examples=12, deadline=None)
def test_responsibility_of_single_pixels_is_the_definition_itself(seed):
    grid = (3, 3)
    pixels = tuple(Region((r, c), (r + 1, c + 1)) for r in range(3) for c in range(3))
    for table in (random_table(seed, grid), monotone_table(seed, grid)):
        found, asked = answer(responsibility(grid, pixels, strict=True), table)
        assert sorted(asked) == list(range(512))
        assert found.tolist() == exact.responsibilities(table).tolist()


@given(seeds, st.integers(2, 6))
@settings(max_examples=60, deadline=None)
def test_both_readings_agree_where_hiding_more_never_restores_the_target(seed, parts):
    shown = monotone_table(seed, (parts,))
    hidden = shown[::-1]  # complementing every bit turns the table around
    assert degrees(hidden, parts).tolist() == degrees(hidden, parts, strict=True).tolist()


def test_the_readings_differ_where_hiding_more_restores_the_target():
    # Hiding part 0 loses the target, hiding 0 and 1 restores it, hiding all loses it again. So {0, 1} is a witness for
    # part 2 by the default reading, while SC2 to the letter forbids its subset {0}.
    holds = np.zeros(8, bool)
    holds[[0b000, 0b011, 0b100, 0b010, 0b110]] = True
    assert degrees(holds, 3)[2] == 1 / 3
    assert degrees(holds, 3, strict=True)[2] == 0.0


def test_degrees_leave_the_answers_alone():
    holds = np.array([True, False, True, True])  # hiding the first part loses the target, hiding both restores it
    degrees(holds, 2, strict=True)
    assert holds.tolist() == [True, False, True, True]


def test_mutants_mask_the_parts_of_each_row():
    parts = (Region((0, 0), (2, 2)), Region((0, 2), (2, 4)))
    (rows,) = refinement._waves((2, 4), [parts])
    left = np.arange(4) < 2
    assert [row[0].tolist() for row in rows] == [[True] * 4, (~left).tolist(), left.tolist(), [False] * 4]
    assert (rows[:, 0] == rows[:, 1]).all()


# The examples of the paper (section 3: decisive alone, decisive given a contingency, not a cause)


def by_rule(rule, pixels=4):
    return np.array([bool(rule([m >> i & 1 for i in range(pixels)])) for m in range(2**pixels)])


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (lambda v: v[0], [1, 0, 0, 0]),  # one pixel decides, P_j is empty: 1; the others are no causes: 0
        (lambda v: v[0] or v[1], [1 / 2, 1 / 2, 0, 0]),  # two redundant ones: each needs the other masked
        (lambda v: v[0] and v[1], [1, 1, 0, 0]),  # two that are both needed
        (lambda v: v[0] or v[1] or v[2], [1 / 3, 1 / 3, 1 / 3, 0]),
        (lambda v: v[0] and (v[1] or v[2]), [1, 1 / 2, 1 / 2, 0]),
        (lambda v: sum(v) >= 2, [1 / 3] * 4),  # a vote: two others must be masked before one counts
        (lambda v: sum(v) >= 4, [1] * 4),
    ],
)
def test_examples_by_hand(rule, wanted):
    table = by_rule(rule)
    assert exact.responsibilities(table).tolist() == wanted
    pixels = tuple(Region((i,), (i + 1,)) for i in range(4))
    for strict in (False, True):
        found, _ = answer(responsibility((4,), pixels, strict=strict), table)
        assert found.tolist() == wanted


def test_explanations_by_hand():
    table = by_rule(lambda v: v[0] and (v[1] or v[2]))
    assert exact.explanations(table) == [0b0011, 0b0101]
    assert exact.smallest_size(table) == 2


# Algorithms 2 and 3


def literal_map(options, table, grid, rng, cut):
    """Algorithms 2 and 3, line by line, depth first, one mutant at a time. cut: how a region is partitioned."""

    def refine(region, own, known=None):
        parts = cut(region, options.parts, own)
        if options.strict:
            local = np.ones((2 ** len(parts), *grid), bool)
            for m in range(len(local)):
                for j, part in enumerate(parts):
                    local[m][part.slices] = m >> j & 1
            result = exact.responsibilities(table[numbers(local)])
        else:
            result = slow_degrees(table, parts, grid)
        if not any(result):
            return [] if options.literal or known is None else [(region, known)]
        shared = result if options.literal or known is None else [known * r / sum(result) for r in result]
        if len(set(result)) == 1:
            return list(zip(parts, shared, strict=True))
        leaves = []
        for part, r in zip(parts, shared, strict=True):
            if r <= options.threshold:
                continue
            small = part.size == 1 or any(s < options.smallest * g for s, g in zip(part.shape, grid, strict=True))
            leaves += [(part, r)] if small else refine(part, own, r)
        return leaves

    saliency = np.zeros(grid)
    for own in rng.spawn(options.partitions):
        for part, r in refine(whole(grid), own):
            saliency[part.slices] += r / part.size
    return saliency


def split_by_place(region, parts, rng):
    """A random partition that hangs on the region and the generator's own seed, not on what was drawn before."""
    key = rng.bit_generator.seed_seq.spawn_key
    return split(region, parts, np.random.default_rng([*key, *region.start, *region.stop]))


@given(
    seeds,
    st.sampled_from([(3, 3), (4, 4), (4, 3), (10,), (2, 2, 3)]),
    st.sampled_from([2, 3, 4]),
    st.sampled_from([0.1, 0.4, 0.6]),
    st.sampled_from([0.0, 0.4]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_dc_causal_is_the_paper_line_by_line(seed, grid, parts, smallest, threshold, strict, literal):
    options = DcCausal(partitions=3, parts=parts, smallest=smallest, threshold=threshold, strict=strict, literal=literal)
    table = random_table(seed, grid)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(refinement, "split", split_by_place)
        found, _ = answer(options.search(problem_of(grid), np.random.default_rng(seed)), table)
    wanted = literal_map(options, table, grid, np.random.default_rng(seed), split_by_place)
    np.testing.assert_allclose(found.saliency, wanted, rtol=1e-12, atol=1e-15)


@given(seeds, st.integers(0, 15))
@settings(max_examples=25, deadline=None)
def test_dc_causal_with_its_own_draws_where_one_pixel_decides(seed, pixel):
    # Only one part is ever refined, so breadth and depth first draw the same numbers.
    grid = (4, 4)
    table = exact.all_visible(grid).reshape(-1, 16)[:, pixel]
    options = DcCausal(partitions=4)
    found, _ = answer(options.search(problem_of(grid), np.random.default_rng(seed)), table)
    wanted = literal_map(options, table, grid, np.random.default_rng(seed), split)
    np.testing.assert_allclose(found.saliency, wanted, rtol=1e-12)
    assert found.saliency.argmax() == pixel
    assert np.isclose(found.saliency.reshape(-1)[pixel], 4.0)  # 1 from each of the four partitions
    assert np.count_nonzero(found.saliency) == 1


def test_both_of_two_redundant_objects_are_responsible():
    """Each alone is enough: no part of one matters while the other is there, so its region is responsible as a whole."""
    grid, objects = (16, 16), np.zeros((2, 16, 16), bool)
    objects[0, 2:6, 2:6], objects[1, 10:14, 9:13] = True, True

    def explain(**options):
        search = DcCausal(partitions=20, **options).search(problem_of(grid), np.random.default_rng(0))
        state = step(search, None)
        while not isinstance(state, Done):
            holds = np.array([any((shown & one).sum() > 8 for one in objects) for shown in np.asarray(state)])
            state = step(search, Answers(holds, np.where(holds, 1.0, -1.0), np.full(len(holds), np.nan)))
        return state.result.saliency

    saliency = explain()
    means = [saliency[one].mean() for one in objects]
    assert min(means) > 1.4 * saliency[~objects.any(axis=0)].mean()
    assert min(means) > 0.5 * max(means)
    assert explain(literal=True).sum() < 0.25 * saliency.sum()  # as the pseudocode has it, responsibility is lost


@given(seeds, st.sampled_from([(4, 4), (5, 3)]), st.booleans())
@settings(max_examples=25, deadline=None)
def test_refining_neither_adds_nor_loses_responsibility(seed, grid, strict):
    table, rng = random_table(seed, grid), np.random.default_rng(seed)
    found, _ = answer(DcCausal(partitions=1, strict=strict).search(problem_of(grid), rng), table)
    unrefined, _ = answer(
        DcCausal(partitions=1, strict=strict, smallest=1.0).search(problem_of(grid), np.random.default_rng(seed)), table
    )
    assert np.isclose(found.saliency.sum(), unrefined.saliency.sum())


def test_every_wave_holds_all_partitions_of_one_depth():
    grid = (4, 4)
    table = exact.all_visible(grid).reshape(-1, 16)[:, 5]
    search = DcCausal(partitions=7).search(problem_of(grid), np.random.default_rng(0))
    sizes = []
    state = step(search, None)
    while not isinstance(state, Done):
        sizes.append(len(state))
        rows = numbers(state)
        state = step(search, Answers(table[rows], np.where(table[rows], 1.0, -1.0), np.full(len(rows), np.nan)))
    assert sizes[0] == 7 * 16
    assert len(sizes) <= 4  # a 4x4 grid is done after a few depths, however many partitions there are


def test_redraw_takes_another_partition_where_all_parts_are_equal():
    grid = (4, 4)
    table = np.zeros(2**16, bool)
    table[-1] = True  # every part is needed: always all equal
    for redraw in (0, 2):
        search = DcCausal(partitions=1, redraw=redraw).search(problem_of(grid), np.random.default_rng(0))
        found, asked = answer(search, table)
        assert len(asked) == 16 * (redraw + 1)
        assert np.isclose(found.saliency.sum(), 4.0)  # four leaves of responsibility 1 each


def test_partitions_do_not_share_their_draws():
    # The first k partitions of N are the same for every N: each has its own generator.
    grid = (4, 4)
    table = monotone_table(8, grid)
    maps = []
    for partitions in (1, 2):
        search = DcCausal(partitions=partitions).search(problem_of(grid), np.random.default_rng(5))
        maps.append(answer(search, table)[0].saliency)
    second = np.random.default_rng(5).spawn(2)[1]
    (leaves,), _ = answer(refinement._follow(grid, [DcCausal(partitions=1)._refine(grid, second)]), table)
    alone = np.zeros(grid)
    for region, r in leaves:
        alone[region.slices] += r / region.size
    np.testing.assert_allclose(maps[1] - maps[0], alone, atol=1e-15)


@pytest.mark.parametrize(
    "options",
    [
        {"partitions": 0},
        {"parts": 1},
        {"parts": 13},
        {"smallest": 0.0},
        {"threshold": 1.0},
        {"threshold": -0.1},
        {"redraw": -1},
    ],
)
def test_dc_causal_refuses_options_that_make_no_sense(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        DcCausal(**options)


# Extraction


@given(seeds, st.sampled_from([(3, 3), (4, 4), (9,), (2, 2, 3)]))
@settings(max_examples=60, deadline=None)
def test_every_extracted_explanation_is_sufficient(seed, grid):
    table = random_table(seed, grid)
    search = run_pipeline(problem_of(grid), DcCausal(partitions=3), Request(seed=seed), BudgetedRun(grid))
    trace, asked = answer(search, table)
    chosen = int(numbers(trace.visible[None])[0])
    assert table[chosen]
    assert chosen in asked
    assert trace.checks.sufficient
    assert trace.checks.necessary == (not table[len(table) - 1 - chosen])
    assert trace.checks.minimal_grain is None


@given(seeds, st.sampled_from([(3, 3), (4, 4), (3, 5)]))
@settings(max_examples=60, deadline=None)
def test_extraction_ends_at_a_prefix_that_holds_while_one_pixel_less_does_not(seed, grid):
    table = random_table(seed, grid)
    rng = np.random.default_rng(seed)
    saliency = rng.integers(0, 4, grid).astype(float)  # many ties
    found, _ = answer(extract(saliency, np.random.default_rng(seed)), table)
    order = ranking(saliency, np.random.default_rng(seed))
    assert (np.diff(saliency.ravel()[order]) <= 0).all()
    assert sorted(order.tolist()) == list(range(saliency.size))
    count = int(found.sum())
    assert (prefix(order, count, grid) == found).all()
    assert table[numbers(found[None])[0]]
    assert not table[numbers(prefix(order, count - 1, grid)[None])[0]]


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_extraction_finds_the_smallest_prefix_of_a_monotone_classifier(seed):
    grid = (4, 4)
    table = monotone_table(seed, grid)
    saliency = np.random.default_rng(seed).random(grid)
    found, _ = answer(extract(saliency, np.random.default_rng(0)), table)
    order = ranking(saliency, np.random.default_rng(0))
    holds = [bool(table[numbers(prefix(order, k, grid)[None])[0]]) for k in range(17)]
    assert found.sum() == holds.index(True)


@given(seeds, st.booleans())
@settings(max_examples=40, deadline=None)
def test_extraction_of_a_larger_view_goes_in_coarse_steps_and_then_fine_ones(seed, monotone):
    # 600 pixels: more than there are coarse steps, so that the last of the way is bisected.
    grid, rng = (20, 30), np.random.default_rng(seed)
    saliency = rng.normal(size=grid)
    order = ranking(saliency, np.random.default_rng(seed))
    needed = order[: int(rng.integers(1, 601))]
    salt = rng.integers(1, 2**31, 600)

    def keeps(visible):
        flat = visible.reshape(len(visible), -1)
        wild = (flat @ salt) % 1009 < 30
        return flat[:, needed].all(axis=1) | (wild & (flat.sum(axis=1) > 300) & (not monotone)) | flat.all(axis=1)

    asked = 0
    search = extract(saliency, np.random.default_rng(seed))
    state = step(search, None)
    while not isinstance(state, Done):
        asked += len(state)
        holds = keeps(state)
        state = step(search, Answers(holds, np.where(holds, 1.0, -1.0), np.full(len(holds), np.nan)))
    count = int(state.result.sum())
    assert (state.result == prefix(order, count, grid)).all()
    assert keeps(state.result[None])[0]
    assert not keeps(prefix(order, count - 1, grid)[None])[0]
    if monotone:
        assert count == len(needed)
    assert asked <= 64 + 3 + 4  # the coarse steps, and then at most ten pixels in between


def test_ties_are_revealed_cell_by_cell():
    # 64 wide: cells of 2 px. A plateau comes in whole cells, in an order that hangs on the seed alone.
    order = ranking(np.zeros((64, 64)), np.random.default_rng(0))
    rows, columns = np.unravel_index(order, (64, 64))
    patches = np.stack([rows // 2, columns // 2], axis=1).reshape(-1, 4, 2)
    assert (patches == patches[:, :1]).all()
    assert (order == ranking(np.zeros((64, 64)), np.random.default_rng(0))).all()
    assert (order != ranking(np.zeros((64, 64)), np.random.default_rng(1))).any()


# Our search, against the exact optimum on 4x4 grids

GRID = (4, 4)
COUNTS = np.array([m.bit_count() for m in range(2**16)])


@cache
def subsets_as_pixels():
    return exact.all_visible(GRID).reshape(-1, 16).astype(np.float32)


def linear_classifier(seed):
    """A random linear classifier with scores: its table and the margins behind it."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=16)
    weights *= np.sign(weights.sum())
    score = subsets_as_pixels() @ weights
    margins = score - rng.uniform(0.05, 0.95) * score[-1]
    return margins >= 0, margins


@cache
def trained_network():
    """A small network, trained to tell four patterns of 4x4 pixels (cross, ring, diagonal, columns) from noise."""
    rng = np.random.default_rng(0)
    patterns = np.zeros((5, 4, 4))
    patterns[0, 1:3], patterns[0, :, 1:3] = 1, 1
    patterns[1] = 1
    patterns[1, 1:3, 1:3] = 0
    patterns[2] = np.eye(4) + np.eye(4)[::-1]
    patterns[3, :, ::2] = 1
    classes = rng.integers(0, 5, 2000)
    pixels = patterns.reshape(5, 16)[classes] * rng.uniform(0.5, 1.5, (2000, 1)) + rng.normal(0, 0.3, (2000, 16))
    pixels *= rng.random((2000, 16)) < 0.8
    wanted = np.eye(5)[classes]
    first, second = rng.normal(0, 0.3, (17, 24)), rng.normal(0, 0.3, (25, 5))
    for _ in range(400):
        hidden = np.maximum(add_one(pixels) @ first, 0)
        error = (softmax(add_one(hidden) @ second) - wanted) / len(pixels)
        first -= 1.0 * add_one(pixels).T @ ((error @ second[:-1].T) * (hidden > 0))
        second -= 1.0 * add_one(hidden).T @ error
    return first, second, patterns.reshape(5, 16)


def add_one(values):
    return np.concatenate([values, np.ones((len(values), 1))], axis=1)


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def trained_classifier(seed):
    """The trained network on one noisy image: its table for the label on top, and the margins."""
    first, second, patterns = trained_network()
    rng = np.random.default_rng(seed)
    while True:
        pixels = patterns[rng.integers(4)] * rng.uniform(0.7, 1.3) + rng.normal(0, 0.3, 16)
        logits = add_one(np.maximum(add_one(subsets_as_pixels() * pixels) @ first, 0)) @ second
        label = int(logits[-1].argmax())
        margins = logits[:, label] - np.delete(logits, label, axis=1).max(axis=1)
        if margins[0] < 0:
            return margins >= 0, margins


def monotone_classifier(seed):
    table = monotone_table(seed, GRID)
    return table, np.where(table, 1.0, -1.0)


def random_classifier(seed):
    table = random_table(seed, GRID)
    return table, np.where(table, 1.0, -1.0)


def explain_table(table, margins, *, seed=0):
    request = Request(seed=seed, grain=1)
    search = run_pipeline(problem_of(GRID, True), request.configure(Causal()), request, BudgetedRun(GRID))
    trace, asked = answer(search, table, margins)
    return trace, int(numbers(trace.visible[None])[0]), len(set(asked))


#: Classifiers, and the share of explanations of minimum size that `causal` must reach among the first 50: a few points
#: under what was measured (90, 95, 87 and 59 % of 250).
KINDS = {
    "monotone": (monotone_classifier, 0.8),
    "linear": (linear_classifier, 0.88),
    "trained": (trained_classifier, 0.75),
    "random": (random_classifier, 0.5),
}


@pytest.mark.parametrize("total", [16, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_causal_is_sufficient_and_minimal_always_and_often_of_minimum_size(kind, total):
    make, floor = KINDS[kind]
    smallest, calls, excess = 0, 0, 0
    for seed in range(total):
        table, margins = make(seed)
        trace, chosen, asked = explain_table(table, margins, seed=seed)
        assert table[chosen], f"{kind} {seed}: the explanation does not keep the target"
        removed = [chosen & ~(1 << i) for i in range(16) if chosen >> i & 1]
        assert not table[removed].any(), f"{kind} {seed}: a pixel can be removed"
        assert trace.checks.minimal_grain == 1
        assert trace.checks.cells == len(removed)
        best = int(COUNTS[table].min())
        assert len(removed) >= best
        smallest += len(removed) == best
        excess += len(removed) - best
        calls += asked
    print(f"{kind}: {smallest / total:.0%} of minimum size, {excess / total:.2f} pixels more, {calls / total:.0f} calls")
    assert smallest / total >= floor


@given(seeds)
@settings(max_examples=8, deadline=None)
def test_causal_is_an_explanation_by_definition_3_where_classifiers_are_monotone(seed):
    table, margins = monotone_classifier(seed)
    trace, chosen, _ = explain_table(table, margins, seed=seed)
    assert exact.is_explanation(table, chosen)
    # Each of its pixels is a cause, with all masked pixels as the witness (SC1 to SC3).
    rest = 2**16 - 1 - chosen
    assert all(table[chosen | part] for part in exact.subsets(rest))
    causes = [i for i in range(16) if chosen >> i & 1]
    assert not any(table[chosen & ~(1 << i)] for i in causes)
    assert trace.saliency.max() == 1.0


@given(seeds, st.integers(0, 120))
@settings(max_examples=60, deadline=None)
def test_causal_stopped_at_any_moment_has_seen_its_set_hold(seed, room):
    table, margins = (random_classifier if seed % 2 else monotone_classifier)(seed)
    search = Causal().search(problem_of(GRID, True), np.random.default_rng(seed))
    asked = []
    state = step(search, None)
    while not isinstance(state, Done):
        rows = numbers(state)[: max(0, room - len(asked))]
        asked += rows.tolist()
        known = Answers(table[rows], margins[rows], np.full(len(rows), np.nan), len(asked))
        state = step(search, known if len(rows) == len(state) else Stop("budget", known))
    found = state.result
    assert np.isfinite(found.saliency).all()
    assert found.saliency.shape == GRID
    for visible in found.sets:
        assert table[numbers(visible[None])[0]]
        assert int(numbers(visible[None])[0]) in asked
    if found.grain is not None:
        chosen = int(numbers(found.sets[0][None])[0])
        assert not any(table[chosen & ~(1 << i)] for i in range(16) if chosen >> i & 1)


def test_causal_refuses_options_that_make_no_sense():
    for options in ({"grain": 0}, {"several": 0}, {"overlap": 1.0}, {"overlap": -0.1}):
        with pytest.raises(OptionError, match=next(iter(options))):
            Causal(**options)
    for options in ({"chains": 0}, {"parts": 0}, {"runs": 0}, {"kinds": ()}, {"share": 1.0}, {"reheat": (0.1, 0.0)}):
        with pytest.raises(OptionError, match=next(iter(options))):
            Tuning(**options)


def test_a_minimal_set_names_its_grain():
    assert Minimal(np.ones(3, bool), None).grain is None


# The lemma on the cost: O(2^s n N)


def count_calls(options, grid, holds):
    """The mutants that `dc-causal` asks for, with `holds` a function of visible sets."""
    search, calls = options.search(problem_of(grid), np.random.default_rng(0)), 0
    state = step(search, None)
    while not isinstance(state, Done):
        shown = np.asarray(state)
        calls += len(shown)
        kept = holds(shown)
        state = step(search, Answers(kept, np.where(kept, 1.0, -1.0), np.full(len(kept), np.nan), calls))
    return calls


def at_random(shown):
    """An answer for every set that looks random, so that parts are rarely equal and refinement goes on."""
    weights = np.random.default_rng(1).integers(1, 10**6, shown[0].size)
    return shown.reshape(len(shown), -1) @ weights % 7 < 5


@pytest.mark.parametrize(("parts", "side"), [(3, 8), (3, 16), (4, 4), (4, 8), (4, 16), (6, 4), (6, 8)])
def test_calls_are_at_most_those_of_the_lemma(parts, side):
    # Down to single pixels: a tree of n leaves has at most n - 1 regions that are divided, each with 2^s mutants.
    pixels, partitions = side * side, 3
    options = DcCausal(partitions=partitions, parts=parts, smallest=1e-9)
    calls = count_calls(options, (side, side), at_random)
    assert 2**parts * partitions < calls <= 2**parts * (pixels - 1) * partitions


def test_the_calls_of_n_partitions_are_the_sum_of_those_of_each():
    grid, rngs = (8, 8), np.random.default_rng(0).spawn(6)
    total = count_calls(DcCausal(partitions=6), grid, at_random)
    assert total == sum(count_mutants(DcCausal(partitions=1)._refine(grid, rng), grid) for rng in rngs)


def count_mutants(plan, grid):
    """The mutants of one partition and of its refinements, from its plan."""
    calls, partitions = 0, next(plan)
    while True:
        holds = [at_random(np.concatenate(list(refinement._waves(grid, [parts])))) for parts in partitions]
        calls += sum(len(each) for each in holds)
        try:
            partitions = plan.send(holds)
        except StopIteration:
            return calls


def test_calls_do_not_grow_with_the_image():
    # Refinement ends at a tenth of the view, so n, the number of pixels, has no part in the cost.
    def needs_most_of_an_object(shown):
        side = shown.shape[1]
        box = shown[:, side // 5 : side // 2, side // 4 : side * 3 // 5]
        return box.reshape(len(shown), -1).mean(axis=1) > 0.6

    found = [count_calls(DcCausal(partitions=16), (side, side), needs_most_of_an_object) for side in (40, 80, 160)]
    assert max(found) < 1.3 * min(found)
