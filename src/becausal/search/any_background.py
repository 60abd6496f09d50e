"""A set around an explanation that keeps the label on random backgrounds: the search for the level "any".

1. A survey evaluates balanced halves of the patches, each on a random background of its own.
2. The search starts from the best patches, together with the explanation, and removes parts in a chain of rounds. The
   candidates of a round are evaluated on the hardest backgrounds of a panel. The best one must hold on the whole panel.
3. Before the smaller cells are tried, the panel is replaced by the hardest of many backgrounds.
4. The set is evaluated on fresh backgrounds until it has its certificate. Where too many fail, these join the panel. The
   search goes back to the smallest set on its way that holds on the panel, and on from there.

The panel asks for a share of the confidence, not for the label alone: so that the label is kept on other backgrounds, too.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from becausal.core.contracts import Answers, Question, Search, Stop, Visible
from becausal.core.intervals import anytime_bound
from becausal.core.patches import superpixels
from becausal.core.problem import Problem
from becausal.core.regions import default_grain
from becausal.core.searches import Done, step
from becausal.search.budget import before_certificate
from becausal.search.certifying import Tally, certify
from becausal.search.descent.chain import Chain
from becausal.search.descent.lattice import Lattice
from becausal.search.descent.survey import RIDGE, Survey, balanced_halves, fit_effects
from becausal.search.descent.tuning import Tuning
from becausal.search.drive import BudgetedRun, Terms


@dataclass(frozen=True)
class AnyRules:
    """The constants of the search for the level "any"."""

    confidence: float = 0.95  # of the certificate, as is usual
    tries: int = 5  # sets on fresh backgrounds; each has half of the permitted error that is left, so later ones hardly pass
    panel: int = 12  # backgrounds that each set on the way holds on; of those that fail on a fifth of all, 7 % get through
    screened: int = 48  # backgrounds of which the panel becomes the hardest
    hardest: int = 2  # backgrounds of the panel on which candidates are compared: all would cost six times as much
    wave: int = 4  # backgrounds of the panel at a time: a set that fails on the hardest costs no more than these
    kept: float = 0.1  # share of the confidence to keep on the panel: a reserve, so that the label stays on others too
    starts: tuple[float, ...] = (0.25, 0.5, 0.75)  # shares of the patches that may be the start, instead of the whole view
    least_cells: float = 4.0  # of a part: the panel is asked for each removal, so a cell at a time would cost too much
    share: float = 0.15  # of the visible cells that a part has at first, once the larger cells are gone
    first_survey: int = 1_000  # number of a background; the panel has those before it, so no two uses share one
    first_fresh: int = 1_000_000  # number of the first background that no search has seen
    fresh_step: int = 100_000  # backgrounds for each try, more than any certificate takes
    most_margin: float = 8.0  # nats that count in the survey: the label 3,000 times as likely; more says no more


RULES = AnyRules()


@dataclass(frozen=True, eq=False)
class Held:
    """The last set that was evaluated on fresh backgrounds, (*grid,), how often it kept the label, and the confidence."""

    visible: Visible
    tally: Tally
    confidence: float

    def bound(self, share: float) -> float:
        """Lower bound of the share of all backgrounds on which it keeps the label; `share` is what was required."""
        return anytime_bound(self.tally.kept, self.tally.failures, share, self.confidence)


class Panel:
    """The numbers of the backgrounds that sets have to hold on, and the last margins on them; the lower, the harder."""

    def __init__(self, size: int) -> None:
        self.numbers: NDArray[np.intp] = np.arange(size)
        self.margins = np.zeros(size)

    def ask_hardest(self, sets: Visible) -> Search[Answers]:
        """The worst answers of the hardest backgrounds to sets, (n, *grid); what is lost is not asked again."""
        holds, margin, confidence = np.ones(len(sets), bool), np.full(len(sets), np.inf), np.full(len(sets), np.inf)
        spent = 0
        for place in self._order()[: RULES.hardest]:
            left = np.flatnonzero(holds)
            if not len(left):
                break
            answers = yield Question(sets[left], draws=np.full(len(left), self.numbers[place]))
            holds[left], spent = answers.holds, answers.spent
            margin[left] = np.minimum(margin[left], answers.margin)
            confidence[left] = np.minimum(confidence[left], answers.confidence)
        return Answers(holds, margin, confidence, spent)

    def holds(self, visible: Visible) -> Search[bool]:
        """Whether a set, (*grid,), holds on all backgrounds, the hardest first; it ends at the first that fail."""
        order = self._order()
        for start in range(0, len(order), RULES.wave):
            places = order[start : start + RULES.wave]
            answers = yield Question(_copies(visible, len(places)), draws=self.numbers[places])
            self.margins[places] = answers.margin
            if not answers.holds.all():
                return False
        return True

    def screen(self, visible: Visible) -> Search[None]:
        """Evaluate a set on further backgrounds, and keep the hardest of all."""
        size = len(self.numbers)
        fresh = np.arange(size, RULES.screened)
        answers = yield Question(_copies(visible, len(fresh)), draws=fresh)
        self.add(fresh, answers.margin)
        hardest = np.sort(self._order()[:size])
        self.numbers, self.margins = self.numbers[hardest], self.margins[hardest]

    def add(self, numbers: NDArray[np.intp], margins: NDArray[np.float64]) -> None:
        """Further backgrounds, with the margins on them."""
        self.numbers, self.margins = np.concatenate([self.numbers, numbers]), np.concatenate([self.margins, margins])

    def _order(self) -> NDArray[np.intp]:
        return np.argsort(self.margins, kind="stable")


class AnySearch:
    """The search for a set around `inner`, (*grid,), that keeps the label on random backgrounds.

    Attributes:
        seen: The sets on the way, smallest last; the first one is the whole view.
    """

    def __init__(self, problem: Problem, inner: Visible, rng: np.random.Generator) -> None:
        self.problem = problem
        self.inner = inner
        self.rng = rng
        self.panel = Panel(RULES.panel)
        self.lattice = Lattice(problem.grid, default_grain(problem.grid, 28))
        self.costs: NDArray[np.float64] | None = None  # of removing cells of the lattice
        self.seen: list[Visible] = [np.ones(problem.grid, bool)]

    def shrink(self) -> Search[None]:
        """Make a set small that holds on the panel."""
        if (yield from self.panel.holds(self.inner)):
            self.seen.append(self.inner)
            return
        tuning, coarse, costs = Tuning(), Lattice(self.problem.grid, 2 * self.lattice.grain), None
        if np.prod(self.lattice.shape) > tuning.small_lattice:
            survey = yield from self._survey(tuning)
            costs = survey.removal_cost(coarse)
            for part in RULES.starts:
                start = survey.best(round(part * len(survey.contribution))) | self.inner
                if (yield from self.panel.holds(start)):
                    self.seen.append(start)
                    break
        self.costs = coarse.spread((yield from self._descend(coarse, costs, tuning.share)), self.lattice)
        yield from self.panel.screen(self.seen[-1])
        yield from self.go_on()

    def go_on(self) -> Search[None]:
        """Go back to the smallest set that holds on the panel, and on from there."""
        low, high = 0, len(self.seen)  # the whole view holds
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if (yield from self.panel.holds(self.seen[middle])) else (low, middle)
        del self.seen[high:]
        self.costs = yield from self._descend(self.lattice, self.costs, RULES.share)

    def _descend(self, lattice: Lattice, costs: NDArray[np.float64] | None, share: float) -> Search[NDArray[np.float64]]:
        """Remove parts from the last set until none can go; the costs of removing cells."""
        within, start = lattice.restrict(self.seen[-1] & ~self.inner)
        rng = self.rng.spawn(1)[0]
        chain = Chain(Tuning(), within, start, costs, rng, None, accepts=self._accepts)
        if start.any():
            search = chain.shrink(share, least=RULES.least_cells)
            asked = step(search, None)
            while not isinstance(asked, Done):  # the chain's own questions are plain sets, those of `_accepts` have draws
                is_own = not isinstance(asked, Question)
                answers = (yield from self.panel.ask_hardest(asked | self.inner)) if is_own else (yield asked)
                asked = step(search, answers)
        return chain.cost.estimate()

    def _accepts(self, visible: Visible) -> Search[bool]:
        visible = visible | self.inner
        holds = yield from self.panel.holds(visible)
        if holds:
            self.seen.append(visible)
        return holds

    def _survey(self, tuning: Tuning) -> Search[Survey]:
        """What each patch adds to the margin on random backgrounds."""
        patch = superpixels(self.problem.view, tuning.patches)
        shown = balanced_halves(int(patch.max()) + 1, tuning.survey, self.rng.spawn(1)[0])
        answers = yield Question(shown.take(patch, axis=1), draws=RULES.first_survey + np.arange(len(shown)))
        return Survey(patch, fit_effects(shown, np.clip(answers.margin, -RULES.most_margin, RULES.most_margin), RIDGE))


def find_any(
    problem: Problem,
    inner: Visible,
    share: float,
    *,
    confidence: float,
    run: BudgetedRun,
    limit: int | None,
    rng: np.random.Generator,
) -> Search[Held | None]:
    """A set around `inner`, (*grid,), that keeps the label on at least this share of the problem's random backgrounds.

    It is the last set that was evaluated on fresh backgrounds; None where the search was stopped before. confidence: of
    the label on the whole view, NaN from a model that returns labels only. run: counts the calls. limit: on all of them.
    """
    search, held = AnySearch(problem, inner, rng), None
    floor, searching = 0.0 if np.isnan(confidence) else RULES.kept * confidence, before_certificate(limit)
    try:
        for attempt in range(RULES.tries):
            stage = search.go_on() if attempt else search.shrink()
            try:
                yield from run.follow(stage, Terms(floor=floor), limit=searching)
            except Stop as stop:
                if stop.reason != "budget":
                    raise
            first, visible = RULES.first_fresh + attempt * RULES.fresh_step, search.seen[-1]
            fresh = certify(visible, first=first, share=share, confidence=confidence_of(attempt))
            held = Held(visible, (yield from run.follow(fresh, limit=limit)), confidence_of(attempt))
            is_over = run.stopped_by not in (None, "budget") or (searching is not None and run.spent > searching)
            if is_over or held.bound(share) >= share:
                break
            failed = np.array(held.tally.failed, np.intp)
            search.panel.add(failed, np.full(len(failed), -np.inf))
    except Stop:
        return None
    return held


def confidence_of(attempt: int) -> float:
    """The confidence that a certificate needs at the first, second, ... attempt, so that all attempts together have theirs.

    The first one has half of the permitted error, each further one half of what is left.
    """
    return 1 - (1 - RULES.confidence) / 2.0 ** (attempt + 1)


def _copies(visible: Visible, count: int) -> Visible:
    """A set, (*grid,), as this many questions."""
    return np.repeat(visible[None], count, axis=0)
