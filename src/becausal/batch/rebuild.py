"""A lost or damaged index, made again from the folders of the explanations and the copy of its header in `run.json`.

Nothing is removed: the old index, if there is one, stays as `index.sqlite.old`, and explanations that do not belong to
the run are moved to `rejected/`.
"""

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any

from becausal.api.explanation import Explanation
from becausal.api.origins import hash_file, split_spec
from becausal.batch.index import BOX_FOLDER, ERROR_FILE, INDEX, Index, check_header, find_result_folders, make_row, stamp_of
from becausal.batch.inputs import InputItem, Inputs
from becausal.batch.settings import ALL, check_same_run, format_time, make_header, to_json
from becausal.core.boxes import MAX_BOXES
from becausal.core.errors import InputError, OutputError
from becausal.core.files import open_regular, write_file
from becausal.core.request import AUTO
from becausal.core.text import one_line
from becausal.images.fills import FILLS
from becausal.models import KINDS

COPY = "run.json"
REJECTED = "rejected"
_FACTS = ("model_sha256", "preprocess")  # those about the model that every explanation has in its record


def write_copy(run: Path, header: Mapping[str, Any]) -> None:
    """Write the copy of the header next to the index."""
    write_file(run / COPY, (json.dumps(header, indent=1, sort_keys=True) + "\n").encode("utf-8"))


def rebuild_index(run: Path, inputs: Inputs, settings: Mapping[str, Any], folder: str) -> str:
    """Make a new index from the explanations whose records match the settings and the images; returns what was done.

    Failed images are waiting again. folder: working directory for relative paths. Raises InputError if the copy of the
    header shows that the run was started with other settings or images, or if no explanation matches.
    """
    header = _find_header(run, inputs, settings)
    made = run / f"{INDEX}.new"
    made.unlink(missing_ok=True)
    rejected = dict[Path, str]()
    with closing(Index(run, made)) as index:
        index.create(header, inputs.items)
        index.execute("BEGIN")
        for number, path in find_result_folders(run):
            reason = _take(index, number, path, inputs, header, folder)
            if reason is not None:
                rejected[path] = reason
        index.execute("COMMIT")
        taken = index.fetch("SELECT count(*) FROM images WHERE state = 'done'")[0][0]
    why = ", ".join(f"{number:,} {reason}" for reason, number in Counter(rejected.values()).most_common())
    if rejected and not taken:
        made.unlink()
        raise InputError(f"the index of {run} cannot be rebuilt, no explanation matches these options and images: {why}")
    for path in rejected:
        (run / REJECTED).mkdir(exist_ok=True)
        path.rename(_find_unused(run / REJECTED / path.name))
    old = run / INDEX
    if old.exists() and old.stat().st_size:
        with suppress(sqlite3.Error), closing(sqlite3.connect(old)) as damaged:  # if it is damaged, it is kept as it is
            damaged.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        old.rename(_find_unused(run / f"{INDEX}.old"))
    for ending in ("-wal", "-shm"):
        (run / f"{INDEX}{ending}").unlink(missing_ok=True)
    os.replace(made, old)
    write_copy(run, header)
    moved = f"; {len(rejected):,} moved to {run / REJECTED}: {why}" if rejected else ""
    return f"the index was lost, damaged or out of date: rebuilt it from {taken:,} explanations{moved}"


