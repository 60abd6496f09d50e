"""From a method to checked sets, as one search: its map, a sufficient set, one that holds on random backgrounds, checks.

The last evaluation, which comes after that, is in `explaining`.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import isnan

import numpy as np
from numpy.typing import NDArray

from becausal.core.checks import ENOUGH, Against, Certificate, CheckedSet, Checks, Level, level_name
from becausal.core.contracts import Answers, Finding, Held, Question, Saliency, Search, Stop, Visible
from becausal.core.errors import FillError, OptionError, TargetError, TwinError, UnstableModelError
from becausal.core.intervals import exact_interval
from becausal.core.metrics import HELD_OUT, STEPS, Curves, Transfer, iou, prefix, prefixes, ranking
from becausal.core.problem import Explainer, Problem, SetExplainer
from becausal.core.regions import cells
from becausal.core.request import Request
from becausal.core.targets import with_floor
from becausal.search.against import find_against
from becausal.search.budget import Budget
from becausal.search.checking import check_panel, claims, count_kept, last_checks, transfer
from becausal.search.drive import BudgetedRun, drive
from becausal.search.enough import RULES, RankingWay, find_enough
from becausal.search.minimise import Minimal, minimise, present
from becausal.search.twins import confirm_minimal

DIGITS = 6  # of overlaps that are compared, so that rounding decides nothing
ENOUGH_CALLS = 1_800  # that the whole search of a photograph takes, at most, as a rule; measured with ImageNet's
USUAL_CALLS = f"without a limit, most photographs take 800 to {ENOUGH_CALLS:,}"
CHANCE, CHANCE_CALLS = 20, 400  # random backgrounds with no pixel visible, and the limit on calls from which they are asked
NEAR = 2.0  # nats that the target misses with everything masked, below which it may hold by chance on some backgrounds
COARSE = 64  # prefixes on the first, coarse scale of an extraction
WAVE = 4  # prefixes asked at a time on it


@dataclass(frozen=True, eq=False)
class SearchResult:
    """What `run_pipeline` found: the map, one set or two nested ones, and the classifier's confidence in the whole view.

    The last level is the explanation. others: further explanations, where several were asked for. zones: of the map, see
    `Zone`. against: what speaks against the label.
    """

    saliency: Saliency
    levels: tuple[Level, ...]
    confidence: float
    others: tuple[CheckedSet, ...] = ()
    notes: tuple[str, ...] = ()
    zones: NDArray[np.uint8] | None = None
    against: Against | None = None

    @property
    def visible(self) -> Visible:
        return self.levels[-1].visible

    @property
    def checks(self) -> Checks:
        return self.levels[-1].checks


def run_pipeline(
    problem: Problem, explainer: Explainer, request: Request, run: BudgetedRun, first: float | None = None
) -> Search[SearchResult]:
    """Check that there is something to explain, then search, extract, minimise and verify within the budget.

    problem: its budget is set here. explainer: the method, configured for this request. run: keeps the best set and the
    calls so far, for those who watch. first: the confidence in the model's first answer to the whole view, if the target
    held there.
    """
    # The order is that of the calls: nothing is searched before there is something to explain, and the method stops early
    # enough for what follows. The last checks are asked in any case, so that a search cut short still ends in a checked set.
    opening = yield from _opening(problem, problem.floor if request.confidence is not None else 0.0, first)
    run.spent = opening.spent
    budget, confidence = Budget.of(request), float(opening.confidence[0])
    chance = yield from drive(find_chance(problem, float(opening.margin[1]), request.max_calls), run=run)
    # Two limits on the calls so far, both counted from the very first one: `last` is where everything but the last checks
    # has to end, `limit` where the method has to, which leaves the extraction its share of what is between them.
    last = budget.set_limit
    limit = last if isinstance(explainer, SetExplainer) else budget.map_limit
    findings: list[Finding] = []
    for number in range(request.seeds):
        most = budget.share(limit, run.spent, number)
        limited = replace(problem, budget=budget.questions(most, run.spent))
        rng = np.random.default_rng(request.seed + number).spawn(2)[0]  # the second one ranks, see `_extract`
        search = explainer.search(limited, rng)
        findings.append((yield from drive(search, run=run, limit=most, contrast=request.contrast, floor=problem.floor)))
        if run.stopped_by is not None and run.stopped_by != "budget":
            break
    finding = findings[0] if len(findings) == 1 else combine(findings)
    core, held = Minimal(finding.sets[0], finding.grain) if finding.sets else None, finding.enough
    if core is None:
        core = yield from _extract(problem, explainer, request, run, finding.saliency, last)
        if problem.holds is not None and held is None and run.stopped_by in (None, "budget"):
            run.stage = "backgrounds"
            way = RankingWay(problem, finding.saliency, core.visible, np.random.default_rng(request.seed).spawn(2)[1])
            widening = find_enough(way, run=run, limit=last, reserve=budget.certificate)
            held = yield from drive(widening, floor=problem.floor)
    run.stage = "verify"
    notes = () if problem.holds is None else describe_failure(problem.holds, held, run, request.max_calls)
    sets = [core] if held is None or notes else [core, Minimal(held.visible, None)]
    yield from _ask_together(sets, is_guided=problem.is_guided)
    drawn = core.visible
    core, checks = yield from _verify(problem, core, finding.saliency, may_grow=_is_alone(finding, held))
    zones = finding.zones if np.array_equal(core.visible, drawn) else None  # the model itself may have changed it
    share = request.share if problem.has_scores else 0.0
    levels = [Level(core.visible, checks, level_name(share), share)]
    others = []
    for minimal in (Minimal(*found) for found in zip_longest(finding.sets[1:], finding.grains[1:])):
        minimal, checks = yield from _verify(problem, minimal, finding.saliency)
        others.append(CheckedSet(minimal.visible, checks))
    if held is not None and not notes:
        levels.append((yield from _enough_level(problem, held, levels[0])))
    against = None
    if problem.holds is not None and run.stopped_by is None:
        run.stage = "against"
        against = yield from drive(find_against(problem, core.visible, confidence), run=run, limit=last, floor=problem.floor)
    notes = (*finding.notes, *chance, *(notes or describe_steps(finding.enough, run, request.max_calls)))
    result = SearchResult(finding.saliency, tuple(levels), confidence, tuple(others), notes, zones, against)
    count = budget.transfers(len(others)) if run.stopped_by in (None, "budget") else 0
    return (yield from add_transfers(problem, result, count))


def find_chance(problem: Problem, margin: float, max_calls: int | None) -> Search[tuple[str, ...]]:
    """On how many random backgrounds the target holds with no pixel visible, as a note; nothing where that is seldom.

    margin: with everything masked, in the plain fill.
    """
    target = problem.target
    may_hold = target.top > 1 or target.against is not None or (problem.has_scores and margin > -NEAR)
    if problem.holds is None or not may_hold or (max_calls is not None and max_calls < CHANCE_CALLS):
        return ()
    tally = yield from count_kept(np.zeros(problem.grid, bool), first=HELD_OUT, count=CHANCE)
    if tally.kept <= tally.asked / 10:
        return ()
    return (
        f"even with no pixel of the image visible, the target holds on {tally.kept} of {tally.asked} random backgrounds",
    )


def describe_failure(share: float, held: Held | None, run: BudgetedRun, max_calls: int | None) -> tuple[str, ...]:
    """Why there is no set that holds on random backgrounds, as a note; nothing where there is one."""
    goal = f"at least {100 * share:.4g} % of random backgrounds"
    if is_short_of_calls(held, run, max_calls) and (held is None or held.bound < share):
        run.stopped_by = "budget"
        usual = f": {USUAL_CALLS}" if max_calls is not None and max_calls < ENOUGH_CALLS else ""
        return (f"the limit on calls was too low to find a set that holds on {goal}{usual}",)
    if held is None or not held.asked:
        return (f"the search ended before a set was found that holds on {goal}",)
    if held.visible.all():
        return (f"no set smaller than the whole view was found that holds on {goal}",)
    if held.bound >= share:
        return ()
    size, kept = 100 * held.visible.mean(), f"held on {held.asked - held.failures} of {held.asked}"
    last = f"the last one, {size:.0f} % of the view, {kept}"
    return (f"no set was shown to hold on {goal}: {last}; another seed, or a lower share, may find one",)


def is_short_of_calls(held: Held | None, run: BudgetedRun, max_calls: int | None) -> bool:
    """Whether calls ran out, or were so few that the search ended before it had proved a set minimal."""
    if max_calls is None or run.stopped_by is not None:
        return max_calls is not None and run.stopped_by == "budget"
    return max_calls < ENOUGH_CALLS and (held is None or held.grain is None)


def describe_steps(held: Held | None, run: BudgetedRun, max_calls: int | None) -> tuple[str, ...]:
    """That calls were few for the set that holds on random backgrounds, as a note; nothing where they were not."""
    if held is None or held.grain is not None or max_calls is None:
        return ()
    run.stopped_by = run.stopped_by or "budget"
    more = f"more calls, up to {ENOUGH_CALLS:,}," if max_calls < ENOUGH_CALLS else "more calls"
    return (f"with few calls `enough` is searched for in large steps: {more} make it smaller as a rule",)


def _enough_level(problem: Problem, held: Held, core: Level) -> Search[Level]:
    """The set that holds on random backgrounds, and what was shown of it. The search has asked whether it is minimal."""
    grain = (yield from _confirm_panel(problem, held)) if problem.is_guided else held.grain
    checks = yield from drive(last_checks(Minimal(held.visible, None), is_guided=problem.is_guided), floor=problem.floor)
    kept = held.asked - held.failures
    checks = replace(
        checks, minimal_grain=grain, transfer=Transfer(kept, held.asked, *exact_interval(kept, held.asked)),
        cells=0 if grain is None else len(present(held.visible, cells(problem.grid, grain))),
    )  # fmt: skip
    record = {} if problem.sampler is None else problem.sampler.record()
    certificate = Certificate(
        problem.holds or 0.0, held.asked, held.failures, held.bound, RULES.confidence, held.first, record
    )
    return Level(held.visible, checks, ENOUGH, core.share, certificate, held.panel)


def _confirm_panel(problem: Problem, held: Held) -> Search[int | None]:
    """What the model itself says of the panel of a set that a twin found: the side of its cells, None where it is unknown.

    Raises TwinError where the set does not hold on the panel, or holds on it without one of its cells.
    """
    try:
        is_right = yield from drive(check_panel(held.visible, held.panel, held.grain), floor=problem.floor)
    except Stop:
        return None
    if not is_right:  # by how much is not known, so that it may be rounding
        raise TwinError("what a set does on random backgrounds, and to the model it does not", is_wrong=False)
    return held.grain


def add_transfers(problem: Problem, result: SearchResult, count: int) -> Search[SearchResult]:
    """The result, each of its sets evaluated on fresh random backgrounds; the set `enough` was, for its certificate."""

    def measure(found: CheckedSet) -> Search[Checks]:
        if found.checks.transfer is not None or problem.sampler is None or not count:
            return found.checks
        measured = yield from transfer(found.visible, first=HELD_OUT, count=count)
        return replace(found.checks, transfer=measured if measured.asked else None)

    levels, others = [], []
    for level in result.levels:
        levels.append(replace(level, checks=(yield from measure(level))))
    for other in result.others:
        others.append(replace(other, checks=(yield from measure(other))))
    return replace(result, levels=tuple(levels), others=tuple(others))


def combine(findings: Sequence[Finding]) -> Finding:
    """The mean of the maps, each scaled to a maximum of 1, and the set that overlaps most with the other ones."""
    maps = [finding.saliency / max(float(finding.saliency.max()), 1e-300) for finding in findings]
    mean = np.mean(maps, axis=0)
    found = [finding for finding in findings if finding.sets]
    if not found:
        return Finding(mean, notes=findings[0].notes)
    last = [one.sets[0] if one.enough is None else one.enough.visible for one in found]
    overlaps = np.array([[iou(one, other) for other in last] for one in last])
    best = int(np.argmax(np.round(overlaps.sum(axis=1), DIGITS)))
    if len(found) == 1:
        return replace(found[0], saliency=mean, zones=None)  # those of one map are not those of the mean
    overlap = (overlaps.sum() - len(found)) / (len(found) * (len(found) - 1))  # without each set's overlap with itself
    note = f"{len(findings)} searches: the mean overlap (IoU) of their explanations is {overlap:.2f}"
    return replace(found[best], saliency=mean, notes=(*found[best].notes, note), zones=None)


def _extract(
    problem: Problem, explainer: Explainer, request: Request, run: BudgetedRun, saliency: Saliency, limit: int | None
) -> Search[Minimal]:
    """The smallest prefix of a map's ranking that is sufficient; with a grain, it is minimised."""
    grain, floor = request.grain_for(explainer, problem.grid), problem.floor
    rng = np.random.default_rng(request.seed).spawn(2)[1]
    run.stage = "extract"
    # The model itself answers, not a twin: a pixel less loses the target, so that rounding would move the end of the prefix.
    found = extract(saliency, rng)
    visible = yield from drive(found, run=run, limit=limit, exact=True, contrast=request.contrast, floor=floor)
    # Where no prefix was seen to hold, the smallest set that was, for whatever reason it was asked, is the next best.
    visible = run.visible if visible is None else visible
    if grain is None or run.stopped_by not in (None, "budget"):
        return Minimal(visible, None)
    run.stage = "minimise"
    shaving = minimise(visible, saliency, finest=grain)
    return (yield from drive(shaving, run=run, limit=limit, contrast=request.contrast, floor=floor))


