"""The fields of a record, recomputed from the model, the image and the request. What is not among them is not known."""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from becausal.api.origins import hash_file, is_remote
from becausal.api.target_choice import make_target, score_of
from becausal.core.checks import CheckedSet, Checks, number_or_none
from becausal.core.contracts import ModelInfo, Pixels
from becausal.core.errors import BecausalError, MissingExtraError
from becausal.core.explanation import ExplanationRecord, NamedScore, Origin
from becausal.core.frames import Frame, plan_frame
from becausal.core.leaves import UNKNOWN
from becausal.core.request import Request
from becausal.core.version import __version__
from becausal.images.fills import make_background
from becausal.images.loading import InputImage, load_image, make_view
from becausal.methods import METHODS, make_explainer, options_of

SAVED = "as saved"  # stands for an array that is the recomputed one
CLOSE = 2.0  # of 255, the mean difference of two images that differ by the version of a library

Found = dict[str, Any]  # what was found, in the places of the record


def arrays_of(explanation: ExplanationRecord) -> Found:
    """The arrays of a record, as fields that can be compared."""
    names = ("visible", "levels", "others", "responsibility", "view")
    return dict.fromkeys(names, SAVED) | {"backgrounds": [SAVED] * len(explanation.backgrounds)}


def recompute_answer(explanation: ExplanationRecord, info: ModelInfo, answer: NDArray[Any]) -> Found:
    """The target, the label and the scores, from the request and the model's answer to the whole view.

    Raises:
        BecausalError: The request does not fit the model, e.g. it has no such label.
    """
    origin, last = explanation.origin, explanation.level
    request, has_scores = origin.request, answer.ndim > 1
    target = make_target(request, info, answer, explanation.frame)
    confidence = score_of(target, answer)
    if last.certificate is None:
        target = replace(target, floor=min(1.0, last.share * confidence) if has_scores else 0.0)
    found: Found = {"label_id": target.label_id, "confidence": number_or_none(confidence), "target": asdict(target)}
    found["label"] = _name_label(target.label_id, info, origin)
    found["top"] = None if target.box is not None else _score_label(answer[0], None, info, origin)
    found["rival"] = None if target.against is None else _score_label(answer[0], target.against, info, origin)
    for name in ("top", "rival"):
        if getattr(explanation, name) is None and found[name] is not None:
            found[name] = UNKNOWN  # it was not recorded
    asked = {name: getattr(request, name) for name in ("top", "confidence", "against")}  # the target follows from them
    if target.box is None:
        asked["box"] = None
    return found | {"origin": {"request": asked}, **_recompute_shares(explanation, has_scores=has_scores)}


def _score_label(answer: NDArray[Any], label_id: int | None, info: ModelInfo, origin: Origin) -> Found:
    score = NamedScore.of(info, answer, label_id)
    return {**score.record(), "label": _name_label(score.label_id, info, origin)}


def _name_label(label_id: int, info: ModelInfo, origin: Origin) -> Any:
    """The name of a label; of a model without names the recorded one, UNKNOWN where another model may have had names."""
    if info.labels or info.names:
        return info.name_of(label_id)
    names = origin.loading.get("labels")
    if isinstance(names, (list, tuple)) and label_id < len(names):
        return str(names[label_id])
    has_other_names = "toml" in origin.files or not is_explained_model(info, origin)
    return UNKNOWN if has_other_names else info.name_of(label_id)


def _recompute_shares(explanation: ExplanationRecord, *, has_scores: bool) -> Found:
    """The shares of the levels, which follow from the request; a search that ended early may have the last one only."""
    if explanation.saved is not None and "levels" not in explanation.saved:
        return {}
    shares = explanation.origin.request.shares if has_scores else (0.0,)
    plain = sum(level.certificate is None for level in explanation.levels)
    shares = shares if plain == len(shares) else shares[-1:]
    expected = [*shares, *[0.0] * (len(explanation.levels) - plain)]
    if len(expected) != len(explanation.levels):
        return {"levels": [{"share": f"one of {len(shares)} for this request"} for _ in explanation.levels]}
    return {"levels": [{"share": share} for share in expected]}


