"""Class names: reading them from files, and finding a class by name or id.

A class is identified by its id; names may repeat (ImageNet has two cranes).
"""

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from becausal.core.errors import ModelError, TargetError

_SYNSET = re.compile(r"(n\d{8})[\s,:]+(.+)")


def read_labels(path: str | Path) -> tuple[str, ...]:
    """Read the class names in a file, in order of their ids.

    Args:
        path: A text file with one name per line, with or without a synset before it (`n01440764 tench`), or a JSON file
            with a list, or an object from id to name (or to [synset, name]).

    Raises:
        ModelError: The file cannot be read, or holds no names.
    """
    path = Path(path)
    text = _read_text(path)
    names = _parse_json(text, path) if path.suffix.lower() == ".json" else _parse_lines(text)
    if not names:
        raise ModelError(f"{path} contains no labels; expected one per line")
    return names


def read_synsets(path: str | Path) -> tuple[str, ...] | None:
    """The synsets in a file of `synset name` lines, in order of class ids; None if a line has no synset."""
    found = [_SYNSET.fullmatch(line.strip()) for line in _read_text(Path(path)).splitlines() if line.strip()]
    synsets = tuple(match[1] for match in found if match)
    return synsets if synsets and len(synsets) == len(found) else None


def find_label(wanted: str | int, labels: Sequence[str] | None, classes: int | None = None) -> int:
    """Find the id of a class.

    Args:
        wanted: The class's name, one of its comma-separated names, or its id; case does not matter.
        labels: Class names, in order of their ids.
        classes: Number of classes, if it is known and `labels` is None.

    Raises:
        TargetError: The name is unknown (the message lists similar ones) or not unique, or there is no such id.
    """
    count = classes if classes is not None else (len(labels) if labels is not None else None)
    text = str(wanted).strip()
    if match := re.fullmatch(r"(?:class )?(-?\d+)", text):
        return _check_id(int(match[1]), count)
    if not labels:
        raise TargetError(f"the model has no class names, so {text!r} cannot be found: give its id, or use --labels FILE")
    names = [_normalise_name(name) for name in labels]
    name = _normalise_name(text)
    found = [i for i, known in enumerate(names) if known == name]
    found = found or [i for i, known in enumerate(names) if name in [part.strip() for part in known.split(",")]]
    if len(found) == 1:
        return found[0]
    if found:
        raise TargetError(f"{text!r} is the name of classes {' and '.join(str(i) for i in found)}: give the id")
    similar = _find_similar(name, names)
    hint = "; similar: " + ", ".join(f"{labels[i]} ({i})" for i in similar) if similar else ""
    raise TargetError(f"no class is named {text!r} among {len(labels)}{hint}")


def _check_id(number: int, count: int | None) -> int:
    if number < 0 or (count is not None and number >= count):
        raise TargetError(f"there is no class {number}" + (f": the model has {count}, starting at 0" if count else ""))
    return number


def _find_similar(name: str, names: Sequence[str]) -> list[int]:
    containing = [i for i, known in enumerate(names) if name and name in known]
    close = difflib.get_close_matches(name, names, n=5, cutoff=0.6)
    return list(dict.fromkeys([*containing, *(names.index(known) for known in close)]))[:5]


def _normalise_name(name: str) -> str:
    return re.sub(r"[\s_]+", " ", name).strip().casefold()


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"the labels file {path} cannot be read: {error}") from None


def _parse_lines(text: str) -> tuple[str, ...]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [_SYNSET.fullmatch(line) for line in lines]
    if all(found):
        return tuple(match[2].strip() for match in found if match)
    return tuple(lines)


def _parse_json(text: str, path: Path) -> tuple[str, ...]:
    expected = f"{path} must contain a JSON list of names, or an object from 0, 1, 2, … to names"
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ModelError(f"{path} is not a JSON file: {error}") from None
    if isinstance(value, dict):
        try:
            by_id = {int(key): item for key, item in value.items()}
        except ValueError:
            raise ModelError(expected) from None
        if sorted(by_id) != list(range(len(by_id))):
            raise ModelError(expected)
        value = [by_id[i] for i in range(len(by_id))]
    if not isinstance(value, list):
        raise ModelError(expected)
    return tuple(str(item[-1]) if isinstance(item, list) and item else str(item) for item in value)
