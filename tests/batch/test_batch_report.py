"""Results of a run: the page, the exports, and the comparison of two runs."""

import csv
import json
import re
import sqlite3
from base64 import b64decode, b64encode
from hashlib import sha256
from html import unescape
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from batch_toys import MODEL, draw, write_coco, write_doubtful, write_pictures
from check_toys import make_run, square
from PIL import Image

from becausal.batch.index import folder_of
from becausal.batch.reading import BatchRun
from becausal.batch.summaries import Overview, histogram, take_evenly
from becausal.interfaces.cli.app import main
from becausal.render.numbers import format_share
from becausal.scenes import decode_mask

NASTY = 'a<script>alert("1")</script>&.png'


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two runs on twelve images with boxes, an unreadable file, and a file name that contains a script."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "net.py").write_text(MODEL)
    (folder / "other.py").write_text(MODEL.replace("[:, 8:16, 8:16]", "[:, 8:16, 10:16]"))
    shots = write_pictures(folder / "shots", 12)
    path = write_coco(shots, 12)
    (shots / "p05.png").write_bytes(b"nothing")
    (shots / NASTY.replace("/", "")).write_bytes((shots / "p11.png").read_bytes())
    path.write_text(path.read_text().replace("p11.png", json.dumps(NASTY.replace("/", ""))[1:-1]))
    Image.fromarray(np.pad(draw(3), ((0, 24), (0, 48), (0, 0)))).save(shots / "p07.png")  # not the size its box is for
    for name, model in (("one", "net"), ("two", "other")):
        words = ["batch", str(path), "--model", f"python:{folder}/{model}.py:predict", "--out", str(folder / name)]
        assert main([*words, "--max-calls", "120"]) == 3
    return folder


@pytest.fixture
def page(place, tmp_path, capsys):
    assert main(["report", str(place / "one"), "--out", str(tmp_path / "r.html")]) == 0
    assert "outside of the object" in capsys.readouterr().out
    return (tmp_path / "r.html").read_text()


def test_the_page_needs_nothing_and_escapes_everything(page):
    policy = unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])
    assert policy.startswith("default-src 'none'; img-src data:;")
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 1
    assert b64encode(sha256(scripts[0].encode()).digest()).decode() in policy
    assert "alert(" not in page.replace(scripts[0], "").replace('\\u003cscript\\u003ealert(\\"1', "").replace(
        "&lt;script&gt;alert(&#34;1", ""
    )
    assert not re.search(r"(src|href)=[\"']?https?:", page)


def test_the_page_has_every_picture_in_its_table(page, place):
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])
    columns = [name for name in data["columns"] if not name.startswith("core")]  # where an explanation has a core inside
    assert " ".join(columns) == "id image label confidence alone level size backgrounds pieces calls inside error"
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["rows"]]
    assert [row[0] for row in data["rows"]] == list(range(12))
    assert data["rows"][5][-1].startswith("p05.png is no image")
    assert rows[0]["inside"] == pytest.approx(1.0)
    assert rows[2]["inside"] == 0.0
    assert all(0 <= row["backgrounds"] <= 1 for row in rows if row["error"] is None)
    assert all((row.get("core_size") is None) == (row.get("core_backgrounds") is None) for row in rows)
    assert all(0 < (row.get("core_size") or row["size"]) <= row["size"] for row in rows if row["error"] is None)
    with BatchRun(place / "one") as run:
        done = next(run.rows("state = 'done'"))
        *inner, last = run.load(done["id"]).levels
    assert (done["level"], done["size"], done["backgrounds"]) == (last.name, last.size, last.checks.transfer.share)
    assert done["core_size"] == (inner[0].size if inner else None)


