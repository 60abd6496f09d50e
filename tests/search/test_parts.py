"""Random parts of a set of cells: their kind and size against plain implementations, and where they are drawn."""

from itertools import product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from becausal.search.descent import (
    BLOCK,
    PART_KINDS,
    RADII,
    STRETCH,
    PartSampler,
    RemovalCost,
    set_sizes,
    weighted_sum,
)

seeds = st.integers(0, 2**32 - 1)
lattices = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)


def sampler(shape, seed, trust=1.0):
    """A random non-empty set of cells with random removal costs."""
    rng = np.random.default_rng(seed)
    cells = rng.random(shape) < rng.uniform(0.1, 1.0)
    cells.flat[rng.integers(cells.size)] = True
    return PartSampler(cells, rng.normal(size=shape), np.random.default_rng(seed), trust)


@given(lattices, seeds, st.floats(0.01, 0.99), st.sampled_from([1, 3, 8]))
@settings(max_examples=50, deadline=None)
def test_parts_lie_in_the_set_and_have_neither_nothing_nor_everything(shape, seed, share, count):
    kinds = [list(PART_KINDS)[i % len(PART_KINDS)] for i in range(count)]
    own = sampler(shape, seed)
    parts = own.draw(kinds, share)
    assert parts.dtype == bool
    assert parts.shape[1:] == shape
    assert len(parts) <= count
    for part in parts:
        assert not (part & ~own.cells).any()
        assert 0 < part.sum() < own.cells.sum()
    again = sampler(shape, seed).draw(kinds, share)
    assert np.array_equal(parts, again)


@given(lattices, seeds)
@settings(max_examples=30, deadline=None)
def test_cells_in_a_box_are_counted_from_its_corners(shape, seed):
    own, rng = sampler(shape, seed), np.random.default_rng(seed)
    ends = np.sort(np.stack([rng.integers(0, np.array(shape) + 1, (5, len(shape))) for _ in range(2)]), axis=0)
    plain = [own.cells[tuple(map(slice, low, high))].sum() for low, high in zip(*ends, strict=True)]
    assert own.count(*ends).tolist() == plain
    assert [int(part.sum()) for part in own.within(*ends)] == plain


def box_of(centre, stretch, radius, shape):
    """The cells of one box, as slices."""
    found = []
    for at, by, side in zip(centre, stretch, shape, strict=True):
        low = max(0, int(np.floor(at + 0.5 - radius * by)))
        found.append(slice(low, min(side, low + max(1, round(2 * radius * by)))))
    return tuple(found)


@given(lattices, seeds, st.integers(1, 30))
@settings(max_examples=35, deadline=None)
def test_a_box_is_the_smallest_of_its_proportions_that_has_enough(shape, seed, wanted):
    boxes = sampler(shape, seed).boxes(3, wanted)
    own = sampler(shape, seed)  # the same random numbers
    centres = np.stack(np.unravel_index(own.draw_cells(3), shape), axis=1)
    stretch = np.exp(own._rng.normal(0.0, STRETCH, (3, 1, len(shape))))[:, 0]
    radii = np.geomspace(0.5, 2.0 * max(shape), RADII)
    for box, centre, by in zip(boxes, centres, stretch, strict=True):
        tried = (box_of(centre, by, radius, shape) for radius in radii)
        enough = next((one for one in tried if own.cells[one].sum() >= wanted), box_of(centre, by, radii[-1], shape))
        plain = np.zeros(shape, bool)
        plain[enough] = own.cells[enough]
        assert np.array_equal(box, plain)


@given(lattices, seeds, st.data())
@settings(max_examples=35, deadline=None)
def test_a_strip_lies_along_a_side_and_is_just_thick_enough(shape, seed, data):
    own = sampler(shape, seed)
    wanted = data.draw(st.integers(1, int(own.cells.sum())))
    slabs = []  # for each side, the thinnest slab that has enough
    for axis, backwards in product(range(len(shape)), (False, True)):
        for thick in range(1, shape[axis] + 1):
            slab = np.zeros(shape, bool)
            along = slice(shape[axis] - thick, None) if backwards else slice(thick)
            slab[(slice(None),) * axis + (along,)] = True
            if (slab & own.cells).sum() >= wanted:
                slabs.append(slab & own.cells)
                break
    for strip in own.strips(4, wanted):
        assert any(np.array_equal(strip, slab) for slab in slabs)


@given(lattices, seeds, st.data())
@settings(max_examples=35, deadline=None)
def test_blocks_are_whole_and_just_enough_of_them(shape, seed, data):
    own = sampler(shape, seed)
    wanted = data.draw(st.integers(1, int(own.cells.sum())))
    side = max(1, round(BLOCK * wanted ** (1 / len(shape))))
    for part in own.blocks(2, wanted):
        assert part.sum() >= wanted

        def fits(shift, part=part):
            """Whether the part consists of whole blocks of the lattice with this shift, none of them superfluous."""
            number = np.zeros(shape, int)
            for axis, by in enumerate(shift):
                at = (np.arange(shape[axis]) + by) // side
                number = number * 100 + at.reshape([-1 if a == axis else 1 for a in range(len(shape))])
            chosen = np.unique(number[part])
            whole = np.isin(number, chosen) & own.cells
            least = max((number[part] == one).sum() for one in chosen)
            return np.array_equal(whole, part) and part.sum() - least < wanted

        assert any(fits(shift) for shift in product(range(side), repeat=len(shape)))


def test_cells_with_a_low_expected_cost_are_drawn_more_often():
    cells, cost = np.ones(10, bool), np.arange(10.0)
    own = PartSampler(cells, cost, np.random.default_rng(0))
    times = np.bincount(own.draw_cells(20_000), minlength=10)
    about = (cost - cost.mean()) / cost.std()
    share = np.exp(-about) / np.exp(-about).sum()
    assert np.allclose(times / 20_000, share, atol=0.02)
    blocks = PartSampler(cells, cost, np.random.default_rng(0)).blocks(4_000, 1)
    assert np.allclose(blocks.mean(axis=0), share, atol=0.03)
    even = PartSampler(cells, cost, np.random.default_rng(0), trust=0.0)
    assert np.allclose(np.bincount(even.draw_cells(20_000), minlength=10) / 20_000, 0.1, atol=0.02)


@given(lattices, seeds, st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_the_cost_is_shared_by_the_cells_removed_together(shape, seed, count):
    rng = np.random.default_rng(seed)
    parts, losses = rng.random((count, *shape)) < 0.5, rng.normal(size=count)
    cost, loss, trials = RemovalCost(shape), np.zeros(shape), np.zeros(shape)
    cost.observe(parts, losses)
    for part, lost in zip(parts, losses, strict=True):
        loss[part] += lost / max(1, part.sum())
        trials[part] += 1
    assert np.allclose(cost.loss, loss)
    assert np.array_equal(cost.trials, trials)
    assert set_sizes(parts).tolist() == [int(part.sum()) for part in parts]
    assert weighted_sum(parts, losses).shape == shape
