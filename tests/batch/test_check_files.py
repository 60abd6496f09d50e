"""`becausal check` on the command line: exit status, what it prints, and the files for people and CI systems."""

import json
import re
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

import pytest
from batch_toys import MODEL, draw, write_coco, write_pictures
from check_toys import make_run
from PIL import Image

import becausal
from becausal.batch.check import Offender, RuleVerdict, Verdict, format_junit, format_markdown
from becausal.batch.places import fixed_region
from becausal.batch.rules import RULES, Judgement
from becausal.interfaces.cli.app import main

HOSTILE = "a|b`c`<script>alert(1)</script>&\"']]>\x00\x0b\x1b[31m\ud800\ufffe @team ![x](http://e) 日本.png"
SCHEMA = Path(__file__).parent / "junit.xsd"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run on nine images, three of which are explained outside of their box, and an older run on the same."""
    folder = tmp_path_factory.mktemp("check")
    (folder / "net.py").write_text(MODEL)
    (folder / "other.py").write_text(MODEL.replace("[:, 8:16, 8:16]", "[:, 8:16, 10:16]"))
    path = write_coco(write_pictures(folder / "shots", 9), 9)
    (folder / "none").mkdir()
    (folder / "lost.toml").write_text("[forbidden]\nmask = 'lost.png'\n")
    (folder / "wrong.toml").write_text("[outside]\nmasks = 'shots'\n")
    for name, model in (("run", "net"), ("old", "other")):
        words = ["batch", str(path), "--model", f"python:{folder}/{model}.py:predict", "--out", str(folder / name)]
        assert main([*words, "--max-calls", "100"]) == 0
    return folder


@pytest.fixture
def here(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    capsys.readouterr()
    return place


def write_rules(text):
    Path("rules.toml").write_text(text)
    return ["--rules", "rules.toml"]


def parse(content):
    """The document, after a check against the schema."""
    xmlschema = pytest.importorskip("xmlschema")
    xmlschema.XMLSchema(str(SCHEMA)).validate(content.decode("utf-8"))
    return ElementTree.fromstring(content)


# Exit status


@pytest.mark.parametrize(
    ("rules", "more", "status"),
    [
        ("[outside]\nmax_share = 0.5", [], 0),
        ("[outside]\nmax_share = 0.01", [], 1),
        ("[outside]\nmax_share = 0.3", [], 0),  # a third of nine images: not enough to be sure
        ("[outside]\nmax_share = 0.3", ["--strict"], 1),
        ("[necessary]\nmin_share = 0\n[size]\nat_most = 1\n[failures]\nmax_share = 0", [], 0),
        ("[outside]\nmasks = 'none'", [], 2),
        ("[outside]\nmasks = 'none'\n[size]\nat_most = 0", [], 1),
        ("[labels]\n[overlap]\nbelow = 0.0", ["--baseline", "old"], 0),
        ("[overlap]\nbelow = 1.0", ["--baseline", "old"], 1),
    ],
)
def test_the_exit_status_is_the_verdict(here, capsys, rules, more, status):
    assert main(["check", "run", *write_rules(rules), *more]) == status
    printed = capsys.readouterr()
    assert printed.out.startswith("run: ")
    assert len(printed.err.splitlines()) == ("masks" in rules)


def test_without_rules_boxes_and_a_baseline_decide(here, capsys):
    assert main(["check", "run"]) == 1
    assert re.findall(r"^  (\w+) ", capsys.readouterr().out, re.M) == ["outside", "failures"]
    assert main(["check", "run", "--baseline", "run"]) == 1
    assert re.findall(r"^  (\w+) ", capsys.readouterr().out, re.M) == ["outside", "labels", "overlap", "failures"]


def test_it_prints_every_rule_and_the_worst_images(here, capsys):
    assert main(["check", "run", *write_rules("[outside]\n[failures]\n")]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run: 1 of 2 rules broken"
    assert "broken  3 of 9 images (33 %; 12 % to 65 %), at most 5 %: less than 50 % of the explanation" in lines[1]
    assert [line.strip().rsplit("/", 1)[-1] for line in lines[2:5]] == [f"p0{k}.png: 0 % inside" for k in (2, 5, 8)]
    assert "holds   0 of 9 images (0 %; 0 % to 30 %), at most 5 %: the image was not explained" in lines[5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "is not a run folder"),
        (["run", "old"], "expected one run folder, not 2"),
        (["run", "--rules", "none.toml"], "there is no file none.toml"),
        (["run", "--rules", "net.py"], "the rules in net.py cannot be read"),
        (["run", "--baseline", "shots"], "shots is not a run folder"),
        (["run", "--target", "dark"], "add --model"),
        (["run", "--out", "x"], "add --model"),
        (["run", "--workers", "2"], "add --model"),
        (["shots", "--model", "python:net.py:predict"], "add --out RUN"),
        (["shots", "--model", "python:net.py:predict", "--out", "new", "--rules", "none.toml"], "there is no file"),
        (["shots", "--model", "python:net.py:predict", "--out", "new", "--junit", "net.py/x.xml"], "is not a folder"),
        (["shots", "--model", "python:net.py:predict", "--out", "new", "--rules", "lost.toml"], "there is no file lost.png"),
        (["run", "--junit", "shots"], "it is a folder"),
        (["run", "--rules", "wrong.toml"], "shots/p00.png is the image itself, not its mask"),
    ],
)
def test_bad_input_gets_one_line(here, capsys, words, message):
    assert main(["check", *words]) == 2
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == 1
    assert message in printed.err
    assert not Path("new").exists()


def test_images_are_explained_first(here, capsys):
    words = ["check", "shots/boxes.json", "--model", "python:net.py:predict", "--max-calls", "60", "--out", "fresh"]
    assert main([*words, "--limit", "1"]) == 2  # not an option of this command
    capsys.readouterr()
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["run"] == "fresh"
    assert main(["check", "fresh", "--strict"]) == 1


SHORTCUT = """
import numpy as np
LABELS, RETURNS = ["tree", "bus"], "probabilities"

