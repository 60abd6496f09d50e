"""The page about a check: every rule, and the images that break it as thumbnails."""

from collections.abc import Sequence
from typing import Any

from becausal.batch.criteria import Criterion
from becausal.batch.reading import BatchRun
from becausal.batch.rules import format_limit
from becausal.batch.verdicts import RuleVerdict, Verdict
from becausal.core.version import __version__
from becausal.render.pages import render_page
from becausal.render.thumbnails import make_thumbnail


def render_check(verdict: Verdict, criteria: Sequence[Criterion], run: BatchRun, baseline: BatchRun | None) -> str:
    """The page as text. Explanations that cannot be read have no thumbnail, and are noted in `BatchRun.unreadable`."""
    return render_page(
        "check.html",
        verdict=verdict,
        run_name=run.folder.name,
        baseline_name=None if baseline is None else baseline.folder.name,
        notes=run.notes,
        model=run.options.get("model"),
        rules=[
            {"verdict": rule, "cards": _make_cards(rule, criterion, run, baseline)}
            for rule, criterion in zip(verdict.rules, criteria, strict=True)
        ],
        limit=format_limit,
        version=__version__,
    )


def _make_cards(rule: RuleVerdict, criterion: Criterion, run: BatchRun, baseline: BatchRun | None) -> list[dict[str, Any]]:
    cards = []
    for each in rule.worst:
        sources = [_paint(run, each.id, criterion)] if each.label is not None else []
        if baseline is not None and each.baseline_id is not None:
            sources.insert(0, _paint(baseline, each.baseline_id))
        cards.append({"offender": each, "name": each.image.rsplit("/", 1)[-1], "sources": sources})
    return cards


def _paint(run: BatchRun, number: int, criterion: Criterion | None = None) -> str:
    """The thumbnail of an explanation, with the rule's place outlined; empty if it cannot be read."""
    try:
        explanation = run.load(number)
        place = None if criterion is None or explanation.visible.ndim != 2 else criterion.place
        row = next(run.rows("id = ?", number))
        return make_thumbnail(explanation, None if place is None else place.outline(row, explanation.frame))
    except Exception as error:  # arrays of a damaged explanation can be anything
        run.skip(number, error)
        return ""
