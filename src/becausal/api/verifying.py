"""Claims of an explanation, asked again, and the rest of its record, recomputed from the model, the image and the request.

Everything is found in the places of the record (`Found`) and compared leaf by leaf. What is not among it, or is UNKNOWN, is
compared with nothing, and the verification says so.
"""

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.api.origins import describe_preprocessing, hash_file, is_remote
from becausal.api.target_choice import make_target
from becausal.core.checks import Certificate, CheckedSet, Checks, Claim, Level, Verification, compare, number_or_none
from becausal.core.contracts import ModelInfo, Pixels, Zone
from becausal.core.errors import BecausalError, InputError, MissingExtraError, ModelError
from becausal.core.explanation import ExplanationRecord, NamedScore, Origin
from becausal.core.frames import Frame, plan_frame
from becausal.core.intervals import anytime_bound, exact_interval
from becausal.core.metrics import HELD_OUT, Transfer
from becausal.core.problem import Problem
from becausal.core.regions import cells
from becausal.core.request import Request
from becausal.core.schema import UNKNOWN, compare_leaves, group_paths, list_leaves, merge, show_value
from becausal.core.segments import choose_segment
from becausal.core.version import __version__
from becausal.engine.engine import Engine
from becausal.images.backgrounds import Backgrounds, BackgroundSpec, make_backgrounds
from becausal.images.fills import FILLS, make_background
from becausal.images.loading import InputImage, load_image, make_view, read_like
from becausal.methods import METHODS, make_explainer, options_of
from becausal.models import as_classifier
from becausal.search.against import check_against
from becausal.search.checking import check, check_panel, count_kept, transfer
from becausal.search.drive import drive
from becausal.search.enough import RULES, confidence_of
from becausal.search.explaining import tolerance_of
from becausal.search.minimise import present

BOX_TOLERANCE = 0.05  # pixels
TOLERANCE = 1e-3  # of a confidence
CLOSE = 2.0  # of 255, the mean difference of two images that differ by the version of a library
SAVED = "as saved"  # stands for an array that is the recomputed one
OTHER = "it is not the model that was explained"

Found = dict[str, Any]  # what was found, in the places of the record


def verify(
    explanation: ExplanationRecord, model: Any, *, backgrounds: BackgroundSpec = None, image: Any = None
) -> Verification:
    """Ask the model every claim of an explanation again, and recompute the rest of its record.

    Args:
        explanation: What to verify.
        model: The model to ask, as in `explain`.
        backgrounds: The folder or function that the random backgrounds came from, if they were not our own. No folder is
            read that is not given here.
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
    answer = _ask_whole(explanation, engine)
    info = engine.classifier.info  # only now: some models know what they return from their first answer on
    found = merge(_recompute_origin(explanation, info), _recompute_files(explanation.origin))
    path, original = explanation.origin.path_of("image"), None
    if image is not None:
        original = image if isinstance(image, InputImage) else load_image(image)
    elif path is not None and _has_hash({"path": path, "sha256": explanation.origin.image_sha256}):
        with suppress(BecausalError):
            original = load_image(path)
    found = merge(found, _recompute_view(explanation, info, original))
    found = merge(found, _recompute_backgrounds(explanation, info))
    broken = []
    try:
        found = merge(found, _recompute_answer(explanation, info, answer))
    except BecausalError as error:  # the request does not fit the model, e.g. it has no such label
        broken = [Claim("target", explanation.label, str(error), False)]
    # The sets keep a share of the confidence: of the stated one, unless another one was found.
    confidence, other = explanation.confidence, found.get("confidence")
    if other is not None and not abs(confidence - other) <= tolerance_of(info):
        confidence = float(other)
    claims, sets = _ask_sets(explanation, engine, confidence, backgrounds)
    differing, same, unchecked = _compare_record(explanation, merge(found, sets), tolerance_of(info))
    then, now = explanation.origin.model_sha256, info.sha256
    notes = []
    if then is None or now is None:
        notes = ["unknown whether this is the model that was explained: it has no hash"]
    elif then != now:
        notes = [f"this is not the model that was explained: its sha256 was {then[:12]}…, now {now[:12]}…"]
    return Verification([*broken, *differing, *claims], recomputed=same, unchecked=unchecked, notes=notes)


def _ask_whole(explanation: ExplanationRecord, engine: Engine) -> NDArray[Any]:
    """The model's answer to the whole view. Raises ModelError for a model of another input, or another kind."""
    info, view = engine.classifier.info, explanation.view
    channels = view.shape[-1]
    if info.geometry is not None and info.geometry.grid != view.shape[:-1]:
        stated, expected = (" x ".join(str(side) for side in reversed(g)) for g in (view.shape[:-1], info.geometry.grid))
        raise ModelError(f"the explanation is for an input of {stated} pixels, and this model expects {expected}: {OTHER}")
    if info.channels is not None and info.channels != channels:
        raise ModelError(f"the explanation is for {channels} channels, and this model expects {info.channels}: {OTHER}")
    answer, target = engine.evaluate(view, view, np.ones((1, *view.shape[:-1]), bool)), explanation.target
    kinds = {3: "an object detector", 4: "a model that gives every pixel a class"}
    was = 3 if target.box is not None else 4 if (target.place, target.segment) != (None, None) else 2
    if max(answer.ndim, 2) != was:
        then, now = (kinds.get(number, "a classifier") for number in (was, answer.ndim))
        raise ModelError(f"{then} was explained, and this model is {now}: {OTHER}")
    return answer


