"""Claims of an explanation, asked again, and the rest of its record, recomputed."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.api.recomputing import (
    SAVED,
    Found,
    arrays_of,
    find_image,
    recompute_answer,
    recompute_backgrounds,
    recompute_files,
    recompute_method,
    recompute_model,
    recompute_set,
    recompute_view,
)
from becausal.core.certificates import Certificate
from becausal.core.checks import Claim, Level, Verification, compare
from becausal.core.contracts import ModelInfo
from becausal.core.errors import BecausalError, InputError, ModelError
from becausal.core.explanation import ExplanationRecord
from becausal.core.intervals import anytime_bound
from becausal.core.leaves import UNKNOWN, Compared, compare_leaves, group_paths, list_leaves, merge
from becausal.core.problem import Problem
from becausal.core.schema import show_value
from becausal.engine.engine import Engine
from becausal.images.backgrounds import Backgrounds, BackgroundSpec, make_backgrounds
from becausal.images.loading import read_like
from becausal.models import as_classifier
from becausal.search.any_background import RULES, confidence_of
from becausal.search.certifying import count_kept
from becausal.search.checking import check
from becausal.search.confirming import tolerance_of

BOX_TOLERANCE = 0.05  # pixels


def verify(
    explanation: ExplanationRecord, model: Any, *, backgrounds: BackgroundSpec = None, image: Any = None
) -> Verification:
    """Ask the model every claim of an explanation again, and recompute the rest of its record.

    Args:
        explanation: What to verify.
        model: The model to ask, as in `explain`.
        backgrounds: The folder or function that the random backgrounds of the level "any" came from, if they were not our
            own. No folder is read that is not given here.
        image: The image that was explained, as in `explain`. Default: the recorded file, if it has the recorded hash.

    Returns:
        A list of the claims, each as it was stated and as it was found now. A field of the record that was recomputed with
        another result is one of them. Its `recomputed` names the fields that are the same, `unchecked` those that were
        compared with nothing.

    Raises:
        ModelError: The model expects images of another size, or is a classifier where a detector was explained.
        ImageError: The given image cannot be read.
    """
    engine = Engine(as_classifier(model))
    _check_input(explanation, engine.classifier.info)
    view = explanation.view
    answer = engine.evaluate(view, view, np.ones((1, *view.shape[:-1]), bool))
    _check_output(explanation, engine.classifier.info, answer)
    found, notes, broken = _recompute(explanation, engine, answer, image)
    claims, sets = _ask_sets(explanation, engine, _confidence(explanation, engine, found), backgrounds)
    stated = {**(explanation.saved or explanation.record()), "arrays": arrays_of(explanation)}
    result = _compare(explanation, stated, merge(found, sets), engine)
    differing = [Claim(path, *_show_both(was, now), False) for path, (was, now) in result.different.items()]
    recomputed = dict.fromkeys(_shorten(path) for path in list_leaves(stated) if path in result.same)
    for path in result.different:
        recomputed.pop(_shorten(path), None)
    unchecked = group_paths(stated, result.unchecked)
    return Verification([*broken, *differing, *claims], recomputed=tuple(recomputed), unchecked=unchecked, notes=notes)


def _show_both(stated: Any, found: Any) -> tuple[str, str]:
    """Two values in a few characters, with all digits where they would look the same otherwise."""
    short = tuple(f"{value:.6g}" if isinstance(value, float) else show_value(value) for value in (stated, found))
    return (short[0], short[1]) if short[0] != short[1] else (show_value(stated), show_value(found))


def _shorten(path: str) -> str:
    """The part of a record that a field is in: the record has hundreds of fields, and exceptions are named by themselves."""
    depth = 3 if path.startswith("origin.request.") else 2 if path.startswith(("origin.", "arrays.")) else 1
    return ".".join(path.split(".")[:depth]).partition("[")[0]


def _recompute(
    explanation: ExplanationRecord, engine: Engine, answer: NDArray[Any], given: Any
) -> tuple[Found, list[str], list[Claim]]:
    """What was found without the sets, what a reader should know of it, and the claim that could not be understood."""
    info, origin = engine.classifier.info, explanation.origin
    found, notes = recompute_model(explanation, info)
    image = find_image(origin, given)
    for part in (
        recompute_method(explanation),
        recompute_files(origin),
        recompute_view(explanation, info, image),
        recompute_backgrounds(explanation, info),
    ):
        found = merge(found, part)
    try:
        return merge(found, recompute_answer(explanation, info, answer)), notes, []
    except BecausalError as error:
        return found, notes, [Claim("target", explanation.label, str(error), False)]


def _confidence(explanation: ExplanationRecord, engine: Engine, found: Found) -> float:
    """The confidence of which the levels keep a share: the stated one, unless another one was found."""
    stated, now = explanation.confidence, found.get("confidence")
    return stated if now is None or abs(stated - now) <= tolerance_of(engine.classifier.info) else float(now)


def _ask_sets(
    explanation: ExplanationRecord, engine: Engine, confidence: float, backgrounds: BackgroundSpec
) -> tuple[list[Claim], Found]:
    """The claims of every level and every further explanation, and the fields of their sets as they were found."""
    request, inner = explanation.origin.request, None
    claims: list[Claim] = []
    levels, further, asked = [], [], {}
    problem = Problem(explanation.view, explanation.backgrounds, explanation.target)
    for number, level in enumerate(explanation.levels):
        floor = min(1.0, level.share * confidence) if level.share and not math.isnan(confidence) else 0.0
        own = replace(problem, target=replace(explanation.target, floor=floor))
        search = check(level.visible, grain=level.checks.minimal_grain, contrast=request.contrast, inner=inner)
        checks = engine.run(own, search).result
        found, inner = compare(level.checks, checks), level.visible
        fields = {"name": level.name, **recompute_set(explanation, level, checks)}
        if level.certificate is not None:
            claim, fields["certificate"] = _certify_again(engine, own, level, level.certificate, explanation, backgrounds)
            found.append(claim)
            asked = {name: getattr(request, name) for name in ("holds", "seed") if fields["certificate"]}
        is_last = number == len(explanation.levels) - 1
        claims += found if is_last else [replace(claim, name=f"level {level.name}: {claim.name}") for claim in found]
        levels.append(fields)
    for number, stated in enumerate(explanation.others, start=2):
        search = check(stated.visible, grain=stated.checks.minimal_grain, contrast=request.contrast)
        checks = engine.run(problem, search).result
        further.append(recompute_set(explanation, stated, checks))
        claims += [replace(one, name=f"explanation {number}: {one.name}") for one in compare(stated.checks, checks)]
    arrays = dict.fromkeys(("visible", "levels", "others"), SAVED)
    last = {"explanation": levels[-1], "checks": levels[-1], "level": levels[-1]["name"]}
    fields = {"levels": levels, **last, "further": further, "further_checks": further, "arrays": arrays}
    return claims, {**fields, "origin": {"request": asked}}


def _compare(explanation: ExplanationRecord, stated: Mapping[str, Any], found: Found, engine: Engine) -> Compared:
    """The record next to what was found; what is left must agree with the rest of the record, at least."""
    own = json.loads(json.dumps(explanation.record()))
    if explanation.target.box is not None:
        found = {"box": own["box"], **found}  # follows from the target's
    scores = tolerance_of(engine.classifier.info)

    def tolerance(path: str) -> float:
        if ".certificate." in path or not path.endswith(("confidence", ".floor")):
            return BOX_TOLERANCE if "box[" in path else 1e-9
        return scores

    known = {"schema": own["schema"], "view": own["view"]}
    result = compare_leaves(stated, {**known, **found}, tolerance)
    plain, derived = list_leaves(stated), list_leaves(own)
    for path in sorted(result.unchecked & derived.keys()):
        if derived[path] != plain[path]:
            result.different[path] = (plain[path], derived[path])
    result.unchecked -= result.different.keys()
    return result


def _check_input(explanation: ExplanationRecord, info: ModelInfo) -> None:
    """Raise ModelError for a model that expects another input."""
    other, shape = "it is not the model that was explained", explanation.view.shape
    if info.geometry is not None and info.geometry.grid != shape[:-1]:
        stated, expected = (" x ".join(str(side) for side in reversed(grid)) for grid in (shape[:-1], info.geometry.grid))
        raise ModelError(f"the explanation is for an input of {stated} pixels, and this model expects {expected}: {other}")
    if info.channels is not None and info.channels != shape[-1]:
        raise ModelError(f"the explanation is for {shape[-1]} channels, and this model expects {info.channels}: {other}")


def _check_output(explanation: ExplanationRecord, info: ModelInfo, answer: NDArray[Any]) -> None:
    """Raise ModelError for a classifier where a detector was explained, and the other way round."""
    is_detector, other = answer.ndim == 3, "it is not the model that was explained"
    if is_detector and explanation.target.box is None:
        raise ModelError(f"a classifier was explained, and this model is an object detector: {other}")
    if not is_detector and explanation.target.box is not None:
        raise ModelError(f"an object detector was explained, and this model is a classifier: {other}")


def _certify_again(
    engine: Engine, problem: Problem, level: Level, stated: Certificate, explanation: ExplanationRecord, spec: BackgroundSpec
) -> tuple[Claim, Found]:
    """The set of a level, evaluated on the same backgrounds again, and the fields of its certificate."""
    text, request = f"{stated.kept:,} of {stated.asked:,}", explanation.origin.request
    try:
        sampler = _same_backgrounds(problem, engine, stated.backgrounds, spec)
    except InputError as error:
        return Claim("any background", text, str(error), False), {}
    search = count_kept(level.visible, first=stated.first, count=stated.asked)
    tally = engine.run(replace(problem, sampler=sampler), search).result
    attempt = min(max(0, (stated.first - RULES.first_fresh) // RULES.fresh_step), RULES.tries - 1)
    drawn: dict[str, Any] = {**stated.backgrounds, "seed": request.seed}
    if "folder" in drawn:
        drawn["folder"] = UNKNOWN
    found = {
        "share": request.holds,
        "asked": tally.asked,
        "failures": tally.failures,
        "bound": anytime_bound(tally.kept, tally.failures, stated.share, confidence_of(attempt)),
        "confidence": RULES.confidence,
        "first": RULES.first_fresh + attempt * RULES.fresh_step,  # every attempt has fresh ones
        "backgrounds": drawn,
    }
    holds = anytime_bound(tally.kept, tally.failures, stated.share, stated.confidence) >= stated.share
    return Claim("any background", text, f"{tally.kept:,} of {tally.asked:,}", holds), found


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
