"""Runs of all benches with the bundled classifier, failures, and the command line."""

import csv
import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

import becausal
from becausal import Request
from becausal.core.errors import BecausalError, OptionError
from becausal.interfaces.cli.app import main
from becausal.lab import BENCHES, load_bench, run
from becausal.lab.base import Bench
from becausal.lab.rows import count_failures, read_table, table_text
from becausal.lab.tables import Column, Table

ROOT = Path(becausal.__file__).parent.parent


def bright(batch: np.ndarray) -> np.ndarray:
    """A classifier of 16 x 16 images: is the middle bright?"""
    share = (batch[:, 6:10, 6:10].mean(axis=(1, 2, 3)) / 255) ** 2
    return np.stack([1 - share, share], axis=1)


#: What stands for a drawn plot: drawing takes most of the time of a small run, and few tests are about it.
STUB = {"png": b"\x89PNG", "svg": b"<svg/>"}


@pytest.fixture
def plain_figures(monkeypatch):
    monkeypatch.setattr("becausal.lab.page.figure_files", lambda plot: STUB)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Six images with a bright middle in a folder."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(6):
        rng = np.random.default_rng(number)
        pixels = rng.integers(0, 60, (16, 16, 3), dtype=np.uint8)
        pixels[5:11, 5:11] = 240
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def bombed(tmp_path_factory, photos):
    """The published layout, by hand: a black rectangle below the middle, and one that is too small."""
    folder = tmp_path_factory.mktemp("bombed")
    (folder / "photobombing_imgs").mkdir()
    lines = []
    for number in range(6):
        pixels = np.asarray(Image.open(photos / f"{number}.png")).copy()
        bottom = 15 if number else 11
        pixels[10:bottom, 2:14] = 0
        Image.fromarray(pixels).save(folder / "photobombing_imgs" / f"{number}.png")
        lines.append(f"{number}.png 10(5) 2(5) {bottom}(11) 14(11) 1 bright, or so, rectangle\n")
    (folder / "photobombing_groundtruth.txt").write_text("".join(lines))
    return folder


def rows_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


# ------------------------------------------------------------------ every bench

SMALL = {
    "occlusion": {"methods": "causal,random", "limit": 1},
    "scenes": {"methods": "rise:masks=60,random", "limit": 2},
    "fills": {"methods": "rise:masks=60", "limit": 1},
    "exact": {"limit": 1, "side": 3},
    "convergence": {"methods": "rise,dc-causal", "limit": 1},
    "misclassified": {"methods": "rise:masks=60", "limit": 2},
    "paste": {"methods": "rise:masks=60", "limit": 1},
    "faithfulness": {"methods": "rise:masks=60,random", "limit": 1},
    "sanity": {"methods": "gbp", "limit": 1},
}
COLUMNS = {
    "occlusion": {"right_5", "right_50", "size"},
    "scenes": {"precision", "recall", "overlap", "clear", "pieces_share", "level"},
    "fills": {"fill", "overlap", "like_grey", "backgrounds"},
    "exact": {"optimal", "ratio", "rank", "kind"},
    "convergence": {"step", "by", "set_agreement", "map_agreement"},
    "misclassified": {"kind", "overlap"},
    "paste": {"kept_core", "size_core", "top_5", "top_30", "others"},
    "faithfulness": {"insertion", "deletion", "pointing", "seed_iou", "seed_rank"},
    "sanity": {"by", "step", "layers", "rank", "rank_absolute", "ssim", "set_iou"},
}


DRAWN = ("scenes", "convergence")  # points and steps, and lines