def _opening(problem: Problem, floor: float, first: float | None) -> Search[Answers]:
    """Evaluate the whole view and the fully masked image; refuse where there is nothing to explain.

    floor: what the fully masked image may keep of the confidence, where a share of it was asked for. first: as in
    `run_pipeline`.
    """
    grid = problem.grid
    try:
        # The whole view a second time: its first answer, which chose the target, is not in the cache (`RunningSearch.look`).
        # That the two are alike is checked at the end (`explaining.confirm`).
        answers = yield Question(np.stack([np.ones(grid, bool), np.zeros(grid, bool)]), exact=True)
    except Stop as stop:
        if stop.reason == "interrupt":
            raise KeyboardInterrupt from None
        if stop.cause is not None:
            raise stop.cause from stop.cause.__cause__
        raise OptionError(
            "max_calls is too small: not even the whole view and the fully masked image can be evaluated"
        ) from None
    if not answers.holds[0]:
        found = float(answers.confidence[0])
        if first is not None:
            said = "" if isnan(found) else f" (confidence {first:.3f}, then {found:.3f})"
            raise UnstableModelError(f"the model gave two different answers to the same image{said}: {guess_cause(problem)}")
        said = "the target does not hold on the whole view, so there is nothing to explain"
        raise TargetError(said if isnan(found) else f"{said}: its confidence there is {found:.3f}")
    if with_floor(answers, floor).holds[1]:
        raise FillError(
            "the fully masked image already has this label, so there is nothing to explain under this fill: use another fill"
        )
    return answers


