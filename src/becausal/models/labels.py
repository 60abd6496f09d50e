"""Class names: reading them from files, and finding a class by name or id.

A class is identified by its id; names may repeat (ImageNet has two cranes).
"""

import ast
import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from becausal.core.errors import InputError, ModelError, TargetError
from becausal.core.files import open_regular
from becausal.core.text import reason_of

_SYNSET = re.compile(r"(n\d{8})[\s,:]+(.+)")
_METADATA_KEYS = ("names", "labels", "classes", "class_names", "id2label", "categories")
_MAX_METADATA = 4_000_000  # characters
_MAX_FILE = 64 * 2**20  # bytes
FEW = 20  # names that fit into one line of a message
LEAST_ID = 2**23  # of names that have a model's answers, and no list (`core.contracts.name_id`)


@dataclass(frozen=True)
class MetadataLabels:
    """Class names in a model's metadata, and the key they are under."""

    key: str
    names: tuple[str, ...]


def read_labels(path: str | Path) -> tuple[str, ...]:
    """Read the class names in a file, in order of their ids.

    Args:
        path: A text file with one name per line, with or without a synset before it (`n01440764 tench`), or a JSON file
            with a list, or an object from id to name (or to [synset, name]).

    Raises:
        ModelError: The file cannot be read, or holds no names.
    """
    path = Path(path)
    try:
        text = read_text(path)
    except (OSError, ValueError, InputError) as error:
        raise ModelError(f"the labels file {path} cannot be read: {reason_of(error)}") from None
    if path.suffix.lower() == ".json":
        try:
            names = _as_names(json.loads(text))
        except json.JSONDecodeError as error:
            raise ModelError(f"{path} is not a JSON file: {error}") from None
        except (ValueError, TypeError, OverflowError, RecursionError):
            expected = "a JSON list of names, or an object from 0, 1, 2, … to names"
            raise ModelError(f"{path} must contain {expected}") from None
    else:
        names = tuple(line.strip() for line in text.splitlines() if line.strip())
        synsets = [_SYNSET.fullmatch(line) for line in names]
        if all(synsets):
            names = tuple(match[2].strip() for match in synsets if match)
    if not names:
        raise ModelError(f"{path} contains no labels; expected one per line")
    return names


def read_metadata_labels(metadata: Mapping[str, str]) -> MetadataLabels | None:
    """The class names in the metadata of a file: a list or an object from id to name, as JSON or as a Python literal."""
    for key in _METADATA_KEYS:
        text = metadata.get(key, "").strip()
        if not text.startswith(("[", "{", "(")) or len(text) > _MAX_METADATA:
            continue
        for parse in (json.loads, ast.literal_eval):  # neither runs code
            try:
                names = _as_names(parse(text))
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue
            if names:
                return MetadataLabels(key, names)
    return None


def choose_labels(
    given: tuple[str, ...] | None, found: MetadataLabels | None, classes: int | None
) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """The given class names, else those in the metadata if their number fits, and a note. classes: None if not known."""
    if given is not None or found is None or classes is None:
        return given, ()
    if len(found.names) != classes:
        count = f"{len(found.names)} names, but the model has {classes} classes"
        return None, (f"the class names in the file's metadata are not used: {found.key!r} has {count}",)
    return found.names, (f"class names read from the file's metadata, {found.key!r}",)


def find_label(wanted: str | int, labels: Sequence[str] | Mapping[int, str] | None, classes: int | None = None) -> int:
    """Find the id of a class.

    Args:
        wanted: The class's name, one of its comma-separated names, or its id; case does not matter.
        labels: Class names, in order of their ids, or by their ids where a model returns names without listing them.
        classes: Number of classes, if it is known and `labels` is None.

    Raises:
        TargetError: The name is unknown or not unique, or there is no such id. The message lists similar names, but of
            what a model has answered nothing: on a server, these are the answers to others.
    """
    is_listed = labels is None or not isinstance(labels, Mapping)
    known = dict(labels) if isinstance(labels, Mapping) else dict(enumerate(labels or ()))
    count = classes if classes is not None else (len(known) if labels is not None and is_listed else None)
    text = str(wanted).strip()
    names = {i: _normalise_name(name) for i, name in known.items()}
    name = _normalise_name(text)
    found = [i for i, other in names.items() if other == name]
    match = re.fullmatch(r"(?:class )?(-?\d{1,20})", text)
    if match and (is_listed or not found):  # names without ids of their own may be digits
        number = int(match[1])
        if number < 0 or (count is not None and number >= count):
            known_ids = f": the model has {count}, starting at 0" if count else ""
            raise TargetError(f"there is no class {number}{known_ids}")
        return number
    if not known:
        raise TargetError(f"the model has no class names, so {text!r} cannot be found: give its id, or use --labels FILE")
    found = found or [i for i, other in names.items() if name in [part.strip() for part in other.split(",")]]
    if len(found) == 1:
        return found[0]
    if found:
        raise TargetError(f"{text!r} is the name of classes {' and '.join(str(i) for i in found)}: give the id")
    known = {i: name for i, name in known.items() if i < LEAST_ID}
    if not known:
        unsaid = "no class is named {!r}: the model has given no such answer so far"
        raise TargetError(f"{unsaid.format(text)}; leave out the target to explain the one that it gives")
    raise TargetError(f"no class is named {text!r} among {len(known)}{_list_similar(name, known)}")


def _list_similar(name: str, known: Mapping[int, str]) -> str:
    """The classes with names like this one, or all where they are few, in words. known: at least one."""
    names = {i: _normalise_name(other) for i, other in known.items()}
    # Names that contain the wanted one come first, then those that are spelled alike.
    by_name = {other: i for i, other in reversed(list(names.items()))}
    close = difflib.get_close_matches(name, list(names.values()), n=5, cutoff=0.6)
    similar = [i for i, other in names.items() if name and name in other] + [by_name[other] for other in close]
    similar = list(dict.fromkeys(similar))[:5]
    shown = similar or (list(known) if len(known) <= FEW else [])
    listed = ", ".join(f"{known[i]} ({i})" for i in shown)
    return f"; similar: {listed}" if similar else f": {listed}" if shown else ""


def _normalise_name(name: str) -> str:
    return re.sub(r"[\s_]+", " ", name).strip().casefold()


def read_text(path: Path) -> str:
    """The text of a regular file. Raises OSError, InputError, or ValueError if it is not UTF-8 or too large."""
    with open_regular(path) as file:
        content = file.read(_MAX_FILE + 1)
    if len(content) > _MAX_FILE:
        raise ValueError(f"it is larger than {_MAX_FILE >> 20} MiB")
    return content.decode("utf-8-sig")


def _as_names(value: Any) -> tuple[str, ...]:
    """Names from a list, or an object from id to name (or to [synset, name]). Raises ValueError or TypeError."""
    if isinstance(value, dict):
        by_id = {int(key): item for key, item in value.items()}
        if sorted(by_id) != list(range(len(by_id))):
            raise ValueError("ids must be 0, 1, 2, …")
        value = [by_id[i] for i in range(len(by_id))]
    if not isinstance(value, (list, tuple)):
        raise TypeError("expected a list or an object")
    names = [item[-1] if isinstance(item, (list, tuple)) and item else item for item in value]
    if not all(isinstance(name, str) or (isinstance(name, (int, float)) and math.isfinite(name)) for name in names):
        raise TypeError("a name must be a text or a finite number")
    return tuple(str(name) for name in names)
