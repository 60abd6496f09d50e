"""Saved explanations, read back. They may come from anybody: everything is checked, nothing that they name is opened."""

import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from becausal.core.checks import ENOUGH, Against, Certificate, CheckedSet, Checks, Level, level_name
from becausal.core.contracts import Visible, Zone
from becausal.core.errors import InputError, OptionError, OutputError
from becausal.core.explanation import SCHEMA, NamedScore, Origin
from becausal.core.files import open_regular
from becausal.core.frames import Frame
from becausal.core.intervals import MOST_CASES
from becausal.core.request import SHARE
from becausal.core.schema import check_depth, read_fields, read_value
from becausal.core.stats import Stats
from becausal.core.targets import Target
from becausal.core.text import one_line, reason_of
from becausal.images.loading import digest_file
from becausal.models.loading import Loading

RECORD, ARRAYS = "explanation.json", "arrays.npz"
BEFORE = "becausal/explanation/2"  # the version before, which is read too
MOST_JSON = 2**26  # bytes of a record
MOST_ARRAYS = 2**31  # bytes of all arrays together, decompressed
_MOST_ORIGINAL = 2**28  # pixels of the original image, onto which masks are mapped
_MOST_SIDE = 2**31
_MOST_LABEL = 2**53  # ids of names are large, see core.contracts.name_id
_MOST_PANEL = 1_000  # backgrounds
_MOST_HEADER = 10_000  # bytes of an array's header
_KINDS = {"visible": "b", "responsibility": "f", "view": "biuf", "backgrounds": "biuf", "others": "b"}
_OPTIONAL = {"levels": "b", "zones": "u", "against": "b"}  # arrays that a record may do without

Scored = TypeVar("Scored", Checks, NamedScore)


@dataclass(frozen=True, kw_only=True)
class _Record:
    """What is read of a record; the rest of it is a summary for others."""

    label: str
    label_id: int
    confidence: float | None
    target: Target
    checks: Mapping[str, Any]
    stopped_by: Literal["finished", "budget", "interrupt", "failure"]
    stats: Stats
    origin: Origin
    frame: Frame
    notes: tuple[str, ...]
    top: Mapping[str, Any] | None = None
    rival: Mapping[str, Any] | None = None
    runner_up: Mapping[str, Any] | None = None
    further_checks: tuple[Mapping[str, Any], ...] | None = None
    levels: tuple[Mapping[str, Any], ...] = ()
    against: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class _AgainstRecord:
    """What is read of `Against`, whose pixels are an array."""

    confidence: float
    gain: float
    patches: int


class _Header(NamedTuple):
    """What an archive says about one of its arrays. offset, size: bytes before the data, and of it."""

    member: ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    is_fortran: bool
    offset: int
    size: int


class SavedSource(NamedTuple):
    """The image of a saved explanation: its path and the sha256 of its content, None where they are not known."""

    path: str | None = None
    sha256: str | None = None

    def has_content_of(self, image: Path) -> bool:
        """Whether a file has the same content."""
        try:
            return self.sha256 is not None and digest_file(image) == self.sha256
        except (OSError, ValueError, InputError):
            return False


def read_source(folder: Path) -> SavedSource | None:
    """The image of the explanation in a folder; None if it has none. Nothing is known of one that cannot be read."""
    try:
        origin = _read_record(folder / RECORD).get("origin")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, InputError):
        return SavedSource()
    files = origin.get("files") if isinstance(origin, dict) else None
    file = files.get("image") if isinstance(files, dict) else None
    path, sha256 = (file.get(name) for name in SavedSource._fields) if isinstance(file, dict) else (None, None)
    return SavedSource(path if isinstance(path, str) else None, sha256 if isinstance(sha256, str) else None)


def read_explanation(folder: Path) -> dict[str, Any]:
    """The fields of a saved explanation. Raises OutputError that names the file or the field which is damaged."""
    with _refusing(folder):
        record, data = (
            _read_record(folder / RECORD),
            _read_arrays(folder / ARRAYS, (*_KINDS, *_OPTIONAL), optional=_OPTIONAL),
        )
        return _check(read_fields(_Record, record, ignore_others=True), data) | {"saved": record}


def read_visible(folder: Path) -> tuple[Visible, Frame]:
    """The pixel set of a saved explanation, (*grid,) bool, and the frame of its view. Raises OutputError."""
    with _refusing(folder):
        frame = Frame(**read_fields(Frame, _read_record(folder / RECORD).get("frame"), "frame"))
        visible = _read_arrays(folder / ARRAYS, ("visible",))["visible"]
        _check_frame(frame, visible.shape)
        return visible, frame