def _find_header(run: Path, inputs: Inputs, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The header of the run: its copy, or, if that is lost too, a new one that expects the model most explanations had."""
    try:
        content = json.loads((run / COPY).read_text(encoding="utf-8"))
        header = check_header({name: json.dumps(value) for name, value in content.items()}, run)
    except (OSError, ValueError, AttributeError, RecursionError, OutputError):
        header = check_header({name: to_json(value) for name, value in make_header(inputs, settings).items()}, run)
        found = Counter[tuple[tuple[str, str | None], ...]]()
        for _, path in find_result_folders(run):
            for place in (path, *path.glob(f"{BOX_FOLDER}*")):
                with suppress(Exception):  # a folder may hold anything
                    found[tuple(_facts_of(Explanation.load(place)).items())] += 1
        header["expected_facts"] = dict(found.most_common(1)[0][0]) if found else {}
    else:
        check_same_run(run, header, inputs, settings)
    return header | {"limit": None}


def _take(index: Index, number: int, path: Path, inputs: Inputs, header: Mapping[str, Any], folder: str) -> str | None:
    """Add the explanations of an image to the new index; returns why not, or None."""
    if number >= len(inputs.items):
        return "beyond the last image"
    try:
        item = inputs.items[number]
        image = os.path.join(folder, item.image)
        stamp, digest = stamp_of(image), hash_file(image)
        places: list[tuple[Path, int | None]] = [(path, None)]
        if index.per_image > 1:
            names = set(os.listdir(path))
            places = [(path / name, box) for box in range(1, MAX_BOXES + 1) if (name := f"{BOX_FOLDER}{box}") in names]
            if len(places) < len(names):
                return "unreadable"  # there are other files
        rows: list[dict[str, Any]] = []
        for place, box in places:
            file = place / ERROR_FILE
            if box is not None and file.is_file():
                with open_regular(file) as opened:
                    reason = one_line(opened.read(4096).decode("utf-8"), 300)
                row = {"state": "failed", "error": reason, "sha256": digest, "box": box}
            else:
                file = place / "explanation.json"
                explanation = Explanation.load(place)
                if (mismatch := _find_mismatch(explanation, item, header)) is not None:
                    return mismatch
                if stamp is None or digest != explanation.origin.image_sha256:
                    return "of another image"
                row = make_row(explanation, item, frozenset(header["categories"]), box) | {"state": "done"}
            finished = format_time(datetime.fromtimestamp(file.stat().st_mtime, UTC))
            rows.append(row | {"tries": 1, "finished": finished})
    except Exception:  # a folder may hold anything; it must not stop the others
        return "unreadable"
    if stamp is None or not any(row["state"] == "done" for row in rows):
        return "unreadable"
    index.write_rows(number, rows)
    index.write_stamps([(number, stamp)])
    return None


def _find_mismatch(explanation: Explanation, item: InputItem, header: Mapping[str, Any]) -> str | None:
    """How the record of an explanation differs from the run's header; None if it does not."""
    origin, settings = explanation.origin, header["settings"]
    facts = header["model_facts"] or header["expected_facts"]
    if os.path.basename(origin.image) != os.path.basename(item.image):
        return "of another image"
    request = replace(origin.request, box=None) if settings.get(ALL) else origin.request
    asked = settings["request"]
    if asked["fills"] == [AUTO] and set(request.fills) <= set(FILLS):  # which one was chosen for this image
        request = replace(request, fills=(AUTO,))
        if request.holds == replace(request, holds=asked.get("holds")).share_held:  # and what that means for the sets
            request = replace(request, holds=asked.get("holds"))
    if _comparable(request.record()) != _comparable(settings["request"]):
        return "with another request"
    if origin.versions.get("becausal") != settings["becausal"]:
        return "of another version of becausal"
    is_same_model = _last_part(origin.model) == _last_part(settings["model"])
    is_same_loading = _comparable(origin.loading) == _comparable(settings["loading"])
    if not is_same_model or not is_same_loading or _facts_of(explanation) != {name: facts.get(name) for name in _FACTS}:
        return "of another model"
    if explanation.stopped_by in ("interrupt", "failure"):
        return "incomplete"
    return None


def _facts_of(explanation: Explanation) -> dict[str, str | None]:
    return {name: getattr(explanation.origin, name) for name in _FACTS}


def _last_part(spec: str) -> str:
    """The model without its folder; records may have another path to the same file, which its hash identifies."""
    name = split_spec(str(spec))[1].replace(os.sep, "/").rsplit("/", 1)[-1]
    kind, _, rest = name.partition(":")
    return rest if kind in KINDS and rest else name


def _comparable(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide answers. Of files only the names: records have absolute paths, or the content."""
    plain = dict(json.loads(to_json({k: v for k, v in options.items() if k not in ("batch_size", "threads", "labels")})))
    if str(plain.get("preprocess")).endswith(".toml"):
        plain["preprocess"] = os.path.basename(plain["preprocess"])
    if plain.get("like") is not None:
        plain["like"] = os.path.basename(plain["like"])
    if "fills" in plain:
        plain["fills"] = [f"image:{_last_part(fill[6:])}" if fill.startswith("image:") else fill for fill in plain["fills"]]
    return plain


def _find_unused(path: Path) -> Path:
    """The path, or one with a number behind it: nothing that an earlier rebuild has kept is replaced."""
    names = (path.with_name(f"{path.name}-{number}") for number in count(1))
    return next(place for place in chain([path], names) if not place.exists())
