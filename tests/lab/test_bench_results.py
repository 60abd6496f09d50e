"""The pages of results match the stored rows, a run can be stored, and one command makes all of them."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from becausal.lab import BENCHES, load_bench, run
from becausal.lab.base import split_method
from test_bench import plain_figures  # noqa: F401 - a fixture

ROOT = Path(__file__).parents[2]


def load_script(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tables(monkeypatch):
    return load_script("results_tables", monkeypatch)


@pytest.fixture
def everything(monkeypatch):
    return load_script("bench_all", monkeypatch)


def test_the_pages_are_what_the_tables_give(tables):
    pages = tables.write_pages()
    assert tables.DOCUMENT in pages
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, "run python benchmarks/results_tables.py"
    assert {path.name for path in tables.FOLDER.glob("*.md")} == {path.name for path in pages if path != tables.DOCUMENT}


@pytest.mark.usefixtures("plain_figures")
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
    assert overview.count("Not measured yet.") == len(BENCHES) - 1
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


def test_one_command_makes_every_row(everything):
    """Published settings for three networks, and `dc-causal` with its 50 partitions in every bench that is about it."""

    def methods_of(name):
        bench, _, given = everything.RUNS[name]
        return [split_method(text) for text in str(given.get("methods", load_bench(bench).methods)).split(",")]

    for name, (bench, model, _) in everything.RUNS.items():
        assert bench in BENCHES
        assert name.startswith(f"{bench}-{model}")
    for bench in ("photobombing", "roaming-panda", "occlusion"):
        for network in everything.NETWORKS:
            methods = dict(methods_of(f"{bench}-{network}-published"))
            assert methods["dc-causal"] == methods["sbfl"] == {}
            assert 4000 <= int(methods["rise"]["masks"]) <= 8000
    for bench in ("fills", "convergence", "misclassified"):
        for model in ("bundled", *everything.NETWORKS):
            assert ("dc-causal", {}) in methods_of(f"{bench}-{model}")
    assert ("dc-causal", {}) in methods_of("exact-bundled")


@pytest.mark.usefixtures("plain_figures")
def test_the_command_for_all_rows_goes_on_where_it_was_stopped(everything, tmp_path, monkeypatch, capsys):
    def start(folder):
        chosen = ["--only", "scenes-bundled", "--limit", "2", "--methods", "random,centre", "--out", str(tmp_path / folder)]
        monkeypatch.setattr(sys, "argv", ["bench_all.py", *chosen])
        everything.main()
        return tmp_path / folder / "scenes-bundled"

    whole, part = start("a"), tmp_path / "b" / "scenes-bundled"
    part.mkdir(parents=True)
    (part / "settings.json").write_bytes((whole / "settings.json").read_bytes())
    rows = (whole / "rows.jsonl").read_bytes()
    (part / "rows.jsonl").write_bytes(rows[: len(rows) // 2])
    assert (start("b") / "results.csv").read_bytes() == (whole / "results.csv").read_bytes()
    capsys.readouterr()
    start("a")
    assert "already finished" in capsys.readouterr().out


def test_the_overview_says_with_which_options_a_method_was_run(tables):
    """Beside the figures of `dc-causal` stand fewer partitions, and the reading of the pseudocode."""
    overview = tables.write_pages()[tables.DOCUMENT]
    shown = set(re.findall(r"^\| (dc-causal[^|]*) \|", overview, re.MULTILINE))
    records = [tables.json.loads(path.read_text(encoding="utf-8")) for path in tables.KEPT.glob("bench-*.json")]
    ran = {method.replace(":", ", ") for record in records for method in record["settings"]["methods"]}
    assert shown <= ran
    assert "dc-causal, partitions=5, literal=true" in shown
