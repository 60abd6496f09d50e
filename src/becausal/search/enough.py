"""The set `enough`: it keeps the label on random backgrounds, is certified on fresh ones, and minimal on a recorded panel.

1. A survey evaluates balanced halves of the patches, each on a random background of its own.
2. The search starts from the best patches that hold on a panel of backgrounds, and removes random parts of its cells in a
   chain of rounds. The candidates of a round are evaluated on the hardest background. The best one must hold on them all.
3. When about half of the view is left, the set is evaluated on more backgrounds, and the hardest of them, but for a few,
   become the panel. The search goes back to the smallest set on its way that holds on it, and on from there.
4. Large cells are removed until each single removal has failed on the panel: that is the proof of minimality.
5. The set is evaluated on fresh backgrounds until it has its certificate. Where too many fail, the easier half of these
   joins the panel, and the search goes back again.

On every set of the panel the plain fill counts too: there the set keeps the share of the confidence that `core` keeps, so
that `core` is found inside. A map has a way of its own, the prefixes of its ranking (`RankingWay`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Done, Held, Question, Saliency, Search, Stop, Visible, step
from becausal.core.intervals import anytime_bound
from becausal.core.metrics import prefix, ranking
from becausal.core.patches import superpixels
from becausal.core.problem import Problem
from becausal.core.regions import cells, default_grain
from becausal.search.checking import Tally, certify
from becausal.search.descent import Chain, Lattice, Tuning
from becausal.search.drive import BudgetedRun, drive
from becausal.search.minimise import settle
from becausal.search.survey import RIDGE, Survey, balanced_halves, fit_effects


@dataclass(frozen=True)
class EnoughRules:
    """The constants of the search."""

    confidence: float = 0.95  # of the certificate, as is usual
    tries: int = 4  # sets on fresh backgrounds; each has half of the permitted error that is left, so later ones hardly pass
    survey: int = 88  # halves of the patches, each on a background of its own
    patches: int = 40
    starts: tuple[float, ...] = (0.4, 0.55, 0.7, 0.85)  # shares of the patches that may be the start, not the view
    panel: int = 8  # backgrounds that each set on the way holds on
    screened: int = 40  # backgrounds of which the second panel is chosen
    left_out: int = 1  # of the hardest of these: a certificate of 0.9 permits failures, and size is bought by allowing some
    wave: int = 4  # backgrounds of the panel at a time: a set that fails costs no more than these
    candidates: int = 8  # parts that are drawn in a round
    cells: int = 14  # along the longest side, of which parts consist
    half: float = 0.45  # of the view: from here on with the second panel
    shares: tuple[float, ...] = (0.3, 0.15)  # of the visible cells that a part has at first, before and after that
    least: float = 4.0  # cells of the smallest part: the panel is asked for each removal, so a cell at a time costs too much
    last: int = 0  # backgrounds at a time that a set is tried on in the end, until it holds on all of them; 0 for none
    proof: int = 5  # cells along the longest side, of which none can go
    steps: int = 64  # prefixes of a map's ranking that are tried
    fresh: int = 32  # fresh backgrounds at a time, at most
    failures: int = 1_000  # on fresh backgrounds, with which a set is given up at once
    share: float = 0.85  # of the calls of an image, where they are limited, that this search may take
    certificate: int = 60  # of these, that are kept back for the certificate
    removing: float = 0.6  # of the others, after which no further parts are removed where calls are few
    first_survey: int = 1_000  # number of a background; the panel has those before it, so no two uses share one
    first_fresh: int = 1_000_000  # number of the first background that no search has seen
    fresh_step: int = 100_000  # backgrounds for each try, more than any certificate takes
    most_margin: float = 8.0  # nats that count in the survey: the label 3,000 times as likely; more says no more


RULES = EnoughRules()
#: The same where calls are few: larger patches and cells, fewer of everything, and no proof of minimality.
FEW = EnoughRules(
    survey=24, patches=14, starts=(0.3, 0.45, 0.6, 0.75, 0.9), panel=3, wave=1, candidates=4, cells=9, shares=(0.4, 0.3),
    least=1.5, last=10, fresh=8, failures=2,
    share=0.95, certificate=62,
)  # fmt: skip
FEW_CALLS = 636  # for the search: what 700 leave, of an image; from here on they are no longer few
LEAST_CALLS = 100  # with fewer, no such set is looked for


def choose_rules(calls: int | None) -> EnoughRules:
    """The constants for a search of at most so many calls, None for no limit."""
    return RULES if calls is None or calls >= FEW_CALLS else FEW


class Panel:
    """The numbers of the backgrounds that sets have to hold on, and the last margins on them; the lower, the harder."""

    def __init__(self, rules: EnoughRules) -> None:
        self.rules = rules
        self.numbers: NDArray[np.intp] = np.arange(rules.panel)
        self.margins = np.zeros(rules.panel)
        self.tried = rules.screened  # those before it are used, or may be

    def judge(self, sets: Visible, waves: Sequence[int], *, plain: bool) -> Search[Answers]:
        """The worst answers of all backgrounds to sets, (n, *grid), the hardest first; what has failed is asked no more.

        waves: how many backgrounds are asked at a time; those left over are not asked. plain: whether the plain fill is.
        """
        count, order, at = len(sets), np.argsort(self.margins, kind="stable"), 0
        worst = Answers(np.ones(count, bool), np.full(count, np.inf), np.full(count, np.inf))
        for wave in waves:
            left, places = np.flatnonzero(worst.holds), order[at : at + wave]
            if not len(left) or not len(places):
                break
            at += wave
            rows, draws = np.repeat(sets[left], len(places), axis=0), np.tile(self.numbers[places], len(left))
            worst, margins = lower(worst, left, (yield Question(rows, draws=draws)))
            if len(left) == 1:
                self.margins[places] = margins[0]
        left = np.flatnonzero(worst.holds)
        if plain and len(left):
            worst, _ = lower(worst, left, (yield Question(sets[left])))
        return worst

    def holds(self, visible: Visible) -> Search[bool]:
        """Whether a set, (*grid,), holds on all backgrounds and in the plain fill."""
        return bool((yield from self.judge(visible[None], [self.rules.wave] * len(self.numbers), plain=True)).holds[0])

    def screen(self, visible: Visible) -> Search[None]:
        """Evaluate a set on further backgrounds, and keep the hardest of all but for the very hardest."""
        rules = self.rules
        further = np.arange(len(self.numbers), rules.screened)
        answers = yield Question(np.repeat(visible[None], len(further), axis=0), draws=further)
        self.add(further, answers.margin)
        # As one of the panel may fail on the set as it is, it may also fail on the smaller ones that follow.
        kept = np.argsort(self.margins, kind="stable")[rules.left_out : rules.left_out + rules.panel]
        self.numbers, self.margins = self.numbers[kept], self.margins[kept]

    def try_further(self, visible: Visible) -> Search[bool]:
        """Evaluate a set on backgrounds that are in no panel yet; where it fails, they join this one."""
        start = self.tried
        self.tried += self.rules.last
        further = np.arange(start, self.tried)
        answers = yield Question(np.repeat(visible[None], len(further), axis=0), draws=further)
        self.add(further[~answers.holds], answers.margin[~answers.holds])
        return bool(answers.holds.all())

    def learn(self, tally: Tally) -> None:
        """Add the easier half of the backgrounds on which a set has failed: later ones may fail on the hardest, too."""
        failed, margins = np.array(tally.failed, np.intp), np.array(tally.margins)
        easier = np.argsort(-margins, kind="stable")[: (len(failed) + 1) // 2]
        self.add(failed[easier], margins[easier])

    def add(self, numbers: NDArray[np.intp], margins: NDArray[np.float64]) -> None:
        """Further backgrounds, with the margins on them."""
        self.numbers, self.margins = np.concatenate([self.numbers, numbers]), np.concatenate([self.margins, margins])


def lower(worst: Answers, left: NDArray[np.intp], answers: Answers) -> tuple[Answers, NDArray[np.float64]]:
    """The worst answers so far, with further ones to the sets `left`, set by set; and their margins, a row each."""
    shape = len(left), -1
    margins = answers.margin.reshape(shape)
    holds, margin, confidence = worst.holds.copy(), worst.margin.copy(), worst.confidence.copy()
    holds[left] &= answers.holds.reshape(shape).all(axis=1)
    margin[left] = np.minimum(margin[left], margins.min(axis=1))
    confidence[left] = np.minimum(confidence[left], answers.confidence.reshape(shape).min(axis=1))
    return Answers(holds, margin, confidence, answers.spent), margins


class Way:
    """Sets, from the whole view down, and the panel they have to hold on. seen: the smallest last; the first is the view.

    grain: the side of the cells of which none can be removed from the last set, None where this was not shown.
    """

    def __init__(self, problem: Problem, rules: EnoughRules = RULES) -> None:
        self.problem, self.rules = problem, rules
        self.panel = Panel(rules)
        self.seen: list[Visible] = [np.ones(problem.grid, bool)]
        self.grain: int | None = None

    def begin(self) -> Search[None]:
        """Make a set small that holds on the panel."""
        raise NotImplementedError

    def go_on(self) -> Search[None]:
        """Go back to the smallest set that holds on the panel, and on from there."""
        yield from self.go_back()

    def go_back(self) -> Search[None]:
        low, high = 0, len(self.seen) - 1  # the whole view holds
        try:
            if high and (yield from self.panel.holds(self.seen[high])):
                low = high
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if (yield from self.panel.holds(self.seen[middle])) else (low, middle)
        finally:  # stopped, it ends with a set that was seen to hold
            del self.seen[low + 1 :]


class RankingWay(Way):
    """The prefixes of a map's ranking, with a set, (*grid,), that belongs to all of them."""

    def __init__(self, problem: Problem, saliency: Saliency, inner: Visible, rng: np.random.Generator) -> None:
        super().__init__(problem)
        order = ranking(saliency, rng)
        counts = np.unique(np.linspace(0, len(order), min(RULES.steps, len(order)) + 1).round().astype(int))
        self.seen += [prefix(order, int(count), problem.grid) | inner for count in counts[-2::-1]]

    def begin(self) -> Search[None]:
        every = self.seen[:]
        yield from self.go_back()
        yield from self.panel.screen(self.seen[-1])
        self.seen = every
        yield from self.go_back()