def recompute_set(explanation: ExplanationRecord, stated: CheckedSet, found: Checks) -> Found:
    """The fields of one set: its size; its claims as far as they were made, which are compared by themselves."""
    checks = stated.checks.record()
    record = {name: value for name, value in stated.set_summary().items() if name not in checks}
    for name, value in checks.items():
        was_asked = value is not None or number_or_none(getattr(found, name) or 0.0) is None
        record[name] = value if was_asked else UNKNOWN
    record["cells"] = found.cells
    if (grain := stated.checks.minimal_grain) is not None and not _is_usual(grain, explanation):
        record["minimal_grain"] = f"{explanation.origin.grain}, or that times a power of two"
    elif grain is not None and not found.cells:  # no cell can be removed where there is none, whatever its side
        record["minimal_grain"] = UNKNOWN
    return record


def _is_usual(grain: int, explanation: ExplanationRecord) -> bool:
    """Whether our searches, which halve the side of their cells, may end with this grain."""
    finest = explanation.origin.grain
    if finest is None or explanation.origin.method not in METHODS:
        return True
    times, rest = divmod(grain, min(finest, max(explanation.visible.shape)))
    return bool(rest == 0 and times.bit_count() == 1)


def recompute_method(explanation: ExplanationRecord) -> Found:
    """The method, its options and the grain, from the request."""
    origin = explanation.origin
    request = origin.request
    name = request.method if isinstance(request.method, str) else request.method.name
    found: Found = {"method": name, "request": {"method": name}}
    try:
        explainer = make_explainer(name, request.options) if isinstance(request.method, str) else request.method
        explainer = request.within(explanation.visible.shape).configure(explainer)
    except BecausalError:  # the user's own explainer, which has a name only
        return {"method": name, "origin": found}
    if is_same_version(explanation):  # defaults change
        grain = request.grain_for(explainer, explanation.visible.shape)
        found |= {"options": options_of(explainer), "grain": grain}
        found["request"] |= {"grain": request.grain, "options": request.record()["options"]}
    return {"method": name, "origin": found}


def recompute_model(explanation: ExplanationRecord, info: ModelInfo) -> tuple[Found, list[str]]:
    """The hash of the model and its preprocessing, and a note where it is, or may be, another model."""
    origin = explanation.origin
    then, now = origin.model_sha256, info.sha256
    notes = []
    if then is None or now is None:
        notes = ["unknown whether this is the model that was explained: it has no hash"]
    elif then != now:
        notes = [f"this is not the model that was explained: its sha256 was {then[:12]}…, now {now[:12]}…"]
    found: Found = {}
    if info.spec == origin.model:
        found["model"] = info.spec
    if is_explained_model(info, origin):
        found["model_sha256"] = now
        if is_same_version(explanation):  # words change
            found["preprocess"] = f"{info.geometry or 'as it is'}; {info.normalisation}"
    return {"origin": found}, notes


def is_explained_model(info: ModelInfo, origin: Origin) -> bool:
    """Whether the model has the name or the hash of the explained one."""
    return info.spec == origin.model or (info.sha256 is not None and info.sha256 == origin.model_sha256)


def is_same_version(explanation: ExplanationRecord) -> bool:
    """Whether a record says that it was made by this version, and has all that this version asks for."""
    asked = {} if explanation.saved is None else explanation.saved["origin"]["request"]
    is_whole = explanation.saved is None or all(f.name in asked for f in fields(Request))
    return is_whole and explanation.origin.versions.get("becausal") == __version__


