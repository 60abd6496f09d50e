"""The names of a model's classes: reading them, and finding one by name or number.

A class is known by its number; names may repeat (ImageNet has two cranes).
"""

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from becausal.core.errors import ModelError, TargetError

_SYNSET = re.compile(r"(n\d{8})[\s,:]+(.+)")


def read_labels(path: str | Path) -> tuple[str, ...]:
    """The names in a file, in order of their numbers.

    One per line, with or without a synset before it (`n01440764 tench`), or JSON: a list, or an object from number to
    name (or to [synset, name]). Raises ModelError for a file that cannot be read so.
    """
    path = Path(path)
    text = _text(path)
    names = _from_json(text, path) if path.suffix.lower() == ".json" else _from_lines(text)
    if not names:
        raise ModelError(f"{path} holds no labels; expected one per line")
    return names


def read_synsets(path: str | Path) -> tuple[str, ...] | None:
    """The synsets of a file of `synset name` lines, in order of their numbers; None where not every line has one."""
    found = [_SYNSET.fullmatch(line.strip()) for line in _text(Path(path)).splitlines() if line.strip()]
    synsets = tuple(match[1] for match in found if match)
    return synsets if synsets and len(synsets) == len(found) else None


def find_label(wanted: str | int, labels: Sequence[str] | None, classes: int | None = None) -> int:
    """The number of a class given by name, by one of its comma-separated names, or by number.

    Case does not matter. Raises TargetError for a name that is unknown (near ones are named) or not unique.
    """
    count = classes if classes is not None else (len(labels) if labels is not None else None)
    text = str(wanted).strip()
    if match := re.fullmatch(r"(?:class )?(-?\d+)", text):
        return _in_range(int(match[1]), count)
    if not labels:
        raise TargetError(f"the model has no label names, so {text!r} cannot be found: give its number, or --labels FILE")
    folded = [_fold(name) for name in labels]
    wish = _fold(text)
    found = [i for i, name in enumerate(folded) if name == wish]
    found = found or [i for i, name in enumerate(folded) if wish in [part.strip() for part in name.split(",")]]
    if len(found) == 1:
        return found[0]
    if found:
        numbers = " and ".join(str(i) for i in found)
        raise TargetError(f"{text!r} is the name of classes {numbers}: give the number")
    near = _near(wish, folded)
    hint = "; near: " + ", ".join(f"{labels[i]} ({i})" for i in near) if near else ""
    raise TargetError(f"no class is named {text!r} among {len(labels)}{hint}")


def _in_range(number: int, count: int | None) -> int:
    if number < 0 or (count is not None and number >= count):
        raise TargetError(f"there is no class {number}" + (f": the model has {count}, from 0" if count else ""))
    return number


def _near(wish: str, folded: Sequence[str]) -> list[int]:
    inside = [i for i, name in enumerate(folded) if wish and wish in name]
    close = difflib.get_close_matches(wish, folded, n=5, cutoff=0.6)
    return list(dict.fromkeys([*inside, *(folded.index(name) for name in close)]))[:5]


def _fold(name: str) -> str:
    return re.sub(r"[\s_]+", " ", name).strip().casefold()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"the labels file {path} cannot be read: {error}") from None


def _from_lines(text: str) -> tuple[str, ...]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = [_SYNSET.fullmatch(line) for line in lines]
    if all(found):
        return tuple(match[2].strip() for match in found if match)
    return tuple(lines)


def _from_json(text: str, path: Path) -> tuple[str, ...]:
    expected = f"{path} must hold a JSON list of names, or an object from 0, 1, 2, … to names"
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ModelError(f"{path} is no JSON: {error}") from None
    if isinstance(value, dict):
        try:
            by_number = {int(key): item for key, item in value.items()}
        except ValueError:
            raise ModelError(expected) from None
        if sorted(by_number) != list(range(len(by_number))):
            raise ModelError(expected)
        value = [by_number[i] for i in range(len(by_number))]
    if not isinstance(value, list):
        raise ModelError(expected)
    return tuple(str(item[-1]) if isinstance(item, list) and item else str(item) for item in value)