class DescentWay(Way):
    """A survey on random backgrounds, then removals: of random parts, and in the end of single cells.

    survey: None on small lattices. costs: (*lattice,) of removing cells. limit: on the calls of an image so far. until: the
    calls from which on no further parts are removed.
    """

    def __init__(
        self, problem: Problem, rng: np.random.Generator, rules: EnoughRules = RULES, limit: int | None = None
    ) -> None:
        super().__init__(problem, rules)
        is_short = limit is not None and rules.last
        self.until = (limit - rules.certificate) * rules.removing if is_short and limit is not None else np.inf
        self.rng = rng
        self.survey: Survey | None = None
        self.lattice = Lattice(problem.grid, default_grain(problem.grid, rules.cells))
        self.costs: NDArray[np.float64] | None = None
        self.spent = 0

    def begin(self) -> Search[None]:
        if np.prod(self.lattice.shape) > Tuning().small_lattice:
            yield from self._find_start()
        if self.rules.last:
            yield from self._remove_parts(0)
            while not (yield from self.panel.try_further(self.seen[-1])):
                yield from self.go_back()
                yield from self._remove_parts(1)
            return
        yield from self._remove_parts(0, stop_at=self.rules.half)
        yield from self.panel.screen(self.seen[-1])
        yield from self.go_back()
        yield from self._remove_parts(1)
        yield from self._prove()

    def go_on(self) -> Search[None]:
        yield from self.go_back()
        if not self.rules.last:
            yield from self._prove()

    def _find_start(self) -> Search[None]:
        """A survey on random backgrounds, and the fewest of its best patches that hold on the panel."""
        rules = self.rules
        patch = superpixels(self.problem.view, rules.patches)
        shown = balanced_halves(int(patch.max()) + 1, rules.survey, self.rng.spawn(1)[0])
        answers = yield Question(shown.take(patch, axis=1), draws=rules.first_survey + np.arange(len(shown)))
        self.spent = answers.spent
        margin = np.clip(answers.margin, -rules.most_margin, rules.most_margin)
        survey = self.survey = Survey(patch, fit_effects(shown, margin, RIDGE))  # what each adds on random backgrounds
        self.costs = survey.removal_cost(self.lattice)
        starts = [survey.best(round(part * len(survey.contribution))) for part in rules.starts]
        for number, start in enumerate(starts):
            if (yield from self.panel.holds(start)):
                self.seen += starts[number:][::-1]  # the larger ones are there to go back to
                break

    def _prove(self) -> Search[None]:
        """Remove large cells until none can go."""
        self.grain = None
        grain, lattice = default_grain(self.problem.grid, self.rules.proof), self.lattice
        number = cells(self.problem.grid, grain)
        expected = np.zeros(int(number.max()) + 1)
        if self.costs is not None:  # a larger cell costs what its pixels do
            per_pixel = lattice.expand(self.costs / lattice.sum_cells(np.ones(self.problem.grid)))
            expected = np.bincount(number.ravel(), per_pixel.ravel()).astype(np.float64)
        if (yield from self._settle(number, expected)):
            self.grain = grain

    def _settle(self, number: NDArray[np.intp], expected: NDArray[np.float64]) -> Search[bool]:
        """Remove cells until none can go; whether that was reached."""
        search = settle(self.seen[-1], number, expected, solid=True)
        # Most removals fail, and most of these on the hardest background.
        wave = self.rules.wave
        waves = (1, max(1, wave - 1), *[wave] * len(self.panel.numbers))
        asked = step(search, None)
        while not isinstance(asked, Done):
            try:
                message: Answers | Stop = yield from self.panel.judge(Question.of(asked).visible, waves, plain=True)
            except Stop as stop:
                message = Stop(stop.reason, None, stop.cause)  # the answers are those of some backgrounds only
            asked = step(search, message)
            if isinstance(message, Stop) and isinstance(asked, Done):
                self.seen.append(asked.result.visible)
                raise message
        self.seen.append(asked.result.visible)
        return asked.result.finished

    def _remove_parts(self, stage: int, *, stop_at: float = 0.0) -> Search[None]:
        """Random parts of the cells, in a chain of rounds, until a share of the view is left or no part can go.

        Candidates are compared on the hardest background: all would cost as many times as much as there are.
        """

        def accepts(visible: Visible) -> Search[bool]:
            holds = yield from self.panel.holds(visible)
            if holds:
                self.seen.append(visible)
            return holds

        if self.spent >= self.until:
            return
        within, start = self.lattice.restrict(self.seen[-1])
        tuning = replace(Tuning(), parts=self.rules.candidates)
        chain = Chain(tuning, within, start, self.costs, self.rng.spawn(1)[0], None, accepts=accepts)
        search = chain.shrink(self.rules.shares[stage], least=self.rules.least, stop_at=stop_at)
        asked = step(search, None)
        while not isinstance(asked, Done):  # the chain's own questions are plain arrays, those of `accepts` are not
            is_own = not isinstance(asked, Question)
            answers = (yield from self.panel.judge(np.asarray(asked), (1,), plain=False)) if is_own else (yield asked)
            self.spent = answers.spent
            if self.spent >= self.until:
                break
            asked = step(search, answers)
        self.costs = chain.cost.estimate()


