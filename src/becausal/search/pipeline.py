"""The whole explanation as one search: a method's map, nested sufficient sets, minimal ones, their checks."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from becausal.core.checks import CheckedSet, Checks, Level, level_name
from becausal.core.contracts import Answers, Finding, Question, Saliency, Search, Stop, Visible
from becausal.core.errors import FillError, OptionError, TargetError
from becausal.core.metrics import iou
from becausal.core.problem import Explainer, Problem, SetExplainer
from becausal.core.regions import cells
from becausal.core.request import Request
from becausal.search.budget import Budget
from becausal.search.drive import BudgetedRun, Terms, drive
from becausal.search.extract import extract
from becausal.search.minimise import Minimal, minimise, present
from becausal.search.twins import claims, confirm_minimal

DIGITS = 6  # of overlaps that are compared, so that rounding decides nothing


@dataclass(frozen=True, eq=False)
class SearchResult:
    """What a pipeline found: the map, nested levels, smallest first, and the classifier's confidence in the whole view.

    The last level is the explanation. others: further explanations, where several were asked for.
    """

    saliency: Saliency
    levels: tuple[Level, ...]
    confidence: float
    others: tuple[CheckedSet, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def visible(self) -> Visible:
        return self.levels[-1].visible

    @property
    def checks(self) -> Checks:
        return self.levels[-1].checks


def run_pipeline(
    problem: Problem, explainer: Explainer, request: Request, run: BudgetedRun, budget: Budget | None = None
) -> Search[SearchResult]:
    """Check that there is something to explain, then search, extract, minimise and verify within the budget.

    problem: its budget is set here. explainer: the method, configured for this request. run: keeps the best set and the
    calls so far, for those who watch. budget: of this part of the explanation; that of the request by default.
    """
    # The order is that of the calls: nothing is searched before there is something to explain, and the method stops early
    # enough for what follows. The last checks are asked in any case, so that a search cut short still ends in a checked set.
    opening = yield from _opening(problem)
    run.spent = opening.spent
    shares = request.shares if problem.floors else request.shares[-1:] if problem.has_scores else (0.0,)
    budget, count = budget or Budget.of(request), len(shares)
    last = budget.set_limit(count)
    limit = last if isinstance(explainer, SetExplainer) else budget.map_limit(count)
    terms = Terms(contrast=request.contrast)
    findings: list[Finding] = []
    for number in range(request.seeds):
        most = budget.share(limit, run.spent, number)
        limited = replace(problem, budget=budget.questions(most, run.spent))
        rng = np.random.default_rng(request.seed + number).spawn(2)[0]
        findings.append((yield from run.follow(explainer.search(limited, rng), terms, limit=most)))
        if run.stopped_by is not None and run.stopped_by != "budget":
            break
    finding = findings[0] if len(findings) == 1 else combine(findings)
    if finding.sets and len(finding.inner) == len(shares) - 1:
        sets = [Minimal(*found) for found in zip_longest((*finding.inner, finding.sets[0]), finding.inner_grains)]
        sets[-1] = Minimal(finding.sets[0], finding.grain)
    else:
        sets = yield from _extract_levels(problem, explainer, request, run, finding.saliency, last)
    run.stage = "verify"
    yield from _ask_together(sets, is_guided=problem.is_guided)
    levels: list[Level] = []
    for share, floor, minimal in zip(shares, problem.floors or (0.0,), sets, strict=True):
        inner = levels[-1].visible if levels else None
        if inner is not None and levels[-1].checks.minimal_grain is None and not (minimal.visible & ~inner).any():
            minimal = replace(minimal, grain=None)  # the same set, so no more is known of it
        minimal, checks = yield from _verify(problem, minimal, inner, floor, finding.saliency)
        levels.append(Level(minimal.visible, checks, level_name(share), share))
    others = []
    for minimal in (Minimal(*found) for found in zip_longest(finding.sets[1:], finding.grains[1:])):
        minimal, checks = yield from _verify(problem, minimal, None, 0.0, finding.saliency)
        others.append(CheckedSet(minimal.visible, checks))
    return SearchResult(finding.saliency, tuple(levels), float(opening.confidence[0]), tuple(others), finding.notes)


def combine(findings: Sequence[Finding]) -> Finding:
    """The mean of the maps, each scaled to a maximum of 1, and the set that overlaps most with the other ones."""
    maps = [finding.saliency / max(float(finding.saliency.max()), 1e-300) for finding in findings]
    mean = np.mean(maps, axis=0)
    found = [finding for finding in findings if finding.sets]
    if not found:
        return Finding(mean, notes=findings[0].notes)
    overlaps = np.array([[iou(a.sets[0], b.sets[0]) for b in found] for a in found])
    best = int(np.argmax(np.round(overlaps.sum(axis=1), DIGITS)))
    if len(found) == 1:
        return replace(found[0], saliency=mean)
    overlap = (overlaps.sum() - len(found)) / (len(found) * (len(found) - 1))
    note = f"{len(findings)} searches: the mean overlap (IoU) of their explanations is {overlap:.2f}"
    return replace(found[best], saliency=mean, notes=(*found[best].notes, note))


def _extract_levels(
    problem: Problem, explainer: Explainer, request: Request, run: BudgetedRun, saliency: Saliency, limit: int | None
) -> Search[list[Minimal]]:
    """Nested prefixes of a map's ranking, one for each floor; with a grain, each is minimised around the one inside it."""
    grain = request.grain_for(explainer, problem.grid)
    sets: list[Minimal] = []
    for floor in problem.floors or (0.0,):
        inner = sets[-1].visible if sets else np.zeros(problem.grid, bool)
        rng = np.random.default_rng(request.seed).spawn(2)[1]  # the same ranking for every level
        run.stage = "extract"
        terms = Terms(always=inner, contrast=request.contrast, floor=floor)
        visible = yield from run.follow(extract(saliency, rng), terms, limit=limit)
        if visible is None and (inner & ~run.visible).any():  # with the best set so far, which keeps every floor
            sets, inner = [Minimal(run.visible, None) for _ in sets], run.visible
        minimal = Minimal(run.visible if visible is None else visible | inner, None)
        if grain is not None:
            run.stage = "minimise"
            terms = Terms(always=inner, contrast=request.contrast, floor=floor)
            shaving = minimise(minimal.visible & ~inner, saliency, finest=grain)
            minimal = yield from run.follow(shaving, terms, limit=limit)
            minimal = replace(minimal, visible=minimal.visible | inner)
        sets.append(minimal)
    return sets