@pytest.mark.parametrize("name", SMALL)
def test_a_bench_needs_only_the_package(name, tmp_path, monkeypatch):
    if name not in DRAWN:
        monkeypatch.setattr("becausal.lab.page.figure_files", lambda plot: STUB)
    monkeypatch.setattr("becausal.lab.fills.FILLS", ("black", "grey", "white"))
    monkeypatch.setattr("becausal.lab.paste.OTHERS", 4)
    monkeypatch.setattr("becausal.lab.convergence.BUDGETS", (100, 200))
    monkeypatch.setattr("becausal.lab.convergence.PARTITIONS", (1, 2))
    done = run(name, "bundled", out=tmp_path / "run", **SMALL[name])
    found = rows_of(tmp_path / "run")
    assert len(found) == len(done.selection.samples) * len(done.bench.arms(done.settings))
    assert COLUMNS[name] <= set(found[0])
    assert not [key for key in found[0] if key.startswith("_")]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["bench"] == name
    assert summary["tables"]
    assert "becausal bench " + name in summary["command"]
    for plot in summary["plots"]:
        assert (tmp_path / "run" / f"{plot['name']}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / "run" / f"{plot['name']}.svg").read_text()
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "<script" not in page
    assert summary["command"].split()[2] in page
    assert table_text(read_table(tmp_path / "run" / "results.csv")) == (tmp_path / "run" / "results.csv").read_text()


def test_every_bench_is_tried_here_or_needs_data():
    assert set(SMALL) | {"photobombing", "roaming-panda"} == set(BENCHES)
    for name in BENCHES:
        bench = load_bench(name)
        assert bench.name == name
        assert bench.question.endswith("?")


@pytest.mark.usefixtures("plain_figures")
def test_another_bench_is_a_module_and_a_name(photos, tmp_path, monkeypatch, capsys):
    """ARCHITECTURE.md: the list, the runner, the files and the page follow."""
    module = ModuleType("becausal.lab.how_bright")
    module.BENCH = Bench(
        name="how-bright",
        question="Is it bright?",
        paper="Nothing.",
        methods="centre",
        measure=lambda subject, explanation, classifier: {"brightness": float(subject.view.pixels.mean())},
        tables=lambda rows: [Table("all", "Images", (Column("image"),), tuple((row["name"],) for row in rows))],
        plots=lambda rows: [],
    )
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("becausal.lab.runner.BENCHES", (*BENCHES, "how-bright"))
    done = run("how-bright", bright, data=photos, limit=2, out=tmp_path / "run")
    assert len(done.rows) == 2
    assert all(row["brightness"] > 30 for row in done.rows)
    assert "Is it bright?" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    monkeypatch.setattr("becausal.lab.BENCHES", ("how-bright",))
    assert main(["bench"]) == 0
    assert "Is it bright?" in capsys.readouterr().out


@pytest.mark.usefixtures("plain_figures")
def test_photobombing_reads_the_published_layout(bombed, tmp_path):
    done = run("photobombing", bright, data=bombed, methods="causal,rise:masks=100,random", out=tmp_path / "run")
    assert dict(done.selection.left_out) == {"occluder under 50 pixels": 1}
    found = rows_of(tmp_path / "run")
    assert {row["name"] for row in found} == {f"{n}.png" for n in range(1, 6)}
    for row in found:
        assert row["shape"] == "rectangle"
        assert float(row["area"]) == pytest.approx(60 / 256, abs=1e-6)
        assert row["area_class"] == "over 10 %"
        assert (row["clear"] == "1") == (float(row["overlap"]) == 0.0)
    table = done.findings.tables[0]
    assert [line[0] for line in table.rows] == ["causal", "rise:masks=100", "random"]
    size = {line[0]: line[2].mean for line in table.rows}
    assert size["causal"] < size["random"]
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Best images for causal" in page
    assert "occluder under 50 pixels" in page


# ------------------------------------------------------------------ methods and failures


@pytest.mark.usefixtures("plain_figures")
def test_a_method_the_model_cannot_run_is_left_out_with_the_reason(bombed, tmp_path):
    done = run("photobombing", bright, data=bombed, methods="random,grad-cam", out=tmp_path / "run")
    assert "gradients" in done.methods_left_out["grad-cam"]
    assert {row["method"] for row in rows_of(tmp_path / "run")} == {"random"}
    assert "grad-cam" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    with pytest.raises(OptionError, match="none of the methods can run"):
        run("photobombing", bright, data=bombed, methods="ig", out=tmp_path / "other")


@pytest.mark.usefixtures("plain_figures")
def test_a_picture_without_an_answer_has_a_row_that_says_why(bombed, tmp_path):
    done = run(
        "photobombing", bright, data=bombed, methods="random", request=Request(fills=("white",)), out=tmp_path / "run"
    )
    assert count_failures(done.rows) == {"random": {"the fully masked image already has the label": 5}}
    assert all(row["error"].startswith("FillError") for row in rows_of(tmp_path / "run"))


@pytest.mark.usefixtures("plain_figures")
def test_a_broken_picture_is_left_out_and_counted(bombed, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(bombed, folder)
    (folder / "photobombing_imgs" / "4.png").write_bytes(b"no image")
    done = run("photobombing", bright, data=folder, methods="random", out=tmp_path / "run")
    assert done.selection.left_out["cannot be read: ImageError"] == 1


@pytest.mark.usefixtures("plain_figures")
def test_methods_take_options(bombed, tmp_path):
    few = run("photobombing", bright, data=bombed, methods="rise:masks=50", limit=2, out=tmp_path / "a")
    many = run("photobombing", bright, data=bombed, methods="rise:masks=100", limit=2, out=tmp_path / "b")
    assert few.rows[0]["calls"] + 50 == many.rows[0]["calls"] or few.rows[0]["calls"] < many.rows[0]["calls"]
    assert len({row["name"] for row in few.rows}) == 2


@pytest.mark.usefixtures("plain_figures")
def test_grain_minimises_all_alike(bombed, tmp_path):
    plain = run("photobombing", bright, data=bombed, methods="random", out=tmp_path / "a")
    fine = run("photobombing", bright, data=bombed, methods="random", request=Request(grain=2), out=tmp_path / "b")
    assert all(row["minimal"] is None for row in plain.rows)
    assert all(row["minimal"] == 2 for row in fine.rows)
    assert sum(row["size"] for row in fine.rows) < sum(row["size"] for row in plain.rows)


# ------------------------------------------------------------------ the command line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense", "--model", "bundled"], "unknown bench 'nonsense'"),
        (["scenes"], "give --model"),
        (["photobombing", "--model", "bundled"], "becausal data get photobombing"),
        (["roaming-panda", "--model", "bundled"], "becausal data get roaming-panda"),
        (["scenes", "--model", "bundled", "--methods", "magic"], "unknown method 'magic'"),
        (["scenes", "--model", "bundled", "--methods", "rise:masks"], "name:key=value"),
        (["scenes", "--model", "bundled", "--methods", "rise:colour=3"], "no option 'colour'"),
        (["scenes", "--model", "bundled", "--limit", "0"], "limit must be at least 1"),
        (["scenes", "--model", "bundled", "--width", "0"], "width must be at least 1"),
        (["scenes", "--model", "bundled", "--seed", "-1"], "seed must be at least 0"),
        (["scenes", "--model", "bundled", "--fill", "plaid"], "unknown fill 'plaid'"),
        (["scenes", "--model", "bundled", "--data", "absent"], "there is no folder absent"),
        (["exact", "--model", "bundled", "--side", "9"], "side must be 2, 3 or 4"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said_in_one_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *arguments]) == 2
    told = capsys.readouterr()
    assert told.err.count("\n") == 1
    assert said in told.err
    assert not list(tmp_path.glob("becausal-out/*/*"))


def test_without_a_name_the_benches_are_listed(capsys):
    assert main(["bench"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in BENCHES)


@pytest.mark.usefixtures("plain_figures")
def test_the_command_line_prints_the_table_or_json(tmp_path, capsys):
    base = ["bench", "occlusion", "--model", "bundled", "--methods", "random", "--limit", "2"]
    assert main([*base, "--out", str(tmp_path / "a")]) == 0
    told = capsys.readouterr().out
    assert "random" in told
    assert "report.html" in told
    assert main([*base, "--out", str(tmp_path / "b"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["pictures"] == 2
    assert (tmp_path / "a" / "results.csv").read_bytes() == (tmp_path / "b" / "results.csv").read_bytes()


@pytest.mark.usefixtures("plain_figures")
def test_any_folder_of_pictures_will_do(photos, tmp_path):
    done = run("occlusion", bright, data=photos, methods="causal,random", limit=3, out=tmp_path / "run")
    assert [sample.name for sample in done.selection.samples] == ["0.png", "2.png", "5.png"]
    assert all(row["right_50"] in (0, 1) for row in done.rows)


def test_scenes_need_a_model_that_knows_them(tmp_path):
    for name in ("scenes", "fills", "occlusion", "misclassified"):
        with pytest.raises(BecausalError, match="give --data DIR"):
            run(name, bright, methods="random", out=tmp_path / name)