@contextmanager
def _refusing(folder: Path) -> Iterator[None]:
    """Whatever goes wrong with the files of a folder becomes an OutputError of one line."""
    try:
        yield
        return
    except FileNotFoundError as error:
        raise OutputError(f"{folder} holds no saved explanation: {Path(str(error.filename)).name} is missing") from None
    except MemoryError:
        reason = "it does not fit into memory"
    except (BadZipFile, zlib.error, EOFError):
        reason = f"{ARRAYS} is damaged or cut short"
    except UnicodeDecodeError:
        reason = f"{RECORD} is not text in UTF-8"
    except InputError as error:
        reason = str(error)
    except (OSError, ValueError) as error:
        reason = reason_of(error)
    except (NotImplementedError, RuntimeError, OverflowError) as error:  # of the archive, or of one of its members
        reason = f"{ARRAYS} cannot be read: {one_line(error, 200)}"
    raise OutputError(f"{folder} holds no readable explanation: {reason}")


def _read_record(path: Path) -> dict[str, Any]:
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_JSON:
            raise OptionError(f"{path.name} has more than {MOST_JSON // 2**20} MB")
        text = file.read()
    try:
        record = json.loads(text.decode("utf-8"))
    except json.JSONDecodeError as error:
        raise OptionError(f"{path.name} is not a JSON file: {error}") from None
    except RecursionError:
        raise OptionError(f"{path.name} is nested too deeply") from None
    if not isinstance(record, dict):
        raise OptionError(f"{path.name} is not a JSON object")
    check_depth(record)
    if record.get("schema") == BEFORE:
        return _upgrade(record)
    if record.get("schema") != SCHEMA:
        raise OptionError(f"schema is {one_line(record.get('schema'), 60)}; this version reads {SCHEMA} and {BEFORE}")
    return record


def _upgrade(record: dict[str, Any]) -> dict[str, Any]:
    """A record of the version before as one of this version: what it says of its sets, as far as it says it of whole sets.

    The minimality of a level was that of the cells it adds to the one inside. Without a share, the question was for a set
    that keeps most of the confidence, with others inside it; what is known of such a set is what `confidence` asks for.
    """
    levels, request = record.get("levels"), record.get("origin", {})
    request = request.get("request") if isinstance(request, dict) else None
    unknown = {"minimal_grain": None, "cells": 0}
    if isinstance(levels, list) and len(levels) > 1 and all(isinstance(level, dict) for level in levels):
        levels = [levels[0], *({**level, **unknown} for level in levels[1:])]
        named = [{**level, "name": _name_level(level)} for level in levels]
        record = {**record, "levels": named, "level": named[-1]["name"]}
        for name in ("checks", "explanation"):
            if isinstance(record.get(name), dict):
                record[name] = {**record[name], **{key: unknown[key] for key in unknown if key in record[name]}}
        if isinstance(request, dict) and request.get("confidence") is None and not record["levels"][-1].get("certificate"):
            record["origin"] = {**record["origin"], "request": {**request, "confidence": SHARE}}
    return {**record, "schema": SCHEMA}


def _name_level(level: Mapping[str, Any]) -> str:
    share = level.get("share")
    if level.get("certificate") is not None:
        return ENOUGH
    return level_name(share) if isinstance(share, (int, float)) and 0 <= share <= 1 else "unknown"