def _opening(problem: Problem) -> Search[Answers]:
    """Evaluate the whole view and the fully masked image; refuse where there is nothing to explain."""
    grid = problem.grid
    try:
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
        raise TargetError(
            "the target does not hold on the whole view, so there is nothing to explain"
            + (f": its confidence there is {answers.confidence[0]:.3f}" if problem.has_scores else "")
        )
    if answers.holds[1]:
        raise FillError(
            "the fully masked image already has this label, so there is nothing to explain under this fill: use another fill"
        )
    return answers


def _ask_together(sets: Sequence[Minimal], *, is_guided: bool) -> Search[None]:
    """Ask what the last checks of all levels ask, and the claims on what a twin found, in one wave: few full batches."""
    if is_guided:
        inside = (None, *(minimal.visible for minimal in sets))
        wave = np.concatenate([claims(minimal, inner) for minimal, inner in zip(sets, inside, strict=False)])
    elif len(sets) > 1:
        wave = np.concatenate([[minimal.visible, ~minimal.visible] for minimal in sets])
    else:
        return
    with suppress(Stop):
        yield Question(wave, exact=True)


def _verify(
    problem: Problem, minimal: Minimal, inner: Visible | None, floor: float, saliency: Saliency
) -> Search[tuple[Minimal, Checks]]:
    """What the model itself says of a set, which may become smaller where a twin found it."""
    if problem.is_guided:
        try:
            minimal = yield from confirm_minimal(minimal, inner, floor, saliency)
        except Stop:  # then nothing is known of its minimality
            minimal = replace(minimal, grain=None)
    return minimal, (yield from drive(last_checks(minimal, inner, is_guided=problem.is_guided), Terms(floor=floor)))


def last_checks(minimal: Minimal, inner: Visible | None = None, *, is_guided: bool = False) -> Search[Checks]:
    """Sufficiency and necessity; minimality was asked on the way, removal by removal of what is not in `inner`.

    is_guided: whether a twin found the set, so that without an answer of the model itself nothing is known of it.
    """
    visible, grain = minimal.visible, minimal.grain
    added = visible if inner is None else visible & ~inner
    count = len(present(added, cells(visible.shape, grain))) if grain else 0
    try:
        answers = yield Question(np.stack([visible, ~visible]), exact=True)
    except Stop as stop:
        answers = stop.answers
    sufficient = bool(answers.holds[0]) if len(answers) else not is_guided  # every set on the way was seen to be sufficient
    confidence = float(answers.confidence[0]) if len(answers) else float("nan")
    necessary = not bool(answers.holds[1]) if len(answers) > 1 else None
    return Checks(sufficient, confidence, necessary, grain, count)