def _compare_record(
    explanation: ExplanationRecord, found: Found, tolerance: float
) -> tuple[list[Claim], tuple[str, ...], list[str]]:
    """The fields of the record that differ from what was found, those that are the same, those that nobody compared."""
    arrays = dict.fromkeys(("visible", "levels", "others", "responsibility", "view"), SAVED)
    arrays |= {name: SAVED for name in ("zones", "against") if getattr(explanation, name) is not None}
    backgrounds = [SAVED] * len(explanation.backgrounds)
    stated = {**(explanation.saved or explanation.record()), "arrays": {**arrays, "backgrounds": backgrounds}}
    own = json.loads(json.dumps(explanation.record()))
    if explanation.target.box is not None:
        found = {"box": own["box"], **found}  # follows from the target's

    def tolerance_at(path: str) -> float:
        is_share = path == "target.threshold" and explanation.target.share is not None  # of the confidence
        if ".certificate." in path or not (is_share or path.endswith(("confidence", ".floor", ".gain"))):
            return BOX_TOLERANCE if "box[" in path else 1e-9
        return tolerance

    result = compare_leaves(stated, {"schema": own["schema"], "view": own["view"], **found}, tolerance_at)
    # What was not found must agree with the rest of the record, at least.
    plain, derived = list_leaves(stated), list_leaves(own)
    for path in sorted(result.unchecked & derived.keys()):
        if derived[path] != plain[path]:
            result.different[path] = (plain[path], derived[path])
    unchecked = group_paths(stated, result.unchecked - result.different.keys())
    differing = []
    for path, pair in result.different.items():
        was, now = (f"{value:.6g}" if isinstance(value, float) else show_value(value) for value in pair)
        if was == now:  # all digits
            was, now = (show_value(value) for value in pair)
        differing.append(Claim(path, was, now, False))
    # The record has hundreds of fields: parts of it are named, and exceptions by themselves.
    parts = {}
    for path in [*plain, *result.different]:
        depth = 3 if path.startswith("origin.request.") else 2 if path.startswith(("origin.", "arrays.")) else 1
        parts[path] = ".".join(path.split(".")[:depth]).partition("[")[0]
    differ = {parts[path] for path in result.different}
    same = dict.fromkeys(parts[path] for path in plain if path in result.same and parts[path] not in differ)
    return differing, tuple(same), unchecked


# The claims, asked again


