"""Pictures on the page about a run: thumbnails in its table, the least confident explanations, those that hold least."""

import json
import re
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from batch_toys import MODEL, NAMES, QUICK, draw, write_pictures
from PIL import Image

from becausal.batch import pages
from becausal.batch.reading import BatchRun
from becausal.interfaces.cli.app import main
from becausal.render.painting import THUMBNAIL_SIDE

COUNT = 18


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run without --render: every image a little darker than the one before, one of them unreadable."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "net.py").write_text(MODEL)
    shots = write_pictures(folder / "shots", COUNT)
    for number in range(COUNT):
        path = shots / f"p{number:02d}.png"
        Image.fromarray((np.asarray(Image.open(path)) * (1 - 0.01 * number)).astype(np.uint8)).save(path)
    (shots / "p03.png").write_bytes(b"nothing")
    words = ["batch", str(shots), "--model", f"python:{folder}/net.py:predict", "--out", str(folder / "run"), *QUICK]
    assert main([*words, "--max-calls", "60"]) == 3
    return folder / "run"


def make_page(run, path):
    assert main(["report", str(run), "--out", str(path)]) == 0
    return path.read_text()


def table_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def section(page, title):
    """The cards below a heading, as (file, caption)."""
    part = page.partition(f"<h2>{title}</h2>")[2].partition("<h2>")[0]
    return re.findall(r'<figure title="([^"]*)">.*?</b>(.*?)<br>', part, re.DOTALL)


def test_the_table_has_a_small_picture_of_each_explanation(run, tmp_path):
    pictures = table_of(make_page(run, tmp_path / "r.html"))["pictures"]
    assert sorted(map(int, pictures)) == [number for number in range(COUNT) if number != 3]
    image = Image.open(BytesIO(b64decode(pictures["0"].removeprefix("data:image/jpeg;base64,"))))
    assert max(image.size) <= pages.TABLE_SIDE
    assert max(map(len, pictures.values())) < 3000


def test_only_the_first_rows_have_pictures(run, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "MAX_PICTURES", 2)
    page = make_page(run, tmp_path / "r.html")
    assert sorted(table_of(page)["pictures"]) == ["0", "1"]
    assert "The first 2 explanations are shown in the table." in page


def test_each_explanation_is_painted_once(run, tmp_path, monkeypatch):
    painted, make = [], pages.make_thumbnail
    monkeypatch.setattr(
        pages, "make_thumbnail", lambda found, *rest: painted.append(found.origin.image) or make(found, *rest)
    )
    make_page(run, tmp_path / "r.html")
    assert len(painted) == len(set(painted)) == COUNT - 1


def test_the_least_confident_come_first(run, tmp_path):
    names = [Path(name).name for name, _ in section(make_page(run, tmp_path / "r.html"), "Least confident")]
    with BatchRun(run) as opened:
        rows = {Path(row["image"]).name: row["confidence"] for row in opened.rows("state = 'done'")}
    assert names == sorted(rows, key=rows.get)[:8]


def test_those_that_hold_least_on_other_backgrounds_come_first(run, tmp_path):
    with BatchRun(run) as opened:
        shares = sorted((row["backgrounds"], row["id"]) for row in opened.rows("state = 'done'"))
    cards = section(make_page(run, tmp_path / "r.html"), "Holds least on other backgrounds")
    assert [Path(name).name for name, _ in cards] == [f"p{number:02d}.png" for _, number in shares[:8]]
    assert cards[0][1].removeprefix("core ").startswith("kept on ")


def test_thumbnails_are_shown_at_their_own_size(run, tmp_path):
    """Scaled by a tenth, a line of one pixel is drawn with gaps."""
    page = make_page(run, tmp_path / "r.html")
    assert f"--thumb: {THUMBNAIL_SIDE}px;" in page
    assert ".thumbs:not(.pairs) img { width: var(--thumb); height: var(--thumb); object-fit: none; }" in page


@pytest.mark.parametrize(("count", "shown"), [(1, 0), (2, 1), (5, 2)])
def test_a_small_run_shows_at_most_half_of_its_images_as_extremes(tmp_path, count, shown):
    (tmp_path / "net.py").write_text(MODEL)
    words = ["batch", str(write_pictures(tmp_path / "shots", count)), "--model", f"python:{tmp_path}/net.py:predict"]
    assert main([*words, "--out", str(tmp_path / "run"), *QUICK, "--max-calls", "60"]) == 0
    page = make_page(tmp_path / "run", tmp_path / "r.html")
    for title in ("Least confident", "Holds least on other backgrounds", "Smallest explanations", "Largest explanations"):
        assert len(section(page, title)) == shown, title
        assert (title in page) == (shown > 0)


def test_what_holds_least_is_shown_of_a_model_without_scores(tmp_path):
    (tmp_path / "net.py").write_text(NAMES)
    (shots := tmp_path / "shots").mkdir()
    for number in range(2):
        Image.fromarray(draw(number) * np.array([1, 0, 0], np.uint8)).save(shots / f"p{number}.png")
    words = ["batch", str(shots), "--model", f"python:{tmp_path}/net.py:predict", "--out", str(tmp_path / "run"), *QUICK]
    assert main([*words, "--max-calls", "200"]) == 0
    page = make_page(tmp_path / "run", tmp_path / "r.html")
    assert "Least confident" not in page
    assert len(section(page, "Holds least on other backgrounds")) == 1