def _read_arrays(path: Path, names: tuple[str, ...], *, optional: Iterable[str] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of these names. All headers are read and compared before any array is."""
    with open_regular(path) as file, ZipFile(file) as archive:
        missing = {name for name in optional if f"{name}.npy" not in archive.namelist()}
        headers = {name: _read_header(archive, name) for name in names if name not in missing}
        if sum(header.size for header in headers.values()) > MOST_ARRAYS:
            raise OptionError(f"the arrays take more than {MOST_ARRAYS // 2**30} GB")
        _check_shapes(headers)
        return {name: _read_array(archive, header) for name, header in headers.items()}


def _read_header(archive: ZipFile, name: str) -> _Header:
    members = [member for member in archive.infolist() if member.filename == f"{name}.npy"]
    if len(members) != 1:
        raise OptionError(f"{ARRAYS} has {len(members) or 'no'} arrays named {name}, expected one")
    (member,) = members
    if member.flag_bits & 1 or member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise OptionError(f"the array {name} is encrypted, or compressed in an unknown way")
    with archive.open(member) as file:
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, is_fortran, dtype = read(file, max_header_size=_MOST_HEADER)
        except Exception as error:  # numpy reads a header as Python text, and raises whatever it trips over
            raise OptionError(f"the header of the array {name} cannot be read: {one_line(error, 200)}") from None
        offset, size = file.tell(), math.prod(shape) * dtype.itemsize
    if dtype.kind not in (_KINDS | _OPTIONAL)[name] or dtype.itemsize > 8 or any(side < 0 for side in shape):
        raise OptionError(f"the array {name} has type {dtype} and shape {shape}")
    if offset + size != member.file_size:
        raise OptionError(f"the array {name} has shape {shape}, which does not fit its {member.file_size} bytes")
    return _Header(member, shape, dtype, is_fortran, offset, size)


def _read_array(archive: ZipFile, header: _Header) -> NDArray[Any]:
    name = header.member.filename
    # The array is allocated by what its header states, and never grows: a member that unpacks to more is cut off.
    data, filled = np.empty(header.size, np.uint8), 0
    with archive.open(header.member) as file:
        file.read(header.offset)
        while filled < header.size and (chunk := file.read(min(2**20, header.size - filled))):
            data[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
            filled += len(chunk)
    if filled != header.size:
        raise OptionError(f"the array {name} is shorter than its header states")
    array = data.view(header.dtype).reshape(header.shape, order="F" if header.is_fortran else "C")
    if header.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise OptionError(f"the array {name} holds bytes that are neither true nor false")
    return np.ascontiguousarray(array.astype(header.dtype.newbyteorder("="), copy=False))


def _check_shapes(headers: Mapping[str, _Header]) -> None:
    grid = headers["visible"].shape
    if not grid or 0 in grid:
        raise OptionError(f"the array visible has shape {grid}")
    if len(headers) == 1:
        return
    view, backgrounds, others = (headers[name].shape for name in ("view", "backgrounds", "others"))
    levels = headers["levels"].shape if "levels" in headers else (0, *grid)
    for name, fits in (
        ("levels", levels[1:] == grid),
        *((name, headers[name].shape == grid) for name in ("zones", "against") if name in headers),
        ("responsibility", headers["responsibility"].shape == grid),
        ("view", view[:-1] == grid and view[-1] > 0),
        ("backgrounds", backgrounds[1:] == view and backgrounds[0] > 0),
        ("others", others[1:] == grid and len(others) == len(grid) + 1),
    ):
        if not fits:
            raise OptionError(f"the array {name} has shape {headers[name].shape}, which does not fit a view of {grid}")
    if headers["view"].dtype != headers["backgrounds"].dtype:
        raise OptionError(f"the array backgrounds has type {headers['backgrounds'].dtype}, unlike the view")


def _check(found: dict[str, Any], data: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The fields of an explanation, from a record and its arrays."""
    if not found["label_id"] == found["target"].label_id < _MOST_LABEL:
        raise OptionError(f"label_id is {found['label_id']}, and target.label_id {found['target'].label_id}")
    for name in ("view", "backgrounds"):
        if not np.isfinite(data[name]).all():
            raise OptionError(f"the array {name} holds NaN or infinite numbers")
    _check_frame(found["frame"], data["visible"].shape)
    try:
        for pair in Loading.from_record(found["origin"].loading).endpoint:
            if pair.partition("=")[0].strip() == "price" and not 0 <= float(pair.partition("=")[2]) < 1e9:
                raise ValueError
    except InputError as error:
        raise OptionError(f"origin.loading: {error}") from None
    except ValueError:
        raise OptionError("origin.loading.endpoint has a price that is not a number") from None
    unchecked = {"sufficient": True, "confidence": None}  # of further sets, in files from before they were checked
    further = found.pop("further_checks", None)
    further = [unchecked] * len(data["others"]) if further is None else further
    if len(further) != len(data["others"]):
        raise OptionError(f"further_checks has {len(further)} entries, for {len(data['others'])} further explanations")
    checks = [_read_scored(Checks, own, f"further_checks[{i}]") for i, own in enumerate(further)]
    return found | {
        "confidence": math.nan if found["confidence"] is None else found["confidence"],
        "checks": _read_scored(Checks, found["checks"], "checks"),
        **{
            name: _read_scored(NamedScore, found[name], name) if found.get(name) else None
            for name in ("top", "rival", "runner_up")
        },
        **{name: data[name] for name in ("visible", "responsibility", "view")},
        "backgrounds": tuple(data["backgrounds"]),
        "others": tuple(CheckedSet(visible, own) for visible, own in zip(data["others"], checks, strict=True)),
        "levels": _read_levels(found.get("levels", ()), data),
        "zones": _read_zones(data),
        "against": _read_against(found.get("against"), data),
    }


def _read_zones(data: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8] | None:
    zones = data.get("zones")
    if zones is None:
        return None
    if zones.dtype != np.uint8 or zones.max() > max(Zone):
        raise OptionError(f"the array zones has type {zones.dtype}, with values up to {zones.max()}")
    return zones


def _read_against(record: Mapping[str, Any] | None, data: Mapping[str, NDArray[Any]]) -> Against | None:
    if (record is None) != ("against" not in data):
        raise OptionError("against is in the record or among the arrays, and not in the other")
    if record is None:
        return None
    known = {name: record.get(name) for name in ("confidence", "gain", "patches")}
    return Against(data["against"], **read_fields(_AgainstRecord, known, "against", complete=True))


def _read_levels(records: tuple[Mapping[str, Any], ...], data: Mapping[str, NDArray[Any]]) -> tuple[Level, ...]:
    """The levels; none from a file of before there were any."""
    sets = data.get("levels", np.zeros((0, *data["visible"].shape), bool))
    if len(records) != len(sets):
        raise OptionError(f"levels has {len(records)} entries, and the array levels {len(sets)} sets")
    if len(sets) and not np.array_equal(sets[-1], data["visible"]):
        raise OptionError("the last of the levels is not the explanation")
    if any((inner & ~outer).any() for inner, outer in pairwise(sets)):
        raise OptionError("the levels are not nested")
    levels = []
    for i, (record, visible) in enumerate(zip(records, sets, strict=True)):
        known = {f.name: record[f.name] for f in fields(Checks) if f.name in record}
        checks = _read_scored(Checks, known, f"levels[{i}]")
        share = read_value(record.get("share"), float, f"levels[{i}].share")
        if not 0.0 <= share <= 1.0:
            raise OptionError(f"levels[{i}].share is {share}, expected 0 to 1")
        certificate = record.get("certificate")
        if certificate is not None:
            certificate = Certificate.from_record(certificate, f"levels[{i}].certificate")
        panel = read_value(record.get("panel", []), tuple[int, ...], f"levels[{i}].panel")
        if len(panel) > _MOST_PANEL or any(number < 0 for number in panel):
            raise OptionError(f"levels[{i}].panel has {len(panel)} numbers, expected up to {_MOST_PANEL}, 0 or more")
        name = level_name(share) if certificate is None else ENOUGH
        levels.append(Level(visible, checks, name, float(share), certificate, panel))
    return tuple(levels)


def _read_scored(kind: type[Scored], record: Mapping[str, Any], where: str) -> Scored:
    """A record whose confidence may be null, for NaN."""
    if is_unknown := record.get("confidence", 0.0) is None:
        record = {**record, "confidence": 0.0}
    made = kind(**read_fields(kind, record, where))
    if isinstance(made, Checks) and not (made.minimal_grain is None or 1 <= made.minimal_grain < _MOST_SIDE):
        raise OptionError(f"{where}.minimal_grain is {made.minimal_grain}, expected a side in pixels")
    transfer = made.transfer if isinstance(made, Checks) else None
    if transfer is not None and not 0 <= transfer.kept <= transfer.asked <= MOST_CASES:
        raise OptionError(
            f"{where}.transfer is {transfer.kept} of {transfer.asked}, expected up to {MOST_CASES} backgrounds"
        )
    return replace(made, confidence=math.nan) if is_unknown else made


def _check_frame(frame: Frame, grid: tuple[int, ...]) -> None:
    if frame.grid != grid:
        raise OptionError(f"frame.grid is {list(frame.grid)}, and the view has {list(grid)}")
    for name in ("original", "resized", "origin"):
        sides, smallest = getattr(frame, name), -_MOST_SIDE if name == "origin" else 1
        if len(sides) != len(grid) or not all(smallest <= side < _MOST_SIDE for side in sides):
            raise OptionError(f"frame.{name} is {list(sides)[:4]}, expected {len(grid)} sides in pixels")
    if math.prod(frame.original) > max(_MOST_ORIGINAL, math.prod(grid)):
        raise OptionError(f"frame.original is {list(frame.original)}, which is too large")
