"""The folders of results: which image gets which, without replacing another image's, and what an earlier run left there.

The answer to another question about the same image is replaced, and that is said.
"""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from becausal.core.errors import InputError, OutputError
from becausal.core.files import path_inside, safe_name
from becausal.core.text import one_line
from becausal.interfaces.cli.console import complain

if TYPE_CHECKING:
    from becausal.api.explanation import Explanation
    from becausal.api.saved import SavedSource

RECORD = "explanation.json"  # as in `api.saved`, which is loaded when it is needed
_BOX = re.compile(r"box-\d{1,9}")
#: What makes another question, besides the target: of the request, and of how the model is loaded.
_ASKED = ("confidence", "smallest", "fills", "holds", "backgrounds", "contrast", "several")
_ASKED_OF_MODEL = ("text", "ask", "like")


def choose_folders(images: Sequence[Path], out: Path) -> list[tuple[Path, Path]]:
    """Each image with its own folder: its name without the suffix, made safe, and -2, -3, … if that is taken."""
    taken: set[str] = set()
    return [(image, out / _take(next(_free_names(image, taken)), taken)) for image in images]


def keep_folders(images: Sequence[Path], out: Path) -> list[tuple[Path, Path]]:
    """The same for explanations: the folder that has this image's, else one that has none; says where a name is taken."""
    taken: set[str] = set()
    chosen = []
    for image in images:
        others: list[Path] = []  # folders with the explanation of another image
        same: list[Path] = []  # a copy of it
        for name in _free_names(image, taken):
            source = _source_of(out / name)
            if source is None or source.path == os.path.abspath(image):
                break
            (same if source.has_content_of(image) else others).append(out / name)
        if source is None and same:
            name = same[0].name
        elif source is None and others:
            complain(f"{others[0]} holds the explanation of another image: {image} is saved in {out / name}", kind="note")
        chosen.append((image, path_inside(out, _take(name, taken))))
    return chosen


def announce_replacement(folder: Path, explanation: "Explanation") -> None:
    """Say that the explanation in a folder, which answers another question, is about to be replaced by this one."""
    from becausal.api.explanation import Explanation

    if not (folder / RECORD).is_file():
        return
    with suppress(InputError, OutputError):  # one that cannot be read keeps its folder, see `keep_folders`
        earlier = Explanation.load(folder)
        if (changed := _compare_questions(earlier, explanation)) is not None:
            complain(f"{folder}: {one_line(changed)}; another --out keeps both", kind="note")


def _compare_questions(earlier: "Explanation", now: "Explanation") -> str | None:
    """What is replaced by what, in words; None where both answer the same question."""
    before, after = (_name_target(found) for found in (earlier, now))
    if before != after and not (earlier.label == now.label and _is_same_box(earlier, now)):
        return f"the explanation of {before} there is replaced by that of {after}"
    if earlier.origin.model != now.origin.model:
        return f"the explanation of {before} there, of another model, is replaced"
    asked, others = (_list_asked(found) for found in (earlier, now))
    return None if asked == others else f"the explanation of {before} there, of another question, is replaced"


def _name_target(explanation: "Explanation") -> str:
    """What is explained: motor scooter; bus at 32,59 to 148,122; cougar rather than lion."""
    from becausal.render.wording import describe_place

    rival = explanation.rival if explanation.target.against is not None else None
    words = [explanation.label, describe_place(explanation), "" if rival is None else f"rather than {rival.label}"]
    return " ".join(filter(None, words))


def _is_same_box(earlier: "Explanation", now: "Explanation") -> bool:
    """Whether both are about one box of a detector, which the model need not find at exactly the same place."""
    import numpy as np

    from becausal.core.boxes import overlaps
    from becausal.core.targets import OVERLAP

    boxes = [None if found.target.box is None else found.frame.box_to_original(found.target.box) for found in (earlier, now)]
    if boxes[0] is None or boxes[1] is None:
        return False
    return float(overlaps(np.array(boxes[0]), boxes[1])) >= OVERLAP


def _list_asked(explanation: "Explanation") -> list[object]:
    """What was asked besides the target and the model; how it was searched for is no part of it."""
    target, request, loading = explanation.target, explanation.origin.request.record(), explanation.origin.loading
    kinds = [target.top, target.against, target.place, target.segment is None]
    asked = [request.get(name) for name in _ASKED] + [loading.get(name) for name in _ASKED_OF_MODEL]
    return [*kinds, *(list(value) if isinstance(value, tuple) else value for value in asked)]


def _free_names(image: Path, taken: Collection[str]) -> Iterator[str]:
    stem = safe_name(image.stem)
    names = (stem if number == 1 else f"{stem}-{number}" for number in count(1))
    return (name for name in names if name.casefold() not in taken)


def _take(name: str, taken: set[str]) -> str:
    taken.add(name.casefold())
    return name


def _source_of(folder: Path) -> "SavedSource | None":
    """The image whose explanation, or whose boxes, a folder has; None if it has none."""
    if not folder.is_dir():
        return None
    from becausal.api.saved import read_source

    return next((source for own in (folder, *list_boxes(folder)) if (source := read_source(own)) is not None), None)


def list_boxes(folder: Path) -> list[Path]:
    """The folders with explanations of single boxes in an image's folder, in their order."""
    with suppress(OSError):
        found = [own for own in folder.iterdir() if _BOX.fullmatch(own.name) and not own.is_symlink()]
        return sorted((own for own in found if (own / RECORD).is_file()), key=lambda own: int(own.name.partition("-")[2]))
    return []


def remove_boxes(folder: Path) -> None:
    """Remove what an earlier run with --all left beside the explanation of an image or of one of its boxes, and say so."""
    if removed := [own.name for own in list_boxes(folder) if _remove_explanation(own)]:
        complain(f"{folder}: removed {', '.join(removed)} of an earlier run with --all", kind="note")


def remove_earlier(folder: Path, boxes: Collection[int]) -> None:
    """Remove what earlier runs left in the folder of an image all of whose boxes were explained, and say so.

    boxes: the numbers of those that were saved just now.
    """
    stale = [own for own in list_boxes(folder) if int(own.name.partition("-")[2]) not in boxes]
    removed = [own.name for own in stale if _remove_explanation(own)]
    if removed:
        complain(f"{folder}: removed {', '.join(removed)} of an earlier run, boxes that are not found now", kind="note")
    if _remove_explanation(folder):
        complain(f"{folder}: removed the explanation of a single box from an earlier run", kind="note")


def _remove_explanation(folder: Path) -> bool:
    """Remove the files of a saved explanation, and the folder if nothing else is in it; whether there was one."""
    from becausal.api.explanation import FILES

    if not (folder / RECORD).is_file():
        return False
    try:
        for name in FILES:  # the record first: without it the others are not read
            path_inside(folder, name).unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot remove the earlier explanation in {folder}: {error.strerror or error}") from error
    with suppress(OSError):
        folder.rmdir()
    return True