def _ask_sets(
    explanation: ExplanationRecord, engine: Engine, confidence: float, backgrounds: BackgroundSpec
) -> tuple[list[Claim], Found]:
    """The claims of every set, and the fields of the sets as they were found."""
    request = explanation.origin.request
    claims: list[Claim] = []
    levels, further, asked = [], [], {}
    problem = Problem(explanation.view, explanation.backgrounds, replace(explanation.target, floor=0.0))

    def floor_of(share: float) -> float:
        return min(1.0, share * confidence) if share and not math.isnan(confidence) else 0.0

    for number, level in enumerate(explanation.levels):
        certificate, floor = level.certificate, floor_of(level.share)
        grain = level.checks.minimal_grain if certificate is None else None
        search = check(level.visible, grain=grain, contrast=request.contrast)
        checks = engine.run(problem, drive(search, floor=floor)).result
        made: Found = {"name": level.name}
        if certificate is None:
            found = compare(level.checks, checks)
            more, transfer = _transfer_again(engine, problem, level, request, backgrounds)
            found += more
        else:
            found, checks, made["certificate"], transfer = _enough_again(
                engine, problem, level, certificate, checks, floor, request, backgrounds
            )
            asked = {"holds": request.holds, "seed": request.seed} if made["certificate"] else {}
        made |= _recompute_set(explanation, level, checks) | {"transfer": transfer}
        is_last = number == len(explanation.levels) - 1
        claims += found if is_last else [replace(claim, name=f"{level.name}: {claim.name}") for claim in found]
        levels.append(made)
    for number, stated in enumerate(explanation.others, start=2):
        search = check(stated.visible, grain=stated.checks.minimal_grain, contrast=request.contrast)
        checks = engine.run(problem, drive(search, floor=floor_of(request.share))).result
        more, transfer = _transfer_again(engine, problem, stated, request, backgrounds)
        further.append(_recompute_set(explanation, stated, checks) | {"transfer": transfer})
        claims += [replace(one, name=f"explanation {number}: {one.name}") for one in compare(stated.checks, checks) + more]
    more, against = _against_again(engine, problem, explanation, confidence)
    arrays = dict.fromkeys(("visible", "levels", "others"), SAVED)
    zones = explanation.zones
    if explanation.against is not None:
        arrays["against"] = SAVED
    shown = [] if zones is None else [zones == Zone.CORE, zones >= Zone.ENOUGH]
    if not all(map(np.array_equal, shown, (explanation.levels[0].visible, explanation.visible))):
        arrays["zones"] = "not those of the sets"
    last = {"explanation": levels[-1], "checks": levels[-1], "level": levels[-1]["name"], "against": against}
    sets = {"levels": levels, **last, "further": further, "further_checks": further, "arrays": arrays}
    return claims + more, {**sets, "origin": {"request": asked}}


def _enough_again(
    engine: Engine, problem: Problem, level: Level, stated: Certificate, checks: Checks, floor: float, request: Request,
    spec: BackgroundSpec,
) -> tuple[list[Claim], Checks, Found, Any]:  # fmt: skip
    """The claims of the set that holds on random backgrounds; its checks, certificate and transfer as they were found."""
    grain = level.checks.minimal_grain
    claims = compare(replace(level.checks, minimal_grain=None), checks)
    claim, certificate, sampler = _certify_again(engine, problem, level, stated, request, spec)
    claims.append(claim)
    if sampler is None:
        return claims, replace(checks, minimal_grain=grain, cells=level.checks.cells), certificate, UNKNOWN
    if grain is not None:
        own = replace(problem, sampler=sampler)
        is_minimal = engine.run(own, drive(check_panel(level.visible, level.panel, grain), floor=floor)).result
        text = f"at {grain} px on {len(level.panel)} backgrounds"
        claims.append(Claim("minimal", text, text if is_minimal else "a cell can be removed", is_minimal))
        count = len(present(level.visible, cells(level.visible.shape, grain)))
        checks = replace(checks, minimal_grain=grain if is_minimal else None, cells=count)
    kept = certificate["asked"] - certificate["failures"]
    transfer = Transfer(kept, certificate["asked"], *exact_interval(kept, certificate["asked"]))
    return claims, checks, certificate, None if level.checks.transfer is None else asdict(transfer)


def _transfer_again(
    engine: Engine, problem: Problem, stated: CheckedSet, request: Request, spec: BackgroundSpec
) -> tuple[list[Claim], Any]:
    """How often a set keeps the label on the same fresh backgrounds; not claimed where these are not at hand."""
    known = stated.checks.transfer
    if known is None or (spec is None and request.backgrounds is not None):
        return [], None if known is None else UNKNOWN
    try:
        sampler = _make_sampler(engine, problem, request.seed, spec)
    except InputError as error:
        return [Claim("random backgrounds", f"{known.kept} of {known.asked}", str(error), False)], UNKNOWN
    search = transfer(stated.visible, first=HELD_OUT, count=known.asked)
    found = engine.run(replace(problem, sampler=sampler), search).result
    before, now = (f"{one.kept} of {one.asked}" for one in (known, found))
    # Of one that is rounded otherwise elsewhere nothing depends: the count may differ by it.
    low, high = exact_interval(known.kept, known.asked) if known.asked else (0.0, 1.0)
    return [Claim("random backgrounds", before, now, abs(known.kept - found.kept) <= 1)], asdict(
        replace(known, low=low, high=high)
    )


