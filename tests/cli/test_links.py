"""Links in folders from somebody else: nothing is written or removed behind them."""

import os
from pathlib import Path

import pytest
from batch_toys import MODEL, write_pictures

from becausal.core.errors import OutputError
from becausal.core.files import open_inside, path_inside, write_file, write_files
from becausal.interfaces.cli.app import main
from becausal.lab.rows import RowStore
from becausal.models.endpoint.cache import FILE, AnswerCache
from test_batch import batch

pytestmark = pytest.mark.usefixtures("without_figures")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with a complete run of four images, and a folder that is none of its business."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    write_pictures(Path("shots"), 4)
    assert batch("shots", "--out", "run") == 0
    Path("elsewhere/000/000000").mkdir(parents=True)
    Path("elsewhere/file").write_text("precious")
    Path("elsewhere/000/000000/file").write_text("precious")
    return tmp_path


def content(folder):
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


def refused(capsys, *arguments):
    """The one line of a command that must end with status 2 and leave everything as it was."""
    before, others = content("elsewhere"), set(Path().rglob("*"))
    capsys.readouterr()
    assert main(list(arguments)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert "is a link" in lines[0]
    assert content("elsewhere") == before
    assert set(Path().rglob("*")) == others
    return lines[0]


def put_link(path, target):
    path = Path(path)
    if path.is_dir() and not path.is_symlink():
        path.rename("moved")
    else:
        path.unlink(missing_ok=True)
    path.symlink_to(Path(target).absolute(), target_is_directory=Path(target).is_dir())


BATCH = ("batch", "shots", "--model", "python:net.py:predict", "--out", "run", "--grain", "4")


@pytest.mark.parametrize("target", ["elsewhere/file", "elsewhere/missing"])
@pytest.mark.parametrize(
    "name",
    ["lock", "index.sqlite", "index.sqlite-wal", "index.sqlite-shm", "index.sqlite-journal", "index.sqlite.new", "run.json"],
)
def test_a_file_of_a_run_that_is_a_link_is_refused(here, capsys, name, target):
    put_link(f"run/{name}", target)
    assert f"run/{name}" in refused(capsys, *BATCH)


@pytest.mark.parametrize("name", ["explanations", "explanations/000", "unfinished", "rejected"])
def test_a_folder_of_a_run_that_is_a_link_is_refused(here, capsys, name):
    put_link(f"run/{name}", "elsewhere")
    assert f"run/{name}" in refused(capsys, *BATCH)


def test_no_explanation_is_written_or_removed_behind_a_link(here, capsys):
    put_link("run/explanations/000/000002", "elsewhere")
    before = content("elsewhere")
    capsys.readouterr()
    assert main(list(BATCH)) == 2
    assert "000002: it is a link" in capsys.readouterr().err
    assert content("elsewhere") == before


@pytest.mark.parametrize("target", ["elsewhere/file", "elsewhere/missing"])
def test_reports_and_exports_do_not_take_the_place_of_a_link(here, capsys, target):
    put_link("run/report.html", target)
    put_link("run/export.csv", target)
    assert "run/report.html" in refused(capsys, "report", "run")
    assert "run/export.csv" in refused(capsys, "export", "run")
    put_link("run/index.sqlite-wal", target)
    for command in (("report", "run"), ("export", "run"), ("check", "run"), ("diff", "run", "run")):
        assert "index.sqlite-wal" in refused(capsys, *command)


@pytest.mark.parametrize("name", ["explanations/000/000001", "explanations/000", "explanations"])
def test_figures_of_one_image_are_not_written_behind_a_link(here, capsys, name):
    Path("run", name).rename("moved")
    Path("run", name).symlink_to(here / "moved")
    before = content("moved")
    assert f"run/{name}" in refused(capsys, "report", "run", "--image", "1")
    assert content("moved") == before


def test_an_explanation_is_not_saved_behind_a_link(here, capsys):
    command = ("explain", "shots/p00.png", "--model", "python:net.py:predict", "--grain", "4", "--out", "out")
    Path("out").mkdir()
    put_link("out/p00", "elsewhere")
    assert "out/p00" in refused(capsys, *command)
    Path("out/p00").unlink()
    Path("out/p00").mkdir()
    put_link("out/p00/report.html", "elsewhere/file")
    assert "out/p00/report.html" in refused(capsys, *command)


def test_a_run_folder_that_is_a_link_was_named_by_the_user(here):
    Path("run").rename("other")
    Path("run").symlink_to("other")
    Path("shots/p00.png").unlink()
    write_pictures(Path("shots"), 4, {0: 210})
    assert batch("shots", "--out", "run") == 0
    assert main(["report", "run"]) == 0
    assert Path("other/report.html").is_file()


def test_partial_files_are_written_where_no_link_can_be(tmp_path):
    (tmp_path / "file").write_bytes(b"precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in (f".it.{os.getpid()}.part.png", "it.png"):
        (folder / name).symlink_to(tmp_path / "file")
    write_file(folder / "it.png", b"new")
    write_file(folder / "it.png", lambda part: part.write_bytes(b"newer") and None)
    assert (folder / "it.png").read_bytes() == b"newer"
    (folder / "two").symlink_to(tmp_path / "file")
    with pytest.raises(OutputError, match="is a link"):
        write_files(folder, {"one": b"1", "two": b"2"})
    assert not (folder / "one").exists()
    assert (tmp_path / "file").read_bytes() == b"precious"


def test_a_path_inside_a_folder(tmp_path):
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "named").symlink_to("real")
    assert path_inside(tmp_path / "named", "deep/file", "x") == tmp_path / "named" / "deep" / "file" / "x"
    with pytest.raises(OutputError, match="named: it is a link"):
        path_inside(tmp_path, "named", "deep")
    os.mkfifo(tmp_path / "real" / "pipe")
    with pytest.raises(OutputError, match="named pipe, not a regular file"):
        open_inside(tmp_path / "real", "pipe", os.O_RDWR)


def test_a_link_made_after_the_check_is_refused_too(tmp_path, monkeypatch):
    (tmp_path / "lock").symlink_to("file")
    monkeypatch.setattr(Path, "is_symlink", lambda path: False)
    with pytest.raises(OutputError, match="is a link"):
        open_inside(tmp_path, "lock", os.O_RDWR | os.O_CREAT)
    assert not (tmp_path / "file").exists()


def test_the_rows_of_a_bench_are_not_written_behind_a_link(tmp_path):
    RowStore.open(tmp_path / "bench", {}, resume=False).__exit__(None, None, None)
    (tmp_path / "file").write_bytes(b"an incomplete line")
    (tmp_path / "bench" / "rows.jsonl").unlink()
    (tmp_path / "bench" / "rows.jsonl").symlink_to(tmp_path / "file")
    with pytest.raises(OutputError, match="is a link"):
        RowStore.open(tmp_path / "bench", {}, resume=True)
    assert (tmp_path / "file").read_bytes() == b"an incomplete line"


def test_scenes_are_not_written_behind_a_link(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("elsewhere").mkdir()
    Path("out").mkdir()
    assert main(["scenes", "make", "--count", "1", "--size", "32", "--out", "plain"]) == 0
    folder = next(path for path in Path("plain").iterdir() if path.is_dir())
    put_link(f"out/{folder.name}", "elsewhere")
    assert f"out/{folder.name}" in refused(capsys, "scenes", "make", "--count", "1", "--size", "32", "--out", "out")


def test_answers_are_not_kept_behind_a_link(tmp_path):
    (tmp_path / FILE).symlink_to(tmp_path / "other")
    with pytest.raises(OutputError, match="is a link"):
        AnswerCache(tmp_path, max_bytes=1000)
    assert not (tmp_path / "other").exists()
