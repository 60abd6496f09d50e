"""Claims of an explanation, asked again."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from becausal.core.certificates import Certificate, count_kept
from becausal.core.checks import Claim, Level, check, compare
from becausal.core.errors import InputError, ModelError
from becausal.core.explanation import ExplanationRecord
from becausal.core.intervals import anytime_bound
from becausal.core.problem import Problem
from becausal.engine.engine import Engine
from becausal.images.backgrounds import Backgrounds, BackgroundSpec, make_backgrounds
from becausal.images.loading import read_like
from becausal.models import as_classifier


def verify(explanation: ExplanationRecord, model: Any, *, backgrounds: BackgroundSpec = None) -> list[Claim]:
    """Ask the model every claim of an explanation again.

    Args:
        explanation: What to verify.
        model: The model to ask, as in `explain`.
        backgrounds: The folder or function that the random backgrounds of the level "any" came from, if they were not our
            own. No folder is read that is not given here.

    Returns:
        Each claim as it was stated and as it was found now.

    Raises:
        ModelError: The model expects images of another size, or is a classifier where a detector was explained.
    """
    engine = Engine(as_classifier(model))
    _check_model(explanation, engine)
    contrast, claims = explanation.origin.contrast, []
    inner = None
    for level in explanation.levels:
        target = replace(explanation.target, floor=level.share * explanation.confidence if level.share else 0.0)
        problem = Problem(explanation.view, explanation.backgrounds, target)
        search = check(level.visible, grain=level.checks.minimal_grain, contrast=contrast, inner=inner)
        found = compare(level.checks, engine.run(problem, search).result)
        if level.certificate is not None:
            found.append(_certify_again(engine, problem, level, level.certificate, backgrounds))
        inner = level.visible
        is_last = level is explanation.level
        claims += found if is_last else [replace(claim, name=f"level {level.name}: {claim.name}") for claim in found]
    problem = Problem(explanation.view, explanation.backgrounds, explanation.target)
    for number, stated in enumerate(explanation.others, start=2):
        search = check(stated.visible, grain=stated.checks.minimal_grain, contrast=contrast)
        found = compare(stated.checks, engine.run(problem, search).result)
        claims += [replace(claim, name=f"explanation {number}: {claim.name}") for claim in found]
    return claims


def _check_model(explanation: ExplanationRecord, engine: Engine) -> None:
    """Raise ModelError for a model that cannot be asked about this explanation."""
    other = "it is not the model that was explained"
    info, view, shape = engine.classifier.info, explanation.view, explanation.view.shape
    if info.geometry is not None and info.geometry.grid != shape[:-1]:
        stated, expected = (" x ".join(str(side) for side in reversed(grid)) for grid in (shape[:-1], info.geometry.grid))
        raise ModelError(f"the explanation is for an input of {stated} pixels, and this model expects {expected}: {other}")
    if info.channels is not None and info.channels != shape[-1]:
        raise ModelError(f"the explanation is for {shape[-1]} channels, and this model expects {info.channels}: {other}")
    if info.output == "boxes" and explanation.target.box is None:
        raise ModelError(f"a classifier was explained, and this model is an object detector: {other}")
    is_unclear = info.output != "boxes" and explanation.target.box is not None  # some models tell it by their first answer
    if is_unclear and engine.evaluate(view, view, np.ones((1, *shape[:-1]), bool)).ndim != 3:
        raise ModelError(f"an object detector was explained, and this model is a classifier: {other}")


def _certify_again(engine: Engine, problem: Problem, level: Level, stated: Certificate, spec: BackgroundSpec) -> Claim:
    """The set of a level, evaluated on the same backgrounds again."""
    text = f"{stated.kept:,} of {stated.asked:,}"
    try:
        sampler = _same_backgrounds(problem, engine, stated.backgrounds, spec)
    except InputError as error:
        return Claim("any background", text, str(error), False)
    search = count_kept(level.visible, first=stated.first, count=stated.asked)
    tally = engine.run(replace(problem, sampler=sampler), search).result
    holds = anytime_bound(tally.kept, tally.failures, stated.share, stated.confidence) >= stated.share
    return Claim("any background", text, f"{tally.kept:,} of {tally.asked:,}", holds)


def _same_backgrounds(
    problem: Problem, engine: Engine, record: Mapping[str, str | int], spec: BackgroundSpec
) -> Backgrounds:
    """The backgrounds of a certificate. Raises InputError where they are not there, or not the same ones."""
    info, seed = engine.classifier.info, record.get("seed")
    if record.get("kind") != "becausal" and spec is None:
        raise InputError(f"not repeated: give the {record.get('kind')} that the backgrounds came from")
    if not isinstance(seed, int) or seed < 0:
        raise InputError("not repeated: the seed of the backgrounds is missing")
    read_image = partial(read_like, problem.view, geometry=info.geometry, channels=info.channels)
    sampler = make_backgrounds(spec, problem.view, seed, read_image)
    if {**sampler.record(), "folder": ""} != {**record, "folder": ""}:
        raise InputError(f"not repeated: these are other backgrounds ({sampler.describe()})")
    return sampler