def guess_cause(problem: Problem) -> str:
    """Why a model may give two answers to the whole view, and what to do, in words."""
    if problem.model is not None and problem.model.info.is_costly:
        return "ask for a shorter answer, or give choices with --labels"
    return "is dropout still on, or is there randomness in it? If not, use --batch-size 1"


def _ask_together(sets: Sequence[Minimal], *, is_guided: bool) -> Search[None]:
    """Ask what the last checks of all levels ask, and the claims on what a twin found, in one wave: few full batches."""
    if is_guided:
        wave = np.concatenate([claims(minimal) for minimal in sets])
    elif len(sets) > 1:
        wave = np.concatenate([[minimal.visible, ~minimal.visible] for minimal in sets])
    else:
        return
    with suppress(Stop):
        yield Question(wave, exact=True)  # the answers are not needed here: they are in the cache when `_verify` asks


def _is_alone(finding: Finding, held: Held | None) -> bool:
    """Whether nothing depends on the pixels of the explanation: no zones, no set around it, no other explanation."""
    return held is None and finding.zones is None and len(finding.sets) < 2


def _verify(
    problem: Problem, minimal: Minimal, saliency: Saliency, *, may_grow: bool = False
) -> Search[tuple[Minimal, Checks]]:
    """What the model itself says of a set, which may change a little where a twin found it."""
    if problem.is_guided:
        try:
            minimal = yield from confirm_minimal(minimal, problem.floor, saliency, may_grow=may_grow)
        except Stop:  # then nothing is known of its minimality
            minimal = replace(minimal, grain=None)
    return minimal, (yield from drive(last_checks(minimal, is_guided=problem.is_guided), floor=problem.floor))