def sound(batch):
    share = (batch[:, 8:16, 8:16].mean(axis=(1, 2, 3)) / 255) ** 2
    return np.stack([1 - share, share], axis=1)

def shortcut(batch):
    share = (batch[:, 20:, 20:].mean(axis=(1, 2, 3)) / 255) ** 2
    return np.stack([1 - share, share], axis=1)
"""


def test_a_planted_shortcut_turns_the_gate_red(tmp_path, monkeypatch):
    """The tutorial in small: the same images, once with a model of the mark in their corner, once with one of the object."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(SHORTCUT)
    Path("shots").mkdir()
    for number in range(4):
        pixels = draw(number)
        pixels[20:, 20:] = 255
        Image.fromarray(pixels).save(f"shots/{number}.png")
    images = [{"id": k, "file_name": f"{k}.png"} for k in range(4)]
    boxes = [{"image_id": k, "category_id": 1, "bbox": [7, 7, 10, 10]} for k in range(4)]
    record = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "bus"}]}
    Path("shots/buses.json").write_text(json.dumps(record))
    rules = write_rules("[outside]\n[forbidden]\nregion = [-4, -4, 4, 4]\n[failures]\nmax_share = 0\n")
    for name, status in (("shortcut", 1), ("sound", 0)):
        words = ["check", "shots/buses.json", "--model", f"python:net.py:{name}", "--max-calls", "80", "--out", name, *rules]
        assert main([*words, "--junit", f"{name}.xml"]) == status
        suite = parse(Path(f"{name}.xml").read_bytes()).find("testsuite")
        assert (suite.get("failures"), suite.get("errors")) == ("2" if status else "0", "0")


