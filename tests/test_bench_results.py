"""The pages of results match the stored rows, and a run can be stored."""

import importlib.util
from pathlib import Path

import pytest

from becausal.lab.bench import run

ROOT = Path(__file__).parent.parent


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location("results_tables", ROOT / "benchmarks" / "results_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_are_what_the_tables_give(tables):
    pages = tables.write_pages()
    assert tables.DOCUMENT in pages
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, "run python benchmarks/results_tables.py"
    assert {path.name for path in tables.FOLDER.glob("*.md")} == {path.name for path in pages if path != tables.DOCUMENT}


def test_a_kept_run_becomes_a_section_without_anyones_folders(tables, tmp_path, monkeypatch):
    kept = tmp_path / "results"
    kept.mkdir()
    monkeypatch.setattr(tables, "KEPT", kept)
    done = run("exact", "bundled", methods="causal,random", limit=3, side=2, out=tmp_path / "run")
    tables.keep(tmp_path / "run", "exact-bundled")
    assert (kept / "bench-exact-bundled.csv").read_bytes() == (tmp_path / "run" / "results.csv").read_bytes()
    pages = tables.write_pages()
    text = pages[tables.FOLDER / "exact.md"]
    assert f"n = {len(done.selection.samples)} images" in text
    assert "becausal bench exact" in text
    assert "| causal | 7 |" in text
    overview = pages[tables.DOCUMENT]
    assert overview.count("Not measured yet.") == 9
    assert "| causal | " in overview
    assert "[exact](results/exact.md)" in overview
    assert str(tmp_path) not in overview + text + (kept / "bench-exact-bundled.json").read_text()
    with pytest.raises(SystemExit, match="name it exact-"):
        tables.keep(tmp_path / "run", "scenes-bundled")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("onnx:/home/me/net.onnx", "onnx:net.onnx"),
        ("torch:/a/b.py:build:net.onnx", "torch:b.py:build:net.onnx"),
        ("/data/photobombing", "photobombing"),
        ("bundled", "bundled"),
        (7, 7),
        ({"labels": "/x/y.txt"}, {"labels": "y.txt"}),
    ],
)
def test_paths_are_cut_down_to_names(tables, before, after):
    assert tables._without_folders(before) == after