def recompute_files(origin: Origin) -> Found:
    """The files that are where the record says, with the recorded hash; nothing but their hash is read."""
    kept = {role: dict(file) for role, file in origin.files.items() if _has_hash(file)}
    found: Found = {"files": kept}
    if (stated := origin.files.get("image", {}).get("sha256")) is not None:
        path = origin.path_of("image") or ""
        digest = None if is_remote(path) else hash_file(path)
        if origin.image_sha256 != stated or digest == stated:
            known = origin.image_sha256 if digest == origin.image_sha256 else stated
            found |= {"image_sha256": known, "files": kept | {"image": {"path": path, "sha256": known}}}
        name = re.split(r"[\\/]", path)[-1]
        found["image"] = name if not path.replace("\\", "/").endswith(f"/{origin.image}") else origin.image
    return {"origin": found, **({"image": found["image"]} if "image" in found else {})}


def _has_hash(file: Mapping[str, str]) -> bool:
    path = file.get("path", "")
    return not is_remote(path) and hash_file(path) == file.get("sha256", "")


def find_image(origin: Origin, given: Any) -> InputImage | None:
    """The image that was explained: the one that the user gives, or the recorded file, if it has the recorded hash.

    Raises:
        ImageError: The image that the user gives cannot be read.
    """
    if given is not None:
        return given if isinstance(given, InputImage) else load_image(given)
    path = origin.path_of("image")
    if path is None or not _has_hash({"path": path, "sha256": origin.image_sha256}):
        return None
    try:
        return load_image(path)
    except BecausalError:
        return None


def recompute_view(explanation: ExplanationRecord, info: ModelInfo, image: InputImage | None) -> Found:
    """The view and its frame, from the image; without it, what follows of the frame from the size of the image."""
    frame, geometry = explanation.frame, info.geometry
    if image is not None:
        try:
            made = make_view(image, geometry, channels=info.channels)
        except BecausalError as error:
            return {"arrays": {"view": str(error)}}
        found: Found = {
            "frame": made.frame.record(),
            "arrays": {"view": _compare(explanation, explanation.view, made.pixels)},
        }
        if image.sha256 == explanation.origin.image_sha256 or found["arrays"]["view"] != SAVED:
            found["origin"] = {"image_sha256": image.sha256}
        return found
    if geometry is None or info.channels not in (None, 3):
        return {"frame": Frame.identity(explanation.visible.shape).record()}
    planned = plan_frame((frame.original[0], frame.original[1]), geometry).record() if len(frame.original) == 2 else {}
    return {"frame": {name: sides for name, sides in planned.items() if name != "original"}}


def recompute_backgrounds(explanation: ExplanationRecord, info: ModelInfo) -> Found:
    """The backgrounds, from the fills and the seed of the request; those that cannot be made again are left out."""
    request, stated = explanation.origin.request, explanation.backgrounds
    if len(request.fills) != len(stated):
        return {"origin": {"request": {"fills": f"{len(stated)} backgrounds"}}}
    rng = np.random.default_rng([request.seed, 1])
    fills: list[Any] = []
    same: list[Any] = []
    for fill, background in zip(request.fills, stated, strict=True):
        try:
            made = make_background(fill, explanation.view, rng=rng, read_image=_fill_reader(explanation.origin, info))
        except (MissingExtraError, FileNotFoundError):
            fills, same = [*fills, UNKNOWN], [*same, UNKNOWN]
        except BecausalError as error:
            fills, same = [*fills, str(error)], [*same, UNKNOWN]
        else:
            fills, same = [*fills, fill], [*same, _compare(explanation, background, made, is_exact=fill != "inpaint")]
    seed = {"seed": request.seed} if "noise" in request.fills else {}
    return {"arrays": {"backgrounds": same}, "origin": {"request": {"fills": fills, **seed}}}


def _fill_reader(origin: Origin, info: ModelInfo) -> Callable[[str], Pixels]:
    def read(path: str) -> Pixels:
        if not _has_hash(origin.files.get(f"image:{path}", {})):
            raise FileNotFoundError(path)
        return make_view(load_image(path), info.geometry, channels=info.channels).pixels

    return read


def _compare(explanation: ExplanationRecord, stated: Pixels, found: Pixels, *, is_exact: bool = True) -> str:
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