def _make_sampler(engine: Engine, problem: Problem, seed: int, spec: BackgroundSpec) -> Backgrounds:
    info = engine.classifier.info
    read_image = partial(read_like, problem.view, geometry=info.geometry, channels=info.channels)
    return make_backgrounds(spec, problem.view, seed, read_image)


def _against_again(
    engine: Engine, problem: Problem, explanation: ExplanationRecord, confidence: float
) -> tuple[list[Claim], Any]:
    """What masking the pixels that speak against the label does, and whether each of their patches matters."""
    stated = explanation.against
    if stated is None:
        return [], None if explanation.saved is None or "against" in explanation.saved else UNKNOWN
    search = check_against(stated.visible, problem, explanation.levels[0].visible, confidence, TOLERANCE)
    masked, patches, fault = engine.run(problem, search).result
    before, now = f"{stated.confidence:.4f}", f"{masked:.4f}{fault}"
    holds = not fault and abs(masked - stated.confidence) <= TOLERANCE
    record = replace(stated, confidence=masked, gain=masked - confidence, patches=patches).record()
    return [Claim("confidence without what speaks against it", before, now, holds)], record


def _recompute_set(explanation: ExplanationRecord, stated: CheckedSet, found: Checks) -> Found:
    """The fields of one set: its size; its claims as far as they were made, which are compared by themselves."""
    checks = stated.checks.record()
    record = {name: value for name, value in stated.set_summary().items() if name not in checks}
    for name, value in checks.items():
        was_asked = value is not None or number_or_none(getattr(found, name) or 0.0) is None
        record[name] = value if was_asked else UNKNOWN
    record["cells"] = found.cells
    grain, finest = stated.checks.minimal_grain, explanation.origin.grain
    if grain is None:
        return record
    is_enough = isinstance(stated, Level) and stated.certificate is not None  # which has a side of its own
    if finest is not None and explanation.origin.method in METHODS and not is_enough:
        # Our searches halve the side of their cells.
        times, rest = divmod(grain, min(finest, max(explanation.visible.shape)))
        if rest or times.bit_count() != 1:
            return {**record, "minimal_grain": f"{finest}, or that times a power of two"}
    # No cell can be removed where there is none, whatever its side.
    return record if found.cells else {**record, "minimal_grain": UNKNOWN}