def test_a_limited_run_does_not_pass(here, capsys, tmp_path):
    words = ["batch", "shots", "--model", "python:net.py:predict", "--max-calls", "60", "--out", str(tmp_path / "part")]
    assert main([*words, "--limit", "2"]) == 0
    rules = write_rules("[size]\nat_most = 1\n")
    capsys.readouterr()
    junit = tmp_path / "check.xml"
    assert main(["check", str(tmp_path / "part"), *rules, "--junit", str(junit)]) == 1
    printed = capsys.readouterr().out
    assert "broken  7 of 9 images" in printed
    assert "p02.png: left out by --limit 2" in printed
    suite = parse(junit.read_bytes()).find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    assert "left out by --limit 2" in suite.find("testcase/failure").text
    assert main(["check", str(tmp_path / "part"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["images"], found["rules"][-1]["broken"], found["rules"][-1]["limit"]) == (9, 7, 0)
    assert main([*words]) == 0
    assert main(["check", str(tmp_path / "part"), *rules]) == 0


# Machines


def test_json_is_the_record_of_the_verdict(here, capsys):
    words = ["check", "run", *write_rules("[outside]\n[overlap]\n"), "--baseline", "old", "--json"]
    assert main(words) == 1
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads(json.dumps(becausal.check("run", baseline="old", rules="rules.toml").record()))
    assert {name: found[name] for name in ("run", "baseline", "images", "outcome", "status", "strict", "confidence")} == {
        "run": "run", "baseline": "old", "images": 9, "outcome": "broken", "status": 1, "strict": False, "confidence": 0.95,
    }  # fmt: skip
    outside = found["rules"][0]
    assert (outside["broken"], outside["judged"], outside["share"]) == (3, 9, 1 / 3)
    assert [each["id"] for each in outside["worst"]] == [2, 5, 8]


def test_junit_has_a_test_case_for_each_rule(here):
    rules = write_rules("[outside]\nmasks = 'none'\n[size]\nat_most = 0.0\n[failures]\n")
    assert main(["check", "run", *rules, "--junit", "out/check.xml"]) == 1
    root = parse(Path("out/check.xml").read_bytes())
    suite = root.find("testsuite")
    for counted in (root, suite):
        assert [counted.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    assert [(case.get("name"), [child.tag for child in case]) for case in suite] == [
        ("outside", ["error"]),
        ("size", ["failure"]),
        ("failures", ["system-out"]),
    ]
    failure = suite.find("testcase/failure")
    assert failure.get("message").startswith("9 of 9 images (100 %; 70 % to 100 %), at most 5 %: the explanation is larger")
    assert len(failure.text.strip().splitlines()) == 10
    assert "p00.png: " in failure.text


def hostile_verdict(outcome="broken"):
    worst = (Offender(1, HOSTILE, HOSTILE, 0.5, HOSTILE),)
    numbers = {"limit": 0.1, "judged": 5, "broken": 4, "skipped": 0, "low": 0.2, "high": 1.0}
    reason = HOSTILE if outcome == "not judged" else None
    rule = RuleVerdict(name="outside", breach=HOSTILE, outcome=outcome, reason=reason, worst=worst, **numbers)
    return Verdict(run=HOSTILE, baseline=HOSTILE, images=5, confidence=0.95, strict=False, rules=(rule,))


@pytest.mark.parametrize("outcome", ["holds", "broken", "not judged"])
def test_junit_of_hostile_names_is_valid(outcome):
    root = parse(format_junit(hostile_verdict(outcome)))
    text = "".join(root.itertext()) + root.find("testsuite").get("name")
    assert "<script>alert(1)</script>" in text  # as text, and in no element
    assert "日本.png" in text
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", text)


def test_the_schema_refuses_what_is_no_junit():
    xmlschema = pytest.importorskip("xmlschema")
    schema = xmlschema.XMLSchema(str(SCHEMA))
    good = format_junit(hostile_verdict()).decode()
    assert schema.is_valid(good)
    for before, after in (("<failure", "<fault"), ('tests="1"', 'tests="one"'), (' name="outside"', ""), ("message=", "m=")):
        assert before in good
        assert not schema.is_valid(
            good.replace(before, after).replace("</failure", f"</{after[1:]}" if "<" in after else "</failure")
        )


@pytest.mark.parametrize("outcome", ["holds", "broken", "not judged"])
def test_markdown_shows_hostile_names_as_text(outcome):
    text = format_markdown(hostile_verdict(outcome))
    assert not re.search("[\x00-\x09\x0b-\x1f\ud800-\udfff\ufffe\uffff]", text)
    outside = re.sub(r"`[^`]*`", "", text)  # what is not a code span
    assert "<script" not in outside
    assert "@team" not in outside
    assert "![x]" not in outside.replace("\\[", "")
    for line in text.splitlines():
        if line.startswith("|"):
            cells = re.split(r"(?<!\\)\|", line)
            assert len(cells) in (4, 6)  # the table of images has two columns, that of rules four


def test_markdown_names_rules_and_images(here):
    assert main(["check", "run", "--baseline", "old", *write_rules("[outside]\n[labels]\n"), "--markdown", "check.md"]) == 1
    text = Path("check.md").read_text(encoding="utf-8")
    assert text.startswith("## ❌ 1 of 3 rules broken\n\n`run`, 9 images, compared with `old`\n")
    assert "| ❌ | outside | 3 of 9 images (33 %; 12 % to 65 %), at most 5 % | less than 50 % of" in text
    assert "p02.png` | `0 % inside` |" in text


# People


def test_the_page_shows_the_worst_images(here):
    assert (
        main(["check", "run", "--baseline", "old", *write_rules("[outside]\n[overlap]\nbelow = 1.0\n"), "--page", "c.html"])
        == 1
    )
    page = Path("c.html").read_text(encoding="utf-8")
    assert unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]).startswith(
        "default-src 'none'; img-src data:;"
    )
    assert "<script" not in page
    outside, overlap = page.split("<h2>Outside")[1].split("<h2>Overlap")
    assert outside.count("data:image/jpeg") == 3
    assert overlap.count("data:image/jpeg") == 2 * overlap.count("<figure")
    assert "3 of 9" in page
    assert "0 % inside" in outside.replace("\N{NO-BREAK SPACE}", " ")


def test_the_page_escapes_names_and_lists_failures(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = "a<script>alert(1)</script>.png"
    make_run(
        tmp_path / "run", [{"image": name, "label": "<b>bus</b>", "size": 0.5}, {"state": "failed", "error": "<i>no</i>"}]
    )
    assert main(["check", "run", *write_rules("[size]\nat_most = 0.1\n[failures]\n[outside]\n"), "--page", "c.html"]) == 1
    page = Path("c.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;b&gt;bus&lt;/b&gt;" in page
    assert "&lt;i&gt;no&lt;/i&gt;" in page
    assert '<div class="blank">' in page  # the explanation of the first image is not there
    assert "warning: 1 explanation was left out of run" in capsys.readouterr().err
    assert "Not judged: " in page


def test_a_verdict_explains_itself_in_a_test(here):
    """The pytest example of the documentation: the message of the assertion names rules and images."""
    verdict = becausal.check("run", rules={"outside": {}})
    with pytest.raises(AssertionError) as caught:
        assert verdict.holds, str(verdict)
    assert "outside: broken: 3 of 9 images" in str(caught.value)
    assert "p02.png: 0 % inside" in str(caught.value)
    assert repr(verdict) == "<Verdict run: 1 of 2 rules broken>"


# A rule of one's own


@dataclass(frozen=True, kw_only=True)
class DarkRule:
    """An imaginary rule: the whole of what a new one needs, besides its row in `RULES`."""

    at_least: float
    max_share: float = 0.05
    needs_baseline = False
    breach = "the label is dark"

    def judge(self, image):
        value = float(image.row["label"] != "dark")
        return Judgement(value, value < self.at_least, -value, "dark, indeed")

    def missing(self, run):
        return f"{run} has no light"

    @property
    def place(self):
        return fixed_region(0, 0, 4, 4)


def test_a_rule_is_one_class_and_one_row(here, monkeypatch, capsys):
    """ARCHITECTURE.md: the reader, the output, JSON, JUnit, Markdown and the page find it there."""
    monkeypatch.setitem(RULES, "dark", DarkRule)
    run = make_run(here / "dark", [{"label": "dark"}, {"label": "dark"}, {"label": "light"}])
    words = ["check", run.name, *write_rules("[dark]\nat_least = 0.5\n")]
    assert main([*words, "--junit", "dark.xml", "--markdown", "dark.md", "--page", "dark.html"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "dark" in next(line for line in lines if "broken  2 of 3 images" in line and "the label is dark" in line)
    assert "000000.png: dark, indeed" in "".join(lines)
    assert main([*words, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["rules"][-1]
    assert (found["name"], found["broken"], found["limit"], found["breach"]) == ("dark", 2, 0.05, "the label is dark")
    case = parse(Path("dark.xml").read_bytes()).find("testsuite/testcase[@name='dark']/failure")
    assert "000001.png: dark, indeed" in case.text
    assert "| ❌ | dark | 2 of 3 images" in Path("dark.md").read_text(encoding="utf-8")
    page = Path("dark.html").read_text(encoding="utf-8").split("<h2>Dark")[1]
    assert page.count("<figure") == 2
    assert "The region is outlined in amber." in page
    assert main(["check", run.name, *write_rules("[dark]\nlimit = 1\n")]) == 2
    assert "unknown field dark.limit; expected at_least, max_share" in capsys.readouterr().err
