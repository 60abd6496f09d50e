"""The header of a run, its copy in `run.json`, and a lost index rebuilt from the folders of the explanations.

Nothing is removed: the old index, if there is one, stays as `index.sqlite.old`, and explanations that do not belong to
the run are moved to `rejected/`.
"""

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from becausal.api.explanation import Explanation
from becausal.api.origins import hash_file
from becausal.batch.index import (
    BOX_FOLDER,
    ERROR_FILE,
    INDEX,
    check_header,
    create_tables,
    find_result_folders,
    write_rows,
    write_stamps,
)
from becausal.batch.inputs import Inputs
from becausal.batch.opening import connect
from becausal.batch.records import InputItem
from becausal.batch.rows import make_row, stamp_of
from becausal.batch.settings import ALL, by_option, list_changes, rows_per_image, to_json
from becausal.core.boxes import MAX_BOXES
from becausal.core.errors import InputError, OutputError
from becausal.core.files import open_regular, write_file
from becausal.core.text import one_line
from becausal.models import KINDS

COPY = "run.json"
REJECTED = "rejected"


def make_header(inputs: Inputs, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The header of a new run."""
    return {
        "settings": settings,
        "images_sha256": digest_of(inputs),
        "categories": sorted(inputs.categories),
        "started": now(),
    }


def write_copy(run: Path, header: Mapping[str, Any]) -> None:
    """Write the copy of the header next to the index."""
    write_file(run / COPY, (json.dumps(header, indent=1, sort_keys=True) + "\n").encode("utf-8"))


def read_copy(run: Path) -> dict[str, Any] | None:
    """The header in the copy; None if there is none, or none that can be read."""
    try:
        content = json.loads((run / COPY).read_text(encoding="utf-8"))
        return check_header({name: json.dumps(value) for name, value in content.items()}, run)
    except (OSError, ValueError, AttributeError, RecursionError, OutputError):
        return None


def check_same_run(
    run: Path, header: Mapping[str, Any], inputs: Inputs, settings: Mapping[str, Any], names: set[str] | None = None
) -> None:
    """Refuse other settings or images than those of the header; names: of its images. Raises InputError."""
    changes = list_changes(by_option(header["settings"]), by_option(json.loads(to_json(settings))))
    if header["images_sha256"] != digest_of(inputs):
        current = {item.image for item in inputs.items}
        differences = [
            f"{len(found):,} {kind} (e.g. {min(found)})"
            for kind, found in (("added", current - (names or current)), ("missing", (names or current) - current))
            if found
        ]
        changes.append(f"the images differ: {' and '.join(differences) or 'their order, number or boxes'}")
    if changes:
        raise InputError(
            f"{run} was started with other options: {'; '.join(changes)}. Use the same options, or another --out"
        )


def digest_of(inputs: Inputs) -> str:
    """A hash of the names and boxes of all images, in order."""
    digest = sha256()
    for item in inputs.items:
        digest.update(to_json([item.image, item.boxes, item.size]).encode())
    digest.update(to_json(sorted(inputs.categories)).encode())
    return digest.hexdigest()


def now() -> str:
    """The time in UTC, to the second."""
    return _format_time(datetime.now(UTC))


def _format_time(time: datetime) -> str:
    return time.isoformat(timespec="seconds")


def rebuild_index(run: Path, inputs: Inputs, settings: Mapping[str, Any], folder: str) -> str:
    """Make a new index from the explanations whose records match the settings and the images; returns what was done.

    Failed images are waiting again. folder: working directory for relative paths. Raises InputError if the copy of the
    header shows that the run was started with other settings or images, or if no explanation matches.
    """
    header = read_copy(run)
    if header is not None:
        check_same_run(run, header, inputs, settings)
    else:
        header = check_header({name: to_json(value) for name, value in make_header(inputs, settings).items()}, run)
        header["expected_facts"] = _find_facts(run)
    header["limit"] = None
    made = run / f"{INDEX}.new"
    made.unlink(missing_ok=True)
    index = connect(made)
    rejected = dict[Path, str]()
    try:
        create_tables(index, header, inputs.items)
        index.execute("BEGIN")
        for number, path in find_result_folders(run):
            reason = _take(index, number, path, inputs, header, folder)
            if reason is not None:
                rejected[path] = reason
        index.execute("COMMIT")
        taken = index.execute("SELECT count(*) FROM images WHERE state = 'done'").fetchone()[0]
    finally:
        index.close()
    why = ", ".join(f"{count:,} {reason}" for reason, count in Counter(rejected.values()).most_common())
    if rejected and not taken:
        made.unlink()
        raise InputError(f"the index of {run} cannot be rebuilt, no explanation matches these options and images: {why}")
    for path in rejected:
        _set_aside(run, path)
    _replace(run, made)
    write_copy(run, header)
    moved = f"; {len(rejected):,} moved to {run / REJECTED}: {why}" if rejected else ""
    return f"rebuilt the index from {taken:,} explanations{moved}"


def _take(
    index: sqlite3.Connection, number: int, path: Path, inputs: Inputs, header: Mapping[str, Any], folder: str
) -> str | None:
    """Add the explanations of an image to the new index; returns why not, or None."""
    if number >= len(inputs.items):
        return "beyond the last image"
    per_image = rows_per_image(header["settings"])
    try:
        item = inputs.items[number]
        image = os.path.join(folder, item.image)
        stamp, digest = stamp_of(image), hash_file(image)
        rows = []
        for place, box in _list_boxes(path) if per_image > 1 else [(path, None)]:
            row, file = _read_error(place, box, digest), ERROR_FILE
            if row is None:
                file = "explanation.json"
                explanation = Explanation.load(place)
                if (reason := _find_mismatch(explanation, item, header)) is not None:
                    return reason
                if stamp is None or digest != explanation.origin.image_sha256:
                    return "of another image"
                row = make_row(explanation, item, frozenset(header["categories"]), box) | {"state": "done"}
            finished = _format_time(datetime.fromtimestamp((place / file).stat().st_mtime, UTC))
            rows.append(row | {"tries": 1, "finished": finished})
    except Exception:  # a folder may hold anything; it must not stop the others
        return "unreadable"
    if stamp is None or not any(row["state"] == "done" for row in rows):
        return "unreadable"
    write_rows(index, number, per_image, rows)
    write_stamps(index, [(number, stamp)])
    return None


def _list_boxes(folder: Path) -> list[tuple[Path, int]]:
    """The folders of an image's boxes, with their numbers. Raises ValueError for anything else."""
    found = [(path, int(path.name.removeprefix(BOX_FOLDER))) for path in folder.iterdir()]
    if any(path.name != f"{BOX_FOLDER}{box}" or not 1 <= box <= MAX_BOXES for path, box in found):
        raise ValueError("other files")
    return sorted(found, key=lambda each: each[1])


def _read_error(place: Path, box: int | None, digest: str | None) -> dict[str, Any] | None:
    """The row of a box that could not be explained; None if it was."""
    if box is None or not (place / ERROR_FILE).is_file():
        return None
    with open_regular(place / ERROR_FILE) as file:
        reason = one_line(file.read(4096).decode("utf-8"), 300)
    return {"state": "failed", "error": reason, "sha256": digest, "box": box}


def _find_mismatch(explanation: Explanation, item: InputItem, header: Mapping[str, Any]) -> str | None:
    """How the record of an explanation differs from the run's header; None if it does not."""
    origin, settings = explanation.origin, header["settings"]
    facts = header["model_facts"] or header["expected_facts"]
    if os.path.basename(origin.image) != os.path.basename(item.image):
        return "of another image"
    request = replace(origin.request, box=None) if settings.get(ALL) else origin.request
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


_FACTS = ("model_sha256", "preprocess")


def _facts_of(explanation: Explanation) -> dict[str, str | None]:
    return {name: getattr(explanation.origin, name) for name in _FACTS}


def _find_facts(run: Path) -> dict[str, str | None]:
    """The facts about the model that most explanations have in their records."""
    found = Counter(tuple(_facts_of(explanation).items()) for explanation in _load_all(run))
    return dict(found.most_common(1)[0][0]) if found else {}


def _load_all(run: Path) -> Iterator[Explanation]:
    for _, path in find_result_folders(run):
        for place in (path, *path.glob(f"{BOX_FOLDER}*")):
            try:
                yield Explanation.load(place)
            except Exception:  # as in `_take`
                continue


def _last_part(spec: str) -> str:
    """The model without its folder; records may have another path to the same file, which its hash identifies."""
    name = str(spec).removeprefix("detect:").replace(os.sep, "/").rsplit("/", 1)[-1]
    kind, _, rest = name.partition(":")
    return rest if kind in KINDS and rest else name


def _comparable(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that decide answers. Of files only the names: records have absolute paths, or the content."""
    plain = dict(json.loads(to_json({k: v for k, v in options.items() if k not in ("batch_size", "threads", "labels")})))
    if str(plain.get("preprocess")).endswith(".toml"):
        plain["preprocess"] = os.path.basename(plain["preprocess"])
    if "fills" in plain:
        plain["fills"] = [f"image:{_last_part(fill[6:])}" if fill.startswith("image:") else fill for fill in plain["fills"]]
    return plain


def _set_aside(run: Path, path: Path) -> None:
    place = run / REJECTED / path.name
    for number in range(1, 10_000):
        if not place.exists():
            break
        place = place.with_name(f"{path.name}-{number}")
    place.parent.mkdir(exist_ok=True)
    path.rename(place)


def _replace(run: Path, made: Path) -> None:
    """Put a new index in the place of the old one, which is kept under another name."""
    path = run / INDEX
    if path.exists() and path.stat().st_size:
        try:
            with_log = sqlite3.connect(path)
            with_log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            with_log.close()
        except sqlite3.Error:
            pass  # it is damaged: kept as it is
        os.replace(path, run / f"{INDEX}.old")
    for ending in ("-wal", "-shm"):
        (run / f"{INDEX}{ending}").unlink(missing_ok=True)
    os.replace(made, path)