def _certify_again(
    engine: Engine, problem: Problem, level: Level, stated: Certificate, request: Request, spec: BackgroundSpec
) -> tuple[Claim, Found, Backgrounds | None]:
    """The set, on the same backgrounds again, and the fields of its certificate; None where these are not at hand."""
    record = stated.backgrounds
    text, seed = f"{stated.kept:,} of {stated.asked:,}", record.get("seed")
    try:
        if record.get("kind") != "becausal" and spec is None:
            raise InputError(f"not repeated: give the {record.get('kind')} that the backgrounds came from")
        if not isinstance(seed, int) or seed < 0:
            raise InputError("not repeated: the seed of the backgrounds is missing")
        sampler = _make_sampler(engine, problem, seed, spec)
        if {**sampler.record(), "folder": ""} != {**record, "folder": ""}:
            raise InputError(f"not repeated: these are other backgrounds ({sampler.describe()})")
    except InputError as error:
        return Claim("random backgrounds", text, str(error), False), {}, None
    search = count_kept(level.visible, first=stated.first, count=stated.asked)
    tally = engine.run(replace(problem, sampler=sampler), search).result
    attempt = min(max(0, (stated.first - RULES.first_fresh) // RULES.fresh_step), RULES.tries - 1)
    found = {
        "share": request.share_held,
        "asked": tally.asked,
        "failures": tally.failures,
        "bound": anytime_bound(tally.kept, tally.failures, stated.share, confidence_of(attempt)),
        "confidence": RULES.confidence,
        "first": RULES.first_fresh + attempt * RULES.fresh_step,  # every attempt has fresh ones
        "backgrounds": {**record, "seed": request.seed, **({"folder": UNKNOWN} if "folder" in record else {})},
    }
    holds = anytime_bound(tally.kept, tally.failures, stated.share, stated.confidence) >= stated.share
    return Claim("random backgrounds", text, f"{tally.kept:,} of {tally.asked:,}", holds), found, sampler


# The rest of the record, recomputed


def _recompute_answer(explanation: ExplanationRecord, info: ModelInfo, answer: NDArray[Any]) -> Found:
    """The target, the label, the scores and the shares of the levels, from the request and the answer to the whole view."""
    origin, last = explanation.origin, explanation.level
    request, has_scores = origin.request, answer.ndim > 1
    target = make_target(request, info, answer, explanation.frame)
    confidence = float(target.judge(answer).confidence[0])
    floor, answer = (min(1.0, last.share * confidence) if has_scores else 0.0), target.read(answer)
    target = replace(target, floor=floor, segment=choose_segment(target.segment, explanation.target.segment))

    def name_of(label_id: int) -> Any:
        """Of a model without names the recorded one; UNKNOWN where another model may have had names."""
        if info.labels or info.names:
            return info.name_of(label_id)
        names = origin.loading.get("labels")
        if isinstance(names, (list, tuple)) and label_id < len(names):
            return str(names[label_id])
        has_other_names = "toml" in origin.files or not _is_explained_model(info, origin)
        return UNKNOWN if has_other_names else info.name_of(label_id)

    found: Found = {"label": name_of(target.label_id), "label_id": target.label_id, "target": asdict(target)}
    found["confidence"] = number_or_none(confidence)
    is_scored = {"top": target.noun == "label", "rival": target.against is not None}
    for name, label_id in (("top", None), ("rival", target.against)):
        found[name] = None
        if is_scored[name] and getattr(explanation, name) is None:
            found[name] = UNKNOWN  # it was not recorded
        elif is_scored[name]:
            score = NamedScore.of(info, answer[0], label_id)
            found[name] = {**score.record(), "label": name_of(score.label_id)}
    next_one = NamedScore.next_to(info, answer[0], target.label_id) if target.noun == "label" else None
    found["runner_up"] = None if next_one is None else {**next_one.record(), "label": name_of(next_one.label_id)}
    found["runner_up"] = UNKNOWN if explanation.runner_up is None and next_one is not None else found["runner_up"]
    asked = {name: getattr(request, name) for name in ("top", "confidence", "against")}  # the target follows from them
    asked |= {name: None for name, part in (("box", target.box), ("at", target.place)) if part is None}
    found["origin"] = {"request": asked}
    levels, share = explanation.levels, request.share if has_scores else 0.0
    # Records of the version before have sets for growing shares, and one for random backgrounds that has none.
    is_before = len(levels) > 2 or (last.certificate is not None and not last.panel)
    if not is_before and (explanation.saved is None or "levels" in explanation.saved):
        found["levels"] = [{"share": share} for _ in levels]
    return found


def _recompute_origin(explanation: ExplanationRecord, info: ModelInfo) -> Found:
    """The model, its hash and its preprocessing; the method, its options and the grain, from the request."""
    origin, grid = explanation.origin, explanation.visible.shape
    request = origin.request
    saved = None if explanation.saved is None else explanation.saved["origin"]["request"]
    is_whole = saved is None or all(f.name in saved for f in fields(Request))
    # Words and defaults change: only a record of this version, with all that it asks for, can be compared with them.
    is_same_version = is_whole and origin.versions.get("becausal") == __version__
    name = request.method if isinstance(request.method, str) else request.method.name
    found: Found = {"method": name, "request": {"method": name}}
    if info.spec == origin.model:
        found["model"] = info.spec
    if _is_explained_model(info, origin):
        found["model_sha256"] = info.sha256
        if is_same_version:
            found["preprocess"] = describe_preprocessing(info)
    try:
        explainer = make_explainer(name, request.options) if isinstance(request.method, str) else request.method
        explainer = request.within(grid).configure(explainer)
    except BecausalError:  # the user's own explainer, which has a name only
        return {"method": name, "origin": found}
    if is_same_version:
        found |= {"options": options_of(explainer), "grain": request.grain_for(explainer, grid)}
        found["request"] |= {"grain": request.grain, "options": request.record()["options"]}
    return {"method": name, "origin": found}


def _is_explained_model(info: ModelInfo, origin: Origin) -> bool:
    """Whether the model has the name or the hash of the explained one."""
    return info.spec == origin.model or (info.sha256 is not None and info.sha256 == origin.model_sha256)


def _recompute_files(origin: Origin) -> Found:
    """The files that are where the record says, with the recorded hash; nothing but their hash is read."""
    kept = {role: dict(file) for role, file in origin.files.items() if _has_hash(file)}
    found: Found = {"files": kept}
    if (stated := origin.files.get("image", {}).get("sha256")) is None:
        return {"origin": found}
    path = origin.path_of("image") or ""
    digest = None if is_remote(path) else hash_file(path)
    if origin.image_sha256 != stated or digest == stated:
        known = origin.image_sha256 if digest == origin.image_sha256 else stated
        found |= {"image_sha256": known, "files": kept | {"image": {"path": path, "sha256": known}}}
    is_named = path.replace("\\", "/").endswith(f"/{origin.image}")
    found["image"] = origin.image if is_named else re.split(r"[\\/]", path)[-1]
    return {"origin": found, "image": found["image"]}


def _has_hash(file: Mapping[str, str]) -> bool:
    path = file.get("path", "")
    return not is_remote(path) and hash_file(path) == file.get("sha256", "")


def _recompute_view(explanation: ExplanationRecord, info: ModelInfo, image: InputImage | None) -> Found:
    """The view and its frame, from the image; without it, what follows of the frame from the size of the image."""
    frame, geometry = explanation.frame, info.geometry
    if image is not None:
        try:
            made = make_view(image, geometry, channels=info.channels)
        except BecausalError as error:
            return {"arrays": {"view": str(error)}}
        difference = _compare_pixels(explanation, explanation.view, made.pixels)
        found: Found = {"frame": made.frame.record(), "arrays": {"view": difference}}
        if image.sha256 == explanation.origin.image_sha256 or difference != SAVED:
            found["origin"] = {"image_sha256": image.sha256}
        return found
    if geometry is None or info.channels not in (None, 3):
        return {"frame": Frame.identity(explanation.visible.shape).record()}
    planned = plan_frame((frame.original[0], frame.original[1]), geometry).record() if len(frame.original) == 2 else {}
    return {"frame": {name: sides for name, sides in planned.items() if name != "original"}}


def _recompute_backgrounds(explanation: ExplanationRecord, info: ModelInfo) -> Found:
    """The backgrounds, from the fills and the seed of the request; those that cannot be made again are left out."""
    request, stated = explanation.origin.request, explanation.backgrounds
    if len(request.fills) != len(stated):
        return {"origin": {"request": {"fills": f"{len(stated)} backgrounds"}}}

    def read_image(path: str) -> Pixels:
        if not _has_hash(explanation.origin.files.get(f"image:{path}", {})):
            raise FileNotFoundError(path)
        return make_view(load_image(path), info.geometry, channels=info.channels).pixels

    rng = np.random.default_rng([request.seed, 1])
    fills: list[Any] = []
    same: list[Any] = []
    for fill, background in zip(request.fills, stated, strict=True):
        known: Any = fill
        difference: Any = UNKNOWN
        try:
            made = make_background(fill, explanation.view, rng=rng, read_image=read_image)
            difference = _compare_pixels(
                explanation, background, made, is_exact=fill not in FILLS or FILLS[fill].library is None
            )
        except (MissingExtraError, FileNotFoundError):
            known = UNKNOWN
        except BecausalError as error:
            known = str(error)
        fills.append(known)
        same.append(difference)
    seed = {"seed": request.seed} if any(fill in FILLS and FILLS[fill].is_random for fill in request.fills) else {}
    return {"arrays": {"backgrounds": same}, "origin": {"request": {"fills": fills, **seed}}}


def _compare_pixels(explanation: ExplanationRecord, stated: Pixels, found: Pixels, *, is_exact: bool = True) -> str:
    """`SAVED`, or how two arrays differ; images that another version of Pillow has decoded may differ a little."""
    if stated.shape != found.shape or stated.dtype != found.dtype:
        return f"{found.dtype} of shape {found.shape}"
    differ = stated != found
    gap = np.abs(stated.astype(np.float64) - found.astype(np.float64))
    if is_exact and stated.dtype == np.uint8:
        is_exact = explanation.origin.versions.get("pillow") == version("pillow")
    if not differ.any() or (not is_exact and stated.dtype == np.uint8 and gap.mean() <= CLOSE):
        return SAVED
    return f"{np.count_nonzero(differ):,} of {differ.size:,} values differ, by up to {gap.max():g}"
