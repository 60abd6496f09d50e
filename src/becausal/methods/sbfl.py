"""`sbfl`: pixels ranked as statistical fault localisation ranks the lines of a failing program.

After Sun, Chockler, Huang and Kroening: Explaining image classifiers using statistical fault localization, ECCV 2020. A
mutant is a test, which passes if the mutant keeps the label. A pixel is *executed* in the test if it is masked. Pixels
that are masked in failing tests and visible in passing ones are the most suspicious.

The measures are the published ones. Mutants differ from those of the authors' program: it masks one square around a random
pixel, a fifth of the image in each direction, shrinks or enlarges it by sixths until the label changes, and smooths the
map; here several blocks are masked, as many as the adapting share says. Its Tarantula has np / (ep + np) for ep / (ep + np).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Finding, Grid, Needs, Search, Visible
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.methods.waves import check_least, run_waves, wave_sizes

Counts = NDArray[np.float64]  # one number per pixel
Measure = Literal["ochiai", "tarantula", "zoltar", "wong-ii"]


@dataclass(frozen=True)
class Spectrum:
    """Counts of mutants per pixel, each (*grid,): e masked, n visible; f failing (label lost), p passing (label kept)."""

    ef: Counts
    nf: Counts
    ep: Counts
    np: Counts


def ratio(over: Counts, under: Counts) -> Counts:
    """over / under; 0 where under is 0."""
    return np.divide(over, under, out=np.zeros(np.broadcast(over, under).shape), where=under != 0)


def ochiai(a: Spectrum) -> Counts:
    return ratio(a.ef, np.sqrt((a.ef + a.nf) * (a.ef + a.ep)))


def tarantula(a: Spectrum) -> Counts:
    failing, passing = ratio(a.ef, a.ef + a.nf), ratio(a.ep, a.ep + a.np)
    return ratio(failing, failing + passing)


def zoltar(a: Spectrum) -> Counts:
    # ef / (ef + nf + ep + 10000 nf ep / ef), expanded by ef so that ef = 0 gives 0
    return ratio(a.ef**2, a.ef * (a.ef + a.nf + a.ep) + 10_000 * a.nf * a.ep)


MEASURES: dict[Measure, Callable[[Spectrum], Counts]] = {
    "ochiai": ochiai,
    "tarantula": tarantula,
    "zoltar": zoltar,
    "wong-ii": lambda a: a.ef - a.ep,
}


class SpectrumCounter:
    """Accumulates the counts of a `Spectrum`."""

    def __init__(self, grid: Grid) -> None:
        self.masked_failing = np.zeros(grid)
        self.masked_passing = np.zeros(grid)
        self.failing = self.passing = 0

    def add(self, visible: Visible, holds: NDArray[np.bool_]) -> None:
        """Add mutants, (n, *grid), and whether each passed, (n,)."""
        self.masked_failing += np.count_nonzero(~visible[~holds], axis=0)
        self.masked_passing += np.count_nonzero(~visible[holds], axis=0)
        self.failing += int(np.count_nonzero(~holds))
        self.passing += int(np.count_nonzero(holds))

    def spectrum(self) -> Spectrum:
        return Spectrum(
            ef=self.masked_failing,
            nf=self.failing - self.masked_failing,
            ep=self.masked_passing,
            np=self.passing - self.masked_passing,
        )


@dataclass(frozen=True, kw_only=True)
class Sbfl:
    """DC-SBFL: spectrum-based fault localisation on random mutants.

    Attributes:
        mutants: Number of mutants.
        measure: Measure of suspiciousness, one of ochiai, tarantula, zoltar and wong-ii.
        share: Share of the pixels that the first mutants mask (sigma in the paper).
        step: Change of that share, up after a passing mutant and down after a failing one, so that both are about
            equally frequent (epsilon in the paper).
        blocks: Number of blocks along each side of the view; pixels are masked in blocks, on a randomly shifted lattice.
        chains: Number of shares that adapt in parallel, each to its own mutants; one chain, as in the paper, would
            evaluate one mutant at a time.
    """

    mutants: int = 2000
    measure: Measure = "ochiai"
    share: float = 1 / 5
    step: float = 1 / 6
    blocks: int = 6
    chains: int = 32

    name: ClassVar[str] = "sbfl"
    needs: ClassVar[Needs] = "labels"

    def __post_init__(self) -> None:
        if self.measure not in get_args(Measure):
            raise OptionError(f"measure must be one of {', '.join(get_args(Measure))}, not {self.measure!r}")
        check_least(self, mutants=1, blocks=1, chains=1)
        for option in ("share", "step"):
            if not 0.0 < getattr(self, option) < 1.0:
                raise OptionError(f"{option} must lie between 0 and 1, not {getattr(self, option)}")

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        grid = problem.grid
        counter = SpectrumCounter(grid)
        shares = np.full(self.chains, self.share)

        def update(wave: Visible, answers: Answers) -> None:
            counter.add(wave, answers.holds)
            moved = shares[: len(answers)] + np.where(answers.holds, self.step, -self.step)
            shares[: len(answers)] = np.clip(moved, 0.0, 1.0)

        def waves() -> Iterator[Visible]:
            for count in wave_sizes(self.mutants, self.chains):
                yield np.stack([self.mutant(grid, share, rng) for share in shares[:count]])

        yield from run_waves(waves(), update)
        return Finding(MEASURES[self.measure](counter.spectrum()))

    def mutant(self, grid: Grid, share: float, rng: np.random.Generator) -> Visible:
        """One visible set, (*grid,), with about that share masked in blocks: at least one block, and not all."""
        lengths = [-(-side // self.blocks) for side in grid]
        places = [(np.arange(side) + rng.integers(length)) // length for side, length in zip(grid, lengths, strict=True)]
        counts = [int(along[-1]) + 1 for along in places]
        block, count = np.ravel_multi_index(np.ix_(*places), counts), prod(counts)
        masked = np.zeros(count, bool)
        masked[rng.permutation(count)[: min(max(round(share * count), 1), max(count - 1, 1))]] = True
        return ~masked[block]