def test_the_index_says_how_far_each_set_holds_and_what_speaks_against_it(place, tmp_path):
    shots = write_doubtful(tmp_path / "shots", 3)
    words = ["batch", str(shots), "--model", f"python:{place}/net.py:doubts", "--out", str(tmp_path / "run")]
    assert main([*words, "--grain", "4"]) == 0
    with BatchRun(tmp_path / "run") as run:
        rows = list(run.rows())
        for row in rows:
            explanation = run.load(row["id"])
            for name, level in zip(("core_backgrounds", "backgrounds"), explanation.levels, strict=True):
                held = level.checks.transfer
                found = tuple(row[name + end] for end in ("", "_low", "_high"))
                assert found == (held.kept / held.asked, held.low, held.high)
                assert 0 <= row[f"{name}_low"] < row[name] <= row[f"{name}_high"] <= 1
            against = explanation.against
            sizes = None if against is None else (against.visible.mean(), against.gain)
            assert sizes == (None if row["against_size"] is None else (row["against_size"], row["against_gain"]))
    assert [row["against_size"] is None for row in rows] == [False, False, True]
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "r.csv")]) == 0
    with (tmp_path / "r.csv").open(newline="") as file:
        written = [float(row["core_backgrounds_high"]) for row in csv.DictReader(file)]
    assert written == [row["core_backgrounds_high"] for row in rows]
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "<b>The core on random backgrounds, median " in page
    least = min(rows, key=lambda row: (row["backgrounds"], row["id"]))
    names = ("backgrounds", "backgrounds_low", "backgrounds_high", "core_backgrounds")
    share, low, high, core = (format_share(least[name]) for name in names)
    assert f"kept on {share} ({low} to {high}), core {core}<br>" in page


def test_the_page_finds_explanations_outside_of_their_object(page, place):
    with BatchRun(place / "one") as run:
        overview = Overview(run)
        rows = {row["id"]: row for row in run.rows()}
    assert {row["id"] for row in overview.outside} == {2, 8, 11}
    assert (overview.judged, overview.outside_count) == (10, 3)
    assert "the boxes are for an image of 24 x 24" in rows[7]["note"]
    assert "3 of 10 explanations" in page
    assert (f"{overview.cut_short:,} searches stopped early" in page) == (overview.cut_short > 0)
    assert "lie outside the object" in page
    smallest, largest = ({row["id"] for row in rows} for rows in (overview.smallest, overview.largest))
    assert len(smallest) == len(largest) == 5  # of 11
    assert not smallest & largest
    assert overview.mean_by_chance == pytest.approx((7 * 100 + 3 * 25) / 576 / 10)