def extract(saliency: Saliency, rng: np.random.Generator) -> Search[Visible | None]:
    """The smallest prefix of the ranking that keeps the target, in coarse steps and then fine ones.

    The coarse steps go up in 64ths of the view until one holds; bisection then closes in on a prefix that holds while
    the one with a pixel less does not. None if stopped before any prefix was seen to hold.
    """
    grid = saliency.shape
    order = ranking(saliency, rng)
    steps = np.unique(np.linspace(0, len(order), min(COARSE, len(order)) + 1).round().astype(int))[1:]
    low, high = 0, 0
    try:
        for start in range(0, len(steps), WAVE):
            counts = steps[start : start + WAVE]
            answers = yield np.stack([prefix(order, int(c), grid) for c in counts])
            if answers.holds.any():
                first = int(np.argmax(answers.holds))
                high = int(counts[first])
                low = int(counts[first - 1]) if first else low
                break
            low = int(counts[-1])
        while high - low > 1:
            middle = (low + high) // 2
            answers = yield prefix(order, middle, grid)[None]
            low, high = (low, middle) if answers.holds[0] else (middle, high)
    except Stop:
        pass
    return prefix(order, high, grid) if high else None


def trace_curves(saliency: Saliency, rng: np.random.Generator, *, steps: int = STEPS) -> Search[Curves]:
    """Evaluate the 2·(steps + 1) mutants of insertion and deletion."""
    shown = prefixes(saliency, rng, steps=steps)
    answers = yield np.concatenate([shown, ~shown])
    return Curves(answers.confidence[: steps + 1], answers.confidence[steps + 1 :])