def find_enough(way: Way, *, run: BudgetedRun, limit: int | None = None, reserve: int = 0) -> Search[Held | None]:
    """A set that keeps the label on `Problem.holds` of the random backgrounds, at least; see `Held.bound`.

    It is the last set that was evaluated on fresh backgrounds; None where the search was stopped before. run: counts the
    calls. limit: on all of them. reserve: calls of these that the certificate needs.
    """
    share, held = way.problem.holds, None
    if share is None:
        return None
    searching = None if limit is None else limit - reserve
    for attempt in range(RULES.tries):
        try:
            yield from drive(way.go_on() if attempt else way.begin(), run=run, limit=searching)
        except Stop as stop:
            if stop.reason != "budget":
                return held
        # Fresh ones for each try: the set was fitted to all that were asked before, and on them a bound claims too much.
        first, visible, sure = RULES.first_fresh + attempt * RULES.fresh_step, way.seen[-1], confidence_of(attempt)
        if way.rules.last and visible.all():
            return held
        asking = certify(
            visible, first=first, share=share, confidence=sure, wave=way.rules.fresh, most_failures=way.rules.failures
        )
        try:
            tally = yield from drive(asking, run=run, limit=limit)
        except Stop:
            return held
        bound = anytime_bound(tally.kept, tally.failures, share, sure)
        panel = tuple(way.panel.numbers.tolist())
        held = Held(visible, way.grain, panel, first, tally.asked, tally.failures, bound)
        is_over = run.stopped_by not in (None, "budget") or (searching is not None and run.spent > searching)
        if is_over or bound >= share:
            break
        way.panel.learn(tally)
    return held


def confidence_of(attempt: int) -> float:
    """The confidence that a certificate needs at the first, second, ... attempt, so that all attempts together have theirs.

    The first one has half of the permitted error, each further one half of what is left.
    """
    return 1 - (1 - RULES.confidence) / 2.0 ** (attempt + 1)
