"""Runs of a bench that are killed, interrupted and resumed, and the store of their rows."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from becausal import Request
from becausal.core.errors import OptionError, OutputError
from becausal.interfaces.cli.app import main
from becausal.lab import run
from becausal.lab.rows import RowStore
from test_bench import ROOT, bombed, bright, photos, plain_figures  # noqa: F401 - three are fixtures

pytestmark = pytest.mark.usefixtures("plain_figures")
QUICK = "rise:masks=60,random"


def test_a_run_cut_anywhere_ends_with_the_same_table(bombed, tmp_path):  # noqa: F811
    given = {"data": bombed, "methods": QUICK, "width": 2}
    whole = tmp_path / "whole"
    run("photobombing", bright, out=whole, **given)
    lines = (whole / "rows.jsonl").read_bytes()
    for cut in (0, len(lines) // 3, len(lines) - 3):
        part = tmp_path / f"part{cut}"
        part.mkdir()
        shutil.copy(whole / "settings.json", part)
        (part / "rows.jsonl").write_bytes(lines[:cut])
        run("photobombing", bright, out=part, resume=True, data=bombed, methods=QUICK, width=1)
        for name in ("results.csv", "summary.json", "report.html", "size.png", "size.svg"):
            assert (part / name).read_bytes() == (whole / name).read_bytes(), (cut, name)


def test_the_table_does_not_depend_on_width(bombed, tmp_path):  # noqa: F811
    for width in (1, 4):
        run("photobombing", bright, data=bombed, methods="causal,sbfl:mutants=60", out=tmp_path / str(width), width=width)
    assert (tmp_path / "1" / "results.csv").read_bytes() == (tmp_path / "4" / "results.csv").read_bytes()


def test_a_process_that_is_killed_goes_on(tmp_path):
    command = [sys.executable, "-m", "becausal", "bench", "scenes", "--model", "bundled"]
    command += ["--methods", "rise:masks=40,random", "--limit", "3"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    killed = subprocess.Popen([*command, "--out", str(tmp_path / "a")], env=environment, stdout=subprocess.DEVNULL)
    rows = tmp_path / "a" / "rows.jsonl"
    for _ in range(1200):
        if killed.poll() is not None or (rows.exists() and rows.read_bytes().count(b"\n") >= 3):
            break
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = rows.read_bytes()
    assert main([*command[3:], "--out", str(tmp_path / "a"), "--resume"]) == 0
    assert rows.read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    assert main([*command[3:], "--out", str(tmp_path / "b")]) == 0
    assert (tmp_path / "a" / "results.csv").read_bytes() == (tmp_path / "b" / "results.csv").read_bytes()


def test_an_interrupt_keeps_what_was_found(bombed, tmp_path, monkeypatch, capsys):  # noqa: F811
    calls = 0

    def stops(batch):
        nonlocal calls
        calls += 1
        if calls == 25:
            raise KeyboardInterrupt
        return bright(batch)

    with pytest.raises(KeyboardInterrupt):
        run("photobombing", stops, data=bombed, methods="rise:masks=60", out=tmp_path / "run")
    kept = (tmp_path / "run" / "rows.jsonl").read_text().splitlines()
    assert not any('"interrupt"' in line for line in kept)
    assert not (tmp_path / "run" / "results.csv").exists()
    run("photobombing", stops, data=bombed, methods="rise:masks=60", out=tmp_path / "run", resume=True)
    run("photobombing", bright, data=bombed, methods="rise:masks=60", out=tmp_path / "other")
    assert (tmp_path / "run" / "results.csv").read_bytes() == (tmp_path / "other" / "results.csv").read_bytes()


def test_changed_settings_or_pictures_are_refused(bombed, tmp_path):  # noqa: F811
    folder = tmp_path / "data"
    shutil.copytree(bombed, folder)
    given = {"data": folder, "methods": "random", "out": tmp_path / "run"}
    run("photobombing", bright, **given)
    with pytest.raises(OptionError, match="use --resume"):
        run("photobombing", bright, **given)
    with pytest.raises(OptionError, match=r"request.seed: 0 then, 1 now\)"):
        run("photobombing", bright, request=Request(seed=1), resume=True, **given)
    (folder / "photobombing_imgs" / "3.png").unlink()
    with pytest.raises(OptionError, match="not those of the run"):
        run("photobombing", bright, resume=True, **given)


@pytest.mark.smoke
def test_a_run_is_resumed_with_another_batch_size_and_number_of_threads(tmp_path, capsys):
    command = ["bench", "scenes", "--model", "bundled", "--methods", "random", "--limit", "2"]
    command += ["--out", str(tmp_path / "run")]
    assert main([*command, "--batch-size", "4", "--threads", "2"]) == 0
    table = (tmp_path / "run" / "results.csv").read_bytes()
    rows = tmp_path / "run" / "rows.jsonl"
    rows.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[:2]))
    assert main([*command, "--batch-size", "8", "--threads", "1", "--resume"]) == 0, capsys.readouterr().err
    assert (tmp_path / "run" / "results.csv").read_bytes() == table
    assert main([*command, "--resume"]) == 0, capsys.readouterr().err
    assert main([*command, "--resize", "squash", "--resume"]) == 2
    assert "loading.resize" in capsys.readouterr().err


def test_a_folder_with_something_else_is_not_touched(bombed, tmp_path):  # noqa: F811
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(OptionError, match="not empty"):
        run("photobombing", bright, data=bombed, methods="random", out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_store_drops_a_torn_line_and_refuses_a_broken_one(tmp_path):
    with RowStore.open(tmp_path / "s", {"a": 1}, resume=False) as store:
        store.append({"name": "x", "value": 0.5})
    path = tmp_path / "s" / "rows.jsonl"
    path.write_bytes(path.read_bytes() + b'{"name": "y", "val')
    with RowStore.open(tmp_path / "s", {"a": 1}, resume=True) as store:
        assert store.rows == [{"name": "x", "value": 0.5}]
        store.append({"name": "z"})
    assert path.read_text() == '{"name": "x", "value": 0.5}\n{"name": "z"}\n'
    path.write_text('{"name": \n{"name": "z"}\n')
    with pytest.raises(OutputError, match="cannot be read"):
        RowStore.open(tmp_path / "s", {"a": 1}, resume=True)
