"""A record that was changed is found out, field by field and array by array; an honest one is not."""

import copy
import json
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import becausal
import becausal.interfaces.cli.verify as command
from becausal.api.explanation import Explanation
from becausal.core.schema import UNKNOWN, compare_leaves, group_paths, list_leaves, merge
from becausal.interfaces.cli.app import main
from becausal.models import Loading
from becausal.scenes import make_scene

pytestmark = pytest.mark.usefixtures("without_figures")

NET = """
def predict(batch):
    return (batch[:, 60:90, 60:90].mean(axis=(1, 2, 3)) > 60).astype(int)
"""
KINDS = {
    "levels": ["-m", "bundled", "--max-calls", "200"],
    "holds": ["-m", "bundled", "--holds", "0.8", "--max-calls", "900"],
    "box": ["-m", "bundled:detector", "--max-calls", "200"],
    "labels": ["-m", "python:net.py:predict", "--fill", "black", "--grain", "16"],
}
OPTIONS = {
    "smallest": ["--smallest"],
    "several": ["--several", "2"],
    "top and noise": ["--top", "2", "--fill", "noise", "--fill", "blur"],
    "against": ["--against", "mug", "--confidence", "0.7"],
    "contrast": ["--contrast"],
    "budget": ["--max-calls", "40"],
    "another method": ["--method", "occlusion", "--grain", "none", "--max-calls", "200"],
    "grain beyond the view": ["--grain", "500"],
    "seeds": ["--seeds", "2", "--max-calls", "200", "--seed", "3"],
    "named target": ["--target", "sailboat"],
    "own fill": ["--fill", "image:fill.png"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image, a function that returns labels only, and an explanation of each kind."""
    home = tmp_path_factory.mktemp("verified")
    Image.fromarray(make_scene(107).image).resize((300, 200)).save(home / "photo.png")
    Image.fromarray(make_scene(3).image).save(home / "fill.png")
    (home / "net.py").write_text(NET)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setattr(Explanation, "files", lambda self, _files=Explanation.files: _files(self, render=False))
        for name, words in KINDS.items():
            assert main(["explain", "photo.png", *words, "-o", name]) == 0
    return home


@pytest.fixture
def place(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


def verify(capsys: pytest.CaptureFixture[str], folder: Path | str, *words: str) -> tuple[int, dict[str, Any], str]:
    """The exit status, what --json prints, and the message."""
    capsys.readouterr()
    status = main(["verify", str(folder), "--trust", "--json", *words])
    out, err = capsys.readouterr()
    return status, json.loads(out) if status != 2 else {}, err


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    items = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    for key, child in items:
        yield from leaves(child, (*path, key))
    if not items:
        yield path, value


def other_values(value: Any) -> list[Any]:
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, None]
        case float():
            return [value * 0.9 + 0.01, None]
        case str():
            return [f"{value}x", "mug"]
        case None:
            return [1, "mug", True]
    return [[1], {"mug": "1"}]


def name_of(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def is_named(name: str, fields: list[str]) -> bool:
    return any(name == field or name.startswith((f"{field}.", f"{field}[")) for field in fields)


def changed(record: dict[str, Any], *, most: int) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Records that differ from this one in one field, at most so many for each field."""
    for path, value in leaves(record):
        for new in other_values(value)[:most]:
            other = copy.deepcopy(record)
            part: Any = other
            for key in path[:-1]:
                part = part[key]
            part[path[-1]] = new
            yield name_of(path), new, other


@pytest.mark.parametrize(("kind", "every"), [
    *((kind, 12) for kind in KINDS),
    *(pytest.param(kind, 1, marks=pytest.mark.slow) for kind in KINDS),
])  # fmt: skip
def test_every_changed_field_is_reported_or_named_as_not_checked(
    kind: str, every: int, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each field in turn; in the quick form one change of twelve."""
    shutil.copytree(place / kind / "photo", tmp_path / "changed")
    saved = tmp_path / "changed" / "explanation.json"
    record, first, load = json.loads(saved.read_text()), Explanation.load(tmp_path / "changed").origin, command.load_again
    model = load(first, None, Loading(), trust=True)

    def load_again(origin: Any, *words: Any, trust: bool) -> Any:  # the same model need not be loaded each time
        is_same = (origin.model, dict(origin.loading)) == (first.model, dict(first.loading))
        return model if is_same else load(origin, *words, trust=trust)

    monkeypatch.setattr(command, "load_again", load_again)
    counts = {"reported": 0, "refused": 0, "not checked": 0}
    for name, new, other in islice(changed(record, most=3), 0, None, every):
        saved.write_text(json.dumps(other))
        status, printed, err = verify(capsys, tmp_path / "changed")
        if status == 2:
            assert err.count("\n") == 1, (name, new, err)
            assert "unexpected" not in err, (name, new, err)
            counts["refused"] += 1
        elif status == 1:
            counts["reported"] += 1
        else:
            assert is_named(name, printed["not_checked"]), (name, new)
            counts["not checked"] += 1
    assert counts["not checked"] < sum(counts.values()) / 4, counts


@pytest.mark.parametrize("kind", KINDS)
def test_every_changed_array_is_reported_or_named_as_not_checked(
    kind: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(place / kind / "photo", tmp_path / "changed")
    with np.load(tmp_path / "changed" / "arrays.npz") as archive:
        arrays = dict(archive)
    for name, array in arrays.items():
        for row in (0, 60, 75):
            other = array.copy()
            at = (..., row, row, slice(None)) if name in ("view", "backgrounds") else (..., row, row)
            other[at] = other[at] + 1 if name == "responsibility" else 4 - other[at] if name == "zones" else ~other[at]
            if array.size:
                np.savez(tmp_path / "changed" / "arrays.npz", **{**arrays, name: other})
                status, printed, err = verify(capsys, tmp_path / "changed")
                assert status in (1, 2) or is_named(f"arrays.{name}", printed["not_checked"]), (name, row)
                assert "unexpected" not in err
                assert status != 0 or name in ("responsibility", "zones"), (name, row)


def test_zones_that_are_not_those_of_the_sets_are_found(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(place / "holds" / "photo", tmp_path / "changed")
    with np.load(tmp_path / "changed" / "arrays.npz") as archive:
        arrays = dict(archive)
    levels, zones = arrays["levels"], arrays["zones"]
    assert len(levels) == 2
    for where, zone in ((levels[0], 3), (levels[1] & ~levels[0], 4), (levels[1], 2), (~levels[1], 3)):
        other = zones.copy()
        other[tuple(np.argwhere(where)[0])] = zone
        np.savez(tmp_path / "changed" / "arrays.npz", **{**arrays, "zones": other})
        status, printed, _ = verify(capsys, tmp_path / "changed")
        assert status == 1
        assert {claim["name"] for claim in printed["claims"] if not claim["holds"]} == {"arrays.zones"}
    for wrong in (
        zones[1:],
        zones.astype(np.int16),
        zones.astype(np.uint16),
        np.where(zones == 4, 5, zones).astype(np.uint8),
    ):
        np.savez(tmp_path / "changed" / "arrays.npz", **{**arrays, "zones": wrong})
        status, _, err = verify(capsys, tmp_path / "changed")
        assert (status, err.count("\n")) == (2, 1)
        assert "the array zones has" in err


@pytest.mark.parametrize("kind", KINDS)
def test_an_honest_record_verifies_and_says_what_was_not_checked(
    kind: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, printed, _ = verify(capsys, f"{kind}/photo")
    assert (status, printed["holds"]) == (0, True)
    assert {"label", "label_id", "confidence", "target", "explanation", "levels", "arrays.view"} <= set(
        printed["recomputed"]
    )
    assert {"calls", "seconds", "stopped_by", "notes", "stats", "arrays.responsibility"} <= set(printed["not_checked"])
    assert main(["verify", f"{kind}/photo", "--trust"]) == 0
    said = capsys.readouterr().out
    assert said.count("\n") <= len(printed["claims"]) + 6
    assert "recomputed, and the same: " in said
    assert "not checked: " in said


@pytest.mark.parametrize("words", OPTIONS.values(), ids=OPTIONS)
def test_an_honest_record_verifies_whatever_was_asked_for(
    words: list[str], place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "photo.png", "-m", "bundled", *words, "-o", str(tmp_path)]) == 0
    status, printed, err = verify(capsys, tmp_path / "photo")
    assert status == 0, (printed, err)
    assert {"arrays.view", "arrays.backgrounds", "origin.request.fills"} <= set(printed["recomputed"])


@pytest.mark.parametrize("shape", [(60,), (6, 8, 10), (12, 12, 4)])
def test_signals_volumes_and_arrays_verify_too(shape: tuple[int, ...], tmp_path: Path) -> None:
    def is_high(batch: np.ndarray) -> np.ndarray:
        share = np.clip(batch.reshape(len(batch), -1)[:, 10:14].mean(axis=1), 0.02, 0.98)
        return np.stack([1 - share, share], axis=1)

    data = np.zeros(shape, np.float32)
    data.reshape(-1)[8:18] = 1.0
    for fill in ("black", "mean", "0.25"):
        explanation = becausal.explain(data, is_high, fills=fill, max_calls=150)
        for known in (explanation, Explanation.load(explanation.save(tmp_path / fill))):
            found = known.verify(is_high)
            assert found.holds, [claim for claim in found if not claim.holds]
            assert "arrays.view" in found.unchecked
            assert "arrays.view" in known.verify(is_high, image=data).recomputed
        wrong = explanation.verify(is_high, image=data + np.float32(1))
        assert {claim.name for claim in wrong if not claim.holds} == {"arrays.view", "origin.image_sha256"}


def test_the_label_of_the_issue(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(place / "levels" / "photo", tmp_path / "changed")
    path = tmp_path / "changed" / "explanation.json"
    path.write_text(path.read_text().replace('"label": "sailboat"', '"label": "mug"'))
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "changed")]) == 1
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if line.startswith("label ")]
    assert line.split() == ["label", '"mug"', '"sailboat"', "NO"]
    assert said.splitlines()[-1].startswith("label, top.label: does not hold")


def test_an_image_that_is_gone_or_has_changed_is_said_to_be_unchecked(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(place / "photo.png", tmp_path / "photo.png")
    monkeypatch.chdir(tmp_path)
    assert main(["explain", "photo.png", "-m", "bundled", "--max-calls", "100"]) == 0
    shutil.move("photo.png", "moved.png")
    for _ in range(2):  # first it is gone, then there is another one
        status, printed, _ = verify(capsys, "becausal-out/photo")
        assert status == 0
        assert {"arrays.view", "origin.image_sha256", "frame.original"} <= set(printed["not_checked"])
        Image.fromarray(make_scene(1).image).save("photo.png")
    status, printed, _ = verify(capsys, "becausal-out/photo", "--image", "moved.png")
    assert (status, "arrays.view" in printed["recomputed"]) == (0, True)
    status, printed, _ = verify(capsys, "becausal-out/photo", "--image", "photo.png")
    wrong = {claim["name"] for claim in printed["claims"] if not claim["holds"]}
    assert status == 1
    assert {"arrays.view", "origin.image_sha256", "frame.original[0]"} <= wrong
    status, _, err = verify(capsys, "becausal-out/photo", "--image", "nothing.png")
    assert (status, err) == (2, "becausal: error: there is no file nothing.png\n")


def test_leaves_are_compared_and_grouped() -> None:
    stated = {"a": 1, "b": [{"c": 2.0, "d": None}, {"c": 3.0, "d": "x"}], "e": {}, "f": [1, 2]}
    assert list_leaves(stated) == {
        "a": 1, "b[0].c": 2.0, "b[0].d": None, "b[1].c": 3.0, "b[1].d": "x", "e": {}, "f[0]": 1, "f[1]": 2,
    }  # fmt: skip
    found = {"a": True, "b": [{"c": 2.05, "d": UNKNOWN}, {"c": 3.5, "d": "x"}], "f": [1]}
    result = compare_leaves(stated, found, lambda path: 0.1 if path.endswith("c") else 0.0)
    assert result.same == {"b[0].c", "b[1].d"}
    assert result.different == {"a": (1, True), "b[1].c": (3.0, 3.5), "f": ([1, 2], [1])}
    assert result.unchecked == {"b[0].d", "e"}
    assert group_paths(stated, {"b[0].c", "b[0].d", "e", "f[1]"}) == ["b[0]", "e", "f[1]"]
    assert merge({"a": [{"b": 1}], "c": 1}, {"a": [{"d": 2}], "c": 2}) == {"a": [{"b": 1, "d": 2}], "c": 2}