def test_the_page_of_a_run_without_truth_speaks_of_none(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    assert main(["batch", "shots/p00.png", "--model", "python:net.py:predict", "--out", str(tmp_path / "run")]) == 0
    assert main(["report", str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<em>1</em> image explained" in page
    assert '<th scope="row">seed</th><td>0</td>' in page
    assert "on the object" not in page.split("<script>")[0].split("</style>")[1]


def test_thumbnails_show_the_explanation(place, page):
    source = re.search(r'src="data:image/jpeg;base64,([^"]+)" alt="p02.png', page)[1]
    image = np.asarray(Image.open(BytesIO(b64decode(source))), float)
    assert image.shape == (144, 144, 3)
    with BatchRun(place / "one") as run:
        visible = run.load(2).visible
    big = visible.repeat(6, axis=0).repeat(6, axis=1)
    assert image[big].mean() > 1.5 * image[~big].mean()


def test_one_picture_is_drawn_on_demand(place, capsys):
    assert main(["report", str(place / "one"), "--image", "p01.png"]) == 0
    names = sorted(p.name for p in folder_of(place / "one", 1).iterdir())
    assert names == ["arrays.npz", "explanation.json", "explanation.png", "heatmap.png", "report.html"]
    assert main(["report", str(place / "one"), "--image", "5"]) == 2
    assert main(["report", str(place / "one"), "--image", "nothing.png"]) == 2
    assert [len(line) > 0 for line in capsys.readouterr().err.splitlines()] == [True, True]


def test_a_run_may_draw_everything_at_once(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    words = ["batch", "shots/p00.png", "shots/p01.png", "--model", "python:net.py:predict", "--out", str(tmp_path / "run")]
    assert main([*words, "--render"]) == 0
    assert (folder_of(tmp_path / "run", 1) / "report.html").is_file()
    assert main(["report", str(tmp_path / "run")]) == 0
    assert '"folder":"explanations"' in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("words", [["report", "nowhere"], ["export", "nowhere"], ["diff", "nowhere", "nowhere"]])
def test_what_is_no_run_is_refused(words, capsys):
    assert main(words) == 2
    assert "not a run folder" in capsys.readouterr().err


@pytest.mark.parametrize("version", [5, 99])
def test_an_index_of_another_version_is_refused_in_one_line(version, tmp_path, capsys):
    with sqlite3.connect(tmp_path / "index.sqlite") as index:
        index.execute(f"PRAGMA user_version = {version}")
    assert main(["report", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"has version {version}, this becausal reads version 6" in line


def test_csv_has_every_row(place, tmp_path):
    assert main(["export", str(place / "one"), "--out", str(tmp_path / "r.csv")]) == 0
    with (tmp_path / "r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with BatchRun(place / "one") as run:
        assert [row["image"] for row in rows] == [row["image"] for row in run.rows()]
    assert (rows[5]["state"], rows[5]["label"]) == ("failed", "")
    assert float(rows[0]["size"]) > 0


def test_parquet_has_types(place, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert main(["export", str(place / "one"), "--format", "parquet", "--out", str(tmp_path / "r.parquet")]) == 0
    table = parquet.read_table(tmp_path / "r.parquet")
    assert table.num_rows == 12
    assert [str(table.schema.field(name).type) for name in ("id", "label", "size", "calls")] == [
        "int64",
        "string",
        "double",
        "int64",
    ]
    with BatchRun(place / "one") as run:
        assert table.column("size").to_pylist() == [row["size"] for row in run.rows()]


def test_coco_has_the_explanations_on_the_originals(place, tmp_path):
    assert main(["export", str(place / "one"), "--format", "coco", "--out", str(tmp_path / "r.json")]) == 0
    data = json.loads((tmp_path / "r.json").read_text())
    assert len(data["annotations"]) == len(data["images"]) == 11
    sizes = {image["id"]: (image["height"], image["width"]) for image in data["images"]}
    assert sizes[7] == (48, 72)
    with BatchRun(place / "one") as run:
        levels = {row["id"]: row["level"] for row in run.rows("state = 'done'")}
        assert levels == {mark["id"] - 1: mark["level"] for mark in data["annotations"]}
        for mark in data["annotations"]:
            visible, frame = run.load_visible(mark["image_id"])
            shown = frame.to_original(visible)
            assert np.array_equal(decode_mask(mark["segmentation"]), shown)
            left, top, width, height = mark["bbox"]
            assert shown[top : top + height, left : left + width].sum() == shown.sum() == mark["area"]


def test_an_unknown_format_and_a_bad_place_are_refused(place, tmp_path, capsys):
    assert main(["export", str(place / "one"), "--format", "xls"]) == 2
    (tmp_path / "file").touch()
    assert main(["export", str(place / "one"), "--out", str(tmp_path / "file" / "x.csv")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert main(["report", str(place / "one"), "--below", "2"]) == 2
    assert main(["report", str(place / "one"), "--thumbs", "-1"]) == 2


def test_diff_says_what_changed(place, tmp_path, capsys):
    assert main(["diff", str(place / "one"), str(place / "two"), "--out", str(tmp_path / "d.html"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shared"] == 11
    assert found["failed"] == [1, 1]
    assert any(change.startswith("model was") for change in found["changes"])
    assert any(change.startswith("model_sha256 was") for change in found["changes"])
    with BatchRun(place / "one") as one, BatchRun(place / "two") as two:
        for each in found["pictures"]:
            (a, here), (b, there) = one.load_visible(each["ids"][0]), two.load_visible(each["ids"][1])
            assert here == there
            assert each["overlap"] == pytest.approx((a & b).sum() / (a | b).sum())
    page = (tmp_path / "d.html").read_text()
    assert "<em>0</em> of 11 images changed label" in page
    assert "<script" not in page
    assert main(["diff", str(place / "one"), str(place / "one")]) == 0
    assert "100 % in the median" in capsys.readouterr().out


def test_runs_without_a_common_picture_are_refused(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(place)
    Image.fromarray(draw(50)).save(tmp_path / "new.png")
    words = ["batch", str(tmp_path / "new.png"), "--model", "python:net.py:predict", "--out", str(tmp_path / "run")]
    assert main(words) == 0
    assert main(["diff", "one", str(tmp_path / "run")]) == 2
    assert "no image in common" in capsys.readouterr().err


def test_histograms_and_samples():
    found = histogram([0.0, 1.0, 1.0, None, 0.5])
    assert sum(found.counts) == 4
    assert (found.edges[0], found.edges[-1], found.middle) == (0.0, 1.0, 0.75)
    assert histogram([]).counts == ()
    assert sum(histogram([0.0, 0.0]).counts) == 2
    rows = [{"id": k} for k in range(100)]
    assert [row["id"] for row in take_evenly(rows, 5)] == [0, 25, 50, 74, 99]
    assert take_evenly(rows[:3], 5) == rows[:3]
    assert take_evenly(rows, 0) == []


def test_the_queries_of_the_documentation_work(place):
    text = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    queries = [query for block in blocks for query in block.split(";") if query.strip()]
    assert len(queries) >= 5
    with sqlite3.connect(place / "one" / "index.sqlite") as index:
        found = [index.execute(query).fetchall() for query in queries]
    assert all(found), [query for query, rows in zip(queries, found, strict=True) if not rows]


def write_mixed(folder):
    """A run with three images that have `enough`, and two of which only a core was found."""
    rows = [{"level": "enough", "size": size, "core_size": size / 4} for size in (0.2, 0.4, 0.8)]
    rows += [{"level": "core", "size": size, "label": "tree"} for size in (0.01, 0.03)]
    return make_run(folder / "mixed", rows, {k: square(k, 0) for k in range(5)})


def page_of(run):
    assert main(["report", str(run)]) == 0
    text = (run / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", text)))


def test_the_page_does_not_count_a_core_as_enough(tmp_path):
    run = write_mixed(tmp_path)
    with BatchRun(run) as opened:
        overview = Overview(opened)
    assert overview.histograms["size"].middle == 0.4
    assert overview.histograms["core_size"].middle == 0.05  # of 0.01, 0.03, 0.05, 0.1 and 0.2
    assert [row["id"] for row in overview.lacking] == [3, 4]
    assert not {3, 4} & {row["id"] for row in (*overview.smallest, *overview.largest)}
    sizes = [(each["label"], each["size"], each["level"]) for each in overview.classes]
    assert sizes == [("bus", 0.4, "enough"), ("tree", 0.02, "core")]
    page = page_of(run)
    assert "In the median, the set that is enough covers 40 % of the view; of 2 images only a core was found." in page
    assert "Only a core was found Of 2 of 5 images. No set was shown to keep the label" in page
    assert "Where only a core was found (“core” and its size below the image), the white line is around it." in page
    assert "core 1.0 % of the view" in page
    assert "20 %, core 5.0 %" in page
    assert "Size of enough, median 40 %" in page
    assert '"level"' in page


def test_the_page_of_a_run_without_enough_says_so(tmp_path):
    page = page_of(make_run(tmp_path / "run", [{"level": "core", "size": size} for size in (0.1, 0.3)]))
    assert "No set that is enough on random backgrounds was found. The median core covers 20 % of the view." in page
    assert "The line is around the core, which keeps the confidence in the plain fill." in page
    assert "are enough on their own" not in page
    page = page_of(make_run(tmp_path / "all", [{"level": "enough", "size": 0.1, "core_size": 0.01}]))
    assert "The median explanation covers 10 % of the view." in page
    assert "a core was found" not in page


def test_diff_says_which_sets_the_sizes_are_of(tmp_path, capsys):
    mixed = write_mixed(tmp_path)
    rows = [{"level": "enough", "size": 0.5, "core_size": 0.1} for _ in range(5)]
    other = make_run(tmp_path / "other", rows, {k: square(0, 0) for k in range(5)})
    assert main(["diff", str(mixed), str(other), "--out", str(tmp_path / "d.html")]) == 0
    said = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  sets "))
    assert said.split(maxsplit=1)[1] == "3 enough, 2 core → 5 enough: the sizes are of sets of different kinds"
    page = (tmp_path / "d.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "size 1.0 % → 50 % (core, then enough)" in page
    assert "<td>3 enough, 2 core</td><td>5 enough</td>" in page
    assert main(["diff", str(mixed), str(other), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["levels"] == [{"enough": 3, "core": 2}, {"enough": 5}]
    assert main(["diff", str(other), str(other)]) == 0
    assert "sets" not in capsys.readouterr().out
