"""DC-SBFL: pixels ranked as suspects, as statistical fault localisation ranks the lines of a failing program.

After Sun, Chockler, Huang, Kroening: Explaining image classifiers using statistical fault localization, ECCV 2020. A
mutant is a test: it passes if it keeps the label. A pixel takes part in the test (is *executed*) if it is hidden in it,
so a pixel is suspect that is hidden in the tests that fail and shown in those that pass.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Finding, Grid, Needs, Saliency, Search, Visible
from becausal.core.errors import OptionError
from becausal.core.problem import Problem
from becausal.methods.waves import sizes, stream

Counts = NDArray[np.float64]  # one number per pixel
Measure = Literal["ochiai", "tarantula", "zoltar", "wong-ii"]


@dataclass(frozen=True)
class Spectrum:
    """Per pixel: e hidden, n shown; f in mutants that lost the label, p in mutants that kept it. Each (*grid,)."""

    ef: Counts
    nf: Counts
    ep: Counts
    np: Counts


def ratio(over: Counts, under: Counts) -> Counts:
    """over / under, 0 where both are."""
    return np.divide(over, under, out=np.zeros(np.broadcast(over, under).shape), where=under != 0)


def ochiai(a: Spectrum) -> Counts:
    return ratio(a.ef, np.sqrt((a.ef + a.nf) * (a.ef + a.ep)))


def tarantula(a: Spectrum) -> Counts:
    failing, passing = ratio(a.ef, a.ef + a.nf), ratio(a.ep, a.ep + a.np)
    return ratio(failing, failing + passing)


def zoltar(a: Spectrum) -> Counts:
    # ef / (ef + nf + ep + 10000 nf ep / ef), both sides times ef so that ef = 0 gives 0
    return ratio(a.ef**2, a.ef * (a.ef + a.nf + a.ep) + 10_000 * a.nf * a.ep)


def wong_ii(a: Spectrum) -> Counts:
    return a.ef - a.ep


MEASURES: dict[Measure, Callable[[Spectrum], Counts]] = {
    "ochiai": ochiai,
    "tarantula": tarantula,
    "zoltar": zoltar,
    "wong-ii": wong_ii,
}


class Tally:
    """The four counts, kept up mutant by mutant."""

    def __init__(self, grid: Grid) -> None:
        self.hidden_failing = np.zeros(grid)
        self.hidden_passing = np.zeros(grid)
        self.failing = self.passing = 0

    def add(self, visible: Visible, holds: NDArray[np.bool_]) -> None:
        """Count (n, *grid) mutants in, of which `holds` (n,) passed."""
        self.hidden_failing += np.count_nonzero(~visible[~holds], axis=0)
        self.hidden_passing += np.count_nonzero(~visible[holds], axis=0)
        self.failing += int(np.count_nonzero(~holds))
        self.passing += int(np.count_nonzero(holds))

    def spectrum(self) -> Spectrum:
        return Spectrum(
            ef=self.hidden_failing,
            nf=self.failing - self.hidden_failing,
            ep=self.hidden_passing,
            np=self.passing - self.hidden_passing,
        )


@dataclass(frozen=True, kw_only=True)
class Sbfl:
    """DC-SBFL, `sbfl`.

    mutants: how many are asked. measure: of suspicion. share: sigma, the share of the pixels the first mutants hide.
    step: epsilon, by how much the share goes up after a mutant that passed and down after one that failed, so that both
    kinds come about equally often. blocks: pixels are hidden in blocks, this many along each side of the view, on a
    lattice shifted anew for every mutant. chains: so many shares adapt side by side, each from its own answers one by
    one as in the paper; one chain would ask one question at a time.
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
            raise OptionError(f"measure is one of {', '.join(get_args(Measure))}, not {self.measure!r}")
        for option, least in (("mutants", 1), ("blocks", 1), ("chains", 1)):
            if getattr(self, option) < least:
                raise OptionError(f"{option} must be at least {least}, not {getattr(self, option)}")
        for option in ("share", "step"):
            if not 0.0 < getattr(self, option) < 1.0:
                raise OptionError(f"{option} must lie between 0 and 1, not {getattr(self, option)}")

    def search(self, problem: Problem, rng: np.random.Generator) -> Search[Finding]:
        grid = problem.grid
        tally = Tally(grid)
        shares = np.full(self.chains, self.share)

        def learn(wave: Visible, answers: Answers) -> None:
            tally.add(wave, answers.holds)
            moved = shares[: len(answers)] + np.where(answers.holds, self.step, -self.step)
            shares[: len(answers)] = np.clip(moved, 0.0, 1.0)

        def waves() -> Iterator[Visible]:
            for count in sizes(self.mutants, self.chains):
                yield np.stack([self.mutant(grid, share, rng) for share in shares[:count]])

        yield from stream(waves(), learn)
        return Finding(self.suspicion(tally))

    def mutant(self, grid: Grid, share: float, rng: np.random.Generator) -> Visible:
        """One set, (*grid,), with about that share of it hidden in blocks: never nothing, never everything."""
        block, count = np.zeros(grid, np.intp), 1
        for axis, side in enumerate(grid):
            length = -(-side // self.blocks)
            along = (np.arange(side) + rng.integers(length)) // length
            shape = [1] * len(grid)
            shape[axis] = side
            block = block * (along[-1] + 1) + along.reshape(shape)
            count *= int(along[-1]) + 1
        hidden = np.zeros(count, bool)
        hidden[rng.permutation(count)[: min(max(round(share * count), 1), max(count - 1, 1))]] = True
        return ~hidden[block]

    def suspicion(self, tally: Tally) -> Saliency:
        """The measure of every pixel, (*grid,)."""
        return MEASURES[self.measure](tally.spectrum())
